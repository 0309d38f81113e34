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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from glassformer.candidates import top
from glassformer.decoding import Finish
from glassformer.decoding.policy import likelihood
from glassformer.engine.protocol import Executor, Feed, Row, Scores
from glassformer.errors import InputError, NotNumbers
from glassformer.observe.protocols import ModelLike
from glassformer.page.format import many
from glassformer.progress import Progress
from glassformer.text import Tokenizer
from glassformer.text.pieces import shown_bytes
from glassformer.views.tree import Node, Tree

MOST = 100_000  # nodes of a tree
TALLEST = 100  # levels of a tree: files and pages nest as deep
ROWS = 64  # that go through together
TOKENS = 2**14  # that these hold together at the most: with PyTorch, each has a copy of all that stands before it


def grow(model: ModelLike, text: str, ids: Sequence[int], width: int, depth: int, progress: Progress | None = None) -> Tree:
    """The tree after an encoded prompt; an encoder-decoder reads it, and its tree begins at the target's start."""
    check(model, ids, width, depth)
    root = Bud(ids[-1] if model.start is None else model.start, None, 0.0, 0.0)
    Growth(model, width, depth, progress).grow(ids, [], root)
    return Tree(model.name, text, tuple(ids), width, depth, freeze(model.tokenizer, root), (), TreeGrower(model))


@dataclass(frozen=True)
class TreeGrower:
    """Grows a finished tree on."""

    model: ModelLike

    @property
    def start(self) -> int | None:
        return self.model.start

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.model.tokenizer.decode(list(ids)))

    def grow(self, tree: Tree, at: Sequence[int], width: int, depth: int, progress: Progress | None) -> Node:
        check(self.model, tree.prompt_ids, width, depth, len(at), tree.nodes)
        root, bud = thaw(tree.root, at)
        path = [node.id for node in tree.open_path(at)]
        Growth(self.model, width, depth, progress).grow(tree.prompt_ids, path, bud)
        return freeze(self.model.tokenizer, root)

    def force(self, tree: Tree, at: Sequence[int], text: str) -> tuple[Node, list[int]]:
        tokenizer = self.model.tokenizer
        ids = [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
        if not ids:
            raise InputError("the text to force has no tokens. Give at least one character.")
        if ends := [token for token in ids[:-1] if token in self.model.settings.eos]:
            token = tokenizer.convert_ids_to_tokens(ends[0])
            raise InputError(f"the text to force goes on after {token}, which ends it. Leave out what follows.")
        check(self.model, tree.prompt_ids, 1, len(ids), len(at), tree.nodes)
        root, bud = thaw(tree.root, at)
        force(self.model, tree.prompt_ids, [node.id for node in tree.open_path(at)], bud, ids)
        return freeze(tokenizer, root), ids


def check(model: ModelLike, ids: Sequence[int], width: int, depth: int, level: int = 0, nodes: int = 0) -> None:
    """Refuse what cannot grow, before anything runs; `level` and `nodes`: where it grows on, and what is there already."""
    vocabulary, context = model.config.vocab_size, model.config.context
    if not isinstance(width, int) or not 1 <= width <= vocabulary:
        raise InputError(f"width is {width!r}; it must be from 1 to the {vocabulary:,} tokens that {model.name} scores.")
    if not isinstance(depth, int) or depth < 1:
        raise InputError(f"depth is {depth!r}; it must be 1 or more levels.")
    if len(ids) > context:
        raise InputError(f"a text of {len(ids)} tokens does not fit into the model's context of {context}. Shorten it.")
    before = (len(ids) if model.start is None else 1) + level
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
def reading(model: ModelLike, ids: Sequence[int], path: Sequence[int]) -> Iterator[tuple[Rows, Row, Scores]]:
    """A row that has read a prompt and a path after it, and the scores of what follows; in the end all rows are closed."""
    rows, start = Rows(model.executor), model.start
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

    def __init__(self, model: ModelLike, width: int, depth: int, progress: Progress | None = None) -> None:
        self.model = model
        self.width = width
        self.depth = depth
        self.progress = progress
        self.ends = model.settings.eos
        self.done = 0
        self.waiting: list[deque[tuple[Stem, Bud]]] = [deque() for _ in range(depth)]  # to be grown further, by level

    def grow(self, ids: Sequence[int], path: Sequence[int], bud: Bud) -> None:
        """Grow a node that stands after these tokens; the deepest that wait are seen to first."""
        with reading(self.model, ids, path) as (rows, row, scores):
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
        if self.progress is not None:
            self.progress(self.done, size(self.width, self.depth))


def force(model: ModelLike, ids: Sequence[int], path: Sequence[int], bud: Bud, tokens: Sequence[int]) -> None:
    """Let these tokens follow a node, with the probabilities that they have there."""
    with reading(model, ids, path) as (rows, row, scores):
        for number, token in enumerate(tokens):
            if number:
                (scores,) = rows.executor.run([Feed(row, (tokens[number - 1],))])
            found = numbers(scores)
            candidates, logprob = likelihood(found, token, 1)
            best = token == int(candidates.ids[0])
            bud = bud.child(token, float(found[token]), logprob, best=best, ends=model.settings.eos)
            bud.forced = True


def numbers(scores: Scores) -> npt.NDArray[np.float32]:
    """Scores of the whole vocabulary, which must be numbers."""
    found = scores.host()
    if not np.isfinite(found[found.argmax()]):  # it stops at the first NaN
        raise NotNumbers("the model's scores are not numbers (NaN or infinite). To see where that begins: glass run.")
    return found
