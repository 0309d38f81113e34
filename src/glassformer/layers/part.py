"""What every module of a family is: a `Part`, which can print its family's name and knows its block's number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from glassformer.layers.passage import Pass


class Part(nn.Module):
    """A module that knows its family's name (for printing) and its block's number (for sites)."""

    shown: str | None = None  # printed instead of the class name
    family = ""
    block: int | None = None

    def _get_name(self) -> str:
        return self.family + (self.shown or type(self).__name__)

    def touch(self, name: str, value: Tensor, p: Pass) -> Tensor:
        """Show a value at a site of this part's block; what comes back is what to go on with."""
        if p.tap is None:
            return value
        touched: Tensor = p.tap.touch(self.site(name), value)
        return touched

    def site(self, name: str) -> str:
        return name if self.block is None else f"blocks.{self.block}.{name}"


def christen(model: nn.Module, family: str, blocks: Any) -> None:
    """Tell every part of a model its family's name, and each block's parts the block's number."""
    for module in model.modules():
        if isinstance(module, Part):
            module.family = family
    for number, block in enumerate(blocks):
        for module in block.modules():
            if isinstance(module, Part):
                module.block = number
