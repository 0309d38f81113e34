"""Encoded texts as rows: what each is made of, how it is cut to a limit, and how a batch is filled up to one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import tokenizers

from glassformer.errors import InputError

Row: TypeAlias = dict[str, list[Any]]  # "input_ids" and its companions, all of one length
Padding: TypeAlias = bool | Literal["longest", "max_length", "do_not_pad"]
Truncation: TypeAlias = bool | Literal["longest_first", "only_first", "only_second", "do_not_truncate"]

TRUNCATIONS = (True, False, "longest_first", "only_first", "only_second", "do_not_truncate")
FILLING = {"token_type_ids": 0, "attention_mask": 0, "special_tokens_mask": 1, "offset_mapping": (0, 0)}


def row(found: tokenizers.Encoding, names: Sequence[str]) -> Row:
    held: Row = {
        "input_ids": found.ids,
        "token_type_ids": found.type_ids,
        "attention_mask": found.attention_mask,
        "special_tokens_mask": found.special_tokens_mask,
        "offset_mapping": found.offsets,
    }
    return {name: held[name] for name in names}


def cut(whole: Row, owners: Sequence[int | None], limit: int, way: Any, side: str) -> Row:
    """At most `limit` tokens; it is the texts that are cut, and never the tokens around them while they have room.

    `owners` says of each token whether it belongs to the first text (0), the second (1) or to neither (None).
    """
    if len(owners) <= limit:
        return whole
    lengths = (owners.count(0), owners.count(1))
    room = max(0, limit - owners.count(None))
    if not room:
        kept = (0, 0)
    elif way in ("only_first", "only_second"):
        which = 0 if way == "only_first" else 1
        left = room - lengths[1 - which]
        if left < 1:
            raise InputError(
                f"truncation={way!r} cannot bring {sum(lengths)} tokens to {room} by cutting {lengths[which]}. "
                "Use truncation=True, which may cut both texts."
            )
        kept = (left, lengths[1]) if which == 0 else (lengths[0], left)
    else:
        kept = _shared(lengths, room)
    places: list[int] = []
    for owner, first in ((0, lengths[0] - kept[0]), (1, lengths[1] - kept[1])):
        mine = [at for at, whose in enumerate(owners) if whose == owner]
        places += mine[first:] if side == "left" else mine[: kept[owner]]
    places += [at for at, whose in enumerate(owners) if whose is None]
    chosen = sorted(places)[:limit]
    return {name: [values[at] for at in chosen] for name, values in whole.items()}


def _shared(lengths: tuple[int, int], room: int) -> tuple[int, int]:
    """The longer text gives way first; where both must, they share, and the odd token goes to the longer."""
    short, long = sorted(lengths)
    if short * 2 < room:
        long = room - short
    else:
        short, long = room // 2, room - room // 2
    return (long, short) if lengths[0] > lengths[1] else (short, long)


def pad(rows: Sequence[Row], width: int, number: int, side: str) -> list[Row]:
    """Rows of at least `width` tokens, with the padding token's id where there was no text."""
    filled = []
    for one in rows:
        missing = width - len(one["input_ids"])
        more: Row = {name: [FILLING.get(name, number)] * missing for name in one}
        filled.append({name: more[name] + one[name] if side == "left" else one[name] + more[name] for name in one})
    return filled
