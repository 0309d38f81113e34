"""The tokens of an answer: found by a number or a word, and listed by their numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from glassformer.cli import common
from glassformer.errors import InputError

if TYPE_CHECKING:
    from glassformer.runtime.run import Run

WIDEST = 24  # characters of a token's place in the list


def texts(run: Run) -> list[str]:
    """What each token of an answer says; half a character as its bytes."""
    from glassformer.text.pieces import shown_bytes

    return [shown_bytes(run.model.tokenizer.token_bytes(step.id)) for step in run.steps]


def which(run: Run, said: str) -> int:
    """The token of that number; or the first that is, holds or begins that word, as written or in other letters."""
    if re.fullmatch(r"-?\d+", said):
        return int(said)
    own = texts(run)
    for word, told in ((said, own), (said.lower(), [text.lower() for text in own])):
        same = [at for at, text in enumerate(told) if text.strip() == word]
        holding = [at for at, text in enumerate(told) if word in text]
        if found := same or holding or begins(word, told):
            if len(found) > 1:
                common.note(
                    f"the first of {len(found)}: tokens {', '.join(map(str, found[:8]))}{', …' if found[8:] else ''}"
                )
            return found[0]
    raise InputError(f"no token of the last answer has {said!r} in it. /tokens lists them.")


def begins(word: str, told: list[str]) -> list[int]:
    """The tokens in which a word begins that goes on in the next ones."""
    text, at = "".join(told), -1
    starts = [0]
    for one in told:
        starts.append(starts[-1] + len(one))
    found = []
    while (at := text.find(word, at + 1)) >= 0:
        found.append(max(number for number, start in enumerate(starts[:-1]) if start <= at))
    return found


def listed(cells: list[tuple[str, str, str]]) -> str:
    """Numbered texts side by side, as many as fit into a line."""
    from rich.cells import cell_len
    from rich.console import Console

    from glassformer.page.terminal import told

    number = max(len(cell[0]) for cell in cells)
    text = min(WIDEST, max(cell_len(cell[1]) for cell in cells))
    each = number + 1 + text + 1 + 6
    across = max(1, (Console().width + 2) // (each + 2))
    spelt = [f"{told(n, number, True)} {told(t, text)} {told(chance, 6, True)}" for n, t, chance in cells]
    return "\n".join("  ".join(spelt[at : at + across]) for at in range(0, len(spelt), across))
