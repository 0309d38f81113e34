"""The text layer's material: real tokenizers of every kind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glassformer.checkpoint import tiktoken_ranks
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.model_files import open_model
from glassformer.text import Tokenizer
from tests.conftest import unavailable


@pytest.fixture(scope="session")
def minilm(minilm: Path) -> Path:
    """MiniLM's tokenizer.json: BERT's uncased WordPiece."""
    return minilm / "tokenizer.json"


@pytest.fixture(scope="session")
def gpt2(gpt2_tokenizer: Path) -> Path:
    """GPT-2's tokenizer.json."""
    return gpt2_tokenizer / "tokenizer.json"


@pytest.fixture(scope="session")
def words(minilm: Path) -> list[str]:
    """MiniLM's vocabulary, by id."""
    vocabulary: dict[str, int] = json.loads(minilm.read_text("utf-8"))["model"]["vocab"]
    return sorted(vocabulary, key=vocabulary.__getitem__)


@pytest.fixture(scope="session")
def pairs(gpt2: Path) -> tuple[dict[str, int], list[str]]:
    """GPT-2's vocabulary, and its merges as lines."""
    model = json.loads(gpt2.read_text("utf-8"))["model"]
    return model["vocab"], [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]


@pytest.fixture(scope="session")
def tiktoken_cl100k(cl100k: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """tiktoken's own cl100k_base, read from our ranks, wherever this machine would have it look."""
    try:
        import tiktoken
    except ImportError:
        unavailable("tiktoken is not installed")
    folder = tmp_path_factory.mktemp("tiktoken")
    shutil.copy(cl100k, folder / tiktoken_ranks.CACHE_KEY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        return tiktoken.get_encoding(tiktoken_ranks.NAME)


@pytest.fixture(scope="session")
def qwen(qwen3_tokenizer: Path) -> Tokenizer:
    return open_model(qwen3_tokenizer).tokenizer


@pytest.fixture(scope="session")
def reference(qwen3_tokenizer: Path) -> Any:
    from tests.parity.reference import transformers

    return transformers.AutoTokenizer.from_pretrained(qwen3_tokenizer)


@pytest.fixture(scope="session")
def smol(smollm2: Path) -> Tokenizer:
    return open_model(smollm2).tokenizer


@pytest.fixture(scope="session")
def smol_metadata(smollm2: Path) -> Mapping[str, Any]:
    return GgufCheckpoint(smollm2).metadata
