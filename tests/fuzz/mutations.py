"""How a good input becomes a bad one, drawn from a seeded generator, so that any case can be made again by its number."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

NUMBERS = (0, 1, -1, 2, 7, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32 + 1, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63))
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, "", " ", "\x00", "\ud800", "\u202e", "a" * 5000, 0.0, -0.0, 0.5, 1e308, -1e308, 1e-320, float("inf"),
    float("-inf"), float("nan"), [], {}, [[]], [None], {"": None}, [[[[[[[[]]]]]]]], {"a": {"b": {"c": {}}}},
)  # fmt: skip
ODD_BYTES = (b"\x00", b"\xff", b"\x80", b"{", b"}", b'"', b"\n", b" ", b"\x00" * 8, b"\xff" * 8, b"\x1b[2J", b"\xe2\x80\xae")
ODD_TEXTS = ("\x00", "\x1b[2J", "\u202e", "\ud800", "\u00a0", "\u200b", *"|()[\\\"'", "{{", "{%", "%}", "}}")
COUNTS = (1, 1, 1, 2, 3, 6)  # injuries: often one alone, so that it is reached
HEADER = 512  # bytes at a file's beginning that most injuries go to


def mutated_bytes(data: bytes, draw: random.Random) -> bytes:
    """Injuries: flipped bits, odd bytes and numbers, pieces cut out, doubled or moved, a lost end."""
    out = bytearray(data)
    for _ in range(draw.choice(COUNTS)):
        if not out:
            break
        at = draw.randrange(min(len(out), HEADER) if draw.random() < 0.6 else len(out))
        match draw.randrange(8):
            case 0:
                out[at] ^= 1 << draw.randrange(8)
            case 1:
                out[at] = draw.randrange(256)
            case 2:
                out[at : at + 8] = (draw.choice(NUMBERS) % 2**64).to_bytes(8, "little")
            case 3:
                out[at : at + 4] = (draw.choice(NUMBERS) % 2**32).to_bytes(4, "little")
            case 4:
                del out[at : at + draw.randint(1, 64)]
            case 5:
                out[at:at] = draw.choice(ODD_BYTES)
            case 6:
                out[at:at] = out[at : at + draw.randint(1, 64)]
            case 7:
                del out[at:]
    return bytes(out)


def mutated_text(text: str, draw: random.Random) -> str:
    """Injuries of a text: pieces cut out, doubled many times or moved, odd characters put in."""
    out = text
    for _ in range(draw.choice(COUNTS)):
        start = draw.randint(0, len(out))
        end = min(len(out), start + draw.choice((1, 2, 5, 20, 100)))
        piece = out[start:end]
        match draw.randrange(5):
            case 0:
                out = out[:start] + out[end:]
            case 1:
                out = out[:end] + piece * draw.choice((1, 2, 50)) + out[end:]
            case 2:
                out = out[:start] + draw.choice(ODD_TEXTS) + out[start:]
            case 3:
                other = draw.randint(0, len(out))
                out = out[:other] + piece + out[other:]
            case 4:
                out = out[:start] + str(draw.choice(NUMBERS)) + out[end:]
    return out


def mutated_json(value: Any, draw: random.Random) -> Any:
    """Injuries of structure: a value of another type or size, a key gone, values nested, repeated or exchanged."""
    tree = copy.deepcopy(value)
    for _ in range(draw.choice(COUNTS)):
        slots = list(_slots(tree))
        if not slots:
            return draw.choice(ODD_VALUES)
        holder, key = draw.choice(slots)
        match draw.randrange(8):
            case 0:
                holder[key] = draw.choice(NUMBERS)
            case 1:
                holder[key] = copy.deepcopy(draw.choice(ODD_VALUES))
            case 2 if isinstance(holder, dict):
                del holder[key]
            case 3:
                holder[key] = [holder[key]] * draw.choice((1, 2, 50))
            case 4:
                holder[key] = {"nested": holder[key]}
            case 5 if isinstance(holder[key], str):
                holder[key] = mutated_text(holder[key], draw)
            case 6 if isinstance(holder[key], (int, float)):
                holder[key] = holder[key] * draw.choice((-1, 0, 2, 0.5, 10**9))
            case _:
                other, name = draw.choice(slots)
                holder[key] = copy.deepcopy(other[name])
    return tree


def _slots(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value that can hold another, as its holder and key."""
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ():
            yield holder, key
            waiting.append(holder[key])
