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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np

from glassformer.blueprints import Op
from glassformer.ground.candidates import log_softmax
from glassformer.ground.errors import InputError, NotNumbers, SettingError, spell
from glassformer.ground.operations import about, operation
from glassformer.ops.token_mixer import TokenMixer
from glassformer.page.document import Column, Heading, Page, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, visible
from glassformer.see.activations import Activations
from glassformer.see.linear_walk import Doubles, LinearWalk, part_name, stream_values, vocabulary_blocks
from glassformer.see.protocols import ModelLike, RunLike
from glassformer.see.tokens import find_token, token_text
from glassformer.see.view import Floats, View
from glassformer.see.why import step_index

ScoreMetric: TypeAlias = Literal["lead", "logit"]
MAX_HEADS = 10  # unless everything is shown


@dataclass(frozen=True)
class Contribution:
    """What one part of the model added to a score."""

    name: str  # embedding, what `part_name` says, biases or rounding; among heads also 'attention bias' and the like
    block: int | None
    head: int | None
    value: float  # in logits


@dataclass(frozen=True)
class AttributedScore:
    """The score that a view attributes: a token's lead over another, or its logit."""

    model: str
    position: int
    before: str  # the token at the position
    id: int
    text: str
    score: float  # in logits: the token's; if it is compared with another token, its lead over that
    probability: float
    rank: int  # 1: the model's first choice
    against: str | None  # the token that it is compared with
    centred: bool  # whether the mean over the vocabulary was subtracted from the score, and each part's share of it

    @property
    def quantity(self) -> str:
        return "score" if self.against is None else f"lead over {visible(self.against)}"

    @property
    def place(self) -> str:
        return f"after {visible(self.before)} (position {self.position})"

    @property
    def about(self) -> str:
        """What the score is held against, and what the token's chances are."""
        convention = "uncentred: the logit itself, as the model computes it"
        if self.against is not None:
            convention = "a lead: what both tokens got alike is not counted"
        elif self.centred:
            convention = "centred: the mean over the vocabulary is subtracted"
        chances = f"probability {format_percent(self.probability)}, rank {self.rank:,}"
        return f"{convention}\n{visible(self.text)}: {chances}"


@dataclass(frozen=True)
class Attribution(AttributedScore, View):
    """A token's score as the sum of what each part added to it."""

    SCHEMA = "glassformer.attribution/3"

    contributions: tuple[Contribution, ...]  # they sum to the score: the embedding, what each block adds, biases, rounding
    heads: tuple[Contribution, ...]  # attention's contributions again: head by head, and then the biases behind the heads

    def page(self, everything: bool = False) -> Page:
        token = visible(self.text)
        target = f"the score of {token}" if self.against is None else f"{token}'s {self.quantity}"
        heads = sorted(self.heads, key=lambda head: -abs(head.value))
        added = f"what each part added directly, in logits; together the {self.quantity}, {self.score:.2f}"
        return Page.titled(
            f"{self.model}: which parts wrote {target} {self.place}",
            Paragraph(f"{added}\n{self.about}", "dim"),
            _table(self.contributions),
            Heading("the heads that added or subtracted most"),
            _table(heads if everything else heads[:MAX_HEADS]),
            Paragraph("What a head wrote for later parts to read is counted where they write.", "dim"),
        )

    def __repr__(self) -> str:
        return f"Attribution({self.text!r}: {self.score:.2f} in {len(self.contributions)} parts)"


def additions_table(first: str, rows: Sequence[tuple[str, float]]) -> Table:
    """What each of some parts added to a score."""
    most = max((abs(value) for _, value in rows), default=1.0) or 1.0
    columns = (Column(first), Column("adds", "number"), Column("", "signed bar", priority=8))
    return Table(columns, tuple(TableRow((name, f"{round(value, 2) + 0.0:+.2f}", value / most)) for name, value in rows))


def _table(parts: Sequence[Contribution]) -> Table:
    return additions_table("part", [(_name(part), part.value) for part in parts])


def _name(part: Contribution) -> str:
    if part.block is None:
        return part.name
    return f"block {part.block} {part.name}" + ("" if part.head is None else f" head {part.head}")


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


@operation(route="attribution", verb="lens", chosen_by=("token",))
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
    target = score_target(reading, position, token, against, metric=metric, centred=centred)
    walk, score = target.walk, target.score
    row = walk.start(walk.ops[-1].inputs[0], target.index, target.g)
    parts, heads = list[Contribution](), list[Contribution]()
    for arrival in walk.arrivals():
        op = walk.ops[arrival.op_index]
        if arrival.kind == "heads":
            shares = (arrival.g[0] * walk.values[op.inner_site("heads")][0]).sum(-1).tolist()
            assert isinstance(op, TokenMixer)
            name = op.site_prefix
            heads += [Contribution(name, op.block, head, shares[head]) for head in reversed(range(len(shares)))]
        else:
            name = "embedding" if arrival.kind == "embedding" else part_name(op)
            parts.append(Contribution(name, op.block, None, float(arrival.g[0] @ walk.value(arrival.op_index)[0])))
    parts.reverse()
    parts.append(Contribution("biases", None, None, target.constant + walk.constants[row]))
    parts.append(Contribution("rounding", None, None, score.score - sum(part.value for part in parts)))
    heads.reverse()
    for index, value in sorted(walk.update_constants[row].items()):
        heads.append(Contribution(f"{part_name(walk.ops[index])} bias", walk.ops[index].block, None, value))
    return Attribution(**vars(score), contributions=tuple(parts), heads=tuple(heads))


@operation(name="attribution")
def attribution_of_run(
    run: RunLike,
    number: int = 0,
    token: TokenArgument = None,
    against: AgainstArgument = None,
    *,
    metric: MetricArgument = "lead",
    centred: CentredArgument = False,
) -> Attribution:
    """What each block and head added to the lead of a token of the text, or of another in its place."""
    index, reading = step_index(run, number), Activations.of_run(run)
    token, position = run.steps[index].id if token is None else token, reading.prompt_length + index - 1
    return attribution(reading, position, token, against, metric=metric, centred=centred)


@dataclass(frozen=True)
class ScoreTarget:
    """The score that is attributed, what each direction of the final state is worth to it, and the walk back from it."""

    score: AttributedScore
    g: Doubles
    constant: float  # what biases of the head add
    walk: LinearWalk
    index: int  # of the position among the walk's values


def score_target(
    reading: Activations, position: int | str, token: int | str | None, against: int | str | None, *,
    metric: ScoreMetric, centred: bool, all_positions: bool = False,
) -> ScoreTarget:  # fmt: skip
    """A token's lead over another's after a position, or its score, as it is or less the mean over the vocabulary."""
    model = reading.model
    if not model.writes:
        raise InputError(f"{model.name} does not score the next token, so its parts have no share in one.")
    model.config.check_equations("the parts of a score")
    model.blueprint.check_one_stream("the parts of a score")
    place = find_token(position, reading.texts)
    if against is not None and metric == "logit":
        raise SettingError(f"a logit has no rival: that is for a lead. Leave out {spell('against')}.")
    places, index = range(len(reading)) if all_positions else [place], place * all_positions
    values = stream_values(reading, places)
    scores = model.unembed(values[f"blocks.{model.blueprint.blocks - 1}.residual"][index : index + 1])[0]
    chosen = resolve_token_id(model, token, scores)
    rival = None if against is None else resolve_token_id(model, against, scores)
    if against is None and metric == "lead" and not centred:
        rival = runner_up(scores, chosen)
    text, rival_text = token_text(model.tokenizer, chosen), None if rival is None else token_text(model.tokenizer, rival)
    if rival == chosen:
        raise InputError(f"a token has no lead over itself. Hold {text!r} against another one.")
    head = model.blueprint.ops[-1]
    weights = {chosen: 1.0} | ({} if rival is None else {rival: -1.0})
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
    probability, rank = float(np.exp(log_softmax(scores)[chosen])), int((scores > scores[chosen]).sum()) + 1
    attributed = AttributedScore(
        model.name, place, reading.texts[place], chosen, text, score, probability, rank, rival_text, centred
    )
    return ScoreTarget(attributed, g, constant, LinearWalk(model, values, [reading.ids[place] for place in places]), index)


def runner_up(scores: Floats, index: int) -> int:
    """The best of the other tokens or labels."""
    others = scores.copy()
    others[index] = -np.inf
    second = int(others.argmax())  # stops at the first NaN
    if np.isnan(others[second]):
        raise NotNumbers("the model's scores are not numbers (NaN), so there is no runner-up. Look for what changed them.")
    return second


def resolve_token_id(model: ModelLike, token: int | str | None, scores: Floats) -> int:
    """The id of a token, named by its text or its id (as text: #57); None is the best one."""
    if token is None:
        return int(scores.argmax())
    if isinstance(token, str):
        for text in (token, token.replace("␣", " ")):  # as pictures show a blank
            ids = model.tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == 1:
                return int(ids[0])
        if (digits := token.removeprefix("#")).isdecimal():
            return resolve_token_id(model, int(digits), scores)
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
