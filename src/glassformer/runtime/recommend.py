"""Which models of the catalogue fit this machine: sizes from their configs' numbers, speeds from a calibration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

from glassformer.blueprints import blueprint, read_config
from glassformer.checkpoint.catalogue import CATALOGUE, CatalogueEntry, ModelTask
from glassformer.checkpoint.locate import local_path
from glassformer.checkpoint.quantization import BITS
from glassformer.engine.resources import free_memory
from glassformer.ground.errors import ExecutorError, InputError, did_you_mean
from glassformer.ground.progress import Progress
from glassformer.quantize.tensor_kinds import weight_bytes
from glassformer.see.plan import plan
from glassformer.see.recommendation import READING, ModelFit, Recommendation

CONTEXT = 8192  # tokens of a conversation that room is left for
HEADROOM = 0.15  # of the weights: what a pass needs, and the tokenizer
LEAST_HEADROOM = 150_000_000  # bytes: the process itself
PACKED = ("Q8_0", "Q4_1")  # kinds that weights of 16 bits are offered in too
TASKS = ("chat", "embed")


def recommend(
    task: ModelTask = "chat", *, context: int = CONTEXT, device: str | None = None, free: int | None = None,
    progress: Progress | None = None,
) -> Recommendation:  # fmt: skip
    """What of the catalogue fits in the memory that is free, and how fast it will write.

    Args:
        task: 'chat' or 'embed'.
        context: how many tokens keys and values are kept of, at most; a model's own context if that is shorter.
        device: 'cpu' or 'cuda'; by default a GPU, where there is one.
        free: bytes of memory; by default what is free.
        progress: called as (measurements so far, all of them) while the machine is measured, which it is once.
    """
    if task not in TASKS:
        raise InputError(f"there is no task {task!r}.{did_you_mean(str(task), TASKS)} Tasks: {', '.join(TASKS)}.")
    if context < 1:
        raise InputError(f"a context of {context} tokens holds nothing. Give at least one.")
    device = device or default_device()
    free = free_memory(device) if free is None else free
    rates = None
    if device == "cpu" and task == "chat":
        from glassformer.engine.cpu.calibration import calibration

        try:
            rates = calibration(progress)
        except ExecutorError:  # there is no CPU engine here, so PyTorch runs the models, and its speed is not measured
            rates = None
    candidates = []
    for name, entry in CATALOGUE.items():
        if entry.task != task:
            continue
        for one, blocks in _candidates(name, entry, context, free):
            rate = rates.rates.get(one.kind) if rates is not None else None
            speed = None if rate is None else rate.tokens_per_second(blocks, one.weight_bytes)
            candidates.append(replace(one, tokens_per_second=speed))
    candidates.sort(key=lambda one: (one.fits is False, -one.parameters, -BITS[one.kind]))
    return Recommendation(
        device, free, context, None if rates is None else rates.threads, rates is not None and rates.disturbed,
        tuple(candidates), best_of(candidates),
    )  # fmt: skip


def best_of(candidates: list[ModelFit]) -> ModelFit | None:
    """The largest that writes faster than people read, with the finest weights that do; else the fastest.

    One that is gated is named only if it is here, or nothing else fits.
    """
    fitting = [one for one in candidates if one.fits is not False]
    fitting = [one for one in fitting if one.here or not one.gated] or fitting
    quick = [one for one in fitting if one.tokens_per_second is None or one.tokens_per_second >= READING]
    if quick:
        return max(quick, key=lambda one: (one.parameters, BITS[one.kind]))
    return max(fitting, key=lambda one: one.tokens_per_second or 0.0, default=None)


def default_device() -> str:
    if find_spec("torch") is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _candidates(name: str, entry: CatalogueEntry, context: int, free: int | None) -> Iterator[tuple[ModelFit, int]]:
    """A model as it is stored and, where that is in 16 bits, packed; and how many blocks a token goes through."""
    assert entry.config is not None
    config = read_config(dict(entry.config))
    model = blueprint(config)
    cached = plan(config, min(context, config.context)).cache["bfloat16"] if model.head == "causal" else 0
    kinds = (entry.stored_as, *(PACKED if entry.stored_as == "BF16" else ()))
    for kind in kinds:
        size = weight_bytes(model, kind)
        memory = size + cached + max(LEAST_HEADROOM, int(HEADROOM * size))
        candidate = ModelFit(
            name, kind, kind != entry.stored_as, model.parameters, config.context, entry.licence, entry.gated,
            local_path(name) is not None, size, cached, memory, None if free is None else memory <= free, None,
        )  # fmt: skip
        yield candidate, model.blocks
