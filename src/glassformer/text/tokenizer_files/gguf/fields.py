"""The `tokenizer.ggml.…` fields, checked; and what every kind does with them: added tokens, tokens around a text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from itertools import repeat
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from glassformer.ground.errors import CheckpointError
from glassformer.text.token_bytes import SPACE_MARKER
from glassformer.text.tokenizer_files.scored_pieces import CONTROL, NORMAL, UNKNOWN, USER_DEFINED

GGUF_ROLES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # as the format spells it
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}


DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {  # llama.cpp's, for files that do not name them
    "llama": {"bos_token": 1, "eos_token": 2, "unk_token": 0},
    "t5": {"eos_token": 1, "unk_token": 2, "pad_token": 0},
}


class TokenizerFields:
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.tokens: list[str] = list(self.required_list("tokens"))  # a copy: some kinds respell them
        if not set(map(type, self.tokens)) <= {str}:
            raise CheckpointError("GGUF field 'tokenizer.ggml.tokens' holds more than texts. Fetch the file again.")
        self.kinds: list[int] = list(self.required_list("token_type"))
        self._check_length("token types", self.kinds)

    def required_list(self, name: str) -> list[Any]:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(value, list):
            raise CheckpointError(f"GGUF field 'tokenizer.ggml.{name}' is missing. Fetch the file again.")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        return default if value is None else value

    @cached_property
    def scores(self) -> list[float]:
        scores = self.required_list("scores")
        self._check_length("scores", scores)
        if not all(isinstance(score, (int, float)) for score in scores):
            raise CheckpointError("GGUF field 'tokenizer.ggml.scores' holds more than numbers. Fetch the file again.")
        return scores

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """The pairs that join, first things first; the space between two parts is never a pair's first character."""
        merges = self.required_list("merges")
        if set(map(type, merges)) <= {str}:
            pairs = [(left, right) for left, _, right in map(str.partition, merges, repeat(" "))]
            if all(map(all, pairs)):
                return pairs
        return [_split_merge(merge) for merge in merges]

    def vocabulary(self) -> dict[str, int]:
        """The tokens and their ids; no two tokens may be spelt alike."""
        ids: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            if ids.setdefault(token, index) != index:
                raise CheckpointError(f"GGUF's token {index}, {token!r}, stands twice. Fetch the file again.")
        return ids

    def respell_user_spaces(self) -> list[int]:
        """Spell the spaces in user-defined tokens as the other tokens do, as converters do not; their ids."""
        spaced = [n for n, kind in enumerate(self.kinds) if kind == USER_DEFINED and " " in self.tokens[n]]
        for token_id in spaced:
            self.tokens[token_id] = self.tokens[token_id].replace(" ", SPACE_MARKER)
        return spaced

    def _check_length(self, what: str, values: list[Any]) -> None:
        if len(values) != len(self.tokens):
            raise CheckpointError(f"GGUF lists {len(self.tokens)} tokens but {len(values)} {what}. Fetch the file again.")

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """The ids of the special tokens that have a name; by default only of tokens that are no ordinary ones."""
        defaults = DEFAULT_IDS.get(str(self.get("model")), {})
        ids = {
            name: token_id
            for name, token_id in defaults.items()
            if token_id < len(self.tokens) and self.kinds[token_id] in (CONTROL, UNKNOWN)
        }
        for name, key in GGUF_ROLES.items():
            token_id = self.get(f"{key}_token_id")
            if token_id is not None:
                if not isinstance(token_id, int) or not 0 <= token_id < len(self.tokens):
                    raise CheckpointError(
                        f"GGUF field 'tokenizer.ggml.{key}_token_id' is {token_id!r}, outside the vocabulary. "
                        "Fetch the file again."
                    )
                ids[name] = token_id
        return ids

    @cached_property
    def added_ids(self) -> list[int]:
        """The ids of the tokens that are matched whole wherever they stand in a text."""
        ids = {token_id for token_id, kind in enumerate(self.kinds) if kind != NORMAL and kind in (CONTROL, USER_DEFINED)}
        return sorted(ids | {token_id for token_id in self.special_ids.values() if self.kinds[token_id] != NORMAL})

    def add_tokens_to(self, backend: Tokenizer, normalized: Collection[int] = ()) -> None:
        """Give the backend its added tokens, and see that each has the id that the file says."""
        backend.add_tokens(
            [
                AddedToken(
                    self.tokens[token_id], special=self.kinds[token_id] != USER_DEFINED, normalized=token_id in normalized
                )
                for token_id in self.added_ids
            ]
        )
        for token_id in self.added_ids:
            if not self.tokens[token_id] or backend.token_to_id(self.tokens[token_id]) != token_id:
                raise CheckpointError(
                    f"GGUF's token {token_id}, {self.tokens[token_id]!r}, is empty or stands twice. Fetch the file again."
                )

    def bos_eos_processor(self, add_bos: bool, add_eos: bool, add_sep: bool = False, always_bos: bool = False) -> Any:
        """The begin and end tokens around each text, where the file says so, else by default.

        Of two texts each has its own, unless a separator is put between them; then the second has no begin token.
        """
        bos, eos, sep = (self.special_ids.get(name) for name in ("bos_token", "eos_token", "sep_token"))
        special = {
            "first": bos if always_bos or self.get("add_bos_token", add_bos) else None,
            "last": eos if self.get("add_eos_token", add_eos) else None,
            "between": sep if self.get("add_sep_token", add_sep) else None,
        }
        single = [name for name in ("first", "$A", "last") if name == "$A" or special[name] is not None]
        if special["between"] is None:
            second = [f"{'$B' if name == '$A' else name}:1" for name in single]
        else:
            second = ["between", "$B", *(["last"] if special["last"] is not None else [])]
        return self.template(
            single, [*single, *second], {name: token_id for name, token_id in special.items() if token_id is not None}
        )

    def template(self, single: list[str], pair: list[str], ids: Mapping[str, int]) -> Any:
        special = [{"id": name, "ids": [token_id], "tokens": [self.tokens[token_id]]} for name, token_id in ids.items()]
        return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def _split_merge(merge: object) -> tuple[str, str]:
    """The two parts of a merge; a space at its beginning belongs to the first."""
    if isinstance(merge, str) and (space := merge.find(" ", 1)) > 0:
        return merge[:space], merge[space + 1 :]
    raise CheckpointError(f"GGUF's vocabulary and merges do not fit together: {merge!r} is no pair. Fetch the file again.")
