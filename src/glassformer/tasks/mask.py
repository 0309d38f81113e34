"""fill-mask: what could stand in a text's gap."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.errors import InputError
from glassformer.tasks.reading import CutOptions, Reading, Row, encode_pairs, softmax
from glassformer.tasks.task import check_positive

note = logging.getLogger("glassformer").warning


@dataclass(frozen=True)
class MaskOptions(CutOptions):
    top_k: int = 5  # at most so many proposals
    targets: str | Sequence[str] | None = None  # choose among these words alone

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "top_k")


class FillMask(Reading):
    """For each gap the best words: `[{"score", "token", "token_str", "sequence"}, …]`."""

    name = "fill-mask"
    about = "the words that could stand in a gap"
    heads = ("masked",)
    suggested = "bert-base-uncased"
    example = "Paris is the [MASK] of France."
    Options = MaskOptions

    def __call__(self, inputs: Any, **options: Any) -> Any:
        found = super().__call__(inputs, **options)
        return found[0] if isinstance(inputs, list) and len(inputs) == 1 else found  # as the field has it

    def rows(self, items: Sequence[str], options: MaskOptions) -> list[Row]:
        return encode_pairs(self, [(item, None) for item in items], options)

    def forward(self, **inputs: Any) -> Any:
        """Only the gaps are scored: a vocabulary's scores for every token would be most of the work."""
        gaps = inputs["input_ids"] == self.tokenizer.mask_token_id
        return self.model.module(**inputs, logits_to_keep=gaps.nonzero(as_tuple=True))

    def take(self, output: Any, rows: Sequence[Row]) -> list[Any]:
        scores = output.logits.float().cpu().numpy()
        counts = np.cumsum([len(self._gaps(row)) for row in rows])
        return np.split(scores, counts[:-1])

    def conclude(self, item: str, rows: Sequence[Row], found: Sequence[Any], options: MaskOptions) -> Any:
        (row,), (scores,) = rows, found
        gaps = self._gaps(row)
        if not gaps:
            raise InputError(f"the text has no gap. Put {self.tokenizer.mask_token} where a word is missing: {item!r}.")
        allowed = None if options.targets is None else self._ids(options.targets)
        filled = [
            self._filling(row, at, line, options.top_k, allowed, len(gaps) == 1)
            for at, line in zip(gaps, scores, strict=True)
        ]
        return filled[0] if len(filled) == 1 else filled

    def _gaps(self, row: Row) -> list[int]:
        return row.places(self.tokenizer.mask_token_id)

    def _filling(self, row: Row, at: int, scores: Any, top_k: int, allowed: Any, single: bool) -> list[dict[str, Any]]:
        """One gap's proposals; where a text has several, each is filled with the others still open."""
        shares = softmax(scores)
        numbers = np.arange(len(shares)) if allowed is None else allowed
        best = numbers[np.argsort(-shares[numbers], kind="stable")[:top_k]]
        proposals = []
        for number in best.tolist():
            ids = list(row.columns["input_ids"])
            ids[at] = number
            proposals.append(
                {
                    "score": float(shares[number]),
                    "token": number,
                    "token_str": self.tokenizer.decode([number]),
                    "sequence": self.tokenizer.decode(ids, skip_special_tokens=single),
                }
            )
        return proposals

    def _ids(self, targets: str | Sequence[str]) -> Any:
        """The targets' ids; a word that the vocabulary does not have is stood for by its first piece."""
        held, found = self.tokenizer.get_vocab(), []
        for word in [targets] if isinstance(targets, str) else targets:
            number = held.get(word)
            if number is None:
                pieces = self.tokenizer(word, add_special_tokens=False)["input_ids"]
                if not pieces:
                    raise InputError(f"the target {word!r} has no tokens, so it can fill no gap. Leave it out.")
                number = pieces[0]
                note(f"{word!r} is not in the vocabulary; {self.tokenizer.convert_ids_to_tokens(number)!r} stands for it.")
            found.append(number)
        if not found:
            raise InputError("targets is empty. Name at least one word, or leave it out.")
        return np.unique(found)
