"""A blueprint as PyTorch modules: nested under the checkpoint's own names, each calling its parts.

Every op becomes a node or two (what it computes, and the dropout of that), which has a home: the container that computes it.
A container whose nodes follow one another is called as a module; the nodes of another one, such as a list, are computed by
the container around it. A leaf (a Linear, a norm, an Embedding) is called by the container that computes its op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from glassformer.blueprints import Blueprint, Config, Op
from glassformer.blueprints.family import Family
from glassformer.ground.sites import ENCODER
from glassformer.layers import (
    ActivationFunction,
    Conv1D,
    Embedding,
    LayerNorm,
    Linear,
    OffsetRMSNorm,
    RMSNorm,
    RoutedMLP,
    SinusoidalEmbedding,
    op_steps,
)
from glassformer.layers.attention import Attention, CrossAttention
from glassformer.layers.container import (
    Container,
    HeadContainer,
    Path,
    Plan,
    Step,
    block_class,
    call,
    call_shared_block,
    call_with_pass,
    copy_value,
    see,
)
from glassformer.layers.linear import OutputLayer
from glassformer.layers.routed_mlp import Expert
from glassformer.ops.recorder import UNREAD_MASK, UNUSED, Part

Value: TypeAlias = int  # an op's result by the op's index; before its dropout, minus the index minus one

UNWEIGHTED = (nn.Dropout, nn.Identity, ActivationFunction)
INPUT = -1_000_000  # what goes into a model's first container


def raw(op: int) -> Value:
    return -op - 1


class At(NamedTuple):
    """The path of a module from the model on."""

    path: Path

    def seen_from(self, container: Path) -> Path:
        return self.path[len(container) :]


class Unbound(NamedTuple):
    """A step before it is known which container runs it, and in which slots its values are."""

    function: Any
    constants: tuple[Any, ...] = ()

    def bind(self, container: Path, slots: Iterable[int]) -> Step:
        return partial(self.function, *(_seen_from(container, value) for value in self.constants), *slots)


def _seen_from(container: Path, value: Any) -> Any:
    if isinstance(value, At):
        return value.seen_from(container)
    return tuple(_seen_from(container, item) for item in value) if isinstance(value, tuple) else value


def step(function: Any, *constants: Any) -> Unbound:
    return Unbound(function, constants)


@dataclass(frozen=True)
class Node:
    value: Value
    reads: tuple[Value, ...]
    home: Path
    step: Unbound | None  # None: the value that it reads
    block: int | None
    site: str | None = None  # relative to the block


def path_of(name: str) -> Path:
    return tuple(name.split(".")) if name else ()


def below(path: Path, home: Path) -> bool:
    return path[: len(home)] == home


class Derivation:
    """The modules of some of a blueprint's ops: of a base model, or of a head."""

    call_child = staticmethod(call_with_pass)
    weights_first = True  # whether modules without weights come last, where the family does not say
    root_name = ""  # by which the family says it

    def __init__(self, config: Config, family: Family, blueprint: Blueprint, ops: Iterable[int]) -> None:
        self.config: Any = config
        self.family, self.ops = family, list(blueprint.ops)
        self.numbers = list(ops)
        if family.types_first:
            self._swap_types_and_positions()
        self.buffers: dict[Path, Callable[[], Tensor]] = {}
        self.activations: dict[int, Path] = {}
        self.dropouts: dict[int, Part] = {}
        self.unused = [part for part in blueprint.parts if part.op == UNUSED]
        self.distance_dropouts: dict[tuple[int, Path], Path] = {}
        for part in blueprint.parts:
            if part.op == UNREAD_MASK:
                self.buffers[path_of(part.module)] = lambda: self._causal_mask
            if part.op in (UNUSED, UNREAD_MASK):
                continue
            if part.rate is None:
                self.activations[part.op] = path_of(part.module)
            else:
                self.dropouts[part.op] = part
                self.distance_dropouts[part.op, path_of(part.module)[:-1]] = path_of(part.module)
        self.readers: dict[int, list[int]] = {}
        for number, op in enumerate(self.ops):
            for read in op.inputs:
                self.readers.setdefault(read, []).append(number)
        self.blocks = {  # the path of each block, and of each block of the encoder
            (op.stack, op.block): path_of(op.module) for op in self.ops if op.kind == "add" and op.block is not None
        }
        self.leaves: dict[Path, partial[Any]] = {}
        self.experts: list[Path] = []  # mixtures of them
        self.parameters: dict[Path, Callable[[], nn.Parameter]] = {}
        self.homes: dict[int, Path] = {}
        self.ambient: set[int] = set()  # ops whose results come with the pass
        self.prepare: dict[Path, list[Callable[[Any, Any], Any]]] = {}
        self.source_nodes: dict[Path, list[Node]] = {}
        self.containers: dict[Path, dict[str, Any]] = {}  # what is set on them
        self.nodes: list[Node] = []
        for number in self.numbers:
            self._add_op(number, self.ops[number])
        for part in self.unused:
            if any(below(leaf, path_of(part.module)[:-1]) for leaf in self.leaves):
                make: Any = nn.Identity if part.rate is None else partial(nn.Dropout, part.rate)
                self.leaves.setdefault(path_of(part.module), partial(make))
        self._index()

    @cached_property
    def _causal_mask(self) -> Tensor:
        context = self.config.context
        return torch.ones(context, context, device="cpu").tril()

    # Ops to nodes

    def _swap_types_and_positions(self) -> None:
        for number, (one, other) in enumerate(zip(self.ops, self.ops[1:], strict=False)):
            if one.kind == other.kind == "position" and other.options["how"] == "segments":
                table, types = ((op.module, op.weights, op.options) for op in (one, other))
                self.ops[number : number + 2] = (_with_table(one, *types), _with_table(other, *table))

    def root(self, op: Op) -> Path:
        """Where what belongs to no block is computed: the base, or a stack of an encoder-decoder."""
        if not self.config.encoder_layers:
            return ()
        return ("encoder",) if op.stack else ("decoder",)

    def home_of_leaf(self, number: int, op: Op, leaf: Path) -> Path:
        """Around the leaf; but the norm of a sum that nothing else reads is computed where the sum is."""
        around = leaf[:-1]
        for read in op.inputs:
            before = self.ops[read]
            if op.kind == "norm" and before.kind == "add" and before.block == op.block and len(self.readers[read]) == 1:
                return self.homes[read] if below(around, self.homes[read]) else around
        return around

    def home_of_value(self, op: Op) -> Path:
        """Where an op without a module of its own is computed: where its input is, if that is inside of the same block."""
        block = self.blocks.get((op.stack, op.block), self.root(op)) if op.block is not None else self.root(op)
        inside = self.homes.get(op.inputs[0])
        return inside if inside is not None and below(inside, block) and self.ops[op.inputs[0]].block == op.block else block

    def _add_op(self, number: int, op: Op) -> None:
        home, computed = self._computed(number, op)
        if home is None:
            return
        self.homes[number] = home
        scope = op.stack + (f"blocks.{op.block}." if op.block is not None else "")
        site = op.site.removeprefix(scope) if op.site and op.kind != "scores" else None
        reads = tuple(read for read in op.inputs if read not in self.ambient)
        if op.kind == "heads" and not reads and not self._is_encoded(op.inputs[0]):
            reads = (self._distances(op.inputs[0], home, op.block),)
        if op.kind == "embed":
            reads = (INPUT,)
        if op.site == f"{ENCODER}final":
            self.ambient.add(number)
        dropout = None if op.kind == "attend" else self.dropouts.get(number)
        if dropout is not None and op.kind == "scores":
            self._add_dropout(raw(number), reads, dropout, home, op.block)
            self.nodes.append(Node(number, (raw(number),), home, computed, op.block))
            return
        if op.options.get("cross") is None and any(read in self.ambient and self._is_encoded(read) for read in op.inputs):
            self.source_nodes.setdefault(home, []).append(Node(number, (INPUT,), home, computed, op.block))
            self.ambient.add(number)
            return
        if dropout is None:
            self.nodes.append(Node(number, reads, home, computed, op.block, site))
            return
        self.nodes.append(Node(raw(number), reads, home, computed, op.block))
        self._add_dropout(number, (raw(number),), dropout, home, op.block, site)

    def _add_dropout(
        self, value: Value, reads: tuple[Value, ...], dropout: Part, home: Path, block: int | None, site: str | None = None
    ) -> None:
        path = path_of(dropout.module)
        if path:
            self.leaves.setdefault(path, partial(nn.Dropout, dropout.rate or 0.0))
            home = path[:-1]
        dropped = step(op_steps.dropout, At(path) if path else (), dropout.rate)
        self.nodes.append(Node(value, reads, home, dropped, block, site))

    def _distances(self, op: int, home: Path, block: int | None) -> Value:
        """The distances' vectors, as a block's attention reads them."""
        value = INPUT - 1 - (block or 0)
        if all(node.value != value for node in self.nodes[-4:]):
            dropout = self.distance_dropouts[op, home]
            self.leaves.setdefault(dropout, partial(nn.Dropout, self.dropouts[op].rate or 0.0))
            self.nodes.append(Node(value, (), home, step(op_steps.distance_vectors, At(dropout)), block))
        return value

    def _is_encoded(self, number: int) -> bool:
        return bool(self.ops[number].stack) and self.ops[number].block is None

    def _linear(self, op: Op, path: Path) -> None:
        name = ".".join(path)
        weight = next(w for w in op.weights if w.name == f"{name}.weight")
        bias = any(w.name == f"{name}.bias" for w in op.weights)
        if op.options.get("columns"):
            self.leaves[path] = partial(Conv1D, weight.shape[1], weight.shape[0])
        else:
            self.leaves[path] = partial(Linear, weight.shape[1], weight.shape[0], bias)

    def _computed(self, number: int, op: Op) -> tuple[Path | None, Unbound | None]:
        """An op's home and its step; no home: it is computed elsewhere, or with another op."""
        path, options = path_of(op.module), op.options
        match op.kind:
            case "embed":
                scale = 1.0 if self.family.scaled_vectors and not self.config.encoder_layers else options["scale"]
                self.leaves.setdefault(path, partial(Embedding, op.weights[0].shape[0], op.weights[0].shape[1], scale))
                return self.root(op), None if scale == options["scale"] else step(op_steps.scale, options["scale"])
            case "position":
                return self._position(number, op, path)
            case "norm":
                if op.inputs[0] in self.ambient:  # of the distances' vectors: a part of what prepares the pass
                    self.leaves[path] = _norm(op)
                    self.ambient.add(number)
                    self._prepare_distances(number)
                    return None, None
                self.leaves[path] = _norm(op)
                return self.home_of_leaf(number, op, path), step(call, At(path))
            case "linear":
                self._linear(op, path)
                scale = options["scale"]
                return path[:-1], step(call, At(path)) if scale == 1.0 else step(op_steps.scaled_linear, At(path), scale)
            case "heads":
                return self._heads(op, path)
            case "rotate":
                return path, step(op_steps.rotate, self._rope_name(options["rope"]))
            case "attend":
                return self._attend(number, op, path)
            case "activate":
                act = self.activations.get(number)
                home = self.home_of_value(op) if act is None else act[:-1]
                if act is not None:
                    self.leaves.setdefault(act, partial(ActivationFunction, options["how"]))
                return home, step(op_steps.activate, options["how"], act and At(act))
            case "gate":
                return self._gate(number, op, path)
            case "route" | "expert_gate" | "expert_linear":
                self.experts.append(path)
                return path[:-1], None
            case "add":
                return path, step(op_steps.add)
            case "identity":
                block = None if op.block is None else self.blocks[op.stack, op.block]
                return (path if len(path) > len(block or ()) and path not in self.leaves else self.home_of_value(op)), None
            case "pool":
                return (), None
            case "scores":
                return self._scores(number, op, path)
        if not op.weights:
            return self.home_of_value(op), step(op_steps.own_value, op)
        self._linear(op, path)
        return path[:-1], step(op_steps.projected_value, op, At(path))

    def _position(self, number: int, op: Op, path: Path) -> tuple[Path | None, Unbound | None]:
        how, first = op.options["how"], op.options.get("first", 0)
        root = self.root(op)
        if how == "sinusoid" and not op.options.get("halves"):
            return root, step(op_steps.sinusoid)
        if how == "sinusoid":
            self.leaves[path] = partial(SinusoidalEmbedding, self.config.max_position_embeddings, int(op.shape[-1]))
            return path[:-1], step(op_steps.position, At(path), 0)
        self.leaves[path] = partial(Embedding, *op.weights[0].shape)
        if how == "buckets":
            self.ambient.add(number)
            furthest: int = self.config.relative_attention_max_distance
            prepare = partial(op_steps.with_distance_biases, path[len(root) :], furthest, bool(op.stack))
            self.prepare.setdefault(root, []).append(prepare)
            return None, None
        if how == "distances":
            self.ambient.add(number)
            if not any(self.ops[reader].kind == "norm" for reader in self.readers.get(number, ())):
                self._prepare_distances(number)
            return None, None
        if how == "segments":
            return path[:-1], step(op_steps.token_type, At(path))
        return path[:-1], step(op_steps.position, At(path), first)

    def _prepare_distances(self, number: int) -> None:
        op = self.ops[number]
        norm = path_of(op.module) if op.kind == "norm" else None
        table = op if norm is None else self.ops[op.inputs[0]]
        buckets = self.config.distances
        prepare = partial(op_steps.with_distance_vectors, path_of(table.module), norm, buckets)
        self.prepare.setdefault((), []).append(prepare)

    def _heads(self, op: Op, path: Path) -> tuple[Path, Unbound]:
        _, count, _, size = op.shape
        modules = list(dict.fromkeys(path_of(weight.name)[:-1] for weight in op.weights))
        for module in modules:
            self._linear(op, module)
        if len(modules) > 1:
            home = path[:-2]  # around the list of heads
            return home, step(op_steps.separate_heads, tuple(map(At, modules)))
        if modules:
            return path[:-1], step(op_steps.heads, At(path), size)
        home = path[:-1] if path in self.leaves else path
        first, every = op.options["first"], op.options["step"]
        if every > 1:
            return home, step(op_steps.alternating_heads, first, every, size)
        total = int(self.ops[op.inputs[0]].shape[-1]) // int(size)
        return home, step(op_steps.fused_heads, first, count, total, size)

    def _rope_name(self, rope: Any) -> str:
        return next(name for name, known in self.config.ropes.items() if known == rope)

    def _attend(self, number: int, op: Op, path: Path) -> tuple[Path, Unbound]:
        o, dropout = op.options, self.dropouts[number]
        attributes: dict[str, Any] = {"scale": o["scale"], "window": o["window"], "softcap": o["softcap"]}
        if dropout.module:
            where = path_of(dropout.module)
            self.leaves.setdefault(where, partial(nn.Dropout, dropout.rate or 0.0))
            attributes["dropout_path"] = where[len(path) :]
        else:
            attributes["dropout"] = dropout.rate
        for weight in op.weights:
            own = path_of(weight.name)
            self.parameters[own] = partial(_random, self.config.initializer_range, weight.shape)
            attributes["sinks_name"] = own[-1]
        self.containers[path] = attributes
        if o["cross"]:
            attributes["kind"] = CrossAttention
            return path, step(op_steps.cross_attend)
        attributes["kind"] = Attention
        if "distances" in o:
            return path, step(op_steps.attend_apart, o["distance_terms"])
        return path, step(op_steps.attend)

    def _gate(self, number: int, op: Op, path: Path) -> tuple[Path, Unbound]:
        act = self.activations[number]
        self.leaves.setdefault(act, partial(ActivationFunction, op.options["how"]))
        modules = list(dict.fromkeys(path_of(weight.name)[:-1] for weight in op.weights))
        for module in modules:
            self._linear(op, module)
        return path, step(op_steps.gate if modules else op_steps.fused_gate, *map(At, (act, *modules)))

    def _scores(self, number: int, op: Op, path: Path) -> tuple[Path, Unbound]:
        if number in self.dropouts:
            self.leaves[path_of(self.dropouts[number].module)] = partial(nn.Dropout, self.dropouts[number].rate or 0.0)
        (rows, size), *biases = (weight.shape for weight in op.weights)
        name = path_of(op.weights[1].name) if biases else ()
        added = len(biases) == 1 and len(biases[0]) == 2  # not the layer's own, but a buffer
        self.leaves[path] = partial(OutputLayer, size, rows, bool(biases) and not added)
        if added:
            self.buffers[name] = partial(torch.zeros, biases[0], device="cpu")
        factor, limit = op.options.get("scale", 1.0), op.options.get("softcap")
        if not added and factor == 1.0 and limit is None:
            return path[:-1], step(call, At(path))
        return path[:-1], step(
            op_steps.scores, At(path), factor, self.family.scales_states, limit, name[-1] if added else ""
        )

    # Nodes to containers

    def _index(self) -> None:
        self.inside: dict[Path, list[int]] = {}  # where each container's nodes are
        self.consumers: dict[Value, list[int]] = {}
        self.shared_blocks = [path for path, count in Counter(self.blocks.values()).items() if count > 1]
        for at, node in enumerate(self.nodes):
            for depth in range(1, len(node.home) + 1):
                path = node.home[:depth]
                positions = self.inside.setdefault(path, [])
                shared = any(below(path, block) for block in self.shared_blocks)
                if not shared or not positions or self.nodes[positions[0]].block == node.block:
                    positions.append(at)
            for read in node.reads:
                self.consumers.setdefault(read, []).append(at)
        lists = {path[:at] for path in (*self.leaves, *self.inside) for at, name in enumerate(path) if name.isdigit()}
        self.callable = {path for path in self.inside if path not in lists and self._is_run(path)}

    def _is_run(self, path: Path) -> bool:
        """Whether a container is called as a module: its nodes follow one another, from one value to another."""
        positions = self.inside[path]
        run = range(positions[0], positions[-1] + 1)
        return len(run) == len(positions) and len(self._reads(run)) == 1 and len(self._written(run)) == 1

    def _reads(self, run: range) -> list[Value]:
        """What some nodes read of others."""
        own = {self.nodes[at].value for at in run}
        return list(dict.fromkeys(read for at in run for read in self.nodes[at].reads if read not in own))

    def _written(self, run: range) -> list[Value]:
        """What others read of some nodes, or, if nobody does, the last one's value."""
        own = [self.nodes[at].value for at in run]
        read = [value for value in own if any(at not in run for at in self.consumers.get(value, ()))]
        return read or own[-1:]

    def plan(self, path: Path, run: range | None = None) -> Plan:
        """What a container does; the slot of a value that nothing reads any longer is used again."""
        if run is None:
            run = range(self.inside[path][0], self.inside[path][-1] + 1)
        calls = self._calls(path, run)
        (result,) = self._written(run)
        last_read = {read: at for at, (_, reads, _, _) in enumerate(calls) for read in reads} | {result: len(calls)}
        slot_of, free, count = dict.fromkeys(self._reads(run), 0), list[int](), 1
        steps: list[Step] = []
        watched: list[Step] = []
        for at, (unbound, reads, written, site) in enumerate(calls):
            sources = [slot_of[read] for read in reads]
            free += [slot_of.pop(read) for read in dict.fromkeys(reads) if last_read[read] == at]
            if not free:
                free.append(count)
                count += 1
            slot = slot_of[written] = free.pop()
            if unbound is not None or sources != [slot]:
                steps.append((unbound or Unbound(copy_value)).bind(path, (*sources, slot)))
                watched.append(steps[-1])
            if site is not None:
                watched.append(partial(see, site, slot))
        return Plan(tuple(steps), tuple(watched), count, slot_of[result], tuple(self.prepare.get(path, ())))

    def _calls(self, path: Path, run: range) -> list[tuple[Unbound | None, tuple[Value, ...], Value, str | None]]:
        """What a container computes itself, and the containers in it that it calls."""
        calls: list[tuple[Unbound | None, tuple[Value, ...], Value, str | None]] = []
        at = run.start
        while at < run.stop:
            node = self.nodes[at]
            depths = range(len(path) + 1, len(node.home) + 1)
            child = next((node.home[:depth] for depth in depths if node.home[:depth] in self.callable), None)
            if child is None:
                calls.append((node.step, node.reads, node.value, node.site))
                at += 1
                continue
            inner = range(at, at + len(self.inside[child]))
            (read,), (written,) = self._reads(inner), self._written(inner)
            shared = child in self.shared_blocks
            called = step(call_shared_block, node.block, At(child)) if shared else step(self.call_child, At(child))
            calls.append((called, (read,), written, None))
            at = inner.stop
        return calls

    # Containers to modules

    def attach(self, model: nn.Module, extra: Mapping[str, nn.Module] | None = None) -> None:
        """Put the modules into a model."""
        self._fill(model, (), extra or {})

    def _children(self, path: Path) -> list[str]:
        """The names of a module's children, in their order."""
        names = dict.fromkeys(leaf[len(path)] for leaf in self._ordered if len(leaf) > len(path) and below(leaf, path))
        if all(name.isdigit() for name in names):
            return sorted(names, key=int)
        _, *order = self._described(path)
        return [*(name for name in order if name in names), *(name for name in names if name not in order)]

    @cached_property
    def _ordered(self) -> list[Path]:
        """All leaves, in the order of their use."""
        last = {path for path, make in self.leaves.items() if self.weights_first and make.func in UNWEIGHTED}
        return sorted((*self.leaves, *self.experts), key=last.__contains__)

    def _described(self, path: Path) -> list[str]:
        """A module's class, and its first children, as the family says."""
        if not path:
            return self.family.modules.get(self.root_name, "Model").split()
        patterns = [name for name in self.family.modules if name and self._fits(path, name)]
        best = max(patterns, key=lambda name: (name.count("."), name.count("["), -name.count("*")), default=None)
        return ["Container"] if best is None else self.family.modules[best].split()

    def _fits(self, path: Path, name: str) -> bool:
        """Whether a module is meant by a name in the family's list; "mlp[gate]": where it has such a child."""
        name, _, child = name.removesuffix("]").partition("[")
        return _matches(path, path_of(name)) and (not child or any(below(leaf, (*path, child)) for leaf in self.leaves))

    def _fill(self, module: nn.Module, path: Path, extra: Mapping[str, nn.Module]) -> None:
        for own, make in self.parameters.items():
            if own[:-1] == path:
                module.register_parameter(own[-1], make())
        for own, make_buffer in self.buffers.items():
            if own[:-1] == path:
                module.register_buffer(own[-1], make_buffer())
        names = self._children(path)
        _, *order = self._described(path)
        names = [*(n for n in order if n in names or n in extra), *(n for n in (*names, *extra) if n not in order)]
        for name in names:
            module.add_module(name, extra[name] if name in extra else self._module((*path, name)))

    def _module(self, path: Path) -> nn.Module:
        printed = self._described(path)[0]
        if path in self.leaves:
            leaf: Any = self.leaves[path]()
            if printed != "Container":
                leaf.printed_name = self.family.label + printed if isinstance(leaf, LayerNorm) else printed
            return leaf
        if (experts := self._experts(path)) is not None:
            return experts
        names = self._children(path)
        if all(name.isdigit() for name in names):
            parts = [self._module((*path, name)) for name in names]
            return nn.Sequential(*parts) if printed == "Sequential" else nn.ModuleList(parts)
        attributes = dict(self.containers.get(path, {}))
        if path in self.blocks.values():
            module: Container = block_class(self.family.label + printed)()
        else:
            module = attributes.pop("kind", Container)()
        module.printed_name = printed
        for name, value in attributes.items():
            setattr(module, name, value)
        self._fill(module, path, {})
        if path in self.callable:
            module.plan = self.plan(path)
        if isinstance(module, CrossAttention):
            module.key_plan, module.value_plan = (self._source_plan(path, node) for node in self.source_nodes[path])
        return module

    def _source_plan(self, path: Path, node: Node) -> Plan:
        assert node.step is not None
        return Plan((node.step.bind(path, (0, 0)),), (), 1, 0)

    def _experts(self, path: Path) -> nn.Module | None:
        """A mixture of experts, if this is one."""
        ops = {op.kind: op for op in (self.ops[n] for n in self.numbers) if path_of(op.module)[:-1] == path}
        if "expert_gate" not in ops:
            return None
        gate, down, route = ops["expert_gate"], ops["expert_linear"], ops["route"]
        router = path_of(route.module)[-1]
        weights = [[weight.name.rsplit(".", 3)[1:] for weight in op.weights] for op in (gate, down)]
        names = list(dict.fromkeys(parts[1] for group in weights for parts in group))
        shapes = {
            parts.name.rsplit(".", 2)[1]: parts.shape for op in (gate, down) for parts in op.weights if len(parts.shape) > 1
        }
        bias = any(weight.name.endswith(".bias") for weight in gate.weights)
        o = gate.options
        printed = self._described((*path, "experts", "0"))[0]
        _, *order = self._described((*path, "experts", "0"))

        def expert() -> Expert:
            parts = {name: Linear(shapes[name][1], shapes[name][0], bias) for name in order or names}
            made = Expert(parts, names, o["how"], o["limit"], o["offset"])
            made.printed_name = printed
            return made

        options = route.options
        return RoutedMLP(
            int(ops["linear"].weights[0].shape[1]), (expert() for _ in range(o["experts"])), options["chosen"],
            options["normalized"], router, bias=len(ops["linear"].weights) > 1,
        )  # fmt: skip


class HeadDerivation(Derivation):
    """The modules of a head, which take no pass."""

    call_child = staticmethod(call)
    weights_first = False

    def root(self, op: Op) -> Path:
        return ()

    def __init__(self, config: Config, family: Family, blueprint: Blueprint, ops: Iterable[int]) -> None:
        self.root_name = blueprint.head
        super().__init__(config, family, blueprint, ops)

    def head(self, output: Path, reads: str) -> tuple[str, Any]:
        """A head's name in checkpoints, and its module; under no name, what is in it is at the top level.

        `output`: where its last layer is; `reads`: what it takes.
        """
        tops = {path[0] for path in (*self.leaves, *self.buffers)}
        alone, inside = output[:1] in self.leaves and len(self.nodes) == 1, tops == {output[0]} and len(output) > 1
        everything = range(len(self.nodes))
        head: Any
        if alone and self.nodes[0].step == step(call, At(output)):
            head = self._module(output)
        elif inside:
            self.containers[output[:1]] = {"kind": HeadContainer, "output_path": output[1:]}
            head = self._module(output[:1])
        else:
            head = HeadContainer()
            head.output_path, head.plan = output, self.plan((), everything)
            self.attach(head)
            inside = False
        head.reads = reads
        return output[0] if isinstance(head, OutputLayer) or inside else "", head


def _matches(path: Path, pattern: Path) -> bool:
    """Whether the end of a path is as a pattern says, in which * is any number."""
    if len(pattern) > len(path):
        return False
    end = path[len(path) - len(pattern) :]
    return all(own == name or (own == "*" and name.isdigit()) for own, name in zip(pattern, end, strict=True))


def _with_table(op: Op, module: str, weights: Any, options: Any) -> Op:
    return replace(op, module=module, weights=weights, options=options)


def _norm(op: Op) -> partial[Any]:
    size, eps = op.weights[0].shape[0], op.options["eps"]
    if op.options["how"] == "layer":
        return partial(LayerNorm, size, eps, bias=len(op.weights) > 1)
    return partial(OffsetRMSNorm if op.options["offset"] else RMSNorm, size, eps)


def _random(std: float, shape: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(std * torch.randn(shape))
