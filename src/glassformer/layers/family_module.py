"""The base class of every module of a family: it prints its family's name and knows its block's index."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from glassformer.layers.forward_pass import ForwardPass


class FamilyModule(nn.Module):
    """A module that knows its family's name (for printing) and its block's index (for sites)."""

    printed_name: str | None = None  # printed instead of the class name
    family = ""
    stack = ""  # "encoder." in the encoder of an encoder-decoder
    block_index: int | None = None

    def _get_name(self) -> str:
        return self.family + (self.printed_name or type(self).__name__)

    def at_site(self, name: str, value: Tensor, p: ForwardPass) -> Tensor:
        """The value at a site of this module's block: recorded, and perhaps changed, where that site is watched."""
        if p.tap is None:
            return value
        return p.tap.apply(self.site(name, p), value)

    def site(self, name: str, p: ForwardPass) -> str:
        index = self.block_index if p.block_index is None else p.block_index
        return self.stack + name if index is None else f"{self.stack}blocks.{index}.{name}"


def label_modules(model: nn.Module, family: str, stack: str = "") -> None:
    """Set the family's name on every module of a model or stack."""
    for module in model.modules():
        if isinstance(module, FamilyModule):
            module.family, module.stack = family, stack


def label_block(block: nn.Module, index: int) -> None:
    """Set the block's index on every module of it."""
    for module in block.modules():
        if isinstance(module, FamilyModule):
            module.block_index = index


def attach_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module into a model under a name; under no name, put its children there instead.

    Some checkpoints have a base model's or a head's modules at the top level. The inlined module then shares them with the
    model: whoever replaces one in the model has replaced it in the module.
    """
    if name:
        model.add_module(name, module)
        return
    for kind in ("_modules", "_parameters", "_buffers"):
        children, own = model.__dict__[kind], module.__dict__[kind]
        children.update(own)
        module.__dict__[kind] = LiveSubset(children, tuple(own))


class LiveSubset(MutableMapping[str, Any]):
    """A live view of some names of a mapping."""

    def __init__(self, mapping: dict[str, Any], names: tuple[str, ...]) -> None:
        self.mapping, self.names = mapping, names

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return self.mapping[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.names = (*self.names, *([] if name in self.names else [name]))
        self.mapping[name] = value

    def __delitem__(self, name: str) -> None:
        self.names = tuple(kept for kept in self.names if kept != name)
        del self.mapping[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
