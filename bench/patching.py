"""Patching every layer and position of one text into another on SmolLM2, beside transformers with hooks.

    python bench/patching.py [--rounds 2]

Transformers reads the first text once, keeps each block's output, and then reads the second text once for each cell, with a
hook that puts one vector in: the way in which the field's notebooks do it. Both sides read the same file, transformers with
its weights expanded to float32, and take turns. A ratio above 1 means that ours is faster. The cells of both are compared.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

import glassformer
from common import race, report
from tree import THREADS, Transformers  # which sets our threads too

TEXTS = {
    "a fact": ("The capital of France is", "The capital of Italy is"),
    "who is meant": (
        "When Mary and John went to the store, John gave a drink to",
        "When Mary and John went to the store, Mary gave a drink to",
    ),
}


class Hooks(Transformers):
    def patch(self, first: str, second: str, answer: int, against: int) -> np.ndarray[Any, Any]:
        """How much of the answer's lead each block's output brings back at each position."""
        ids = [torch.tensor([self.tokenizer(text)["input_ids"]]) for text in (first, second)]
        blocks = self.model.model.layers
        kept: list[torch.Tensor] = []
        handles = [block.register_forward_hook(lambda _, __, output: kept.append(output)) for block in blocks]
        clean = self._lead(ids[0], answer, against)
        for handle in handles:
            handle.remove()
        dirty = self._lead(ids[1], answer, against)
        begins = int((ids[0] != ids[1])[0].nonzero()[0])
        found = np.zeros((len(blocks), ids[0].shape[1] - begins))
        for number, block in enumerate(blocks):
            for column in range(found.shape[1]):
                at = begins + column

                def put(_: Any, __: Any, output: torch.Tensor, number: int = number, at: int = at) -> None:
                    output[0, at] = kept[number][0, at]

                handle = block.register_forward_hook(put)
                found[number, column] = (self._lead(ids[1], answer, against) - dirty) / (clean - dirty)
                handle.remove()
        return found

    @torch.inference_mode()
    def _lead(self, ids: torch.Tensor, answer: int, against: int) -> float:
        scores = self.model(ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        return float(scores[answer] - scores[against])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    ours, theirs = glassformer.load("smollm2"), Hooks()
    rows = []
    for name, (first, second) in TEXTS.items():
        found = ours.patch(first, second, raw=True)
        answers = found.answers[0].id, found.answers[1].id
        cells = theirs.patch(first, second, *answers)
        apart = float(np.abs(np.array(found.values)[1:] - cells).max())
        mine, other = race(
            lambda: ours.patch(first, second, raw=True),  # noqa: B023
            lambda: theirs.patch(first, second, *answers),  # noqa: B023
            arguments.rounds,
        )
        rows.append({
            "text": name, "cells": cells.size, "ours": round(mine, 2), "transformers": round(other, 2),
            "ratio": round(other / mine, 1), "largest difference of a cell": f"{apart:.3f}",
        })  # fmt: skip
    report("patching", rows)


if __name__ == "__main__":
    main()
