"""The scheduler: in any batch each text is the one it would be alone, nothing is lost, and every row is given back."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer
from glassformer.decoding import Finish, StepDetail
from glassformer.ground.errors import ExecutorError, GlassError, InputError, QueueFull, Unavailable
from glassformer.ground.sites import Watch
from glassformer.runtime.model import Model
from glassformer.runtime.run import Run
from glassformer.serving.scheduler import Event, Generation, Scheduler, SchedulerLimits
from tests.jobs.models import chat_folder
from tests.patience import patience
from tests.see.models import both, encoder

pytestmark = pytest.mark.usefixtures("one_thread")
BEGINNING = "the cat sat on the mat and looked at the dog " * 3  # a token for each letter
LONGEST_WAIT = patience(60)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.decoding.lane.SHORTEST_CHUNK", 8)


@pytest.fixture(params=["plain", "cpu"])
def model(request: pytest.FixtureRequest) -> Model:
    return both("llama", request.param).model


@pytest.fixture
def cpu_model() -> Model:
    return both("llama", "cpu").model


class Client:
    """What a scheduler delivers, and a way to wait for it."""

    def __init__(self) -> None:
        self.events: dict[Generation, list[Event]] = defaultdict(list)
        self.order: list[Event] = []
        self._arrived = threading.Condition()

    def deliver(self, events: Sequence[Event]) -> None:
        with self._arrived:
            for event in events:
                self.events[event.generation].append(event)
                self.order.append(event)
            self._arrived.notify_all()

    def wait(self, *generations: Generation) -> None:
        """Until all of them have ended."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: all(map(self.has_ended, generations)), LONGEST_WAIT)

    def wait_for_token(self, generation: Generation) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.events[generation], LONGEST_WAIT)

    def has_ended(self, generation: Generation) -> bool:
        events = self.events[generation]
        finished = {event.index for event in events if event.error or (event.step and event.step.finish)}
        return -1 in finished or len(finished) == len(generation.runs)

    def ids(self, generation: Generation, number: int = 0) -> list[int]:
        return [event.step.id for event in self.events[generation] if event.step and event.index == number]

    def error(self, generation: Generation) -> GlassError:
        (error,) = (event.error for event in self.events[generation] if event.error)
        return error


@pytest.fixture
def client() -> Client:
    return Client()


def scheduler_of(model: Model, client: Client, **limits: Any) -> Scheduler:
    return Scheduler(model, client.deliver, SchedulerLimits(**{"prompt_chunk": 32, "cached_tokens": 20_000, **limits}))


@pytest.fixture
def scheduler(model: Model, client: Client) -> Iterator[Scheduler]:
    serving = scheduler_of(model, client)
    yield serving
    serving.close()


def request(model: Model, prompt: str, **settings: Any) -> Run:
    return model.start(prompt, raw=True, **{"max_new_tokens": 8, **settings})


def alone(run: Run) -> list[int]:
    """What follows the same prompt under the same settings, alone."""
    fresh = replace(run, steps=[], prompt_steps=[], cancelling=threading.Event())
    model: Any = run.model
    for _ in model.generate(fresh):
        pass
    return list(fresh.ids)


PROMPTS = (
    "a",
    BEGINNING + "and then",
    BEGINNING + "but why",
    "the dog sat",
    BEGINNING[9:] + "and why",
    "on the mat the cat",
)
WAYS: tuple[dict[str, Any], ...] = ({}, {"do_sample": True, "seed": 5, "temperature": 1.4}, {"repetition_penalty": 1.3})


def test_texts_that_come_together_are_those_that_each_would_be_alone(scheduler: Scheduler, client: Client) -> None:
    runs = [request(scheduler.model, prompt, **way) for prompt in PROMPTS for way in WAYS]
    generations = [scheduler.submit([run]) for run in runs]
    client.wait(*generations)
    assert [client.ids(generation) for generation in generations] == [alone(run) for run in runs]
    statistics = scheduler.statistics()
    assert (statistics.running, statistics.waiting) == (0, 0)
    assert statistics.prompt_tokens == sum(len(run.prompt_ids) for run in runs)
    assert statistics.generated_tokens == sum(len(client.ids(generation)) for generation in generations)


def test_texts_that_come_while_others_are_written_change_nothing(cpu_model: Model, client: Client) -> None:
    scheduler = scheduler_of(cpu_model, client, running=5)
    draw, runs = random.Random(3), []
    generations = []
    for _ in range(30):
        runs.append(request(cpu_model, draw.choice(PROMPTS), max_new_tokens=draw.randint(1, 12), **draw.choice(WAYS)))
        generations.append(scheduler.submit([runs[-1]], client=draw.choice("ab")))
        time.sleep(draw.random() / 100)
    client.wait(*generations)
    scheduler.close()
    assert [client.ids(generation) for generation in generations] == [alone(run) for run in runs]


def test_several_texts_of_one_prompt_draw_each_by_its_number(scheduler: Scheduler, client: Client) -> None:
    model = scheduler.model
    run = request(model, "the cat", do_sample=True, seed=3, temperature=1.5)
    runs = [run, *(replace(run, steps=[], prompt_steps=[], cancelling=threading.Event()) for _ in range(2))]
    generation = scheduler.submit(runs)
    client.wait(generation)
    keywords: dict[str, Any] = {"do_sample": True, "seed": 3, "temperature": 1.5, "num_return_sequences": 3}
    expected = model.watch_many("the cat", raw=True, max_new_tokens=8, **keywords)
    assert [client.ids(generation, number) for number in range(3)] == [list(text.ids) for text in expected]
    assert len({text.ids for text in expected}) > 1


class TestDrafts:
    PROMPTS = ("the cat sat on the mat the cat sat on the mat", "the dog the dog the dog", "aaaaaaaa")

    @pytest.fixture(autouse=True)
    def cheap_positions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on a machine that computes faster than it reads its memory, whatever this one does."""
        monkeypatch.setattr("glassformer.decoding.prompt_lookup.MeasuredCost.marginal_share", lambda cost, texts: 0.01)

    def test_texts_with_drafts_are_those_without_whoever_joins(self, model: Model, client: Client) -> None:
        scheduler, draw = scheduler_of(model, client, running=5), random.Random(4)
        runs, generations = [], []
        for prompt in self.PROMPTS * 3:
            runs.append(request(model, prompt, max_new_tokens=draw.randint(20, 40), **draw.choice(WAYS)))
            generations.append(scheduler.submit([runs[-1]], client=draw.choice("ab")))
            time.sleep(draw.random() / 50)
        leaving = scheduler.submit([request(model, self.PROMPTS[0], max_new_tokens=200)])
        client.wait_for_token(leaving)
        leaving.cancel()
        client.wait(*generations)
        scheduler.close()
        assert [client.ids(generation) for generation in generations] == [alone(run) for run in runs]

    def test_a_repetitive_text_takes_fewer_passes_than_it_has_tokens(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client)
        run = request(cpu_model, self.PROMPTS[2], max_new_tokens=100)
        generation = scheduler.submit([run])
        client.wait(generation)
        scheduler.close()
        statistics = scheduler.statistics()
        steps = [event.step for event in client.events[generation] if event.step]
        assert 0 < statistics.accepted_tokens == sum(step.drafted for step in steps) <= statistics.drafted_tokens
        assert statistics.passes < len(steps) == 100

    def test_a_draft_ends_where_it_would_change_the_numbers_before_it(self, tmp_path: Path, client: Client) -> None:
        """At longrope's switch, from which on a text has other frequencies."""
        folder = shutil.copytree(chat_folder(), tmp_path / "longrope")
        config = json.loads((folder / "config.json").read_text())
        pairs = config["hidden_size"] // config["num_attention_heads"] // 2
        switch = len(request(glassformer.load(folder, executor="cpu"), self.PROMPTS[2]).prompt_ids) + 30
        rope = {
            "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": switch,
            "short_factor": [1.0] * pairs, "long_factor": [4.0] * pairs,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
        model = glassformer.load(folder, executor="cpu")
        scheduler = scheduler_of(model, client)
        runs = [request(model, prompt, max_new_tokens=60) for prompt in self.PROMPTS[:3]]
        generations = [scheduler.submit([run]) for run in runs]
        for generation, run in zip(generations, runs, strict=True):
            client.wait(generation)
            assert client.ids(generation) == alone(run)
        scheduler.close()
        assert scheduler.statistics().drafted_tokens

    def test_a_limit_of_none_drafts_none(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client, drafted_tokens=0)
        generation = scheduler.submit([request(cpu_model, self.PROMPTS[2], max_new_tokens=40)])
        client.wait(generation)
        scheduler.close()
        assert (scheduler.statistics().drafted_tokens, scheduler.statistics().accepted_tokens) == (0, 0)


class TestPrefixes:
    def test_a_beginning_that_was_read_is_not_read_again(self, scheduler: Scheduler, client: Client) -> None:
        first, second = (request(scheduler.model, BEGINNING + rest) for rest in ("and then", "but why"))
        generations = []
        for run in (first, second):
            generations.append(scheduler.submit([run]))
            client.wait(generations[-1])
        assert generations[0].cached_tokens == 0
        shared = sum(a == b for a, b in zip(first.prompt_ids, second.prompt_ids, strict=False))
        assert shared - 3 <= generations[1].cached_tokens < len(second.prompt_ids)
        assert scheduler.statistics().cached_tokens == generations[1].cached_tokens
        assert client.ids(generations[1]) == alone(second)

    def test_prompts_that_come_together_read_their_common_beginning_once(self, cpu_model: Model, client: Client) -> None:
        counting = CountingExecutor(cpu_model.executor)
        scheduler = scheduler_of(cpu_model.with_executor(counting), client, prompt_chunk=512)
        runs = [request(cpu_model, BEGINNING + rest) for rest in ("and then", "but why", "on the mat", "and then")]
        with scheduler._changed:  # none is admitted before all are there
            generations = [scheduler.submit([run]) for run in runs]
        client.wait(*generations)
        scheduler.close()
        prompt = len(runs[0].prompt_ids)
        assert counting.prompt_tokens < prompt + 3 * 30
        assert [client.ids(generation) for generation in generations] == [alone(run) for run in runs]
        assert sum(generation.cached_tokens > 0 for generation in generations) == 3

    @pytest.mark.parametrize("guided", [False, True])
    def test_nobody_uses_what_another_has_asked(self, scheduler: Scheduler, client: Client, guided: bool) -> None:
        counting = CountingExecutor(scheduler.model.executor)
        scheduler = scheduler_of(scheduler.model.with_executor(counting), client)
        settings = {"guidance_scale": 1.5, "negative_prompt": BEGINNING} if guided else {}
        read = []
        for salt in ("a", "b", "a"):
            before = counting.prompt_tokens
            generation = scheduler.submit([request(scheduler.model, f"{BEGINNING}and then", **settings)], cache_salt=salt)
            client.wait(generation)
            read.append(counting.prompt_tokens - before)
        scheduler.close()
        assert read[0] == read[1] > read[2]

    def test_prompts_that_come_together_are_read_by_each_client(self, cpu_model: Model, client: Client) -> None:
        counting = CountingExecutor(cpu_model.executor)
        scheduler = scheduler_of(cpu_model.with_executor(counting), client, prompt_chunk=512)
        run = request(cpu_model, BEGINNING)
        with scheduler._changed:  # none is admitted before all are there
            generations = [scheduler.submit([request(cpu_model, BEGINNING)], cache_salt=salt) for salt in "ab"]
        client.wait(*generations)
        scheduler.close()
        assert counting.prompt_tokens == 2 * len(run.prompt_ids)
        assert [generation.cached_tokens for generation in generations] == [0, 0]

    def test_a_chat_goes_on_from_what_was_written(self, scheduler: Scheduler, client: Client) -> None:
        run = request(scheduler.model, BEGINNING)
        first = scheduler.submit([run])
        client.wait(first)
        ids = [*run.prompt_ids, *client.ids(first)]
        second = scheduler.submit([scheduler.model.start(request_of(scheduler.model, ids), max_new_tokens=4)])
        client.wait(second)
        assert second.cached_tokens == len(ids) - 1


class TestCacheSize:
    @pytest.mark.parametrize(("free", "size"), [(30 << 30, 10 << 30), (None, 4 << 30), (1 << 20, 1 << 28)])
    def test_by_default_it_follows_what_is_free(
        self, cpu_model: Model, client: Client, monkeypatch: pytest.MonkeyPatch, free: int | None, size: int
    ) -> None:
        monkeypatch.setattr("glassformer.serving.scheduler.free_memory", lambda device: free)
        scheduler = Scheduler(cpu_model, client.deliver)
        assert scheduler._cache_tokens == size // cpu_model.executor.describe().cache_bytes_per_token

    def test_a_limit_stands_above_what_is_free(self, cpu_model: Model, client: Client) -> None:
        assert scheduler_of(cpu_model, client, cached_tokens=77)._cache_tokens == 77


def request_of(model: Model, ids: Sequence[int]) -> Run:
    """A run whose prompt is these ids."""
    run = request(model, "a")
    return replace(run, prompt_ids=tuple(ids), steps=[], prompt_steps=[])


class CountingExecutor:
    """An executor that counts the tokens of prompts, and its open rows."""

    def __init__(self, executor: Any, wait: threading.Event | None = None) -> None:
        self.executor = executor
        self.prompt_tokens = 0
        self.rows = 0
        self.longest = 0
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def open(self, source: Any = None) -> Any:
        self.rows += 1
        return self.executor.open(source)

    def fork(self, row: Any, length: int | None = None) -> Any:
        self.rows += 1
        return self.executor.fork(row, length)

    def close(self, row: Any) -> None:
        self.rows -= 1
        self.executor.close(row)

    def run(self, feeds: Any) -> Any:
        if self.fails:
            raise ExecutorError("the card was taken away.")
        lengths = [len(feed.ids) for feed in feeds if len(feed.ids) > 1]
        self.prompt_tokens += sum(lengths)
        self.longest = max(self.longest, *lengths, 0)
        return self.executor.run(feeds)


class TestFairness:
    def test_a_long_prompt_does_not_hold_up_short_ones(self, cpu_model: Model, client: Client) -> None:
        counting = CountingExecutor(cpu_model.executor)
        scheduler = scheduler_of(cpu_model.with_executor(counting), client)
        long = request(cpu_model, "the dog and the cat sat " * 10)
        with scheduler._changed:
            first = scheduler.submit([long])
            short = scheduler.submit([request(cpu_model, "the mat", max_new_tokens=3)])
        client.wait(first, short)
        scheduler.close()
        assert counting.longest < 32 + 8
        ends = [event.generation for event in client.order if event.step and event.step.finish]
        assert ends == [short, first]
        assert client.order[0].generation is short
        assert client.ids(first) == alone(long)

    def test_a_long_prompt_is_read_while_short_ones_keep_coming(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client, running=6)
        draw = random.Random(1)
        first = scheduler.submit([long := request(cpu_model, "the dog and the cat sat " * 10)], client="reader")
        short = []
        while not client.events[first]:
            if scheduler.statistics().waiting < 4:
                prompt = "".join(draw.choices("abcdefgh ", k=30))
                short.append(scheduler.submit([request(cpu_model, prompt, max_new_tokens=1)], client=f"{len(short)}"))
            assert len(short) < 1000
        client.wait(first, *short)
        scheduler.close()
        assert client.ids(first) == alone(long)

    def test_clients_take_turns_in_the_queue(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client, running=1)
        with scheduler._changed:
            many = [scheduler.submit([request(cpu_model, "the cat", max_new_tokens=2)], client="a") for _ in range(4)]
            one = scheduler.submit([request(cpu_model, "a dog", max_new_tokens=2)], client="b")
        client.wait(one, *many)
        scheduler.close()
        order = list(dict.fromkeys(event.generation for event in client.order))
        assert order.index(one) == 1

    def test_more_than_fits_waits_and_nothing_is_lost(self, cpu_model: Model, client: Client) -> None:
        counting = CountingExecutor(cpu_model.executor)
        scheduler = scheduler_of(cpu_model.with_executor(counting), client, running=3, cached_tokens=120)
        runs = [request(cpu_model, "the cat sat on the mat", max_new_tokens=6) for _ in range(9)]
        generations = [scheduler.submit([run]) for run in runs]
        client.wait(*generations)
        scheduler.close()
        assert {tuple(client.ids(generation)) for generation in generations} == {tuple(alone(runs[0]))}
        assert counting.rows == 0


class TestRefusals:
    def test_a_full_queue(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client, queued=2)
        with scheduler._changed:
            generations = [scheduler.submit([request(cpu_model, "a")]) for _ in range(2)]
            with pytest.raises(QueueFull, match="2 requests are waiting for .* already. Try again later"):
                scheduler.submit([request(cpu_model, "a")])
        client.wait(*generations)
        scheduler.close()

    def test_more_than_the_cache_can_ever_hold(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client, cached_tokens=30)
        with pytest.raises(InputError, match="1 texts of up to .* tokens need more than the 30 tokens of cache"):
            scheduler.submit([request(cpu_model, "the cat", max_new_tokens=60)])
        scheduler.close()

    def test_after_the_end(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client)
        scheduler.close()
        with pytest.raises(Unavailable, match="is being unloaded: the server is stopping"):
            scheduler.submit([request(cpu_model, "a")])


class TestCancelling:
    @pytest.mark.parametrize("when", ["waiting", "reading", "writing"])
    def test_gives_the_rows_back_and_others_go_on(self, cpu_model: Model, client: Client, when: str) -> None:
        counting = CountingExecutor(cpu_model.executor)
        scheduler = scheduler_of(cpu_model.with_executor(counting), client, running=2)
        other = request(cpu_model, "the dog", max_new_tokens=30)
        prompt = "the mat and the cat " * (8 if when == "reading" else 1)
        with scheduler._changed:
            kept = scheduler.submit([other])
            cancelled = scheduler.submit([request(cpu_model, prompt, max_new_tokens=80)])
            if when == "waiting":
                cancelled.cancel()
        if when == "writing":
            client.wait_for_token(cancelled)
        cancelled.cancel()
        client.wait(kept)
        scheduler.close()
        assert client.ids(kept) == alone(other)
        assert counting.rows == 0
        assert len(client.ids(cancelled)) < 80

    def test_a_request_that_waits_gives_its_place_in_the_queue_to_others(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client, running=1, queued=2)
        running = scheduler.submit([request(cpu_model, "the cat", max_new_tokens=200)])
        client.wait_for_token(running)
        waiting = [scheduler.submit([request(cpu_model, "a")]) for _ in range(2)]
        waiting[1].cancel()
        deadline = time.monotonic() + LONGEST_WAIT
        while scheduler.statistics().waiting == 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        late = scheduler.submit([request(cpu_model, "the dog")])
        running.cancel()
        client.wait(waiting[0], late)
        scheduler.close()
        assert not client.events[waiting[1]]

    def test_of_beams(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client)
        generation = scheduler.submit([request(cpu_model, "the cat", num_beams=2, max_new_tokens=50)])
        generation.cancel()
        other = scheduler.submit([request(cpu_model, "the dog")])
        client.wait(other)
        scheduler.close()
        assert not any(event.error for event in client.order)


class TestFailures:
    def test_a_text_that_cannot_go_on_ends_alone(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client)

        def nothing_left(ids: Any, scores: Any) -> Any:
            return np.full_like(scores, -np.inf)

        broken = scheduler.submit([request(cpu_model, "the cat", rules=[nothing_left])])
        whole = scheduler.submit([request(cpu_model, "the dog")])
        client.wait(broken, whole)
        scheduler.close()
        assert "no token is left" in str(client.error(broken))
        assert len(client.ids(whole)) == 8

    def test_a_pass_that_fails_ends_the_running_texts_and_the_next_ones_are_written(
        self, cpu_model: Model, client: Client
    ) -> None:
        counting = CountingExecutor(cpu_model.executor)
        scheduler = scheduler_of(cpu_model.with_executor(counting), client)
        counting.fails = True
        lost = scheduler.submit([request(cpu_model, "the cat sat")])
        client.wait(lost)
        assert "the card was taken away" in str(client.error(lost))
        counting.fails = False
        run = request(cpu_model, "the dog")
        generation = scheduler.submit([run])
        client.wait(generation)
        scheduler.close()
        assert client.ids(generation) == alone(run)
        assert counting.rows == 0

    def test_an_executor_that_cannot_be_made_fails_every_request(self, cpu_model: Model, client: Client) -> None:
        class Missing(CountingExecutor):
            @property
            def context(self) -> int:
                raise ExecutorError("there is no such card.")

        scheduler = scheduler_of(cpu_model.with_executor(Missing(cpu_model.executor)), client)
        with scheduler._changed:
            generations = [scheduler.submit([request(cpu_model, "a")]) for _ in range(2)]
        client.wait(*generations)
        scheduler.close()
        assert all("no such card" in str(client.error(generation)) for generation in generations)


class TestClosing:
    def test_lets_running_texts_finish_for_a_while(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client)
        generation = scheduler.submit([request(cpu_model, "the cat", max_new_tokens=20)])
        scheduler.close(LONGEST_WAIT)
        assert client.events[generation][-1].step.finish is Finish.LENGTH  # type: ignore[union-attr]

    def test_then_tells_everybody_that_it_is_over(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client, running=1)
        with scheduler._changed:
            generations = [scheduler.submit([request(cpu_model, "the cat", max_new_tokens=200)]) for _ in range(3)]
            scheduler._end = 0.0
            scheduler._changed.notify_all()
        scheduler.close()
        assert all("is being unloaded" in str(client.error(generation)) for generation in generations)

    def test_a_job_that_runs_for_ever_ends_with_its_next_pass(self, cpu_model: Model, client: Client) -> None:
        scheduler = scheduler_of(cpu_model, client)
        begun = threading.Event()

        def endless(model: Model) -> None:
            while True:
                model.tree("the cat", raw=True, width=2, depth=2)
                begun.set()

        running, waiting = (scheduler.call(endless) for _ in range(2))
        assert begun.wait(LONGEST_WAIT)
        scheduler.close()
        with pytest.raises(Unavailable, match="is being unloaded"):
            running.result(LONGEST_WAIT)
        assert waiting.cancelled()
        with pytest.raises(Unavailable, match="is being unloaded"):
            scheduler.call(endless)

    def test_a_job_without_passes_is_left_behind(
        self, cpu_model: Model, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("glassformer.serving.scheduler.JOB_SECONDS", 0.01)
        scheduler = scheduler_of(cpu_model, client)
        begun, released = threading.Event(), threading.Event()
        job = scheduler.call(lambda model: begun.set() or released.wait(LONGEST_WAIT))
        assert begun.wait(LONGEST_WAIT)
        scheduler.close()
        assert not job.done()
        released.set()
        assert job.result(LONGEST_WAIT)


class TestOtherWork:
    def test_views_and_texts_take_turns(self, scheduler: Scheduler, client: Client) -> None:
        model = scheduler.model
        expected = model.tree("the cat", raw=True, width=2, depth=3)
        runs = [request(model, prompt, max_new_tokens=40) for prompt in ("the dog", "a mat")]
        generations = [scheduler.submit([run]) for run in runs]
        trees = [scheduler.call(lambda model: model.tree("the cat", raw=True, width=2, depth=3)) for _ in range(3)]
        lens = scheduler.call(lambda model: model.read("the cat sat", raw=True).lens())
        assert all(tree.result(LONGEST_WAIT).to_dict() == expected.to_dict() for tree in trees)
        assert lens.result(LONGEST_WAIT).to_dict() == model.read("the cat sat", raw=True).lens().to_dict()
        client.wait(*generations)
        assert [client.ids(generation) for generation in generations] == [alone(run) for run in runs]

    def test_a_job_that_fails_gives_its_error_to_whoever_asked(self, scheduler: Scheduler) -> None:
        with pytest.raises(InputError, match="prompt is empty"):
            scheduler.call(lambda model: model.tree("")).result(LONGEST_WAIT)

    def test_a_model_that_only_reads(self, client: Client) -> None:
        scheduler = Scheduler(encoder().model, client.deliver)
        shape = scheduler.call(lambda model: model.read("the cat").trace().to_dict()).result(LONGEST_WAIT)
        assert shape
        scheduler.close()

    def test_beams_and_drafts_run_beside_the_batch(self, scheduler: Scheduler, client: Client) -> None:
        ways: list[dict[str, Any]] = [{"num_beams": 3}, {"prompt_lookup_num_tokens": 3}, {}]
        runs = [request(scheduler.model, "the cat sat the cat", **way) for way in ways]
        generations = [scheduler.submit([run]) for run in runs]
        client.wait(*generations)
        assert [client.ids(generation) for generation in generations] == [alone(run) for run in runs]


def test_candidates_and_sites_are_delivered_to_those_alone_who_asked(cpu_model: Model, client: Client) -> None:
    scheduler = scheduler_of(cpu_model, client)
    watch = Watch.parse(["blocks.0.residual"], cpu_model.blueprint.site_names)
    looking, reading, other = (request(cpu_model, prompt) for prompt in ("the cat", "the dog", "a mat"))
    generations = [
        scheduler.submit([looking], detail=StepDetail.of(5)),
        scheduler.submit([reading], watch=watch),
        scheduler.submit([other]),
    ]
    client.wait(*generations)
    scheduler.close()
    steps = [[event.step for event in client.events[generation] if event.step] for generation in generations]
    assert all(step.waterfall is not None and len(step.candidates.ids) == 5 for step in steps[0] if step.candidates)
    assert all(step.candidates is not None for step in steps[0])
    assert all(set(step.sites or ()) == {"blocks.0.residual"} for step in steps[1])
    assert not any(step.sites or step.candidates for step in steps[2])
    assert [client.ids(generation) for generation in generations] == [alone(run) for run in (looking, reading, other)]


def test_jobs_that_wait_are_bounded(cpu_model: Model, client: Client) -> None:
    scheduler = scheduler_of(cpu_model, client, queued=2)
    released = threading.Event()
    jobs = [scheduler.call(lambda model: released.wait(LONGEST_WAIT)) for _ in range(2)]
    with pytest.raises(QueueFull, match="2 jobs"):
        scheduler.call(lambda model: None)
    released.set()
    assert all(job.result(LONGEST_WAIT) for job in jobs)
    assert scheduler.call(lambda model: 5).result(LONGEST_WAIT) == 5
    scheduler.close()
