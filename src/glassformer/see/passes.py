"""Passes over rows and groups of texts: what every way of reading is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from glassformer.engine.protocol import BlockInput, Executor, Row
from glassformer.ground.sites import Watch
from glassformer.see.protocols import ModelLike
from glassformer.see.view import Floats

Item = TypeVar("Item")


@contextmanager
def open_row(executor: Executor, source: Sequence[int] | None = None) -> Iterator[Row]:
    """A row of an executor, closed in the end."""
    row = executor.open(source)
    try:
        yield row
    finally:
        executor.close(row)


def grouped(items: Iterable[Item], size: Callable[[Item], int], most: int, count: int | None = None) -> Iterator[list[Item]]:
    """Items in their order, as many together as have at most a size, or at most a count; a larger one goes alone.

    >>> list(grouped([1, 2, 5, 9], size=int, most=8))
    [[1, 2, 5], [9]]
    """
    group: list[Item] = []
    total = 0
    for item in items:
        if group and (total + size(item) > most or len(group) == count):
            yield group
            group, total = [], 0
        group.append(item)
        total += size(item)
    if group:
        yield group


def encoder_pass(
    model: ModelLike, ids: Sequence[int], watch: Watch, begin: BlockInput | None = None, second: int | None = None
) -> tuple[Floats | None, dict[str, Floats]]:
    """One pass of a model that only reads: its logits for each token or for the text, and what the watch read.

    `begin`: the first block that is computed, and what enters it. `second`: where the second of two texts begins.
    """
    watch = Watch(watch.reads, {**model.changes, **watch.changes})
    if (own_pass := getattr(model.opened, "read_pass", None)) is not None:  # transformers computes it
        logits, sites = own_pass(ids, watch, begin, second)
        return logits, sites
    module = model.module
    import torch

    tokens = torch.tensor([list(ids)])
    types = None
    if second is not None and "token_type_ids" in model.tokenizer.model_input_names:
        types = (torch.arange(len(ids)) >= second).long()[None]
    with torch.inference_mode():
        ready = None
        pass_for = getattr(module.base_model, "pass_for", None)  # only encoders begin at a block
        if begin is not None and pass_for is not None:
            ready = pass_for(tokens, watch)
            ready = replace(ready, begin=(begin.block, torch.from_numpy(begin.states)[None].to(module.dtype)))
        given = {} if types is None else {"token_type_ids": types}
        output = module(tokens, watch=watch, p=ready, **given)
    logits = getattr(output, "logits", None)
    sites = {site: value[0].float().numpy() for site, value in (output.sites or {}).items()}
    return None if logits is None else logits[0].float().numpy(), sites
