"""The decision tree: the likeliest continuations of a prompt, each with its probability.

    prompt ─▶ the best few tokens ─▶ the best few after each of these ─▶ …

Probabilities are the softmax of the model's own scores: no rule, no temperature. The prompt is read once. A token's row in
the executor is a fork of the row of what stands before it, and a level goes through as one batch. A large level goes through
in parts, and what grows from one part is finished before the next one, so that few rows are open at a time.

It can be grown further from any node, and a text can be forced anywhere, to see how likely that would have been and what
would have followed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from glassformer.candidates import top
from glassformer.decoding import Finish
from glassformer.decoding.policy import candidates_and_logprob
from glassformer.engine.protocol import Executor, Feed, Row, Scores
from glassformer.errors import InputError, NotNumbers, check_context
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.observe.tokens import token_text
from glassformer.page.format import pluralize
from glassformer.progress import Progress
from glassformer.text import Tokenizer
from glassformer.views.tree import Node, Tree

MAX_NODES = 100_000  # of a tree
MAX_LEVELS = 100  # of a tree: files and pages nest as deep
BATCH_ROWS = 64  # that go through together
BATCH_TOKENS = 2**14  # in these rows at the most: with PyTorch, each has a copy of all that stands before it


def grow_tree(
    model: ModelLike, text: str, ids: Sequence[int], width: int, depth: int, progress: Progress | None = None
) -> Tree:
    """The tree after an encoded prompt; an encoder-decoder reads it, and its tree begins at the target's start."""
    check_growth(model, ids, width, depth)
    root = GrowingNode(ids[-1] if model.start is None else model.start, None, 0.0, 0.0)
    Growth(model, width, depth, progress).grow(ids, [], root)
    return Tree(model.name, text, tuple(ids), width, depth, to_node(model.tokenizer, root), (), ModelTreeGrower(model))


@dataclass(frozen=True)
class ModelTreeGrower:
    """Grows a finished tree further."""

    model: ModelLike

    @property
    def start(self) -> int | None:
        return self.model.start

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.model.tokenizer.decode(list(ids)))

    def grow(self, tree: Tree, at: Sequence[int], width: int, depth: int, progress: Progress | None) -> Node:
        check_growth(self.model, tree.prompt_ids, width, depth, len(at), tree.nodes)
        root, node = to_growing(tree.root, at)
        path = [before.id for before in tree.open_path(at)]
        Growth(self.model, width, depth, progress).grow(tree.prompt_ids, path, node)
        return to_node(self.model.tokenizer, root)

    def force(self, tree: Tree, at: Sequence[int], text: str) -> tuple[Node, list[int]]:
        tokenizer = self.model.tokenizer
        ids = [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
        if not ids:
            raise InputError("the text to force has no tokens. Give at least one character.")
        if ends := [token for token in ids[:-1] if token in self.model.settings.eos]:
            token = tokenizer.convert_ids_to_tokens(ends[0])
            raise InputError(f"the text to force goes on after {token}, which ends it. Leave out what follows.")
        check_growth(self.model, tree.prompt_ids, 1, len(ids), len(at), tree.nodes)
        root, node = to_growing(tree.root, at)
        force(self.model, tree.prompt_ids, [before.id for before in tree.open_path(at)], node, ids)
        return to_node(tokenizer, root), ids


def check_growth(model: ModelLike, ids: Sequence[int], width: int, depth: int, level: int = 0, nodes: int = 0) -> None:
    """Refuse what cannot grow, before anything runs; `level` and `nodes`: of the tree that is there already."""
    vocabulary, context = model.config.vocab_size, model.config.context
    if not isinstance(width, int) or not 1 <= width <= vocabulary:
        raise InputError(f"width is {width!r}; it must be from 1 to the {vocabulary:,} tokens that {model.name} scores.")
    if not isinstance(depth, int) or depth < 1:
        raise InputError(f"depth is {depth!r}; it must be 1 or more levels.")
    check_context(len(ids), context)
    before = (len(ids) if model.start is None else 1) + level
    if before + depth > context:
        raise InputError(
            f"{pluralize(before, 'token')} and {pluralize(depth, 'level')} do not fit into the model's context of "
            f"{context}. Shorten the prompt, or grow fewer levels."
        )
    if level + depth > MAX_LEVELS:
        raise InputError(f"a tree of {level + depth} levels is too tall; {MAX_LEVELS} is the most. Grow fewer levels.")
    if (total := nodes + node_count(width, depth)) > MAX_NODES:
        count = f"{total:,}" if total < 10**15 else f"about 10^{len(str(total)) - 1}"
        raise InputError(
            f"with width {width} and depth {depth} the tree has {count} nodes; {MAX_NODES:,} is the most. "
            "Take a smaller width or depth."
        )


def node_count(width: int, depth: int) -> int:
    """How many nodes a full tree has, without its root."""
    return sum(width**level for level in range(1, depth + 1))


@dataclass(slots=True, eq=False)
class GrowingNode:
    """A node while it grows."""

    id: int
    score: float | None
    logprob: float  # after what stands before it
    path: float  # the sum of these from the root on
    greedy: bool = True
    forced: bool = False
    finish: str | None = None
    children: dict[int, GrowingNode] = field(default_factory=dict)  # by their tokens

    def child(self, token: int, score: float, logprob: float, *, best: bool, ends: frozenset[int]) -> GrowingNode:
        """The child that is this token; a new one, if there is none."""
        if token not in self.children:
            finish = Finish.EOS.value if token in ends else None
            node = GrowingNode(token, score, logprob, self.path + logprob, self.greedy and best, finish=finish)
            self.children[token] = node
        return self.children[token]


def to_growing(root: Node, at: Sequence[int]) -> tuple[GrowingNode, GrowingNode]:
    """A copy of a tree that can grow, and one of its nodes."""

    def copy(node: Node, before: float) -> GrowingNode:
        logprob = node.path_logprob - before if math.isfinite(node.path_logprob) else -math.inf
        growing = GrowingNode(node.id, node.score, logprob, node.path_logprob, node.greedy, node.forced, node.finish)
        growing.children = {child.id: copy(child, node.path_logprob) for child in node.children}
        return growing

    growing_root = node = copy(root, 0.0)
    for number in at:
        node = list(node.children.values())[number]
    return growing_root, node


def to_node(tokenizer: Tokenizer, root: GrowingNode) -> Node:
    """A grown tree, with its texts."""
    text = cache(partial(token_text, tokenizer))

    def convert(node: GrowingNode) -> Node:
        flags = (node.score, node.greedy, node.forced, node.finish)
        children = tuple(map(convert, sorted(node.children.values(), key=lambda child: -child.logprob)))
        return Node(node.id, text(node.id), math.exp(node.logprob), math.exp(node.path), node.path, *flags, children)

    return convert(root)


class OpenRows:
    """The open rows of an executor; all are closed in the end."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.rows: dict[int, Row] = {}

    def open(self, source: Sequence[int] | None) -> Row:
        return self._note(self.executor.open(source))

    def fork(self, row: Row) -> Row:
        return self._note(self.executor.fork(row))

    def close(self, row: Row) -> None:
        self.executor.close(self.rows.pop(id(row)))

    def _note(self, row: Row) -> Row:
        self.rows[id(row)] = row
        return row


@contextmanager
def prefilled(model: ModelLike, ids: Sequence[int], path: Sequence[int]) -> Iterator[tuple[OpenRows, Row, Scores]]:
    """A row that has read a prompt and a path after it, and the scores of what follows; in the end all rows are closed."""
    rows, start = OpenRows(model.executor), model.start
    try:
        row = rows.open(None if start is None else ids)
        (scores,) = rows.executor.run([Feed(row, [*(ids if start is None else (start,)), *path])])
        yield rows, row, scores
    finally:
        for row in reversed(list(rows.rows.values())):
            rows.close(row)


@dataclass(slots=True)
class SharedRow:
    """A row that several children continue: each takes a fork, and the last one the row itself."""

    row: Row
    left: int

    def take(self, rows: OpenRows) -> Row:
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
        self.queues: list[deque[tuple[SharedRow, GrowingNode]]] = [deque() for _ in range(depth)]  # by level

    def grow(self, ids: Sequence[int], path: Sequence[int], node: GrowingNode) -> None:
        """Grow a node that stands after these tokens; the deepest level that waits goes first."""
        with prefilled(self.model, ids, path) as (rows, row, scores):
            most = max(1, min(BATCH_ROWS, BATCH_TOKENS // (row.length + self.depth)))
            self._add_children(rows, 1, row, node, scores)
            while level := max((level for level, queue in enumerate(self.queues) if queue), default=0):
                queue = self.queues[level]
                batch = [queue.popleft() for _ in range(min(most, len(queue)))]
                feeds = [Feed(shared.take(rows), (node.id,)) for shared, node in batch]
                for feed, (_, node), scores in zip(feeds, batch, rows.executor.run(feeds), strict=True):
                    self._add_children(rows, level + 1, feed.row, node, scores)

    def _add_children(self, rows: OpenRows, level: int, row: Row, node: GrowingNode, scores: Scores) -> None:
        """Put the likeliest tokens after a node; its row waits with those that are to be grown further."""
        best = top(finite_scores(scores), self.width)
        logprobs = best.scores.astype(np.float64) - float(best.scores[0]) + math.log(best.probabilities[0])
        children = [
            node.child(token, score, logprob, best=not rank, ends=self.ends)
            for rank, (logprob, (token, score, _)) in enumerate(zip(logprobs.tolist(), best, strict=True))
        ]
        unfinished = [child for child in children if not child.finish] if level < self.depth else []
        self.done += len(children) + (len(children) - len(unfinished)) * node_count(self.width, self.depth - level)
        if unfinished:
            shared = SharedRow(row, len(unfinished))
            self.queues[level].extend((shared, child) for child in unfinished)
        else:
            rows.close(row)
        if self.progress is not None:
            self.progress(self.done, node_count(self.width, self.depth))


def force(model: ModelLike, ids: Sequence[int], path: Sequence[int], node: GrowingNode, tokens: Sequence[int]) -> None:
    """Let these tokens follow a node, with the probabilities that they have there."""
    with prefilled(model, ids, path) as (rows, row, scores):
        for number, token in enumerate(tokens):
            if number:
                (scores,) = rows.executor.run([Feed(row, (tokens[number - 1],))])
            values = finite_scores(scores)
            candidates, logprob = candidates_and_logprob(values, token, 1)
            best = token == int(candidates.ids[0])
            node = node.child(token, float(values[token]), logprob, best=best, ends=model.settings.eos)
            node.forced = True


def finite_scores(scores: Scores) -> Floats:
    """Scores of the whole vocabulary, which must be numbers."""
    values = scores.host()
    if not np.isfinite(values[values.argmax()]):  # it stops at the first NaN
        raise NotNumbers("the model's scores are not numbers (NaN or infinite). To see where that begins: glass run.")
    return values
