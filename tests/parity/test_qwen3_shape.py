"""Qwen3-0.6B's true shape end to end, with random weights: float32 ids equal, bfloat16 no worse than the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import glassformer
from tests.parity import reference

pytestmark = pytest.mark.sweep

SHAPE: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_word_embeddings": True,
    "eos_token_id": 151645, "pad_token_id": 151643, "bos_token_id": 151643,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen3-0.6b")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(reference.config("qwen3", **SHAPE), dtype=torch.bfloat16)
    model.save_pretrained(path)
    return path


IDS = torch.randint(10, 150000, (1, 12), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_float32_ids_and_bfloat16_error(folder: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = glassformer.AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    settings: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None}
    expected = theirs.generate(IDS, attention_mask=torch.ones_like(IDS), **settings)
    assert ours.generate(IDS, **settings).tolist() == expected.tolist()
    exact = theirs(IDS).logits
    assert float((ours(IDS).logits - exact).abs().max()) <= 1e-4 * float(exact.max() - exact.min())
    assert ours.num_parameters() == 596_049_920
    del theirs, ours
    half = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    error = (half(IDS).logits.float() - exact).square().mean().sqrt()
    del half
    mine = glassformer.AutoModelForCausalLM.from_pretrained(folder)
    assert mine.dtype == torch.bfloat16
    assert (mine(IDS).logits.float() - exact).square().mean().sqrt() <= 1.5 * error
