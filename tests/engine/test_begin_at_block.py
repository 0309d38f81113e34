"""Feeds that begin at a later block: the same bits as when everything is computed, and a row that can go on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.engine.cpu import executor as cpu
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import BlockInput, Feed, Want
from glassformer.engine.wrapped_executor import ChangedExecutor
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError, InputError, SiteError
from tests.engine.executors import Subject, write_checkpoint
from tests.parity import reference

pytestmark = pytest.mark.usefixtures("one_thread")

Tiny = Callable[..., Subject]
QUICK = ("gpt2", "llama", "gemma3_text", "mixtral", "t5", "bart", "Q4_K")
TOGETHER = ("gemma3n_text", "gemma4_text", *reference.RECURRENT)  # whose blocks read more than what enters them
FAMILIES = [
    *QUICK,
    *(
        pytest.param(name, marks=pytest.mark.sweep)
        for name in (*reference.DECODERS, *reference.PAIRS)
        if name not in (*QUICK, *TOGETHER)
    ),
]
STARTS = (0, 3, 11)
TOKENS = 12


def entries(subject: Subject) -> dict[int, str]:
    """By block: the site of what enters it."""
    return {block: f"blocks.{block - 1}.residual" for block in range(1, subject.blueprint.blocks)}


def read(subject: Subject, executor: Any) -> tuple[Any, list[int], dict[int, Any]]:
    """A row that has read a text, its ids, and what entered each block."""
    (ids, *_), sources = subject.rows([TOKENS])
    row = executor.open(sources[0]) if sources else executor.open()
    (output,) = executor.run([Feed(row, ids, Want.NONE, watch=subject.watch(*entries(subject).values()))])
    return row, ids, {block: np.asarray(output.sites[site])[0] for block, site in entries(subject).items()}


def all_scores(output: Any, count: int) -> Any:
    return np.stack([output.host(at) for at in range(count)])


@pytest.mark.parametrize("name", ["plain", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_bits_as_from_the_first_block(family: str, name: str, tiny: Tiny) -> None:
    subject = tiny(family).with_executor(name)
    executor = subject.executor()
    row, ids, _ = read(subject, executor)
    for (block, entry), start in product(entries(subject).items(), STARTS):
        rest = ids[start:]
        changes = {
            f"blocks.{block}.attention.heads": Change(0.5, positions=[start]),
            f"blocks.{block}.residual": Change(1.5),
        }
        update = f"blocks.{block}.mlp.update"
        watch = subject.watch(update, changes=changes)
        whole, base = executor.fork(row, start), executor.fork(row, start)
        (unchanged,) = executor.run(
            [Feed(base, rest, watch=subject.watch(entry))]
        )  # as many tokens: PyTorch's bits hang on it
        states, part = np.asarray(unchanged.sites[entry])[0], executor.fork(base)
        (expected,) = executor.run([Feed(whole, rest, Want.ALL, watch=watch)])
        wanted, wanted_update = all_scores(expected, len(rest)), np.asarray(expected.sites[update])
        (output,) = executor.run([Feed(part, rest, Want.ALL, watch=watch, begin=BlockInput(block, states))])
        assert np.array_equal(all_scores(output, len(rest)), wanted)
        assert np.array_equal(np.asarray(output.sites[update]), wanted_update)
        assert part.length == whole.length == len(ids)
        after = [executor.run([Feed(either, [7])])[0].host().copy() for either in (whole, part)]
        assert np.array_equal(*after)  # so the row holds what it would have read
        for either in (whole, part, base):
            executor.close(either)


@pytest.mark.parametrize("family", ["llama", "mixtral", "bart", "Q4_K"])
def test_rows_join_a_pass_at_their_blocks(family: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds that begin at different blocks, and some that read, in one pass of the CPU engine, or in several."""
    subject = tiny(family).with_executor("cpu")
    executor = subject.executor()
    row, ids, states = read(subject, executor)
    begins = [(block, start) for block in (*states, 0) for start in STARTS]
    watches = [subject.watch(changes={f"blocks.{block}.mlp.update": Change(0.5)}) for block, _ in begins]
    alone = [
        executor.run([Feed(executor.fork(row, start), ids[start:], watch=watch)])[0].host().copy()
        for (_, start), watch in zip(begins, watches, strict=True)
    ]
    for most in (cpu.MAX_TOKENS, 5):
        monkeypatch.setattr(cpu, "MAX_TOKENS", most)
        monkeypatch.setattr(cpu, "MAX_SCORED_TOKENS", most)
        feeds = [
            Feed(executor.fork(row), ids[start:], watch=watch, begin=BlockInput(block, states[block][start:]))
            if block
            else Feed(executor.fork(row, start), ids[start:], watch=watch)
            for (block, start), watch in zip(begins, watches, strict=True)
        ]
        together = executor.run(feeds)
        assert all(np.array_equal(output.host(), wanted) for output, wanted in zip(together, alone, strict=True))


def test_executors_around_another(tiny: Tiny) -> None:
    """A changed one applies its changes from there on; a prefix cache does not take the row for what its ids would give."""
    subject = tiny("llama").with_executor("cpu")
    inner = subject.executor()
    changes = {f"blocks.{block}.mlp.update": Change(0.5) for block in range(subject.blueprint.blocks)}
    changed = ChangedExecutor(inner, changes)
    cached = PrefixCache(inner)
    assert changed.capabilities.begins_at_blocks
    assert cached.capabilities.begins_at_blocks
    row, ids, states = read(subject, changed)
    (output,) = changed.run([Feed(changed.fork(row), ids, begin=BlockInput(1, states[1]))])
    (expected,) = changed.run([Feed(changed.open(), ids)])
    assert np.array_equal(output.host(), expected.host())
    row, ids, states = read(subject, cached)
    wanted = cached.run([Feed(cached.open(), ids)])[0].host().copy()
    again = cached.fork(row)
    cached.run([Feed(again, ids, begin=BlockInput(1, states[1] * 2))])
    assert again.length == len(ids)
    cached.close(again)
    assert np.array_equal(cached.run([Feed(cached.open(), ids)])[0].host(), wanted)


@pytest.mark.parametrize("name", ["plain", "cpu"])
def test_feeds_that_cannot_begin_there(name: str, tiny: Tiny) -> None:
    subject = tiny("llama").with_executor(name)
    executor = subject.executor()
    row, ids, states = read(subject, executor)
    whole = BlockInput(1, states[1])

    def refused(error: type[Exception], message: str, *arguments: Any, **named: Any) -> None:
        with pytest.raises(error, match=message):
            executor.run([Feed(row, *arguments, **named)])
        assert row.length == len(ids)

    for block in (0, subject.blueprint.blocks):
        refused(InputError, f"begin at block {block}; it must be one of 1 to", ids, begin=whole._replace(block=block))
    refused(InputError, "must have some of the 12 tokens that its row has read", [*ids, 5], begin=whole)
    refused(InputError, "neither parents nor vectors", ids[:1], parents=[-1], begin=whole)
    refused(InputError, r"states of shape \(12, \d+\) enter block 1; they must be \(11", ids[1:], begin=whole)
    refused(
        SiteError,
        "begins at block 1 has no 'blocks.0.residual' to read",
        ids,
        begin=whole,
        watch=subject.watch("blocks.0.residual"),
    )
    output = executor.run([Feed(executor.fork(row), ids, begin=whole)])[0].host().copy()
    assert np.array_equal(output, executor.run([Feed(executor.open(), ids)])[0].host())
    gpu = subject.with_executor("gpu").executor()
    assert not gpu.capabilities.begins_at_blocks
    with pytest.raises(ExecutorError, match="computes every block of a feed. Leave out its begin"):
        gpu.run([Feed(gpu.open(), ids, begin=whole)])


@pytest.mark.parametrize("family", TOGETHER)
@pytest.mark.parametrize("name", ["plain", "cpu"])
def test_blocks_that_read_more_than_what_enters_them_begin_at_the_first(family: str, name: str, tmp_path: Path) -> None:
    subject = write_checkpoint(tmp_path, family)
    executor = getattr(subject, name)()
    assert not executor.capabilities.begins_at_blocks
    states = np.zeros((3, subject.config.hidden_size), np.float32)
    with pytest.raises(ExecutorError, match="this executor computes every block of a feed"):
        executor.run([Feed(executor.open(), [5, 6, 7], begin=BlockInput(1, states))])
