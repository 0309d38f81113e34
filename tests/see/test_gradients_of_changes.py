"""Gradients flow through every kind of change: held against PyTorch's own hooks that do the same by hand, in float64.

The hooks are on our module: the reference's norms compute in float32, whatever its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import glassformer
from glassformer import Change
from glassformer.ground.changes import FunctionChange, in_sequence
from glassformer.see import differentiation
from tests.features.dictionaries import write_folder
from tests.see.models import WRITERS, folder

TEXT = "the cat sat on the mat"
SITE = "blocks.0.residual"
WIDTH = 48
SHIFT, DIRECTION = np.random.default_rng(5).standard_normal((2, WIDTH)).astype(np.float32)


@cache
def wide_model() -> Any:
    return glassformer.load(folder("llama", WRITERS["llama"])[0], executor="plain", dtype="float64")


@contextmanager
def hooked(module: Any, change: Callable[[Tensor], Tensor], before: bool = False) -> Iterator[None]:
    """A module whose output is changed; or that is shown its input before it runs."""
    if before:
        handle = module.register_forward_pre_hook(lambda module, inputs: change(inputs[0]) and None)
    else:
        handle = module.register_forward_hook(
            lambda module, inputs, output: (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)
        )
    try:
        yield
    finally:
        handle.remove()


def hooked_gradient(ids: Any) -> tuple[Any, Any]:
    """One score's lead over another, and its gradient at the tokens' vectors."""
    module = wide_model().module
    vectors = module.get_input_embeddings()(torch.tensor([ids])).detach().requires_grad_()
    logits = module(inputs_embeds=vectors).logits[0, -1]
    value = logits[3] - logits[5]
    return float(value.detach()), torch.autograd.grad(value, vectors)[0][0].numpy()


def check(model: Any, change: Callable[[Tensor], Tensor]) -> None:
    reading = model.read(TEXT)
    with hooked(wide_model().module.model.layers[0], change):
        value, gradient = hooked_gradient(reading.ids)
    assert reading.saliency(3, 5, method="gradient-norm").value == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(
        reading.gradients("embedding", token=3, against=5)["embedding"], gradient, rtol=1e-5, atol=1e-8
    )
    assert not np.allclose(gradient, hooked_gradient(reading.ids)[1], rtol=1e-3)  # the change matters


def along(value: Tensor) -> Tensor:
    direction = torch.from_numpy(DIRECTION).double()
    return (value @ direction)[..., None] * direction / (direction @ direction)


def some_rows(value: Tensor) -> Tensor:
    first, last = value[:, :1] * 0.5 + torch.from_numpy(SHIFT), value[:, -1:] * 0.5 + torch.from_numpy(SHIFT)
    return torch.cat((first, value[:, 1:-1], last), 1)


def some_neurons(value: Tensor) -> Tensor:
    chosen = torch.zeros(WIDTH, dtype=torch.bool)
    chosen[:20] = True
    return torch.where(chosen, (value * 3).clamp(-0.01, 0.02), value)


CHANGES: dict[str, tuple[Change, Callable[[Tensor], Tensor]]] = {
    "affine": (Change(scale=0.5, shift=SHIFT, positions=[0, -1]), some_rows),
    "bounds": (Change(scale=3.0, neurons=slice(20), minimum=-0.01, maximum=0.02), some_neurons),
    "onto": (Change(onto=DIRECTION), along),
    "away_from": (Change(away_from=DIRECTION), lambda value: value - along(value)),
    "function": (FunctionChange(function=lambda value, where: value.tanh()), torch.tanh),
    "sequence": (
        in_sequence(Change(scale=2.0), FunctionChange(function=lambda value, where: value.tanh())),
        lambda value: torch.tanh(2 * value),
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change(kind: str) -> None:
    change, by_hand = CHANGES[kind]
    check(wide_model().changed({SITE: change}), by_hand)


def activations_by_hand(dictionary: Any, inputs: Tensor, chosen: list[int]) -> Tensor:
    """What SAELens' definitions say, in float64."""

    def wide(array: Any) -> Tensor:
        return torch.from_numpy(array).double()

    before = (inputs - wide(dictionary.decoder_bias) if dictionary.subtracts_bias else inputs) @ wide(dictionary.encoder)
    if (gate := dictionary.gate) is not None:
        magnitude = torch.relu(before * wide(gate.magnitude).exp() + wide(gate.magnitude_bias))
        return (magnitude * (before + wide(gate.bias) > 0))[..., chosen]
    before = before + wide(dictionary.encoder_bias)
    activations = torch.relu(before)
    if dictionary.threshold is not None:
        activations = activations * (before > wide(dictionary.threshold))
    if dictionary.k is not None:
        least = activations.topk(dictionary.k).values[..., -1:]
        activations = activations * (activations >= least)
    return activations[..., chosen]


@pytest.mark.parametrize("normalization", ["none", "layer_norm", "constant_norm_rescale"])
@pytest.mark.parametrize("kind", ["standard", "jumprelu", "topk", "gated"])
def test_clamped_features(kind: str, normalization: str, tmp_path: Path) -> None:
    model = wide_model()
    dictionary = model.dictionary(write_folder(tmp_path / "sae", kind, normalize_activations=normalization))
    found = dictionary.encode(model.read(TEXT).at(SITE).astype(np.float32))
    chosen = [int(number) for number in (found > 0).sum(0).argsort()[-2:]]  # active somewhere, so that their gradients count
    assert (found[:, chosen] > 0).any(0).all()

    def by_hand(value: Tensor) -> Tensor:
        inputs, scale = value, torch.ones(())
        if normalization == "layer_norm":
            scale = value.std(-1, keepdim=True)
            inputs = (value - value.mean(-1, keepdim=True)) / (scale + 1e-5)
        elif normalization == "constant_norm_rescale":
            scale = value.norm(dim=-1, keepdim=True) / WIDTH**0.5
            inputs = value / scale
        missing = torch.tensor([4.0, 0.0]) - activations_by_hand(dictionary, inputs, chosen)
        return value + missing @ torch.from_numpy(dictionary.decoder[chosen]).double() * scale

    check(model.changed(dictionary.clamp(dict(zip(chosen, (4.0, 0.0), strict=True)))), by_hand)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed twice"])
def test_clamped_features_of_a_transcoder(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = wide_model()
    hooks = {"hook_name": "blocks.1.ln2.hook_normalized", "hook_name_out": "blocks.1.hook_mlp_out"}
    dictionary = model.dictionary(write_folder(tmp_path / "mlp-1", "transcoder", metadata=hooks))
    if not kept:
        monkeypatch.setattr(differentiation, "KEPT_BYTES", 0)
    seen: list[Tensor] = []

    def by_hand(value: Tensor) -> Tensor:
        missing = 2 - activations_by_hand(dictionary, seen[-1], [4])
        return value + missing @ torch.from_numpy(dictionary.decoder[[4]]).double()

    changed = model.changed(dictionary.clamp({4: 2.0}))
    reading = changed.read(TEXT)
    mlp = model.module.model.layers[1].mlp
    with hooked(mlp, seen.append, before=True), hooked(mlp, by_hand):
        value, gradient = hooked_gradient(reading.ids)
    assert (activations_by_hand(dictionary, seen[-1], [4]) > 0).any()
    assert reading.saliency(3, 5, method="gradient-norm").value == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(
        reading.gradients("embedding", token=3, against=5)["embedding"], gradient, rtol=1e-5, atol=1e-8
    )
