"""Adapters made by peft on tiny reference models, with numbers that are lively enough for differences to show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.engine.protocol import Feed, Want
from tests.conftest import unavailable
from tests.fuzz.targets import write_tokenizer
from tests.parity import reference

IDS = [3, 17, 5, 29, 11, 2, 40]
MakeAdapter = Callable[..., tuple[Path, Path, Any]]


def make_peft_adapter(
    folder: Path, family: str, head: str = "CausalLM", sizes: dict[str, Any] | None = None, **fields: Any
) -> tuple[Path, Path, Any]:
    """A base of these sizes and an adapter on it, each in its folder, and the reference with the adapter."""
    import peft

    base = reference.write(folder / "base", family, head, **sizes or {})
    base.name_or_path = str(folder / "base")
    write_tokenizer(folder / "base")
    tasks = {"CausalLM": "CAUSAL_LM", "Seq2SeqLM": "SEQ_2_SEQ_LM", "SequenceClassification": "SEQ_CLS", "MaskedLM": None}
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": tasks[head], **fields})
    adapted = peft.get_peft_model(base, config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_magnitude" in name:
                value.mul_(1 + 0.2 * torch.rand(value.shape, generator=generator))
            elif "lora_" in name or value.requires_grad:
                value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    adapted.save_pretrained(folder / "adapter")
    return folder / "base", folder / "adapter", adapted


@pytest.fixture
def make_adapter(tmp_path: Path) -> MakeAdapter:
    try:
        import peft  # noqa: F401
    except ImportError:
        unavailable("adapters are made by peft, which is not installed")

    def make(family: str, head: str = "CausalLM", **fields: Any) -> tuple[Path, Path, Any]:
        return make_peft_adapter(tmp_path, family, head, **fields)

    return make


def reference_scores(model: Any, **inputs: Any) -> np.ndarray:
    with torch.no_grad():
        logits: np.ndarray = model(**(inputs or {"input_ids": torch.tensor([IDS])})).logits[0].numpy()
    return logits


def scores(base: Path, **options: Any) -> np.ndarray:
    """Our scores of the same tokens at each position."""
    model = glassformer.load(base, **options)
    return model_scores(model)


def model_scores(model: glassformer.Model) -> np.ndarray:
    result = model.executor.run([Feed(model.executor.open(), IDS, Want.ALL)])[0]
    return np.stack([result.host(position) for position in range(len(IDS))])
