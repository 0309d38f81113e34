"""Features, probes, tuned lenses and steering vectors: what is trained on a model's values."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from glassformer.ground.errors import InputError, InputTypeError, SettingError, SiteError
from glassformer.see.fit_features import FeatureTrainingSettings, train_features
from tests.messages.calls import Entry, decoder, pair, place, recorded
from tests.see.models import TEXT, both

SITE = "blocks.0.residual"
TEXTS = ["the cat", "a cat", "the dog", "a dog"] * 2
LABELS = ["the", "a"] * 4


def features(source: Any = TEXT, site: str = SITE, **asked: Any) -> Any:
    return decoder().train_features(source, site, **asked)


def learned(*rows: Any) -> Any:
    return train_features(list(rows), FeatureTrainingSettings(features=8, k=2, steps=3))


def many() -> Any:
    return decoder().read_many(TEXTS)


@cache
def probes() -> Any:
    return many().probe(LABELS, SITE)


@cache
def lens() -> Any:
    return many().train_lens(steps=0)


MESSAGES: dict[str, list[Entry]] = {
    "training features": [
        (SiteError, lambda: features(recorded(), "blocks.1.residual"),
         "…/recorded has no 'blocks.1.residual'. It has: embedding."),
        (InputError, lambda: features(recorded(), "embedding", length=8),
         "recorded activations have the lengths that they were recorded with. Leave length out."),
        (InputError, lambda: features(length=1),
         "length is 1; a window has at least 2 tokens, since its first is left out."),
        (InputError, lambda: features(site="blocks.*.residual"),
         "'blocks.*.residual' stands for 3 sites. Name one of them, such as 'blocks.0.residual'."),
        (SiteError, lambda: features(site="blocks.0.attention.pattern"),
         "'blocks.0.attention.pattern' has a value for each pair of tokens, not for each token; "
         "model.read(text).record(…) writes those of one text."),
        (InputError, lambda: decoder().train_features(TEXT, "blocks.0.mlp.input", "blocks.0.mlp.input", features=64),
         "a transcoder predicts another site than blocks.0.mlp.input, which it reads. Name another, or none."),
        (InputTypeError, lambda: features(7),
         "source is 7; it must be a text, pieces of one, or recorded activations."),
        (InputError, lambda: features(kind="topl"),
         "train_features(): kind is 'topl'; it must be 'topk', 'batchtopk' or 'l1'. Did you mean 'topk'?"),
        (InputError, lambda: both("gpt2").model.train_features(recorded(), "embedding"),
         "…/recorded was recorded with other weights than …'s. Record it again."),
        (SettingError, lambda: FeatureTrainingSettings(features=0),
         "features is 0; it must be from 1 to 1e+07."),
        (SettingError, lambda: FeatureTrainingSettings(features=8, k=9),
         "k is 9, and there are only 8 features. Take a smaller k."),
        (SettingError, lambda: FeatureTrainingSettings(features=8, kind="topl"),
         "the kind 'topl' is unknown. Did you mean 'topk'?"),
        (SettingError, lambda: FeatureTrainingSettings(features=8, k=2.5),
         "k is 2.5; it must be from 1 to 1e+06."),
        (SettingError, lambda: FeatureTrainingSettings(features=8, k=2, learning_rate="fast"),
         "learning_rate is 'fast'; it must be from 0 to 10."),
        (SettingError, lambda: FeatureTrainingSettings(features=8, k=2, seed=True),
         "seed is True; it must be from 0 to 9.22337e+18."),
        (InputError, lambda: learned(),
         "0 rows of activations are too few to learn features from: at least 10."),
        (InputError, lambda: learned(np.zeros((5, 4), np.float32)),
         "5 rows of activations are too few to learn features from: at least 10."),
        (InputError, lambda: learned(np.zeros(5, np.float32)),
         "activations of the shape [5] came where (rows, width) belong."),
        (InputError, lambda: learned(np.zeros((50, 4), np.float32), np.zeros((50, 3), np.float32)),
         "activations of the shape [50, 3] came where (rows, 4) belong."),
        (InputError, lambda: learned(np.full((50, 4), np.nan, np.float32)),
         "some activations are not numbers. Leave those out."),
        (SettingError, lambda: FeatureTrainingSettings(features=8, kind=np.zeros(2)),
         "the kind array([0., 0.]) is unknown."),
    ],
    "probes": [
        (InputError, lambda: many().probe("ab", SITE),
         "labels is 'ab'; it must be a list of strings, one for each text."),
        (InputError, lambda: many().probe([1] * 8, SITE),
         "labels is [1, 1, 1, 1, 1, 1, ...]; it must be a list of strings, one for each text."),
        (InputError, lambda: many().probe(["a"], SITE),
         "1 label for 8 texts: give one for each."),
        (InputError, lambda: many().probe(LABELS[:-2], SITE),
         "6 labels for 8 texts: give one for each."),
        (InputError, lambda: many().probe(["a"] * 8, SITE),
         "there are 1 different labels; a probe tells 2 to 1,000 apart."),
        (InputError, lambda: many().probe([*["a"] * 7, "b"], SITE),
         "the label 'b' has one text alone, and needs another to be held out. Give it more."),
        (InputError, lambda: many().probe(LABELS, SITE, held_out=1.0),
         "held_out is 1.0; it must be a share between 0 and 1."),
        (InputError, lambda: many().probe(LABELS, SITE, penalty=0.0),
         "penalty is 0.0; it must be above 0."),
        (InputError, lambda: probes().direction(SITE, "x"),
         "label is 'x'; it must be one of 'a', 'the'."),
        (SiteError, lambda: probes().direction("blocks.1.residual"),
         "there is no probe of 'blocks.1.residual'. Did you mean 'blocks.0.residual'? Sites: blocks.0.residual."),
        (InputError, lambda: probes().save(place() / "probes.json"),
         "…/probes.json must end in .safetensors."),
        (InputError, lambda: both("gpt2").model.load_probes(probes().save(place() / "probes.safetensors")),
         "…/probes.safetensors: was trained with other weights (…) than …'s. Train one with this model."),
    ],
    "tuned lenses": [
        (InputError, lambda: pair().read_many([TEXT, TEXT]).train_lens(),
         "… is an encoder-decoder; a tuned lens is trained for models of one stack."),
        (InputError, lambda: decoder().read_many([TEXT]).train_lens(),
         "a tuned lens needs at least two texts: some to train on, and one to measure on."),
        (InputError, lambda: many().train_lens(rank=0),
         "rank is 0; it must be from 1 to 48, the width of the stream."),
        (InputError, lambda: many().train_lens(tokens=0),
         "tokens is 0; it must be 1 or more."),
        (InputError, lambda: many().train_lens(steps=-1),
         "steps is -1; it must be 0 or more."),
        (InputError, lambda: both("gpt2").model.read(TEXT).lens(tuned=lens()),
         "the tuned lens was trained with …, not with …. Train one with it."),
    ],
    "steering": [
        (InputError, lambda: decoder().steered({"nowhere": 1.0}),
         "there is no steering vector 'nowhere'. Give its path."),
        (SettingError, lambda: decoder().steered({"x": "4"}),
         "the strength of 'x' is a number, such as 4.0, not '4'."),
        (SettingError, lambda: decoder().steered({"x": float("nan")}),
         "the strength of 'x' must be finite. Take a smaller one."),
        (SettingError, lambda: decoder().steered({"x": 10**400}),
         "the strength of 'x' must be finite. Take a smaller one."),
        (SettingError, lambda: decoder().steered("x"),
         "steering maps names to strengths, such as {'formal': 4.0}, or lists them; not 'x'."),
        (SettingError, lambda: decoder().steered(["x"]),
         "each steering vector has a name and a strength, such as {'name': 'formal', 'strength': 4.0}; not 'x'."),
        (SettingError, lambda: decoder().steered([{"name": "x", "strenght": 3}]),
         "steering has no field 'strenght'. Did you mean 'strength'?"),
        (SettingError, lambda: decoder().steered([{"strength": 3}]),
         "a steering vector's name is a text, not None."),
        (SettingError, lambda: decoder().steered([{"name": "x"}] * 65),
         "65 steering vectors are too many at once: 64 at most."),
        (SettingError, lambda: decoder().steered([{"feature": "resid-0"}]),
         "the feature 'resid-0' needs a strength, or a value to clamp it to; one of the two."),
        (InputError, lambda: decoder().steered([{"feature": "resid-0", "strength": 1.0}]),
         "a feature is named DICTIONARY/NUMBER, such as resid-8/123, not 'resid-0'."),
        (SettingError, lambda: decoder().steered([{"feature": "x/1", "strength": 1.0, "clamp": 2.0}]),
         "the feature 'x/1' needs a strength, or a value to clamp it to; one of the two."),
        (SettingError, lambda: decoder().steered([{"feature": "x/1", "name": "y", "clamp": 2.0}]),
         "steer by a name or by a feature, each in an entry of its own."),
        (SettingError, lambda: decoder().steered([{"name": "y", "clamp": 2.0}]),
         "a clamp is for a feature. A steering vector has a strength."),
        (InputError, lambda: decoder().steering([], SITE),
         "a steering vector is made from 1 to 10,000 pairs of texts, not from 0."),
        (InputError, lambda: decoder().steering("text", SITE),
         "pairs are a list of two texts each, the one with and the one without; not 'text'."),
        (InputError, lambda: decoder().steering([("a",)], SITE),
         "pair 0 is ('a',); it must be two texts, the one with and the one without."),
        (InputError, lambda: decoder().steering(["ab"], SITE),
         "pair 0 is 'ab'; it must be two texts, the one with and the one without."),
        (InputError, lambda: decoder().steering([("the cat", "the cat")], SITE),
         "the texts of the pairs do not differ at blocks.0.residual, so there is no direction. Give others."),
        (SiteError, lambda: decoder().steering([("the cat", "a dog")], "blocks.0.attention.pattern"),
         "'blocks.0.attention.pattern' has no numbers of its own for each token. Name another, such as "
         "blocks.3.residual."),
    ],
}  # fmt: skip
