"""What steps read and write in prompt passes: numbers as matmuls would round them, where nobody else reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.engine.gpu import kernels, steps
from glassformer.engine.gpu.steps import PromptDtypes, prompt_dtypes
from glassformer.engine.program import Epilogue, StepKind
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.errors import ExecutorError
from glassformer.ground.sites import Watch
from tests.engine.executors import Subject, open_all
from tests.parity import reference

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def in_bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A model whose weights are stored in bfloat16."""
    folder: Path = tmp_path_factory.mktemp("bfloat16")
    reference.build("qwen3", "causal", num_hidden_layers=2, vocab_size=140).to(torch.bfloat16).save_pretrained(folder)
    return Subject(folder)


def dtypes_by_step(subject: Subject, *sites: str) -> list[tuple[Any, PromptDtypes]]:
    executor = subject.gpu()
    reads = Watch.of(*sites, names=subject.blueprint.site_names).reads if sites else frozenset()
    program = executor._program("", frozenset(reads), frozenset()).program
    return list(zip(program.steps, prompt_dtypes(program, executor._weights), strict=True))


def rounded(dtypes: list[tuple[Any, PromptDtypes]]) -> list[tuple[str, str]]:
    """The steps that write, and those that read, something else than float32."""
    return [
        (step.kind.name if step.kind is StepKind.ATTENTION else step.epilogue.name, end)
        for step, both in dtypes
        for end, dtype in zip(("reads", "writes"), both, strict=True)
        if dtype == torch.bfloat16
    ]


def test_what_only_matmuls_read_is_written_as_they_round_it(in_bfloat16: Subject) -> None:
    first_block = [("ATTENTION", "writes"), ("ADD", "reads"), ("GATE", "writes"), ("ADD", "reads")]
    assert rounded(dtypes_by_step(in_bfloat16)) == first_block  # the last block's are computed as single tokens are


def test_watched_values_stay_as_they_are(in_bfloat16: Subject) -> None:
    ends = rounded(dtypes_by_step(in_bfloat16, "blocks.0.attention.heads"))
    assert ends == [("GATE", "writes"), ("ADD", "reads")]


def test_float32_weights_round_nothing(tiny: Any) -> None:
    dtypes = dtypes_by_step(tiny("llama"))
    assert {both for _, both in dtypes} == {PromptDtypes()}
    assert Epilogue.GATE in {step.epilogue for step, _ in dtypes}


@pytest.mark.parametrize("family", reference.NOT_ON_GPU)
def test_what_the_kernels_lack_is_refused(family: str, tiny: Any) -> None:
    with pytest.raises(
        ExecutorError, match=f"a model that {reference.NOT_ON_GPU[family]}. Use executor='cpu' or executor='plain'"
    ):
        tiny(family).gpu()


@pytest.mark.parametrize("family", reference.ON_GPU)
def test_rounding_changes_no_score(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any family, whatever its steps are."""
    head = "seq2seq" if family in reference.PAIRS else "causal"
    reference.build(family, head).to(torch.bfloat16).save_pretrained(tmp_path)
    subject = Subject(tmp_path)
    prompts, sources = subject.rows((66 if family != "bart" else 50,))

    def scores() -> Any:
        executor = subject.gpu("bf16")
        feeds = [Feed(row, ids) for row, ids in zip(open_all(executor, prompts, sources), prompts, strict=True)]
        return executor.run(feeds)[0].host()

    rounded_scores = scores()
    monkeypatch.setattr(steps, "prompt_dtypes", lambda program, weights, joined=(): [PromptDtypes()] * len(program.steps))
    assert np.allclose(rounded_scores, scores(), atol=1e-5 * np.abs(rounded_scores).max())


@pytest.mark.sweep
def test_a_prompt_has_the_same_scores_watched_and_unwatched(in_bfloat16: Subject) -> None:
    executor = in_bfloat16.gpu("bf16", kernels)
    ids = [3 + at * 7 % 100 for at in range(65)]

    def scores(watch: Watch | None) -> Any:
        return executor.run([Feed(executor.open(), ids, Want.LAST, watch=watch)])[0].host()

    watch = Watch.of("blocks.0.attention.heads", "blocks.0.mlp.hidden", names=in_bfloat16.blueprint.site_names)
    assert np.array_equal(scores(None), scores(watch))
