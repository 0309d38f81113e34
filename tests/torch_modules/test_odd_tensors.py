"""The compatible classes with tensors of the wrong kind, rank, dtype, size or device: typed errors, never PyTorch's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.ground.errors import GlassError
from tests.see.models import folder

CLASSES = {
    ("qwen3", "causal"): "AutoModelForCausalLM",
    ("t5", "seq2seq"): "AutoModelForSeq2SeqLM",
    ("bert", "masked"): "AutoModelForMaskedLM",
    ("bert", "sequence"): "AutoModelForSequenceClassification",
    ("bert", "token"): "AutoModelForTokenClassification",
    ("bert", "question"): "AutoModelForQuestionAnswering",
    ("gpt2", "sequence"): "AutoModelForSequenceClassification",
    ("gpt2", "base"): "AutoModel",
}
ODD: dict[str, Any] = {
    "text": "the cat", "bytes": b"x", "number": 3, "nan": float("nan"), "object": object(), "list": [[1, 2, 3]],
    "ragged": [[1, 2], [3]], "empty list": [], "dict": {"input_ids": 1}, "numpy": np.ones((1, 3), np.int64),
    "floats": torch.rand(1, 3), "nans": torch.full((1, 3), float("nan")), "complex": torch.ones(1, 3, dtype=torch.complex64),
    "rank 0": torch.tensor(1), "rank 1": torch.ones(3, dtype=torch.long), "rank 3": torch.ones(1, 3, 1, dtype=torch.long),
    "rank 4": torch.ones(1, 3, 2, 2), "no tokens": torch.ones(1, 0, dtype=torch.long), "no rows": torch.ones(0, 3).long(),
    "longer": torch.ones(1, 7, dtype=torch.long), "more rows": torch.ones(2, 3, dtype=torch.long),
    "negative": torch.full((1, 3), -1), "far too large": torch.full((1, 3), 2**40), "too large": torch.full((1, 3), 10**6),
    "another device": torch.ones(1, 3, dtype=torch.long, device="meta"), "booleans": torch.ones(1, 3, dtype=torch.bool),
    "bytes tensor": torch.ones(1, 3, dtype=torch.uint8),
}  # fmt: skip


@cache
def model(family: str, head: str) -> Any:
    return getattr(glassformer, CLASSES[family, head]).from_pretrained(folder(family, head)[0])


def failures(call: Callable[..., Any], forward: Callable[..., Any], required: dict[str, Any]) -> Iterator[str]:
    parameters = inspect.signature(forward).parameters.values()
    for name in [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name != "p"]:
        for label, value in ODD.items():
            try:
                with torch.inference_mode():
                    call(**{**required, name: value})
            except GlassError:
                continue
            except Exception as error:
                yield f"{name}={label}: {type(error).__name__}: {str(error).splitlines()[0][:120]}"


@pytest.mark.parametrize(("family", "head"), CLASSES)
def test_forward_refuses_odd_tensors(family: str, head: str) -> None:
    one, ids = model(family, head), torch.tensor([[1, 2, 3]])
    required = {"input_ids": ids, **({"decoder_input_ids": ids} if head == "seq2seq" else {})}
    assert list(failures(one, one.forward, required)) == []


@pytest.mark.parametrize(("family", "head"), [("qwen3", "causal"), ("t5", "seq2seq")])
def test_generate_refuses_odd_tensors(family: str, head: str) -> None:
    one = model(family, head)
    required = {"input_ids": torch.tensor([[1, 2, 3]]), "max_new_tokens": 1}
    assert list(failures(one.generate, one.generate, required)) == []
