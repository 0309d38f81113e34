"""A model split between two processes, beside the same model in one: ids, scores, sites, and every move of the protocol."""

from __future__ import annotations

import os
import signal
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.engine.gpu.split_executor import stored_part
from glassformer.engine.protocol import Choice, Feed
from glassformer.engine.tensor_parallel.executor import TensorParallelExecutor
from glassformer.engine.tensor_parallel.ranks import RankProcesses, _start
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError, InputError, RankLost, SiteError
from glassformer.ops.split import TensorPart
from glassformer.runtime.executors import SplitModel
from glassformer.see.verification import FLOATS
from tests.engine.executors import Subject, open_all, scores_of, write_checkpoint
from tests.engine.split_gpu_model import SplitGpuModel
from tests.engine.test_protocol import (  # noqa: F401  # the protocol's own tests, with the `subject` of this file
    TestBadInput,
    test_random_moves_score_like_an_uncached_pass,
    test_scores_outlive_the_next_pass,
    test_several_threads_share_an_executor,
    test_token_tree_sees_only_ancestors,
    test_top_matches_softmax_of_all_scores,
    test_want_none_last_and_all,
)
from tests.parity import reference
from tests.patience import patience

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("one_thread")]


@dataclass
class SplitSubject(Subject):
    """A checkpoint whose executor is one over two ranks."""

    ranks: Any = None

    def executor(self) -> TensorParallelExecutor:
        return TensorParallelExecutor(self.ranks, SplitModel(str(self.folder), dtype="float32"))


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    """Two processes for all tests of this file: starting one takes seconds."""
    started = RankProcesses(2, timeout=patience(60))
    yield started
    started.close()


@pytest.fixture(scope="module")
def subject(tiny: Callable[..., Subject], ranks: RankProcesses) -> SplitSubject:
    return SplitSubject(tiny("qwen3").folder, ranks=ranks)


def greedy_ids(executor: Any, prompts: list[list[int]], sources: list[list[int]] | None, count: int = 12) -> Any:
    rows = open_all(executor, prompts, sources)
    best = [int(scores.host().argmax()) for scores in executor.run([Feed(*fed) for fed in zip(rows, prompts, strict=True)])]
    chosen = executor.capabilities.sampler.best(rows, best, count)
    return [[first, *ids] for first, ids in zip(best, chosen.tolist(), strict=True)]


@pytest.mark.parametrize(
    "family",
    [
        family
        for family in (*reference.DENSE, *reference.PAIRS)
        if family not in reference.NOT_SPLIT or family in ("phi3", "falcon")
    ],
)
def test_ids_scores_and_sites_are_those_of_one_process(
    family: str, tiny: Callable[..., Subject], ranks: RankProcesses
) -> None:
    subject = SplitSubject(tiny(family).folder, ranks=ranks)
    executor, (prompts, sources) = subject.executor(), subject.rows()
    verdict = subject.verdict(executor)
    assert verdict.agreement == 1
    assert verdict.agrees(FLOATS), verdict
    assert greedy_ids(executor, prompts, sources) == greedy_ids(subject.plain(), prompts, sources)


def test_heads_need_not_divide(tmp_path: Path, ranks: RankProcesses) -> None:
    """Three groups of two heads, 81 neurons and 151 tokens on two ranks; and one group, whose key both ranks have."""
    odd = {"num_attention_heads": 6, "intermediate_size": 81, "vocab_size": 151}
    for groups in (3, 1):
        folder = tmp_path / str(groups)
        write_checkpoint(folder, "llama", num_key_value_heads=groups, **odd)
        subject = SplitSubject(folder, ranks=ranks)
        assert subject.verdict(subject.executor()).agrees(FLOATS)


def test_stored_half_precision_stays_close(tmp_path: Path, ranks: RankProcesses) -> None:
    write_checkpoint(tmp_path, "qwen2", dtype=torch.bfloat16)
    executor = TensorParallelExecutor(ranks, SplitModel(str(tmp_path)))
    assert executor.describe().dtype == "bfloat16"
    assert SplitSubject(tmp_path).verdict(executor).worst.error < 0.1


def test_packed_weights_are_divided_too(tiny: Callable[..., Subject], ranks: RankProcesses) -> None:
    """Q8_0 in a GGUF file, with rows that llama.cpp interleaves."""
    subject = tiny("Q8_0")
    executor = TensorParallelExecutor(ranks, SplitModel(str(subject.folder), dtype="float32"))
    assert subject.verdict(executor).agrees(FLOATS)


def test_a_change_of_heads_is_that_of_one_process(subject: SplitSubject) -> None:
    """Heads of both ranks, by their numbers in the whole; a pattern that is changed goes into the output."""
    changes = {
        "blocks.0.attention.heads": Change(scale=0, heads=[0, 3]),
        "blocks.1.attention.pattern": Change(scale=0.5, heads=[2]),
        "blocks.1.mlp.hidden": Change(shift=torch.linspace(-1, 1, 80), positions=[1, 3]),
        "blocks.2.residual": Change(scale=1.1),
    }
    ids = [[5, 9, 14, 3, 77]]
    plain, split = subject.plain(), subject.executor()
    watch = subject.watch(changes=changes)
    expected, found = (scores_of(each, [each.open()], ids, watch)[0] for each in (plain, split))
    assert np.allclose(found, expected, atol=1e-4)
    assert not np.allclose(found, scores_of(split, [split.open()], ids)[0], atol=1e-2)
    with pytest.raises(SiteError, match="head 4"):
        scores_of(split, [split.open()], ids, subject.watch(changes={"blocks.0.attention.heads": Change(heads=[4])}))
    assert np.allclose(scores_of(split, [split.open()], ids, watch)[0], expected, atol=1e-4)  # the ranks are in step


def test_states_are_unembedded_by_all_ranks(subject: SplitSubject) -> None:
    states = np.random.default_rng(0).standard_normal((3, subject.config.hidden_size)).astype(np.float32)
    assert np.allclose(subject.executor().unembed(states), subject.plain().unembed(states), atol=1e-5)
    with pytest.raises(InputError, match="must be"):
        subject.executor().unembed(states[:, 1:])


def test_an_interrupt_leaves_the_ranks_in_step(subject: SplitSubject) -> None:
    executor, ids = subject.executor(), [[5, 9, 14, 3, 77]]

    begun = threading.Event()

    def interrupt() -> None:
        begun.wait()
        interrupt_main()

    def run_until_interrupted() -> None:
        until = time.monotonic() + patience(60)
        while time.monotonic() < until:
            scores_of(executor, [executor.open()], ids)
            begun.set()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted()
    plain = subject.plain()
    assert np.allclose(*(scores_of(each, [each.open()], ids)[0] for each in (plain, executor)), atol=1e-4)


def test_description(subject: SplitSubject) -> None:
    plain, split = subject.plain(), subject.executor()
    for executor in (plain, split):
        scores_of(executor, [executor.open()], [[1, 2]])  # the size of a token is known then
    about = split.describe()
    assert (about.name, about.device, about.dtype) == ("plain", "cpu", "float32")
    assert about.option_texts == ["split among 2 processes"]
    assert about.cache_bytes_per_token == plain.describe().cache_bytes_per_token


def test_a_rank_reads_only_its_part(subject: SplitSubject) -> None:
    model = subject.executor()._executor.model  # type: ignore[attr-defined]
    assert model.model.layers[0].self_attn.q_proj.weight.shape == (24, 48)
    assert model.model.layers[0].mlp.down_proj.weight.shape == (48, 40)
    assert model.model.embed_tokens.weight.shape == (80, 48)


class TestFailures:
    """Each breaks its ranks, and so starts its own."""

    def test_a_rank_that_is_killed_ends_the_pass_with_an_error(self, tiny: Callable[..., Subject]) -> None:
        ranks = RankProcesses(2, timeout=patience(60))
        executor = SplitSubject(tiny("qwen3").folder, ranks=ranks).executor()
        row = executor.open()

        def run_for_a_minute() -> None:
            until = time.monotonic() + patience(60)
            while time.monotonic() < until:
                executor.rewind(row, 0)
                executor.run([Feed(row, [3, 1, 4])])

        (process,) = ranks.processes
        threading.Timer(0.1, os.kill, (process, signal.SIGKILL)).start()
        with pytest.raises(RankLost, match=r"rank 1 of 2 has stopped: it was ended by SIGKILL\. Load the model again\."):
            run_for_a_minute()
        for act in (lambda: executor.run([Feed(row, [1])]), executor.open, executor.describe, lambda: executor.close(row)):
            with pytest.raises(RankLost, match="rank 1 of 2 has stopped"):
                act()

    def test_a_rank_that_does_not_answer_ends_the_pass_with_an_error(self, tiny: Callable[..., Subject]) -> None:
        ranks = RankProcesses(2, timeout=patience(1))  # in which the first pass is to be done
        executor = SplitSubject(tiny("qwen3").folder, ranks=ranks).executor()
        row = executor.open()
        executor.run([Feed(row, [3, 1, 4])])
        (process,) = ranks.processes
        os.kill(process, signal.SIGSTOP)
        with pytest.raises(RankLost, match="rank 0 of 2 could not go on: .*imed out"):
            executor.run([Feed(row, [1])])
        with pytest.raises(ProcessLookupError):  # it is ended all the same
            os.kill(process, 0)

    def test_a_rank_ends_with_rank_0(self, tmp_path: Path) -> None:
        """However that ends: the system closes its end of the pipe."""
        follower = _start(tmp_path, 1, 2, "cpu", 60, 1)
        assert follower.process.stdin is not None
        follower.process.stdin.close()
        assert follower.process.wait(patience(60)) == 0

    def test_gpus_need_nccl(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
        with pytest.raises(ExecutorError, match="this PyTorch has no NCCL, so GPUs cannot work together"):
            RankProcesses(2, "cuda")


class TestGpuEngine:
    @pytest.mark.parametrize("family", ["qwen3", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("gpt2", "t5"))])
    def test_ids_scores_and_sites_are_those_of_one_process(
        self, family: str, tiny: Callable[..., Subject], ranks: RankProcesses
    ) -> None:
        subject = tiny(family)
        executor, (prompts, sources) = TensorParallelExecutor(ranks, SplitGpuModel(str(subject.folder))), subject.rows()
        verdict = subject.verdict(executor)
        assert verdict.agreement == 1
        assert verdict.agrees(FLOATS), verdict
        assert greedy_ids(executor, prompts, sources) == greedy_ids(subject.plain(), prompts, sources)

    def test_changes_of_divided_sites_are_refused(self, tiny: Callable[..., Subject], ranks: RankProcesses) -> None:
        subject, ids = tiny("qwen3"), [[5, 9, 14]]
        executor = TensorParallelExecutor(ranks, SplitGpuModel(str(subject.folder)))
        change = subject.watch(changes={"blocks.0.attention.heads": Change(scale=0)})
        with pytest.raises(ExecutorError, match=r"cannot change blocks\.0\.attention\.heads where it is split among ranks"):
            scores_of(executor, [executor.open()], ids, change)
        whole = subject.watch(changes={"blocks.0.residual": Change(scale=0.5)})
        expected = scores_of(plain := subject.plain(), [plain.open()], ids, whole)
        assert np.allclose(scores_of(executor, [executor.open()], ids, whole), expected, atol=1e-4)
        decoder = executor.capabilities.sampler
        assert decoder is not None
        assert decoder.knows(Choice(sites=frozenset({"blocks.0.residual"})))
        assert not decoder.knows(Choice(sites=frozenset({"blocks.0.attention.pattern"})))

    def test_packed_columns_are_refused(self, tiny: Callable[..., Subject]) -> None:
        packed = tiny("Q8_0").opened.tensors
        down = next(tensor for name, tensor in packed.items() if name.endswith("down_proj.weight"))
        assert stored_part(down, TensorPart(0, (range(8),))).shape == (8, down.shape[1])
        with pytest.raises(ExecutorError, match=r"splits weights that are stored as floats, and .*down_proj.* is Q8_0"):
            stored_part(down, TensorPart(1, (range(8),)))
