"""How near the engine's scores are to float32 arithmetic on the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import glassformer
from glassformer.engine.protocol import Feed, Want
from glassformer.see.evaluation import HELD_OUT
from tests.likelihoods import compare_likelihoods
from tests.parity import reference

IDS = list(range(3, 43))


def scores(path: Path, **how: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    executor = glassformer.load(path, **how).executor
    (found,) = executor.run([Feed(executor.open(), IDS, Want.ALL)])
    return np.stack([found.host(index).copy() for index in range(len(IDS))])


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_bfloat16_is_nearer_than_pytorch_s(family: str, tmp_path: Path) -> None:
    """The weights are the same; PyTorch rounds what it computes too."""
    reference.build(family).to(torch.bfloat16).save_pretrained(tmp_path)
    exact = scores(tmp_path, executor="plain", dtype="float32")
    ours, theirs = (
        np.abs(found - exact).mean() for found in (scores(tmp_path, executor="cpu"), scores(tmp_path, dtype="bfloat16"))
    )
    assert ours < 1.5 * theirs


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("how", "divergence", "agreement"),
    [
        ({"cache": "f16"}, 7e-5, 0.995),
        ({"cache": "q8"}, 1.5e-2, 0.95),
        ({"activations": "mixed"}, 2.2e-3, 0.97),
        ({"activations": "q8"}, 7e-3, 0.95),
    ],
)
def test_kl_divergence_over_five_thousand_tokens(
    smollm2: Path, how: dict[str, str], divergence: float, agreement: float
) -> None:
    """llama.cpp's divergence on this file is 4.9e-3 bits, and its agreement 95.4 % (bench/quality.py)."""
    plain = glassformer.load(smollm2, executor="plain")
    pages = [HELD_OUT, *sorted((Path(__file__).parents[3] / "docs").glob("*.md"))]
    ids = plain.tokenizer("\n".join(page.read_text("utf-8") for page in pages))["input_ids"][:5120]
    found = compare_likelihoods(plain.executor, glassformer.load(smollm2, executor="cpu", **how).executor, ids)
    assert found.first.tokens > 5000
    assert found.divergence < divergence
    assert found.agreement > agreement
