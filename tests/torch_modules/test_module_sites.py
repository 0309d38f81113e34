"""Any of PyTorch's modules as a site, by its own name: read and changed as hooks on the reference's module of that name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from glassformer.engine.protocol import Feed
from glassformer.ground.changes import Change, ComputedChange
from glassformer.ground.errors import ExecutorError, SiteError
from glassformer.ground.sites import Watch
from tests.see.models import TEXT, both, encoder

pytestmark = pytest.mark.usefixtures("one_thread")

MODULES = {
    "llama": ["model.embed_tokens", "model.layers.0.self_attn", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp",
              "model.layers.0.mlp.up_proj", "model.layers.0", "model.layers.0.input_layernorm", "model.norm"],
    "gpt2": ["transformer.wpe", "transformer.h.0.attn.c_attn", "transformer.h.1.mlp", "transformer.h.0.ln_2",
             "transformer.ln_f"],
    "t5": ["encoder.block.1.layer.1.DenseReluDense.wi", "decoder.block.0.layer.1.EncDecAttention.o",
           "decoder.block.1.layer.2.DenseReluDense"],
    "bart": ["model.encoder.layers.0.fc1", "model.decoder.layers.0.fc2", "model.decoder.layers.1.encoder_attn.out_proj"],
}  # fmt: skip
PLACES = [(family, module) for family, modules in MODULES.items() for module in modules]


@contextmanager
def hooked(module: nn.Module, hook: Callable[[Any], Any]) -> Iterator[None]:
    def on_output(_: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            changed = hook(output[0])
            return None if changed is None else (changed, *output[1:])
        return hook(output)

    handle = module.register_forward_hook(on_output)
    yield
    handle.remove()


@pytest.mark.parametrize(("family", "module"), PLACES)
def test_a_module_gives_what_the_references_gives(family: str, module: str) -> None:
    model = both(family)
    reading, seen = model.reading(), list[Any]()
    with hooked(model.reference.get_submodule(module), seen.append):
        model.run(reading)
    assert np.allclose(reading.at(f"module:{module}"), seen[0][0].numpy(), atol=1e-4)


@pytest.mark.parametrize(("family", "module"), [("llama", "model.layers.1.mlp"), ("bart", "model.encoder.layers.0.fc1")])
def test_a_module_is_changed_as_the_references_is(family: str, module: str) -> None:
    model = both(family)
    reading = model.reading()
    with hooked(model.reference.get_submodule(module), lambda output: output * 0.25):
        expected = model.run(reading).logits[0].numpy()
    changed = model.model.changed({f"module:{module}": Change(scale=0.25)})
    found = changed.read_ids(reading.source or reading.ids, reading.ids[1:] if reading.source else ()).at("scores")
    assert np.allclose(found, expected, atol=1e-4)
    assert not np.allclose(found, reading.at("scores"), atol=1e-4)


def test_an_encoders_module() -> None:
    model, name = encoder("bert"), "bert.encoder.layer.0.intermediate.dense"
    reading, seen = model.model.read(TEXT), list[Any]()
    with hooked(model.reference.get_submodule(name), seen.append), torch.no_grad():
        model.reference(torch.tensor([reading.ids]))
    assert np.allclose(reading.at(f"module:{name}"), seen[0][0].numpy(), atol=1e-4)


def test_each_row_of_a_batch_has_its_own_part_and_its_own_change() -> None:
    executor, site = both("llama").model.executor, "module:model.layers.0.mlp"
    texts = [[5, 6, 7, 8], [9, 10]]

    def read(changes: Any) -> list[Any]:
        feeds = [
            Feed(executor.open(), ids, watch=Watch(frozenset({site}), change))
            for ids, change in zip(texts, changes, strict=True)
        ]
        return [np.asarray(logits.sites[site]) for logits in executor.run(feeds)]

    plain, changed = read([{}, {}]), read([{}, {site: Change(scale=0, positions=[1])}])
    assert [value.shape[:2] for value in plain] == [(1, 4), (1, 2)]
    assert np.array_equal(changed[0], plain[0])
    assert np.array_equal(changed[1][0, 0], plain[1][0, 0])
    assert not changed[1][0, 1].any()


def test_a_pattern_of_modules() -> None:
    found = both("llama").reading().values("module:model.layers.*.mlp.down_proj")
    assert list(found) == [
        f"module:model.layers.{index}.mlp.down_proj" for index in range(both("llama").model.blueprint.blocks)
    ]


def test_a_called_model_reads_modules_too() -> None:
    module = both("qwen3").model.module
    output = module(torch.tensor([[5, 6, 7], [1, 2, 3]]), watch="module:model.layers.1.mlp")
    assert output.sites["module:model.layers.1.mlp"].shape == (2, 3, 48)


def test_a_module_that_is_called_again_and_again_is_changed_and_not_read() -> None:
    model = encoder("albert").model
    name = "module:albert.encoder.albert_layer_groups.0.albert_layers.0.ffn"
    with pytest.raises(SiteError, match="several times"):
        model.read(TEXT).at(name)
    changed = model.changed({name: Change(scale=0)}).read(TEXT).at("scores")
    assert not np.allclose(changed, model.read(TEXT).at("scores"), atol=1e-4)


def test_what_no_pass_shows_is_refused() -> None:
    reading = both("llama").reading()
    for site, named in (
        ("module:model.layers.9.mlp", "Did you mean"),
        ("module:model.layers", "does not call"),
    ):
        with pytest.raises(SiteError, match=named):
            reading.at(site)
    with pytest.raises(SiteError, match="which comes first"):
        both("llama").model.changed({"blocks.1.residual": OfAModule()})


class OfAModule(ComputedChange):
    """A change that is computed from what a module gave."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("module:model.layers.0.mlp",)


def test_engines_have_no_modules() -> None:
    with pytest.raises(ExecutorError, match="executor='plain'"):
        both("llama", "cpu").reading().at("module:model.layers.0.mlp")
