"""Falcon with ALiBi beside the reference, whose usual attention takes distances off once, and its eager one twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers

import glassformer
from tests.engine.executors import Subject
from tests.parity import reference
from tests.parity.compare import close, ids_for
from tests.parity.configs.decoders import falcon_with_alibi
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")


@torch.no_grad()
@pytest.mark.parametrize("seed", [*range(5), *swept(range(5, 20))])
def test_logits_and_greedy_ids_equal_the_reference(seed: int, tmp_path: Path) -> None:
    reference.write(tmp_path, "falcon", **falcon_with_alibi(random.Random(seed)))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    ours = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = ids_for(theirs, 2, 21)
    close(ours(ids).logits, theirs(ids).logits)
    expected = theirs.generate(ids[:1, :9], max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert ours.generate(ids[:1, :9], max_new_tokens=24, eos_token_id=None).tolist() == expected.tolist()
    subject = Subject(tmp_path)
    assert subject.verdict(subject.cpu(), (1, 9, 4, 20)).agrees(1e-5)
