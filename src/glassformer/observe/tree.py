"""The decision tree: the likeliest ways on from a prompt, each with what it costs to take it.

    prompt ─▶ the best few tokens ─▶ the best few after each of these ─▶ …

Probabilities are the softmax of the model's own scores: no rule, no temperature. The prompt is read once. A token's row in
the executor is a fork of the row of what stands before it, and a level goes through as one batch. Where a level is large it
goes through in parts, and what grows on a part is seen to before the next one, so that few rows are open at a time.

From any node it can be grown on, and a text can be forced anywhere, to see how likely that would have been and what would
have followed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.candidates import top
from glassformer.decoding import Finish, GenerationConfig
from glassformer.decoding.policy import likelihood
from glassformer.engine.protocol import Executor, Feed, Row, Scores
from glassformer.errors import InputError, InputTypeError, NotNumbers
from glassformer.observe.seen import Seen
from glassformer.show.words import many
from glassformer.text import Tokenizer
from glassformer.text.pieces import shown_bytes

if TYPE_CHECKING:
    from glassformer.show.page import Page

MOST = 100_000  # nodes of a tree
TALLEST = 100  # levels of a tree: files and pages nest as deep
ROWS = 64  # that go through together
TOKENS = 2**14  # that these hold together at the most: with PyTorch, each has a copy of all that stands before it

Tell: TypeAlias = Callable[[int, int], None]  # (nodes so far, nodes in all)


class Writer(Protocol):
    """What a tree grows on: a model that writes."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Any: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def executor(self) -> Executor: ...

    @property
    def settings(self) -> GenerationConfig: ...

    @property
    def start(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Node:
    """A token on some path; the root is the last one before the growth."""

    id: int
    text: str  # as it reads; half a character as its bytes
    probability: float  # after what stands before it
    path_probability: float  # of all tokens from the root to this one
    path_logprob: float  # the same as a logarithm, which does not vanish
    score: float | None  # as the model gave it; the root has none
    greedy: bool  # whether each token up to here was the likeliest one
    forced: bool  # put here by somebody
    finish: str | None  # "eos" where the text ends with it
    children: tuple[Node, ...] = ()  # the likeliest first

    def __repr__(self) -> str:
        return f"Node({self.text!r}, {self.probability:.1%}, {len(self.children)} children)"


@dataclass(frozen=True, slots=True)
class Path:
    """A way from the root to a node."""

    at: tuple[int, ...]  # the number of the child to take at each step
    ids: tuple[int, ...]
    text: str
    probability: float
    logprob: float


@dataclass(frozen=True, repr=False)
class Tree(Seen):
    """The likeliest ways on from a prompt."""

    SCHEMA = "glassformer.tree/1"

    model: str
    prompt: str  # as the model saw it
    prompt_ids: tuple[int, ...]
    width: int  # as it was first grown
    depth: int
    root: Node
    focus: tuple[int, ...]  # the node that was grown or forced last
    nodes: int = field(init=False)  # without the root
    leaves: int = field(init=False)
    covered: float = field(init=False)  # how much of all that could follow goes through the leaves
    greedy: Path = field(init=False)  # the likeliest token at each step
    likeliest: Path = field(init=False)  # the best as a whole, of those that have `depth` tokens or ended before
    writer: Writer = field(compare=False, metadata={"told": False})

    def __post_init__(self) -> None:
        every = list(walk(self.root))
        leaves = [node for at, node in every if at and not node.children]
        long = ((at, node) for at, node in every if len(at) == self.depth or (node.finish and len(at) < self.depth))
        found = {
            "nodes": len(every) - 1,
            "leaves": len(leaves),
            "covered": math.fsum(node.path_probability for node in leaves),
            "greedy": self.path(max((at for at, node in every if node.greedy), key=len)),
            "likeliest": self.path(max(long, key=lambda one: one[1].path_logprob)[0]),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def at(self, *numbers: int) -> Node:
        """A node, by the number of the child to take at each step: `at(0, 2)`; without numbers, the root."""
        return self._along(numbers)[-1]

    def path(self, at: Sequence[int]) -> Path:
        """The way to a node."""
        _, *nodes = self._along(at)
        ids = tuple(node.id for node in nodes)
        last = nodes[-1] if nodes else self.root
        return Path(tuple(at), ids, self.writer.tokenizer.decode(list(ids)), last.path_probability, last.path_logprob)

    def grown(
        self, at: Sequence[int] = (), *, width: int | None = None, depth: int | None = None, tell: Tell | None = None
    ) -> Tree:
        """A tree in which one node was grown on, by as many levels as this tree had at first, or as are asked for."""
        width, depth = self.width if width is None else width, self.depth if depth is None else depth
        path = self._open(at)
        check(self.writer, self.prompt_ids, width, depth, len(at), self.nodes)
        root, bud = thaw(self.root, at)
        Growth(self.writer, width, depth, tell).grow(self.prompt_ids, [node.id for node in path], bud)
        return replace(self, root=freeze(self.writer.tokenizer, root), focus=tuple(at))

    def forced(self, at: Sequence[int], text: str) -> Tree:
        """A tree in which a text follows one node, each of its tokens with its true probability; `focus` is the last one."""
        path = self._open(at)
        if not isinstance(text, str):
            raise InputTypeError(f"a text to force is text, not {type(text).__name__}.")
        ids = [int(token) for token in self.writer.tokenizer(text, add_special_tokens=False)["input_ids"]]
        if not ids:
            raise InputError("the text to force has no tokens. Give at least one character.")
        if ends := [token for token in ids[:-1] if token in self.writer.settings.eos]:
            said = self.writer.tokenizer.convert_ids_to_tokens(ends[0])
            raise InputError(f"the text to force goes on after {said}, which ends it. Leave out what follows.")
        check(self.writer, self.prompt_ids, 1, len(ids), len(at), self.nodes)
        root, bud = thaw(self.root, at)
        force(self.writer, self.prompt_ids, [node.id for node in path], bud, ids)
        focus = list(at)
        tree = replace(self, root=freeze(self.writer.tokenizer, root), focus=tuple(at))
        for token in ids:
            children = tree.at(*focus).children
            focus.append(next(number for number, child in enumerate(children) if child.id == token))
        return replace(tree, focus=tuple(focus))

    def _along(self, at: Sequence[int]) -> list[Node]:
        """The root, and every node on the way."""
        nodes = [self.root]
        for step, number in enumerate(at):
            node = nodes[-1]
            if not isinstance(number, int) or not 0 <= number < len(node.children):
                where = f"node {told(at[:step])}" if step else "the root"
                count = len(node.children)
                said = (
                    "no children" if not count else "1 child (0)" if count == 1 else f"{count} children (0 to {count - 1})"
                )
                raise InputError(f"there is no node {told(at)}: {where} has {said}.")
            nodes.append(node.children[number])
        return nodes

    def _open(self, at: Sequence[int]) -> list[Node]:
        """The nodes on the way to one that something can follow."""
        _, *nodes = self._along(at)
        if nodes and nodes[-1].finish:
            raise InputError(
                f"the text ends at node {told(at)} ({nodes[-1].text}), so nothing follows it. Take another one."
            )
        return nodes

    def page(self, everything: bool = False) -> Page:
        from glassformer.show.tree import page

        return page(self, everything)

    def __repr__(self) -> str:
        return f"Tree({self.nodes:,} nodes, covering {self.covered:.1%}; greedy: {self.greedy.text!r})"


def told(at: Sequence[int]) -> str:
    """A path as it is written: 0.2."""
    return ".".join(map(str, at))


def walk(root: Node) -> Iterator[tuple[tuple[int, ...], Node]]:
    """Every node and its path, in the order in which they are drawn."""
    left: list[tuple[tuple[int, ...], Node]] = [((), root)]
    while left:
        at, node = left.pop()
        yield at, node
        left += [((*at, number), child) for number, child in reversed(list(enumerate(node.children)))]


def grow(writer: Writer, text: str, ids: Sequence[int], width: int, depth: int, tell: Tell | None = None) -> Tree:
    """The tree after an encoded prompt; an encoder-decoder reads it, and its tree begins at the target's start."""
    check(writer, ids, width, depth)
    root = Bud(ids[-1] if writer.start is None else writer.start, None, 0.0, 0.0)
    Growth(writer, width, depth, tell).grow(ids, [], root)
    return Tree(writer.name, text, tuple(ids), width, depth, freeze(writer.tokenizer, root), (), writer)


def check(writer: Writer, ids: Sequence[int], width: int, depth: int, level: int = 0, nodes: int = 0) -> None:
    """Refuse what cannot grow, before anything runs; `level` and `nodes`: where it grows on, and what is there already."""
    vocabulary, context = writer.config.vocab_size, writer.config.context
    if not isinstance(width, int) or not 1 <= width <= vocabulary:
        raise InputError(f"width is {width!r}; it must be from 1 to the {vocabulary:,} tokens that {writer.name} scores.")
    if not isinstance(depth, int) or depth < 1:
        raise InputError(f"depth is {depth!r}; it must be 1 or more levels.")
    if len(ids) > context:
        raise InputError(f"a text of {len(ids)} tokens does not fit into the model's context of {context}. Shorten it.")
    before = (len(ids) if writer.start is None else 1) + level
    if before + depth > context:
        raise InputError(
            f"{many(before, 'token')} and {many(depth, 'level')} do not fit into the model's context of {context}. "
            "Shorten the prompt, or grow fewer levels."
        )
    if level + depth > TALLEST:
        raise InputError(f"a tree of {level + depth} levels is too tall; {TALLEST} is the most. Grow fewer levels.")
    if (made := nodes + size(width, depth)) > MOST:
        count = f"{made:,}" if made < 10**15 else f"about 10^{len(str(made)) - 1}"
        raise InputError(
            f"with width {width} and depth {depth} the tree has {count} nodes; {MOST:,} is the most. "
            "Take a smaller width or depth."
        )


def size(width: int, depth: int) -> int:
    """How many nodes a whole tree has, without its root."""
    return sum(width**level for level in range(1, depth + 1))


@dataclass(slots=True, eq=False)
class Bud:
    """A node while it grows."""

    id: int
    score: float | None
    logprob: float  # after what stands before it
    path: float  # the sum of these from the root on
    greedy: bool = True
    forced: bool = False
    finish: str | None = None
    children: dict[int, Bud] = field(default_factory=dict)  # by their tokens

    def child(self, token: int, score: float, logprob: float, *, best: bool, ends: frozenset[int]) -> Bud:
        """The child that is this token; made now, if there is none."""
        if token not in self.children:
            finish = Finish.EOS.value if token in ends else None
            made = Bud(token, score, logprob, self.path + logprob, self.greedy and best, finish=finish)
            self.children[token] = made
        return self.children[token]


def thaw(root: Node, at: Sequence[int]) -> tuple[Bud, Bud]:
    """A copy of a tree that can grow, and one of its nodes."""

    def copied(node: Node, before: float) -> Bud:
        logprob = node.path_logprob - before if math.isfinite(node.path_logprob) else -math.inf
        bud = Bud(node.id, node.score, logprob, node.path_logprob, node.greedy, node.forced, node.finish)
        bud.children = {child.id: copied(child, node.path_logprob) for child in node.children}
        return bud

    top = bud = copied(root, 0.0)
    for number in at:
        bud = list(bud.children.values())[number]
    return top, bud


def freeze(tokenizer: Tokenizer, root: Bud) -> Node:
    """What has grown, with its texts."""
    texts: dict[int, str] = {}

    def node(bud: Bud) -> Node:
        if bud.id not in texts:
            texts[bud.id] = shown_bytes(tokenizer.token_bytes(bud.id))
        about = (bud.score, bud.greedy, bud.forced, bud.finish)
        children = tuple(map(node, sorted(bud.children.values(), key=lambda one: -one.logprob)))
        return Node(bud.id, texts[bud.id], math.exp(bud.logprob), math.exp(bud.path), bud.path, *about, children)

    return node(root)


class Rows:
    """The open rows of an executor, of which none is left behind."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.held: dict[int, Row] = {}

    def open(self, source: Sequence[int] | None) -> Row:
        return self._keep(self.executor.open(source))

    def fork(self, row: Row) -> Row:
        return self._keep(self.executor.fork(row))

    def close(self, row: Row) -> None:
        self.executor.close(self.held.pop(id(row)))

    def _keep(self, row: Row) -> Row:
        self.held[id(row)] = row
        return row


@contextmanager
def reading(writer: Writer, ids: Sequence[int], path: Sequence[int]) -> Iterator[tuple[Rows, Row, Scores]]:
    """A row that has read a prompt and a path after it, and the scores of what follows; in the end all rows are closed."""
    rows, start = Rows(writer.executor), writer.start
    try:
        row = rows.open(None if start is None else ids)
        (scores,) = rows.executor.run([Feed(row, [*(ids if start is None else (start,)), *path])])
        yield rows, row, scores
    finally:
        for left in reversed(list(rows.held.values())):
            rows.close(left)


@dataclass(slots=True)
class Stem:
    """A row of which several tokens grow: each takes a fork, and the last one the row itself."""

    row: Row
    left: int

    def take(self, rows: Rows) -> Row:
        self.left -= 1
        return rows.fork(self.row) if self.left else self.row


class Growth:
    """How one node becomes a tree."""

    def __init__(self, writer: Writer, width: int, depth: int, tell: Tell | None = None) -> None:
        self.writer = writer
        self.width = width
        self.depth = depth
        self.tell = tell
        self.ends = writer.settings.eos
        self.done = 0
        self.waiting: list[deque[tuple[Stem, Bud]]] = [deque() for _ in range(depth)]  # to be grown further, by level

    def grow(self, ids: Sequence[int], path: Sequence[int], bud: Bud) -> None:
        """Grow a node that stands after these tokens; the deepest that wait are seen to first."""
        with reading(self.writer, ids, path) as (rows, row, scores):
            at_once = max(1, min(ROWS, TOKENS // (row.length + self.depth)))
            self._sprout(rows, 1, row, bud, scores)
            while level := max((level for level, some in enumerate(self.waiting) if some), default=0):
                some = self.waiting[level]
                part = [some.popleft() for _ in range(min(at_once, len(some)))]
                taken = [stem.take(rows) for stem, _ in part]
                found = rows.executor.run([Feed(row, (one.id,)) for row, (_, one) in zip(taken, part, strict=True)])
                for row, (_, one), scores in zip(taken, part, found, strict=True):
                    self._sprout(rows, level + 1, row, one, scores)

    def _sprout(self, rows: Rows, level: int, row: Row, bud: Bud, scores: Scores) -> None:
        """Put the likeliest tokens of a level after a node; its row waits with those that are to be grown further."""
        found = top(numbers(scores), self.width)
        logprobs = found.scores.astype(np.float64) - float(found.scores[0]) + math.log(found.probabilities[0])
        young = [
            bud.child(token, score, logprob, best=not rank, ends=self.ends)
            for rank, (logprob, (token, score, _)) in enumerate(zip(logprobs.tolist(), found, strict=True))
        ]
        going = [one for one in young if not one.finish] if level < self.depth else []
        self.done += len(young) + (len(young) - len(going)) * size(self.width, self.depth - level)
        if going:
            stem = Stem(row, len(going))
            self.waiting[level].extend((stem, one) for one in going)
        else:
            rows.close(row)
        if self.tell is not None:
            self.tell(self.done, size(self.width, self.depth))


def force(writer: Writer, ids: Sequence[int], path: Sequence[int], bud: Bud, tokens: Sequence[int]) -> None:
    """Let these tokens follow a node, with the probabilities that they have there."""
    with reading(writer, ids, path) as (rows, row, scores):
        for number, token in enumerate(tokens):
            if number:
                (scores,) = rows.executor.run([Feed(row, (tokens[number - 1],))])
            found = numbers(scores)
            candidates, logprob = likelihood(found, token, 1)
            best = token == int(candidates.ids[0])
            bud = bud.child(token, float(found[token]), logprob, best=best, ends=writer.settings.eos)
            bud.forced = True


def numbers(scores: Scores) -> npt.NDArray[np.float32]:
    """Scores of the whole vocabulary, which must be numbers."""
    found = scores.host()
    if not np.isfinite(found[found.argmax()]):  # it stops at the first NaN
        raise NotNumbers("the model's scores are not numbers (NaN or infinite). To see where that begins: glass run.")
    return found
