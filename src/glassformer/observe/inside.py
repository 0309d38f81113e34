"""One level of a model with a text's numbers, from the whole model down to one multiplication.

What there is to see is read off the blueprint, and its numbers in a pass of their own, so every family is shown by the same
code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from glassformer.blueprints import Op
from glassformer.ground.operations import about, operation
from glassformer.observe.activations import Activations
from glassformer.observe.arithmetic import Arithmetic
from glassformer.observe.attention import sink_sites, sink_weights
from glassformer.observe.level_paths import GROUPS, LevelPaths, Place, scope, width
from glassformer.observe.op_values import OpValues
from glassformer.observe.protocols import Floats
from glassformer.observe.tokens import token_text
from glassformer.ops.attend import Attend, HeadScores
from glassformer.page.format import visible
from glassformer.views.inside import (
    AttendedKey,
    Crumb,
    HeadRow,
    HeadSink,
    Inside,
    LevelPart,
    NamedStrip,
    NumberLink,
    Strip,
)
from glassformer.views.tokens import Token, find_token

OVERVIEW_CELLS = 256  # of a strip among others
DETAIL_CELLS = 4096  # of one that is looked at
MAX_KEYS = 512  # tokens of a head that are listed: those with the most weight
MAX_NUMBERS = 12  # of a vector, to open
CLOSE = 1e-3  # how far a number computed here may be from the engine's, in relation, before it is said


@operation(route="inside")
def inside(
    reading: Activations,
    path: Annotated[
        str,
        about(
            "The level: '' is the whole model, blocks.3 a block, blocks.3.attention.heads.4 a head, with .2 behind it its "
            "score for the token at position 2, blocks.3.mlp.hidden.17 a neuron.",
            served_length=200,
        ),
    ] = "",
    position: Annotated[int | str, about("The token: its position or its text.")] = -1,
) -> Inside:
    """Show one level of the model with a text's numbers: a block, a head, a neuron, one dot product.

    Of a path that does not exist it is the nearest level that does. In the encoder of an encoder-decoder, the position
    counts the source's tokens.
    """
    return _Level(reading, path, position).view()


@dataclass
class _Level:
    """What one level is made from."""

    reading: Activations
    path: str
    requested_position: int | str

    @cached_property
    def paths(self) -> LevelPaths:
        return LevelPaths(self.reading.model.blueprint)

    @cached_property
    def place(self) -> Place:
        return self.paths.find(self.path, self._key_count)

    @property
    def _key_count(self) -> int:
        """How many tokens an attention of this path looks at."""
        source = self.path.startswith("encoder.") or ".cross." in self.path
        return len(self.reading.source or ()) if source else len(self.reading)

    @property
    def op(self) -> Op:
        return self.paths.ops[self.place.ops[0]]

    @property
    def in_source(self) -> bool:
        """Whether its values stand at the source's tokens: an encoder's do, and what a decoder makes of its states."""
        if self.place.kind in ("operation", "number"):
            return self._from_encoder(self.op)
        return self.place.kind != "model" and bool(self.op.stack)

    @property
    def tokens(self) -> Sequence[Token]:
        return self.reading.source_tokens if self.in_source else self.reading.tokens

    @cached_property
    def position(self) -> int:
        position = self.requested_position
        if isinstance(position, int):  # walking into an encoder may lead beyond its tokens
            return max(0, min(position if position >= 0 else len(self.tokens) + position, len(self.tokens) - 1))
        return find_token(position, [token.text for token in self.tokens])

    @cached_property
    def values(self) -> OpValues:
        return OpValues(self.reading, self.position)

    def view(self) -> Inside:
        place, contents = self.place, _Contents(Arithmetic(self.values))
        {
            "model": self._parts, "block": self._parts, "group": self._parts, "operation": self._operation,
            "number": self._number, "head": self._head, "score": self._score,
        }[place.kind](contents)  # fmt: skip
        crumbs = self.paths.crumbs(place)
        if place.kind == "number":
            crumbs = (*crumbs[:-1], Crumb(place.path, self._output_label(place.numbers[0])))
        call = f'reading.inside("{place.path}", {self.position})'
        return Inside(
            model=self.reading.model.name, path=place.path, kind=place.kind, title=crumbs[-1].label, crumbs=crumbs,
            previous=(beside := self.paths.siblings(place, self._key_count))[0], next=beside[1],
            position=self.position, side="source" if self.in_source else "text",
            tokens=tuple(token.text for token in self.tokens), formula=contents.formula, notes=tuple(contents.notes),
            parts=tuple(contents.parts), heads=tuple(contents.heads), keys=tuple(contents.keys),
            strips=tuple(contents.strips), numbers=tuple(contents.numbers), products=tuple(contents.arithmetic.products),
            steps=tuple(contents.arithmetic.steps), result=contents.result,
            python=(*contents.python, *contents.arithmetic.python, call), sink=contents.sink,
        )  # fmt: skip

    # Levels with parts ------------------------------------------------------------------------------------------

    def _parts(self, contents: _Contents) -> None:
        """What a model, a block or a part of one consists of, with what came out of each at the position."""
        places = self.paths.inner(self.place)
        home = {number: at for at, inner in enumerate(places) for number in inner.ops}
        outside = sorted({source for number in home for source in self.paths.ops[number].inputs if source not in home})
        shown = [number for number in (*outside, *(inner.ops[-1] for inner in places)) if self._has_value(number)]
        attends = [number for number in self.place.ops if isinstance(self.paths.ops[number], Attend)]
        attend = attends[0] if self.place.kind == "group" and attends else None
        self.values.prefetch(shown, patterns=[] if attend is None else [attend])
        for number in outside:
            op = self.paths.ops[number]
            name = "encoder's states" if self._from_encoder(op) else op.input_name
            contents.parts.append(self._part(None, name, "input", "as it comes in", (), number))
        for inner in places:
            sources = {source for number in inner.ops for source in self.paths.ops[number].inputs}
            inputs = {outside.index(s) if s not in home else len(outside) + home[s] for s in sources}
            inputs.discard(len(contents.parts))
            last = inner.ops[-1]
            kind = self.paths.ops[last].kind if inner.kind == "operation" else inner.kind
            path = inner.path if self.paths.openable(inner) else None
            part = self._part(path, self.paths.label(inner), kind, self._what(inner), tuple(sorted(inputs)), last, inner.ops)
            contents.parts.append(part)
        contents.formula = self._what(self.place)
        if attend is not None:
            self._heads(contents, attend)
        sites = [part.site for part in contents.parts if part.site]
        contents.python = [f'reading.at("{sites[-1]}")[{self.position}]'] if sites else []

    def _part(
        self, path: str | None, name: str, kind: str, what: str, inputs: tuple[int, ...], number: int,
        ops: tuple[int, ...] = (),
    ) -> LevelPart:  # fmt: skip
        op = self.paths.ops[number]
        strip = make_strip(self.values.value(number)) if self._has_value(number) else None
        return LevelPart(
            path, name, kind, what, inputs, self._shape(op), op.site if kind != "input" else None,
            self.paths.parameters(ops), strip,
        )  # fmt: skip

    def _has_value(self, number: int) -> bool:
        """Whether it has a vector at this position: an encoder's have theirs at positions of the source."""
        op = self.paths.ops[number]
        return self._from_encoder(op) == self.in_source and op.has_value_at_token

    def _from_encoder(self, op: Op) -> bool:
        """Whether its result has a vector for each token of the source; a cross-attention's keys and values have."""
        return bool(op.stack) or "source" in op.shape

    def _shape(self, op: Op) -> tuple[int, ...]:
        text, source = len(self.reading), len(self.reading.source or ())
        sizes = {"batch": 1, "length": text, "keys": text, "source": source}
        return tuple(sizes[size] if isinstance(size, str) else size for size in op.shape)

    def _heads(self, contents: _Contents, number: int) -> None:
        """Each head, and what it looks at."""
        pattern, groups, keys = self.values.pattern(number), self._groups(number), self._keys(number)
        has_sink = self.paths.ops[number].inner_site("pattern") in sink_sites(self.reading.model.blueprint)
        for head, weights in enumerate(pattern):
            best = int(weights.argmax())
            contents.heads.append(HeadRow(
                f"{self.paths.op_paths[number]}.{head}", head, head * groups // len(pattern), make_strip(weights), best,
                keys[best].text, float(weights[best]), float(sink_weights(weights)) if has_sink else None,
            ))  # fmt: skip
        contents.notes += self._attend(number).notes(self.paths.ops)
        contents.python.append(f'reading.at("{self.paths.ops[number].inner_site("pattern")}")[:, {self.position}]')

    def _keys(self, number: int) -> Sequence[Token]:
        """The tokens that an attention looks at."""
        op = self._attend(number)
        return self.reading.source_tokens if op.cross or op.stack else self.reading.tokens

    # Levels of one operation ------------------------------------------------------------------------------------

    def _operation(self, contents: _Contents) -> None:
        """An operation: what goes in, what comes out, and the numbers that are furthest from zero."""
        (number,) = self.place.ops
        op = self.op
        self.values.prefetch([*op.inputs, number])
        for source in op.inputs:
            self._strip(contents, self._input_name(source), source)
        result = self._strip(contents, "result", number)
        contents.formula = self._what(self.place)
        order = np.argsort(-result if op.site == "scores" else -np.abs(result), kind="stable")[:MAX_NUMBERS]
        contents.numbers = [
            NumberLink(f"{self.place.path}.{index}", self._output_label(int(index)), float(result[index])) for index in order
        ]
        contents.notes += [f"weights: {weight.name}, {'×'.join(map(str, weight.shape))}" for weight in op.weights]
        contents.python = self._read_line(number)

    def _strip(self, contents: _Contents, name: str, number: int) -> Floats:
        value = self.values.value(number)
        contents.strips.append(NamedStrip(name, self.paths.ops[number].site, make_strip(value, DETAIL_CELLS)))
        return value.reshape(-1)

    def _input_name(self, source: int) -> str:
        return f"input: {self.paths.op_paths[source]}"

    def _read_line(self, number: int, index: int | None = None) -> list[str]:
        """The Python that reads an op's result at the position, or one number of it."""
        op = self.paths.ops[number]
        if op.site is None or op.site == "scores":
            return []
        heads = len(op.shape) == 4
        if index is None:
            return [f'reading.at("{op.site}")[{":, " if heads else ""}{self.position}]']
        head, own = divmod(index, width(op) // self._shape(op)[1]) if heads else (0, index)
        return [f'reading.at("{op.site}")[{f"{head}, " if heads else ""}{self.position}, {own}]']

    def _output_label(self, index: int) -> str:
        """What one number of this operation's result is called; of scores, what is scored."""
        if self.op.site != "scores":
            return self.op.number_label(index, self.values.value)
        model = self.reading.model
        if model.head in ("causal", "seq2seq", "masked"):
            return visible(token_text(model.tokenizer, index))
        if model.head == "discriminator":
            return "replaced"
        return model.label(index) if model.head in ("sequence", "token") else ("start", "end")[index]

    def _number(self, contents: _Contents) -> None:
        """One number of a result, as arithmetic."""
        (number,), (index,) = self.place.ops, self.place.numbers
        self.values.prefetch([*self.op.inputs, number])
        contents.arithmetic.explain(number, index)
        contents.formula = self._what(self.place)
        for source in self.op.inputs:
            self._strip(contents, self._input_name(source), source)
        if self.op.site is not None:
            self._compare(contents, float(self.values.value(number).reshape(-1)[index]))
        contents.python = self._read_line(number, index)

    def _compare(self, contents: _Contents, engine: float) -> None:
        """The engine's own number, and a note where the one computed here is another."""
        contents.result = engine
        computed = contents.arithmetic.result
        if not math.isclose(computed, engine, rel_tol=CLOSE, abs_tol=CLOSE):
            contents.notes.append(
                f"The engine has {engine:.4f} here: its weights and sums are rounded otherwise than in this arithmetic."
            )

    # Heads and scores -------------------------------------------------------------------------------------------

    def _head(self, contents: _Contents) -> None:
        """One head: its query, the tokens that it may look at, and its output."""
        (number,), (head,) = self.place.ops, self.place.numbers
        attention = self._head_scores(number, head)
        weights = self.values.pattern(number)[head]
        contents.keys = self._attended(number, attention, weights)
        if attention.sink > -math.inf:
            contents.sink = HeadSink(attention.sink, float(sink_weights(weights)))
        contents.strips = [
            NamedStrip("query", self.paths.ops[self.op.inputs[0]].site, make_strip(attention.query)),
            NamedStrip("attention weights", self.paths.ops[number].inner_site("pattern"), make_strip(weights, DETAIL_CELLS)),
            NamedStrip("output: the values, mixed by these weights", self.paths.ops[number].inner_site("heads"), make_strip(
                self.values.value(number).reshape(len(self.values.pattern(number)), -1)[head])),
        ]  # fmt: skip
        contents.formula = self._what(self.place)
        contents.notes += self._attend(number).notes(self.paths.ops)
        if self._groups(number) != len(self.values.pattern(number)):
            contents.notes.insert(1, f"This head uses key and value head {attention.key_head}.")
        contents.python = [f'reading.at("{self.paths.ops[number].inner_site("pattern")}")[{head}, {self.position}]']

    def _attend(self, number: int) -> Attend:
        op = self.paths.ops[number]
        assert isinstance(op, Attend)
        return op

    def _head_scores(self, number: int, head: int) -> HeadScores:
        op = self._attend(number)
        self.values.prefetch([op.inputs[0], number], patterns=[number])
        return op.scores(self.values, number, head)

    def _groups(self, number: int) -> int:
        return self.paths.ops[self.paths.ops[number].inputs[1]].head_shape[0]

    def _attended(self, number: int, attention: HeadScores, weights: Floats) -> list[AttendedKey]:
        tokens, path = self._keys(number), self.place.path
        listed: Any = range(len(weights))
        if len(weights) > MAX_KEYS:
            listed = sorted(np.argsort(-weights, kind="stable")[:MAX_KEYS].tolist())
        return [
            AttendedKey(f"{path}.{key}", key, tokens[key].text, bool(attention.visible[key]), float(attention.scores[key]),
                        float(weights[key]))
            for key in listed
        ]  # fmt: skip

    def _score(self, contents: _Contents) -> None:
        """One query and one key: their product, and the weight that it became."""
        (number,), (head, key) = self.place.ops, self.place.numbers
        attention = self._head_scores(number, head)
        attention.explain(contents.arithmetic, key)
        query, keys = (self.paths.ops[source].site for source in self.op.inputs[:2])
        own, other = (visible(token.text) for token in (self.tokens[self.position], self._keys(number)[key]))
        contents.formula = f"The query of “{own}” (position {self.position}) and the key of “{other}” (position {key})."
        contents.strips = [
            NamedStrip("q", query, make_strip(attention.query, DETAIL_CELLS)),
            NamedStrip("k", keys, make_strip(attention.keys[key], DETAIL_CELLS)),
        ]
        contents.notes += self._attend(number).notes(self.paths.ops)
        if self._groups(number) != len(self.values.pattern(number)):
            contents.notes.insert(1, f"Query head {head} uses key head {attention.key_head}.")
        self._compare(contents, float(self.values.pattern(number)[head, key]))
        contents.python = [
            f'q = reading.at("{query}")[{head}, {self.position}]',
            f'k = reading.at("{keys}")[{attention.key_head}, {key}]',
            f"q @ k * {self.op.options['scale']!r}",
            f'reading.at("{self.paths.ops[number].inner_site("pattern")}")[{head}, {self.position}, {key}]',
        ]

    # Words ------------------------------------------------------------------------------------------------------

    def _what(self, place: Place) -> str:
        """What a level computes, in a line."""
        op = self.paths.ops[place.ops[0]]
        blueprint = self.reading.model.blueprint
        match place.kind:
            case "model":
                encoder = blueprint.encoder_blocks
                stacks = (
                    f"{encoder} encoder blocks, whose numbers stand at the source's tokens, and then " if encoder else ""
                )
                stream = "each adding to the residual stream, which is shown as it leaves each of them"
                return f"{stacks}{blueprint.blocks} blocks, {stream}."
            case "block":
                kinds = [
                    GROUPS[word.rpartition(".")[2]]
                    for word in dict.fromkeys(self.paths.groups[n] for n in place.ops)
                    if word
                ]
                return ", then ".join(kinds)
            case "group":
                word = place.path.removeprefix(scope(op))
                return {
                    "attention": "each token takes from the tokens that it looks at",
                    "cross": "each token takes from the source's tokens",
                }.get(word, "each token by itself, through many neurons")
            case "head" | "score":
                return self.op.formula()
            case _:
                return op.formula()


@dataclass
class _Contents:
    """What a level shows, as it is put together."""

    arithmetic: Arithmetic
    formula: str = ""
    notes: list[str] = field(default_factory=list)
    parts: list[LevelPart] = field(default_factory=list)
    heads: list[HeadRow] = field(default_factory=list)
    keys: list[AttendedKey] = field(default_factory=list)
    strips: list[NamedStrip] = field(default_factory=list)
    numbers: list[NumberLink] = field(default_factory=list)
    result: float | None = None
    python: list[str] = field(default_factory=list)
    sink: HeadSink | None = None


def make_strip(vector: Floats, most: int = OVERVIEW_CELLS) -> Strip:
    """A vector as at most so many cells; where several numbers share a cell, it shows the one furthest from zero."""
    flat = vector.reshape(-1)
    group = -(-flat.size // most)
    padded = np.zeros(-(-flat.size // group) * group, np.float32)
    padded[: flat.size] = flat
    rows = padded.reshape(-1, group)
    cells = rows[np.arange(len(rows)), np.abs(rows).argmax(-1)]
    root = float(np.sqrt(np.square(flat, dtype=np.float64).mean()))
    return Strip(flat.size, group, tuple(cells.tolist()), root)
