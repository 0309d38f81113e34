"""The journey: how a text becomes the next token, stage by stage, each with its shape and the Python that gives it.

    text ─ tokenizer ▶ ids ─ base model ▶ states ─ head ▶ scores ─ top 1 ▶ id ─ tokenizer ▶ text

An encoder-decoder's text is its source, and the next token the first of its target; an encoder's journey ends at its
states, or at what its head predicts for the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glassformer.ground.errors import InputError
from glassformer.page.document import (
    Column,
    Heading,
    Page,
    PagePart,
    Paragraph,
    Preformatted,
    Shortenable,
    Table,
    TableRow,
    elide_middle,
)
from glassformer.page.format import (
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    format_shape,
    pluralize,
    reveal,
    reveal_line,
    visible,
)
from glassformer.see.tokens import MAX_TOKENS, Candidate, Token, VocabularySizes
from glassformer.see.view import View

MAX_CHARACTERS = 1200  # of the prompt, unless everything is shown


@dataclass(frozen=True)
class Journey(View):
    """A prompt's stages on its way through the model."""

    SCHEMA = "glassformer.journey/2"
    RECORDS = "stages"

    model: str
    prompt: str
    tokens: tuple[Token, ...]  # of an encoder-decoder: of its source
    stages: tuple[Stage, ...]
    candidates: tuple[Candidate, ...]  # of the first answer
    vocabulary: VocabularySizes
    answer: str = "the next token"  # what the answers are for; where there are none, why
    answers: tuple[Answer, ...] = ()  # one, or one for each masked token, or one for each token
    target: tuple[Token, ...] = ()  # what an encoder-decoder's target begins with
    pair: str | None = None  # the second text of two
    phases: tuple[Phase, ...] = ()
    measured: str = ""  # what the times were measured on
    warnings: tuple[str, ...] = ()  # what may be wrong with the prompt

    @property
    def next(self) -> Candidate:
        """The most likely next token, or label, or passage: whatever the model scores."""
        if not self.candidates:
            raise InputError(f"{self.model} scores nothing: it ends with the states of its tokens.")
        return self.candidates[0]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each stage, by its name; equal blocks under the first one's names."""
        return {stage.name: stage.shape for stage in self.stages}

    @property
    def seconds(self) -> float:
        """Of all phases together, as far as they were measured."""
        return sum(phase.seconds or 0.0 for phase in self.phases)

    def page(self, everything: bool = False) -> Page:
        """Long prompts are shown_prompt in the middle unless `everything` is shown."""
        special = tuple(reveal(token.text) for token in self.tokens if token.special)
        texts = [text for text in (self.prompt, self.pair) if text is not None]
        sections: list[tuple[str, list[PagePart]]] = [
            (
                f"the prompt, as {self.model} sees it",
                [
                    *(Preformatted(shown_prompt(text, everything), special) for text in texts),
                    *(Paragraph(f"! {warning}", "strong") for warning in self.warnings),
                ],
            ),
            (
                f"{pluralize(len(self.tokens), 'token')}{' of the source' if self.target else ''}, out of "
                f"{self.vocabulary.listed:,}",
                [
                    tokens_table(self.tokens, everything),
                    *(
                        Paragraph(f"the target so far: {visible(token.text)} (id {token.id}), its start token")
                        for token in self.target
                    ),
                ],
            ),
            (
                "shapes on the way",
                [stages_table(self.stages), *([] if self.answers else [Paragraph(f"  {self.answer}", "dim")])],
            ),
            *(answer_sections(self, everything) if self.answers else []),
            *([("where time and bytes went", phase_parts(self))] if self.phases else []),
        ]
        parts: list[PagePart] = []
        for number, (title, inside) in enumerate(sections, 1):
            parts += [Heading(f"{number} · {title}"), *inside]
        return Page(f"{self.model}: the journey of a prompt", tuple(parts))

    def __repr__(self) -> str:
        return f"Journey({len(self.tokens)} tokens → {self.next.text if self.candidates else 'states'!r})"


@dataclass(frozen=True)
class Answer:
    """The candidates for one question to the model."""

    about: str  # "the next token", "the masked token", "the label", "the passage", …
    candidates: tuple[Candidate, ...]  # best first
    position: int | None = None  # of the token in question; None: the whole text
    how: str = "softmax"  # what gives the probabilities: "softmax" (one of all), "sigmoid" (each by itself) or "none"


@dataclass(frozen=True)
class Phase:
    """A part of the journey, with its time and bytes."""

    name: str
    seconds: float | None  # None: not measured
    parameters: int = 0
    stored: int | None = 0  # bytes of these weights in their file; None: not known
    bytes: int = 0  # of its output
    each: tuple[float, ...] = ()  # the seconds of every block


@dataclass(frozen=True)
class Stage:
    """One value of the journey, or the same value in several equal blocks."""

    name: str  # a site, or one of the steps around the model
    shape: tuple[int, ...]
    python: str
    module: str = ""
    parameters: int = 0  # first used here; of one block, where the stage stands for several
    blocks: tuple[int, int] | None = None  # first and last of the equal blocks
    stack: str = ""  # "encoder." in the encoder of an encoder-decoder
    bytes: int = 0  # of the value; 0 where it is a view of another one
    dtype: str = ""  # of the value
    stored: int | None = None  # bytes of these weights in their file; None: not known
    shares: str = ""  # the name of a tied weight that was used before


def shown_prompt(text: str, everything: bool) -> str:
    if len(text) > MAX_CHARACTERS and not everything:
        half = MAX_CHARACTERS // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} more characters (--all) …\n{text[-half:]}"
    return reveal(text.rstrip("\n"))


def tokens_table(tokens: Sequence[Token], everything: bool = False) -> Table:
    columns = (
        Column("position", "number"),
        Column("id", "number"),
        Column("token", "token", min_width=6),
        Column("text", "token", min_width=6),
    )
    rows = [
        TableRow(
            (str(token.position), str(token.id), reveal_line(token.token), visible(token.text)),
            "special" if token.special else "",
        )
        for token in tokens
    ]
    return Table(columns, tuple(rows) if everything else elide_middle(rows, MAX_TOKENS))


def stages_table(stages: Sequence[Stage], modules: bool = False) -> Table:
    """The stages' shapes, each with its line of Python; where there is no room, a block's heading says how its lines begin.
    With `modules`, the modules' names have priority over Python."""
    narrow = modules or any(stage.stack for stage in stages)
    columns = (
        Column("what"), Column("shape"), Column("bytes", "number", priority=3 if narrow else 4),
        Column("weights", "number", priority=8), Column("module", priority=7 if modules else 5, min_width=20),
        Column("Python", "code", priority=1 if modules else 6, min_width=28), Column("stored", "number", priority=2),
    )  # fmt: skip
    shown = len(columns) - modules  # without weights there is no stored size
    return Table(columns[:shown], tuple(TableRow(row.cells[:shown], row.style) for row in _stage_rows(stages)))


def _stage_rows(stages: Sequence[Stage]) -> Iterator[TableRow]:
    group: tuple[str, tuple[int, int] | None] = ("", None)
    headings = {"encoder.": "encoder (the source)", "": "decoder (the target)"}
    next_stack = "encoder." if any(stage.stack for stage in stages) else None  # the one that needs a heading next
    for stage in stages:
        if next_stack is not None and stage.module and stage.stack == next_stack:
            yield TableRow((headings[next_stack], "", "", "", "", "", ""), "strong")
            next_stack = "" if next_stack else None
        if (stage.stack, stage.blocks) != group:
            group = stage.stack, stage.blocks
            if stage.blocks is not None:
                prefix = Shortenable("", f'at["{stage.stack}blocks.{stage.blocks[0]}.…"]')
                yield TableRow((_blocks_label(stage, stages), "", "", "", _split(stage.module)[0], prefix, ""), "strong")
        name = stage.name if stage.blocks is None else "  " + re.sub(r"^(encoder\.)?blocks\.\d+\.", "", stage.name)
        python = Shortenable(stage.python, "") if stage.blocks else stage.python
        module = _split(stage.module)[1] if stage.blocks else stage.module
        weights = format_count(stage.parameters) or ("tied" if stage.shares else "")
        stored = format_bytes(stage.stored or 0)
        yield TableRow((name, format_shape(stage.shape), format_bytes(stage.bytes), weights, module, python, stored))


def _split(module: str) -> tuple[str, str]:
    """A block's module, and the rest of the name inside it.

    >>> _split("model.layers.0.self_attn.q_proj")
    ('model.layers.0', 'self_attn.q_proj')
    """
    match = re.match(r"(.*?\.\d+)(?:\.(.*))?$", module)
    return (match[1], match[2] or "") if match else ("", module)


def _blocks_label(stage: Stage, stages: Sequence[Stage]) -> str:
    assert stage.blocks is not None
    first, last = stage.blocks
    stack = stage.stack.replace(".", " ") or ("decoder " if any(other.stack for other in stages) else "")
    return f"{stack}block {first}" if first == last else f"{stack}blocks {first}–{last}, each"


# Answers ------------------------------------------------------------------------------------------------------------


def answer_sections(j: Journey, everything: bool = False) -> list[tuple[str, list[PagePart]]]:
    """The candidates with their scores, and the best of them."""
    sizes = [Paragraph(f"vocabulary: {j.vocabulary}", "dim")] if j.vocabulary.scored else []
    if j.answers[0].about == "the label" and j.answers[0].position is not None:
        return [(j.answer, [labels_table(j, everything)])]
    if len(j.answers) > 1:
        return [(f"scores of {j.answer}s", [*sizes, *_gaps(j)]), (f"{j.answer}s", [_gaps_table(j)])]
    only = j.answers[0]
    how = {"sigmoid": "each label by itself: more than one may hold", "none": "a number, not one of several labels"}
    note = [Paragraph(how[only.how], "dim")] if only.how in how else []
    kind = j.answer.split()[-1]
    probability = "" if math.isnan(j.next.probability) else f", probability {j.next.probability:.1%}"
    where = f"id {j.next.id}" if only.about != "the passage" else f"tokens {_span(j.next)}"
    return [
        (f"scores of {j.answer}", [*sizes, *note, candidates_table(only.candidates, kind)]),
        (j.answer, [Paragraph(f"  {_answer_text(j.next, kind)}  {where}{probability}", "chosen")]),
    ]


def _gaps(j: Journey) -> Iterator[PagePart]:
    for number, answer in enumerate(j.answers, 1):
        yield Paragraph(f"gap {number} of {len(j.answers)}, at position {answer.position}", "strong")
        yield candidates_table(answer.candidates, "token")


def _gaps_table(j: Journey) -> Table:
    columns = (Column("gap", "number"), Column("position", "number"), Column("token", "token", min_width=8),
               Column("id", "number"), Column("probability", "number"))  # fmt: skip
    best = [(number, answer.position, answer.candidates[0]) for number, answer in enumerate(j.answers, 1)]
    rows = (
        TableRow(
            (str(number), str(position), visible(token.text), str(token.id), format_percent(token.probability)), "chosen"
        )
        for number, position, token in best
    )
    return Table(columns, tuple(rows))


def labels_table(j: Journey, everything: bool = False) -> Table:
    """The best label of each token."""
    columns = (Column("position", "number"), Column("token", "token", min_width=8), Column("label"),
               Column("probability", "number"), Column("", "bar", priority=6), Column("next best", priority=7))  # fmt: skip
    rows = []
    for answer in j.answers:
        assert answer.position is not None
        best, *rest = answer.candidates
        next_best = f"{rest[0].text} {format_percent(rest[0].probability)}" if rest else ""
        cells = (str(answer.position), visible(j.tokens[answer.position].text), best.text, format_percent(best.probability),
                 float(best.probability), next_best)  # fmt: skip
        rows.append(TableRow(cells))
    return Table(columns, tuple(rows) if everything else elide_middle(rows, MAX_TOKENS))


def _answer_text(candidate: Candidate, kind: str) -> str:
    """A token with visible spaces; a label or a passage as it reads."""
    return visible(candidate.text) if kind == "token" else reveal_line(candidate.text)


def _span(candidate: Candidate) -> str:
    return str(candidate.id) if candidate.last in (None, candidate.id) else f"{candidate.id}–{candidate.last}"


def candidates_table(candidates: Sequence[Candidate], kind: str) -> Table:
    where = Column("tokens" if kind == "passage" else "id", "number", priority=5)
    columns = (Column(kind, "token", min_width=8), where, Column("score", "number", priority=7),
               Column("probability", "number"), Column("", "bar", priority=6))  # fmt: skip
    rows = []
    for candidate in candidates:
        probability = candidate.probability
        cells = ("", 0.0) if math.isnan(probability) else (format_percent(probability), float(probability))
        rows.append(TableRow((_answer_text(candidate, kind), _span(candidate), f"{candidate.score:.2f}", *cells)))
    return Table(columns, tuple(rows))


# Time and bytes -----------------------------------------------------------------------------------------------------


def phase_parts(j: Journey) -> list[PagePart]:
    """The time and bytes of each phase, with a legend."""
    columns = (
        Column("part"), Column("time", "number"), Column("", "bar", priority=3), Column("weights", "number", priority=8),
        Column("stored", "number", priority=7), Column("output", "number", priority=6),
    )  # fmt: skip
    total_seconds = j.seconds
    rows = []
    for phase in j.phases:
        fraction = (phase.seconds or 0.0) / total_seconds if total_seconds else 0.0
        weights = _weights(phase.parameters, phase.stored)
        rows.append(TableRow((phase.name, format_seconds(phase.seconds), fraction, *weights, format_bytes(phase.bytes))))
        if len(phase.each) > 1:
            blocks = len(phase.each)
            mean = (phase.parameters // blocks, None if phase.stored is None else phase.stored // blocks)
            rows.append(TableRow(("  each", format_seconds(sum(phase.each) / blocks), 0.0, *_weights(*mean), ""), "dim"))
    parameters, stored = sum(phase.parameters for phase in j.phases), [phase.stored for phase in j.phases]
    total = None if None in stored else sum(size for size in stored if size is not None)
    rows.append(TableRow(("total", format_seconds(total_seconds), 0.0, *_weights(parameters, total), ""), "strong"))
    return [Table(columns, tuple(rows)), Paragraph(_legend(j), "dim")]


def _weights(parameters: int, stored: int | None) -> tuple[str, str]:
    return format_count(parameters), "" if stored is None else format_bytes(stored)


def _legend(j: Journey) -> str:
    dtype = next((stage.dtype for stage in j.stages if stage.module and stage.dtype), "")
    clocks = ", with a clock after every block" if any(phase.each for phase in j.phases) else ""
    tied = any(stage.shares for stage in j.stages)
    return (
        f"time: one pass on {j.measured}{clocks}. Preparing it counts as embedding; the first pass after loading also "
        "brings the weights into memory.\n"
        f"stored: bytes of the weights in their file{'; a tied table counts where it is used first' if tied else ''}.\n"
        f"output: bytes of what goes on to the next part, in {dtype}."
    )
