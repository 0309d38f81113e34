"""Llama 4's scores grow with positions, which the reference counts from a row's first token whatever its positions are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.executors import Subject
from tests.parity.compare import close, ids_for, pair

pytestmark = pytest.mark.usefixtures("one_thread")


@torch.no_grad()
@pytest.mark.parametrize("size", [4, 7])
def test_scores_that_grow_with_positions_and_chunks_that_end(size: int, tmp_path: Path) -> None:
    own = {"floor_scale": size, "attn_scale": 0.6, "attention_chunk_size": 11 - size}
    models = pair(tmp_path, "llama4_text", "causal", **own)
    ids = ids_for(models.theirs, 2, 33)
    wanted = models.theirs(ids, output_attentions=True)
    found = models.ours(ids, output_attentions=True)
    close(found.logits, wanted.logits)
    for one, other in zip(found.attentions, wanted.attentions, strict=True):
        close(one, other)
    plain = pair(tmp_path / "plain", "llama4_text", "causal", **{**own, "attn_temperature_tuning": False}).theirs(ids)
    assert not torch.allclose(plain.logits, wanted.logits, atol=1e-3)
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None}
    assert models.ours.generate(ids[:1], **options).tolist() == models.theirs.generate(ids[:1], **options).tolist()
    subject = Subject(tmp_path)
    assert subject.verdict(subject.cpu()).agrees(1e-5)
