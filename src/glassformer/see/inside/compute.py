"""One level of a model with a text's numbers, from the whole model down to one multiplication.

What there is to see is read off the blueprint, and its numbers in a pass of their own, so every family is shown by the same
code. One number is explained as the products and sums that gave it; each op explains its own (`ops/`). That arithmetic is
computed here, from values that the engine gave, so a result may differ from the engine's in its last digits, and with packed
weights by more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from glassformer.blueprints import Op
from glassformer.ground.operations import about, operation
from glassformer.ground.sites import axes
from glassformer.ops.op import TokenContext
from glassformer.ops.token_mixer import HeadReads, TokenMixer
from glassformer.page.format import visible
from glassformer.see.activations import Activations
from glassformer.see.attention import sink_sites, sink_weights
from glassformer.see.inside.paths import GROUPS, LevelPaths, Place, scope, width
from glassformer.see.inside.view import (
    ArithmeticStep,
    AttendedKey,
    Crumb,
    DotProduct,
    HeadRow,
    HeadSink,
    Inside,
    LevelPart,
    NamedStrip,
    NumberLink,
    ProductTerm,
    Strip,
)
from glassformer.see.tokens import Token, find_token, token_text
from glassformer.see.view import Floats

OVERVIEW_CELLS = 256  # of a strip among others
DETAIL_CELLS = 4096  # of one that is looked at
MAX_KEYS = 512  # tokens of a head that are listed: those with the most weight
MAX_NUMBERS = 12  # of a vector, to open
CLOSE = 1e-3  # how far a number computed here may be from the engine's, in relation, before it is said


@dataclass
class OpValues:
    """The ops' results at one position: of the text, or of the source if the ops are the encoder's."""

    reading: Activations
    position: int
    _read: dict[str, Floats] = field(default_factory=dict)
    _computed: dict[int, Floats] = field(default_factory=dict)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return self.reading.model.blueprint.ops

    @property
    def config(self) -> Any:
        return self.reading.model.config

    def token(self, op: Op) -> TokenContext:
        """The position, as an op needs to know it."""
        ids = (self.reading.source or ()) if op.stack else self.reading.ids
        token_id = ids[self.position] if self.position < len(ids) else 0
        return TokenContext(self.reading.model, self.position, len(self.reading), token_id, self._everywhere)

    def prefetch(self, numbers: Iterable[int], patterns: Iterable[int] = ()) -> None:
        """Read whatever these ops' values need, and the weights of these attentions, in as few passes as there can be."""
        sites = {site for op_index in numbers for site in self._sites(op_index)}
        self._read_sites(sites | {self.ops[op_index].inner_site("pattern") for op_index in patterns})

    def _read_sites(self, sites: set[str]) -> None:
        sites = sites - self._read.keys()
        followed = [site for site in sites if self._follows_the_text(site)]
        if followed:
            for site, value in self.reading.values_at([self.position], *followed).items():
                self._read[site] = np.asarray(value.take(0, axes(site)[1:].index("length")))
        if rest := sites - self._read.keys():
            for site, value in self.reading.values(*rest).items():
                axis = next(n for n, name in enumerate(axes(site)[1:]) if name in ("length", "source"))
                self._read[site] = np.asarray(value.take(min(self.position, value.shape[axis] - 1), axis))

    def value(self, op_index: int) -> Floats:
        """An op's result at the position."""
        self.prefetch([op_index])
        return self._value(op_index)

    def pattern(self, op_index: int) -> Floats:
        """An attention's weights at the position: (heads, keys)."""
        site = self.ops[op_index].inner_site("pattern")
        self._read_sites({site})
        return self._read[site]

    def keys(self, op_index: int) -> Floats:
        """What an attention compares its queries with: (groups, keys, head_size)."""
        return self._everywhere(self.ops[op_index].inputs[1])

    def _everywhere(self, op_index: int) -> Floats:
        """An op's result at all positions."""
        op = self.ops[op_index]
        if op.site is not None:
            return self.reading.at(op.site)
        values = [self._everywhere(source) for source in op.inputs]
        return np.asarray(op.value(values, self.token(op)), np.float32)

    def _follows_the_text(self, site: str) -> bool:
        """Whether it has a value for each of the text's tokens; others are of the source, or of the text as a whole."""
        return "length" in self.reading.model.blueprint.sites[site]

    def _sites(self, op_index: int) -> set[str]:
        """The sites that an op's value is read or computed from."""
        op = self.ops[op_index]
        if self._is_unembedded(op):
            return {self._last_residual}
        if op.read_site is not None:
            return {op.read_site}
        return {site for source in op.inputs for site in self._sites(source)}

    def _is_unembedded(self, op: Op) -> bool:
        """Whether its result is what the model makes of its last residual: scores of the next token."""
        model = self.reading.model
        return op.site == "scores" and model.writes and not model.blueprint.mixes_streams

    @property
    def _last_residual(self) -> str:
        return f"blocks.{self.reading.model.blueprint.blocks - 1}.residual"

    def _value(self, op_index: int) -> Floats:
        op = self.ops[op_index]
        if op_index in self._computed:
            return self._computed[op_index]
        if self._is_unembedded(op):
            (self._computed[op_index],) = self.reading.model.unembed(self._read[self._last_residual][None])
            return self._computed[op_index]
        if op.read_site is not None:
            value = self._read[op.read_site]
            return value if op.site is not None else value.reshape(-1)  # heads, which its result has joined
        inputs = [self._value(source) for source in op.inputs]
        self._computed[op_index] = np.asarray(op.value(inputs, self.token(op)), np.float32)
        return self._computed[op_index]


MAX_TERMS = 128  # of a dot product, listed one by one


@dataclass
class Arithmetic:
    """How one number came to be: dot products, then steps, of which the last is the number."""

    values: OpValues
    products: list[DotProduct] = field(default_factory=list)
    steps: list[ArithmeticStep] = field(default_factory=list)
    python: list[str] = field(default_factory=list)

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.values.ops

    @property
    def position(self) -> int:
        return self.values.position

    def token(self, op: Op) -> TokenContext:
        return self.values.token(op)

    def value(self, op: int) -> Floats:
        return self.values.value(op)

    def explain(self, op: int, index: int) -> float:
        """The arithmetic of one number of an op's result; `index` counts through the heads, if it has any."""
        self.values.prefetch(self.ops[op].inputs)
        self.ops[op].explain(self, index)
        return self.result

    def step(self, name: str, expression: str, value: float | np.floating[Any]) -> float:
        self.steps.append(ArithmeticStep(name, expression, float(value)))
        return float(value)

    def dot_product(self, name: str, left: tuple[str, Floats], right: tuple[str, Floats], every: bool = False) -> float:
        """All terms in order, or the largest of them and the sum of the others."""
        (left_name, a), (right_name, b) = left, right
        products = a.astype(np.float64) * b
        listed = np.arange(len(products))
        if len(products) > MAX_TERMS and not every:
            listed = np.argsort(-np.abs(products), kind="stable")[:MAX_TERMS]
        terms = tuple(ProductTerm(int(i), float(a[i]), float(b[i]), float(products[i])) for i in listed)
        total = float(products.sum())
        others = len(products) - len(listed)
        rest = total - float(products[listed].sum()) if others else 0.0
        self.products.append(DotProduct(name, left_name, right_name, terms, others, rest, total))
        return total

    def add_python(self, line: str) -> None:
        self.python.append(line)

    @property
    def result(self) -> float:
        return self.steps[-1].value


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
        home = {op_index: index for index, inner in enumerate(places) for op_index in inner.ops}
        outside = sorted({source for op_index in home for source in self.paths.ops[op_index].inputs if source not in home})
        shown = [op_index for op_index in (*outside, *(inner.ops[-1] for inner in places)) if self._has_value(op_index)]
        attends = [op_index for op_index in self.place.ops if isinstance(self.paths.ops[op_index], TokenMixer)]
        attend = attends[0] if self.place.kind == "group" and attends else None
        self.values.prefetch(shown, patterns=[] if attend is None else [attend])
        for op_index in outside:
            op = self.paths.ops[op_index]
            name = "encoder's states" if self._from_encoder(op) else op.input_name
            contents.parts.append(self._part(None, name, "input", "as it comes in", (), op_index))
        for inner in places:
            sources = {source for op_index in inner.ops for source in self.paths.ops[op_index].inputs}
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
        self, path: str | None, name: str, kind: str, what: str, inputs: tuple[int, ...], op_index: int,
        ops: tuple[int, ...] = (),
    ) -> LevelPart:  # fmt: skip
        op = self.paths.ops[op_index]
        strip = make_strip(self.values.value(op_index)) if self._has_value(op_index) else None
        return LevelPart(
            path, name, kind, what, inputs, self._shape(op), op.site if kind != "input" else None,
            self.paths.parameters(ops), strip,
        )  # fmt: skip

    def _has_value(self, op_index: int) -> bool:
        """Whether it has a vector at this position: an encoder's have theirs at positions of the source."""
        op = self.paths.ops[op_index]
        return self._from_encoder(op) == self.in_source and op.has_value_at_token

    def _from_encoder(self, op: Op) -> bool:
        """Whether its result has a vector for each token of the source; a cross-attention's keys and values have."""
        return bool(op.stack) or "source" in op.shape

    def _shape(self, op: Op) -> tuple[int, ...]:
        text, source = len(self.reading), len(self.reading.source or ())
        sizes = {"batch": 1, "length": text, "keys": text, "source": source}
        return tuple(sizes[size] if isinstance(size, str) else size for size in op.shape)

    def _heads(self, contents: _Contents, op_index: int) -> None:
        """Each head, and what it looks at."""
        pattern, groups, keys = self.values.pattern(op_index), self._groups(op_index), self._keys(op_index)
        has_sink = self.paths.ops[op_index].inner_site("pattern") in sink_sites(self.reading.model.blueprint)
        for head, weights in enumerate(pattern):
            best = int(weights.argmax())
            contents.heads.append(HeadRow(
                f"{self.paths.op_paths[op_index]}.{head}", head, head * groups // len(pattern), make_strip(weights), best,
                keys[best].text, float(weights[best]), float(sink_weights(weights)) if has_sink else None,
            ))  # fmt: skip
        contents.notes += self._attend(op_index).notes(self.paths.ops)
        contents.python.append(f'reading.at("{self.paths.ops[op_index].inner_site("pattern")}")[:, {self.position}]')

    def _keys(self, op_index: int) -> Sequence[Token]:
        """The tokens that an attention looks at."""
        op = self._attend(op_index)
        return self.reading.source_tokens if op.cross or op.stack else self.reading.tokens

    # Levels of one operation ------------------------------------------------------------------------------------

    def _operation(self, contents: _Contents) -> None:
        """An operation: what goes in, what comes out, and the numbers that are furthest from zero."""
        (op_index,) = self.place.ops
        op = self.op
        self.values.prefetch([*op.inputs, op_index])
        for source in op.inputs:
            self._strip(contents, self._input_name(source), source)
        result = self._strip(contents, "result", op_index)
        contents.formula = self._what(self.place)
        order = np.argsort(-result if op.site == "scores" else -np.abs(result), kind="stable")[:MAX_NUMBERS]
        contents.numbers = [
            NumberLink(f"{self.place.path}.{index}", self._output_label(int(index)), float(result[index])) for index in order
        ]
        contents.notes += [f"weights: {weight.name}, {'×'.join(map(str, weight.shape))}" for weight in op.weights]
        contents.python = self._read_line(op_index)

    def _strip(self, contents: _Contents, name: str, op_index: int) -> Floats:
        value = self.values.value(op_index)
        contents.strips.append(NamedStrip(name, self.paths.ops[op_index].site, make_strip(value, DETAIL_CELLS)))
        return value.reshape(-1)

    def _input_name(self, source: int) -> str:
        return f"input: {self.paths.op_paths[source]}"

    def _read_line(self, op_index: int, index: int | None = None) -> list[str]:
        """The Python that reads an op's result at the position, or one number of it."""
        op = self.paths.ops[op_index]
        if op.site is None or op.site == "scores":
            return []
        heads = len(op.shape) == 4
        if index is None:
            return [f'reading.at("{op.site}")[{":, " if heads else ""}{self.position}]']
        head, index = divmod(index, width(op) // self._shape(op)[1]) if heads else (0, index)
        return [f'reading.at("{op.site}")[{f"{head}, " if heads else ""}{self.position}, {index}]']

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
        (op_index,), (index,) = self.place.ops, self.place.numbers
        self.values.prefetch([*self.op.inputs, op_index])
        contents.arithmetic.explain(op_index, index)
        contents.formula = self._what(self.place)
        for source in self.op.inputs:
            self._strip(contents, self._input_name(source), source)
        if self.op.site is not None:
            self._compare(contents, float(self.values.value(op_index).reshape(-1)[index]))
        contents.python = self._read_line(op_index, index)

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
        (op_index,), (head,) = self.place.ops, self.place.numbers
        attention = self._head_scores(op_index, head)
        op, pattern = self._attend(op_index), self.values.pattern(op_index)
        weights = pattern[head]
        contents.keys = self._attended(op_index, attention, weights)
        if attention.sink > -math.inf:
            contents.sink = HeadSink(attention.sink, float(sink_weights(weights)))
        contents.strips = [
            NamedStrip("query", self.paths.ops[self.op.inputs[0]].site, make_strip(attention.query)),
            NamedStrip("attention weights", op.inner_site("pattern"), make_strip(weights, DETAIL_CELLS)),
            NamedStrip("output: the values, mixed by these weights", op.inner_site("heads"), make_strip(
                self.values.value(op_index).reshape(len(pattern), -1)[head])),
        ]  # fmt: skip
        contents.formula = self._what(self.place)
        contents.notes += op.notes(self.paths.ops)
        if self._groups(op_index) != len(pattern):
            contents.notes.insert(1, f"This head uses key and value head {attention.key_head}.")
        contents.python = [f'reading.at("{op.inner_site("pattern")}")[{head}, {self.position}]']

    def _attend(self, op_index: int) -> TokenMixer:
        op = self.paths.ops[op_index]
        assert isinstance(op, TokenMixer)
        return op

    def _head_scores(self, op_index: int, head: int) -> HeadReads:
        op = self._attend(op_index)
        self.values.prefetch([op.inputs[0], op_index], patterns=[op_index])
        return op.scores(self.values, op_index, head)

    def _groups(self, op_index: int) -> int:
        return self.paths.ops[self.paths.ops[op_index].inputs[1]].head_shape[0]

    def _attended(self, op_index: int, attention: HeadReads, weights: Floats) -> list[AttendedKey]:
        tokens, path = self._keys(op_index), self.place.path
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
        (op_index,), (head, key) = self.place.ops, self.place.numbers
        attention = self._head_scores(op_index, head)
        attention.explain(contents.arithmetic, key)
        query, keys = (self.paths.ops[source].site for source in self.op.inputs[:2])
        query_token, key_token = (visible(token.text) for token in (self.tokens[self.position], self._keys(op_index)[key]))
        contents.formula = (
            f"The query of “{query_token}” (position {self.position}) and the key of “{key_token}” (position {key})."
        )
        contents.strips = [
            NamedStrip("q", query, make_strip(attention.query, DETAIL_CELLS)),
            NamedStrip("k", keys, make_strip(attention.keys[key], DETAIL_CELLS)),
        ]
        contents.notes += self._attend(op_index).notes(self.paths.ops)
        if self._groups(op_index) != len(self.values.pattern(op_index)):
            contents.notes.insert(1, f"Query head {head} uses key head {attention.key_head}.")
        self._compare(contents, float(self.values.pattern(op_index)[head, key]))
        product = [
            f'q = reading.at("{query}")[{head}, {self.position}]',
            f'k = reading.at("{keys}")[{attention.key_head}, {key}]',
            f"q @ k * {self.op.options['scale']!r}",
        ]
        weight = f'reading.at("{self.paths.ops[op_index].inner_site("pattern")}")[{head}, {self.position}, {key}]'
        contents.python = [*(product if self.op.caches_keys else ()), weight]

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
                    "recurrent": "each token is written to a state, which is read again",
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
    """A vector as `most` cells at most; where several numbers share a cell, it shows the one furthest from zero."""
    flat = vector.reshape(-1)
    group = -(-flat.size // most)
    padded = np.zeros(-(-flat.size // group) * group, np.float32)
    padded[: flat.size] = flat
    rows = padded.reshape(-1, group)
    cells = rows[np.arange(len(rows)), np.abs(rows).argmax(-1)]
    root = float(np.sqrt(np.square(flat, dtype=np.float64).mean()))
    return Strip(flat.size, group, tuple(cells.tolist()), root)
