"""Golden renders of tiny models whose every number is the same each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.features.dictionary import FeatureDictionary
from glassformer.ground.changes import Change
from glassformer.see.caching import caching
from glassformer.see.compare import compare
from glassformer.see.feature_training import FeatureTraining, FeatureTrainingPoint
from glassformer.see.features import FeatureDictionaries, KnownDictionary
from glassformer.see.journey.view import Journey
from glassformer.see.learning import learning
from glassformer.see.lens import LayerDivergence, LensTraining
from glassformer.see.plan import plan
from glassformer.see.probes import LabelCount, Probes, SiteProbe
from glassformer.see.steering import KnownVector, SteeringVectors
from glassformer.see.sweep import STRATEGIES, strategies
from glassformer.see.task_evaluation import (
    ClassificationEvaluation,
    LabelScores,
    Mistake,
    TaggingEvaluation,
    TextToTextEvaluation,
    WrittenAnswer,
)
from glassformer.see.tokens import batch, tokenized
from glassformer.see.training_curves import read_training
from tests.features.dictionaries import random_tensors
from tests.see import golden as golden_files
from tests.see.golden import WIDTHS, golden
from tests.see.models import both
from tests.see.test_tables import check_table
from tests.see.test_views import SHAPES, TEXT, make
from tests.training.folders import evaluation_line, sample_line, step_line, training_folder

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.every_combination]

LOOKS: dict[str, tuple[str, dict[str, Any]]] = {  # of each shape: the prompt
    "gpt2": (TEXT, {}),
    "t5": (TEXT, {}),
    "bart": (TEXT, {}),
    "masked": ("the [MASK] sat on [MASK]", {}),
    "classifier": (TEXT, {}),
    "tagger": ("a cat sat on the mat", {}),
    "spans": ("the cat", {"pair": "a cat sat on the mat"}),
    "base": ("[CLS] the cat", {}),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    models: dict[str, Any] = {}

    def get(shape: str) -> Any:
        if shape not in models:
            family, head, changes = SHAPES[shape]
            models[shape] = glassformer.load(make(tmp_path_factory.mktemp(shape), family, head, **changes))
        return models[shape]

    return get


def deterministic(journey: Journey) -> Journey:
    """A journey with fixed times and machine."""
    phases = [
        replace(phase, seconds=0.001 * (number + 1), each=tuple(0.0005 for _ in phase.each))
        for number, phase in enumerate(journey.phases)
    ]
    return replace(journey, model="tiny", phases=tuple(phases), measured="the cpu executor (portable, 1 thread)")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", LOOKS)
def test_journey_golden(loaded: Any, shape: str, width: int) -> None:
    text, more = LOOKS[shape]
    golden(f"journey-{shape}", deterministic(loaded(shape).look(text, **more)), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_plan_golden(loaded: Any, width: int) -> None:
    golden("plan", plan(loaded("bart").blueprint, 9, name="tiny"), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_site_names_golden(loaded: Any, width: int) -> None:
    golden("site-names", replace(loaded("gpt2").sites, model="tiny"), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_tokens_golden(loaded: Any, width: int) -> None:
    model = loaded("masked")
    golden("tokens", tokenized(model.tokenizer, "the cats sat", "on a mat", name="tiny", blueprint=model.blueprint), width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_batch_golden(loaded: Any, width: int, side: str) -> None:
    model = loaded("masked")
    texts = ["the cat", "a cat sat on the mat " * 3, "sat"]
    golden(f"batch-{side}", batch(model.tokenizer, texts, side=side, name="tiny", blueprint=model.blueprint), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_why_golden(loaded: Any, width: int) -> None:
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 6, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 1}
    run = loaded("t5").watch(TEXT, max_new_tokens=3, **settings)
    golden("why", run.why(1), width)


LINES = [
    line
    for step in range(1, 41)
    for line in (
        step_line(step, 2.0 + 4.0 / step),
        *((evaluation_line(step, 2.2 + 4.0 / step), sample_line(step, f"the cat\nsat {step}")) if step % 10 == 0 else ()),
    )
]


def make_evaluations() -> dict[str, Any]:
    """How well tasks are done, with numbers that are given."""
    labels = (LabelScores("bad", 0.75, 0.6, 0.667, 5), LabelScores("good", 0.714, 0.833, 0.769, 6))
    mistakes = (Mistake("reviews.csv, line 7", "not a bad film at all", "good", "bad", 0.981),)
    entities = (LabelScores("PER", 1.0, 0.5, 0.667, 2),)
    answers = (WrittenAnswer("words.jsonl, row 3", "colonel", "K ER N AH L", "K AA L AH N AH L", 5),)
    table = ((3, 2), (1, 5))
    return {
        "classification": ClassificationEvaluation(
            "tiny", "reviews.csv", 11, 2, 0.5123, 0.7273, 0.718, labels, table, mistakes, 0.5
        ),
        "tagging": TaggingEvaluation(
            "tiny", "names.jsonl", 4, 11, 1, 0.5123, 0.7273, 0.718, 0.667, labels, entities, table, 0.5
        ),
        "text-to-text": TextToTextEvaluation("tiny", "words.jsonl", 4, 1.25, 0.75, 1.25, 0.1136, answers, 0.5),
    }  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["classification", "tagging", "text-to-text"])
def test_evaluation_golden(name: str, width: int) -> None:
    golden(name, make_evaluations()[name], width)


PROBED = tuple(
    SiteProbe(f"blocks.{layer}.residual", *accuracies)
    for layer, accuracies in enumerate([(0.5, 0.75, 0.5), (0.75, 1.0, 0.5), (11 / 12, 1.0, 5 / 12)])
)
DIVERGENCES = tuple(
    LayerDivergence(*layer) for layer in (("embedding", 113.4, 3.21), ("0", 11.59, 2.88), ("1", 13.69, 2.46))
)


def make_steering(model: Any) -> dict[str, Any]:
    """Steering vectors and features, of given numbers where training would make them."""
    pairs = [("the cat sat", "a dog ran"), ("the mat", "a mat")]
    known = (
        KnownVector("formal", ("blocks.1.residual",), 3.21, "tiny", "mean", 12, None),
        KnownVector(
            "happy", ("blocks.1.residual", "blocks.2.residual"), 1.5, "llama", "control vector", 0, "no site matches"
        ),
    )
    points = [FeatureTrainingPoint(20 * n, 2560 * n, 1 / n, 0.9 / n, 4.0, 12 - n, n % 2) for n in range(1, 11)]
    dictionaries = (KnownDictionary("resid-0", "blocks.0.residual", "blocks.0.residual", 4096, None),)
    return {
        "steering": model.steering(pairs, "blocks.1.residual"),
        "steering-vectors": SteeringVectors("tiny", known),
        "features": model.read("the cat").features(example_dictionary()),
        "feature-training": FeatureTraining("tiny", "blocks.0.residual", "topk", 96, 48, 12.0, tuple(points)),
        "feature-dictionaries": FeatureDictionaries("tiny", dictionaries),
    }


def example_dictionary() -> FeatureDictionary:
    tensors, site = random_tensors(), "blocks.0.residual"
    weights = (tensors[name] for name in ("W_enc", "b_enc", "W_dec", "b_dec"))
    return FeatureDictionary(*weights, site=site, site_out=site, name="resid-0", k=3)


def make_views(folder: Path) -> dict[str, Any]:
    """Every view of a model's inside, with fixed times, paths and versions."""
    model = both("gpt2").model
    reading = model.read("the cat sat")
    run = model.watch("the cat", max_new_tokens=4, eos_token_id=None)
    sampled = model.watch("the cat", max_new_tokens=4, eos_token_id=None, do_sample=True, temperature=2.0, seed=1)
    changed = model.changed({"blocks.1.mlp.update": Change(scale=0)})
    models = compare(reading, changed.read("the cat sat"), names=("tiny", "changed"))
    tried = strategies(partial(model.watch, "the cat"), STRATEGIES, {"max_new_tokens": 3, "eos_token_id": None, "seed": 1})
    tried = replace(tried, tried=tuple(replace(strategy, seconds=0.0123) for strategy in tried.tried))
    cached = caching(run)
    steps = tuple(replace(step, cached=0.001, uncached=0.002 * number) for number, step in enumerate(cached.steps, 1))
    fixed = {
        "path": "/models/tiny",
        "weights": "0" * 64,
        "versions": {"glassformer": "0.1.0"},
        "executor": {"name": "plain"},
    }
    receipt = replace(run.receipt, **fixed)
    estimate = model.attribution_patch("the cat sat", "the bat sat", "heads", answer=4, against=5, check=True)
    lines = ["the cat sat", "a dog sat", "my mat", "one rat"]  # no two begin alike: their tokens would be equally strong
    recorded = model.read_many(lines).record("blocks.*.residual", folder=folder / "activations").summary()
    training = training_folder(folder / "tiny", LINES, ("gpt2", "gpt2"), steps=60)
    return {
        "trace": run.trace,
        "trace-given": reading.trace(),
        "trace-drawn": sampled.trace,
        "whys": sampled.whys,
        "sweep": run.sweep("temperature", [0.2, 0.7, 1.2]),
        "strategies": tried,
        "caching": replace(cached, steps=steps, seconds=(0.004, 0.02)),
        "attention": reading.attention(1, 0),
        "attention-row": reading.attention(1, 0).of(-1),
        "rollout": reading.attention(rollout=True),
        "heads": reading.heads(),
        "experts": both("qwen3_moe").model.read("the cat sat").experts(),
        "lens": reading.lens(),
        "activation-files": replace(recorded, folder="activations"),
        "activation-statistics": model.read_many(lines).statistics("blocks.*.mlp.hidden").view(),
        "probes": Probes("tiny", "last", (LabelCount("bad", 20), LabelCount("good", 28)), 36, 12, 7 / 12, PROBED),
        "lens-training": LensTraining("tiny", 20, 1374, 148, 150, 120.0, DIVERGENCES),
        "attribution": reading.attribution(),
        "explanation": reading.explain(),
        "attribution-graph": reading.graph(-1, 3),
        "circuit": reading.circuit(1, 0, best=3),
        "composition": model.circuits.composition(2, baseline=True),
        "inside-block": reading.inside("blocks.1"),
        "inside-attention": reading.inside("blocks.1.attention", 2),
        "inside-head": reading.inside("blocks.1.attention.heads.0", 2),
        "inside-score": reading.inside("blocks.1.attention.heads.0.1", 2),
        "inside-neuron": reading.inside("blocks.1.mlp.hidden.7", 2),
        "patching": model.patch("the cat sat", "the bat sat", answer=4, against=5),
        "patching-heads": model.patch("the cat sat", "the bat sat", "heads", answer=4, against=5),
        "attribution-patching": replace(estimate, estimate=replace(estimate.estimate, model="tiny")),
        "saliency": reading.saliency(4, 5),
        "saliency-integrated": both("t5").reading().saliency(method="integrated", steps=8),
        "patching-pairs": model.patch_pairs([("the cat sat", "the bat sat", 4, 5), ("a dog", "a big dog", 4, 5)], "mlp"),
        "path-patching": model.patch_path("the cat sat", "the bat sat", answer=4, against=5),
        "compare-texts": compare(reading, model.read("a cat sat"), token="s"),
        "compare-models": models,
        "compare-runs": compare(run, sampled, names=("greedy", "hot")),
        "receipt": receipt,
        "tree": model.tree("the cat", width=2, depth=3),
        "parameters": model.parameters(),
        "training-curves": read_training(training),
        **make_steering(model),
        "learning": learning(training, lambda path: both("gpt2").model.read("the cat sat"), position=2, layer=1),
    }


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_views(tmp_path_factory.mktemp("training"))


NAMES = (
    "trace", "trace-given", "trace-drawn", "whys", "sweep", "strategies", "caching", "attention", "attention-row", "rollout",
    "heads", "experts", "lens", "attribution", "explanation", "attribution-graph", "circuit", "composition", "patching",
    "patching-heads", "compare-texts", "compare-models", "compare-runs", "attribution-patching", "saliency",
    "saliency-integrated", "patching-pairs", "path-patching", "activation-files", "activation-statistics", "probes",
    "lens-training",
    "receipt", "tree", "parameters", "inside-block", "inside-attention", "inside-head", "inside-score", "inside-neuron",
    "training-curves", "learning", "steering", "steering-vectors", "features", "feature-training", "feature-dictionaries",
)  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_view_golden(views: dict[str, Any], name: str, width: int) -> None:
    assert set(views) == set(NAMES)
    view = views[name]
    golden(name, replace(view, model="tiny") if hasattr(view, "model") else view, width)


@pytest.mark.parametrize("name", NAMES)
def test_pandas_takes_every_view_as_a_table(views: dict[str, Any], name: str) -> None:
    check_table(views[name])


def test_a_missing_golden_file_names_how_to_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_files, "FOLDER", tmp_path)
    monkeypatch.delenv("GLASS_GOLDEN", raising=False)
    with pytest.raises(AssertionError, match="nothing-80.txt"):
        golden("nothing", "a picture", 80)
    monkeypatch.setenv("GLASS_GOLDEN", "write")
    golden("nothing", "a picture", 80)
    monkeypatch.delenv("GLASS_GOLDEN")
    golden("nothing", "a picture", 80)
    with pytest.raises(AssertionError):
        golden("nothing", "another", 80)
