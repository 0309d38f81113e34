"""The journey: how a text becomes the next token, stage by stage, each with its shape and the Python that gives it.

    text ─ tokenizer ▶ ids ─ base model ▶ states ─ head ▶ scores ─ top 1 ▶ id ─ tokenizer ▶ text

An encoder-decoder's text is its source, and the next token the first of its target; an encoder's way ends at its states,
or at what its head says of the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glassformer.errors import InputError
from glassformer.page.document import Column, Heading, Long, Page, Part, Passage, Row, Table, Words, middle
from glassformer.page.format import count, many, seconds, share, size, storage, tame, visible
from glassformer.views.answers import Answer, Candidate
from glassformer.views.tokens import MOST, Token
from glassformer.views.view import View
from glassformer.views.vocabulary import Vocabulary


@dataclass(frozen=True)
class Journey(View):
    SCHEMA = "glassformer.journey/2"

    model: str
    prompt: str
    tokens: tuple[Token, ...]  # of an encoder-decoder: of its source
    stages: tuple[Stage, ...]
    candidates: tuple[Candidate, ...]  # of the first answer
    vocabulary: Vocabulary
    answer: str = "the next token"  # what the answers are about; where there are none, why
    answers: tuple[Answer, ...] = ()  # one, or one for each gap, or one for each token
    target: tuple[Token, ...] = ()  # what an encoder-decoder's target begins with
    pair: str | None = None  # the second text of two
    phases: tuple[Phase, ...] = ()
    measured: str = ""  # what the times are of
    warnings: tuple[str, ...] = ()  # what may be wrong with the prompt

    @property
    def next(self) -> Candidate:
        """The most likely next token, or whatever else the model scores."""
        if not self.candidates:
            raise InputError(f"{self.model} scores nothing: it ends with the states of its tokens.")
        return self.candidates[0]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each stage, by its name; equal blocks under the first one's names."""
        return {stage.name: stage.shape for stage in self.stages}

    @property
    def seconds(self) -> float:
        """Of all phases together, as far as they are known."""
        return sum(phase.seconds or 0.0 for phase in self.phases)

    def page(self, everything: bool = False) -> Page:
        return draw_journey(self, everything)

    def __repr__(self) -> str:
        return f"Journey({len(self.tokens)} tokens → {self.next.text if self.candidates else 'states'!r})"


@dataclass(frozen=True)
class Phase:
    """A part of the way."""

    name: str
    seconds: float | None  # None: not known
    parameters: int = 0
    stored: int | None = 0  # bytes of these as their file has them; None: not known
    bytes: int = 0  # of what it gives to the next
    each: tuple[float, ...] = ()  # the seconds of every block


@dataclass(frozen=True)
class Stage:
    """One value on the way, or the same value in several equal blocks."""

    name: str  # a site, or one of the steps around the model
    shape: tuple[int, ...]
    python: str
    module: str = ""
    parameters: int = 0  # that are first used here; of one block, where the row stands for several
    blocks: tuple[int, int] | None = None  # first and last of the equal blocks
    stack: str = ""  # "encoder." in the encoder of an encoder-decoder
    bytes: int = 0  # of the value; 0 for what is no value of its own
    dtype: str = ""  # what the value is made of
    stored: int | None = None  # bytes of the same weights as their file has them; None: not known
    shares: str = ""  # a weight that was used before, and is used here again


MOST_CHARACTERS = 1200


def draw_journey(j: Journey, everything: bool = False) -> Page:
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
                tokens_table(j.tokens, everything),
                *(Words(f"the target so far: {visible(one.text)} (id {one.id}), its start token") for one in j.target),
            ],
        ),
        ("shapes on the way", [stages_table(j.stages), *([] if j.answers else [Words(f"  {j.answer}", "dim")])]),
        *(answer(j, everything) if j.answers else []),
        *([("where time and bytes went", phases_table(j))] if j.phases else []),
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


def tokens_table(rows: Sequence[Token], everything: bool = False) -> Table:
    columns = (
        Column("position", "number"),
        Column("id", "number"),
        Column("token", "token", least=6),
        Column("text", "token", least=6),
    )
    rows_ = [
        Row((str(row.position), str(row.id), tame(row.token), visible(row.text)), "special" if row.special else "")
        for row in rows
    ]
    return Table(columns, tuple(rows_) if everything else middle(rows_, MOST))


def stages_table(rows: Sequence[Stage], modules: bool = False) -> Table:
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
    scored = [Words(f"vocabulary: {j.vocabulary}", "dim")] if j.vocabulary.scored else []
    if j.answers[0].about == "the label" and j.answers[0].position is not None:
        return [(j.answer, [tagged(j, everything)])]
    if len(j.answers) > 1:
        return [(f"scores of {j.answer}s", [*scored, *_gaps(j)]), (f"{j.answer}s", [_filled(j)])]
    only = j.answers[0]
    how = {"sigmoid": "each label by itself: more than one may hold", "none": "a number, not one of several labels"}
    said = [Words(how[only.how], "dim")] if only.how in how else []
    what = j.answer.split()[-1]
    table = candidates_table(only.candidates, what)
    likely = "" if math.isnan(j.next.probability) else f", {j.next.probability:.1%} likely"
    known = f"id {j.next.id}" if only.about != "the passage" else f"tokens {_span(j.next)}"
    return [
        (f"scores of {j.answer}", [*scored, *said, table]),
        (j.answer, [Words(f"  {_answer_text(j.next, what)}  {known}{likely}", "chosen")]),
    ]


def _gaps(j: Journey) -> Iterator[Part]:
    for number, one in enumerate(j.answers, 1):
        yield Words(f"gap {number} of {len(j.answers)}, at position {one.position}", "strong")
        yield candidates_table(one.candidates, "token")


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
    return Table(columns, tuple(rows) if everything else middle(rows, MOST))


def _answer_text(one: Candidate, what: str) -> str:
    """A token so that its blanks can be seen; a label or a passage as it reads."""
    return visible(one.text) if what == "token" else tame(one.text.replace("\n", "⏎").replace("\t", "⇥"))


def _span(one: Candidate) -> str:
    return str(one.id) if one.last in (None, one.id) else f"{one.id}–{one.last}"


def candidates_table(rows: Sequence[Candidate], what: str) -> Table:
    where = Column("tokens" if what == "passage" else "id", "number", keep=5)
    columns = (Column(what, "token", least=8), where, Column("score", "number", keep=7),
               Column("probability", "number"), Column("", "bar", keep=6))  # fmt: skip
    rows_ = []
    for row in rows:
        known = not math.isnan(row.probability)
        shown = (share(row.probability), float(row.probability)) if known else ("", 0.0)
        rows_.append(Row((_answer_text(row, what), _span(row), f"{row.score:.2f}", *shown)))
    return Table(columns, tuple(rows_))


# Time and bytes -----------------------------------------------------------------------------------------------------


def phases_table(j: Journey) -> list[Part]:
    """What each part of the way took, and what is in it."""
    columns = (
        Column("part"), Column("time", "number"), Column("", "bar", keep=3), Column("weights", "number", keep=8),
        Column("stored", "number", keep=7), Column("gives", "number", keep=6),
    )  # fmt: skip
    whole = j.seconds
    rows = []
    for phase in j.phases:
        part = (phase.seconds or 0.0) / whole if whole else 0.0
        rows.append(
            Row((phase.name, seconds(phase.seconds), part, *_weight(phase.parameters, phase.stored), storage(phase.bytes)))
        )
        if len(phase.each) > 1:
            many_ = len(phase.each)
            mean = (phase.parameters // many_, None if phase.stored is None else phase.stored // many_)
            rows.append(Row(("  each", seconds(sum(phase.each) / many_), 0.0, *_weight(*mean), ""), "dim"))
    parameters, stored = sum(phase.parameters for phase in j.phases), [phase.stored for phase in j.phases]
    total = None if None in stored else sum(one for one in stored if one is not None)
    rows.append(Row(("together", seconds(whole), 0.0, *_weight(parameters, total), ""), "strong"))
    return [Table(columns, tuple(rows)), Words(_legend(j), "dim")]


def _weight(parameters: int, stored: int | None) -> tuple[str, str]:
    return count(parameters), "" if stored is None else storage(stored)


def _legend(j: Journey) -> str:
    dtype = next((stage.dtype for stage in j.stages if stage.module and stage.dtype), "")
    clocks = ", with a clock behind every block" if any(phase.each for phase in j.phases) else ""
    tied = any(stage.shares for stage in j.stages)
    return (
        f"time: one pass on {j.measured}{clocks}. Making it ready counts as embedding; the first pass after loading also "
        "brings the weights into memory.\n"
        f"stored: bytes of the weights in their file{'; a tied table counts where it is used first' if tied else ''}.\n"
        f"gives: bytes of what goes on, in {dtype}."
    )
