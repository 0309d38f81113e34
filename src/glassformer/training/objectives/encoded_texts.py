"""Texts as a model with a task head reads them: ids and token types, cut where they are too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from glassformer.text import Tokenizer
from glassformer.training.objectives.objective import RaggedRows

CHUNK = 1024  # texts that are encoded at once
Text: TypeAlias = str | tuple[str, str]  # alone, or with a second one
Offsets: TypeAlias = Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    ids: RaggedRows
    types: RaggedRows | None
    pad: int
    truncated: tuple[int, ...]  # the numbers of the texts that were cut

    def inputs(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Some texts as the model's inputs."""
        ids, mask = self.ids.padded(rows, self.pad)
        types = {} if self.types is None else {"token_type_ids": self.types.padded(rows, 0)[0]}
        return {"input_ids": ids, "attention_mask": mask, **types}


def encode_texts(tokenizer: Tokenizer, texts: Sequence[Text], limit: int) -> tuple[EncodedTexts, list[Offsets]]:
    """Texts of at most so many tokens each; and where each token stands in its text, or (0, 0) for those around it."""
    ids: list[list[int]] = []
    types: list[list[int]] = []
    offsets: list[Offsets] = []
    truncated: list[int] = []
    for start in range(0, len(texts), CHUNK):
        part = texts[start : start + CHUNK]
        encoded: Any = tokenizer(part, return_offsets_mapping=True)
        long = [number for number, row in enumerate(encoded["input_ids"]) if len(row) > limit]
        if long:
            truncated += [start + number for number in long]
            encoded = tokenizer(part, return_offsets_mapping=True, truncation=True, max_length=limit)
        ids += encoded["input_ids"]
        types += encoded.get("token_type_ids", [])
        offsets += encoded["offset_mapping"]
    pad = tokenizer.pad_token_id or 0  # masked, so any id would do
    return EncodedTexts(RaggedRows(ids), RaggedRows(types) if types else None, pad, tuple(truncated)), offsets
