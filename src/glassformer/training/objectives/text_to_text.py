"""Write a target, given a source: encoder-decoders.

Shapes: source (batch, source); target (batch, length), ending with the end token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from glassformer.ground.errors import InputError, spell
from glassformer.text import Tokenizer
from glassformer.torch.base import IGNORED
from glassformer.torch.shapes import shift_right
from glassformer.training.measures import edit_distance
from glassformer.training.objectives.objective import ExampleBatch, Measures, Objective, RaggedRows, padded
from glassformer.training.rows import SOURCE, TARGET, DataRow, rows_digest


class TextPairs:
    """Sources, and targets with their end token."""

    def __init__(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        self.sources, self.targets = RaggedRows([source for source, _ in pairs]), RaggedRows([target for _, target in pairs])

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        return ((self.sources[index], self.targets[index]) for index in range(len(self)))


class TextToText(Objective[TextPairs]):
    head = "seq2seq"
    truncated: Sequence[str] = ()  # what is too long is refused: a target that is cut would teach to stop there

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: Any,
        rows: Sequence[DataRow],
        held_out: Sequence[DataRow],
        limit: int | None = None,
    ) -> None:
        """`limit`: the tokens of a source or a target, at most; by default the model's context."""
        self.config, self.tokenizer = config, tokenizer
        self._limit = min(config.context, limit or config.context)
        self._end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else config.eos_token_id
        pairs, held_out_pairs = TextPairs(self._encode(tokenizer, rows)), TextPairs(self._encode(tokenizer, held_out))
        super().__init__(pairs, held_out_pairs, rows_digest([*rows, *held_out]))
        self._answers: dict[tuple[int, ...], set[tuple[int, ...]]] = {}  # a source may have several right targets
        for source, target in held_out_pairs:
            self._answers.setdefault(source, set()).add(target)

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        pairs = self.data_of(held_out)
        sources, mask = pairs.sources.padded(rows, self.config.pad_token_id, self.pad_multiple)
        targets, _ = pairs.targets.padded(rows, IGNORED, self.pad_multiple)
        inputs = {"input_ids": sources, "attention_mask": mask, "decoder_input_ids": shift_right(targets, self.config)}
        return ExampleBatch(inputs, targets, list(rows))

    @torch.no_grad()
    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        """The share of sources with an error, and the errors per token; against the nearest right target."""
        sources = list(self._answers)[:most]
        wrong, errors, length = 0, 0, 0
        for source, answer in zip(sources, self.answer(model, sources), strict=True):
            distance, tokens = min((edit_distance(answer, target[:-1]), len(target) - 1) for target in self._answers[source])
            wrong, errors, length = wrong + (distance > 0), errors + distance, length + tokens
        return {"error_rate": wrong / max(1, len(sources)), "token_error_rate": errors / max(1, length)}

    def answer(self, model: Any, sources: Sequence[tuple[int, ...]], **settings: Any) -> list[tuple[int, ...]]:
        """What the model writes for each source, without start and end."""
        answers: list[tuple[int, ...]] = []
        longest = max((len(target) for targets in self._answers.values() for target in targets), default=1)
        for start in range(0, len(sources), 256):
            part = sources[start : start + 256]
            ids, mask = padded(part, self.config.pad_token_id)
            written: list[list[int]] = [[] for _ in part]
            options = {"max_new_tokens": 2 * longest, "do_sample": False, "eos_token_id": self._end, **settings}
            for row, step in model.steps(ids.to(model.device), attention_mask=mask.to(model.device), **options):
                written[row].append(step.id)
            answers += [tuple(ids[: ids.index(self._end)] if self._end in ids else ids) for ids in written]
        return answers

    def answer_texts(self, model: Any, sources: Sequence[str]) -> list[str]:
        """What the model writes for each source, as texts."""
        ids = [tuple(row) for row in self.tokenizer(list(sources))["input_ids"]]
        return [self.tokenizer.decode(answer, skip_special_tokens=True) for answer in self.answer(model, ids)]

    def _encode(self, tokenizer: Tokenizer, rows: Sequence[DataRow]) -> list[tuple[list[int], list[int]]]:
        """Each row's source, and its target with the end token."""
        sources = tokenizer([row.text(SOURCE) for row in rows])["input_ids"] if rows else []
        targets = [row.tokens(TARGET) for row in rows]
        pairs = []
        for row, source, target in zip(rows, sources, targets, strict=True):
            whole = tokenizer.convert_tokens_to_ids(target) if isinstance(target, list) else tokenizer.encode(target)
            ids = [*(whole[:-1] if whole[-1:] == [self._end] else whole), self._end]
            for name, values in (("source", source), ("target", ids)):
                if len(values) > self.config.context:
                    raise InputError(
                        f"{row.place}: its {name} has {len(values)} tokens; the model's context is {self.config.context}. "
                        "Shorten it, or leave the row out."
                    )
                if len(values) > self._limit:
                    raise InputError(
                        f"{row.place}: its {name} has {len(values)} tokens, more than {self._limit}. Allow more by "
                        f"{spell('length')}, shorten it, or leave the row out."
                    )
            pairs.append((source, ids))
        return pairs
