"""pool: one vector per text: its first or last token's, its last end token's, or the mean. Options: how."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassformer.ground.errors import ExecutorError
from glassformer.ops.op import Array, Op, Token
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Pool(Op):
    __slots__ = ()
    kind = "pool"

    def value(self, inputs: Sequence[Array], token: Token) -> Array:
        if self.options["how"] != "mean":
            return inputs[0]
        assert token.everywhere is not None
        return np.asarray(token.everywhere(self.inputs[0]).mean(0))

    def formula(self) -> str:
        how = self.options["how"]
        return "the mean of all tokens' vectors" if how == "mean" else f"the {how} token's vector"

    def lower(self, writer: ProgramWriter, index: int) -> None:
        raise ExecutorError("native engines have no heads that pool.")


def build_pool(b: Recorder, x: Value, how: str = "first") -> Value:
    """One vector per text, as if that were its only token."""
    return b.record(Pool, "", (x,), (x.shape[0], 1, x.shape[-1]), how=how)
