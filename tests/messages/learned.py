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
    ],
}  # fmt: skip
