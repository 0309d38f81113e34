"""What a model's `forward` takes: each argument's name, place, type, default and meaning, stated once.

A shape or a head names the arguments that it takes, and is given them as one value. Made of that are the signature, which
`Trainer` and peft read, the help, and the checks at the entrance: whether tensors, flags and caches are of the right kind,
dtype and device. Shapes and ranges depend on each other, so they are checked where they are used. An executor comes with a
pass (`p`) that it made itself, and is not checked; nor is what torch compiles, where a tensor's numbers cannot be read.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from glassformer.ground.arguments import argument_types, bind
from glassformer.ground.changes import Change, SiteFunction
from glassformer.ground.errors import InputError, InputTypeError, refuse_unknown
from glassformer.ground.sites import SiteName, Watch
from glassformer.ground.typecheck import brief
from glassformer.torch.cache import Cache
from glassformer.torch.forward_pass import ForwardPass

R = TypeVar("R")
WatchLike: TypeAlias = Watch | Mapping[Any, Change | SiteFunction] | SiteName | Sequence[SiteName] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardArguments:
    """The arguments of one call, in transformers' order; those that a model does not take keep their default."""

    input_ids: Annotated[Tensor | None, "token ids, (batch, length)."] = None
    attention_mask: Annotated[Tensor | None, "1 for real tokens, 0 for padding, (batch, length)."] = None
    token_type_ids: Annotated[Tensor | None, "0 for tokens of the first text, 1 for those of the second."] = None
    decoder_input_ids: Annotated[Tensor | None, "the target's token ids, (batch, length), from the start token on."] = None
    decoder_attention_mask: Annotated[
        Tensor | None,
        "1 for real tokens, 0 for padding, (batch, remembered + length); or what each token sees, of four axes, (batch, 1, "
        "length, remembered + length): True, or numbers that are added to the scores.",
    ] = None
    encoder_outputs: Annotated[Any, "the encoder's states from an earlier call, instead of the source."] = None
    global_attention_mask: Annotated[
        Tensor | None, "1 for the source's global tokens, which all others see and which see all, (batch, source)."
    ] = None
    position_ids: Annotated[Tensor | None, "where each token stands; by default counted from the mask."] = None
    past_key_values: Annotated[Cache | None, "the cache of an earlier call, to continue it."] = None
    inputs_embeds: Annotated[Tensor | None, "vectors instead of `input_ids`."] = None
    decoder_inputs_embeds: Annotated[Tensor | None, "vectors instead of `decoder_input_ids`."] = None
    labels: Annotated[Tensor | None, "what should have been scored best; gives `loss`."] = None
    start_positions: Annotated[Tensor | None, "where answers begin, (batch,); positions past the end are ignored."] = None
    end_positions: Annotated[Tensor | None, "where answers end, (batch,); positions past the end are ignored."] = None
    use_cache: Annotated[bool | None, "return a cache; on by default."] = None
    output_router_logits: Annotated[bool | None, "also return every router's scores."] = None
    output_attentions: Annotated[bool, "also return every layer's attention weights."] = False
    output_hidden_states: Annotated[bool, "also return every layer's states."] = False
    logits_to_keep: Annotated[
        int | Tensor | tuple[Tensor, Tensor],
        "score only this many of the last positions (0: all), or these columns, or these (rows, columns).",
    ] = 0
    cache_position: Annotated[Tensor | None, "where the tokens go in the cache: directly behind what it holds."] = None
    num_items_in_batch: Annotated[
        int | Tensor | None,
        "divide the sum of the losses by this instead of by the count of labels: that of several batches.",
    ] = None
    watch: Annotated[
        WatchLike,
        'other sites to read, by name or pattern ("blocks.*.residual"), or sites with their changes '
        '({"blocks.3.residual": Change(scale=0)}), or a Watch; what was read is in the output\'s `sites`.',
    ] = None
    p: Annotated[ForwardPass | None, "a ready-made pass, from an executor; instead of mask, positions, cache, watch."] = None

    @property
    def tokens(self) -> Tensor | None:
        """What is run: ids, or vectors."""
        return self.input_ids if self.input_ids is not None else self.inputs_embeds


RETURN_DICT = inspect.Parameter("return_dict", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=bool | None)
ANNOTATED = argument_types(ForwardArguments.__init__)
TYPES = {name: get_args(hint)[0] for name, hint in ANNOTATED.items()}
DEFAULTS = ForwardArguments()
MOVED = {  # to where they are needed
    "cache_position", "labels", "num_items_in_batch", "position_ids", "start_positions", "end_positions",
}  # fmt: skip
WHOLE = {"cache_position", "position_ids", "token_type_ids", "start_positions", "end_positions"}


def takes(*names: str, **special: str) -> Callable[[Callable[[Any, ForwardArguments], R]], Callable[..., R]]:
    """A `forward` with these arguments; `special`: those that mean something else here than elsewhere."""
    return lambda body: forward_with(body, body.__name__, str(body.__doc__), {**meanings(*names), **special})


def meanings(*names: str) -> dict[str, str]:
    """What these arguments mean in every model."""
    return {name: get_args(ANNOTATED[name])[-1] for name in names}


def forward_with(
    body: Callable[[Any, ForwardArguments], R], name: str, summary: str, arguments: Mapping[str, str]
) -> Callable[..., R]:
    """The `forward` that calls `body` with its arguments, which are checked before; with return_dict=False, a tuple."""
    names = tuple(name for name in TYPES if name in arguments)

    @functools.wraps(body)
    def forward(self: Any, *args: Any, return_dict: bool | None = None, **named: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **named}
        if unknown := {name: value for name, value in given.items() if name not in arguments}:
            refuse_unknown(unknown, forward)
        if len(given) < len(args) + len(named):
            bind(forward, "forward", (self, *args), named)  # says what is wrong with them
        if return_dict is not None:
            _check_flag("return_dict", return_dict)
        if given.get("p") is None and not torch.compiler.is_compiling():
            device = self.base_model.token_embedding.weight.device
            for name, value in given.items():
                if value is not None:
                    _check(name, value, device)
        output: Any = body(self, ForwardArguments(**given))
        return output if return_dict is None or return_dict else output.to_tuple()

    stated: Any = forward
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, default=getattr(DEFAULTS, name), annotation=TYPES[name]) for name in names]
    stated.__signature__ = inspect.Signature([inspect.Parameter("self", kind), *parameters, RETURN_DICT])
    stated.arguments, stated.__name__ = arguments, name
    lines = [f"{name}: {arguments[name]}" for name in names] + ["return_dict: False for a plain tuple."]
    wrapped = [textwrap.fill(line, 120, initial_indent=" " * 4, subsequent_indent=" " * 8) for line in lines]
    stated.__doc__ = "\n".join((f"{summary}\n\nArgs:", *wrapped))
    return forward


def arguments_of(forward: Any) -> Mapping[str, str]:
    """What a `forward` takes, and what it means there."""
    arguments: Mapping[str, str] = forward.arguments
    return arguments


def _check(name: str, value: Any, device: torch.device) -> None:
    kinds = get_args(TYPES[name]) or (TYPES[name],)
    if bool in kinds:
        _check_flag(name, value)
    if name == "past_key_values" and not hasattr(value, "get_seq_length"):
        raise InputTypeError(f"{name} is a {type(value).__name__}; it must be the past_key_values of an earlier output.")
    if kinds[0] is not Tensor or name.endswith("input_ids"):  # ids have a check of their own
        if isinstance(value, Tensor) and name not in MOVED:
            check_device(name, value, device)
        return
    check_tensor(name, value)
    if value.is_complex() or (name in WHOLE and (value.is_floating_point() or value.dtype == torch.bool)):
        raise InputTypeError(
            f"{name} is of {value.dtype}; it must be {'whole numbers' if name in WHOLE else 'real numbers'}."
        )
    if name not in MOVED or value.device.type == "meta":
        check_device(name, value, device)


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, (bool, int, np.bool_)):
        raise InputTypeError(f"{name} is {brief(value)}; it must be True or False.")


def check_tensor(name: str, value: object) -> None:
    """Refuse a list or a text where a tensor belongs."""
    if not isinstance(value, Tensor):
        what = "labels are" if name == "labels" else f"{name} must be"
        raise InputTypeError(f"{what} a tensor, such as torch.tensor([0, 1]), not {type(value).__name__}.")


def check_device(name: str, value: Tensor, device: torch.device) -> None:
    """Refuse a tensor that is elsewhere than the model."""
    if value.device.type != device.type:
        raise InputError(f"{name} is on {value.device}, and the model on {device}. Move it: {name}.to({str(device)!r}).")
