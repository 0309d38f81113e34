"""Outputs as libraries handle them: as dicts, and as nodes of torch's pytrees."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from glassformer.torch.outputs import CausalLMOutputWithPast, SequenceClassifierOutput


@pytest.fixture
def output() -> SequenceClassifierOutput:
    return SequenceClassifierOutput(loss=torch.tensor(1.0), logits=torch.tensor([[1.0, 2.0]]))


def test_attributes_and_keys_are_the_same_values(output: Any) -> None:
    assert isinstance(output, dict)
    assert dict(output) == {"loss": output.loss, "logits": output.logits}
    output["logits"] = output.logits * 2
    assert output.logits.tolist() == [[2.0, 4.0]]
    output.attentions = (torch.ones(1),)
    assert list(output) == ["loss", "logits", "attentions"]
    assert output.pop("loss") == 1.0
    assert output.loss is None
    del output["attentions"]
    assert output.attentions is None
    assert output.to_tuple() == (output.logits,)
    output.update(loss=torch.tensor(3.0))
    assert output[0] == 3.0
    output.note = "not a field"
    assert "note" not in output
    with pytest.raises(KeyError, match="has no 'nothing'"):
        del output["nothing"]


def test_an_output_is_made_of_pairs_or_a_mapping(output: Any) -> None:
    for made in (type(output)(dict(output)), type(output)((name, value) for name, value in output.items())):
        assert made.loss == 1.0
        assert list(made) == ["loss", "logits"]
    assert type(output)({}).to_tuple() == ()


def test_pytrees_and_copies_keep_the_class(output: Any) -> None:
    leaves, structure = pytree.tree_flatten(output)
    assert leaves == [output.loss, output.logits]
    doubled = pytree.tree_unflatten([leaf * 2 for leaf in leaves], structure)
    assert type(doubled) is type(output)
    assert doubled.logits.tolist() == [[2.0, 4.0]]
    assert pytree.tree_map(lambda leaf: leaf, CausalLMOutputWithPast(logits=torch.ones(1))).loss is None
    assert pickle.loads(pickle.dumps(output)).logits.tolist() == [[1.0, 2.0]]
