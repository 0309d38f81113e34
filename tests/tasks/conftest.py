"""Tiny models of every head with real vocabularies, read by us and by the reference."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parity.reference import write

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]

Make = Callable[..., Path]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory, minilm: Path, gpt2_tokenizer: Path) -> Make:
    """A folder with a tiny model: a WordPiece or a byte-level vocabulary, any head. Made once for each question."""
    made: dict[Any, Path] = {}

    def of(model_type: str, head: str, **changes: Any) -> Path:
        key = (model_type, head, repr(sorted(changes.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{model_type}-{head}")
            bytes_ = model_type in ("gpt2", "bart", "llama", "roberta")
            shape = {"vocab_size": 50257 if bytes_ else 30522, **changes}
            if model_type in ("gpt2", "bart", "llama"):
                shape = {"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 50256, **shape}
            write(folder, model_type, head, **shape)
            source = gpt2_tokenizer if bytes_ else minilm
            for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
                if (source / name).exists():
                    shutil.copy(source / name, folder)
            made[key] = folder
        return made[key]

    return of


@pytest.fixture(scope="session")
def named_labels() -> dict[str, Any]:
    return {"id2label": dict(enumerate(LABELS)), "label2id": {label: n for n, label in enumerate(LABELS)}}


def same(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    """Equal in everything but the last digits of numbers."""
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs)
        for key in theirs:
            same(ours[key], theirs[key], tolerance)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, tolerance)
    elif isinstance(theirs, float) or hasattr(theirs, "dtype"):
        assert float(ours) == pytest.approx(float(theirs), abs=tolerance)
    else:
        assert ours == theirs
