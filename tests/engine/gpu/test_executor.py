"""The GPU executor: at every site what the plain one computes, bit for bit the same in any batch, and passes cut right.

Most of it runs with kernels written in PyTorch; what is promised bit for bit runs with the real ones, under Triton's
interpreter.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.engine.gpu import device_steps, kernels, kv_pool
from glassformer.engine.gpu import executor as engine
from glassformer.engine.gpu.executor import GpuExecutor
from glassformer.engine.gpu.graphs import padded_prompt, padded_size, power_of_two
from glassformer.engine.gpu.passes import LogitBatch
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.candidates import top
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError, InputError
from tests.engine.executors import Subject, open_all, scores_of, write_checkpoint
from tests.engine.gpu import torch_kernels
from tests.parity import reference

pytestmark = pytest.mark.usefixtures("one_thread")

Tiny = Callable[..., Subject]
FAMILIES = reference.ON_GPU
ESSENTIAL = ("llama", "qwen3", "gemma3_text", "gpt2", "t5")


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """Models of one block, for the interpreter."""

    def made(family: str) -> Subject:
        layers: dict[str, dict[str, Any]] = {
            "t5": {"num_layers": 1, "num_decoder_layers": 1},
            "gpt2": {"n_layer": 1},
            "gemma3_text": {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
            "qwen3_5_text": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
        }
        return write_checkpoint(
            tmp_path_factory.mktemp(family), family, **layers.get(family, {"num_hidden_layers": 1}), vocab_size=140
        )

    return made


class TestNumbers:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_every_site_equals_the_plain_executor_s(self, family: str, tiny: Tiny) -> None:
        """Single tokens, short chunks and a prompt pass."""
        verdict = tiny(family).verdict(tiny(family).gpu(), (1, 9, 66 if family != "bart" else 50))
        assert verdict.agrees(1e-5), verdict.worst

    @pytest.mark.parametrize(
        "family", [*(pytest.param(name, marks=pytest.mark.sweep) for name in ESSENTIAL[1:]), "llama", "qwen3_5_text"]
    )
    def test_the_kernels_equal_the_plain_executor_at_every_site(
        self, family: str, shallow: Callable[[str], Subject]
    ) -> None:
        subject = shallow(family)
        verdict = subject.verdict(subject.gpu(kernels=kernels), (2, 1))
        assert verdict.agrees(1e-5), verdict.worst

    @pytest.mark.parametrize("cache", ["f32", "f16", "bf16"])
    def test_cache_dtypes(self, cache: str, tiny: Tiny) -> None:
        subject = tiny("qwen3")
        executor = subject.gpu(cache=cache)
        assert subject.verdict(executor, (5, 1)).agrees(1e-5 if cache == "f32" else 2e-2)
        assert executor._pool.tensor.dtype == kv_pool.DTYPES[cache]
        assert executor.describe().options == ({} if cache == "f32" else {"cache": cache})

    def test_unembed_gives_the_scores_of_the_last_residual(self, tiny: Tiny) -> None:
        subject = tiny("gemma3_text")
        executor = subject.gpu()
        watch = subject.watch("blocks.2.residual")
        (scores,) = executor.run([Feed(executor.open(), [4, 8, 15], Want.ALL, watch=watch)])
        states = scores.sites["blocks.2.residual"][0].numpy()
        expected = np.stack([scores.host(at) for at in range(3)])
        assert np.allclose(executor.unembed(states), expected, atol=1e-5)
        assert executor.unembed(states[:0]).shape == (0, subject.config.vocab_size)

    @pytest.mark.parametrize("launchers", [kernels, torch_kernels])
    def test_top_takes_the_first_of_equal_scores(self, launchers: Any) -> None:
        draw = np.random.default_rng(4)
        scores = draw.integers(-3, 3, (5, 700)).astype(np.float32) / 2
        scores[scores == 0] = draw.choice([0.0, -0.0], int((scores == 0).sum()))
        scores[2] = -np.inf
        scores[2, 5] = 1.5
        batch = LogitBatch(torch.from_numpy(scores), launchers)
        for row in range(5):
            for k in (1, 4, 64, 65, 1000):
                best, expected = batch.top(k, row), top(scores[row], k)
                assert best.ids.tolist() == expected.ids.tolist()
                assert np.array_equal(best.scores, expected.scores)
                assert np.allclose(best.probabilities, expected.probabilities, atol=1e-7)

    def test_scores_of_many_positions_come_to_the_host_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        scores = np.random.default_rng(1).standard_normal((3, 50)).astype(np.float32)
        shared = LogitBatch(torch.from_numpy(scores), torch_kernels)
        monkeypatch.setattr("glassformer.engine.gpu.passes.SHARED_ROWS", 2)
        single = LogitBatch(torch.from_numpy(scores), torch_kernels)
        assert np.array_equal(single.host(1), scores[1])
        assert single.top(3, 1).ids.tolist() == shared.top(3, 1).ids.tolist() == top(scores[1], 3).ids.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_one_site_gives_what_reading_all_gives(family: str, tiny: Tiny) -> None:
    subject = tiny(family)
    executor, (prompts, sources) = subject.gpu(), subject.rows((9, 2))

    def read(*patterns: str) -> list[Any]:
        rows = open_all(executor, prompts, sources)
        feeds = [Feed(row, ids, watch=subject.watch(*patterns)) for row, ids in zip(rows, prompts, strict=True)]
        return [scores.sites for scores in executor.run(feeds)]

    everything = read("*")
    for site in subject.blueprint.site_names.names[:: 3 if family != "llama" else 1]:
        for sites, expected in zip(read(site), everything, strict=True):
            assert set(sites) == {site}
            assert torch.allclose(sites[site], expected[site], atol=1e-5), site


def life(executor: GpuExecutor, prompts: Sequence[Sequence[int]], watch: Any = None) -> list[Any]:
    """The scores of rows that are prompted, and grown by a token and by a chunk."""
    rows = [executor.open() for _ in prompts]
    fed = (prompts, [[7]] * len(rows), [[5, 9]] * len(rows))
    passes = [
        executor.run([Feed(row, ids, watch=watch) for row, ids in zip(rows, part, strict=True)]) for part in fed
    ]  # fmt: skip
    return [np.stack([scores.host() for scores in of_row]) for of_row in zip(*passes, strict=True)]


class TestBitExactness:
    """With the real kernels."""

    def test_a_row_alone_equals_the_row_in_a_batch(self, shallow: Callable[[str], Subject]) -> None:
        executor = shallow("qwen3").gpu(cache="bf16", kernels=kernels)
        prompts = [[4, 8, 15], [16], [23]]
        together = life(executor, prompts)
        for prompt, expected in zip(prompts, together, strict=True):
            assert np.array_equal(life(executor, [prompt])[0], expected)

    def test_a_checked_draft_has_the_scores_of_single_steps(self, shallow: Callable[[str], Subject]) -> None:
        executor = shallow("qwen3").gpu(cache="bf16", kernels=kernels)
        single, drafted, beside = (executor.open() for _ in range(3))
        executor.run([Feed(row, [4, 8, 15]) for row in (single, drafted, beside)])
        ids = [7, 5, 9, 2, 11]
        steps = [executor.run([Feed(single, [token])])[0].host().copy() for token in ids]
        scores, _ = executor.run([Feed(drafted, ids, Want.ALL), Feed(beside, [3])])
        assert all(np.array_equal(scores.host(number - len(ids)), step) for number, step in enumerate(steps))
        executor.rewind(drafted, 5)  # what was not accepted leaves nothing behind
        assert np.array_equal(executor.run([Feed(drafted, ids[2:3])])[0].host(), steps[2])

    def test_watching_changes_no_bit(self, shallow: Callable[[str], Subject]) -> None:
        subject = shallow("llama")
        executor = subject.gpu(kernels=kernels)
        prompts = [[4, 8, 15], [16]]
        unwatched = life(executor, prompts)
        for scores, expected in zip(life(executor, prompts, subject.watch("*")), unwatched, strict=True):
            assert np.array_equal(scores, expected)

    @pytest.mark.sweep
    @pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
    def test_prompts_beside_steps(self, family: str, shallow: Callable[[str], Subject]) -> None:
        subject = shallow(family)
        executor = subject.gpu(kernels=kernels)
        prompts, _ = subject.rows((70, 3, 64, 1))
        together = life(executor, prompts)
        for number in range(3):
            assert np.array_equal(life(executor, prompts[number : number + 1])[0], together[number])
        watched = life(executor, prompts[:2], subject.watch("blocks.0.residual"))
        assert all(np.array_equal(scores, together[number]) for number, scores in enumerate(watched))

    @pytest.mark.sweep
    def test_capturing_a_prompt_changes_no_bit(self, shallow: Callable[[str], Subject]) -> None:
        """It is padded then; and greedy steps choose by the same scores as single ones."""
        subject = shallow("qwen3")
        executor, ((prompt,), _) = subject.gpu(cache="bf16", kernels=kernels), subject.rows((66,))
        rows = [executor.open() for _ in range(2)]
        eager, captured = (executor.run([Feed(row, prompt)])[0].host() for row in rows)
        assert any(shape.prompt for _, shape in executor._replays._replays)
        assert np.array_equal(eager, captured)
        best = executor.capabilities.sampler.best(rows[:1], [5], 3)[0].tolist()
        for token, expected in zip([5, *best], best, strict=False):
            assert int(executor.run([Feed(rows[1], [token])])[0].host().argmax()) == expected


class TestPasses:
    def test_long_prompts_are_cut_at_multiples_of_a_chunk(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        """By their own lengths; what would be left over as less than a prompt takes more of the chunk before it."""
        subject = tiny("qwen3")
        executor = subject.gpu()
        lengths = (200, 64, 63, 1, 129, 97)
        prompts, _ = subject.rows(lengths)
        whole = scores_of(executor, [executor.open() for _ in prompts], prompts)
        monkeypatch.setattr(engine, "PROMPT_CHUNK", 128)
        monkeypatch.setattr(engine, "MAX_PROMPT_TOKENS", 256)
        passes = record_passes(executor, monkeypatch)
        watch = subject.watch("blocks.1.residual", "blocks.0.attention.key", "scores")
        rows = [executor.open() for _ in prompts]
        results = executor.run([Feed(row, ids, Want.ALL, watch=watch) for row, ids in zip(rows, prompts, strict=True)])
        for scores, expected, ids in zip(results, whole, prompts, strict=True):
            assert np.allclose(scores.sites["scores"][0].numpy(), expected, atol=1e-4)
            assert scores.sites["blocks.1.residual"].shape[1] == scores.sites["blocks.0.attention.key"].shape[2] == len(ids)
        assert passes == [
            (True, [(0, 0, 128), (1, 0, 64)]), (True, [(4, 0, 65), (5, 0, 97)]), (True, [(0, 128, 72), (4, 65, 64)]),
            (False, [(3, 0, 1)]), (False, [(2, 0, 63)]),
        ]  # fmt: skip

    def test_trees_go_alone_and_changed_patterns_whole(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        subject = tiny("llama")
        executor = subject.gpu()
        monkeypatch.setattr(engine, "PROMPT_CHUNK", 64)
        passes = record_passes(executor, monkeypatch)
        watch = subject.watch(changes={"blocks.0.attention.pattern": Change(scale=0.5)})
        tree = Feed(executor.open(), [5] * 70, parents=list(range(-1, 69)))
        executor.run([tree, Feed(executor.open(), [3] * 70, watch=watch), Feed(executor.open(), [9])])
        assert passes == [(True, [(1, 0, 70)]), (False, [(2, 0, 1)]), (False, [(0, 0, 70)])]

    def test_an_unscored_prompt_computes_no_scores(self, tiny: Tiny) -> None:
        subject = tiny("llama")
        executor = subject.gpu()
        row = executor.open()
        (scores,) = executor.run([Feed(row, [4] * 70, Want.NONE)])
        with pytest.raises(ExecutorError, match="Want.NONE"):
            scores.top(1)
        (after,) = executor.run([Feed(row, [5])])
        (expected,) = executor.run([Feed(executor.open(), [*[4] * 70, 5])])
        assert np.allclose(after.host(), expected.host(), atol=1e-5)


def record_passes(executor: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the passes from now on are made of: (prompt, [(feed, offset, count), …]) each."""
    passes: list[Any] = []
    run = executor._run_pass

    def recording(prepared: Any, chunks: Any) -> Any:
        passes.append((engine.are_prompts(chunks), [(chunk.index, chunk.offset, chunk.count) for chunk in chunks]))
        return run(prepared, chunks)

    monkeypatch.setattr(executor, "_run_pass", recording)
    return passes


class TestReplays:
    def test_one_for_each_padded_size_and_length(self, tiny: Tiny) -> None:
        executor = tiny("qwen3").gpu()
        rows = [executor.open() for _ in range(5)]
        executor.run([Feed(row, [3, 4]) for row in rows])
        replays = executor._replays._replays
        assert not replays
        for count in (1, 3, 4, 5):
            executor.run([Feed(row, [7]) for row in rows[:count]])
        assert [(shape.tokens, shape.max_keys) for _, shape in replays] == [(1, 256), (4, 256), (8, 256)]

    def test_the_least_recently_used_is_dropped(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("glassformer.engine.gpu.graphs.MAX_GRAPHS", 2)
        executor = tiny("qwen3").gpu()
        rows = [executor.open() for _ in range(4)]
        for count in (1, 2, 1, 4):
            executor.run([Feed(row, [7]) for row in rows[:count]])
        assert [shape.tokens for _, shape in executor._replays._replays] == [1, 4]

    def test_a_pool_that_grows_drops_them(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kv_pool, "FIRST_PAGES", 3)
        subject = tiny("qwen3")
        executor = subject.gpu()
        rows = [executor.open() for _ in range(2)]
        executor.run([Feed(row, [7]) for row in rows])
        (before,) = executor._replays._replays.values()
        rows += [executor.open() for _ in range(3)]
        results = executor.run([Feed(row, [8]) for row in rows])
        assert before not in executor._replays._replays.values()
        (expected,) = executor.run([Feed(executor.open(), [7, 8])])
        assert np.allclose(results[1].host(), expected.host(), atol=1e-5)

    @pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 4), (33, 48), (100, 128), (256, 256), (257, None)])
    def test_padded_sizes(self, rows: int, size: int | None) -> None:
        assert padded_size(rows) == size

    @pytest.mark.parametrize("want", [Want.LAST, Want.NONE])
    def test_a_prompt_is_captured_when_it_comes_again(self, want: Want, tiny: Tiny) -> None:
        """Padded; and what is read of it is the same."""
        subject = tiny("gemma3_text")
        executor, ((prompt,), _) = subject.gpu(), subject.rows((77,))
        watch = subject.watch("blocks.0.residual", "blocks.2.attention.value")
        results = []
        for _ in range(3):
            row = executor.open()
            (scores,) = executor.run([Feed(row, prompt, want, watch=watch)])
            (after,) = executor.run([Feed(row, [5])])
            results.append((scores, after.host()))
        prompts = [shape for _, shape in executor._replays._replays if shape.prompt]
        assert [(shape.tokens, shape.feeds, shape.scored) for shape in prompts] == [(128, 2, int(want is Want.LAST))]
        (eager, after_eager), *captured = results
        for scores, after in captured:
            assert np.allclose(after, after_eager, atol=1e-5)
            assert all(torch.allclose(scores.sites[site], eager.sites[site], atol=1e-5) for site in eager.sites)
            assert scores.sites["blocks.0.residual"].shape[1] == 77
            if want is Want.LAST:
                assert np.allclose(scores.host(), eager.host(), atol=1e-5)

    @pytest.mark.parametrize(
        ("tokens", "padded"), [(64, 64), (65, 128), (512, 512), (513, 640), (1024, 1024), (1025, 1280), (2048, 2048)]
    )
    def test_padded_prompts(self, tokens: int, padded: int) -> None:
        assert padded_prompt(tokens) == padded

    @pytest.mark.parametrize(("keys", "rounded"), [(1, 256), (256, 256), (257, 512), (4096, 4096), (4097, 8192)])
    def test_powers_of_two(self, keys: int, rounded: int) -> None:
        assert power_of_two(keys, 256) == rounded


class TestGreedySteps:
    @pytest.mark.parametrize("family", [*ESSENTIAL, "bart"])
    def test_they_give_the_best_tokens_of_single_steps(self, family: str, tiny: Tiny) -> None:
        subject = tiny(family)
        executor, (prompts, sources) = subject.gpu(), subject.rows((57, 1, 9))
        rows, others = (open_all(executor, prompts, sources) for _ in range(2))
        for some in (rows, others):
            executor.run([Feed(row, ids, Want.NONE) for row, ids in zip(some, prompts, strict=True)])
        best = executor.capabilities.sampler.best(rows, [5, 6, 7], 4)
        fed, expected = [5, 6, 7], []
        for _ in range(4):
            results = executor.run([Feed(row, [token]) for row, token in zip(others, fed, strict=True)])
            fed = [int(scores.host().argmax()) for scores in results]
            expected.append(fed)
        assert best.T.tolist() == expected
        assert [row.length for row in rows] == [row.length for row in others]
        after = (executor.run([Feed(row, [8]) for row in some]) for some in (rows, others))
        for mine, theirs in zip(*after, strict=True):
            assert np.allclose(mine.host(), theirs.host(), atol=1e-5)

    def test_many_steps_and_many_rows_go_in_several_pieces(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        executor = tiny("llama").gpu()
        whole = executor.capabilities.sampler.best([executor.open() for _ in range(3)], [5, 6, 7], 7)
        monkeypatch.setattr(device_steps, "MAX_STEPS", 3)
        monkeypatch.setattr(device_steps, "SIZES", (1, 2))
        assert np.array_equal(executor.capabilities.sampler.best([executor.open() for _ in range(3)], [5, 6, 7], 7), whole)

    def test_an_unread_source_is_encoded_first(self, tiny: Tiny) -> None:
        executor = tiny("t5").gpu()
        fresh, read = executor.open([5, 9]), executor.open([5, 9])
        (scores,) = executor.run([Feed(read, [2])])
        assert executor.capabilities.sampler.best([fresh], [2], 1).tolist() == [[int(scores.host().argmax())]]

    def test_rope_that_depends_on_the_length(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        """Its frequencies are those of each step."""
        rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
        subject = write_checkpoint(
            tmp_path_factory.mktemp("rope"), "llama", rope_parameters=rope, max_position_embeddings=8
        )  # fmt: skip
        executor = subject.gpu()
        best = executor.capabilities.sampler.best([executor.open()], [5], 6)[0].tolist()
        row, fed = executor.open(), [5]
        for token in best:
            (scores,) = executor.run([Feed(row, fed[-1:])])
            assert int(scores.host().argmax()) == token
            fed.append(token)

    def test_a_row_that_crosses_longropes_switch_is_read_anew_by_the_kernels(self, tmp_path: Any) -> None:
        """Beside one that does not: each has its own frequencies, in passes and in the engine's own steps."""
        rope = {
            "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 5,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
        }  # fmt: skip
        subject = write_checkpoint(tmp_path, "llama", rope_parameters=rope, num_hidden_layers=1)
        executor = subject.gpu(kernels=kernels)
        texts = [[5, 6, 7, 8], [9, 4]]
        rows = [executor.open() for _ in texts]
        executor.run([Feed(row, ids) for row, ids in zip(rows, texts, strict=True)])
        best = executor.capabilities.sampler.best(rows, [3, 3], 2)
        assert (best[0, 1], best[1, 1] >= 0) == (-1, True)
        executor.rewind(rows[0], 5)
        last = executor.run([Feed(rows[0], [int(best[0, 0])]), Feed(rows[1], [int(best[1, 1])])])
        for ids, own, scores in zip(texts, best.tolist(), last, strict=True):
            fed = torch.tensor([[*ids, 3, *(token for token in own if token >= 0)]])
            assert np.allclose(scores.host(), subject.model(fed).logits[0, -1].detach().numpy(), atol=1e-4)

    def test_scores_that_are_not_numbers_end_a_row(self, tiny: Tiny) -> None:
        executor = tiny("llama").gpu()
        rows = [executor.open() for _ in range(2)]
        executor.run([Feed(row, [4]) for row in rows])
        executor._pool.tensor[rows[1].pages.pages[0]] = torch.nan
        best = executor.capabilities.sampler.best(rows, [5, 6], 3)
        assert (best[0] >= 0).all()
        assert best[1].tolist() == [-1, -1, -1]

    def test_what_cannot_be_decoded_is_refused(self, tiny: Tiny) -> None:
        executor = tiny("llama").gpu()
        row = executor.open()
        assert executor.capabilities.sampler.best([], [], 3).shape == (0, 3)
        assert executor.capabilities.sampler.best([row], [5], 0).shape == (1, 0)
        with pytest.raises(InputError, match="id 999"):
            executor.capabilities.sampler.best([row], [999], 2)
        with pytest.raises(InputError, match="do not fit"):
            executor.capabilities.sampler.best([row], [5], 10**6)
        with pytest.raises(ExecutorError, match="fed twice"):
            executor.capabilities.sampler.best([row, row], [5, 6], 2)
        executor.close(row)
        with pytest.raises(ExecutorError, match="row is closed"):
            executor.capabilities.sampler.best([row], [5], 2)

    def test_steps_without_memory_leave_rows_as_they_were(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        executor = tiny("llama").gpu()
        monkeypatch.setattr(device_steps, "MAX_STEPS", 2)
        row, calls = executor.open(), []
        copies = device_steps.HostCopies

        def fail_later(values: Any) -> Any:
            calls.append(values)
            if len(calls) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return copies(values)

        monkeypatch.setattr(device_steps, "HostCopies", fail_later)
        with pytest.raises(ExecutorError, match="the GPU lacks memory for these steps"):
            executor.capabilities.sampler.best([row], [5], 6)
        assert row.length == 0


class TestPages:
    def test_rows_give_their_pages_back(self, tiny: Tiny) -> None:
        executor = tiny("t5").gpu()
        rows = [executor.open([5, 6]), executor.open([7] * 70)]
        executor.run([Feed(row, [2, 3]) for row in rows])
        assert executor._pool.used == 5
        fork = executor.fork(rows[1])
        executor.run([Feed(fork, [4])])
        assert executor._pool.used == 6  # the fork's own last page; the source's are shared
        for row in (*rows, fork):
            executor.close(row)
        assert all(pool.used == 0 for pool in executor._pools.values())

    def test_rows_that_are_dropped_give_theirs_back_too(self, tiny: Tiny) -> None:
        executor = tiny("llama").gpu()
        row = executor.open()
        executor.run([Feed(row, [4] * 70)])
        assert executor._pool.used == 2
        del row
        gc.collect()
        assert executor._pool.used == 0

    def test_a_pass_without_memory_leaves_rows_as_they_were(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        executor = tiny("llama").gpu()
        row = executor.open()
        executor.run([Feed(row, [4, 5])])

        def fail(*arguments: Any, **named: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        with monkeypatch.context() as patch:
            patch.setattr(engine, "new_buffers", fail)
            with pytest.raises(ExecutorError, match="the GPU lacks memory for this pass. Close other programs"):
                executor.run([Feed(row, [6])])
        assert row.length == 2
        (after,), (expected,) = executor.run([Feed(row, [6])]), executor.run([Feed(executor.open(), [4, 5, 6])])
        assert np.allclose(after.host(), expected.host(), atol=1e-5)

    @pytest.mark.parametrize("family", ["llama", "t5"])
    @pytest.mark.parametrize("last", [1, 3])
    def test_an_interrupted_pass_leaves_rows_as_they_were(self, last: int, family: str, tiny: Tiny) -> None:
        """Ctrl-C between two kernels, of an encoder's pass or a decoder's."""
        launches = 0

        class Interrupted:
            def __getattr__(self, name: str) -> Any:
                nonlocal launches
                launches += name == "attention"
                if launches == last:
                    raise KeyboardInterrupt
                return getattr(torch_kernels, name)

        executor = tiny(family).gpu()
        row, other = (executor.open([9, 8, 7] if family == "t5" else None) for _ in range(2))
        executor._kernels = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            executor.run([Feed(row, [4, 5, 6])])
        launches = 0
        with pytest.raises(KeyboardInterrupt):
            executor.capabilities.sampler.best([row], [4], 5)
        assert row.length == 0
        executor._kernels = torch_kernels
        (after,), (expected,) = executor.run([Feed(row, [4, 5, 6])]), executor.run([Feed(other, [4, 5, 6])])
        assert np.array_equal(after.host(), expected.host())
