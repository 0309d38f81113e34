"""The tokens of an answer: found by number or word, and listed in columns."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING

from glassformer.cli import common
from glassformer.ground.errors import InputError

if TYPE_CHECKING:
    from glassformer.runtime.run import Run

MAX_TOKEN_WIDTH = 24  # characters of a token's place in the list


def token_texts(run: Run) -> list[str]:
    """The text of each token of an answer; part of a character as its bytes."""
    from glassformer.text.streaming import shown_bytes

    return [shown_bytes(run.model.tokenizer.token_bytes(step.id)) for step in run.steps]


def find_answer_token(run: Run, query: str) -> int:
    """The token of that number; or the first that equals, contains or begins that word, if need be in any case."""
    if re.fullmatch(r"-?\d+", query):
        return int(query)
    texts = token_texts(run)
    for word, tokens in ((query, texts), (query.lower(), [text.lower() for text in texts])):
        equal = [number for number, token in enumerate(tokens) if token.strip() == word]
        containing = [number for number, token in enumerate(tokens) if word in token]
        if matches := equal or containing or word_starts(word, tokens):
            if len(matches) > 1:
                common.note(
                    f"the first of {len(matches)}: tokens {', '.join(map(str, matches[:8]))}{', …' if matches[8:] else ''}"
                )
            return matches[0]
    raise InputError(f"no token of the last answer contains {query!r}. /tokens lists them.")


def word_starts(word: str, tokens: list[str]) -> list[int]:
    """The tokens in which a word begins that continues in the next ones."""
    text, position = "".join(tokens), -1
    offsets = [0, *accumulate(map(len, tokens))]
    starts = []
    while (position := text.find(word, position + 1)) >= 0:
        starts.append(max(number for number, offset in enumerate(offsets[:-1]) if offset <= position))
    return starts


def in_columns(cells: list[tuple[str, str, str]]) -> str:
    """Numbered tokens with their probabilities, as many side by side as fit into a line."""
    from rich.cells import cell_len
    from rich.console import Console

    from glassformer.page.terminal import fit_text

    number_width = max(len(number) for number, _, _ in cells)
    text_width = min(MAX_TOKEN_WIDTH, max(cell_len(text) for _, text, _ in cells))
    columns = max(1, (Console().width + 2) // (number_width + 1 + text_width + 1 + 6 + 2))
    items = [
        f"{fit_text(number, number_width, True)} {fit_text(text, text_width)} {fit_text(probability, 6, True)}"
        for number, text, probability in cells
    ]
    return "\n".join("  ".join(items[first : first + columns]) for first in range(0, len(items), columns))
