"""Executors over encoder-decoders: rows with sources of their own, against the model run by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from safetensors.torch import load_file, save_file

from glassformer.decoding import GenerationConfig, Policy, Recipe
from glassformer.decoding.loop import loop
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.gpu.executor import GpuExecutor
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.changes import Change
from glassformer.ground.errors import CheckpointError, ExecutorError, InputError, SiteError
from glassformer.ground.sites import Watch
from tests.engine.executors import EXECUTORS, Subject, write_checkpoint
from tests.parity import reference
from tests.site_names import usual_sites
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")

SOURCES = ([5, 9, 14, 3, 77, 21, 30], [8], [100, 42, 6, 7], [70, 2, 2])
TARGETS = ([2], [2, 31, 7, 7, 90], [2, 4], [2, 11, 12])
VOCABULARY = 140


@pytest.fixture(scope="module", params=reference.PAIRS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(params=EXECUTORS)
def subject(checkpoint: Subject, request: pytest.FixtureRequest) -> Subject:
    if request.param == "gpu" and (reason := reference.NOT_ON_GPU.get(checkpoint.config.model_type)):
        pytest.skip(f"the GPU engine does not run a model that {reason}")
    return checkpoint.with_executor(request.param)


def alone(subject: Subject, source: Sequence[int], ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """The scores after each of these ids, by one uncached pass over one pair."""
    with torch.no_grad():
        found = subject.model(torch.tensor([list(source)]), decoder_input_ids=torch.tensor([list(ids)]), use_cache=False)
    scores: np.ndarray[Any, Any] = found.logits[0].numpy()
    return scores


def same(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, atol=1e-4))


def watch_of(*patterns: str, **changes: Change) -> Watch:
    return Watch.of(
        *patterns, names=usual_sites(3, 2), changes={name.replace("_", "."): one for name, one in changes.items()}
    )


@contextmanager
def counted(subject: Subject) -> Iterator[list[int]]:
    """Over how many rows the encoder was run, call by call."""
    calls: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        for executor in (CpuExecutor, GpuExecutor):
            patch.setattr(executor, "_encode", _counting(executor._encode, calls))
        hook = subject.model.base_model.encoder.register_forward_hook(lambda _, inputs, __: calls.append(len(inputs[0])))
        yield calls
        hook.remove()


def _counting(encode: Any, calls: list[int]) -> Any:
    """An executor's `_encode` that notes over how many rows it was run."""

    def encoding(self: Any, feeds: Sequence[Any], rows: Sequence[Any]) -> Any:
        unread = sum(bool(row.source) and not row.encoded for row in rows)
        calls.extend([unread] if unread else [])
        return encode(self, feeds, rows)

    return encoding


class TestRows:
    def test_sources_and_targets_of_any_length_in_one_pass(self, subject: Subject) -> None:
        executor = subject.executor()
        rows = [executor.open(source) for source in SOURCES]
        found = executor.run([Feed(row, ids, Want.ALL) for row, ids in zip(rows, TARGETS, strict=True)])
        for scores, source, ids in zip(found, SOURCES, TARGETS, strict=True):
            wanted = alone(subject, source, ids)
            assert all(same(scores.host(at), wanted[at]) for at in range(len(ids)))
            single = subject.executor()
            assert same(single.run([Feed(single.open(source), ids)])[0].host(), wanted[-1])

    def test_the_order_of_feeds_is_the_caller_s(self, subject: Subject) -> None:
        executor = subject.executor()
        rows = [executor.open(source) for source in SOURCES]
        order = [2, 0, 3, 1]
        found = executor.run([Feed(rows[at], TARGETS[at]) for at in order])
        for at, scores in zip(order, found, strict=True):
            assert same(scores.host(), alone(subject, SOURCES[at], TARGETS[at])[-1])

    def test_rows_join_while_others_run(self, subject: Subject) -> None:
        """One more in each pass, some with the longest source so far; every token of every row is checked."""
        executor = subject.executor()
        held: list[tuple[Any, list[int], list[int]]] = []
        for step in range(7):
            if step < len(SOURCES):
                held.append((executor.open(SOURCES[(step + 1) % 4]), SOURCES[(step + 1) % 4], []))
            found = executor.run([Feed(row, [2 + step, 9]) for row, _, _ in held])
            for (row, source, ids), scores in zip(held, found, strict=True):
                ids += [2 + step, 9]
                assert row.length == len(ids)
                assert same(scores.host(), alone(subject, source, ids)[-1])

    def test_a_source_longer_than_all_before(self, subject: Subject) -> None:
        executor = subject.executor()
        first = executor.open([4, 5])
        executor.run([Feed(first, [2])])
        long = [3 + at % 100 for at in range(64)]
        second = executor.open(long)
        one, other = executor.run([Feed(first, [6]), Feed(second, [2])])
        assert same(one.host(), alone(subject, [4, 5], [2, 6])[-1])
        assert same(other.host(), alone(subject, long, [2])[-1])

    def test_token_tree_with_a_source(self, subject: Subject) -> None:
        executor = subject.executor()
        row, other = executor.open(SOURCES[0]), executor.open(SOURCES[2])
        executor.run([Feed(row, [2, 6])])
        found, plain = executor.run([Feed(row, [10, 11, 12, 13], Want.ALL, [-1, 0, 0, -1]), Feed(other, [2, 9])])
        for at, path in enumerate(([10], [10, 11], [10, 12], [13])):
            assert same(found.host(at), alone(subject, SOURCES[0], [2, 6, *path])[-1])
        assert same(plain.host(), alone(subject, SOURCES[2], [2, 9])[-1])

    def test_run_of_no_feeds(self, subject: Subject) -> None:
        assert subject.executor().run([]) == []


class TestTheEncoderRunsOnce:
    def test_encoder_runs_once_per_row(self, subject: Subject) -> None:
        executor = subject.executor()
        with counted(subject) as calls:
            rows = [executor.open(source) for source in SOURCES[:3]]
            assert calls == []  # nothing before it is needed
            executor.run([Feed(row, [2]) for row in rows[:2]])
            executor.run([Feed(row, [2, 5]) for row in rows])
            executor.run([Feed(row, [7]) for row in rows])
            executor.rewind(rows[0], 0)
            executor.run([Feed(executor.fork(rows[1]), [7]), Feed(rows[0], [2])])
            executor.select(rows, [2, 2, 1])
            executor.run([Feed(row, [8]) for row in rows])
        assert calls == [2, 1]

    def test_source_keys_are_projected_once(self, checkpoint: Subject) -> None:
        (_, project, *_), calls = checkpoint.model.base_model.cross_attention_modules[0].children(), []
        hook = project.register_forward_hook(lambda _, inputs, __: calls.append(len(inputs[0])))
        executor = checkpoint.plain()
        rows = [executor.open(source) for source in SOURCES[:3]]
        for _ in range(3):
            executor.run([Feed(row, [2]) for row in rows])
        hook.remove()
        assert calls == [3]

    def test_encoder_runs_once_in_a_whole_generation(self, checkpoint: Subject) -> None:
        ids = torch.tensor([SOURCES[0], SOURCES[2] + [0] * 3])
        with counted(checkpoint) as calls:
            checkpoint.model.generate(ids, attention_mask=ids != 0, max_new_tokens=12, eos_token_id=None)
        assert calls == [2]

    def test_encoder_runs_twice_if_forked_before_it_ran(self, subject: Subject) -> None:
        """Forks made before the first pass have nothing to share yet; those made after share it."""
        executor = subject.executor()
        row = executor.open(SOURCES[0])
        early = executor.fork(row)
        with counted(subject) as calls:
            executor.run([Feed(row, [2])])
            executor.run([Feed(executor.fork(row), [5])])
            executor.run([Feed(early, [2])])
        assert calls == [1, 1]


class TestMoves:
    def test_fork_before_the_first_run(self, subject: Subject) -> None:
        """Also beside rows that have run, whose memory has no place for the new ones yet."""
        executor = subject.executor()
        executor.run([Feed(executor.open([9]), [2])])
        row = executor.open(SOURCES[0])
        other = executor.fork(row)
        assert other.length == 0
        one, two = executor.run([Feed(other, [2, 5]), Feed(row, [2])])
        assert same(one.host(), alone(subject, SOURCES[0], [2, 5])[-1])
        assert same(two.host(), alone(subject, SOURCES[0], [2])[-1])

    def test_fork_after_the_first_run(self, subject: Subject) -> None:
        executor = subject.executor()
        row, neighbour = executor.open(SOURCES[0]), executor.open(SOURCES[2])
        executor.run([Feed(row, [2, 5, 6]), Feed(neighbour, [2])])
        whole, part, none = executor.fork(row), executor.fork(row, 1), executor.fork(row, -3)
        assert (whole.length, part.length, none.length) == (3, 1, 0)
        executor.close(row)
        found = executor.run([Feed(none, [2]), Feed(part, [8]), Feed(whole, [8]), Feed(neighbour, [8])])
        for scores, ids in zip(found, ([2], [2, 8], [2, 5, 6, 8]), strict=False):
            assert same(scores.host(), alone(subject, SOURCES[0], ids)[-1])
        assert same(found[3].host(), alone(subject, SOURCES[2], [2, 8])[-1])

    @pytest.mark.parametrize("parents", [[1, 0, 2], [2, 2, 0], [1, 1, 1], [0, 1, 2], [1, 2, 0]])
    def test_select_rows_with_sources(self, subject: Subject, parents: list[int]) -> None:
        """Beams trade places, and their sources, which have different lengths, go with them."""
        executor = subject.executor()
        rows = [executor.open(source) for source in SOURCES[:3]]
        executor.run([Feed(row, ids) for row, ids in zip(rows, TARGETS, strict=False)])
        executor.select(rows, parents)
        assert [row.length for row in rows] == [len(TARGETS[parent]) for parent in parents]
        for scores, parent in zip(executor.run([Feed(row, [50]) for row in rows]), parents, strict=True):
            assert same(scores.host(), alone(subject, SOURCES[parent], [*TARGETS[parent], 50])[-1])

    def test_select_with_rows_that_never_ran(self, subject: Subject) -> None:
        executor = subject.executor()
        ran = executor.open(SOURCES[1])
        executor.run([Feed(ran, [2, 3])])
        fresh = executor.open(SOURCES[0])
        executor.select([ran, fresh], [1, 0])
        assert (ran.length, fresh.length) == (0, 2)
        one, other = executor.run([Feed(ran, [2]), Feed(fresh, [4])])
        assert same(one.host(), alone(subject, SOURCES[0], [2])[-1])
        assert same(other.host(), alone(subject, SOURCES[1], [2, 3, 4])[-1])

    def test_rewind_keeps_the_source(self, subject: Subject) -> None:
        executor = subject.executor()
        row = executor.open(SOURCES[0])
        executor.run([Feed(row, [2, 5, 6, 7])])
        assert executor.rewind(row, 9) == 4
        assert executor.rewind(row, 2) == 2
        assert same(executor.run([Feed(row, [30])])[0].host(), alone(subject, SOURCES[0], [2, 5, 30])[-1])
        assert executor.rewind(row, -1) == 0
        assert same(executor.run([Feed(row, [2])])[0].host(), alone(subject, SOURCES[0], [2])[-1])

    @pytest.mark.parametrize("order", list(permutations(range(3))))
    def test_close_in_any_order(self, subject: Subject, order: tuple[int, ...]) -> None:
        """The others go on undisturbed, and a newcomer takes the free place."""
        executor = subject.executor()
        rows = [executor.open(source) for source in SOURCES[:3]]
        executor.run([Feed(row, ids) for row, ids in zip(rows, TARGETS, strict=False)])
        held = {at: list(TARGETS[at]) for at in range(3)}
        for at in order:
            executor.close(rows[at])
            del held[at]
            newcomer = executor.open(SOURCES[3])
            found = executor.run([Feed(newcomer, [2]), *(Feed(rows[one], [60]) for one in held)])
            assert same(found[0].host(), alone(subject, SOURCES[3], [2])[-1])
            for (one, ids), scores in zip(held.items(), found[1:], strict=True):
                ids.append(60)
                assert same(scores.host(), alone(subject, SOURCES[one], ids)[-1])
            executor.close(newcomer)
        executor.run([Feed(executor.open(source), [2]) for source in SOURCES[:3]])
        if subject.name == "plain":
            assert (
                executor._cache.text.tensors[0].shape[1] <= 4
            )  # three rows and a newcomer were never more places than that

    @pytest.mark.parametrize("ran", [[0], [1], [0, 1], []])
    def test_close_beside_rows_that_never_ran(self, subject: Subject, ran: list[int]) -> None:
        executor = subject.executor()
        first = executor.open(SOURCES[0])
        executor.run([Feed(first, [2])])
        rows = [executor.open(source) for source in SOURCES[1:3]]
        for at in ran:
            executor.run([Feed(rows[at], [2])])
        executor.close(first)
        found = executor.run([Feed(row, [5]) for row in rows])
        for at, scores in enumerate(found):
            assert same(scores.host(), alone(subject, SOURCES[1 + at], [2, 5] if at in ran else [5])[-1])

    def test_the_loop_gives_what_generate_gives(self, subject: Subject) -> None:
        """Rows that end at different times, sources of different lengths."""
        limits = (3, 9, 5, 1)
        policies = [
            Policy(Recipe.of(GenerationConfig(max_new_tokens=limit)), [2], context=64, source=source)
            for limit, source in zip(limits, SOURCES, strict=True)
        ]
        for _ in loop(subject.executor(), policies):
            pass
        for policy, source, limit in zip(policies, SOURCES, limits, strict=True):
            ids = [2]
            for _ in range(limit):
                ids.append(int(alone(subject, source, ids)[-1].argmax()))
            assert policy.chosen == ids[1:]


class TestWatching:
    def test_the_encoder_is_seen_with_the_first_run_only(self, subject: Subject) -> None:
        executor = subject.executor()
        watch = watch_of("*")
        rows = [executor.open(source) for source in SOURCES[:3]]
        first = executor.run([Feed(row, [2], watch=None if at == 1 else watch) for at, row in enumerate(rows)])
        assert not first[1].sites
        for at in (0, 2):
            wanted = subject.model(torch.tensor([SOURCES[at]]), decoder_input_ids=torch.tensor([[2]]), watch="*").sites
            assert first[at].sites.keys() == wanted.keys()
            for site, value in wanted.items():
                assert first[at].sites[site].shape == value.shape, site
                assert same(first[at].sites[site], value), site
        second = executor.run([Feed(row, [6], watch=watch) for row in rows])
        for scores in second:
            assert scores.sites
            assert not any(site.startswith("encoder.") for site in scores.sites)
        (forked,) = executor.run([Feed(executor.fork(rows[0]), [9], watch=watch)])
        assert not any(site.startswith("encoder.") for site in forked.sites)

    def test_patterns_are_cut_to_the_row_s_own_source(self, subject: Subject) -> None:
        executor = subject.executor()
        watch = watch_of("*.pattern", "*.cross.key")
        found = executor.run([
            Feed(executor.open(source), ids, watch=watch) for source, ids in zip(SOURCES, TARGETS, strict=True)
        ])  # fmt: skip
        for scores, source, ids in zip(found, SOURCES, TARGETS, strict=True):
            for block in range(3):
                cross = scores.sites[f"blocks.{block}.cross.pattern"]
                assert cross.shape == (1, 4, len(ids), len(source))
                assert np.allclose(cross.sum(-1), 1, atol=1e-5)
                assert scores.sites[f"blocks.{block}.cross.key"].shape[2] == len(source)
            own = scores.sites["encoder.blocks.1.attention.pattern"]
            assert own.shape[2:] == (len(source), len(source))
            assert np.allclose(own.sum(-1), 1, atol=1e-5)

    @pytest.mark.parametrize(
        "site", ["encoder.embedding", "encoder.blocks.0.residual", "blocks.0.cross.update", "blocks.1.cross.value", "scores"]
    )
    def test_a_change_stays_in_its_row(self, subject: Subject, site: str) -> None:
        """Its neighbours in the pass come out bit for bit the same, and it as it would alone."""
        watch = watch_of(site, **{site.replace(".", "_"): Change(scale=0.5, shift=0.2)})
        both = []
        for given in (None, watch):
            executor = subject.executor()
            rows = [executor.open(source) for source in SOURCES]
            feeds = [
                Feed(row, ids, watch=given if at == 2 else None)
                for at, (row, ids) in enumerate(zip(rows, TARGETS, strict=True))
            ]
            both.append([scores.host() for scores in executor.run(feeds)])
        plain, changed = both
        together = subject.name == "plain" and bool(subject.blueprint.routed_blocks)  # PyTorch multiplies an expert's rows
        for at in (0, 1, 3):
            assert np.array_equal(plain[at], changed[at]) or (together and np.allclose(plain[at], changed[at], atol=1e-6))
        assert not np.allclose(plain[2], changed[2], atol=1e-3)
        whole = subject.model(torch.tensor([SOURCES[2]]), decoder_input_ids=torch.tensor([TARGETS[2]]), watch=watch)
        assert same(changed[2], whole.logits[0, -1])

    def test_positions_on_the_encoder_s_side_are_the_source_s(self, subject: Subject) -> None:
        site = "encoder.blocks.0.residual"
        watch = watch_of(site, encoder_blocks_0_residual=Change(scale=0.0, positions={1, 3}))
        executor = subject.executor()
        executor.run([Feed(executor.open(SOURCES[0]), [2])])
        _, found = executor.run([Feed(executor.open(SOURCES[3]), [2]), Feed(executor.open(SOURCES[2]), [2], watch=watch)])
        silent = np.abs(np.asarray(found.sites[site][0])).max(-1) == 0
        assert silent.tolist() == [False, True, False, True]

    def test_unknown_site_is_refused(self, subject: Subject) -> None:
        executor = subject.executor()
        row = executor.open(SOURCES[0])
        with pytest.raises(SiteError, match=r"'encoder\.blocks\.9\.residual'"):
            executor.run([Feed(row, [2], watch=Watch(frozenset({"encoder.blocks.9.residual"})))])
        assert same(executor.run([Feed(row, [2])])[0].host(), alone(subject, SOURCES[0], [2])[-1])


class TestBadInput:
    @pytest.mark.parametrize("source", [None, [], ()])
    def test_missing_source_is_refused(self, subject: Subject, source: Any) -> None:
        with pytest.raises(ExecutorError, match="needs a source"):
            subject.executor().open(source)

    @pytest.mark.parametrize("wrong", [VOCABULARY, -1])
    def test_ids_outside_the_vocabulary_are_refused(self, subject: Subject, wrong: int) -> None:
        executor = subject.executor()
        with pytest.raises(InputError, match=f"token id {wrong}"):
            executor.open([5, wrong])
        row = executor.open([5])
        with pytest.raises(InputError, match=f"token id {wrong}"):
            executor.run([Feed(row, [2, wrong])])
        assert row.length == 0
        assert same(executor.run([Feed(row, [2])])[0].host(), alone(subject, [5], [2])[-1])

    def test_closed_rows_are_refused(self, subject: Subject) -> None:
        executor = subject.executor()
        row = executor.open([5])
        executor.close(row)
        for act in (
            lambda: executor.run([Feed(row, [1])]),
            lambda: executor.fork(row),
            lambda: executor.rewind(row, 0),
            lambda: executor.select([row], [0]),
            lambda: executor.close(row),
        ):
            with pytest.raises(ExecutorError, match="row is closed"):
                act()

    def test_row_fed_twice_is_refused(self, subject: Subject) -> None:
        executor = subject.executor()
        row = executor.open([5])
        with pytest.raises(ExecutorError, match="fed twice"):
            executor.run([Feed(row, [2]), Feed(row, [3])])
        assert row.length == 0


@pytest.mark.parametrize("name", EXECUTORS)
def test_source_longer_than_the_context_is_refused(name: str, tmp_path: Path) -> None:
    """BART has a table of positions; T5 has none."""
    executor = write_checkpoint(tmp_path, "bart", max_position_embeddings=8).with_executor(name).executor()
    with pytest.raises(InputError, match="9 tokens"):
        executor.open([5] * 9)
    row = executor.open([6] * 8)
    executor.run([Feed(row, [2])])
    assert row.length == 1


# Property test --------------------------------------------------------------------------------------------------

tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)
places = st.integers(0, 30)


class ProtocolMachine(RuleBasedStateMachine):
    """Every move of the protocol in any order; what is remembered beside it is only ids."""

    subject: Subject

    @initialize()
    def begin(self) -> None:
        self.executor = self.subject.executor()
        self.held: list[tuple[Any, list[int], list[int]]] = []  # row, source, ids

    @precondition(lambda self: len(self.held) < 5)
    @rule(source=tokens)
    def open(self, source: list[int]) -> None:
        self.held.append((self.executor.open(source), source, []))

    @precondition(lambda self: self.held)
    @rule(chosen=st.sets(places, min_size=1, max_size=4), ids=st.lists(tokens, min_size=4, max_size=4))
    def run(self, chosen: set[int], ids: list[list[int]]) -> None:
        fed = [(self.held[at], new) for at, new in zip(sorted({one % len(self.held) for one in chosen}), ids, strict=False)]
        found = self.executor.run([Feed(row, new, Want.ALL) for (row, _, _), new in fed])
        for ((_, source, so_far), new), scores in zip(fed, found, strict=True):
            so_far += new
            wanted = alone(self.subject, source, so_far)[-len(new) :]
            assert all(same(scores.host(at), wanted[at]) for at in range(len(new)))

    @precondition(lambda self: 0 < len(self.held) < 5)
    @rule(at=places, length=st.none() | st.integers(0, 8))
    def fork(self, at: int, length: int | None) -> None:
        row, source, ids = self.held[at % len(self.held)]
        self.held.append((self.executor.fork(row, length), source, ids[:length]))

    @precondition(lambda self: self.held)
    @rule(parents=st.lists(places, min_size=5, max_size=5))
    def select(self, parents: list[int]) -> None:
        chosen = [parent % len(self.held) for parent in parents[: len(self.held)]]
        self.executor.select([row for row, _, _ in self.held], chosen)
        before = self.held
        self.held = [(row, before[at][1], list(before[at][2])) for (row, _, _), at in zip(before, chosen, strict=True)]

    @precondition(lambda self: self.held)
    @rule(at=places, length=st.integers(0, 8))
    def rewind(self, at: int, length: int) -> None:
        row, _, ids = self.held[at % len(self.held)]
        assert self.executor.rewind(row, length) == len(ids[:length])
        del ids[length:]

    @precondition(lambda self: self.held)
    @rule(at=places)
    def close(self, at: int) -> None:
        self.executor.close(self.held.pop(at % len(self.held))[0])

    @invariant()
    def lengths_agree(self) -> None:
        assert [row.length for row, _, _ in getattr(self, "held", [])] == [
            len(ids) for _, _, ids in getattr(self, "held", [])
        ]


@pytest.mark.parametrize("examples", [8, *swept([50])])
@pytest.mark.every_combination
def test_protocol_state_machine_with_sources(subject: Subject, examples: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    quick = settings(
        max_examples=examples, stateful_step_count=20, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(type("SubjectMachine", (ProtocolMachine,), {"subject": subject}), settings=quick)


@pytest.mark.every_combination
@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("family", ["pegasus", "marian"])
def test_a_stored_table_of_positions_is_used_in_place_of_sinusoids(family: str, name: str, tmp_path: Path) -> None:
    theirs = reference.write(tmp_path, family, "seq2seq")
    path = tmp_path / "model.safetensors"
    tensors, shape = load_file(path), (theirs.config.max_position_embeddings, theirs.config.d_model)
    for stack in ("encoder", "decoder"):
        tensors[f"model.{stack}.embed_positions.weight"] = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    save_file(tensors, path, {"format": "pt"})
    theirs = type(theirs).from_pretrained(tmp_path).eval()
    source, ids = [5, 9, 7, 1], [2, 8, 9]
    executor = Subject(tmp_path, name).executor()
    (scores,) = executor.run([Feed(executor.open(source), ids)])
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([ids])).logits[0, -1]
    assert np.allclose(scores.host(), expected.numpy(), atol=1e-4)
    tensors["model.encoder.embed_positions.weight"] = torch.zeros(3, shape[1])
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"embed_positions.weight.* has shape \(3,"):
        (broken := Subject(tmp_path, name).executor()).run([Feed(broken.open(source), ids)])
