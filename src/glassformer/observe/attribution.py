"""Direct logit attribution: what each block and each head added to a token's score.

A score is a product with the stream's last state, and the stream is a sum of what was added to it on the way. With each norm
frozen at what it did to this text (and a soft cap on the scores, where there is one), all of that is linear, so the score is
the sum of one number for each addition, and nothing is left over but rounding. It is the direct path only: what a head wrote
for later heads to read is counted where they write.

The blueprint says how the stream runs, so there is nothing here about any family. The walk is from the score backwards, with
a vector `g` that says what each direction of the stream is worth to the score.

Shapes: g (hidden,); a value at one position (hidden,), or (heads, head_size).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from glassformer.blueprints import Op
from glassformer.candidates import log_softmax
from glassformer.errors import InputError
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.observe.tokens import token_text
from glassformer.views.attribution import Attribution, Contribution
from glassformer.views.tokens import find_token


def attribution(
    reading: Activations, position: int | str = -1, token: int | str | None = None, against: int | str | None = None
) -> Attribution:
    """What the model's parts added to one token's score at one position: the best one's, unless another is named.

    `against`: another token; then it is what they added to the one's lead over the other, and what both got cancels out.
    """
    model, tokenizer = reading.model, reading.model.tokenizer
    if not model.writes:
        raise InputError(f"{model.name} does not score the next token, so its parts have no share in one.")
    at = find_token(position, reading.texts)
    walk = BackwardWalk(reading, at)
    scores = walk.scores
    target = resolve_token_id(model, token, scores)
    rival = None if against is None else resolve_token_id(model, against, scores)
    text, rival_text = token_text(tokenizer, target), None if rival is None else token_text(tokenizer, rival)
    if rival == target:
        raise InputError(f"a token has no lead over itself. Hold {text!r} against another one.")
    walk.run(target, rival)
    score = float(scores[target] - (0 if rival is None else scores[rival]))
    walk.add("biases", None, walk.constant)
    walk.add("rounding", None, score - sum(part.value for part in walk.parts))
    probability, rank = float(np.exp(log_softmax(scores)[target])), int((scores > scores[target]).sum()) + 1
    return Attribution(
        model.name, at, reading.texts[at], target, text, score, probability, rank, rival_text, tuple(walk.parts),
        tuple(walk.heads),
    )  # fmt: skip


def resolve_token_id(model: ModelLike, token: int | str | None, scores: Floats) -> int:
    """The id of a token named by its text or its number (as text: #57); None is the best one."""
    if token is None:
        return int(scores.argmax())
    if isinstance(token, str):
        for text in (token, token.replace("␣", " ")):  # as pictures show a blank
            ids = model.tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == 1:
                return int(ids[0])
        if (number := token.removeprefix("#")).isdecimal():
            return resolve_token_id(model, int(number), scores)
        raise InputError(f"{token!r} is {len(ids)} tokens, not one. Name one, or give its id, as in #57.")
    if not 0 <= token < scores.size:
        raise InputError(f"token id {token} is outside the vocabulary of {scores.size}.")
    return token


@dataclass
class BackwardWalk:
    """The stream at one position, walked from the score back to the embedding."""

    reading: Activations
    position: int
    parts: list[Contribution] = field(default_factory=list)
    heads: list[Contribution] = field(default_factory=list)
    constant: float = 0.0  # what biases add

    def __post_init__(self) -> None:
        model = self.reading.model
        self.ops = model.blueprint.ops
        names = ("embedding", "middle", "crossed", "residual", "update", "attention.heads", "cross.heads", "final")
        sites = [site for site in model.blueprint.sites if site.endswith(names) and not site.startswith("encoder.")]
        values = self.reading.values_at([self.position], *sites)
        self.values = {site: value[:, 0] if value.ndim == 3 else value[0] for site, value in values.items()}
        last = self.values[f"blocks.{model.blueprint.blocks - 1}.residual"]
        (self.scores,) = model.unembed(last[None])

    def add(self, name: str, block: int | None, value: float) -> None:
        self.parts.append(Contribution(name, block, None, value))

    def run(self, target: int, rival: int | None = None) -> None:
        """From a token's score, or its lead over another's, to the embedding, noting what each addition was worth."""
        head = self.ops[-1]
        g = np.zeros_like(self.values["final"])
        for sign, token in ((1, target), (-1, rival)):
            if token is None:
                continue
            row = self._weight(head, 0, token)
            assert row is not None
            factor = sign * head.options.get("scale", 1.0) * self._cap_factor(head, token)
            g += row * np.float32(factor)
            for number in range(1, len(head.weights)):
                bias = self._weight(head, number)
                self.constant += 0.0 if bias is None else factor * float(bias.reshape(-1)[token])
        at = head.inputs[0]
        while (op := self.ops[at]).site != "embedding":
            if op.kind == "norm":
                g = self._through_norm(op, g)
            at = op.inputs[0]
            if op.kind == "add":
                self._update(op.inputs[1], g)
        self.add("embedding", None, float(g @ self.values["embedding"]))
        self.parts.reverse()
        self.heads.reverse()

    def _cap_factor(self, head: Op, token: int) -> float:
        """What a soft cap multiplied a token's score by; it is frozen, as norms are."""
        cap, score = head.options.get("softcap"), float(self.scores[token])
        if cap is None or not score:
            return 1.0
        share = np.clip(score / cap, -1 + 1e-7, 1 - 1e-7)
        return float(share / np.arctanh(share))

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
        while op.kind == "norm":  # after the product, in some families
            g, at = self._through_norm(op, g, biased=False), op.inputs[0]
            op = self.ops[at]
        worth = self._through_products(at, g)
        outputs = self.values[f"blocks.{op.block}.{name}.heads"]
        values = (worth.reshape(outputs.shape) * outputs).sum(1)
        self.heads += [Contribution(name, op.block, head, float(values[head])) for head in reversed(range(len(values)))]

    def _through_products(self, at: int, g: Floats) -> Floats:
        """Back through a product to the heads that it joins; through both of its parts where an adapter stands beside it."""
        op = self.ops[at]
        if op.kind == "add":
            return np.asarray(sum(self._through_products(part, g) for part in op.inputs), np.float32)
        matrix = self._weight(op, 0)
        assert matrix is not None
        g = (matrix @ g if op.options.get("columns") else g @ matrix) * np.float32(op.options["scale"])
        (source,) = op.inputs
        return self._through_products(source, g) if self.ops[source].kind == "linear" else g

    def _through_norm(self, op: Op, g: Floats, biased: bool = True) -> Floats:
        """Back through a norm that is frozen at what it did here; `biased`: add what its bias is worth to the constant."""
        x = self._value(op.inputs[0]).astype(np.float64)
        weight, bias = self._weight(op, 0), self._weight(op, 1)
        if bias is not None and biased:
            self.constant += float(g @ bias)
        scaled = g if weight is None else g * (weight + np.float32(op.options.get("offset", 0)))
        if op.options["how"] == "rms":
            g = scaled / np.sqrt((x * x).mean() + op.options["eps"])
        else:
            g = (scaled - scaled.mean()) / np.sqrt(x.var() + op.options["eps"])
        return np.asarray(g, np.float32)

    def _value(self, at: int) -> Floats:
        """An op's output at the position: as it was read, or computed from what was."""
        op = self.ops[at]
        if op.site is not None and op.site in self.values:
            return self.values[op.site]
        if op.kind == "add":
            first, second = op.inputs
            return self._value(first) + self._value(second)
        if op.kind == "identity":
            return self._value(op.inputs[0])
        assert op.kind == "linear"  # of heads, before a norm
        (source,) = op.inputs
        if self.ops[source].kind == "linear":  # an adapter's
            update = self._weight(op, 0)
            assert update is not None
            return np.asarray(update @ self._value(source), np.float32)
        (site,) = (site for site in self.ops[source].inner_sites if site.endswith(".heads"))
        matrix, bias = self._weight(op, 0), self._weight(op, 1)
        assert matrix is not None
        joined = self.values[site].reshape(-1)
        product: Floats = joined @ matrix if op.options.get("columns") else matrix @ joined
        return (product if bias is None else product + bias) * np.float32(op.options["scale"])

    def _weight(self, op: Op, number: int, row: int | None = None) -> Floats | None:
        return self.reading.model.weight(op.weights[number].name, row) if number < len(op.weights) else None
