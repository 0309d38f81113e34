"""What only a real GPU can show of the GPU engine; `test_on_a_gpu.py` runs it in a process that sees the GPU.

    python -m tests.engine.gpu.proofs [--full] accuracy repeats launches life batches memory passes
    compute-sanitizer --tool memcheck python -m tests.engine.gpu.proofs passes

Each proof prints what it measured in one line, and raises if that is not what is promised. `--full` takes Qwen3-0.6B's shape
and the numbers that are published; without it, small models and some seconds.
"""

from __future__ import annotations

import argparse
import inspect
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer.blueprints import blueprint, read_config
from glassformer.checkpoint.stored_tensors import BufferedFile, StoredTensor
from glassformer.decoding import GenerationConfig, Policy, Recipe, Step
from glassformer.decoding.loop import Loop, loop
from glassformer.engine.gpu.executor import GpuExecutor
from glassformer.engine.gpu.persistent.kernel import Card
from glassformer.engine.gpu.persistent.layout import read_layout, rotation_table
from glassformer.engine.gpu.persistent.row_decoder import RowDecoder, RowWeights, load_rows_kernel
from glassformer.engine.gpu.persistent.row_schedule import RowSchedule
from glassformer.engine.paged_rows import PAGE
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.errors import ExecutorError
from glassformer.ground.sites import Watch
from tests.engine.gpu.launches import decode as launched

SMALL: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 512, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
HYBRID: dict[str, Any] = {  # whose layers keep a state three times of four
    **SMALL, "model_type": "qwen3_5_text", "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
QWEN3: dict[str, Any] = {
    **SMALL, "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "intermediate_size": 3072, "max_position_embeddings": 40960, "rope_theta": 1e6,
}  # fmt: skip
KINDS = {torch.float32: "F32", torch.bfloat16: "BF16"}
DEVICE = "cuda"
MAX_ERROR_RATIO = 1.5  # of the error of plain bfloat16


@dataclass
class RandomModel:
    """A model with random weights, as an executor and as PyTorch modules."""

    shape: dict[str, Any]
    seed: int = 0

    def __post_init__(self) -> None:
        self.config = read_config(self.shape)
        self.blueprint = blueprint(self.config)
        draw = torch.Generator(DEVICE).manual_seed(self.seed)
        self.weights = {
            weight.name: (
                1 + 0.1 * torch.randn(weight.shape, generator=draw, device=DEVICE)
                if len(weight.shape) == 1
                else 0.03 * torch.randn(weight.shape, generator=draw, device=DEVICE)
            ).bfloat16()
            for weight in self.blueprint.weights
        }

    def executor(self, *, batch_invariant: bool = True) -> GpuExecutor:
        """`batch_invariant=False`: a single row is decoded by the persistent kernel."""
        stored = {}
        for name, weight in self.weights.items():
            values = weight.cpu().view(torch.uint8).reshape(-1).numpy()
            file = BufferedFile(Path("memory"), values)
            stored[name] = StoredTensor(name, KINDS[weight.dtype], tuple(weight.shape), file, 0, values.size)
        known = "batch_invariant" in inspect.signature(GpuExecutor).parameters
        options: Any = {"batch_invariant": batch_invariant} if known else {}
        return GpuExecutor(self.config, self.blueprint, stored, **options)

    def scores(self, ids: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """What the readable family computes in a dtype, (tokens, vocabulary)."""
        from glassformer.compat.auto import model_class_for_head

        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(DEVICE):
                module = model_class_for_head(self.config.model_type, self.config.default_head)(self.config).eval()
        finally:
            torch.set_default_dtype(before)
        state = {name: weight.to(dtype) for name, weight in self.weights.items()}
        module.load_state_dict(state, strict=False)
        module.tie_weights() if hasattr(module, "tie_weights") else None
        with torch.inference_mode():
            logits: torch.Tensor = module(torch.tensor([list(ids)], device=DEVICE)).logits[0].float()
        return logits


def random_ids(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, vocabulary) for _ in range(count)]


def relative_error(scores: torch.Tensor, expected: torch.Tensor) -> float:
    return float((scores.double() - expected.double()).norm() / expected.double().norm())


def accuracy(full: bool) -> str:
    """Teacher-forced: the scores of every position, by prompt kernels, by steps and by the persistent kernel."""
    model = RandomModel(QWEN3 if full else SMALL)
    ids = random_ids(2000 if full else 300, model.config.vocab_size)
    expected = model.scores(ids, torch.float32)
    best = expected.argmax(-1)
    plain = model.scores(ids, torch.bfloat16)
    plain_error = relative_error(plain, expected)
    lines = [f"plain bfloat16 {plain_error:.2e}, best token {float((plain.argmax(-1) == best).double().mean()):.1%}"]
    del plain
    ratios = []
    for name, scores in _teacher_forced(model, ids):
        ratio = relative_error(scores, expected) / plain_error
        ratios.append(ratio)
        lines.append(f"{name} {ratio:.2f} of it, best token {float((scores.argmax(-1) == best).double().mean()):.1%}")
    assert max(ratios) <= MAX_ERROR_RATIO, lines
    return f"{len(ids)} tokens, error against float32: " + "; ".join(lines)


def _teacher_forced(model: RandomModel, ids: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
    executor = model.executor(batch_invariant=False)
    row = executor.open()
    (prompt,) = executor.run([Feed(row, ids, Want.ALL)])
    yield "prompt", torch.stack([torch.from_numpy(prompt.host(at)) for at in range(len(ids))]).to(DEVICE)
    executor.rewind(row, 0)
    steps = []
    for token in ids:
        (scores,) = executor.run([Feed(row, (token,))])
        steps.append(torch.from_numpy(scores.host().copy()))
    yield "steps", torch.stack(steps).to(DEVICE)
    executor.rewind(row, 0)
    single_row = executor._single_row_decoder(len(ids))
    if single_row is not None:
        row.pages.reserve(0, len(ids))
        decoded = launched(single_row._decoder, ids, 0, len(ids), executor._pool.tensor, row.pages.pages, scores_from=0)
        assert decoded.scores is not None
        yield "persistent", decoded.scores


def repeats(full: bool) -> str:
    """Equal feeds give equal bits, again and again, beside other rows and alone."""
    model, count = RandomModel(SMALL), 200 if full else 20
    executor = model.executor(batch_invariant=False)
    prompts = [random_ids(length, 1000, seed=length) for length in (1, 9, 64, 70, 300)]

    def life(numbers: Sequence[int], watch: Watch | None = None) -> dict[int, list[Any]]:
        rows = [executor.open() for _ in numbers]
        feeds = [prompts, *([[7 + step + number] for number in range(len(prompts))] for step in range(2))]
        results: dict[int, list[Any]] = {number: [] for number in numbers}
        for fed in feeds:
            scores = executor.run([Feed(row, fed[number], watch=watch) for row, number in zip(rows, numbers, strict=True)])
            for number, result in zip(numbers, scores, strict=True):
                results[number].append(result.host().copy())
        for row, number in zip(rows, numbers, strict=True):
            results[number].append(executor.capabilities.sampler.best([row], [5], 16))
            executor.close(row)
        return results

    expected = life(range(len(prompts)))
    watch = Watch.of("blocks.*.residual", "blocks.0.attention.pattern", names=model.blueprint.site_names)
    lives: list[Callable[[], dict[int, list[Any]]]] = [lambda: life(range(len(prompts))), lambda: life(range(4), watch)]
    lives += [lambda number=number: life([number]) for number in range(len(prompts))]  # type: ignore[misc]
    for number in range(count):
        for row, results in lives[number % len(lives)]().items():
            equal = [np.array_equal(a, b) for a, b in zip(results, expected[row], strict=True)]
            assert all(equal), f"repeat {number}, row {row}: {equal}"
    return f"{count} repeats bit-equal, alone, in a batch, watched and unwatched"


class Interrupted(BaseException):
    """What a signal raises in the middle of a launch, as Ctrl-C does."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def launches(full: bool) -> str:
    """Many launches of single rows and of batches, some of them interrupted: none hangs, and all give the same tokens."""
    count = 10_000 if full else 300
    draw, executor = random.Random(0), RandomModel(SMALL).executor(batch_invariant=False)
    rows = [executor.open() for _ in range(3)]
    executor.run([Feed(row, random_ids(20 + number, 1000, number)) for number, row in enumerate(rows)])
    lengths = [row.length for row in rows]
    groups = [rows[:1], rows[1:2], rows]

    def decode(group: Sequence[Any]) -> Any:
        return executor.capabilities.sampler.best(group, [5] * len(group), 8)

    def rewind() -> None:
        for row, length in zip(rows, lengths, strict=True):
            executor.rewind(row, length)

    expected = []
    for group in groups:
        expected.append(decode(group))
        rewind()
    interrupted, slowest = 0, 0.0
    for _ in range(count):
        rewind()
        number = draw.randrange(len(groups))
        began = time.perf_counter()
        try:
            with interrupted_after(draw.uniform(1e-5, 3e-3) if draw.random() < 0.05 else 60):
                best = decode(groups[number])
        except Interrupted:
            interrupted += 1
            grown = {row.length - length for row, length in zip(rows, lengths, strict=True)}
            assert grown <= {0, 8}, grown  # as before; or it came too late, and all was done
            continue
        slowest = max(slowest, time.perf_counter() - began)
        assert np.array_equal(best, expected[number])
    return f"{count} launches, {interrupted} interrupted, the slowest took {slowest * 1e3:.1f} ms, all with the same tokens"


@dataclass
class RowLife:
    """A row, and all that was done to it: (ids that were fed) or (length that was kept)."""

    row: Any
    deeds: list[tuple[int, ...] | int] = field(default_factory=list)

    def fork(self, row: Any) -> RowLife:
        return RowLife(row, list(self.deeds))


def life(full: bool) -> str:
    """Rows opened, fed, forked, rewound, exchanged and closed at random; what each gets, it gets alone too, bit for bit."""
    return "; ".join(_life(shape, full) for shape in (SMALL, HYBRID))


def _life(shape: dict[str, Any], full: bool) -> str:
    draw, executor = random.Random(1), RandomModel(shape).executor()
    rows: list[RowLife] = []
    count, checked = 150 if full else 40, 0
    for number in range(count):
        deed = draw.choice(("open", "feed", "feed", "feed", "fork", "rewind", "select", "close"))
        if deed == "open" or not rows:
            rows.append(RowLife(executor.open()))
        elif deed == "feed":
            fed = draw.sample(rows, draw.randint(1, len(rows)))
            chunks = [tuple(random_ids(draw.choice((1, 1, 2, 17, 64, 130)), 1000, number + at)) for at in range(len(fed))]
            scores = executor.run([Feed(item.row, chunk) for item, chunk in zip(fed, chunks, strict=True)])
            for item, chunk in zip(fed, chunks, strict=True):
                item.deeds.append(chunk)
            at = draw.randrange(len(fed))
            assert np.array_equal(scores[at].host(), _alone(executor, fed[at].deeds)), f"deed {number}"
            checked += 1
        elif deed == "fork":
            item = draw.choice(rows)
            rows.append(item.fork(executor.fork(item.row)))
        elif deed == "rewind":
            item = draw.choice(rows)
            item.deeds.append(executor.rewind(item.row, draw.randint(0, item.row.length)))
        elif deed == "select":
            parents = [draw.randrange(len(rows)) for _ in rows]
            executor.select([item.row for item in rows], parents)
            deeds = [list(rows[parent].deeds) for parent in parents]
            for item, taken in zip(rows, deeds, strict=True):
                item.deeds = taken
        if deed == "close" or len(rows) > 12:
            executor.close(rows.pop(draw.randrange(len(rows))).row)
    used = executor._pool.used
    for item in rows:
        executor.close(item.row)
    assert executor._pool.used == 0, used
    return f"{executor.config.model_type}: {count} deeds, {checked} passes equal to the row alone, bit for bit"


def _alone(executor: GpuExecutor, deeds: Sequence[tuple[int, ...] | int]) -> Any:
    """The logits of the last feed, where a row does the same alone."""
    row, scores = executor.open(), None
    for deed in deeds:
        if isinstance(deed, int):
            executor.rewind(row, deed)
        else:
            (result,) = executor.run([Feed(row, deed)])
            scores = result.host().copy()
    executor.close(row)
    return scores


def batches(full: bool) -> str:
    """Texts that join a batch at random, greedy and drawn, their prompts in chunks; each is what it is alone."""
    return "; ".join(_batches(shape, full) for shape in (SMALL, HYBRID))


def _batches(shape: dict[str, Any], full: bool) -> str:
    draw, executor = random.Random(2), RandomModel(shape).executor()
    texts, shared = 400 if full else 40, random_ids(200, 1000, seed=9)
    prompts = [
        [*shared[: draw.choice((0, 0, 64, 150))], *random_ids(draw.choice((1, 7, 70, 300)), 1000, seed=number)]
        for number in range(texts)
    ]

    def text(number: int) -> Policy:
        settings = GenerationConfig(max_new_tokens=40 + number % 50, do_sample=number % 3 == 0, top_k=20)
        return Policy(Recipe.of(settings), prompts[number], context=executor.context, seed=number)

    alone = []
    for number in range(texts):
        policy = text(number)
        alone.append([step.id for _, step in loop(executor, [policy])])
    batch, policies = Loop(PrefixCache(executor, rows=16), prompt_chunk=256), [text(number) for number in range(texts)]
    waiting, most = [*policies], 0
    while waiting or batch.policies:
        for _ in range(min(draw.choice((0, 0, 1, 9)), len(waiting))):
            batch.admit([waiting.pop()])
        most = max(most, len(batch.policies))
        for _, step in batch.step():
            assert isinstance(step, Step), step
    different = [number for number, policy in enumerate(policies) if policy.chosen != alone[number]]
    assert not different, different
    return f"{executor.config.model_type}: {texts} texts, up to {most} together, equal to each alone, bit for bit"


def states(full: bool) -> str:
    """A text of a model that keeps states, in pieces: as at once, and as the readable family has it."""
    model = RandomModel(HYBRID)
    executor, ids = model.executor(), random_ids(2000 if full else 300, 1000)
    expected = model.scores(ids, torch.float32)[-1].cpu()
    worst = 0.0
    for cuts in ((), (64,), (1, 2, 3), (200, 290, 299), (len(ids) - 1,)):
        row = executor.open()
        for first, end in pairwise((0, *cuts, len(ids))):
            (scores,) = executor.run([Feed(row, ids[first:end])])
        worst = max(worst, relative_error(torch.from_numpy(scores.host()), expected))
        executor.close(row)
    rounding = relative_error(model.scores(ids, torch.bfloat16)[-1].cpu(), expected)
    assert worst < MAX_ERROR_RATIO * rounding, (worst, rounding)
    return f"error {worst:.2e} in any pieces; plain bfloat16 {rounding:.2e}"


def memory(full: bool) -> str:
    """Without memory: one error, and everything goes on when there is some again."""
    executor = RandomModel(SMALL).executor()
    ids = random_ids(300, 1000)
    row = executor.open()
    (scores,) = executor.run([Feed(row, ids)])
    expected = scores.host().copy()
    errors = []
    executor.rewind(row, 0)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, torch.cuda.memory_reserved() / total))
    try:
        for attempt in (lambda: executor.run([Feed(row, ids * 10, Want.ALL)]), lambda: RandomModel(SMALL, 1).executor()):
            try:
                attempt()
            except (ExecutorError, torch.OutOfMemoryError) as error:  # the model's own random weights are torch's
                errors.append(type(error).__name__)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    executor.rewind(row, 0)
    (scores,) = executor.run([Feed(row, ids)])
    assert np.array_equal(scores.host(), expected)
    assert errors, "nothing failed"
    return f"without memory: {', '.join(errors)}; then the same scores as before"


def passes(full: bool) -> str:
    """Every kind of pass once, on a tiny model, for compute-sanitizer; `full`: with the persistent kernel, slow as it is."""
    model = RandomModel({**SMALL, "num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256})
    executor = model.executor(batch_invariant=not full)
    rows = [executor.open() for _ in range(20)]
    executor.run([Feed(row, random_ids(length, 1000)) for row, length in zip(rows, (70, 5, 1) * 7, strict=False)])
    watch = Watch.of("blocks.*", names=model.blueprint.site_names)
    executor.run([Feed(rows[0], [3, 4], Want.ALL, parents=[-1, -1]), Feed(rows[1], random_ids(65, 1000), watch=watch)])
    executor.run([Feed(rows[2], [5], watch=watch)])
    for count in (2, 20):
        executor.capabilities.sampler.best(rows[:count], [5] * count, 3)
    if full and (single_row := executor._single_row_decoder(4)) is not None:
        single_row._decoder.timeout = 100.0
        executor.capabilities.sampler.best(rows[:1], [5], 4)
    torch.cuda.synchronize()
    return "all ran"


def rows(full: bool) -> str:
    """decode.cu: eight rows in one kernel, over the weights where they lie; each is what it is alone, bit for bit."""
    model = RandomModel(QWEN3 if full else SMALL)
    shape, ids = read_layout(model.blueprint).shape, random_ids(2000 if full else 300, model.config.vocab_size)
    expected = model.scores(ids, torch.float32)
    rounding = relative_error(model.scores(ids, torch.bfloat16), expected)
    alone, together = (_row_decoder(model, rows) for rows in (1, 8))
    pages = -(-len(ids) // PAGE) + 2
    pool = torch.full(
        (9 * pages, shape.layers, 2, shape.kv_heads, PAGE, shape.head_size), torch.nan, device=DEVICE
    ).bfloat16()
    table = torch.randperm(9 * pages).reshape(9, pages).tolist()
    scores = alone.decode([[token] for token in ids], [0], len(ids), pool, table[:1], scores_from=0).scores
    assert scores is not None
    ratio = relative_error(scores[:, 0], expected) / rounding
    assert ratio <= MAX_ERROR_RATIO, ratio
    texts = [ids[number : number + 90] for number in range(8)]  # the first is that of the row above
    together.decode(list(zip(*texts, strict=True)), [0] * 8, 90, pool, table[1:])
    starts = [80, 64, 90, 3, 0, 70, 89, 33]
    begun = [[text[start] if start < 90 else 5 for text, start in zip(texts, starts, strict=True)]]
    first = together.decode(begun, starts, 1, pool, table[1:], scores_from=0).scores
    assert first is not None
    assert torch.equal(first[0, 0], scores[80, 0])
    speeds = []
    for decoder, count in ((alone, 1), (together, 8)):
        chosen = decoder.decode([[9] * count], [88] * count, 64, pool, table[1 : count + 1]).ids
        assert chosen == decoder.decode([[9] * count], [88] * count, 64, pool, table[1 : count + 1]).ids
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        decoder.decode([[9] * count], [88] * count, 64, pool, table[1 : count + 1])
        end.record()
        torch.cuda.synchronize()
        speeds.append(f"{count}: {begin.elapsed_time(end) / 64 * 1e3:.0f} µs a step")
    return f"error {ratio:.2f} of plain bfloat16's; equal alone and in company; rows {', '.join(speeds)}"


def _row_decoder(model: RandomModel, rows: int) -> RowDecoder:
    layout, card = read_layout(model.blueprint), Card.of(torch.device(DEVICE, 0))

    def joined(names: Sequence[str]) -> torch.Tensor:
        return torch.cat([model.weights[name] for name in names])

    weights = RowWeights(
        [
            (
                joined(layer.matrices["qkv"]), joined(layer.matrices["output"]), joined(layer.matrices["gate_up"]),
                joined(layer.matrices["down"]),
            )
            for layer in layout.layers
        ],
        model.weights[layout.head],
        model.weights[layout.embedding],
        torch.stack([model.weights[name].float() for name in layout.norms]),
        torch.from_numpy(rotation_table(layout.rope, 4096, layout.shape.head_size)).to(DEVICE),
        torch.stack([torch.stack([model.weights[name].float() for name in layer.head_norms]) for layer in layout.layers]),
    )  # fmt: skip
    schedule = RowSchedule(layout.shape, rows, card.multiprocessors, card.shared_bytes)
    return RowDecoder(schedule, weights, load_rows_kernel(schedule, card))


PROOFS: dict[str, Callable[[bool], str]] = {
    "accuracy": accuracy, "repeats": repeats, "launches": launches, "life": life, "batches": batches,
    "states": states, "memory": memory, "passes": passes, "rows": rows,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("proofs", nargs="+", choices=sorted(PROOFS))
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    for name in options.proofs:
        began = time.perf_counter()
        print(f"{name}: {PROOFS[name](options.full)} ({time.perf_counter() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
