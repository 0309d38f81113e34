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
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.blueprints import Blueprint, Config, Op, Weight
from glassformer.blueprints.blueprint import Family
from glassformer.ground.sites import ENCODER
from glassformer.ops.causal_conv import CausalConv
from glassformer.ops.module_steps import At, Path, Step, Unbound, Values, below, call, part, path_of, step
from glassformer.ops.norm import Norm
from glassformer.ops.position import types_first
from glassformer.ops.positions import SinusoidTable
from glassformer.ops.recorder import UNREAD_MASK, UNUSED, UnweightedModule
from glassformer.torch.attention import Attention, CrossAttention
from glassformer.torch.container import (
    Container,
    ContainerPlan,
    HeadContainer,
    block_class,
    call_shared_block,
    call_with_pass,
    copy_value,
    see,
)
from glassformer.torch.layers import (
    ActivationFunction,
    Conv1D,
    Embedding,
    GroupedRMSNorm,
    LayerNorm,
    Linear,
    OffsetLayerNorm,
    OffsetRMSNorm,
    OutputLayer,
    RMSNorm,
    UnweightedRMSNorm,
    XIELUActivation,
)
from glassformer.torch.positions import (
    SinusoidalEmbedding,
    add_sinusoids,
    distance_vectors,
    with_distance_biases,
    with_distance_vectors,
)
from glassformer.torch.recurrence import CausalConv1d, Recurrence
from glassformer.torch.routed_mlp import Expert, ExpertList

Value: TypeAlias = int  # an op's result by the op's index; before its dropout, minus the index minus one

UNWEIGHTED = (nn.Dropout, nn.Identity, ActivationFunction)
INPUT = -1_000_000  # what goes into a model's first container


def raw(op: int) -> Value:
    return -op - 1


@dataclass(frozen=True)
class StepNode:
    value: Value
    reads: tuple[Value, ...]
    home: Path
    step: Unbound | None  # None: the value that it reads
    block: int | None
    site: str | None = None  # relative to the block


class Derivation:
    """The modules of some of a blueprint's ops: of a base model, or of a head."""

    call_child = staticmethod(call_with_pass)
    weights_first = True  # whether modules without weights come last, where the family does not say
    root_name = ""  # by which the family says it

    def __init__(self, config: Config, family: Family, blueprint: Blueprint, ops: Iterable[int]) -> None:
        self.config: Any = config
        self._extra: Mapping[Path, nn.Module] = {}  # modules that no op stands for
        self.family = family
        self.ops = types_first(blueprint.ops) if family.types_first else list(blueprint.ops)
        self.indices = list(ops)
        self.buffers: dict[Path, Callable[[], Tensor]] = {}
        self.activations: dict[int, Path] = {}
        self.dropouts: dict[int, UnweightedModule] = {}
        self.distance_dropouts: dict[tuple[int, Path], Path] = {}
        for module in blueprint.parts:
            path = path_of(module.module)
            if module.op == UNREAD_MASK:
                self.buffers[path] = lambda: self._causal_mask
            elif module.op != UNUSED and module.rate is None:
                self.activations[module.op] = path
            elif module.op != UNUSED:
                self.dropouts[module.op] = module
                self.distance_dropouts[module.op, path[:-1]] = path
        self.readers: dict[int, list[int]] = {}
        for index, op in enumerate(self.ops):
            for read in op.inputs:
                self.readers.setdefault(read, []).append(index)
        self.blocks = {  # the path of each block, and of each block of the encoder
            (op.stack, op.block): path_of(op.module) for op in self.ops if op.adds_to_stream and op.block is not None
        }
        self.leaves: dict[Path, partial[Any]] = {}
        self.mixtures: dict[Path, list[Op]] = {}  # of experts: what computes the neurons, and what reads them
        self.parameters: dict[Path, Callable[[], nn.Parameter]] = {}
        self.homes: dict[int, Path] = {}
        self.ambient: set[int] = set()  # ops whose results come with the pass
        self.encoded: int | None = None  # the encoder's last op
        self.prepare: dict[Path, dict[int, Callable[[Any, Any], Any]]] = {}
        self.source_nodes: dict[Path, list[StepNode]] = {}
        self.containers: dict[Path, dict[str, Any]] = {}  # what is set on them
        self.remembered: dict[tuple[type[Attention], str], dict[Path, int]] = {}  # attentions, by their place in caches
        self.states: list[Path] = []  # the modules that keep one, in their order
        self.nodes: list[StepNode] = []
        self.beside_nodes: list[StepNode] = []
        beside: set[int] = set()
        for index in self.indices:
            first = len(self.nodes)
            if not self.ops[index].options.get("beside"):
                self.ambient |= beside
            self.ops[index].write_modules(self, index)
            if self.ops[index].options.get("beside"):  # computed once, and read by every block
                self.beside_nodes += self.nodes[first:]
                del self.nodes[first:]
                beside.add(index)
        if self.beside_nodes:
            self.prepare.setdefault((), {})[max(beside)] = partial(with_layer_inputs, self._beside_plan())
        for module in blueprint.parts:
            if module.op == UNUSED and any(below(leaf, path_of(module.module)[:-1]) for leaf in self.leaves):
                make: Any = nn.Identity if module.rate is None else partial(nn.Dropout, module.rate)
                self.leaves.setdefault(path_of(module.module), partial(make))
        self._index()

    @cached_property
    def _causal_mask(self) -> Tensor:
        context = self.config.context
        return torch.ones(context, context, device="cpu").tril()

    # What ops ask -------------------------------------------------------------------------------------------------

    def root(self, op: Op) -> Path:
        """Where what belongs to no block is computed: the base, or a stack of an encoder-decoder."""
        if not self.config.encoder_layers:
            return ()
        return ("encoder",) if op.stack else ("decoder",)

    def block_of(self, op: Op) -> Path:
        """The path of an op's block; of none, where it has none."""
        return () if op.block is None else self.blocks[op.stack, op.block]

    def home_of_value(self, op: Op) -> Path:
        """Where an op without a module of its own is computed: where its input is, if that is inside of the same block."""
        block = self.blocks.get((op.stack, op.block), self.root(op)) if op.block is not None else self.root(op)
        inside = self.homes.get(op.inputs[0])
        return inside if inside is not None and below(inside, block) and self.ops[op.inputs[0]].block == op.block else block

    @property
    def scales_vectors(self) -> bool:
        """Whether embedded tokens are scaled by a step of the base, and not by their table's module."""
        return self.family.scaled_vectors and not self.config.encoder_layers

    def add(
        self, index: int, home: Path, computed: Unbound | None = None, reads: tuple[Value, ...] | None = None,
        seen: bool = True,
    ) -> None:  # fmt: skip
        """An op is computed in a container by a step, or, without one, is the value that it reads.

        `reads`: by default what it takes of others that does not come with the pass; `seen`: at its site, if it has one.
        """
        op = self.ops[index]
        self.homes[index] = home
        if op.site == f"{ENCODER}final":
            self.encoded = index
            self.ambient.add(index)
        if self.encoded in op.inputs:
            self.source_nodes.setdefault(home, []).append(StepNode(index, (INPUT,), home, computed, op.block))
            self.ambient.add(index)
            return
        if reads is None:
            reads = tuple(read for read in op.inputs if read not in self.ambient)
            if not reads:
                reads = (self._distances(op.inputs[0], home, op.block),) if op.inputs else (INPUT,)
        scope = op.stack + (f"blocks.{op.block}." if op.block is not None else "")
        site = op.site.removeprefix(scope) if op.site and seen else None
        dropout = self.dropouts.pop(index, None)
        if dropout is None:
            self.nodes.append(StepNode(index, reads, home, computed, op.block, site))
            return
        self.nodes.append(StepNode(raw(index), reads, home, computed, op.block))
        self._add_dropout(index, (raw(index),), dropout, home, op.block, site)

    def dropped_input(self, index: int, home: Path) -> tuple[Value, ...]:
        """What an op reads, after the dropout that is its own."""
        op, dropout = self.ops[index], self.dropouts.pop(index, None)
        if dropout is None:
            return op.inputs
        self._add_dropout(raw(index), op.inputs, dropout, home, op.block)
        return (raw(index),)

    def _add_dropout(
        self,
        value: Value,
        reads: tuple[Value, ...],
        dropout: UnweightedModule,
        home: Path,
        block: int | None,
        site: str | None = None,
    ) -> None:
        path = path_of(dropout.module)
        if path:
            self.leaves.setdefault(path, partial(nn.Dropout, dropout.rate or 0.0))
            home = path[:-1]
        dropped = step(drop_out, At(path) if path else (), dropout.rate)
        self.nodes.append(StepNode(value, reads, home, dropped, block, site))

    # Modules that ops have ------------------------------------------------------------------------------------------

    def linear(self, op: Op, path: Path) -> None:
        """The projection of an op that has this path."""
        name = ".".join(path)
        rows, columns = next(weight for weight in op.weights if weight.name == f"{name}.weight").shape
        bias = any(weight.name == f"{name}.bias" for weight in op.weights)
        transposed = op.options.get("columns")
        self.leaves[path] = partial(Conv1D, columns, rows) if transposed else partial(Linear, columns, rows, bias)

    def output_layer(self, path: Path, weight: Weight, bias: bool) -> None:
        rows, columns = weight.shape
        self.leaves[path] = partial(OutputLayer, columns, rows, bias)

    def ones(self, buffer: Weight) -> None:
        self.buffers[path_of(buffer.name)] = partial(torch.ones, buffer.shape, device="cpu")

    def zeros(self, buffer: Weight) -> None:
        self.buffers[path_of(buffer.name)] = partial(torch.zeros, buffer.shape, device="cpu")

    def embedding(self, path: Path, rows: int, size: int, scale: float = 1.0) -> None:
        self.leaves.setdefault(path, partial(Embedding, rows, size, scale))

    def norm(self, op: Norm, path: Path) -> None:
        size, eps, offset = op.weights[0].shape[0] if op.weights else op.width, op.options["eps"], op.options["offset"]
        if op.options["how"] == "layer":
            layer, bias = OffsetLayerNorm if offset else LayerNorm, len(op.weights) > 1
            self.leaves[path] = partial(layer, size, eps, elementwise_affine=bool(op.weights), bias=bias)
        elif op.groups > 1:
            self.leaves[path] = partial(GroupedRMSNorm, size, eps, op.groups)
        else:
            rms = OffsetRMSNorm if offset else RMSNorm
            self.leaves[path] = partial(rms if op.weights else UnweightedRMSNorm, size, eps)

    def head_norm(self, op: Norm, path: Path) -> None:
        """One head's norm."""
        self.leaves[path] = partial(LayerNorm, op.width, op.options["eps"], bias=False)

    def vector(self, weight: Weight, untrained: float) -> None:
        """A parameter of a container: some numbers for each head."""
        self.parameters[path_of(weight.name)] = partial(_filled, untrained, weight.shape)

    def causal_conv(self, op: CausalConv, path: Path) -> None:
        columns, kernel = op.width, op.kernel_size
        self.leaves[path] = partial(CausalConv1d, columns, kernel, len(op.weights) > 1, op.options["how"])
        self.states.append(path)

    def recurrence(self, index: int, path: Path, options: Mapping[str, Any]) -> None:
        """The container of heads that keep a state."""
        self.containers[path] = {**options, "kind": Recurrence}
        self.states.append(path)

    def activation(self, index: int, how: str) -> Path | None:
        """The path of an op's activation, where it is a module."""
        path = self.activations.get(index)
        if path is not None:
            self.leaves.setdefault(path, partial(ActivationFunction, how))
        return path

    def learned_activation(self, path: Path) -> None:
        self.leaves[path] = partial(XIELUActivation)

    def attention(self, index: int, path: Path, sinks: Weight | None, cross: bool, options: Mapping[str, Any]) -> None:
        """The container of an attention, and what it drops out."""
        kind, op = CrossAttention if cross else Attention, self.ops[index]
        remembered = self.remembered.setdefault((kind, op.stack), {})
        attributes: dict[str, Any] = {**options, "kind": kind}
        if "shares" not in options:
            attributes["cache_layer"] = remembered.setdefault(path, len(remembered))
        dropout = self.dropouts.pop(index)
        if dropout.module:
            where = path_of(dropout.module)
            self.leaves.setdefault(where, partial(nn.Dropout, dropout.rate or 0.0))
            attributes["dropout_path"] = where[len(path) :]
        else:
            attributes["dropout"] = dropout.rate
        if sinks is not None:
            sinks_path = path_of(sinks.name)
            self.parameters[sinks_path] = partial(_random, self.config.initializer_range, sinks.shape)
            attributes["sinks_name"] = sinks_path[-1]
        self.containers[path] = attributes

    def experts(self, op: Op, path: Path) -> None:
        """An op has weights of all experts of a block."""
        self.mixtures.setdefault(path, []).append(op)
        self.leaves[path] = partial(self._experts, path)

    # Positions and distances ----------------------------------------------------------------------------------------

    def add_sinusoids(self, index: int, home: Path) -> None:
        self.add(index, home, step(add_sinusoids))

    def sinusoid_table(self, path: Path, table: SinusoidTable) -> None:
        self.leaves[path] = partial(SinusoidalEmbedding, table)

    def prepare_biases(self, index: int, path: Path) -> None:
        """An op's table has the biases of distances, which come with the pass: its stack's, or its block's."""
        op, furthest = self.ops[index], self.config.relative_attention_max_distance
        home = self.root(op) if op.block is None else self.block_of(op)
        self.ambient.add(index)
        bidirectional = not any(self.ops[reader].options["causal"] for reader in self.readers[index])
        prepare = partial(with_distance_biases, path[len(home) :], furthest, bidirectional)
        self.prepare.setdefault(home, {})[index] = prepare

    def prepare_distances(self, index: int, table: Path, norm: Path | None = None) -> None:
        """An op's table has the vectors of distances, which come with the pass."""
        self.ambient.add(index)
        self.prepare.setdefault((), {})[index] = partial(with_distance_vectors, table, norm, self.config.distances)

    def norm_distances(self, index: int, norm: Path) -> None:
        """An op is the norm of the vectors of distances."""
        (table,) = self.ops[index].inputs
        del self.prepare[()][table]
        self.prepare_distances(index, path_of(self.ops[table].module), norm)

    def _distances(self, op: int, home: Path, block: int | None) -> Value:
        """The distances' vectors, as a block's attention reads them."""
        value = INPUT - 1 - (block or 0)
        if all(node.value != value for node in self.nodes[-4:]):
            dropout = self.distance_dropouts[op, home]
            self.leaves.setdefault(dropout, partial(nn.Dropout, self.dropouts[op].rate or 0.0))
            self.nodes.append(StepNode(value, (), home, step(distance_vectors, At(dropout)), block))
        return value

    # Nodes to containers

    def _index(self) -> None:
        self.inside: dict[Path, list[int]] = {}  # where each container's nodes are
        self.consumers: dict[Value, list[int]] = {}
        self.shared_blocks = [path for path, count in Counter(self.blocks.values()).items() if count > 1]
        for index, node in enumerate(self.nodes):
            for depth in range(1, len(node.home) + 1):
                path = node.home[:depth]
                positions = self.inside.setdefault(path, [])
                shared = any(below(path, block) for block in self.shared_blocks)
                if not shared or not positions or self.nodes[positions[0]].block == node.block:
                    positions.append(index)
            for read in node.reads:
                self.consumers.setdefault(read, []).append(index)
        lists = {path[:depth] for path in (*self.leaves, *self.inside) for depth, name in enumerate(path) if name.isdigit()}
        self.callable = {path for path in self.inside if path not in lists and self._is_run(path)}

    def _is_run(self, path: Path) -> bool:
        """Whether a container is called as a module: its nodes follow one another, from one value to another."""
        positions = self.inside[path]
        run = range(positions[0], positions[-1] + 1)
        return len(run) == len(positions) and len(self._reads(run)) == 1 and len(self._written(run)) == 1

    def _reads(self, run: range) -> list[Value]:
        """What some nodes read of others."""
        written = {self.nodes[index].value for index in run}
        return list(dict.fromkeys(read for index in run for read in self.nodes[index].reads if read not in written))

    def _written(self, run: range) -> list[Value]:
        """What others read of some nodes, or, if nobody does, the last one's value."""
        written = [self.nodes[index].value for index in run]
        read = [value for value in written if any(index not in run for index in self.consumers.get(value, ()))]
        return read or written[-1:]

    def plan(self, path: Path, run: range | None = None) -> ContainerPlan:
        """What a container does; the slot of a value that nothing reads any longer is used again."""
        if run is None:
            run = range(self.inside[path][0], self.inside[path][-1] + 1)
        calls = self._calls(path, run)
        (result,) = self._written(run)
        last_read = {read: index for index, (_, reads, _, _) in enumerate(calls) for read in reads} | {result: len(calls)}
        slot_of, free, count = dict.fromkeys(self._reads(run), 0), list[int](), 1
        steps: list[Step] = []
        watched: list[Step] = []
        for index, (unbound, reads, written, site) in enumerate(calls):
            sources = [slot_of[read] for read in reads]
            free += [slot_of.pop(read) for read in dict.fromkeys(reads) if last_read[read] == index]
            if not free:
                free.append(count)
                count += 1
            slot = slot_of[written] = free.pop()
            if unbound is not None or sources != [slot]:
                steps.append((unbound or Unbound(copy_value)).bind(path, (*sources, slot)))
                watched.append(steps[-1])
            if site is not None:
                watched.append(partial(see, site, slot))
        return ContainerPlan(
            tuple(steps), tuple(watched), count, slot_of[result], tuple(self.prepare.get(path, {}).values())
        )

    def _beside_plan(self) -> ContainerPlan:
        """What every block has beside what enters it: of the embedded tokens, in slot 0, and of the pass's ids."""
        slots: dict[Value, int] = {0: 0}
        steps: list[Step] = []
        for node in self.beside_nodes:
            sources = [slots[read] for read in node.reads]
            slots[node.value] = len(slots)
            assert node.step is not None
            steps.append(node.step.bind((), (*sources, slots[node.value])))
        return ContainerPlan(tuple(steps), tuple(steps), len(slots), len(slots) - 1)

    def _calls(self, path: Path, run: range) -> list[tuple[Unbound | None, tuple[Value, ...], Value, str | None]]:
        """What a container computes itself, and the containers in it that it calls."""
        calls: list[tuple[Unbound | None, tuple[Value, ...], Value, str | None]] = []
        index = run.start
        while index < run.stop:
            node = self.nodes[index]
            depths = range(len(path) + 1, len(node.home) + 1)
            child = next((node.home[:depth] for depth in depths if node.home[:depth] in self.callable), None)
            if child is None:
                calls.append((node.step, node.reads, node.value, node.site))
                index += 1
                continue
            inner = range(index, index + len(self.inside[child]))
            (read,), (written,) = self._reads(inner), self._written(inner)
            shared = child in self.shared_blocks
            called = step(call_shared_block, node.block, At(child)) if shared else step(self.call_child, At(child))
            calls.append((called, (read,), written, None))
            index = inner.stop
        return calls

    # Containers to modules

    def attach(self, model: nn.Module, extra: Mapping[str, nn.Module] | None = None) -> None:
        """Put the modules into a model; `extra`: more of them, by name."""
        self._extra = {path_of(name): part for name, part in (extra or {}).items()}
        self._fill(model, ())

    def _children(self, path: Path) -> list[str]:
        """The names of a module's children, in their order."""
        inside = [*self._ordered, *(buffer[:-1] for buffer in self.buffers)]
        names = dict.fromkeys(leaf[len(path)] for leaf in inside if len(leaf) > len(path) and below(leaf, path))
        if names and all(name.isdigit() for name in names):
            return sorted(names, key=int)
        _, *order = self._described(path)
        return [*(name for name in order if name in names), *(name for name in names if name not in order)]

    @cached_property
    def _ordered(self) -> list[Path]:
        """All leaves, in the order of their use."""
        last = {path for path, make in self.leaves.items() if self.weights_first and make.func in UNWEIGHTED}
        return sorted(self.leaves, key=last.__contains__)

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

    def _fill(self, module: nn.Module, path: Path) -> None:
        extra = {leaf[-1]: module for leaf, module in self._extra.items() if leaf[:-1] == path}
        for (*home, name), make in self.parameters.items():
            if tuple(home) == path:
                module.register_parameter(name, make())
        self._add_buffers(module, path)
        names = self._children(path)
        _, *order = self._described(path)
        names = [*(n for n in order if n in names or n in extra), *(n for n in (*names, *extra) if n not in order)]
        for name in names:
            module.add_module(name, extra[name] if name in extra else self._module((*path, name)))

    def _add_buffers(self, module: nn.Module, path: Path) -> None:
        for (*home, name), make in self.buffers.items():
            if tuple(home) == path:
                module.register_buffer(name, make())

    def _module(self, path: Path) -> nn.Module:
        printed = self._described(path)[0]
        if path in self.leaves:
            leaf: Any = self.leaves[path]()
            if printed != "Container":
                leaf.printed_name = self.family.label + printed if isinstance(leaf, LayerNorm) else printed
            self._add_buffers(leaf, path)
            self._number_state(leaf, path)
            return leaf
        names = self._children(path)
        if names and all(name.isdigit() for name in names):
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
        self._number_state(module, path)
        self._fill(module, path)
        if path in self.callable:
            module.plan = self.plan(path)
        if isinstance(module, CrossAttention):
            module.key_plan, module.value_plan = (self._source_plan(path, node) for node in self.source_nodes[path])
        return module

    def _number_state(self, module: Any, path: Path) -> None:
        if path in self.states:
            module.state_index = self.states.index(path)

    def _source_plan(self, path: Path, node: StepNode) -> ContainerPlan:
        assert node.step is not None
        return ContainerPlan((node.step.bind(path, (0, 0)),), (), 1, 0)

    def _experts(self, path: Path) -> ExpertList:
        gate, down = self.mixtures[path]
        names: dict[str, tuple[int, ...]] = {}  # of each expert's parts, and the shapes of their matrices
        for weight in (*gate.weights, *down.weights):
            if len(weight.shape) > 1:
                names.setdefault(weight.name.rsplit(".", 2)[1], weight.shape)
        bias = any(weight.name.endswith(".bias") for weight in gate.weights)
        o = gate.options
        prefix = gate.weights[0].name[len(".".join(path)) + 1 :].partition(".")[0].rstrip("0123456789")
        printed, *order = self._described((*path, "0"))

        def expert() -> Expert:
            parts = {name: Linear(names[name][1], names[name][0], bias) for name in order or names}
            made = Expert(parts, list(names), o["how"], o["limit"], o["offset"], o.get("dropout"))
            made.printed_name = printed
            return made

        return ExpertList((expert() for _ in range(o["experts"])), o["chosen"], o["shares_inputs"], prefix)


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


def with_layer_inputs(plan: ContainerPlan, m: Any, p: Any) -> Any:
    return replace(p, layer_inputs=plan.run(m, p.embedded, replace(p, tap=None)))


def _matches(path: Path, pattern: Path) -> bool:
    """Whether the end of a path is as a pattern says, in which * is any number."""
    if len(pattern) > len(path):
        return False
    end = path[len(path) - len(pattern) :]
    return all(expected == name or (expected == "*" and name.isdigit()) for expected, name in zip(pattern, end, strict=True))


def _filled(value: float, shape: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, value))


def _random(std: float, shape: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(std * torch.randn(shape))


def drop_out(path: Path, rate: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = part(m, path)(values[read]) if path else F.dropout(values[read], rate, m.training)
