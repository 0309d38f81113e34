"""fill-mask: the words that fit a text's gap."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glassformer.ground.errors import InputError
from glassformer.tasks.forward import EncodedRow, ForwardTask, TruncationOptions, softmax

note = logging.getLogger("glassformer").warning


@dataclass(frozen=True)
class MaskOptions(TruncationOptions):
    POSITIVE: ClassVar = (*TruncationOptions.POSITIVE, "top_k")

    top_k: int = 5  # candidates for each gap, at most
    targets: str | Sequence[str] | None = None  # choose among these words only


class FillMaskTask(ForwardTask):
    """For each gap the best words: `[{"score", "token", "token_str", "sequence"}, …]`."""

    name = "fill-mask"
    about = "the words that fit a gap"
    heads = ("masked",)
    suggested = "bert-base-uncased"
    example = "Paris is the [MASK] of France."
    options_type = MaskOptions

    def __call__(self, inputs: Any, **options: Any) -> Any:
        if self.tokenizer.mask_token is None:
            raise InputError(
                f"{self.model.name}: its tokenizer names no mask token, so no text can have a gap. Name it as 'mask_token' "
                "in tokenizer_config.json."
            )
        answers = super().__call__(inputs, **options)
        return answers[0] if isinstance(inputs, list) and len(inputs) == 1 else answers  # as in transformers

    def forward(self, **inputs: Any) -> Any:
        """Only the gaps are scored: a vocabulary's scores for every token would be most of the work."""
        gaps = inputs["input_ids"] == self.tokenizer.mask_token_id
        places = gaps.nonzero(as_tuple=True)
        output = self.model.module(**inputs, logits_to_keep=places)
        if output.logits.ndim == 3:  # a model of another library scores every token
            output.logits = output.logits[places]
        return output

    def split_output(self, output: Any, rows: Sequence[EncodedRow]) -> list[Any]:
        scores = output.logits.float().cpu().numpy()
        counts = np.cumsum([len(self._gap_positions(row)) for row in rows])
        return np.split(scores, counts[:-1])

    def postprocess(self, item: str, rows: Sequence[EncodedRow], outputs: Sequence[Any], options: MaskOptions) -> Any:
        (row,), (logits,) = rows, outputs
        gaps = self._gap_positions(row)
        if not gaps:
            raise InputError(f"the text has no gap. Put {self.tokenizer.mask_token} where a word is missing: {item!r}.")
        allowed = None if options.targets is None else self._target_ids(options.targets)
        candidates = [
            self._candidates(row, gap, scores, options.top_k, allowed, len(gaps) == 1)
            for gap, scores in zip(gaps, logits, strict=True)
        ]
        return candidates[0] if len(candidates) == 1 else candidates

    def _gap_positions(self, row: EncodedRow) -> list[int]:
        return row.positions(self.tokenizer.mask_token_id)

    def _candidates(
        self, row: EncodedRow, gap: int, logits: Any, top_k: int, allowed: Any, single_gap: bool
    ) -> list[dict[str, Any]]:
        """One gap's best tokens; the text's other gaps, if any, stay masked."""
        probabilities = softmax(logits)
        ids = np.arange(len(probabilities)) if allowed is None else allowed
        best = ids[np.argsort(-probabilities[ids], kind="stable")[:top_k]]
        candidates = []
        for token in best.tolist():
            sequence = list(row.columns["input_ids"])
            sequence[gap] = token
            candidates.append(
                {
                    "score": float(probabilities[token]),
                    "token": token,
                    "token_str": self.tokenizer.decode([token]),
                    "sequence": self.tokenizer.decode(sequence, skip_special_tokens=single_gap),
                }
            )
        return candidates

    def _target_ids(self, targets: str | Sequence[str]) -> Any:
        """The targets' ids; a word that is not in the vocabulary is replaced by its first token."""
        vocabulary, ids = self.tokenizer.get_vocab(), []
        for word in [targets] if isinstance(targets, str) else targets:
            token = vocabulary.get(word)
            if token is None:
                tokens = self.tokenizer(word, add_special_tokens=False)["input_ids"]
                if not tokens:
                    raise InputError(f"the target {word!r} has no tokens, so it can fill no gap. Leave it out.")
                token = tokens[0]
                note(f"{word!r} is not in the vocabulary; using {self.tokenizer.convert_ids_to_tokens(token)!r} instead.")
            ids.append(token)
        if not ids:
            raise InputError("targets is empty. Name at least one word, or leave it out.")
        return np.unique(ids)
