"""computed: what a module of another library computes. What goes in and what comes out is known, and no more.

Whoever needs the equation (step inside, attribution, an engine) is told which one is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Never

from glassformer.ground.errors import ExecutorError, InputError
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Op, TokenContext, WeightSource


class Computed(Op):
    __slots__ = ()
    kind = "computed"

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        raise self._unknown("its numbers one by one")

    def formula(self) -> str:
        return f"computed by {self.options['by']}"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        raise self._unknown("its arithmetic")

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        raise self._unknown("its linear map")

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        raise self._unknown("its linear map")

    def write_modules(self, derivation: Any, index: int) -> Never:
        raise self._unknown("its PyTorch modules of ours")

    def lower(self, writer: Any, index: int) -> None:
        raise ExecutorError(f"{self.module!r} is computed by {self.options['by']}, and no engine of ours knows it.")

    def split(self, splitter: Any, index: int) -> None:
        raise ExecutorError(f"{self.module!r} is computed by {self.options['by']}, which cannot be split among processes.")

    def with_updates(self, rewriter: Any) -> int:
        raise self._unknown("matrices that updates stand beside")

    def _unknown(self, what: str) -> InputError:
        return InputError(
            f"{self.module!r} is computed by {self.options['by']}: {what} cannot be shown. What goes in and comes out can."
        )
