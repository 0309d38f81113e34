"""Who wrote this score: what each block and each head added to it, directly.

A score is a product with the stream's last state, and the stream is a sum of what was added to it on the way. With each norm
held at what it did to this text, all of that is linear, so the score is the sum of one number for each addition, and nothing
is left over but rounding. It is the direct way only: what a head wrote for later heads to read is counted where they write.

The blueprint says which way the stream goes, so there is nothing here about any family. The walk is from the score
backwards, with a vector `g` that says what each direction of the stream is worth to the score.

Shapes: g (hidden,); a value at one position (hidden,), or (heads, head_size).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from glassformer.blueprints import Op
from glassformer.candidates import log_softmax
from glassformer.errors import InputError
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.text.pieces import shown_bytes
from glassformer.views.attribution import Attribution, Share
from glassformer.views.tokens import find_token


def attribution(
    reading: Activations, position: int | str = -1, token: int | str | None = None, against: int | str | None = None
) -> Attribution:
    """What the model's parts added to one token's score at one position: the best one's, unless another is named.

    `against`: another token; then it is what they added to the one's lead over the other, and what both got falls away.
    """
    model = reading.model
    if not model.writes:
        raise InputError(f"{model.name} does not score the next token, so its parts have no share in one.")
    at = find_token(position, [one.text for one in reading.tokens])
    walk = Walk(reading, at)
    wanted = scored_token(model, token, walk.scores)
    other = None if against is None else scored_token(model, against, walk.scores)
    if other == wanted:
        raise InputError(f"a token has no lead over itself. Hold {spelt(model, wanted)!r} against another one.")
    walk.back(wanted, other)
    score = float(walk.scores[wanted] - (0 if other is None else walk.scores[other]))
    walk.add("biases", None, walk.constant)
    walk.add("rounding", None, score - sum(part.value for part in walk.parts))
    text, beaten = spelt(model, wanted), None if other is None else spelt(model, other)
    chance, rank = float(np.exp(log_softmax(walk.scores)[wanted])), int((walk.scores > walk.scores[wanted]).sum()) + 1
    told = (wanted, text, score, chance, rank, beaten)
    return Attribution(model.name, at, reading.tokens[at].text, *told, tuple(walk.parts), tuple(walk.heads))


def spelt(model: ModelLike, token: int) -> str:
    """A token as it reads; half a character as its bytes."""
    return shown_bytes(model.tokenizer.token_bytes(token))


def scored_token(model: ModelLike, token: int | str | None, scores: Floats) -> int:
    """The id of a token that somebody names, by its text or its number (as text: #57); the best one, if nobody does."""
    if token is None:
        return int(scores.argmax())
    if isinstance(token, str):
        for text in (token, token.replace("␣", " ")):  # as pictures show a blank
            ids = model.tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == 1:
                return int(ids[0])
        if (number := token.removeprefix("#")).isdecimal():
            return scored_token(model, int(number), scores)
        raise InputError(f"{token!r} is {len(ids)} tokens, not one. Name one, or give its id, as in #57.")
    if not 0 <= token < scores.size:
        raise InputError(f"token id {token} is outside the vocabulary of {scores.size}.")
    return token


@dataclass
class Walk:
    """The stream at one position, and the way back through it."""

    reading: Activations
    position: int
    parts: list[Share] = field(default_factory=list)
    heads: list[Share] = field(default_factory=list)
    constant: float = 0.0  # what biases add

    def __post_init__(self) -> None:
        model = self.reading.model
        self.ops = model.blueprint.ops
        names = ("embedding", "middle", "crossed", "residual", "update", "attention.heads", "cross.heads", "final")
        sites = [site for site in model.blueprint.sites if site.endswith(names) and not site.startswith("encoder.")]
        self.values: Mapping[str, Floats] = _values(self.reading, sites, self.position)
        last = self.values[f"blocks.{model.blueprint.blocks - 1}.residual"]
        (self.scores,) = model.unembed(last[None])

    def add(self, name: str, block: int | None, value: float) -> None:
        self.parts.append(Share(name, block, None, value))

    def back(self, token: int, other: int | None = None) -> None:
        """From a token's score, or its lead over another's, to the first state, noting what each addition was worth."""
        head = self.ops[-1]
        g = np.zeros_like(self.values["final"])
        for sign, one in ((1, token), (-1, other)):
            if one is None:
                continue
            row = self._weight(head, 0, one)
            assert row is not None
            g += row * np.float32(sign * head.options.get("scale", 1.0))
            for bias in head.weights[1:]:
                found = self.reading.model.weight(bias.name)
                self.constant += 0.0 if found is None else sign * float(found.reshape(-1)[one])
        at = head.reads[0]
        while (op := self.ops[at]).site != "embedding":
            if op.kind == "norm":
                g = self._unnorm(op, g)
            at = op.reads[0]
            if op.kind == "add":
                self._update(op.reads[1], g)
        self.add("embedding", None, float(g @ self.values["embedding"]))
        self.parts.reverse()
        self.heads.reverse()

    def _update(self, at: int, g: Floats) -> None:
        """What was added to the stream here; of attention, head by head too."""
        op = self.ops[at]
        value = float(g @ self._value(at))
        site = (op.site or "").split(".")
        name = site[2] if len(site) > 3 else op.kind
        self.add(name, op.block, value)
        if name in ("attention", "cross"):
            self._heads(at, g, name)

    def _heads(self, at: int, g: Floats, name: str) -> None:
        op = self.ops[at]
        while op.kind == "norm":  # behind the product, in some families
            g, at = self._unnorm(op, g, keep=False), op.reads[0]
            op = self.ops[at]
        matrix = self._weight(op, 0)
        assert matrix is not None
        worth = matrix @ g if op.options.get("columns") else g @ matrix
        outputs = self.values[f"blocks.{op.block}.{name}.heads"]
        values = (worth.reshape(outputs.shape) * outputs).sum(1)
        self.heads += [Share(name, op.block, head, float(values[head])) for head in reversed(range(len(values)))]

    def _unnorm(self, op: Op, g: Floats, keep: bool = True) -> Floats:
        """The way back through a norm that is held at what it did here."""
        x = self._value(op.reads[0]).astype(np.float64)
        weight, bias = self._weight(op, 0), self._weight(op, 1)
        if bias is not None and keep:
            self.constant += float(g @ bias)
        scaled = g if weight is None else g * (weight + np.float32(op.options.get("offset", 0)))
        if op.options["how"] == "rms":
            found = scaled / np.sqrt((x * x).mean() + op.options["eps"])
        else:
            found = (scaled - scaled.mean()) / np.sqrt(x.var() + op.options["eps"])
        return np.asarray(found, np.float32)

    def _value(self, at: int) -> Floats:
        """What an op gave at the position: as it was seen, or made again from what was."""
        op = self.ops[at]
        if op.site is not None and op.site in self.values:
            return self.values[op.site]
        if op.kind == "add":
            first, second = op.reads
            return self._value(first) + self._value(second)
        if op.kind == "see":
            return self._value(op.reads[0])
        assert op.kind == "linear"  # of heads, before a norm
        (source,) = op.reads
        (site,) = (site for site in self.ops[source].beside if site.endswith(".heads"))
        matrix, bias = self._weight(op, 0), self._weight(op, 1)
        assert matrix is not None
        joined = self.values[site].reshape(-1)
        found: Floats = joined @ matrix if op.options.get("columns") else matrix @ joined
        return found if bias is None else found + bias

    def _weight(self, op: Op, number: int, row: int | None = None) -> Floats | None:
        return self.reading.model.weight(op.weights[number].name, row) if number < len(op.weights) else None


def _values(reading: Activations, sites: list[str], position: int) -> dict[str, Floats]:
    """What lies at some sites at one position."""
    found: dict[str, Floats] = {}
    for chunk in Activations(reading.model, reading.ids[: position + 1], reading.source).chunks(*sites):
        inside = position - chunk.start
        if 0 <= inside < chunk.count:
            found |= {site: (value[:, inside] if value.ndim == 3 else value[inside]) for site, value in chunk.sites.items()}
    return found
