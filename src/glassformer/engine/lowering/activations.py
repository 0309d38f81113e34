"""The activations by all their names."""

from __future__ import annotations

from collections.abc import Mapping

from glassformer.engine.program import Activation

ACTIVATIONS: Mapping[str, Activation] = {
    **dict.fromkeys(("silu", "swish"), Activation.SILU),
    **dict.fromkeys(("gelu", "gelu_python"), Activation.GELU),
    **dict.fromkeys(
        ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"), Activation.GELU_TANH
    ),
    "quick_gelu": Activation.QUICK_GELU, "relu": Activation.RELU, "tanh": Activation.TANH,
}  # fmt: skip
