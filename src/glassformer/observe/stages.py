"""Stages: every value on the way from ids to an answer, with its shape, its bytes and the Python that gives it.

All of it is read off the blueprint, so nothing has to be recorded, and no weights are needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from glassformer.blueprints import Blueprint, Op, Weight
from glassformer.views.journey import Stage

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}


def stages(
    blueprint: Blueprint,
    length: int,
    text: str | None = None,
    pair: str | None = None,
    *,
    plain: bool = True,
    start: int | None = None,
    dtype: str = "float32",
    stored: Mapping[str, int] | None = None,
) -> list[Stage]:
    """Every shape from ids to text, for one prompt of so many tokens, with equal blocks folded into one.

    Args:
        length: tokens of the text; of an encoder-decoder, of its source.
        text, pair: what was read, where it is known.
        plain: whether the ids are those of the text alone, without tokens put around it.
        start: what an encoder-decoder's target begins with.
        dtype: what values are computed in.
        stored: bytes of each weight, by name, as its file has it.
    """
    writes = blueprint.head == "seq2seq"
    begin = "model.config.decoder_start_token_id" if start is None else start
    own = 1 if blueprint.encoder and writes else length  # of the target: its start token, or the source once more
    laid = Laid(blueprint, {"batch": 1, "length": own, "keys": own, "source": length}, dtype, stored)
    around = (", pair" if pair is not None else "") + (", add_special_tokens=False" if plain else "")
    begun = ", decoder_input_ids=start" if writes else ""
    given = {"text": text, "pair": pair}
    found = [
        *(
            Stage(name, (len(one),), f"{name}  # all of part 1", bytes=len(one.encode(errors="replace")), dtype="utf-8")
            for name, one in given.items()
            if one is not None
        ),
        Stage("ids", (1, length), f'tokens = tokenizer(text{around}, return_tensors="pt")', **_ids(length)),
        *([Stage("start", (1, 1), f"start = torch.tensor([[{begin}]])", **_ids(1))] if writes else []),
        Stage("sites", (len(blueprint.sites),), f'at = model(**tokens{begun}, watch="*").sites'),
        *laid.rows(),
    ]
    if blueprint.head == "base" and blueprint.ops[-1].kind == "activate":  # a pooler, which the output gives by name
        shape = (1, _last(blueprint))
        found.append(Stage("pooled", shape, "model(**tokens).pooler_output", **laid.value(shape)))
    if blueprint.head not in ("causal", "seq2seq"):
        return found
    shape = (1, _last(blueprint))
    return [
        *found,
        Stage("next scores", shape, f"scores = model(**tokens{begun}).logits[:, -1]", **laid.value(shape)),
        Stage("best id", (1, 1), "best = scores.topk(1).indices", **_ids(1)),
        Stage("next text", (1,), "tokenizer.decode(best)", dtype="utf-8"),
    ]


def _ids(count: int) -> dict[str, Any]:
    return {"bytes": count * BYTES["int64"], "dtype": "int64"}


def _last(blueprint: Blueprint) -> int:
    size = blueprint.ops[-1].shape[-1]
    assert isinstance(size, int)
    return size


class Laid:
    """A blueprint's sites as stages, for real sizes."""

    def __init__(self, blueprint: Blueprint, sizes: Mapping[str, int], dtype: str, stored: Mapping[str, int] | None) -> None:
        self.ops = blueprint.ops
        self.sizes, self.dtype, self.stored = sizes, dtype, stored
        self.weights, self.again = _weights(blueprint)

    def rows(self) -> list[Stage]:
        runs, found = _runs(self.ops), list[Stage]()
        first = 0
        while first < len(runs):
            last = first
            while last + 1 < len(runs) and self._alike(runs[first], runs[last + 1]):
                last += 1
            found += self._rows(runs[first], self.ops[runs[last][0]].block)
            first = last + 1
        return found

    def value(self, shape: tuple[int, ...]) -> dict[str, Any]:
        return {"bytes": math.prod(shape) * BYTES.get(self.dtype, 4), "dtype": self.dtype}

    def _bytes(self, weights: list[Weight]) -> int | None:
        """Of some weights, as their file has them."""
        sizes = [None if self.stored is None else self.stored.get(weight.name) for weight in weights]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def _alike(self, one: list[int], other: list[int]) -> bool:
        """Whether two runs are blocks of one stack that differ in nothing but their number."""

        def face(run: list[int]) -> list[Any]:
            ops = [self.ops[number] for number in run]
            return [
                (op.kind, op.stack, op.shape, tuple(w.shape for w in op.weights), tuple(op.options.items())) for op in ops
            ]

        blocks = (self.ops[run[0]].block is not None for run in (one, other))
        return all(blocks) and face(one) == face(other)

    def _rows(self, run: list[int], last: int | None) -> list[Stage]:
        """A row for each site of a run, which may stand for equal blocks up to the last; and for weights seen at none."""
        first = self.ops[run[0]].block
        blocks = None if first is None or last is None else (first, last)
        rows = []
        for number in run:
            op, own = self.ops[number], self.weights.get(number, [])
            count = sum(weight.elements for weight in own)
            for site, shape in [*op.beside.items(), *([(op.site, op.shape)] if op.site else [])]:
                real = tuple(self.sizes[size] if isinstance(size, str) else size for size in shape)
                used: dict[str, Any] = {"stored": 0}
                if site == op.site:
                    used = {"parameters": count, "stored": self._bytes(own), "shares": self.again.get(number, "")}
                rows.append(Stage(site, real, f'at["{site}"]', _module(op, own), blocks=blocks, stack=op.stack,
                                  **used, **self.value(real)))  # fmt: skip
            if op.site is None and own:
                python = f'model.get_parameter("{own[0].name}")'
                short = ".".join(op.module.split(".")[-2:]) if len(op.module) < 20 else op.module.rpartition(".")[2]
                rows.append(Stage(short, own[0].shape, python, op.module, count, blocks, op.stack,
                                  stored=self._bytes(own)))  # fmt: skip
        return rows


def _weights(blueprint: Blueprint) -> tuple[dict[int, list[Weight]], dict[int, str]]:
    """The weights that go into what an op gives: its own, and those of ops on the way to it that nobody can see.

    A tied table counts where it is first used; where it is used again, it is named. What is seen nowhere in its own block
    stays with its op.
    """
    ops = blueprint.ops
    readers: dict[int, int] = {}
    for number, op in enumerate(ops):
        for source in op.reads:
            readers.setdefault(source, number)
    found: dict[int, list[Weight]] = {}
    again: dict[int, str] = {}
    counted: set[str] = set()
    for number, op in enumerate(ops):
        home = number
        while ops[home].site is None and home in readers and _place(ops[readers[home]]) == _place(op):
            home = readers[home]
        home = home if ops[home].site else number
        fresh = [weight for weight in op.weights if weight.name not in counted]
        if len(fresh) < len(op.weights):
            again[home] = next(weight.name for weight in op.weights if weight.name in counted)
        found.setdefault(home, []).extend(fresh)
        counted.update(weight.name for weight in fresh)
    return found, again


def _module(op: Op, own: list[Weight]) -> str:
    """The module that makes a value: that of the weights which go into it, or what is around several of those."""
    modules = {weight.name.rpartition(".")[0]: None for weight in own if "." in weight.name}
    known = op.module and not op.module.rpartition(".")[2].isdecimal()  # a block by itself says little
    return next(iter(modules)) if len(modules) == 1 or (modules and not known) else op.module


def _place(op: Op) -> tuple[str, int | None]:
    return op.stack, op.block


def _runs(ops: tuple[Op, ...]) -> list[list[int]]:
    """The ops' numbers in runs: those of one block together, and what lies before, between and after."""
    runs: list[list[int]] = []
    for number, op in enumerate(ops):
        if runs and _place(ops[runs[-1][0]]) == _place(op):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
