"""What every module of a family is: a `Part`, which can print its family's name and knows its block's number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from glassformer.layers.passage import Pass


class Part(nn.Module):
    """A module that knows its family's name (for printing) and its block's number (for sites)."""

    shown: str | None = None  # printed instead of the class name
    family = ""
    stack = ""  # "encoder." in the encoder of an encoder-decoder
    number: int | None = None  # of its block

    def _get_name(self) -> str:
        return self.family + (self.shown or type(self).__name__)

    def touch(self, name: str, value: Tensor, p: Pass) -> Tensor:
        """Show a value at a site of this part's block; what comes back is what to go on with."""
        if p.tap is None:
            return value
        return p.tap.touch(self.site(name), value)

    def site(self, name: str) -> str:
        return self.stack + name if self.number is None else f"{self.stack}blocks.{self.number}.{name}"


def christen(model: nn.Module, family: str, blocks: Iterable[nn.Module], stack: str = "") -> None:
    """Tell every part of a model or stack its family's name, and each block's parts the block's number."""
    for module in model.modules():
        if isinstance(module, Part):
            module.family, module.stack = family, stack
    for number, block in enumerate(blocks):
        for module in block.modules():
            if isinstance(module, Part):
                module.number = number


def mount(model: nn.Module, name: str, part: nn.Module) -> None:
    """Put a part into a model under a name; under no name, put what it holds there instead.

    Checkpoints name modules, and some have a model's or a head's modules lie openly at the top. The part then sees them
    where they lie: whoever replaces one in the model has replaced it in the part.
    """
    if name:
        model.add_module(name, part)
        return
    for kind in ("_modules", "_parameters", "_buffers"):
        held, own = model.__dict__[kind], part.__dict__[kind]
        held.update(own)
        part.__dict__[kind] = Openly(held, tuple(own))


class Openly(MutableMapping[str, Any]):
    """Some names of a mapping, live."""

    def __init__(self, held: dict[str, Any], names: tuple[str, ...]) -> None:
        self.held, self.names = held, names

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return self.held[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.names = (*self.names, *([] if name in self.names else [name]))
        self.held[name] = value

    def __delitem__(self, name: str) -> None:
        self.names = tuple(other for other in self.names if other != name)
        del self.held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
