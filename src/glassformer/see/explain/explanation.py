"""An explanation as data: what decides an answer, what carries it, since when it is there, and whether that holds.

Numbers are bits: a lead is how many times likelier the answer is than its runner-up, as a power of two.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from glassformer.ground.arguments import checked
from glassformer.page.document import Cell, Column, Heading, Page, PagePart, Paragraph, Table, TableRow, TokenStrip
from glassformer.page.format import format_percent, pluralize, visible
from glassformer.see.explain.words import Origin
from glassformer.see.patching.view import AnswerToken
from glassformer.see.view import View, flat_data

SHOWN_WORDS = 8  # unless everything is shown
SHOWN_PARTS = 6
NEAR_TIE = 0.5  # bits
GONE = 0.0  # bits of lead
ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}
MUCH = 0.5  # of the lead: what a word or a part must be worth to be said to decide or carry it
MOST_NAMED = 3  # words that are said to decide
SLIGHT = 0.15  # of the lead: what a single part must restore to be named


Outcome: TypeAlias = Literal["unchanged", "another", "another kind"]  # the best answer then, and whether it is a like word


@dataclass(frozen=True)
class Exchange:
    """A word exchanged for another one."""

    text: str
    id: int  # of the token that stands in its place
    change: float  # of the lead
    answer: str  # what the model says then
    answer_id: int
    probability: float
    outcome: Outcome

    @property
    def rank(self) -> tuple[int, float]:
        """The lower, the surer another answer of the same kind."""
        if self.outcome == "unchanged":
            return 2, self.change
        return int(self.outcome != "another"), self.change * self.probability


@dataclass(frozen=True)
class WordEffect:
    """What a word is worth to the lead."""

    text: str
    origin: Origin
    positions: tuple[int, ...]
    left_out: float | None  # the change of the lead without it; None: not measured
    exchanges: tuple[Exchange, ...]

    @property
    def exchanged(self) -> float | None:
        """The median change of the lead when it is exchanged."""
        return statistics.median(one.change for one in self.exchanges) if self.exchanges else None

    @property
    def best_exchange(self) -> Exchange | None:
        """The one after which the model is surest of another answer."""
        return min(self.exchanges, key=lambda one: one.rank, default=None)

    @property
    def turns(self) -> bool:
        """Whether another word in its place made for another like answer, or most of them for some other."""
        outcomes = [one.outcome for one in self.exchanges]
        return "another" in outcomes or 2 * outcomes.count("unchanged") <= len(outcomes)

    @property
    def worth(self) -> float:
        """What the lead loses when it is exchanged; when it is left out, if nothing could be put in its place."""
        return -(self.exchanged if self.exchanged is not None else self.left_out or 0.0)


@dataclass(frozen=True)
class PartEffect:
    """What a head, a convolution or an MLP carries to the last token: the lead that its value alone brings into the other
    text."""

    block: int
    head: int | None  # None: the MLP, or the convolution
    restored: float  # of the lead's way back
    together: float  # the same with all parts before it in the list
    attention: float | None  # what the head gave to the word
    cross: bool = False  # whether it is one of cross-attention
    convolution: bool = False  # whether it is the short convolution that a block has in attention's place
    recurrent: bool = False  # whether it is one of a recurrent layer beside attention

    @property
    def name(self) -> str:
        if self.head is None:
            return f"the {'convolution' if self.convolution else 'MLP'} of block {self.block}"
        kind = "cross-attention's head" if self.cross else "the recurrent layer's head" if self.recurrent else "head"
        return f"{kind} {self.head} of block {self.block}"


@dataclass(frozen=True)
class Carried:
    """How the difference that a word makes comes to the last token."""

    word: str
    instead: str  # the word of the other text
    answer: str  # what the model says there
    against: AnswerToken  # over which the leads are here
    lead: float  # of the first text's answer
    lead_instead: float  # of it in the other text
    parts: tuple[PartEffect, ...]
    settled: int | None  # the block from which on the last token's stream alone brings the answer
    lens: int | None  # the block from which on the lens reads it there
    to: str = "the last token"  # or the gap that an encoder fills


@dataclass(frozen=True)
class Check:
    """A test of what is claimed."""

    claim: str
    lead: float
    holds: bool


@dataclass(frozen=True)
class Draw:
    """How a token came to be taken that was not the model's own best."""

    best: str
    best_probability: float
    rank: int
    probability: float  # that the model gave it
    by: str | None  # "draw", "beams" or the rule that put it before the best; None: it was named by who asked
    ruled_out: bool  # whether the rule took the best out, and did not only push it behind


@dataclass(frozen=True)
class Evidence:
    """How a clause was measured."""

    clause: str
    value: str
    method: str
    sure: str


@dataclass(frozen=True)
class Similarity:
    """What the numbers of an explanation are where it is of two texts' similarity."""

    function: str  # cosine or dot
    empty: float  # what the texts' similarity to a text without words is at the most


@dataclass(frozen=True)
class Explanation(View):
    """Why a token came next, a text was labelled as it was, an answer was found in it, or two texts are similar.

    Of two texts that are similar `lead` is their similarity, and there is no answer.
    """

    SCHEMA = "glassformer.explanation/1"
    RECORDS = "words"

    model: str
    position: int | None  # of the token before it
    tokens: tuple[str, ...]  # the text whose words are taken away: up to there, an encoder's whole, a source, or two texts
    answer: AnswerToken | None
    probability: float | None
    against: AnswerToken | None
    lead: float
    draw: Draw | None
    words: tuple[WordEffect, ...]  # by their worth
    named: int  # how many of them are said to decide
    carried: Carried | None
    checks: tuple[Check, ...]
    sentences: tuple[str, ...]  # the answer
    evidence: tuple[Evidence, ...] = ()  # how each clause was measured, if that was asked for
    similarity: Similarity | None = None  # of two texts, if that is explained

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each word."""
        return [{**flat_data(word), "worth": word.worth} for word in self.words]

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: why {self._subject}"
        parts: list[PagePart] = [Heading(title), Paragraph("\n".join(self.sentences), "strong"), self._strip()]
        unit = "the similarity loses without each" if self.answer is None else "the lead loses without each, in bits"
        parts += [Heading(f"the words: what {unit}"), self._words(everything)]
        if self.carried is not None and self.carried.parts:
            parts += self._parts(self.carried, everything)
        if self.checks:
            parts += self._checks()
        if self.evidence:
            parts += self._evidence()
        return Page(title, tuple(parts))

    @property
    def _subject(self) -> str:
        if self.answer is None:
            return "the texts are similar"
        return spoken(self.answer.text) if self._of_two else visible(self.answer.text)

    def _signed(self, value: float | None) -> str:
        return "" if value is None else f"{value:+.{2 if self.similarity else 1}f}"

    def _strip(self) -> TokenStrip:
        """The text without its template, each word shaded by its worth."""
        most, worth = self._most, {position: word for word in self.words for position in word.positions}
        shown = [position for position in range(len(self.tokens)) if worth.get(position) not in self._template]
        words = [worth.get(position) for position in shown]
        values = tuple(0.0 if word is None else max(-1.0, min(1.0, word.worth / most)) for word in words)
        unit = "" if self.similarity else " bits"
        notes = tuple("" if word is None else f"{word.text}: {self._signed(-word.worth)}{unit}" for word in words)
        return TokenStrip(tuple(visible(self.tokens[position]) for position in shown), values, notes)

    @property
    def _template(self) -> list[WordEffect]:
        return [word for word in self.words if word.origin == "template"]

    @property
    def _most(self) -> float:
        return max([abs(word.worth) for word in self.words] or [0.0]) or 1.0

    def _words(self, everything: bool) -> Table:
        places = {"prompt": "the first", "pair": "the second"} if self._of_two else {}
        shown = self.words[: None if everything else SHOWN_WORDS]
        columns = [Column("word", "token", min_width=8), Column("left out", "number"), Column("", "signed bar", priority=7)]
        cells: list[list[Cell]] = [
            [visible(word.text), self._signed(word.left_out), word.worth / self._most] for word in shown
        ]
        if self.similarity is None:
            columns[2:2] = [Column("exchanged", "number")]
            columns.append(Column("exchanged for", priority=5))
            for word, row in zip(shown, cells, strict=True):
                row[2:2] = [self._signed(word.exchanged)]
                row.append(", ".join(f"{one.text} → {visible(one.answer)}" for one in word.exchanges))
        columns.append(Column("stands in", priority=3))
        rows = (
            TableRow((*row, places.get(word.origin, word.origin)), "chosen" if index < self.named else "")
            for index, (word, row) in enumerate(zip(shown, cells, strict=True))
        )
        return Table(tuple(columns), tuple(rows))

    @property
    def _of_two(self) -> bool:
        return any(word.origin == "pair" for word in self.words)

    def _parts(self, carried: Carried, everything: bool) -> list[PagePart]:
        columns = (
            Column("part"), Column("restores alone", "number"), Column("", "signed bar", priority=8),
            Column("with those above", "number"), Column(f"attention to {visible(carried.word)}", "number", priority=6),
        )  # fmt: skip
        shown = carried.parts[: None if everything else SHOWN_PARTS]
        rows = (
            TableRow(
                (part.name, f"{part.restored:.0%}", max(-1.0, min(1.0, part.restored)), f"{part.together:.0%}",
                 "" if part.attention is None else format_percent(part.attention))
            )
            for part in shown
        )  # fmt: skip
        note = (
            f"{carried.word} exchanged for {carried.instead}: the lead over {quoted(carried.against.text)} falls from "
            f"{carried.lead:+.1f} to {carried.lead_instead:+.1f} bits;"
        )
        return [
            Heading(f"what carries it to {carried.to}, put back one by one"),
            Paragraph(f"{note} a part restores the share of the lead that its value at {carried.to} brings back", "dim"),
            Table(columns, tuple(rows)),
        ]

    def _checks(self) -> list[PagePart]:
        rows = tuple(
            TableRow((check.claim, self._signed(check.lead), "yes" if check.holds else "no")) for check in self.checks
        )
        columns = (Column("checked", wraps=True), Column("lead" if self.answer else "similarity", "number"), Column("holds"))
        return [Heading(f"does it hold? {faithfulness(self.checks)}"), Table(columns, rows)]

    def _evidence(self) -> list[PagePart]:
        columns = (
            Column("clause", wraps=True),
            Column("value"),
            Column("measured by", wraps=True),
            Column("sure?", wraps=True),
        )
        rows = tuple(TableRow((each.clause, each.value, each.method, each.sure)) for each in self.evidence)
        return [Heading("how each clause was measured"), Table(columns, rows)]

    def __repr__(self) -> str:
        return f"Explanation({self._subject}: {' '.join(self.sentences)})"


def spoken(token: str) -> str:
    """A token as it stands in a sentence: without the blank before it.

    >>> spoken(" Paris"), spoken(" "), spoken("New York")
    ('Paris', '␣', 'New York')
    """
    text = token.strip()
    return visible(text).replace("␣", " ") if text else visible(token)


def quoted(token: str) -> str:
    """The same where it could be read as a word of the sentence: “and” led “+”."""
    return f"“{spoken(token)}”"


def quoted_list(texts: Sequence[str]) -> str:
    """
    >>> quoted_list(["a", "b", "c"])
    '“a”, “b” and “c”'
    """
    *before, last = (f"“{text}”" for text in texts)
    return f"{', '.join(before)} and {last}" if before else last


def faithfulness(checks: Sequence[Check]) -> str:
    return f"{sum(check.holds for check in checks)} of {pluralize(len(checks), 'check')}"


def by_worth(words: Sequence[WordEffect], lead: float) -> tuple[list[int], int]:
    """The words' indices, those that decide first, and how many these are: at most three.

    A word decides that is worth half of the lead, and with others in its place the model says something else; the surer it
    is of another answer of the same kind then, the more it is this word that chose this one. Words of the answer come after
    those of the prompt. The others follow by worth.
    """
    known = any(word.exchanges for word in words)
    order = sorted(range(len(words)), key=lambda index: (known and not words[index].exchanges, -words[index].worth))
    strong = [index for index in order if words[index].worth >= max(MUCH * lead, NEAR_TIE) and words[index].turns]
    strong = [index for index in strong if words[index].exchanges or not known]
    ranks = {index: one.rank if (one := words[index].best_exchange) else (2, 0.0) for index in strong}
    strong.sort(key=lambda index: (words[index].origin == "answer", ranks[index]))
    strong = strong[:MOST_NAMED]
    return [*strong, *(index for index in order if index not in strong)], len(strong)


def sentences(
    answer: str,
    against: str,
    lead: float,
    draw: Draw | None,
    words: Sequence[WordEffect],
    named: int,
    carried: Carried | None,
    word: str | None = None,
) -> tuple[str, ...]:
    """The answer to "why?": the lead, what decides it, and what carries it. `word`: that the answer is a piece of."""
    return (*_lead(answer, against, lead, draw, word), _deciding(words, named, lead), *_carrying(carried))


def _lead(answer: str, against: str, lead: float, draw: Draw | None, word: str | None) -> tuple[str, ...]:
    token, rival = quoted(answer), quoted(against)
    token += "" if word is None else f" (of “{word}”)"
    if draw is not None:
        return (_drawn(token, draw),)
    if abs(lead) < NEAR_TIE:
        return (f"It was nearly a tie: {token} led {rival} by only {lead:.1f} bits.",)
    return (f"{token} led {rival} by {lead:.1f} bits.",)


def _drawn(token: str, draw: Draw) -> str:
    best = f"The model's own best was {quoted(draw.best)} with {format_percent(draw.best_probability)}"
    place = f"its {ORDINALS[draw.rank]}" if draw.rank in ORDINALS else f"its choice number {draw.rank}"
    share = f"{place} with {format_percent(draw.probability)}"
    if draw.by is None:
        return f"{best}; {token} was {share}."
    if draw.by in ("draw", "beams"):
        return f"{best}; the {draw.by} took {token}, {share}."
    how = "ruled that out" if draw.ruled_out else f"put {token} before it"
    return f"{best}; {draw.by} {how}, and {token} was taken, {share}."


def _deciding(words: Sequence[WordEffect], named: int, lead: float) -> str:
    if not words:
        return "There is no word before it that could be taken away."
    if named == 0:
        largest = max(words, key=lambda word: abs(_left_out(word)))
        if abs(_left_out(largest)) < SLIGHT * abs(lead):
            return "No single word decides: without any one of them the lead stays about the same."
        return (
            "No single word decides: none takes half of the lead with it when it is exchanged for others; leaving "
            f"“{largest.text}” out changes it most ({_left_out(largest):+.1f})."
        )
    chosen = words[:named]
    names = _names(chosen)
    best = chosen[0].best_exchange
    if best is None:
        loss = _loss(lead, max(map(_left_out, chosen)))
        return f"{names} decide{'s' if named == 1 else ''} it: without {_that_word(named)} {loss} ({_changes(chosen)})."
    loss = _loss(lead, max(-word.worth for word in chosen))
    instead = f"“{best.text}” instead" + ("" if named == 1 else f" of “{chosen[0].text}”")
    says = "still says" if best.outcome == "unchanged" else "says"
    return (
        f"{names} decide{'s' if named == 1 else ''} it: with another word in place of {_that_word(named)} {loss} "
        f"({_changes(chosen)}). With {instead} the model {says} {quoted(best.answer)}."
    )


def _names(chosen: Sequence[WordEffect]) -> str:
    """The words that decide; those that the answer itself said before are told apart."""
    asked = [word.text for word in chosen if word.origin != "answer"]
    said = [word.text for word in chosen if word.origin == "answer"]
    if not said:
        return quoted_list(asked)
    so_far = f"{quoted_list(said)} in the answer so far"
    return f"{quoted_list(asked)}, and {so_far}," if asked else so_far


def _left_out(word: WordEffect) -> float:
    return word.left_out or 0.0


def _that_word(named: int) -> str:
    return "that word" if named == 1 else "any one of them"


def _changes(words: Sequence[WordEffect]) -> str:
    return ", ".join(f"{-word.worth:+.1f}" for word in words)


def _loss(lead: float, change: float) -> str:
    if lead <= GONE:
        return "it falls further behind"
    return "the lead is gone" if lead + change <= GONE else f"the lead falls to {lead + change:.1f}"


def _carrying(carried: Carried | None) -> tuple[str, ...]:
    if carried is None or not carried.parts:
        return ()
    best, last = carried.parts[0], carried.parts[-1]
    looking = "" if best.attention is None else f", which looks at “{carried.word}” with {format_percent(best.attention)}"
    if best.restored >= SLIGHT:
        share = f"alone it restores {best.restored:.0%} of the lead over {quoted(carried.against.text)}"
        text = f"It is brought to {carried.to} mostly by {best.name}{looking} ({share}"
    else:
        text = f"No single part brings it to {carried.to}: the best, {best.name}, restores {best.restored:.0%} of the lead ("
    more = f"; {pluralize(len(carried.parts), 'part')} together {last.together:.0%})" if len(carried.parts) > 1 else ")"
    text = (text + more).replace("(; ", "(")
    if carried.settled is None:
        return (f"{text}.",)
    lens = "" if carried.lens is None else f" (the lens reads it from block {carried.lens} on)"
    return (f"{text}, and the answer is there from block {carried.settled} on{lens}.",)
