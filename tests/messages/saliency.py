"""Saliency, Shapley values and gradients."""

from __future__ import annotations

from typing import Any

import torch

from glassformer import Change
from glassformer.ground.errors import InputError, InputTypeError, NotNumbers, SettingError
from tests.messages.calls import Entry, decoder, limited, pair
from tests.see.models import TEXT, both, encoder

INFINITE = {"blocks.0.mlp.update": Change(shift=float("inf"))}


def saliency(*asked: Any, **named: Any) -> Any:
    return both("gpt2").reading().saliency(*asked, **named)


def shapley(**named: Any) -> Any:
    return saliency(method="shapley", **named)


def raising(logits: Any) -> Any:
    raise ValueError("no")


MESSAGES: dict[str, list[Entry]] = {
    "saliency and gradients": [
        (InputError, lambda: both("gpt2").reading().saliency(method="integrated", baseline="pad"),
         "… has no padding token. Take the baseline 'zero' or 'mean'."),
        (InputError, lambda: encoder("bert", "base").model.read(TEXT).saliency(),
         "… has no head and so no logits. In Python, give a metric that is a function of its states."),
        (InputError, lambda: decoder().read(TEXT).gradients(),
         "name the sites whose gradients are wanted, such as 'blocks.*.residual'."),
        (InputError, lambda: decoder().read(TEXT).gradients("scores"),
         "the metric is a function of 'scores', which no pass leads to. Name sites before them."),
        (InputError, lambda: decoder().read("a").saliency(metric="loss"),
         "the loss is that of each token after the first, so it needs at least two tokens."),
        (InputError, lambda: pair().read(TEXT).saliency(metric="loss"),
         "the loss is that of each token after the first, so it needs a target."),
        (InputError, lambda: encoder().model.read("the [MASK]").saliency(metric="loss"),
         "… predicts no next token, so a text has no loss. Take metric='log-probability'."),
        (InputError, lambda: encoder().model.read("[MASK] cat [MASK]").saliency(),
         "… fills gaps, and this text has 2. Put in one [MASK], or name a position."),
        (InputError, lambda: encoder("bert", "sequence").model.read(TEXT).saliency(position=1),
         "… labels the text as a whole. Leave the position out."),
        (InputError, lambda: encoder("bert", "token").model.read(TEXT).saliency(),
         "… labels each token. Name a position, by number or by its token."),
        (InputError, lambda: encoder("bert", "sequence").model.read(TEXT).saliency("LABEL_9"),
         "… has no label 'LABEL_9'. Did you mean 'LABEL_1'? Labels: LABEL_0, LABEL_1."),
        (InputError, lambda: decoder().read("a").saliency(),
         "no token can be left out of a text that has only one. Take more text, or method='input-x-gradient'."),
        (InputTypeError, lambda: saliency(metric=3),
         "metric is 3; it must be the name of one, or a function of the logits."),
        (SettingError, lambda: saliency(metric="los"),
         "there is no metric 'los'. Did you mean 'loss'? Metrics: lead, logit, log-probability, loss; in Python also a"
         " function of the logits."),
        (InputError, lambda: saliency(metric=raising),
         "the metric failed with ValueError: no"),
        (InputTypeError, lambda: saliency(metric=lambda logits: 3.0),
         "the metric returned 3.0; it must return one number as a tensor that it computed from the logits."),
        (InputTypeError, lambda: saliency(metric=lambda logits: logits),
         "the metric returned a tensor of shape (22, 256); it must return one number as a tensor that it computed from"
         " the logits."),
        (InputTypeError, lambda: saliency(metric=lambda logits: torch.zeros(())),
         "the metric returned a tensor of shape (); it must return one number as a tensor that it computed from the "
         "logits."),
        (InputError, lambda: saliency(metric=lambda logits: logits.sum() / 0),
         "the metric returned -inf, which has no gradient."),
        (SettingError, lambda: saliency(metric="loss", token=3),
         "token, against and position are for a lead or a logit. Leave them out, or the metric."),
        (SettingError, lambda: saliency(metric="log-probability", against=3),
         "a log probability has no rival: that is for a lead. Leave out against."),
        (InputError, lambda: saliency(method="integrate"),
         "saliency(): method is 'integrate'; it must be 'leave-one-out', 'shapley', 'input-x-gradient', "
         "'gradient-norm' or 'integrated'. Did you mean 'integrated'?"),
        (SettingError, lambda: saliency(steps=3),
         "baseline and steps are for integrated gradients. Leave them out, or take method='integrated'."),
        (SettingError, lambda: saliency(method="integrated", steps=999),
         "steps is 999; it must be from 1 to 256."),
        (InputError, limited("see.saliency.MAX_TOKENS", 10, lambda: saliency(method="integrated")),
         "1 steps over 22 tokens read more than 10 in all. Take fewer steps, or a part of the text."),
        (InputError, limited("see.saliency.MAX_TOKENS", 10, lambda: saliency()),
         "1 steps over 22 tokens read more than 10 in all. Take fewer steps, or a part of the text."),
        (InputError, limited("see.saliency.MAX_TOKENS", 30, lambda: saliency()),
         "to leave each of 22 tokens out, 232 tokens are read in all; 30 is the most. Take a part of the text, or "
         "method='input-x-gradient'."),
        (InputError, lambda: both("gpt2").model.changed(INFINITE).read("the cat").saliency(3, metric="logit"),
         "the values are not finite in float32. Load the model with dtype='float32'."),
        (NotNumbers, lambda: both("gpt2").model.changed(INFINITE).read("the cat").saliency(3),
         "the model's scores are not numbers (NaN), so there is no runner-up. Look for what changed them."),
        (SettingError, lambda: saliency(metric="logit", against=3),
         "a logit has no rival: that is for a lead. Leave out against."),
        (InputError, lambda: saliency(token=3, against=3),
         "a token has no lead over itself. Hold '$' against another one."),
        (InputError, lambda: saliency(token=99_999),
         "token id 99999 is outside the vocabulary of 256."),
        (InputError, lambda: saliency(position=99),
         "there is no token 99 in a text of 22."),
    ],
    "Shapley values": [
        (SettingError, lambda: saliency(permutations=4),
         "permutations and seed are for Shapley values. Leave them out, or take method='shapley'."),
        (SettingError, lambda: shapley(permutations=5),
         "permutations is 5; it must be an even number from 4 on."),
        (SettingError, lambda: shapley(seed=-1),
         "seed is -1; it must be 0 or more."),
        (SettingError, lambda: saliency(method="input-x-gradient", by="words"),
         "gradients are those of tokens, not of words. Take method='leave-one-out' or method='shapley'."),
        (SettingError, lambda: shapley(metric="loss"),
         "a loss needs two tokens, which not every part of a text has, so it has no Shapley values. Take "
         "metric='log-probability', or method='leave-one-out'."),
        (InputError, lambda: shapley(permutations=100_000),
         "each two orders of 21 tokens read 504 tokens; 500,000 in all is the most. Draw fewer, take words or a part "
         "of the text, or method='leave-one-out'."),
        (InputError, lambda: encoder("bert", "masked").model.read("[MASK]").saliency(3, 5, method="shapley"),
         "nothing of this text can be left out in every combination. Take more text, or method='leave-one-out'."),
        (InputError, lambda: both("gpt2").model.read(" a").saliency(3, 5, method="shapley", by="words"),
         "no word can be left out of this text. Leave tokens out: by='tokens'."),
        (InputError, limited("see.saliency.MAX_TOKENS", 1000, lambda: shapley()),
         "each two orders of 21 tokens read 504 tokens; 1,000 in all is the most. Draw fewer, take words or a part of "
         "the text, or method='leave-one-out'."),
        (SettingError, lambda: saliency(seed=4),
         "permutations and seed are for Shapley values. Leave them out, or take method='shapley'."),
        (SettingError, lambda: shapley(permutations=2),
         "permutations is 2; it must be an even number from 4 on."),
    ],
}  # fmt: skip
