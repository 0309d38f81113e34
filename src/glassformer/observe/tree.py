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
from functools import cache

import numpy as np

from glassformer.decoding import Finish
from glassformer.decoding.policy import candidates_and_logprob
from glassformer.engine.protocol import Executor, Feed, Logits, Row
from glassformer.ground.candidates import top
from glassformer.ground.errors import InputError, NotNumbers, check_context
from glassformer.ground.progress import Progress
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.page.format import pluralize
from glassformer.text import Tokenizer
from glassformer.text.detokenizer import ends_inside_character, shown_bytes
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
    root = GrowingNode([ids[-1] if model.start is None else model.start], None, 0.0, 0.0)
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
        path = [token for before in tree.open_path(at) for token in before.ids]
        Growth(self.model, width, depth, progress).grow(tree.prompt_ids, path, node)
        return to_node(self.model.tokenizer, root)

    def force(self, tree: Tree, at: Sequence[int], text: str) -> tuple[Node, list[tuple[int, ...]]]:
        tokenizer = self.model.tokenizer
        ids = [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
        if not ids:
            raise InputError("the text to force has no tokens. Give at least one character.")
        if ends := [token for token in ids[:-1] if token in self.model.settings.eos]:
            token = tokenizer.convert_ids_to_tokens(ends[0])
            raise InputError(f"the text to force goes on after {token}, which ends it. Leave out what follows.")
        check_growth(self.model, tree.prompt_ids, 1, len(ids), len(at), tree.nodes)
        root, node = to_growing(tree.root, at)
        groups = [*character_groups(tokenizer, ids)]
        path = [token for before in tree.open_path(at) for token in before.ids]
        force(self.model, tree.prompt_ids, path, node, groups)
        return to_node(tokenizer, root), [tuple(group) for group in groups]


def character_groups(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[list[int]]:
    """Tokens one by one, those that are parts of a character together."""
    group: list[int] = []
    for token in ids:
        group.append(token)
        if not ends_inside_character(joined_bytes(tokenizer, group)):
            yield group
            group = []
    if group:
        yield group


def joined_bytes(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


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

    ids: list[int]  # one token; or the parts of a character
    score: float | None
    logprob: float  # after what stands before it
    path: float  # the sum of these from the root on
    greedy: bool = True
    forced: bool = False
    finish: str | None = None
    children: list[GrowingNode] = field(default_factory=list)

    def child(self, token: int, score: float, logprob: float, *, best: bool, ends: frozenset[int]) -> GrowingNode:
        """The child that begins with this token; a new one, if there is none."""
        for child in self.children:
            if child.ids == [token] or (child.ids[0] == token and not child.forced):
                return child
        finish = Finish.EOS.value if token in ends else None
        node = GrowingNode([token], score, logprob, self.path + logprob, self.greedy and best, finish=finish)
        self.children.append(node)
        return node

    def extend(self, token: int, logprob: float) -> None:
        """Let one more part of the character follow."""
        self.ids.append(token)
        self.score = None
        self.logprob += logprob
        self.path += logprob


def to_growing(root: Node, at: Sequence[int]) -> tuple[GrowingNode, GrowingNode]:
    """A copy of a tree that can grow, and one of its nodes."""

    def copy(node: Node, before: float) -> GrowingNode:
        logprob = node.path_logprob - before if math.isfinite(node.path_logprob) else -math.inf
        growing = GrowingNode([*node.ids], node.score, logprob, node.path_logprob, node.greedy, node.forced, node.finish)
        growing.children = [copy(child, node.path_logprob) for child in node.children]
        return growing

    growing_root = node = copy(root, 0.0)
    for number in at:
        node = node.children[number]
    return growing_root, node


def to_node(tokenizer: Tokenizer, root: GrowingNode) -> Node:
    """A grown tree, with its texts."""

    def convert(node: GrowingNode) -> Node:
        ids = tuple(node.ids)
        flags = (node.score, node.greedy, node.forced, node.finish)
        children = tuple(map(convert, sorted(node.children, key=lambda child: -child.logprob)))
        return Node(ids[0], text(ids), math.exp(node.logprob), math.exp(node.path), node.path, *flags, ids, children)

    @cache
    def text(ids: tuple[int, ...]) -> str:
        return shown_bytes(joined_bytes(tokenizer, ids))

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
def prefilled(model: ModelLike, ids: Sequence[int], path: Sequence[int]) -> Iterator[tuple[OpenRows, Row, Logits]]:
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
        self.queues: list[deque[tuple[SharedRow, GrowingNode]]] = [deque() for _ in range(depth + 1)]  # by level

    def grow(self, ids: Sequence[int], path: Sequence[int], node: GrowingNode) -> None:
        """Grow a node that stands after these tokens; the deepest level that waits goes first."""
        with prefilled(self.model, ids, path) as (rows, row, scores):
            most = max(1, min(BATCH_ROWS, BATCH_TOKENS // (row.length + self.depth)))
            self._add_children(rows, 1, row, node, scores)
            while level := max((level for level, queue in enumerate(self.queues) if queue), default=0):
                queue = self.queues[level]
                batch = [queue.popleft() for _ in range(min(most, len(queue)))]
                feeds = [Feed(shared.take(rows), (node.ids[-1],)) for shared, node in batch]
                for feed, (_, node), scores in zip(feeds, batch, rows.executor.run(feeds), strict=True):
                    if self._is_partial(node) and self._extend(feed.row, node, scores):
                        self._continue(rows, level, feed.row, [node])
                    elif level < self.depth:
                        self._add_children(rows, level + 1, feed.row, node, scores)
                    else:
                        rows.close(feed.row)

    def _is_partial(self, node: GrowingNode) -> bool:
        """Whether a node ends inside a character."""
        return ends_inside_character(joined_bytes(self.model.tokenizer, node.ids))

    def _extend(self, row: Row, node: GrowingNode, scores: Logits) -> bool:
        """Add the likeliest next token to a part of a character; False if it does not continue the character."""
        best = top(finite_scores(scores), 1)
        token = int(best.ids[0])
        raw = joined_bytes(self.model.tokenizer, [*node.ids, token])
        continues = ends_inside_character(raw) or "\N{REPLACEMENT CHARACTER}" not in raw.decode("utf-8", "replace")
        if not continues or row.length + self.depth >= self.model.config.context:
            return False
        node.extend(token, math.log(best.probabilities[0]))
        return True

    def _continue(self, rows: OpenRows, level: int, row: Row, nodes: Sequence[GrowingNode]) -> None:
        """Let a row wait with those of the nodes after it that are to be grown further, or completed."""
        waiting = [node for node in nodes if not node.finish and (level < self.depth or self._is_partial(node))]
        if waiting:
            shared = SharedRow(row, len(waiting))
            self.queues[level].extend((shared, node) for node in waiting)
        else:
            rows.close(row)

    def _add_children(self, rows: OpenRows, level: int, row: Row, node: GrowingNode, scores: Logits) -> None:
        """Put the likeliest tokens after a node; its row waits with those that are to be grown further."""
        best = top(finite_scores(scores), self.width)
        logprobs = best.scores.astype(np.float64) - float(best.scores[0]) + math.log(best.probabilities[0])
        children = [
            node.child(token, score, logprob, best=not rank, ends=self.ends)
            for rank, (logprob, (token, score, _)) in enumerate(zip(logprobs.tolist(), best, strict=True))
        ]
        ended = sum(child.finish is not None for child in children)
        self.done += len(children) + ended * node_count(self.width, self.depth - level)
        self._continue(rows, level, row, children)
        if self.progress is not None:
            self.progress(self.done, node_count(self.width, self.depth))


def force(
    model: ModelLike, ids: Sequence[int], path: Sequence[int], node: GrowingNode, groups: Sequence[Sequence[int]]
) -> None:
    """Let these tokens follow a node, with the probabilities that they have there; each group is a node."""
    with prefilled(model, ids, path) as (rows, row, scores):
        previous: int | None = None
        for group in groups:
            scored = []
            for token in group:
                if previous is not None:
                    (scores,) = rows.executor.run([Feed(row, (previous,))])
                values = finite_scores(scores)
                candidates, logprob = candidates_and_logprob(values, token, 1)
                scored.append((float(values[token]), logprob, token == int(candidates.ids[0])))
                previous = token
            node = _forced_child(node, group, scored, model.settings.eos)


def _forced_child(
    parent: GrowingNode, group: Sequence[int], scored: Sequence[tuple[float, float, bool]], ends: frozenset[int]
) -> GrowingNode:
    """The child that is these tokens, with the score and log-probability of each, and whether it was the best."""
    child = next((child for child in parent.children if child.ids == [*group]), None)
    if child is None:
        scores, logprobs, bests = zip(*scored, strict=True)
        finish = Finish.EOS.value if group[-1] in ends else None
        score, logprob = scores[0] if len(group) == 1 else None, math.fsum(logprobs)
        child = GrowingNode([*group], score, logprob, parent.path + logprob, parent.greedy and all(bests), finish=finish)
        parent.children.append(child)
    child.forced = True
    return child


def finite_scores(scores: Logits) -> Floats:
    """Scores of the whole vocabulary, which must be numbers."""
    values = scores.host()
    if not np.isfinite(values[values.argmax()]):  # it stops at the first NaN
        raise NotNumbers("the model's scores are not numbers (NaN or infinite). To see where that begins: glass run.")
    return values
