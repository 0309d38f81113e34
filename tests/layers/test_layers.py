"""The shared parts, each against the reference's or an independent slow statement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from glassformer.blueprints import Rope
from glassformer.blueprints.config import ACTIVATIONS
from glassformer.layers import Linear, Mask, RMSNorm, RotaryEmbedding, linear
from glassformer.layers.attention import attend, pattern
from glassformer.layers.mlp import ACTIVATIONS as FUNCTIONS
from glassformer.layers.mlp import Activation
from tests.parity import reference


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    x = torch.linspace(-6, 6, 101)
    assert torch.allclose(Activation(name)(x), ACT2FN[name](x), atol=1e-6)


def test_the_blueprints_names_are_the_layers() -> None:
    assert set(ACTIVATIONS) == set(FUNCTIONS)


@pytest.mark.parametrize("size", [8, 64, 128])
@pytest.mark.parametrize("rope", [
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7,
     "mscale_all_dim": 1.2},
    *reference.ROPES,
])  # fmt: skip
def test_frequencies(rope: dict[str, Any], size: int) -> None:
    config = reference.config("llama", rope_parameters=rope, head_dim=size)
    ours = Rope.read({"rope_parameters": rope, "max_position_embeddings": 256})
    if ours.kind == "default":
        wanted = 1.0 / ours.theta ** (torch.arange(0, size, 2) / size)
    else:
        wanted, scale = ROPE_INIT_FUNCTIONS[ours.kind](config, "cpu")
        assert ours.scale == pytest.approx(scale)
    assert np.allclose(ours.frequencies(size), wanted.numpy(), rtol=1e-5)
    if ours.kind == "dynamic":
        longer, _ = ROPE_INIT_FUNCTIONS[ours.kind](config, "cpu", seq_len=700)
        assert np.allclose(ours.frequencies(size, 700), longer.numpy(), rtol=1e-5)
    assert Rope.read({"rope_parameters": ours.raw(), "max_position_embeddings": 256}) == ours


def test_turning_keeps_lengths_and_tells_only_distances() -> None:
    rotary = RotaryEmbedding(Rope(), 16)
    query, key = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(at: int, to: int) -> float:
        turned = [rotary(torch.tensor([[place]]), torch.float32).rotate(x) for place, x in ((at, query), (to, key))]
        assert torch.allclose(turned[0].norm(), query.norm(), atol=1e-5)
        return float((turned[0] * turned[1]).sum())

    assert score(7, 3) == pytest.approx(score(107, 103), abs=1e-4)
    assert score(7, 3) != pytest.approx(score(7, 0), abs=1e-2)


def test_norm() -> None:
    x = torch.randn(3, 5, 24)
    norm = RMSNorm(24, 1e-5)
    norm.weight.data.normal_()
    assert torch.allclose(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight, atol=1e-6)
    half = norm.to(torch.bfloat16)(x.bfloat16())
    assert half.dtype is torch.bfloat16


def seen(query: int, key: int, causal: bool, window: int | None, present: list[bool] | None) -> bool:
    """The rule in words: what is real, not ahead of you, and near enough; yourself too, if there is an order or nobody."""
    if query == key and (causal or present is None or not any(present)):
        return True
    real = present is None or present[key]
    return real and (key <= query or not causal) and (window is None or key > query - window)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_masks(data: st.DataObject) -> None:
    past, length = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 6))
    keys = past + length
    causal = data.draw(st.booleans())
    window = data.draw(st.one_of(st.none(), st.integers(1, 8))) if causal else None
    present = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=keys, max_size=keys)))
    columns = torch.arange(past, keys)[None]
    mask = Mask(columns, keys, causal=causal, real_tokens=None if present is None else torch.tensor([present]))
    wanted = torch.tensor([[seen(past + q, k, causal, window, present) for k in range(keys)] for q in range(length)])
    assert torch.equal(mask.visible(window).expand(1, 1, length, keys)[0, 0], wanted)
    unmasked, plain_causal = mask.fast_path(window)
    assert not unmasked or bool(wanted.all())
    assert not plain_causal or torch.equal(wanted, torch.ones(length, keys).tril().bool())
    query, key, value = torch.randn(1, 4, length, 8), torch.randn(1, 2, keys, 8), torch.randn(1, 2, keys, 8)
    weights = pattern(query, key, mask, 0.3, window)
    assert torch.allclose(weights.sum(-1), torch.ones(1, 4, length), atol=1e-5)
    slow = weights @ value.repeat_interleave(2, 1)
    assert torch.allclose(attend(query, key, value, mask, 0.3, window), slow, atol=1e-5)


class TestProducts:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("rows", [1, 3])
    @pytest.mark.parametrize("bias", [True, False])
    def test_every_way_gives_the_same(self, dtype: Any, rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        layer = Linear(40, 24, bias=bias)
        for parameter in layer.parameters():
            parameter.data.normal_()
        layer.to(dtype)
        x = torch.randn(1, rows, 40).to(dtype)
        wanted = F.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
        for well in (True, False):
            monkeypatch.setattr(linear, "has_fast_matmul", lambda _, well=well: well)
            for gradients in (True, False):
                with torch.set_grad_enabled(gradients):
                    found = layer(x)
                assert found.dtype is dtype
                assert found.shape == (1, rows, 24)
                assert torch.allclose(found.double(), wanted, rtol=2e-2, atol=0.15)

    def test_without_onednn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Nothing: ...

        monkeypatch.setattr(torch.ops, "mkldnn", Nothing())
        assert linear.has_fast_matmul.__wrapped__(torch.bfloat16) is False

    def test_it_prints_as_torchs(self) -> None:
        assert str(Linear(4, 3, bias=False)) == "Linear(in_features=4, out_features=3, bias=False)"
