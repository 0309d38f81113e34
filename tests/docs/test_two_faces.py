"""docs/two-faces.md: each cell of the table runs, on both executors; and the two sides of a row agree."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer import Change, Model
from tests.see.models import both
from tests.test_docs import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT, OTHER = "the cat sat", "the dog sat"
PAGE = (ROOT / "docs" / "two-faces.md").read_text("utf-8")
ROWS = re.findall(r"^\| (\w[^|]*) \| `(.+)` \| `(.+)` \|$", PAGE, re.M)
SMALLER = {  # of a tiny model, whose tokens are letters
    "The capital of Italy is": OTHER, "blocks.3": "blocks.1", '"attention", 3': '"attention", 5',
    ", raw=True)": ", raw=True, answer=3, against=5)",
}  # fmt: skip


def run(cell: str, model: Model) -> Any:
    """What a cell gives, with its texts and numbers fit to a tiny model."""
    for word, own in SMALLER.items():
        if word != ", raw=True)" or "patch(" in cell:
            cell = cell.replace(word, own)
    ids = torch.tensor([model.read(TEXT, raw=True).ids])
    ablation = {"blocks.0.attention.heads": Change(scale=0, heads=[1])}
    shift = torch.zeros(model.config.hidden_size, requires_grad=True)
    names = {"model": model, "module": model.module, "text": TEXT, "ids": ids, "ablation": ablation, "shift": shift,
             "torch": torch, "Change": Change, "Model": Model, "glass": glassformer}  # fmt: skip
    result = eval(cell, names)
    if "shift=shift" in cell:
        assert shift.grad is not None
        assert bool(shift.grad.any())
        return shift.grad
    return result


def test_the_table_has_rows() -> None:
    assert len(ROWS) == 11


def numbers(result: Any) -> np.ndarray[Any, Any] | None:
    """What is to be compared: of several, the first."""
    if isinstance(result, dict):
        return np.concatenate([np.asarray(value).ravel() for value in result.values()])
    if isinstance(result, tuple):
        return numbers(result[0])
    if isinstance(result, torch.Tensor) or hasattr(result, "__array__") or hasattr(result, "__array_interface__"):
        return np.asarray(result.detach() if isinstance(result, torch.Tensor) else result).ravel()
    return None


def check_one_call(one: Any, other: Any, model: Model) -> None:
    assert one.steps[0].id == int(other.logits[0, -1].argmax())


def check_all_calls(one: Any, other: Any, model: Model) -> None:
    new = other[0, len(model.read(TEXT, raw=True).ids) :]
    assert one == model.tokenizer.decode(new, skip_special_tokens=True)


def check_function(one: Any, other: Any, model: Model) -> None:
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(one.module(ids).logits, other(ids).logits)
    assert not torch.equal(model.module(ids).logits, other(ids).logits)


def check_lens(one: Any, other: Any, model: Model) -> None:
    assert type(one) is type(other)
    assert one.layers == other.layers


CHECKS = {"change them in one call": check_one_call, "change them in all calls": check_all_calls,
          "a function of your own": check_function, "any other view": check_lens}  # fmt: skip


@pytest.mark.parametrize("executor", ["plain", "cpu"])
@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_both_sides_of_a_row_agree(row: tuple[str, str, str], executor: str) -> None:
    what, short, long = row
    model = both("gpt2", executor).model
    one, other = run(short, model), run(long, model)
    if what in CHECKS:
        CHECKS[what](one, other, model)
        return
    mine, theirs = numbers(one), numbers(other)
    assert mine is not None
    assert theirs is not None
    np.testing.assert_allclose(mine, theirs[-mine.size :], atol=1e-3)  # what is read while writing: of the last token


def test_back_and_forth_shares_weights_and_carries_changes() -> None:
    model = both("t5").model.changed({"blocks.0.mlp.update": Change(scale=0)})
    back = Model.from_module(model.module)
    assert back.changes == model.changes
    assert back.module.shared.weight is model.module.shared.weight
    assert back.tokenizer("the cat")["input_ids"] == model.tokenizer("the cat")["input_ids"]
    for text in ("the cat", "a dog sat"):
        assert back.watch(text, max_new_tokens=4).ids == model.watch(text, max_new_tokens=4).ids
    assert not both("t5").model.module.changes
