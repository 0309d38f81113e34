"""A blueprint to a native program: which steps run together, where each result lies, and where somebody looks.

What the blueprint lists one by one is fused where nobody looks in between: norm and products of one input; head norms, RoPE
and remembering; a product and the activation, gate or sum that follows it. A site that is read or changed is simply not
fused away, so that each one can be had from the engine itself, and the numbers stay the same bit for bit.

Results lie in buffers, (tokens, width) each, which are taken again when nobody needs them any more; those that are looked
at stay. A program is made once for each set of sites, and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glassformer.blueprints import Blueprint, Op, Rope
from glassformer.blueprints.positions import bucket_table, waves
from glassformer.engine.cpu.library import Activation, After, Do, How, Matrix, Norm, Over, Step
from glassformer.engine.cpu.weights import Weights
from glassformer.errors import ExecutorError

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": Activation.SILU, "gelu": Activation.GELU, "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH, "relu": Activation.RELU, "tanh": Activation.TANH,
}  # fmt: skip
PRODUCTS = ("heads", "linear", "gate", "scores")


@dataclass(frozen=True)
class Place:
    """Where a site's value lies: some columns of a buffer, which may be heads."""

    buffer: int
    first: int = 0
    width: int | None = None
    heads: int = 0  # 0: no heads
    pattern: bool = False


@dataclass
class Program:
    steps: list[Step] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)  # of the buffers; a pattern's is its number of heads, negated
    sites: dict[str, Place] = field(default_factory=dict)
    breaks: dict[int, list[str]] = field(default_factory=dict)  # before a step: the sites that somebody changes there
    # before a step: patterns that somebody changes, the buffer of heads made of them, and that of all others' heads
    mixed: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    ropes: list[tuple[Rope, int]] = field(default_factory=list)  # with the size of a head
    scores: int | None = None  # the buffer of the scores

    def __post_init__(self) -> None:
        self._native: Any = None

    @property
    def native(self) -> Any:
        """The steps as one array for the engine."""
        if self._native is None:
            self._native = (Step * len(self.steps))(*self.steps)
        return self._native


@dataclass
class Traced:
    """How a query, key or value comes to be: heads of a product, perhaps normed and turned."""

    op: int  # the op that splits heads
    product: int  # the op that multiplies: the same, or a fused one
    input: int
    norm: Op | None
    rope: Rope | None
    site: str | None


class Lowering:
    """Writes the program of one stack: the model, or one of the two stacks of an encoder-decoder."""

    def __init__(
        self, blueprint: Blueprint, weights: Weights, stack: str, reads: frozenset[str], changes: frozenset[str],
        config: Any,
    ) -> None:  # fmt: skip
        self.ops = blueprint.ops
        self.blueprint = blueprint
        self.weights = weights
        self.stack = stack
        self.config = config
        self.reads, self.changes = reads, changes
        self.touched = reads | changes
        self.program = Program()
        self.users: dict[int, list[int]] = {}
        for number, op in enumerate(self.ops):
            for read in op.reads:
                self.users.setdefault(read, []).append(number)
        self._buffers: dict[int, int] = {}  # op: where its result lies
        self._holders: dict[int, set[int]] = {}  # buffer: ops whose results it holds
        self._norms: dict[int, Op] = {}  # put off: the product that reads it does it
        self._done: set[int] = set()
        self._looked_at = 0  # the steps after which a site was last seen
        self._now = 0

    # The walk ---------------------------------------------------------------------------------------------------

    def lower(self) -> Program:
        for number, op in enumerate(self.ops):
            if op.stack != self.stack or number in self._done:
                continue
            self._now = number
            getattr(self, f"_lower_{op.kind}")(number, op)
            self._release(number)
        if self.stack:
            self._sources()
        if self.program.scores is not None:
            self._narrow()
        return self.program

    def _narrow(self) -> None:
        """Once the last keys and values are remembered, go on with the tokens that are scored, unless somebody looks."""
        steps = self.program.steps
        last = max(number for number, step in enumerate(steps) if step.kind in (Do.PLACE, Do.REMEMBER))
        if self._looked_at <= last + 1:
            for step in steps[last + 1 :]:
                step.over = step.over or Over.SCORED

    def _sources(self) -> None:
        """What the decoder's cross-attention sees of this encoder, computed once, when it is read."""
        self._now = len(self.ops)
        for op in self.ops:
            if op.kind == "attend" and op.options["memory"]:
                key, value = (self._trace(read) for read in op.reads[1:3])
                heads, size = _heads(self.ops[key.op].shape)
                width = heads * size
                buffer = self._product(key.input, [key.product, value.product], 2 * width, None)
                where = {"layer": op.block, "groups": heads, "size": size, "memory": 1}
                self._emit(Do.REMEMBER, input=buffer, key=0, value=width, **where)
                self._drop(buffer)

    def _emit(self, kind: Do, **fields: Any) -> Step:
        step = Step(kind=kind, scale=1.0, rope=-1, query=-1, key=-1, value=-1)
        for name, value in fields.items():
            if name == "matrices":
                step.count = len(value)
                for number, matrix in enumerate(value):
                    step.matrices[number] = matrix
            else:
                setattr(step, name, value)
        self.program.steps.append(step)
        return step

    # Buffers ----------------------------------------------------------------------------------------------------

    def _take(self, width: int) -> int:
        """A buffer that nobody needs, of this width."""
        for number, held in self._holders.items():
            if not held and self.program.widths[number] == width:
                held.add(-1)
                return number
        self.program.widths.append(width)
        self._holders[len(self.program.widths) - 1] = {-1}
        return len(self.program.widths) - 1

    def _hold(self, op: int, buffer: int) -> None:
        self._buffers[op] = buffer
        self._holders[buffer].discard(-1)
        self._holders[buffer].add(op)

    def _drop(self, buffer: int) -> None:
        """Give a buffer back that holds no op's result."""
        self._holders[buffer].discard(-1)

    def _alive(self, op: int, after: int) -> bool:
        """Whether somebody still reads an op's result: a later op, or a watcher."""
        return any(user > after and user not in self._done for user in self._readers(op)) or self._looked(op)

    def _readers(self, op: int) -> list[int]:
        """The ops that read a result, also through a norm that was put off."""
        found = []
        for user in self.users.get(op, []):
            found += self._readers(user) if user in self._norms else [user]
        return found

    def _looked(self, op: int) -> bool:
        return self.ops[op].site in self.touched

    def _release(self, now: int) -> None:
        for held in self._holders.values():
            for op in [op for op in held if op >= 0 and not self._alive(op, now)]:
                held.discard(op)

    def _width(self, op: Op) -> int:
        width = op.shape[-1]
        assert isinstance(width, int)
        return width

    def _result(self, number: int, buffer: int) -> None:
        """An op's result lies here; say so to whoever looks at it."""
        self._hold(number, buffer)
        self._see(self.ops[number].site, Place(buffer, 0, self.program.widths[buffer]))

    def _see(self, site: str | None, place: Place) -> None:
        if site is None or site not in self.touched:
            return
        self.program.sites[site] = place
        self._looked_at = len(self.program.steps)
        self._holders[place.buffer].add(-2)  # it stays
        if site in self.changes:
            self.program.breaks.setdefault(len(self.program.steps), []).append(site)

    # Ops --------------------------------------------------------------------------------------------------------

    def _lower_embed(self, number: int, op: Op) -> None:
        tables, first, last = [self._matrix(op)], 0, number
        while self.ops[last].site not in self.touched and len(self.users.get(last, [])) == 1 and len(tables) < 3:
            user = self.ops[self.users[last][0]]
            if user.kind != "position":
                break
            how = user.options["how"]
            if how == "sinusoid":
                context = self.config.max_position_embeddings
                tables.append(_table(self.weights, waves(context, self._width(op))))
            elif how in ("learned", "segments"):
                tables.append(self._matrix(user))
                first = user.options["first"] if how == "learned" else first
            last = self.users[last][0]
            self._done.add(last)
        buffer = self._take(self._width(op))
        self._emit(Do.EMBED, output=buffer, matrices=tables, first=first, scale=op.options["scale"])
        self._result(last, buffer)

    def _lower_position(self, number: int, op: Op) -> None:
        if op.options["how"] != "buckets":
            raise ExecutorError(f"the CPU engine cannot add positions of the kind {op.options['how']!r} here.")

    def _lower_norm(self, number: int, op: Op) -> None:
        if len(op.shape) == 4:
            return  # of heads: the attention that reads them does it
        readers = [self.ops[user] for user in self.users.get(number, [])]
        if readers and all(user.kind in PRODUCTS for user in readers) and op.site not in self.touched:
            self._norms[number] = op
            return
        source = self._buffers[op.reads[0]]
        buffer = self._take(self._width(op))
        self._emit(Do.NORMALISE, input=source, output=buffer, norm=self._norm_of(op))
        self._result(number, buffer)

    def _norm_of(self, op: Op | None) -> Norm:
        if op is None:
            return Norm(None, None, 0.0, How.NO_NORM)
        weight, *bias = (weight.name for weight in op.weights)
        how = How.LAYER if op.options["how"] == "layer" else How.RMS
        address = self.weights.vector(weight, plus=op.options["offset"])
        return Norm(address, self.weights.vector(bias[0]) if bias else None, op.options["eps"], how)

    def _lower_heads(self, number: int, op: Op) -> None:
        """Nothing yet: the attention that reads them does it."""

    _lower_rotate = _lower_heads

    def _lower_see(self, number: int, op: Op) -> None:
        buffer = self._buffers[op.reads[0]]
        if op.site in self.changes:  # a change here is seen by those who read it here, and by nobody else
            copy = self._take(self._width(op))
            self._emit(Do.COPY, input=buffer, output=copy)
            buffer = copy
        self._result(number, buffer)

    def _lower_linear(self, number: int, op: Op) -> None:
        users = self.users.get(number, [])
        if any(self.ops[user].kind == "heads" for user in users):
            return  # a fused projection: the attention that reads its parts does it
        alone = len(users) == 1 and op.site not in self.touched
        after = self.ops[users[0]] if alone else None
        if after is not None and after.kind == "activate":
            how = ACTIVATIONS[after.options["how"]]
            self._product(op.reads[0], [number], self._width(op), users[0], after=After.ACTIVATED, activation=how)
        elif after is not None and after.kind == "add":
            self._added(number, op, users[0])
        else:
            self._product(op.reads[0], [number], self._width(op), number)

    def _added(self, number: int, op: Op, add: int) -> None:
        """A product and the sum that follows it; in place, unless somebody still needs what is added to."""
        other = next(read for read in self.ops[add].reads if read != number)
        buffer = self._buffers[other]
        self._done.add(add)
        free = not self._alive(other, number) and self._holders[buffer] <= {other}
        into = buffer if free else None
        self._product(op.reads[0], [number], self._width(op), add, after=After.ADDED, other=buffer, into=into)

    def _lower_activate(self, number: int, op: Op) -> None:
        buffer = self._take(self._width(op))
        how = ACTIVATIONS[op.options["how"]]
        self._emit(Do.ACTIVATE, input=self._buffers[op.reads[0]], output=buffer, activation=how)
        self._result(number, buffer)

    def _lower_gate(self, number: int, op: Op) -> None:
        half = len(op.weights) // 2
        matrices = [self._matrix(op, op.weights[at : at + half]) for at in (0, half)]
        norm, source = self._input(op.reads[0])
        buffer = self._take(self._width(op))
        how = ACTIVATIONS[op.options["how"]]
        self._emit(Do.PRODUCT, input=source, output=buffer, norm=norm, matrices=matrices, after=After.GATED, activation=how)
        self._result(number, buffer)

    def _lower_add(self, number: int, op: Op) -> None:
        first, second = (self._buffers[read] for read in op.reads)
        buffer = self._take(self._width(op))
        self._emit(Do.ADD, other=first, input=second, output=buffer)
        self._result(number, buffer)

    def _lower_scores(self, number: int, op: Op) -> None:
        norm, source = self._input(op.reads[0])
        buffer = self._take(self._width(op))
        scale = op.options.get("scale", 1.0)
        self._emit(
            Do.PRODUCT, input=source, output=buffer, norm=norm, matrices=[self._matrix(op)], scale=scale, over=Over.GATHERED
        )
        self._holders[buffer].add(-2)
        self.program.scores = buffer

    def _lower_attend(self, number: int, op: Op) -> None:
        query, key, value = (self._trace(read) for read in op.reads[:3])
        heads, size = _heads(self.ops[query.op].shape)
        groups, _ = _heads(self.ops[key.op].shape)
        options, memory = op.options, bool(op.options["memory"])
        where = {"layer": op.block, "heads": heads, "groups": groups, "size": size, "memory": int(memory), "query": 0}
        seen = {"causal": int(options["causal"]), "window": options["window"] or 0, "scale": options["scale"]}
        if memory:
            buffer = self._product(query.input, [query.product], heads * size, None)
            self._see(query.site, Place(buffer, 0, heads * size, heads))
        else:
            buffer = self._own(query, key, value, where)
        biased = self._distances(op, heads) if len(op.reads) > 3 else {}
        joined = self._take(heads * size)
        pattern, each = (next((site for site in op.beside if site.endswith(end)), None) for end in (".pattern", ".heads"))
        if pattern in self.touched:
            self.program.widths.append(-heads)
            looked = len(self.program.widths) - 1
            self._holders[looked] = {-2}
            self._emit(Do.PATTERN, input=buffer, output=looked, **where, **seen, **biased)
            self._see(pattern, Place(looked, heads=heads, pattern=True))
        self._emit(Do.ATTEND, input=buffer, output=joined, **where, **seen, **biased)
        if pattern in self.changes:
            mixed = self._take(heads * size)
            self._emit(Do.MIX, input=buffer, other=looked, output=mixed, **where)
            self.program.mixed.setdefault(len(self.program.steps), []).append((pattern, mixed, joined))
            self._drop(mixed)
        self._drop(buffer)
        self._see(each, Place(joined, 0, heads * size, heads))
        self._result(number, joined)

    def _own(self, query: Traced, key: Traced, value: Traced, where: dict[str, Any]) -> int:
        """Queries, keys and values of one stream, ready to look and be looked at."""
        heads, groups, size = where["heads"], where["groups"], where["size"]
        ends = {"key": heads * size, "value": (heads + groups) * size}
        products = list(dict.fromkeys((query.product, key.product, value.product)))
        buffer = self._product(query.input, products, (heads + 2 * groups) * size, None)
        rope = -1
        if query.rope is not None:
            turned = (query.rope, size)
            if turned not in self.program.ropes:
                self.program.ropes.append(turned)
            rope = self.program.ropes.index(turned)
        norms = {"query_norm": self._norm_of(query.norm), "key_norm": self._norm_of(key.norm)}
        fields = {"input": buffer, **where, **ends, **norms, "rope": rope}
        sites = {
            query.site: Place(buffer, 0, heads * size, heads),
            key.site: Place(buffer, ends["key"], groups * size, groups),
            value.site: Place(buffer, ends["value"], groups * size, groups),
        }
        apart = any(site in self.changes for site in sites)
        self._emit(Do.TURN if apart else Do.PLACE, **fields)
        for site, place in sites.items():
            self._see(site, place)
        if apart:
            self._emit(Do.REMEMBER, **fields)
        return buffer

    def _distances(self, op: Op, heads: int) -> dict[str, Any]:
        """A bias for each head and distance, laid out by distance."""
        table = self.weights.stored(self.ops[op.reads[3]].weights[0].name).expand()
        by_distance = bucket_table(table, self.config.relative_attention_max_distance, both=not op.options["causal"])
        return {"distances": self.weights.keep(by_distance), "reach": by_distance.shape[1] // 2}

    def _lower_pool(self, number: int, op: Op) -> None:
        raise ExecutorError("the CPU engine has no heads that pool.")

    # Products ---------------------------------------------------------------------------------------------------

    def _trace(self, number: int) -> Traced:
        """From what attention reads back to the product that it comes from."""
        op, norm, rope, site = self.ops[number], None, None, self.ops[number].site
        while op.kind != "heads":
            if op.kind == "norm":
                norm = op
            elif op.kind == "rotate":
                rope = op.options["rope"]
            number = op.reads[0]
            op = self.ops[number]
        product = number if op.weights else op.reads[0]
        return Traced(number, product, self.ops[product].reads[0], norm, rope, site)

    def _product(
        self, source: int, products: Sequence[int], width: int, result: int | None, into: int | None = None, **fields: Any
    ) -> int:
        """Products of one input side by side; `result`: the op whose result that is."""
        norm, buffer = self._input(source)
        matrices = [self._matrix(self.ops[product]) for product in products]
        output = self._take(width) if into is None else into
        self._emit(Do.PRODUCT, input=buffer, output=output, norm=norm, matrices=matrices, **fields)
        self._done.update(() if result is None else (result,))
        if result is not None:
            self._result(result, output)
        return output

    def _input(self, number: int) -> tuple[Norm, int]:
        """Where a product's input lies, and the norm that was put off."""
        if number in self._norms:
            return self._norm_of(self._norms[number]), self._buffers[self._norms[number].reads[0]]
        return self._norm_of(None), self._buffers[number]

    def _matrix(self, op: Op, given: Iterable[Any] | None = None) -> Matrix:
        names, biases, shape = parts(op, given)
        bias = None
        if biases:
            bias = self.weights.vector(*biases)
        matrix = self.weights.matrix(names, shape)
        matrix.bias = bias
        return matrix


def parts(op: Op, given: Iterable[Any] | None = None) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, int]]:
    """The names of a product's matrix, of its biases, and its shape: (outputs, inputs)."""
    weights = list(op.weights if given is None else given)
    matrices = [weight for weight in weights if len(weight.shape) == 2 and not weight.name.endswith("bias")]
    biases = [weight.name for weight in weights if weight not in matrices]
    rows, columns = matrices[0].shape
    if op.options.get("columns"):
        rows, columns = columns, rows
    return tuple(weight.name for weight in matrices), tuple(biases), (rows * len(matrices), columns)


def matrices(blueprint: Blueprint) -> list[tuple[tuple[str, ...], tuple[int, int], bool]]:
    """All matrices that a blueprint's products and tables need: names, shape, and whether they lie across."""
    found = []
    for op in blueprint.ops:
        if op.kind == "gate":
            half = len(op.weights) // 2
            groups = [op.weights[:half], op.weights[half:]]
        elif op.kind in ("embed", "linear", "heads", "scores") or (op.kind == "position" and op.options["how"] != "buckets"):
            groups = [op.weights] if op.weights else []
        else:
            continue
        for weights in groups:
            names, _, shape = parts(op, weights)
            found.append((names, shape, bool(op.options.get("columns"))))
    return list(dict.fromkeys(found))


def _heads(shape: Sequence[Any]) -> tuple[int, int]:
    return int(shape[1]), int(shape[3])


def _table(weights: Weights, values: Any) -> Matrix:
    table = np.ascontiguousarray(values, np.float32)
    return Matrix(weights.keep(table), None, 0, *table.shape)
