"""Objects of ours that pass for transformers' own, and stay what they are."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.utils import parametrize

import glassformer
from tests.ecosystem.models import load_tokenizers, write_tokenizer


@pytest.fixture
def model() -> Any:
    config = glassformer.GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=60, n_positions=16)
    return glassformer.GPT2LMHeadModel(config).eval()


def test_isinstance_of_transformers_classes(model: Any, tmp_path: Path) -> None:
    layer, tokenizer = model.transformer.h[0].mlp.c_fc, load_tokenizers(write_tokenizer(tmp_path)).ours
    for thing, kind in (
        (model, transformers.PreTrainedModel), (layer, transformers.pytorch_utils.Conv1D),
        (tokenizer, transformers.PreTrainedTokenizerFast), (tokenizer, transformers.PreTrainedTokenizerBase),
    ):  # fmt: skip
        assert isinstance(thing, kind)
        assert isinstance(thing, type(thing))
        assert not issubclass(type(thing), kind)
        assert not isinstance(thing, transformers.PreTrainedConfig)
        assert (thing.__class__.__name__, thing.__class__.__module__) == (type(thing).__name__, type(thing).__module__)
    assert isinstance(model.base_model, transformers.PreTrainedModel)


def test_the_class_that_is_shown_makes_objects_of_ours(model: Any, tmp_path: Path) -> None:
    made = model.__class__(model.config)
    assert type(made) is type(model)
    model.save_pretrained(tmp_path)
    assert type(model.__class__.from_pretrained(tmp_path)) is type(model)


def test_copies_and_pickles_are_what_they_were(model: Any, tmp_path: Path) -> None:
    ids = torch.tensor([[5, 6, 7]])
    tokenizer = load_tokenizers(write_tokenizer(tmp_path)).ours
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(again) is type(model)
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert pickle.loads(pickle.dumps(tokenizer))("the cat") == tokenizer("the cat")
    assert type(copy.copy(tokenizer)) is type(tokenizer)


def test_a_module_can_be_given_another_class(model: Any) -> None:
    layer = model.transformer.h[0].mlp.c_fc
    before = model(torch.tensor([[5, 6]])).logits
    parametrize.register_parametrization(layer, "weight", torch.nn.Identity())
    assert type(layer).__name__ == "ParametrizedConv1D"
    assert isinstance(layer, transformers.pytorch_utils.Conv1D)
    assert torch.equal(model(torch.tensor([[5, 6]])).logits, before)


def test_without_transformers_there_is_nothing_to_pass_for() -> None:
    code = (
        "import sys, glassformer; model = glassformer.GPT2Model(glassformer.GPT2Config(n_embd=16, n_head=2, n_layer=1));"
        "assert model.__class__ is type(model); assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
