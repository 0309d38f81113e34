"""What each kind costs on real weights: SmolLM2's, which were packed as Q4_1 once and are taken as they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import glassformer
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.model_files import open_model
from glassformer.quantize import quantize
from glassformer.see.evaluation import HELD_OUT
from tests.likelihoods import LikelihoodComparison, compare_likelihoods
from tests.parity.compare import load

pytestmark = pytest.mark.sweep

COSTS = {"q8_0": 0.007, "q6_k": 0.03, "q5_k": 0.03, "q4_k": 0.03, "q5_0": 0.43, "q4_0": 0.86}  # bits a token diverges by


@pytest.fixture(scope="module")
def folder(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("smollm2")
    glassformer.AutoModelForCausalLM.from_pretrained(smollm2).save_pretrained(path)
    glassformer.AutoTokenizer.from_pretrained(smollm2).save_pretrained(path)
    yield path
    shutil.rmtree(path)


def compared(folder: Path, kind: str) -> LikelihoodComparison:
    path = folder / f"{kind}.gguf"
    quantize(open_model(folder), path, kind)
    ids = open_model(folder).tokenizer(HELD_OUT.read_text("utf-8"))["input_ids"][:257]
    return compare_likelihoods(PlainExecutor(load(folder, "causal")), PlainExecutor(load(path, "causal")), ids)


@pytest.mark.parametrize("kind", COSTS)
def test_quantized_smollm2_loses_little(folder: Path, kind: str) -> None:
    found = compared(folder, kind)
    assert 0 < found.divergence < COSTS[kind]
    assert found.second.perplexity < found.first.perplexity * (1 + 2 * COSTS[kind])
    assert found.agreement > (0.6 if COSTS[kind] > 0.1 else 0.93)


def test_requantizing_smollm2_to_its_own_kind_loses_nothing(folder: Path) -> None:
    found = compared(folder, "q4_1")
    assert found.divergence == pytest.approx(0, abs=1e-6)
    assert found.agreement == 1
