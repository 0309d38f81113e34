"""RoPE whose frequencies depend on a text's length: each row has its own, and is read anew where longrope switches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.decoding import Policy, Step, generate
from glassformer.decoding.loop import Loop
from glassformer.decoding.prompt_lookup import BatchDrafts
from glassformer.decoding.speculative import ModelDrafter, speculate
from glassformer.engine import wrapped_executor
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import BEST, NOT_CHOSEN, Feed, Want
from glassformer.engine.wrapped_executor import ChangedExecutor, ReportingExecutor
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError
from tests.capabilities import offering
from tests.decoding.oracle import Oracle, recipe
from tests.decoding.test_batch_drafts import FixedCost
from tests.engine.executors import EXECUTORS, Subject
from tests.parity import reference

pytestmark = pytest.mark.usefixtures("one_thread")

SWITCH = 12
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": SWITCH,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
}  # fmt: skip
LENGTHS = (1, 4, 9, 11, 12, 13, 20)  # of prompts, to both sides of the switch
NEW = 14
TEXTS = [[(7 * length + 5 * n * n + n) % 87 + 3 for n in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("longrope")
    reference.write(folder, "phi3", rope_parameters=LONGROPE, original_max_position_embeddings=SWITCH)
    return folder


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Subject:
    return Subject(folder)


@pytest.fixture(params=EXECUTORS)
def subject(checkpoint: Subject, request: pytest.FixtureRequest) -> Subject:
    return checkpoint.with_executor(request.param)


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[int, list[int]]:
    """What the reference's `generate` writes, by the length of the prompt, each alone."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    texts = {}
    for length, prompt in prompts().items():
        ids = torch.tensor([prompt])
        found = theirs.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0)
        texts[length] = found[0, length:].tolist()
    return texts


def prompts() -> dict[int, list[int]]:
    return dict(zip(LENGTHS, TEXTS, strict=True))


def alone(subject: Subject, ids: Sequence[int]) -> Any:
    """The scores after these ids, by one uncached pass of one row."""
    return _uncached(subject.model, tuple(ids))


@cache
def _uncached(model: Any, ids: tuple[int, ...]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0, -1].numpy()


def greedy(executor: Any, texts: dict[int, list[int]], count: int = NEW) -> dict[int, list[int]]:
    """The best tokens after prompts, which run together, one pass at a time."""
    rows, found = {key: executor.open() for key in texts}, {key: [] for key in texts}
    fed = dict(texts)
    for _ in range(count):
        scores = executor.run([Feed(rows[key], fed[key]) for key in texts])
        for key, own in zip(texts, scores, strict=True):
            found[key].append(int(own.host().argmax()))
            fed[key] = found[key][-1:]
    return found


def test_a_ragged_batch_crosses_the_switch_like_the_references_generate(
    subject: Subject, expected: dict[int, list[int]]
) -> None:
    texts = prompts()
    assert greedy(subject.executor(), texts) == expected
    for length, prompt in texts.items():
        assert greedy(subject.executor(), {length: prompt}) == {length: expected[length]}


def test_random_moves_over_the_switch_score_like_an_uncached_pass(subject: Subject) -> None:
    """Open, feed, fork, select and rewind at random, to both sides of the switch."""
    draw, executor = random.Random(7), subject.executor()
    held: list[tuple[Any, list[int]]] = []
    for _ in range(60):
        move = draw.choice(["open", "run", "run", "run", "fork", "rewind", "select", "close"])
        if move == "open" or not held:
            held.append((executor.open(), []))
            move = "run"
        row, ids = held[at := draw.randrange(len(held))]
        if move == "fork":
            length = draw.randint(0, len(ids))
            held.append((executor.fork(row, length), ids[:length]))
        elif move == "rewind":
            del ids[executor.rewind(row, draw.randint(0, len(ids))) :]
        elif move == "select":
            parents = [draw.randrange(len(held)) for _ in held]
            before = [list(ids) for _, ids in held]
            executor.select([row for row, _ in held], parents)
            held = [(row, list(before[parent])) for (row, _), parent in zip(held, parents, strict=True)]
        elif move == "close":
            executor.close(held.pop(at)[0])
        else:
            fed = [(n, [draw.randrange(3, 90) for _ in range(draw.choice([1, 1, 2, 9]))])
                   for n in draw.sample(range(len(held)), draw.randint(1, len(held)))]  # fmt: skip
            found = executor.run([Feed(held[n][0], new) for n, new in fed])
            for (n, new), scores in zip(fed, found, strict=True):
                held[n][1].extend(new)
                assert np.allclose(scores.host(), alone(subject, held[n][1]), atol=1e-4)
        assert [row.length for row, _ in held] == [len(ids) for _, ids in held]


STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 1.5, "top_k": 0},
    "guided": {"guidance_scale": 1.5},
    "beams": {"num_beams": 3},
    "contrastive": {"penalty_alpha": 0.4, "top_k": 3},
    "prompt lookup": {"prompt_lookup_num_tokens": 4},
    "assisted": {},
    "scored prompts": {"prompt_logprobs": 0},
}


def written(executor: Any, texts: Sequence[list[int]], name: str, assistant: Any = None) -> list[list[int]]:
    """What a strategy writes after prompts, all of them together."""
    made = recipe(max_new_tokens=NEW, eos_token_id=None, **STRATEGIES[name])
    negative = [5, 6, 7] if name == "guided" else None
    running = [Policy(made, prompt, context=60, seed=3, negative=negative) for prompt in texts]
    steps = generate(executor, running) if assistant is None else speculate(executor, running, ModelDrafter(assistant))
    ended = {number: step.outcome.policy for number, step in steps if step.outcome is not None}
    return [ended[number].history.ids.tolist() for number in range(len(texts))]


@pytest.mark.every_combination
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_crosses_the_switch_in_a_batch_as_without_a_cache(subject: Subject, name: str) -> None:
    texts = TEXTS[::2]
    together = written(PrefixCache(subject.executor()), texts, name, subject.executor() if name == "assisted" else None)
    if name == "contrastive":  # it feeds trees
        assert together == [written(subject.executor(), [text], name)[0] for text in texts]
        return
    uncached = Oracle(context=60, scores=lambda source, ids: alone(subject, list(ids)))
    assert together == [written(uncached, [text], name)[0] for text in texts]


def test_chunks_drafts_and_tokens_chosen_ahead_cross_the_switch_as_without_them(subject: Subject) -> None:
    """As on a server: prompts in chunks behind a prefix cache, drafts by lookup, the executor's own choices."""
    expected = written(Oracle(context=60, scores=lambda source, ids: alone(subject, list(ids))), TEXTS, "greedy")
    expected = [ids[-NEW:] for ids in expected]
    for drafts in (None, BatchDrafts(cost=FixedCost())):
        batch = Loop(PrefixCache(subject.executor(), rows=8), 5, drafts)
        texts = [Policy(recipe(max_new_tokens=NEW, eos_token_id=None), prompt, context=60) for prompt in TEXTS]
        found: dict[int, list[int]] = {id(text): [] for text in texts}
        batch.admit(texts)
        while batch.policies:
            for policy, step in batch.step():
                assert isinstance(step, Step)
                found[id(policy)].append(step.id)
        assert list(found.values()) == expected


def test_a_prefix_from_the_other_side_of_the_switch_is_read_anew(subject: Subject) -> None:
    inner = offering(subject.executor(), min_prefill_tokens=1)  # so that short prefixes are reused on the GPU too
    executor = PrefixCache(inner, rows=8)
    texts = [TEXTS[-1], TEXTS[-1][: SWITCH - 2], TEXTS[-1][: SWITCH + 1], TEXTS[-1][:SWITCH]]
    for ids in texts:
        row = executor.open()
        (scores,) = executor.run([Feed(row, ids)])
        assert np.allclose(scores.host(), alone(subject, ids), atol=1e-4)
        executor.close(row)
    assert executor.reused_tokens


@pytest.mark.parametrize("length", [SWITCH, SWITCH + 6])
def test_a_text_that_is_scored_in_chunks_has_the_frequencies_of_the_whole(subject: Subject, length: int) -> None:
    executor, ids = subject.executor(), TEXTS[-1][:length]
    row = executor.open()
    found = []
    for start in range(0, length, 5):
        part = ids[start : start + 5]
        (scores,) = executor.run([Feed(row, part, Want.ALL, text_length=length)])
        found += [scores.host(number) for number in range(len(part))]
    with torch.no_grad():
        assert np.allclose(found, subject.model(torch.tensor([ids])).logits[0].numpy(), atol=1e-4)


def test_long_prompts_that_are_reported_are_read_once(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapped_executor, "CHUNK", 5)
    executor, ids = subject.executor(), TEXTS[-1]
    fed: list[int] = []
    run_feeds = executor._run_feeds

    def counting(feeds: Sequence[Feed], rows: Any) -> Any:
        fed.extend(len(feed.ids) for feed in feeds)
        return run_feeds(feeds, rows)

    monkeypatch.setattr(executor, "_run_feeds", counting)
    (scores,) = ReportingExecutor(executor, lambda done, total: None).run([Feed(executor.open(), ids)])
    assert np.allclose(scores.host(), alone(subject, ids), atol=1e-4)
    assert sum(fed) == len(ids)


@pytest.mark.parametrize("positions", [None, [2, 4], [-1]], ids=["all", "two", "last"])
def test_a_changed_row_is_read_anew_with_its_changes(subject: Subject, positions: list[int] | None) -> None:
    """Those at the end of each pass too, which were at other tokens then."""
    change = Change(scale=0.3, positions=positions)
    executor, ids = ChangedExecutor(subject.executor(), {"blocks.0.residual": change}), TEXTS[-1]
    row = executor.open()
    executor.run([Feed(row, ids[:5])])
    for token in ids[5:]:
        (scores,) = executor.run([Feed(row, [token])])
    marked = list(range(4, len(ids))) if positions == [-1] else positions
    changed = {"blocks.0.residual": Change(scale=0.3, positions=marked)}
    whole = subject.model(torch.tensor([ids]), watch=changed, use_cache=False).logits[0, -1]
    assert np.allclose(scores.host(), whole.detach().numpy(), atol=1e-4)


def test_a_row_whose_second_reading_fails_is_read_anew_later(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, ids = subject.executor(), TEXTS[-1]
    row = executor.open()
    executor.run([Feed(row, ids[:SWITCH])])
    run_feeds = executor._run_feeds

    def failing(feeds: Any, rows: Any) -> Any:
        raise ExecutorError("no memory.")

    monkeypatch.setattr(executor, "_run_feeds", failing)
    with pytest.raises(ExecutorError, match="no memory"):
        executor.run([Feed(row, [ids[SWITCH]])])
    monkeypatch.setattr(executor, "_run_feeds", run_feeds)
    assert row.length == SWITCH
    executor.rewind(row, 8)
    (scores,) = executor.run([Feed(row, ids[8:10])])
    assert np.allclose(scores.host(), alone(subject, ids[:10]), atol=1e-4)


def test_the_executors_own_choices_end_at_the_switch(subject: Subject) -> None:
    executor, ids = subject.executor(), TEXTS[-1]
    sampler = executor.capabilities.sampler
    rows = [executor.open(), executor.open()]
    executor.run([Feed(rows[0], ids[:4]), Feed(rows[1], ids[: SWITCH - 3])])
    texts = sampler.decode(rows, [ids[4], ids[SWITCH - 3]], [BEST, BEST], np.zeros((2, 6)))
    assert NOT_CHOSEN not in texts[0].ids
    assert [token == NOT_CHOSEN for token in texts[1].ids] == [False] * 3 + [True] * 3
    before = [*ids[: SWITCH - 2], *texts[1].ids[:2]]
    assert executor.rewind(rows[1], SWITCH) == SWITCH
    (scores,) = executor.run([Feed(rows[1], [texts[1].ids[2]])])
    assert np.allclose(scores.host(), alone(subject, [*before, texts[1].ids[2]]), atol=1e-4)


def test_dynamic_frequencies_are_each_rows_own(tmp_path_factory: pytest.TempPathFactory, subject: Subject) -> None:
    """Rows of a batch have what each has alone; they go on from what they hold, as in the reference."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    folder = tmp_path_factory.mktemp("dynamic")
    reference.write(folder, "llama", rope_parameters=rope, max_position_embeddings=8)
    other = Subject(folder, subject.name)
    executor, texts = other.executor(), prompts()
    executor._checks.context = 60  # generation ends with the trained length otherwise
    together = greedy(executor, texts, 4)
    assert together == {length: greedy(executor, {length: text}, 4)[length] for length, text in texts.items()}
