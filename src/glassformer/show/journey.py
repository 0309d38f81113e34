"""A journey from top to bottom: prompt, tokens, shapes, scores, choice; and what it took."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from glassformer.observe.journey import Candidate, Journey, Stage
from glassformer.observe.tokens import Token
from glassformer.observe.vocabulary import Vocabulary
from glassformer.show.page import Column, Heading, Long, Page, Part, Passage, Row, Table, Words, middle
from glassformer.show.words import count, many, seconds, share, size, storage, tame, visible

MOST_TOKENS = 96
MOST_CHARACTERS = 1200


def page(j: Journey, everything: bool = False) -> Page:
    """Long prompts are shortened in the middle unless `everything` is wanted."""
    special = tuple(token.text for token in j.tokens if token.special)
    texts = [one for one in (j.prompt, j.pair) if one is not None]
    parts: list[tuple[str, list[Part]]] = [
        (
            f"the prompt, as {j.model} sees it",
            [
                *(Passage(shortened(text, everything), special) for text in texts),
                *(Words(f"! {warning}", "strong") for warning in j.warnings),
            ],
        ),
        (
            f"{many(len(j.tokens), 'token')}{' of the source' if j.target else ''}, out of {j.vocabulary.listed:,}",
            [
                tokens(j.tokens, everything),
                *(Words(f"the target so far: {visible(one.text)} (id {one.id}), its start token") for one in j.target),
            ],
        ),
        ("shapes on the way", [stages(j.stages), *([] if j.answers else [Words(f"  {j.answer}", "dim")])]),
        *(answer(j, everything) if j.answers else []),
        *([("where time and bytes went", spent(j))] if j.legs else []),
    ]
    found: list[Part] = []
    for number, (title, inside) in enumerate(parts, 1):
        found += [Heading(f"{number} · {title}"), *inside]
    return Page(f"{j.model}: the journey of a prompt", tuple(found))


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


def stages(rows: Sequence[Stage], modules: bool = False) -> Table:
    """The shapes on the way, each with its line of Python; in a block, where there is no room, its heading tells how they
    begin. Where it is `modules` that are asked for, their names come first, and Python goes."""
    narrow = modules or any(row.stack for row in rows)
    columns = (
        Column("what"), Column("shape"), Column("bytes", "number", keep=3 if narrow else 4),
        Column("weights", "number", keep=8), Column("module", keep=7 if modules else 5, least=20),
        Column("Python", "code", keep=1 if modules else 6, least=28), Column("stored", "number", keep=2),
    )  # fmt: skip
    shown = len(columns) - modules  # where there are no weights, none are stored
    return Table(columns[:shown], tuple(Row(row.cells[:shown], row.style) for row in _stages(rows)))


def _stages(rows: Sequence[Stage]) -> Iterator[Row]:
    said: tuple[str, tuple[int, int] | None] = ("", None)
    sides = {"encoder.": "encoder (the source)", "": "decoder (the target)"}
    side = "encoder." if any(row.stack for row in rows) else None  # which one is yet to be headed
    for row in rows:
        if side is not None and row.module and row.stack == side:
            yield Row((sides[side], "", "", "", "", "", ""), "strong")
            side = "" if side else None
        if (row.stack, row.blocks) != said:
            said = row.stack, row.blocks
            if row.blocks is not None:
                begins = Long("", f'at["{row.stack}blocks.{row.blocks[0]}.…"]')
                yield Row((_blocks(row, rows), "", "", "", _split(row.module)[0], begins, ""), "strong")
        name = row.name if row.blocks is None else "  " + re.sub(r"^(encoder\.)?blocks\.\d+\.", "", row.name)
        python = Long(row.python, "") if row.blocks else row.python
        module = _split(row.module)[1] if row.blocks else row.module
        weights = count(row.parameters) or ("tied" if row.shares else "")
        yield Row((name, size(row.shape), storage(row.bytes), weights, module, python, storage(row.stored or 0)))


def _split(module: str) -> tuple[str, str]:
    """A block's own module, and the rest of a name inside it.

    >>> _split("model.layers.0.self_attn.q_proj")
    ('model.layers.0', 'self_attn.q_proj')
    """
    found = re.match(r"(.*?\.\d+)(?:\.(.*))?$", module)
    return (found[1], found[2] or "") if found else ("", module)


def _blocks(row: Stage, rows: Sequence[Stage]) -> str:
    assert row.blocks is not None
    first, last = row.blocks
    stack = row.stack.replace(".", " ") or ("decoder " if any(one.stack for one in rows) else "")
    return f"{stack}block {first}" if first == last else f"{stack}blocks {first}–{last}, each"


# Answers ------------------------------------------------------------------------------------------------------------


def answer(j: Journey, everything: bool = False) -> list[tuple[str, list[Part]]]:
    """What the model scores, and the best of it."""
    scored = [Words(f"vocabulary: {vocabulary(j.vocabulary)}", "dim")] if j.vocabulary.scored else []
    if j.answers[0].about == "the label" and j.answers[0].position is not None:
        return [(j.answer, [tagged(j, everything)])]
    if len(j.answers) > 1:
        return [(f"scores of {j.answer}s", [*scored, *_gaps(j)]), (f"{j.answer}s", [_filled(j)])]
    only = j.answers[0]
    how = {"sigmoid": "each label by itself: more than one may hold", "none": "a number, not one of several labels"}
    said = [Words(how[only.how], "dim")] if only.how in how else []
    what = j.answer.split()[-1]
    table = candidates(only.candidates, what)
    likely = "" if math.isnan(j.next.probability) else f", {j.next.probability:.1%} likely"
    known = f"id {j.next.id}" if only.about != "the passage" else f"tokens {_span(j.next)}"
    return [
        (f"scores of {j.answer}", [*scored, *said, table]),
        (j.answer, [Words(f"  {_word(j.next, what)}  {known}{likely}", "chosen")]),
    ]


def _gaps(j: Journey) -> Iterator[Part]:
    for number, one in enumerate(j.answers, 1):
        yield Words(f"gap {number} of {len(j.answers)}, at position {one.position}", "strong")
        yield candidates(one.candidates, "token")


def _filled(j: Journey) -> Table:
    columns = (Column("gap", "number"), Column("position", "number"), Column("token", "token", least=8),
               Column("id", "number"), Column("probability", "number"))  # fmt: skip
    best = [(number, one.position, one.candidates[0]) for number, one in enumerate(j.answers, 1)]
    rows = (
        Row((str(number), str(position), visible(one.text), str(one.id), share(one.probability)), "chosen")
        for number, position, one in best
    )
    return Table(columns, tuple(rows))


def tagged(j: Journey, everything: bool = False) -> Table:
    """The best label of each token."""
    columns = (Column("position", "number"), Column("token", "token", least=8), Column("label"),
               Column("probability", "number"), Column("", "bar", keep=6), Column("next best", keep=7))  # fmt: skip
    rows = []
    for one in j.answers:
        assert one.position is not None
        best, *rest = one.candidates
        then = f"{rest[0].text} {share(rest[0].probability)}" if rest else ""
        cells = (str(one.position), visible(j.tokens[one.position].text), best.text, share(best.probability),
                 float(best.probability), then)  # fmt: skip
        rows.append(Row(cells))
    return Table(columns, tuple(rows) if everything else middle(rows, MOST_TOKENS))


def _word(one: Candidate, what: str) -> str:
    """A token so that its blanks can be seen; a label or a passage as it reads."""
    return visible(one.text) if what == "token" else tame(one.text.replace("\n", "⏎").replace("\t", "⇥"))


def _span(one: Candidate) -> str:
    return str(one.id) if one.last in (None, one.id) else f"{one.id}–{one.last}"


def vocabulary(sizes: Vocabulary) -> str:
    """Its sizes in a line, and why they differ."""
    return f"{sizes.words()}\n{sizes.why()}".rstrip()


def candidates(rows: Sequence[Candidate], what: str) -> Table:
    where = Column("tokens" if what == "passage" else "id", "number", keep=5)
    columns = (Column(what, "token", least=8), where, Column("score", "number", keep=7),
               Column("probability", "number"), Column("", "bar", keep=6))  # fmt: skip
    told = []
    for row in rows:
        known = not math.isnan(row.probability)
        shown = (share(row.probability), float(row.probability)) if known else ("", 0.0)
        told.append(Row((_word(row, what), _span(row), f"{row.score:.2f}", *shown)))
    return Table(columns, tuple(told))


# Time and bytes -----------------------------------------------------------------------------------------------------


def spent(j: Journey) -> list[Part]:
    """What each part of the way took, and what is in it."""
    columns = (
        Column("part"), Column("time", "number"), Column("", "bar", keep=3), Column("weights", "number", keep=8),
        Column("stored", "number", keep=7), Column("gives", "number", keep=6),
    )  # fmt: skip
    whole = j.seconds
    rows = []
    for leg in j.legs:
        part = (leg.seconds or 0.0) / whole if whole else 0.0
        rows.append(Row((leg.name, seconds(leg.seconds), part, *_weight(leg.parameters, leg.stored), storage(leg.bytes))))
        if len(leg.each) > 1:
            many_ = len(leg.each)
            mean = (leg.parameters // many_, None if leg.stored is None else leg.stored // many_)
            rows.append(Row(("  each", seconds(sum(leg.each) / many_), 0.0, *_weight(*mean), ""), "dim"))
    parameters, stored = sum(leg.parameters for leg in j.legs), [leg.stored for leg in j.legs]
    total = None if None in stored else sum(one for one in stored if one is not None)
    rows.append(Row(("together", seconds(whole), 0.0, *_weight(parameters, total), ""), "strong"))
    return [Table(columns, tuple(rows)), Words(_said(j), "dim")]


def _weight(parameters: int, stored: int | None) -> tuple[str, str]:
    return count(parameters), "" if stored is None else storage(stored)


def _said(j: Journey) -> str:
    dtype = next((stage.dtype for stage in j.stages if stage.module and stage.dtype), "")
    clocks = ", with a clock behind every block" if any(leg.each for leg in j.legs) else ""
    tied = any(stage.shares for stage in j.stages)
    return (
        f"time: one pass on {j.measured}{clocks}. Making it ready counts as embedding; the first pass after loading also "
        "brings the weights into memory.\n"
        f"stored: bytes of the weights in their file{'; a tied table counts where it is used first' if tied else ''}.\n"
        f"gives: bytes of what goes on, in {dtype}."
    )
