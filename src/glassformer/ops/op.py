"""What every op has: its data, and what others may ask of it.

An op says what is computed, from which earlier results, with which weights, and which shape and sites come out. Each kind is
a class in a file of its own, and answers what its readers ask:

    value, formula, explain     observe: numbers at one token, and the arithmetic behind one of them
    linear, backwards           attribution: the linear map that it is once norms and attention patterns are held
    write_modules               PyTorch: its modules, and the step that computes it (`module_steps.py`)
    lower, matrices             engines: the steps that compute it (`program_writer.py`)
    split, split_heads          tensor parallel: what each rank has of it (`split.py`)
    with_updates                adapters that stand beside its matrices

What is defined here is for kinds that have no answer of their own.

Shapes: whole numbers, or the names `batch`, `length` (tokens of this pass), `keys` (tokens attended to) and `source` (the
encoder's tokens).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.errors import ExecutorError
from glassformer.ops.module_steps import At, Path, Values, part, path_of, step

Dim: TypeAlias = int | str
Shape: TypeAlias = tuple[Dim, ...]
Floats: TypeAlias = npt.NDArray[np.float32]
Array: TypeAlias = npt.NDArray[Any]  # float32, or float64 where attribution asks for it
WeightRole: TypeAlias = Literal["product", "table", "plain"]


@dataclass(frozen=True, slots=True)
class Weight:
    name: str  # as in the checkpoint
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class WeightSource(Protocol):
    """Whatever has a model's weights by name."""

    def weight(self, name: str, row: int | range | None = None) -> Floats | None: ...


@dataclass(frozen=True)
class TokenContext:
    """Where a value is computed: one token of a text, and the model's weights."""

    weights: WeightSource
    position: int = 0
    length: int = 0  # of the text: some of RoPE's frequencies depend on it
    id: int = 0
    everywhere: Callable[[int], Floats] | None = None  # an op's result at all tokens


class ArithmeticDraft(Protocol):
    """One number of an op's result as arithmetic, while it is put together."""

    @property
    def ops(self) -> Sequence[Op]: ...

    @property
    def position(self) -> int: ...

    def token(self, op: Op) -> TokenContext: ...

    def value(self, op: int) -> Floats:
        """An op's result at the position."""

    def explain(self, op: int, index: int) -> float:
        """The arithmetic of a number of an earlier op's result, before this one's."""

    def step(self, name: str, expression: str, value: float | np.floating[Any]) -> float: ...

    def dot_product(self, name: str, left: tuple[str, Floats], right: tuple[str, Floats], every: bool = False) -> float:
        """A sum of products, whose largest terms are listed, or all of them; gives the sum."""

    def add_python(self, line: str) -> None: ...


class Backwards(NamedTuple):
    """What a vector over an op's result is over its input: (rows, width); and what the op's bias adds: (rows,)."""

    g: Array
    constant: Array | None = None


class CachedShape(NamedTuple):
    """What an attention remembers of each token."""

    heads: int
    key_size: int
    latent: int = 0  # values are the first so many numbers of the keys; 0: they are remembered beside them


@dataclass(frozen=True, slots=True)
class Op:
    kind: ClassVar[str]
    weight_role: ClassVar[WeightRole] = "plain"  # what its matrices are for
    applies_norm: ClassVar[bool] = False  # whether its matmul can do the norm before it
    elementwise: ClassVar[bool] = False  # whether each number of its result is that number of its input, changed
    keeps_heads: ClassVar[bool] = False  # whether heads come out as they went in
    updatable_matrices: ClassVar[int] = 0  # how many it has where an adapter's updates can stand beside them
    input_name: ClassVar[str] = "residual stream"  # what it is called where it comes in from outside

    module: str  # the module that does it, or the nearest one around it
    inputs: tuple[int, ...]  # indices of the ops whose results it takes; none: the token ids
    shape: Shape
    weights: tuple[Weight, ...] = ()
    block: int | None = None
    stack: str = ""  # "encoder." in the encoder of an encoder-decoder
    site: str | None = None  # of its result
    inner_sites: Mapping[str, Shape] = field(default_factory=dict)  # of values on the way to the result
    options: Mapping[str, Any] = field(default_factory=dict)

    # What it is -------------------------------------------------------------------------------------------------

    @property
    def caches_keys(self) -> bool:
        """Whether an engine keeps keys and values of earlier tokens for it."""
        return False

    @property
    def width(self) -> int:
        """How many numbers its result has for each token, or each of its heads."""
        return integer(self.shape[-1])

    @property
    def head_shape(self) -> tuple[int, int]:
        """How many heads its result has, and of which size."""
        return integer(self.shape[1]), integer(self.shape[3])

    @property
    def experts(self) -> int:
        """How many experts its weights are those of."""
        return int(self.options.get("experts", 0))

    @property
    def read_site(self) -> str | None:
        """The site where its result can be read."""
        return self.site

    def inner_site(self, name: str) -> str:
        return next(site for site in self.inner_sites if site.endswith(f".{name}"))

    @property
    def has_value_at_token(self) -> bool:
        """Whether its result has numbers for each token; what is for distances between tokens has not."""
        return self.shape[0] == "batch"

    @property
    def adds_to_stream(self) -> bool:
        """Whether it is the sum of the residual stream and an update."""
        return False

    @property
    def reads_table(self) -> bool:
        """Whether it has a row for each position, and no more of them."""
        return False

    @property
    def pooling(self) -> str:
        """How it makes one vector of a text's, if it does."""
        return ""

    @property
    def takes_part(self) -> bool:
        """Whether it takes a part of what one projection before it makes for several."""
        return False

    @property
    def is_plain(self) -> bool:
        """Whether it is what its module alone computes."""
        return True

    @property
    def has_own_weights(self) -> bool:
        """Whether its weights are all its module's; a bias may be the model's."""
        return all(weight.name.startswith(self.module) for weight in self.weights[1:])

    @property
    def module_label(self) -> str:
        """The module that its weights belong to, in a word."""
        name = self.weights[0].name if self.weights else ""
        return name.split(".")[-2] if "." in name else ""

    # Its numbers ------------------------------------------------------------------------------------------------

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        """Its result, from its inputs' at a token: (width,), or (heads, head_size). Axes before those are kept."""
        return inputs[0]

    def torch_value(self, *inputs: Any) -> Any:
        """Its result in PyTorch, from its inputs', or from its projection's where it has a weight."""
        raise NotImplementedError(self.kind)

    def formula(self) -> str:
        """What it computes, in a line."""
        return "the same values"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        """How one number of its result came to be; `index` counts through the heads, if it has any."""
        e.step("the same number", f"x[{index}]", e.value(self.inputs[0]).reshape(-1)[index])

    def number_label(self, index: int, inputs: Callable[[int], Floats]) -> str:
        """What one number of its result is called; `inputs`: the value of each input."""
        if len(self.shape) == 4:
            head, column = divmod(index, self.width)
            return f"head {head}, number {column}"
        return f"neuron {index}" if self.site is not None and self.site.endswith("mlp.hidden") else f"number {index}"

    def together(self, parts: Sequence[Array]) -> Array:
        """What comes from several inputs, as one that `linear` takes: a sum."""
        return np.asarray(sum(parts))

    # As a linear map --------------------------------------------------------------------------------------------

    @property
    def linear_inputs(self) -> tuple[int, ...]:
        """Those of its inputs that it is a linear map of."""
        return self.inputs

    @property
    def held_input(self) -> int | None:
        """The input that must be held for that; None: none."""
        return None

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        """What a part x of its input is in its result, without biases: (rows, width), or (rows, heads, head_size).

        `held`: the whole held input, by which a norm divides; None: nothing is divided.
        """
        raise TypeError(f"{self.kind} is no linear map")

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        """Back through `linear`. `width`: of its input; `held`: what the held one was, (rows, width)."""
        raise TypeError(f"{self.kind} is no linear map")

    # In PyTorch -------------------------------------------------------------------------------------------------

    def write_modules(self, derivation: Any, index: int) -> None:
        """Say which modules and which step compute it (`torch/derivation.py`): here `torch_value`, after a projection."""
        if not self.weights:
            derivation.add(index, derivation.home_of_value(self), step(own_value, self))
            return
        path = path_of(self.module)
        derivation.linear(self, path)
        derivation.add(index, path[:-1], step(projected_value, self, At(path)))

    # In an engine -----------------------------------------------------------------------------------------------

    def lower(self, writer: Any, index: int) -> None:
        """Write the steps that compute it; `writer`: a `ProgramWriter`."""
        raise ExecutorError(f"native engines cannot compute {self.kind!r}.")

    def lower_at_source(self, writer: Any, index: int) -> None:
        """Write what is computed of it once, with an encoder's states, whose stack it is not in."""

    def epilogue(self, writer: Any, index: int, source: int) -> Mapping[str, Any] | None:
        """The fields of a step for another op's result that does this one, too; None if that cannot be."""
        return None

    def matrices(self, source: Op | None) -> list[Any]:
        """The matrices (`MatrixRef`) that its steps need; `source`: the op that it reads first."""
        return []

    @property
    def state_size(self) -> int:
        """How many numbers a row keeps for it from one token to the next."""
        return 0

    @property
    def divides_matrix(self) -> bool:
        """Whether its matrices are parts of its source's, which is then not needed as a whole."""
        return False

    # On several ranks -------------------------------------------------------------------------------------------

    def split(self, splitter: Any, index: int) -> None:
        """Divide its weights and its result; `splitter`: a `Splitter`. Here: what needs all of its inputs."""
        if any(source in splitter.results for source in self.inputs):
            raise splitter.cannot_split(self)

    def split_inputs(self, splitter: Any) -> None:
        """Decide on the heads of what it reads, before anything is divided."""

    def split_heads(self, splitter: Any, heads: Sequence[range]) -> None:
        """Divide its weights by heads, of which each rank has some."""
        if not self.keeps_heads:
            raise splitter.cannot_split(self)

    def projection_ranges(self, splitter: Any, index: int) -> list[list[range]]:
        """If it `takes_part`: by rank, the outputs of the projection before it that it reads."""
        raise splitter.cannot_split(self)

    # Beside an adapter ------------------------------------------------------------------------------------------

    def with_updates(self, rewriter: Any) -> int:
        """Append itself to a `Rewriter`'s ops with updates beside its matrices; the index of its result."""
        raise TypeError(f"{self.kind} has no matrices that updates stand beside")


class PassThrough(Op):
    """What every kind has whose result is its input, or the sum of its inputs."""

    __slots__ = ()

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        return x

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        return Backwards(g)


def own_value(op: Op, *rest: Any) -> None:
    *reads, write, _, values, _ = rest
    values[write] = op.torch_value(*(values[read] for read in reads))


def projected_value(op: Op, path: Path, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = op.torch_value(part(m, path)(values[read]))


def integer(size: Dim) -> int:
    assert isinstance(size, int), size
    return size
