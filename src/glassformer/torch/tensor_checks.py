"""The check at a model's own entrance: whether tensors, flags and caches are what `forward` says they are.

Shapes and ranges are checked where they are used, since they depend on each other; here it is the kind of thing, a tensor's
dtype and its device. An executor comes with a pass (`p`) that it made itself, and is not checked; nor is what torch
compiles, where a tensor's numbers cannot be read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from glassformer.ground.arguments import argument_types, bind
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.typecheck import brief

P = ParamSpec("P")
R = TypeVar("R")
MOVED = {  # to where they are needed
    "cache_position", "labels", "num_items_in_batch", "position_ids", "start_positions", "end_positions",
}  # fmt: skip
WHOLE = {"cache_position", "position_ids", "token_type_ids", "start_positions", "end_positions"}


def checked_forward(forward: Callable[P, R]) -> Callable[P, R]:
    """`forward`, whose arguments are checked by their annotations before it runs; with return_dict=False, a tuple."""

    @functools.wraps(forward)
    def call(*args: P.args, **named: P.kwargs) -> R:
        return_dict: Any = named.pop("return_dict", None)
        if return_dict is not None:
            _check("return_dict", return_dict, (bool,), torch.device("cpu"))
        if named.get("p") is None and not torch.compiler.is_compiling():
            hints = argument_types(forward)
            bound = bind(forward, "the model", args, named).arguments
            base: Any = args[0]
            device = getattr(base, "base_model", base).token_embedding.weight.device
            for name, value in bound.items():
                if value is not None and name in hints:
                    _check(name, value, get_args(hints[name]) or (hints[name],), device)
        output: Any = forward(*args, **named)
        return output if return_dict is None or return_dict else output.to_tuple()

    return call


def _check(name: str, value: Any, kinds: tuple[Any, ...], device: torch.device) -> None:
    if bool in kinds and not isinstance(value, (bool, int, np.bool_)):
        raise InputTypeError(f"{name} is {brief(value)}; it must be True or False.")
    if name == "past_key_values" and not hasattr(value, "get_seq_length"):
        raise InputTypeError(f"{name} is a {type(value).__name__}; it must be the past_key_values of an earlier output.")
    if kinds[0] is not Tensor or name.endswith("input_ids"):  # ids have a check of their own
        if isinstance(value, Tensor) and name not in MOVED:
            check_device(name, value, device)
        return
    if not isinstance(value, Tensor):
        what = "labels are" if name == "labels" else f"{name} must be"
        raise InputTypeError(f"{what} a tensor, such as torch.tensor([0, 1]), not {type(value).__name__}.")
    if value.is_complex() or (name in WHOLE and (value.is_floating_point() or value.dtype == torch.bool)):
        raise InputTypeError(
            f"{name} is of {value.dtype}; it must be {'whole numbers' if name in WHOLE else 'real numbers'}."
        )
    if name not in MOVED or value.device.type == "meta":
        check_device(name, value, device)


def check_device(name: str, value: Tensor, device: torch.device) -> None:
    """Refuse a tensor that is elsewhere than the model."""
    if value.device.type != device.type:
        raise InputError(f"{name} is on {value.device}, and the model on {device}. Move it: {name}.to({str(device)!r}).")
