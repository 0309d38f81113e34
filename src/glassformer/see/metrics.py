"""Which number of a model's output is meant: a token's lead, a logit, a log-probability, the loss, or a function's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from glassformer.engine.protocol import Feed, Want
from glassformer.ground.candidates import log_softmax
from glassformer.ground.errors import InputError, InputTypeError, SettingError, did_you_mean, spell
from glassformer.ground.sites import Watch
from glassformer.ground.typecheck import brief
from glassformer.see.activations import Activations
from glassformer.see.attribution import resolve_token_id, runner_up
from glassformer.see.passes import encoder_pass, open_row
from glassformer.see.patching.view import AnswerToken
from glassformer.see.protocols import ModelLike
from glassformer.see.tokens import find_token, token_text
from glassformer.see.view import Floats

if TYPE_CHECKING:
    from torch import Tensor

MetricFunction: TypeAlias = "Callable[[Tensor], Tensor]"  # of a text's logits, to one number
TargetName: TypeAlias = Literal["lead", "logit", "log-probability", "loss", "function"]
LABELS = {"question": ("start", "end"), "discriminator": ("replaced",)}  # of heads whose labels have no names of their own


@dataclass(frozen=True)
class Target:
    """One number of a model's output: of one position's logits, of all of them, or the loss."""

    position: int | None = None  # None: all logits, for a function; or a text's only ones
    token: int | None = None  # or label
    against: int | None = None
    log_probability: bool = False  # of the token, not its logit
    loss: bool = False
    function: MetricFunction | None = None

    def value(self, logits: Floats) -> float:
        """Of the logits at the position, where it is neither the loss nor a function's."""
        assert self.token is not None
        if self.log_probability:
            return float(log_softmax(logits)[self.token])
        value = logits[self.token]
        return float(value if self.against is None else value - logits[self.against])


@dataclass(frozen=True)
class Metric:
    """What is explained, as a target and in words."""

    target: Target
    name: TargetName
    position: int | None
    token: AnswerToken | None
    against: AnswerToken | None


def resolve_metric(
    reading: Activations,
    metric: TargetName | MetricFunction,
    token: int | str | None,
    against: int | str | None,
    position: int | str | None,
) -> Metric:
    """A metric with its tokens found: by default the best one's, where a model that writes goes on, or in its one gap.

    What is explained by default is stated in `attribution`: the lead over the runner-up. Where there is none, as with one
    label, it is the logit.
    """
    head, name = reading.model.head, reading.model.name
    if callable(metric) or (isinstance(metric, str) and metric == "loss"):
        if any(value is not None for value in (token, against, position)):
            raise SettingError("token, against and position are for a lead or a logit. Leave them out, or the metric.")
        if callable(metric):
            return Metric(Target(function=metric), "function", None, None, None)
        if not reading.model.writes:
            raise InputError(
                f"{name} predicts no next token, so a text has no loss. Take {spell('metric', 'log-probability')}."
            )
        if len(reading.ids) < 2:
            what = "a target" if reading.source is not None else "at least two tokens"
            raise InputError(f"the loss is that of each token after the first, so it needs {what}.")
        return Metric(Target(loss=True), "loss", None, None, None)
    if not isinstance(metric, str):
        raise InputTypeError(f"metric is {brief(metric)}; it must be the name of one, or a function of the logits.")
    if metric not in ("lead", "logit", "log-probability"):
        known = [known for known in get_args(TargetName) if known != "function"]
        raise SettingError(
            f"there is no metric {metric!r}.{did_you_mean(str(metric), known)} Metrics: {', '.join(known)}; in Python also "
            "a function of the logits."
        )
    if metric != "lead" and against is not None:
        raise SettingError(f"a {metric.replace('-', ' ')} has no rival: that is for a lead. Leave out {spell('against')}.")
    if head == "base":
        raise InputError(f"{name} has no head and so no logits. In Python, give a metric that is a function of its states.")
    index = answer_position(reading, position)
    first, second = _answer(reading, index, token), None if against is None else _answer(reading, index, against)
    if metric == "lead" and second is None:
        logits = _logits(reading, index) if head not in LABELS else np.zeros(1, np.float32)  # whose labels are no rivals
        second = _answer(reading, index, runner_up(logits, first.id)) if logits.size > 1 else None
        metric = metric if second is not None else "logit"
    if second is not None and first.id == second.id:
        raise InputError(f"a token has no lead over itself. Hold {first.text!r} against another one.")
    target = Target(index, first.id, None if second is None else second.id, metric == "log-probability")
    return Metric(target, metric, index, first, second)


def answer_position(reading: Activations, position: int | str | None) -> int | None:
    """Where the logits are read; None for those of a whole text."""
    model = reading.model
    if model.head == "sequence":
        if position is not None:
            raise InputError(f"{model.name} labels the text as a whole. Leave the position out.")
        return None
    if position is not None:
        return find_token(position, reading.texts)
    if model.writes:
        return len(reading.ids) - 1
    if model.head != "masked":
        raise InputError(f"{model.name} labels each token. Name a position, by number or by its token.")
    gaps = [index for index, token in enumerate(reading.ids) if token == model.tokenizer.mask_token_id]
    if len(gaps) != 1:
        mask = model.tokenizer.mask_token
        raise InputError(f"{model.name} fills gaps, and this text has {len(gaps)}. Put in one {mask}, or name a position.")
    return gaps[0]


def _answer(reading: Activations, position: int | None, token: int | str | None) -> AnswerToken:
    """A token of the vocabulary, or a label: by text or number; None is the best."""
    model = reading.model
    if model.writes or model.head == "masked":
        logits = _logits(reading, position) if token is None else np.zeros(model.config.vocab_size, np.float32)
        token_id = resolve_token_id(model, token, logits)
        return AnswerToken(token_id, token_text(model.tokenizer, token_id))
    if token is None:
        best = int(_logits(reading, position).argmax())
        return AnswerToken(best, labels_of(model)[best])
    return find_label(model, token)


def labels_of(model: ModelLike) -> tuple[str, ...]:
    return LABELS.get(model.head) or tuple(model.label(number) for number in range(model.config.label_count))


def find_label(model: ModelLike, label: int | str) -> AnswerToken:
    """A label, by its text or number."""
    labels = labels_of(model)
    if (number := _label_number(label, labels)) is None:
        raise InputError(
            f"{model.name} has no label {label!r}.{did_you_mean(str(label), labels)} Labels: {', '.join(labels)}."
        )
    return AnswerToken(number, labels[number])


def _label_number(label: int | str, labels: Sequence[str]) -> int | None:
    if label in labels:
        return labels.index(str(label))
    number = str(label).removeprefix("#")
    return int(number) if number.isdecimal() and int(number) < len(labels) else None


def _logits(reading: Activations, position: int | None) -> Floats:
    """The logits at a position, or of the text."""
    model = reading.model
    if model.writes:
        assert position is not None
        with open_row(model.executor, reading.source) as row:
            feed = Feed(row, reading.ids[: position + 1], Want.LAST, text_length=len(reading.ids))
            (output,) = model.executor.run([feed])
            return output.host().copy()
    if model.head in ("question", "discriminator"):
        return _span_logits(reading, position)
    logits, _ = encoder_pass(model, reading.ids, Watch())
    assert logits is not None
    found: Floats = logits if position is None else logits[position]
    return found


def _span_logits(reading: Activations, position: int | None) -> Floats:
    """Those of heads whose output has other names, by the site that every head has."""
    _, sites = encoder_pass(reading.model, reading.ids, Watch(frozenset({"scores"})))
    logits: Any = sites["scores"][position]
    return np.asarray(logits, np.float32)
