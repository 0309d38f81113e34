"""A journey from top to bottom: prompt, tokens, shapes, scores, choice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from glassformer.observe.journey import Candidate, Journey, Stage
from glassformer.observe.tokens import Token
from glassformer.observe.vocabulary import Vocabulary
from glassformer.show.page import Column, Heading, Long, Page, Part, Passage, Row, Table, Words, middle
from glassformer.show.words import count, share, size, tame, visible

MOST_TOKENS = 96
MOST_CHARACTERS = 1200


def page(j: Journey, everything: bool = False) -> Page:
    """Long prompts are shortened in the middle unless `everything` is wanted."""
    special = tuple(token.text for token in j.tokens if token.special)
    parts: list[Part] = [
        Heading(f"1 · the prompt, as {j.model} sees it"),
        Passage(shortened(j.prompt, everything), special),
        Heading(f"2 · {len(j.tokens)} tokens, out of {j.vocabulary.listed:,}"),
        tokens(j.tokens, everything),
        Heading("3 · shapes on the way"),
        stages(j.stages),
        *(answer(j) if j.candidates else [Words(f"  {j.answer}", "dim")]),
    ]
    return Page(f"{j.model}: the journey of a prompt", tuple(parts))


def shortened(text: str, everything: bool) -> str:
    if len(text) > MOST_CHARACTERS and not everything:
        half = MOST_CHARACTERS // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} more characters (--all) …\n{text[-half:]}"
    return tame(text.rstrip("\n"))


def tokens(rows: Sequence[Token], everything: bool = False) -> Table:
    columns = (
        Column("position", "number"),
        Column("id", "number"),
        Column("token", "token", least=6),
        Column("text", "token", least=6),
    )
    told = [
        Row((str(row.position), str(row.id), tame(row.token), visible(row.text)), "special" if row.special else "")
        for row in rows
    ]
    return Table(columns, tuple(told) if everything else middle(told, MOST_TOKENS))


def stages(rows: Sequence[Stage]) -> Table:
    """The shapes on the way, each with its line of Python; in a block, where there is no room, its heading tells how they
    begin."""
    columns = (Column("what"), Column("shape"), Column("weights", "number", keep=8), Column("Python", "code", keep=5))
    return Table(columns, tuple(_stages(rows)))


def _stages(rows: Sequence[Stage]) -> Iterator[Row]:
    said: tuple[str, tuple[int, int] | None] = ("", None)
    for row in rows:
        if (row.stack, row.blocks) != said:
            said = row.stack, row.blocks
            if row.blocks is not None:
                begins = Long("", f'at["{row.stack}blocks.{row.blocks[0]}.…"]')
                yield Row((_blocks(row, rows), "", "", begins), "strong")
        name = row.name if row.blocks is None else "  " + re.sub(r"^(encoder\.)?blocks\.\d+\.", "", row.name)
        python = Long(row.python, "") if row.blocks else row.python
        yield Row((name, size(row.shape), count(row.parameters), python))


def _blocks(row: Stage, rows: Sequence[Stage]) -> str:
    assert row.blocks is not None
    first, last = row.blocks
    stack = row.stack.replace(".", " ") or ("decoder " if any(one.stack for one in rows) else "")
    return f"{stack}block {first}" if first == last else f"{stack}blocks {first}–{last}, each"


def answer(j: Journey) -> list[Part]:
    """What the model scores, and the best of it."""
    return [
        Heading(f"4 · scores of {j.answer}"),
        *([Words(f"vocabulary: {vocabulary(j.vocabulary)}", "dim")] if j.vocabulary.scored else []),
        candidates(j.candidates, j.answer.split()[-1]),
        Heading(f"5 · {j.answer}"),
        Words(f"  {visible(j.next.text)}  id {j.next.id}, {j.next.probability:.1%} likely", "chosen"),
    ]


def vocabulary(sizes: Vocabulary) -> str:
    """Its sizes in a line, and why they differ."""
    return f"{sizes.words()}\n{sizes.why()}".rstrip()


def candidates(rows: Sequence[Candidate], what: str) -> Table:
    columns = (Column(what, "token", least=8), Column("id", "number", keep=5), Column("score", "number", keep=7),
               Column("probability", "number"), Column("", "bar", keep=6))  # fmt: skip
    return Table(
        columns,
        tuple(
            Row((visible(row.text), str(row.id), f"{row.score:.2f}", share(row.probability), float(row.probability)))
            for row in rows
        ),
    )
