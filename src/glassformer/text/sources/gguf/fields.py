"""The `tokenizer.ggml.…` fields, checked; and what every kind does with them: added tokens, tokens around a text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from glassformer.errors import CheckpointError
from glassformer.text.sources.scored_pieces import CONTROL, NORMAL, USER

SPECIAL = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # as the format spells it
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}


class TokenizerFields:
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.tokens: list[str] = list(self.listed("tokens"))  # a copy: some kinds respell them
        if not all(isinstance(token, str) for token in self.tokens):
            raise CheckpointError("GGUF field 'tokenizer.ggml.tokens' holds more than texts. Fetch the file again.")
        self.kinds: list[int] = list(self.listed("token_type"))
        self._same_length("token types", self.kinds)

    def listed(self, name: str) -> list[Any]:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(value, list):
            raise CheckpointError(f"GGUF field 'tokenizer.ggml.{name}' is missing. Fetch the file again.")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        return default if value is None else value

    @cached_property
    def scores(self) -> list[float]:
        found = self.listed("scores")
        self._same_length("scores", found)
        if not all(isinstance(score, (int, float)) for score in found):
            raise CheckpointError("GGUF field 'tokenizer.ggml.scores' holds more than numbers. Fetch the file again.")
        return found

    def _same_length(self, what: str, found: list[Any]) -> None:
        if len(found) != len(self.tokens):
            raise CheckpointError(f"GGUF lists {len(self.tokens)} tokens but {len(found)} {what}. Fetch the file again.")

    @cached_property
    def named(self) -> dict[str, int]:
        """The ids of the special tokens that have a name."""
        found = {}
        for name, key in SPECIAL.items():
            number = self.get(f"{key}_token_id")
            if number is not None:
                if not isinstance(number, int) or not 0 <= number < len(self.tokens):
                    raise CheckpointError(
                        f"GGUF field 'tokenizer.ggml.{key}_token_id' is {number!r}, outside the vocabulary. "
                        "Fetch the file again."
                    )
                found[name] = number
        return found

    @cached_property
    def added(self) -> list[int]:
        """The ids of the tokens that are matched whole wherever they stand in a text."""
        chosen = {number for number, kind in enumerate(self.kinds) if kind in (CONTROL, USER)}
        return sorted(chosen | {number for number in self.named.values() if self.kinds[number] != NORMAL})

    def add(self, backend: Tokenizer, normalized: Collection[int] = ()) -> None:
        """Give the backend its added tokens, and see that each has the id that the file says."""
        backend.add_tokens(
            [
                AddedToken(self.tokens[number], special=self.kinds[number] != USER, normalized=number in normalized)
                for number in self.added
            ]
        )
        for number in self.added:
            if not self.tokens[number] or backend.token_to_id(self.tokens[number]) != number:
                raise CheckpointError(
                    f"GGUF's token {number}, {self.tokens[number]!r}, is empty or stands twice. Fetch the file again."
                )

    def frame(self, first: bool, last: bool) -> Any:
        """The begin and end tokens around each text, where the file or its kind's habit wants them."""
        around = {
            "first": self.named.get("bos_token") if self.get("add_bos_token", first) else None,
            "last": self.named.get("eos_token") if self.get("add_eos_token", last) else None,
        }
        one = [place for place in ("first", "$A", "last") if place == "$A" or around[place] is not None]
        two = [f"{'$B' if place == '$A' else place}:1" for place in one]
        return self.template(one, [*one, *two], {place: number for place, number in around.items() if number is not None})

    def template(self, single: list[str], pair: list[str], places: Mapping[str, int]) -> Any:
        special = [{"id": place, "ids": [number], "tokens": [self.tokens[number]]} for place, number in places.items()]
        return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
