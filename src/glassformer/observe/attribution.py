"""Direct logit attribution: what each block and each head added to a token's score.

A score is a product with the stream's last state, and the stream is a sum of what was added to it on the way. With each norm
frozen at what it did to this text (and a soft cap on the scores, where there is one), all of that is linear, so the score is
the sum of one number for each addition, and nothing is left over but rounding. It is the direct path only: what a head wrote
for later heads to read is counted where they write.

What is explained, here and wherever a view asks why a token: its lead over the runner-up, the best of the other tokens,
unless another one is named. A model chooses by differences; a logit by itself is mostly what all tokens got alike, and the
part with the largest share in it may have spoken for the other token. The logit itself is to be had all the same, in two
conventions. Uncentred, it is as the model computes it. Centred, it is less the mean of all logits, as if the mean row had
been taken off the unembedding: softmax does not see the difference. The second is what TransformerLens shows by default
(`center_unembed`).

Shapes: scores (vocabulary,); g (hidden,).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from glassformer.blueprints import Op
from glassformer.ground.candidates import log_softmax
from glassformer.ground.errors import InputError, NotNumbers, SettingError, spell
from glassformer.ground.operations import about, operation
from glassformer.observe.activations import Activations
from glassformer.observe.linear_walk import Doubles, LinearWalk, part_name, stream_values
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.observe.tokens import token_text
from glassformer.observe.vocabulary_rows import vocabulary_blocks
from glassformer.views.attribution import Attribution, Contribution, ScoreMetric
from glassformer.views.tokens import find_token

PositionArgument = Annotated[int | str, about("After this token: its position or its text.", "--token", "-t")]
TokenArgument = Annotated[
    int | str | None,
    about(
        "The next token whose lead is followed; 'best': the top token.", "--wrote", metavar="TEXT", none_word="best",
        served_minimum=0,
    ),
]  # fmt: skip
AgainstArgument = Annotated[
    int | str | None, about("Its lead over this token; by default the runner-up.", metavar="TEXT", served_minimum=0)
]
MetricArgument = Annotated[ScoreMetric, about("lead, or the token's own logit.")]
CentredArgument = Annotated[bool, about("The logit less the mean over the vocabulary, as TransformerLens does.")]


@operation(route="attribution")
def attribution(
    reading: Activations,
    position: PositionArgument = -1,
    token: TokenArgument = None,
    against: AgainstArgument = None,
    *,
    metric: MetricArgument = "lead",
    centred: CentredArgument = False,
) -> Attribution:
    """Show what each block and head added to a token's lead: the best one's after a position, or another's."""
    at, model = position_to_attribute(reading, position), reading.model
    values = stream_values(reading, [at])
    target = score_target(model, final_scores(model, values, 0), token, against, metric=metric, centred=centred)
    walk = LinearWalk(model, values)
    row = walk.start(model.blueprint.ops[-1].inputs[0], 0, target.g)
    parts, heads = list[Contribution](), list[Contribution]()
    for arrival in walk.arrivals():
        op = walk.ops[arrival.number]
        if arrival.kind == "heads":
            shares = (arrival.g[0] * values[op.inner_site("heads")][0]).sum(-1).tolist()
            name = "cross" if op.options["cross"] else "attention"
            heads += [Contribution(name, op.block, head, shares[head]) for head in reversed(range(len(shares)))]
        else:
            name = "embedding" if arrival.kind == "embedding" else part_name(op)
            parts.append(Contribution(name, op.block, None, float(arrival.g[0] @ walk.value(arrival.number)[0])))
    parts.reverse()
    parts.append(Contribution("biases", None, None, target.constant + walk.constants[row]))
    parts.append(Contribution("rounding", None, None, target.score - sum(part.value for part in parts)))
    heads.reverse()
    for number, value in sorted(walk.update_constants[row].items()):
        heads.append(Contribution(f"{part_name(walk.ops[number])} bias", walk.ops[number].block, None, value))
    return Attribution(
        model.name, at, reading.texts[at], target.id, target.text, target.score, target.probability, target.rank,
        target.against, centred, tuple(parts), tuple(heads),
    )  # fmt: skip


def position_to_attribute(reading: Activations, position: int | str) -> int:
    """The position's number; refused where nothing is scored."""
    if not reading.model.writes:
        raise InputError(f"{reading.model.name} does not score the next token, so its parts have no share in one.")
    return find_token(position, reading.texts)


def final_scores(model: ModelLike, values: Mapping[str, Floats], at: int) -> Floats:
    """The scores at one of the positions whose values were read."""
    scores: Floats = model.unembed(values[f"blocks.{model.blueprint.blocks - 1}.residual"][at : at + 1])[0]
    return scores


@dataclass(frozen=True)
class ScoreTarget:
    """The score that is attributed, and what each direction of the final state is worth to it."""

    id: int
    text: str
    against: str | None
    score: float
    probability: float
    rank: int
    g: Doubles
    constant: float  # what biases of the head add


def score_target(
    model: ModelLike, scores: Floats, token: int | str | None, against: int | str | None, *, metric: ScoreMetric,
    centred: bool,
) -> ScoreTarget:  # fmt: skip
    """A token's lead over another's, or its score, as it is or less the mean over the vocabulary."""
    if against is not None and metric == "logit":
        raise SettingError(f"a logit has no rival: that is for a lead. Leave out {spell('against')}.")
    number = resolve_token_id(model, token, scores)
    rival = None if against is None else resolve_token_id(model, against, scores)
    if against is None and metric == "lead" and not centred:
        rival = runner_up(scores, number)
    text, rival_text = (None if token is None else token_text(model.tokenizer, token) for token in (number, rival))
    if rival == number:
        raise InputError(f"a token has no lead over itself. Hold {text!r} against another one.")
    head = model.blueprint.ops[-1]
    weights = {number: 1.0} | ({} if rival is None else {rival: -1.0})
    factors = float(head.options.get("scale", 1.0)) * cap_factors(head, scores)
    biases = [bias for weight in head.weights[1:] if (bias := model.weight(weight.name)) is not None]
    table = head.weights[0].name
    g, constant, score = np.zeros(head.weights[0].shape[-1]), 0.0, 0.0
    for token_id, sign in weights.items():
        row = model.weight(table, token_id)
        assert row is not None
        g += sign * factors[token_id] * row
        constant += sign * factors[token_id] * sum(float(bias.reshape(-1)[token_id]) for bias in biases)
        score += sign * float(scores[token_id])
    if centred and rival is None:  # a lead is the same against any mean
        for rows, block in vocabulary_blocks(model, table):
            g -= factors[rows.start : rows.stop] @ block / len(scores)
        constant -= sum(float(factors @ bias.reshape(-1)) for bias in biases) / len(scores)
        score -= float(scores.mean(dtype=np.float64))
    probability, rank = float(np.exp(log_softmax(scores)[number])), int((scores > scores[number]).sum()) + 1
    assert text is not None
    return ScoreTarget(number, text, rival_text, score, probability, rank, g, constant)


def runner_up(scores: Floats, number: int) -> int:
    """The best of the other tokens or labels."""
    others = scores.copy()
    others[number] = -np.inf
    second = int(others.argmax())  # stops at the first NaN
    if np.isnan(others[second]):
        raise NotNumbers("the model's scores are not numbers (NaN), so there is no runner-up. Look for what changed them.")
    return second


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


def cap_factors(head: Op, scores: Floats) -> Doubles:
    """What a soft cap multiplied each token's score by; it is frozen, as norms are."""
    cap = head.options.get("softcap")
    if cap is None:
        return np.ones(scores.shape)
    shares = np.clip(scores.astype(np.float64) / cap, -1 + 1e-7, 1 - 1e-7)
    factors: Doubles = np.divide(shares, np.arctanh(shares), out=np.ones(scores.shape), where=shares != 0)
    return factors
