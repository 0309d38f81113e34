"""What every module of a family is: a `Part`, which can print its family's name and knows its block's number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

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
    """Put a part into a model under a name; under no name, put its children there instead.

    Checkpoints name modules, and some have a model's or a head's modules lie openly at the top.
    """
    if name:
        model.add_module(name, part)
        return
    for child, module in part.named_children():
        model.add_module(child, module)
    model._parameters.update(part._parameters)
    model._buffers.update(part._buffers)
    part._parameters, part._buffers = model._parameters, model._buffers  # the part goes on seeing what becomes of them
