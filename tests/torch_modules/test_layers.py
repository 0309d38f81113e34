"""The shared parts, each against the reference's or an independent slow statement."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.activations import ACT2FN

from glassformer.blueprints import Rope
from glassformer.ops.activate import ACTIVATIONS
from glassformer.torch import layers
from glassformer.torch.attention import attend, pattern
from glassformer.torch.layers import ActivationFunction, Linear, RMSNorm
from glassformer.torch.mask import Mask
from glassformer.torch.positions import RotaryEmbedding, RotaryPositions
from tests.sweeps import examples


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_the_reference(name: str) -> None:
    x = torch.linspace(-6, 6, 101)
    assert torch.allclose(ActivationFunction(name)(x), ACT2FN[name](x), atol=1e-6)


def test_rotating_keeps_norms_and_depends_on_distance_alone() -> None:
    rotary = RotaryEmbedding(Rope(), 16)
    query, key = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(at: int, to: int) -> float:
        rotated = [
            rotary(RotaryPositions(torch.tensor([[place]])), torch.float32).rotate(x)
            for place, x in ((at, query), (to, key))
        ]
        assert torch.allclose(rotated[0].norm(), query.norm(), atol=1e-5)
        return float((rotated[0] * rotated[1]).sum())

    assert score(7, 3) == pytest.approx(score(107, 103), abs=1e-4)
    assert score(7, 3) != pytest.approx(score(7, 0), abs=1e-2)


def test_rms_norm_by_its_formula() -> None:
    x = torch.randn(3, 5, 24)
    norm = RMSNorm(24, 1e-5)
    norm.weight.data.normal_()
    assert torch.allclose(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight, atol=1e-6)
    half = norm.to(torch.bfloat16)(x.bfloat16())
    assert half.dtype is torch.bfloat16


def is_visible(query: int, key: int, causal: bool, window: int | None, real_tokens: list[bool] | None) -> bool:
    """The rule in words: what is real, not ahead of you, and near enough; yourself too, if there is an order or nobody."""
    if query == key and (causal or real_tokens is None or not any(real_tokens)):
        return True
    real = real_tokens is None or real_tokens[key]
    return real and (key <= query or not causal) and (window is None or key > query - window)


@settings(max_examples=examples(37, 150), deadline=None)
@given(st.data())
def test_mask_and_attention_by_the_plain_rule(data: st.DataObject) -> None:
    past, length = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 6))
    keys = past + length
    causal = data.draw(st.booleans())
    window = data.draw(st.one_of(st.none(), st.integers(1, 8))) if causal else None
    real_tokens = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=keys, max_size=keys)))
    columns = torch.arange(past, keys)[None]
    mask = Mask(columns, keys, causal=causal, real_tokens=None if real_tokens is None else torch.tensor([real_tokens]))
    expected = torch.tensor(
        [[is_visible(past + q, k, causal, window, real_tokens) for k in range(keys)] for q in range(length)]
    )
    assert torch.equal(mask.visible(window).expand(1, 1, length, keys)[0, 0], expected)
    unmasked, plain_causal = mask.fast_path(window)
    assert not unmasked or bool(expected.all())
    assert not plain_causal or torch.equal(expected, torch.ones(length, keys).tril().bool())
    query, key, value = torch.randn(1, 4, length, 8), torch.randn(1, 2, keys, 8), torch.randn(1, 2, keys, 8)
    weights = pattern(query, key, mask, 0.3, window)
    assert torch.allclose(weights.sum(-1), torch.ones(1, 4, length), atol=1e-5)
    slow = weights @ value.repeat_interleave(2, 1)
    assert torch.allclose(attend(query, key, value, mask, 0.3, window), slow, atol=1e-5)


class TestLinear:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("rows", [1, 3])
    @pytest.mark.parametrize("bias", [True, False])
    def test_every_kernel_gives_the_same_product(
        self, dtype: Any, rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        layer = Linear(40, 24, bias=bias)
        for parameter in layer.parameters():
            parameter.data.normal_()
        layer.to(dtype)
        x = torch.randn(1, rows, 40).to(dtype)
        expected = F.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
        for well in (True, False):
            monkeypatch.setattr(layers, "has_fast_matmul", lambda _, well=well: well)
            for gradients in (True, False):
                with torch.set_grad_enabled(gradients):
                    product = layer(x)
                assert product.dtype is dtype
                assert product.shape == (1, rows, 24)
                assert torch.allclose(product.double(), expected, rtol=2e-2, atol=0.15)

    def test_no_fast_matmul_without_onednn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Nothing: ...

        monkeypatch.setattr(torch.ops, "mkldnn", Nothing())
        assert layers.has_fast_matmul.__wrapped__(torch.bfloat16) is False

    def test_linear_prints_as_torchs(self) -> None:
        assert str(Linear(4, 3, bias=False)) == "Linear(in_features=4, out_features=3, bias=False)"
