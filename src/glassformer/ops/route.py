"""route: router scores → each expert's share, 0 for those not chosen. Options: chosen, normalized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import StepKind
from glassformer.ops.op import Array, Explanation, Op, Token
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Route(Op):
    __slots__ = ()
    kind = "route"

    @property
    def is_plain(self) -> bool:
        return False

    def value(self, inputs: Sequence[Array], token: Token) -> Array:
        (scores,) = inputs
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        chosen = np.argsort(-scores, -1, "stable")[..., : self.options["chosen"]]
        shares = np.zeros_like(weights)
        np.put_along_axis(shares, chosen, np.take_along_axis(weights, chosen, -1), -1)
        return np.asarray(shares / (shares if self.options["normalized"] else weights).sum(-1, keepdims=True))

    def formula(self) -> str:
        norm = ", made to add up to 1" if self.options["normalized"] else ""
        return f"softmax(scores) of the best {self.options['chosen']}{norm}; 0 for all others"

    def explain(self, e: Explanation, index: int) -> None:
        scores = e.value(self.inputs[0])
        e.step("score", f"the router's, of expert {index}", scores[index])
        weights = np.exp(scores - scores.max())
        share = e.step("softmax", f"over {len(scores)} experts", weights[index] / weights.sum())
        chosen = np.argsort(-scores, kind="stable")[: self.options["chosen"]]
        if index not in chosen:
            e.step("share", f"none: {self.options['chosen']} others have higher scores", 0.0)
        elif self.options["normalized"]:
            total = e.step("all chosen", f"the sum of {len(chosen)}", weights[chosen].sum() / weights.sum())
            e.step("share", "softmax ÷ all chosen", share / total)
        else:
            e.step("share", "one of the chosen", share)

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer, source = writer.allocate(self.width), writer.buffer_of[self.inputs[0]]
        options = {"chosen": self.options["chosen"], "normalized": self.options["normalized"]}
        writer.emit(StepKind.ROUTE, input=source, output=buffer, expert_count=self.width, **options)
        writer.set_result(index, buffer)

    def split(self, splitter: Any, index: int) -> None:
        raise splitter.cannot_split(self, "it has experts")


def build_route(b: Recorder, scores: Value, module: str, chosen: int, normalized: bool) -> Value:
    """Each expert's share of a token's update: the softmax of the router's scores, and 0 for all but the best.

    `normalized`: the shares of those that are chosen add up to one.
    """
    return b.record(Route, module, (scores,), scores.shape, "mlp.experts", chosen=chosen, normalized=normalized)
