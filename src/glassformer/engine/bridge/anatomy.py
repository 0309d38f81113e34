"""What is where in a model of transformers: found by running it on a few tokens, and comparing what its modules give.

The blocks are the list of modules with the most weights that the stream goes through one by one. An update is what some
module of a block gives, if the stream plus it is what the block goes on with. So a site is there only where the numbers say
that it is one, whatever the modules are called; names only tell attention from the MLP where both are added at once.

Shapes: (length, numbers) of one text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from glassformer.blueprints.blueprint import Head
from glassformer.blueprints.bridged import BridgedConfig, FoundSite
from glassformer.ground.errors import ExecutorError
from glassformer.ground.sites import ENCODER
from glassformer.torch.module_sites import Layout, ModulePlace, as_tokens, first_tensor

Continues: TypeAlias = Literal["never", "by tokens", "by chunks"]  # how a text goes on from a cache
LENGTHS = (7, 11, 13, 17, 19, 23)  # of texts to try: the first two that are no size of the model
MOST_PADDING = 1024  # columns that a model may put behind a text
MLP = re.compile(r"mlp|ffn|feed_?forward|\bff|moe|expert|\bfc|dense_h|intermediate|channel")
ATTENTION = re.compile(r"att|mixer|mamba|ssm|rnn|recurrent|temporal|lstm|conv|fourier")


class Examined(Protocol):
    """What is asked of a model (`BridgedModel`)."""

    module: nn.Module
    config: BridgedConfig
    head: Head

    @property
    def is_pair(self) -> bool: ...

    @property
    def cache_name(self) -> str | None: ...

    def tensor(self, ids: Sequence[int]) -> Tensor: ...

    def encode(self, ids: Sequence[int], patterns: bool = False) -> Any: ...

    def call(
        self, ids: Sequence[int], *, encoded: Any = None, cache: Any = None, use_cache: bool = False, patterns: bool = False
    ) -> Any: ...


@dataclass(frozen=True)
class Anatomy:
    sites: tuple[FoundSite, ...]  # in the order of a pass
    places: Mapping[str, ModulePlace]
    patterns: Mapping[str, tuple[str, int]]  # a site to what attends, and which of its patterns it is
    layouts: Mapping[str, Layout]  # of the modules that give numbers for each token
    blocks: int
    encoder_blocks: int
    continues: Continues
    padded: bool = False  # whether modules see more than a text's tokens


@dataclass(eq=False)
class ModuleCall:
    """A module that was called once in a pass; tensors are those of the text's tokens."""

    name: str
    started: int
    ended: int = 0
    given: Tensor | None = None
    given_layout: Layout | None = None
    gave: Tensor | None = None
    layout: Layout | None = None
    padded: bool = False  # whether there are more than the text's tokens in what it gave


@dataclass
class Stack:
    """The blocks of an encoder, a decoder, or a model that is one stack."""

    prefix: str  # of its sites
    blocks: list[ModuleCall]
    calls: dict[str, ModuleCall] = field(default_factory=dict)


def examine(model: Examined) -> Anatomy:
    sizes = {value for value in vars(model.module.config).values() if isinstance(value, int)}
    sizes |= {size for weight in model.module.parameters() for size in weight.shape}
    free = [length for length in LENGTHS if length not in sizes and length <= model.config.context] or [
        min(LENGTHS[0], model.config.context)
    ]
    length, source_length = free[0], free[min(1, len(free) - 1)]
    ids, source = _ids(model, length, 1), _ids(model, source_length, 2)
    if model.head == "causal":
        _check_generation(model, ids)
    stacks: list[Stack] = []
    with torch.inference_mode():
        encoded = None
        if model.is_pair:
            with traced(model.module, source_length) as calls:
                encoded = model.encode(source)
            stacks.append(Stack(ENCODER, _blocks(model.module, calls), calls))
        with traced(model.module, length) as calls:
            output = model.call(ids, encoded=encoded)
        stacks.append(Stack("", _blocks(model.module, calls), calls))
        patterns = _patterns(model, ids, source, stacks)
        continues = _continues(model, ids, source) if model.head in ("causal", "seq2seq") else "never"
    sites: list[FoundSite] = []
    places: dict[str, ModulePlace] = {}
    for stack in stacks:
        for site, module, width, block, place in _stack_sites(model.module, stack, patterns):
            sites.append(FoundSite(site, module, width, block))
            if place is not None:
                places[site] = place
    if output.logits is not None and output.logits.ndim == 2 and len(output.logits) == length:
        sites.append(FoundSite("scores", _head_name(model.module), output.logits.shape[1]))
    padded = any(call.padded for stack in stacks for call in stack.calls.values())
    layouts = {name: call.layout for stack in stacks for name, call in stack.calls.items() if call.layout is not None}
    return Anatomy(
        tuple(sites), places, {site: where for site, (where, _) in patterns.items()}, layouts, len(stacks[-1].blocks),
        len(stacks[0].blocks) if model.is_pair else 0, continues, padded,
    )  # fmt: skip


# What was called ----------------------------------------------------------------------------------------------------


@contextmanager
def traced(root: nn.Module, length: int) -> Iterator[dict[str, ModuleCall]]:
    """The modules that are called within, by name, in the order of their calls; those that are called once."""
    calls: dict[str, ModuleCall] = {}
    twice: set[str] = set()
    clock = iter(range(1 << 60))
    handles: list[Any] = []

    def before(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, keywords: Any) -> None:
            if name in calls:
                twice.add(name)
            call = calls[name] = ModuleCall(name, next(clock))
            tensor = first_tensor([part for part in (*inputs, *keywords.values()) if _is_float(part)])
            call.given, call.given_layout = _tokens(tensor, length)

        return hook

    def after(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            call = calls[name]
            call.ended = next(clock)
            tensor = first_tensor(output)
            call.gave, call.layout = _tokens(tensor if _is_float(tensor) else None, length)
            call.padded = tensor is not None and call.layout == "tokens" and tensor.shape[1] > length

        return hook

    for name, module in root.named_modules():
        handles.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
        handles.append(module.register_forward_hook(after(name)))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
        for name in twice:
            del calls[name]


def _tokens(tensor: Tensor | None, length: int) -> tuple[Tensor | None, Layout | None]:
    """The numbers of each token in a tensor, and how they lie in it."""
    if tensor is None:
        return None, None
    layout = _layout(tuple(tensor.shape), length)
    if layout is None:
        return None, None
    return as_tokens(tensor, layout, 1, length)[0].float().clone(), layout


def _layout(shape: tuple[int, ...], length: int) -> Layout | None:
    """How a text of a length that is no size of the model lies in a tensor."""

    def holds(size: int) -> bool:
        return size == length

    if len(shape) >= 3 and shape[0] == 1:
        if holds(shape[1]):
            return "tokens"
        if len(shape) == 3 and (holds(shape[2]) or length < shape[2] <= length + 8):
            return "channels"
        if len(shape) == 4 and holds(shape[2]):
            return "heads"
        if len(shape) == 3 and length < shape[1] <= length + MOST_PADDING and shape[1] & (shape[1] - 1) == 0:
            return "tokens"  # a text that was padded to a power of two
    return "flat" if len(shape) == 2 and holds(shape[0]) else None


def _blocks(root: nn.Module, calls: Mapping[str, ModuleCall]) -> list[ModuleCall]:
    """The blocks: of all lists whose members the stream goes through one by one, the one with the most weights."""
    groups: dict[str, list[ModuleCall]] = {}
    for name, call in calls.items():
        in_list = name.rpartition(".")[2].isdecimal() and call.gave is not None and call.given is not None
        if in_list and call.gave.shape == call.given.shape:  # type: ignore[union-attr]
            groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", name), []).append(call)
    sizes = {
        key: sum(weight.numel() for call in group for weight in root.get_submodule(call.name).parameters())
        for key, group in groups.items()
    }
    for key in sorted(sizes, key=lambda key: (-sizes[key], len(key))):
        group = sorted(groups[key], key=lambda call: call.started)
        joints = [_same(one.gave, other.given) for one, other in pairwise(group) if other.given is not None]
        if 2 * sum(joints) >= len(joints):
            return group
    return []


# Which sites they are -----------------------------------------------------------------------------------------------


def _stack_sites(
    root: nn.Module, stack: Stack, patterns: Mapping[str, tuple[tuple[str, int], int]]
) -> Iterator[tuple[str, str, int, int | None, ModulePlace | None]]:
    prefix, blocks = stack.prefix, stack.blocks
    if blocks:
        first = blocks[0]
        assert first.given is not None
        embedding = _giver(stack.calls, first)
        yield (
            f"{prefix}embedding",
            embedding,
            first.given.shape[1],
            None,
            ModulePlace(first.name, first.given_layout, is_input=True),
        )
    for index, block in enumerate(blocks):
        scope = f"{prefix}blocks.{index}"
        inner = [call for name, call in stack.calls.items() if name.startswith(f"{block.name}.")]
        for kind, call in _updates(block, inner).items():
            assert call.gave is not None
            yield f"{scope}.{kind}.update", call.name, call.gave.shape[1], index, ModulePlace(call.name, call.layout)
        for kind in ("attention", "cross"):
            if (pattern := f"{scope}.{kind}.pattern") in patterns:
                yield pattern, block.name, patterns[pattern][1], index, None
        assert block.gave is not None
        yield f"{scope}.residual", block.name, block.gave.shape[1], index, ModulePlace(block.name, block.layout)
    base = stack.calls.get(str(getattr(root, "base_model_prefix", ""))) if not prefix else None
    if base is None and blocks:
        base = _around(blocks[0], stack.calls)
    elif base is None and prefix:  # an encoder whose blocks are not seen
        base = min(stack.calls.values(), key=lambda call: call.started, default=None)
    if base is not None and base.gave is not None:
        yield f"{prefix}final", base.name, base.gave.shape[1], None, ModulePlace(base.name, base.layout)


def _updates(block: ModuleCall, inner: Sequence[ModuleCall]) -> dict[str, ModuleCall]:
    """The modules whose results a block adds to the stream, by what they are."""
    assert block.given is not None
    assert block.gave is not None
    calls = sorted((c for c in inner if c.gave is not None), key=lambda c: (c.name.count("."), c.ended))
    same = [call for call in calls if call.gave is not None and call.gave.shape == block.gave.shape]
    streams = [block.given, *(call.gave for call in same if call.gave is not None and _same(call.given, block.given))]
    found = next((chain for stream in streams if (chain := _chain(stream, block.gave, same, inner, 0))), [])
    names = [call.name.removeprefix(block.name) for call in found]
    if len(found) == 3:
        return dict(zip(("attention", "cross", "mlp"), found, strict=True))
    if len(found) == 2:
        first_is_mlp = bool(MLP.search(names[0])) and not ATTENTION.search(names[0])
        return dict(zip(("mlp", "attention") if first_is_mlp else ("attention", "mlp"), found, strict=True))
    if len(found) == 1:
        kinds = {"attention": ATTENTION, "mlp": MLP}
        return {kind: found[0] for kind, words in kinds.items() if words.search(names[0])}
    return {}


def _chain(
    stream: Tensor, end: Tensor, same: Sequence[ModuleCall], inner: Sequence[ModuleCall], since: int
) -> list[ModuleCall] | None:
    """The updates that lead from a stream to a block's result, each the result of a module; None: there are none such.

    Where a norm stands on the stream itself, the stream goes on from the norm's result.
    """
    later = [call for call in same if call.started >= since]
    for call in later:
        assert call.gave is not None
        after = stream + call.gave
        if _close(after, end) and not _close(stream, end):
            return [call]
    if since and len(later) > 64:
        return None
    for call in later:
        assert call.gave is not None
        after = stream + call.gave
        for reader in sorted(inner, key=lambda reader: reader.started):
            if reader.started < call.ended or reader.given is None or reader.given.shape != after.shape:
                continue
            if not _close(reader.given, after):
                continue
            if (rest := _chain(after, end, same, inner, call.ended)) is not None:
                return [call, *rest]
            if reader.gave is not None and reader.gave.shape == end.shape:
                if _close(reader.gave, end):
                    return [call]
                if (rest := _chain(reader.gave, end, same, inner, reader.ended)) is not None:
                    return [call, *rest]
            break
    if since:
        return None
    for index, call in enumerate(same):  # both at once
        for other in same[index + 1 :]:
            assert call.gave is not None
            assert other.gave is not None
            if _close(stream + call.gave + other.gave, end):
                return sorted((call, other), key=lambda one: bool(MLP.search(one.name.rpartition(".")[2])))
    return None


def _patterns(
    model: Examined, ids: Sequence[int], source: Sequence[int], stacks: Sequence[Stack]
) -> dict[str, tuple[tuple[str, int], int]]:
    """The sites of patterns that the model gives: what attends, which of its patterns, and how many heads it has."""
    try:
        encoded = model.encode(source, patterns=True) if model.is_pair else None
        given = dict(model.call(ids, encoded=encoded, patterns=True).patterns)
    except Exception:
        return {}  # it has none to give
    found: dict[str, tuple[tuple[str, int], int]] = {}
    if encoded is not None:
        given["encoder"] = tuple(getattr(encoded, "attentions", None) or ())
    sizes = {"attention": (len(ids), len(ids)), "cross": (len(ids), len(source)), "encoder": (len(source), len(source))}
    for kind, patterns in given.items():
        stack = stacks[0] if kind == "encoder" else stacks[-1]
        if len(patterns) != len(stack.blocks):
            continue
        for index, pattern in enumerate(patterns):
            shape = tuple(pattern.shape) if isinstance(pattern, Tensor) else ()
            if len(shape) == 4 and shape[0] == 1 and shape[2:] == sizes[kind]:
                site = f"{stack.prefix}blocks.{index}.{'cross' if kind == 'cross' else 'attention'}.pattern"
                found[site] = (kind, index), shape[1]
    return found


def _continues(model: Examined, ids: Sequence[int], source: Sequence[int]) -> Continues:
    """Whether a text goes on from a cache as if it had been read at once, also with another one read in between."""
    if model.cache_name is None or len(ids) < 5:
        return "never"
    encoded = model.encode(source) if model.is_pair else None
    whole = model.call(ids, encoded=encoded).logits
    found: Continues = "never"
    try:
        cache = model.call(ids[:3], encoded=encoded, use_cache=True).cache
        model.call(ids[::-1], encoded=encoded, use_cache=True)
        again = deepcopy(cache)
        for index in (3, 4):
            step = model.call(ids[index : index + 1], encoded=encoded, cache=cache, use_cache=True)
            cache = step.cache
            if cache is None or not _close(step.logits, whole[index : index + 1]):
                return "never"
        found = "by tokens"
        chunk = model.call(ids[3:], encoded=encoded, cache=again, use_cache=True)
        return "by chunks" if _close(chunk.logits, whole[3:]) else found
    except Exception:
        return found  # it cannot


def _check_generation(model: Examined, ids: Sequence[int]) -> None:
    """Refuse a model that reads other tokens than the text's to find the next one."""
    given = model.module.prepare_inputs_for_generation(model.tensor(ids), use_cache=False)  # type: ignore[operator]
    read = given.get("input_ids")
    if read is None or read.shape[1] != len(ids):
        raise ExecutorError(
            f"a {model.config.model_type} model writes by reading more than the text, and transformers alone knows how. "
            "Use its own generate()."
        )


# Smaller questions --------------------------------------------------------------------------------------------------


def _giver(calls: Mapping[str, ModuleCall], first: ModuleCall) -> str:
    """The module that gives what the first block is given; "": it is none's result."""
    assert first.given is not None
    found = [c for c in calls.values() if c.ended and c.ended < first.started and c.gave is not None]
    return next((c.name for c in reversed(found) if c.gave is not None and _same(c.gave, first.given)), "")


def _around(block: ModuleCall, calls: Mapping[str, ModuleCall]) -> ModuleCall | None:
    """The outermost module that holds a block and gives states like it."""
    parts = block.name.split(".")
    around = (calls.get(".".join(parts[:count])) for count in range(len(parts)))
    return next((call for call in around if call and call.gave is not None and call.gave.shape == block.gave.shape), None)  # type: ignore[union-attr]


def _head_name(root: nn.Module) -> str:
    head = root.get_output_embeddings() if hasattr(root, "get_output_embeddings") else None  # type: ignore[operator]
    return next((name for name, module in root.named_modules() if module is head), "")


def _ids(model: Examined, length: int, seed: int) -> list[int]:
    """Ids to try, none of them with a meaning of its own where there are others."""
    draw = torch.Generator().manual_seed(seed)
    special = {getattr(model.config, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "decoder_start")}
    plain = [index for index in range(min(model.config.vocab_size, 1000)) if index not in special] or [0]
    return [plain[int(torch.randint(len(plain), (1,), generator=draw))] for _ in range(length)]


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _same(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and one.shape == other.shape and bool(torch.equal(one, other))


def _close(one: Tensor | None, other: Tensor) -> bool:
    if one is None or one.shape != other.shape:
        return False
    scale = float(other.float().abs().max())
    precision = 1e-4 if other.dtype == torch.float32 else 3e-2
    return bool((one.float() - other.float()).abs().max() <= precision * max(scale, 1e-6))
