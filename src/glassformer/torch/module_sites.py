"""Any PyTorch module as a site, by its own name: what it gives is read and changed by hooks that are there for one pass.

A site's value is (rows, length, numbers). A module may give its tokens otherwise; how they lie in its result is its layout.

Shapes: tokens      (rows, length, …), and perhaps columns of padding behind them
        flat        (rows · length, …)
        channels    (rows, numbers, length), as convolutions have them
        heads       (rows, heads, length, head_size)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn

from glassformer.ground.errors import SiteError
from glassformer.ground.sites import ENCODER, Tap, module_of

Layout: TypeAlias = Literal["tokens", "flat", "channels", "heads"]


def layout_of(shape: Sequence[int], rows: int, length: int) -> Layout | None:
    """How the tokens of a pass lie in a tensor of this shape, where that is beyond doubt; None: they do not."""
    if len(shape) == 3 and tuple(shape[:2]) == (rows, length):
        return "tokens"
    return "flat" if len(shape) == 2 and shape[0] == rows * length else None


def as_tokens(value: Tensor, layout: Layout, rows: int, length: int) -> Tensor:
    """A module's tensor as (rows, length, numbers); its memory is shared where it can be."""
    if layout == "flat":
        value = value.reshape(rows, -1, *value.shape[1:])
    elif layout == "channels":
        value = value.movedim(1, 2)
    elif layout == "heads":
        value = value.movedim(2, 1)
    return value[:, :length].flatten(2)


def from_tokens(tokens: Tensor, like: Tensor, layout: Layout) -> Tensor:
    """The way back: a tensor as the module gave it, with other numbers for its tokens."""
    length = tokens.shape[1]
    if layout == "flat":
        return tokens.reshape(like.shape)
    changed = like.clone()
    if layout == "channels":
        changed[:, :, :length] = tokens.movedim(2, 1)
    elif layout == "heads":
        heads, size = like.shape[1], like.shape[3]
        changed[:, :, :length] = tokens.reshape(*tokens.shape[:2], heads, size).movedim(1, 2)
    else:
        changed[:, :length] = tokens.reshape(tokens.shape[0], length, *like.shape[2:])
    return changed


def first_tensor(output: Any) -> Tensor | None:
    """The tensor that a module gives: its result, or the first part of it."""
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((part for part in parts if isinstance(part, Tensor)), None)


def with_first_tensor(output: Any, tensor: Tensor) -> Any:
    """The same result with another first tensor."""
    if isinstance(output, Tensor):
        return tensor
    if isinstance(output, Mapping):
        name = next(name for name, part in output.items() if isinstance(part, Tensor))
        if hasattr(output, "__dataclass_fields__"):  # a model's output, which has its parts as attributes too
            return replace(output, **{name: tensor})  # type: ignore[type-var]
        return type(output)({**output, name: tensor})  # type: ignore[call-arg]
    index = next(index for index, part in enumerate(output) if isinstance(part, Tensor))
    return type(output)([*output[:index], tensor, *output[index + 1 :]])


@dataclass(frozen=True)
class ModulePlace:
    """Where a site's value is: what a module gives, or the first that it is given."""

    module: str
    layout: Layout | None = None  # None: as its shape says
    is_input: bool = False


@contextmanager
def hooked(root: nn.Module, places: Mapping[str, ModulePlace], tap: Tap, rows: int, length: int) -> Iterator[None]:
    """For one pass: the values at these places go through the tap.

    A module that is called several times in a pass can be changed, at each call, but not read: there is no one value.
    """
    calls = dict.fromkeys(places, 0)
    with ExitStack() as hooks:
        for site, place in places.items():
            through = _through_tap(site, place, tap, rows, length, calls)
            module = root.get_submodule(place.module)
            if place.is_input:
                handle = module.register_forward_pre_hook(_on_input(through), with_kwargs=True)
            else:
                handle = module.register_forward_hook(_on_output(through))
            hooks.callback(handle.remove)
        yield
    if unmet := [site for site, count in calls.items() if not count]:
        raise SiteError(f"{unmet[0]!r} is not in this pass: it does not call its module. Take the module around it.")


def named_modules_hooked(
    root: nn.Module, tap: Tap | None, rows: int, length: int, stack: str = "", prefix: str = ""
) -> AbstractContextManager[None]:
    """For one pass: the modules that a tap wants by name, of the encoder (`encoder.`) or of all else.

    `prefix`: what may stand before the names of a base model's own modules.
    """
    inside = [site for site in tap.modules if site.startswith(ENCODER) == bool(stack)] if tap is not None else []
    if tap is None or not inside:
        return nullcontext()
    names = {site: module_of(site).removeprefix(prefix) for site in inside}
    known = {name for name, _ in root.named_modules()}
    if absent := [site for site, name in names.items() if name not in known]:
        raise SiteError(f"{absent[0]!r} is no module of this {type(root).__name__}.")
    return hooked(root, {site: ModulePlace(name) for site, name in names.items()}, tap, rows, length)


def _through_tap(
    site: str, place: ModulePlace, tap: Tap, rows: int, length: int, calls: dict[str, int]
) -> Callable[[Tensor | None], Tensor | None]:
    def through(value: Tensor | None) -> Tensor | None:
        calls[site] += 1
        if calls[site] > 1 and any(site in observer.watch.reads for observer in tap.observers):
            raise SiteError(f"{site!r} is called several times in a pass, so it has no one value. Name a module inside it.")
        layout = place.layout or (None if value is None else layout_of(value.shape, rows, length))
        tokens = None if value is None or layout is None else as_tokens(value, layout, rows, length)
        if tokens is None or tokens.shape[1] != length:
            found = "no tensor" if value is None else f"a tensor of {tuple(value.shape)}"
            raise SiteError(f"{site!r} gives {found}, which has no numbers for each of {rows} × {length} tokens.")
        changed = tap.apply(site, tokens)
        if changed is tokens:
            return None
        assert value is not None
        assert layout is not None
        return from_tokens(changed, value, layout)

    return through


def _on_output(through: Callable[[Tensor | None], Tensor | None]) -> Callable[..., Any]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        changed = through(first_tensor(output))
        return None if changed is None else with_first_tensor(output, changed)

    return hook


def _on_input(through: Callable[[Tensor | None], Tensor | None]) -> Callable[..., Any]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        given = inputs if first_tensor(inputs) is not None else keywords
        changed = through(first_tensor(given))
        if changed is None:
            return None
        other = with_first_tensor(given, changed)
        return (other, keywords) if given is inputs else (inputs, other)

    return hook
