"""Stages: every value on the way from ids to an answer, with its shape, its bytes and the Python that shows it.

All of it is read off the blueprint, so nothing has to be recorded, and no weights are needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import Blueprint, Op, Weight
from glassformer.ops.activate import Activate
from glassformer.ops.computed import Computed
from glassformer.see.journey.view import Stage

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}
SHORT_NAME = 20  # characters of a weight's name that leave room for what is around it


@dataclass(frozen=True)
class Face:
    """The lines of Python that give the values around a model's sites, by the Auto classes or by `glass.load`."""

    text: str
    ids: str  # of the texts and the tokenizer's options
    sites: str  # of an encoder-decoder's target
    parameter: str
    scores: str
    best: str
    decoded: str
    batch: tuple[int, ...] = (1,)  # axes before those of one text
    start: str = ""  # of the id that a target begins with

    @staticmethod
    def of(blueprint: Blueprint) -> Face:
        """What no Auto class computes, `glass.load` does."""
        return LOADED if any(isinstance(op, Computed) for op in blueprint.ops) else AUTO


AUTO = Face(
    text="{name}  # all of part 1",
    ids='tokens = tokenizer({arguments}, return_tensors="pt")',
    start="start = torch.tensor([[{begin}]])",
    sites='at = model(**tokens{target}, watch="*").sites',
    parameter='model.get_parameter("{name}")',
    scores="scores = model(**tokens{target}).logits[:, -1]",
    best="best = scores.topk(1).indices",
    decoded="tokenizer.decode(best)",
)
LOADED = Face(
    text="{name}  # all of part 1; model = glass.load(…)",
    ids='ids = model.tokenizer({arguments})["input_ids"]',
    sites='at = model.read_ids(ids).values("*")',
    parameter='model.weight("{name}")',
    scores='scores = at["scores"][-1]',
    best="best = [int(scores.argmax())]",
    decoded="model.tokenizer.batch_decode([best])",
    batch=(),
)


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
    """Every shape from ids to text, for one prompt of `length` tokens, with equal blocks folded into one.

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
    face = Face.of(blueprint)
    builder = StageBuilder(blueprint, axis_sizes(blueprint, length), dtype, stored, face)
    arguments = "text" + (", pair" if pair is not None else "") + (", add_special_tokens=False" if plain else "")
    target = ", decoder_input_ids=start" if writes else ""
    texts = {"text": text, "pair": pair}
    rows = [
        *(
            Stage(name, (len(value),), face.text.format(name=name), bytes=len(value.encode(errors="replace")), dtype="utf-8")
            for name, value in texts.items()
            if value is not None
        ),
        Stage("ids", (*face.batch, length), face.ids.format(arguments=arguments), **_ids(length)),
        *([Stage("start", (1, 1), face.start.format(begin=begin), **_ids(1))] if writes and face.start else []),
        Stage("sites", (len(blueprint.sites),), face.sites.format(target=target)),
        *builder.stages(),
    ]
    if blueprint.head == "base" and isinstance(blueprint.ops[-1], Activate):  # a pooler, which the output gives by name
        shape = (1, _last(blueprint))
        rows.append(Stage("pooled", shape, "model(**tokens).pooler_output", **builder.value(shape)))
    if blueprint.head not in ("causal", "seq2seq"):
        return rows
    scored = (*face.batch, _last(blueprint))
    return [
        *rows,
        Stage("next scores", scored, face.scores.format(target=target), **builder.value(scored)),
        Stage("best id", (*face.batch, 1), face.best, **_ids(1)),
        Stage("next text", (1,), face.decoded, dtype="utf-8"),
    ]


def axis_sizes(blueprint: Blueprint, length: int) -> dict[str, int]:
    """The sizes of a text's axes; an encoder-decoder's target is its start token, or the source once more."""
    target = 1 if blueprint.encoder_blocks and blueprint.head == "seq2seq" else length
    return {"batch": 1, "length": target, "keys": target, "source": length}


def _ids(count: int) -> dict[str, Any]:
    return {"bytes": count * BYTES["int64"], "dtype": "int64"}


def _last(blueprint: Blueprint) -> int:
    size = blueprint.ops[-1].shape[-1]
    assert isinstance(size, int)
    return size


class StageBuilder:
    """A blueprint's sites as stages, with the sizes of a real text."""

    def __init__(
        self, blueprint: Blueprint, sizes: Mapping[str, int], dtype: str, stored: Mapping[str, int] | None, face: Face
    ) -> None:
        self.ops = blueprint.ops
        self.sizes, self.dtype, self.stored, self.face = sizes, dtype, stored, face
        self.weights, self.shared = _weights(blueprint)

    def stages(self) -> list[Stage]:
        groups, rows = _groups(self.ops), list[Stage]()
        first = 0
        while first < len(groups):
            last = first
            while last + 1 < len(groups) and self._equal_blocks(groups[first], groups[last + 1]):
                last += 1
            rows += self._group_stages(groups[first], self.ops[groups[last][0]].block)
            first = last + 1
        return rows

    def value(self, shape: tuple[int, ...]) -> dict[str, Any]:
        return {"bytes": math.prod(shape) * BYTES.get(self.dtype, 4), "dtype": self.dtype}

    def _bytes(self, weights: list[Weight]) -> int | None:
        """Of some weights, as their file has them."""
        sizes = [None if self.stored is None else self.stored.get(weight.name) for weight in weights]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def _equal_blocks(self, group: list[int], other: list[int]) -> bool:
        """Whether two groups are blocks of one stack that differ in nothing but their number."""

        def signature(numbers: list[int]) -> list[Any]:
            ops = [self.ops[index] for index in numbers]
            return [
                (op.kind, op.stack, op.shape, tuple(w.shape for w in op.weights), tuple(op.options.items())) for op in ops
            ]

        blocks = (self.ops[numbers[0]].block is not None for numbers in (group, other))
        return all(blocks) and signature(group) == signature(other)

    def _group_stages(self, group: list[int], last: int | None) -> list[Stage]:
        """A stage for each site of a group, which may stand for equal blocks up to the last; and for weights of no site."""
        first = self.ops[group[0]].block
        blocks = None if first is None or last is None else (first, last)
        rows = []
        for index in group:
            op, weights = self.ops[index], self.weights.get(index, [])
            count = sum(weight.elements for weight in weights)
            for site, shape in [*op.inner_sites.items(), *([(op.site, op.shape)] if op.site else [])]:
                axes = shape if self.face.batch else (axis for axis in shape if axis != "batch")
                real = tuple(self.sizes[axis] if isinstance(axis, str) else axis for axis in axes)
                used: dict[str, Any] = {"stored": 0}
                if site == op.site:
                    used = {"parameters": count, "stored": self._bytes(weights), "shares": self.shared.get(index, "")}
                rows.append(Stage(site, real, f'at["{site}"]', _module(op, weights), blocks=blocks, stack=op.stack,
                                  **used, **self.value(real)))  # fmt: skip
            if op.site is None and weights:
                python = self.face.parameter.format(name=weights[0].name)
                rows.append(Stage(_short_name(weights[0].name), weights[0].shape, python, op.module, count, blocks, op.stack,
                                  stored=self._bytes(weights)))  # fmt: skip
        return rows


def _weights(blueprint: Blueprint) -> tuple[dict[int, list[Weight]], dict[int, str]]:
    """The weights of each op's output: its own, and those of ops before it that have no site. And names of shared ones.

    A tied table counts where it is first used; where it is used again, it is named. Weights whose block has no later site
    stay with their op.
    """
    ops = blueprint.ops
    readers: dict[int, int] = {}
    for index, op in enumerate(ops):
        for source in op.inputs:
            readers.setdefault(source, index)
    weights: dict[int, list[Weight]] = {}
    shared: dict[int, str] = {}
    counted: set[str] = set()
    for index, op in enumerate(ops):
        home = index
        while ops[home].site is None and home in readers and _place(ops[readers[home]]) == _place(op):
            home = readers[home]
        home = home if ops[home].site else index
        fresh = [weight for weight in op.weights if weight.name not in counted]
        if len(fresh) < len(op.weights):
            shared[home] = next(weight.name for weight in op.weights if weight.name in counted)
        weights.setdefault(home, []).extend(fresh)
        counted.update(weight.name for weight in fresh)
    return weights, shared


def _short_name(weight: str) -> str:
    """The end of a weight's name that says what it is: of "model.altup_projections.0.weight", "altup_projections.0"."""
    name = weight.removesuffix(".weight")
    parts = name.split(".")
    return ".".join(parts[-2:] if len(name) < SHORT_NAME or parts[-1].isdecimal() else parts[-1:])


def _module(op: Op, weights: list[Weight]) -> str:
    """The module that computes a value: that of its weights, or the one around several of them."""
    modules = {weight.name.rpartition(".")[0]: None for weight in weights if "." in weight.name}
    known = op.module and not op.module.rpartition(".")[2].isdecimal()  # a block by itself says little
    return next(iter(modules)) if len(modules) == 1 or (modules and not known) else op.module


def _place(op: Op) -> tuple[str, int | None]:
    return op.stack, op.block


def _groups(ops: tuple[Op, ...]) -> list[list[int]]:
    """The ops' numbers in groups: those of one block together, and what lies before, between and after."""
    groups: list[list[int]] = []
    for index, op in enumerate(ops):
        if groups and _place(ops[groups[-1][0]]) == _place(op):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
