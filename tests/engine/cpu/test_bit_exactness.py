"""What the CPU engine promises bit for bit: a row's numbers depend on nothing but the row.

Not on the rest of the batch, nor on how many threads there are, nor on where a long prompt is cut, nor on being watched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassformer.engine.cpu import executor as engine
from glassformer.engine.cpu.library import levels
from glassformer.engine.protocol import CACHES, Feed
from tests.engine.cpu.packed import KEPT
from tests.engine.executors import Subject, open_all, scores_of, write_checkpoint
from tests.parity import reference
from tests.site_names import usual_sites

pytestmark = pytest.mark.usefixtures("one_thread")

Tiny = Callable[..., Subject]
FAMILIES = (*reference.DECODERS, *reference.PAIRS)
RAGGED = (9, 1, 33, 2, 64, 17, 3, 5)  # eight rows


def ragged_run(
    subject: Subject, executor: Any, batched: bool, watch: Any = None, lengths: tuple[int, ...] = RAGGED
) -> list[Any]:
    """All scores of some rows that are prompted, grown by a token, and grown by a chunk: all together, or each alone."""
    prompts, sources = subject.rows([min(length, subject.config.context - 10) for length in lengths])
    groups = [range(len(prompts))] if batched else [[at] for at in range(len(prompts))]
    found: list[Any] = []
    for group in groups:
        some = [prompts[at] for at in group]
        rows = open_all(executor, some, sources and [sources[at] for at in group])
        passes = [
            scores_of(executor, rows, ids, watch) for ids in (some, [[7] for _ in some], [prompts[0][:9] for _ in some])
        ]
        found += [np.concatenate(parts) for parts in zip(*passes, strict=True)]
        for row in rows:
            executor.close(row)
    return found


def run_pass(executor: Any, rows: list[Any], prompts: list[list[int]], watch: Any) -> Any:
    """One pass with the last position scored."""
    return executor.run([Feed(row, prompt, watch=watch) for row, prompt in zip(rows, prompts, strict=True)])


def assert_identical(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for number, (mine, yours) in enumerate(zip(one, other, strict=True)):
        assert np.array_equal(mine, yours), f"row {number} differs by {np.abs(mine - yours).max()}"


class TestBatchInvariance:
    @pytest.mark.parametrize("what", [*KEPT, *FAMILIES])
    def test_batch_invariance_among_eight_rows(self, what: str, tiny: Tiny) -> None:
        executor = tiny(what).cpu(threads=2)
        assert_identical(ragged_run(tiny(what), executor, batched=True), ragged_run(tiny(what), executor, batched=False))

    @pytest.mark.parametrize("cache", CACHES)
    @pytest.mark.parametrize("what", ["Q4_K", "gemma3_text", "bart"])
    def test_batch_invariance_in_each_cache_dtype(self, what: str, cache: str, tiny: Tiny) -> None:
        executor = tiny(what).cpu(cache=cache, threads=2)
        assert_identical(ragged_run(tiny(what), executor, batched=True), ragged_run(tiny(what), executor, batched=False))

    @pytest.mark.parametrize("level", levels())
    @pytest.mark.parametrize("what", ["F32", "BF16", "Q4_1", "Q6_K"])
    def test_batch_invariance_on_each_level(self, what: str, level: str, tiny: Tiny) -> None:
        executor = tiny(what).cpu(level=level, threads=2)
        assert_identical(ragged_run(tiny(what), executor, batched=True), ragged_run(tiny(what), executor, batched=False))

    @pytest.mark.parametrize("activations", ["mixed", "q8"])
    @pytest.mark.parametrize("level", levels())
    @pytest.mark.parametrize("what", ["Q8_0", "Q4_1", "Q6_K"])
    def test_batch_invariance_with_coarser_activations(self, what: str, level: str, activations: str, tiny: Tiny) -> None:
        executor = tiny(what).cpu(activations=activations, level=level, threads=2)
        assert_identical(ragged_run(tiny(what), executor, batched=True), ragged_run(tiny(what), executor, batched=False))

    @pytest.mark.sweep
    @pytest.mark.parametrize("level", levels())
    @pytest.mark.parametrize("cache", CACHES)
    @pytest.mark.parametrize("what", [*KEPT, *FAMILIES])
    def test_batch_invariance_in_every_combination(self, what: str, cache: str, level: str, tiny: Tiny) -> None:
        one, three = (tiny(what).cpu(cache=cache, level=level, threads=threads) for threads in (1, 3))
        assert_identical(ragged_run(tiny(what), one, batched=True), ragged_run(tiny(what), three, batched=False))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A model with room for several chunks of keys."""
    folder = tmp_path_factory.mktemp("long")
    return write_checkpoint(folder, "llama", max_position_embeddings=1024, num_hidden_layers=2, vocab_size=40)


class TestThreads:
    @pytest.mark.parametrize("what", ["F32", "Q4_K", "gpt2", "t5"])
    def test_results_do_not_depend_on_the_number_of_threads(self, what: str, tiny: Tiny) -> None:
        one, *others = (ragged_run(tiny(what), tiny(what).cpu(threads=threads), batched=True) for threads in (1, 2, 4))
        for other in others:
            assert_identical(one, other)

    @pytest.mark.parametrize("cache", CACHES)
    def test_results_do_not_depend_on_threads_with_many_keys(self, cache: str, long: Subject) -> None:
        """Then a single query's keys are shared out among threads, chunk by chunk."""
        found = []
        for threads in (1, 2, 4):
            executor = long.cpu(cache=cache, threads=threads)
            found += [ragged_run(long, executor, batched, lengths=(600, 300, 2)) for batched in (True, False)]
        for other in found[1:]:
            assert_identical(found[0], other)


class TestPromptChunks:
    @pytest.mark.parametrize("what", ["F32", "Q4_K", "gemma3_text"])
    def test_results_do_not_depend_on_prompt_chunks(self, what: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = ragged_run(tiny(what), tiny(what).cpu(), batched=True)
        for piece, scored_ in ((16, 4), (5, 5), (1, 1)):
            monkeypatch.setattr(engine, "MAX_TOKENS", piece)
            monkeypatch.setattr(engine, "MAX_SCORED_TOKENS", scored_)
            assert_identical(whole, ragged_run(tiny(what), tiny(what).cpu(), batched=True))

    def test_fed_at_once_or_one_by_one(self, tiny: Tiny) -> None:
        subject = tiny("Q8_0")
        (prompt,), _ = subject.rows((40,))
        executor = subject.cpu(threads=2)
        (whole,) = scores_of(executor, [executor.open()], [prompt])
        row = executor.open()
        steps = [scores_of(executor, [row], [[token]])[0] for token in prompt]
        assert np.array_equal(whole, np.concatenate(steps))


class TestWatching:
    @pytest.mark.parametrize("what", [*FAMILIES, "Q4_K"])
    def test_watching_all_sites_changes_no_bit(self, what: str, tiny: Tiny) -> None:
        executor, lengths = tiny(what).cpu(threads=2), (9, 1, 20)
        plain = ragged_run(tiny(what), executor, batched=True, lengths=lengths)
        assert_identical(plain, ragged_run(tiny(what), executor, batched=True, watch=tiny(what).watch("*"), lengths=lengths))

    @pytest.mark.parametrize("what", [*FAMILIES, "Q4_K"])
    def test_watching_one_site_changes_no_bit(self, what: str, tiny: Tiny) -> None:
        """And what is seen is what is seen when looking at everything."""
        subject = tiny(what)
        executor, (prompts, sources) = subject.cpu(), subject.rows((9, 2))
        plain = scores_of(executor, open_all(executor, prompts, sources), prompts)
        rows = open_all(executor, prompts, sources)
        everything = [one.sites for one in run_pass(executor, rows, prompts, subject.watch("*"))]
        for site in subject.blueprint.site_names.names:
            rows = open_all(executor, prompts, sources)
            watch = subject.watch(site)
            assert_identical(plain, scores_of(executor, rows, prompts, watch))
            rows = open_all(executor, prompts, sources)
            for found, known in zip(run_pass(executor, rows, prompts, watch), everything, strict=True):
                assert set(found.sites) == {site}
                assert np.array_equal(found.sites[site], known[site]), site

    def test_watching_one_row_changes_no_other(self, tiny: Tiny) -> None:
        subject = tiny("qwen3")
        executor, (prompts, _) = subject.cpu(), subject.rows((9, 2, 5))
        plain = [one.host() for one in executor.run([Feed(executor.open(), prompt) for prompt in prompts])]
        watches = [None, subject.watch("*"), subject.watch("blocks.1.residual")]
        found = executor.run([Feed(executor.open(), p, watch=w) for p, w in zip(prompts, watches, strict=True)])
        assert_identical(plain, [one.host() for one in found])
        assert [len(one.sites) for one in found] == [0, len(usual_sites(3).names), 1]
