"""The decision tree: the likeliest continuations of a prompt, each with its probability.

    prompt ─▶ the best few tokens ─▶ the best few after each of these ─▶ …

Probabilities are the softmax of the model's own scores: no rule, no temperature. The prompt is read once. A token's row in
the executor is a fork of the row of what stands before it, and a level goes through as one batch. A large level goes through
in parts, and what grows from one part is finished before the next one, so that few rows are open at a time.

It can be grown further from any node, and a text can be forced anywhere, to see how likely that would have been and what
would have followed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any, Protocol, Unpack

import numpy as np

from glassformer.decoding import Finish
from glassformer.decoding.policy import candidates_and_logprob
from glassformer.engine.protocol import Executor, Feed, Logits, Row
from glassformer.ground.arguments import checked
from glassformer.ground.candidates import top
from glassformer.ground.errors import InputError, InputTypeError, NotNumbers, check_context
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.page.document import Branch, Column, Page, PagePart, Paragraph, Style, Table, TableRow
from glassformer.page.format import format_percent, pluralize, tail, visible
from glassformer.see.protocols import ModelLike
from glassformer.see.view import Floats, View, flat_data
from glassformer.text import Tokenizer
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions, encode
from glassformer.text.streaming import ends_inside_character, shown_bytes

SHOWN_NODES = 60  # of a large tree: the likeliest ones, unless everything is shown
SHOWN_LEVELS = 7  # of nesting; what is deeper continues below
MAX_PATH = 14  # characters of a path that are shown at a node
GREEDY, OTHER, FORCED = "●", "○", "◆"


class TreeGrower(Protocol):
    """What a tree needs of the model that grows it."""

    @property
    def start(self) -> int | None:
        """The start token of an encoder-decoder's target."""

    def decode(self, ids: Sequence[int]) -> str: ...

    def grow(self, tree: Tree, at: Sequence[int], width: int, depth: int, progress: Progress | None) -> Node:
        """The root of the tree after growing one of its nodes."""

    def force(self, tree: Tree, at: Sequence[int], text: str) -> tuple[Node, list[tuple[int, ...]]]:
        """The root of the tree after adding a text below one of its nodes; and the tokens of each node of the text."""


@dataclass(frozen=True, slots=True)
class Node:
    """A token and its continuations; the root is the last token of the prompt.

    Where tokens are parts of a character, all tokens of the character are one node.
    """

    id: int  # of the token, or the first one
    text: str  # as it reads; a part of a character as its bytes
    probability: float  # given all tokens before it
    path_probability: float  # of all tokens from the root to this one
    path_logprob: float  # its logarithm, which does not underflow
    score: float | None  # the model's; None for the root and for several tokens
    greedy: bool  # whether each token up to here was the likeliest one
    forced: bool  # added by `Tree.forced`
    finish: str | None  # "eos" where the text ends with it
    ids: tuple[int, ...]  # all its tokens
    children: tuple[Node, ...] = ()  # the likeliest first

    def __repr__(self) -> str:
        return f"Node({self.text!r}, {self.probability:.1%}, {len(self.children)} children)"


@dataclass(frozen=True, slots=True)
class TreePath:
    """The tokens from the root to a node."""

    at: tuple[int, ...]  # the number of the child to take at each step
    ids: tuple[int, ...]
    text: str
    probability: float
    logprob: float


@dataclass(frozen=True, repr=False)
class Tree(View):
    """The likeliest continuations of a prompt."""

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
    covered: float = field(init=False)  # the probability of all leaves together
    greedy: TreePath = field(init=False)  # the likeliest token at each step
    likeliest: TreePath = field(
        init=False
    )  # the path of highest probability, of those that have `depth` tokens or ended before
    grower: TreeGrower = field(compare=False, metadata={"stored": False})

    def __post_init__(self) -> None:
        nodes = list(walk(self.root))
        leaves = [node for at, node in nodes if at and not node.children]
        ends = ((at, node) for at, node in nodes if len(at) == self.depth or (node.finish and len(at) < self.depth))
        values = {
            "nodes": len(nodes) - 1,
            "leaves": len(leaves),
            "covered": math.fsum(node.path_probability for node in leaves),
            "greedy": self.path(max((at for at, node in nodes if node.greedy), key=len)),
            "likeliest": self.path(max(ends, key=lambda end: end[1].path_logprob)[0]),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def at(self, *numbers: int) -> Node:
        """A node, by the number of the child to take at each step: `at(0, 2)`; without numbers, the root."""
        return self._along(numbers)[-1]

    def path(self, at: Sequence[int]) -> TreePath:
        """The path to a node."""
        _, *nodes = self._along(at)
        ids = tuple(token for node in nodes for token in node.ids)
        last = nodes[-1] if nodes else self.root
        return TreePath(tuple(at), ids, self.grower.decode(ids), last.path_probability, last.path_logprob)

    def grown(
        self, at: Sequence[int] = (), *, width: int | None = None, depth: int | None = None, progress: Progress | None = None
    ) -> Tree:
        """A tree in which one node was grown further, by default as wide and deep as this tree was first grown."""
        self.open_path(at)
        width, depth = self.width if width is None else width, self.depth if depth is None else depth
        return replace(self, root=self.grower.grow(self, at, width, depth, progress), focus=tuple(at))

    def forced(self, at: Sequence[int], text: str) -> Tree:
        """A tree in which a text follows one node, each of its tokens with its probability; `focus` is the last one."""
        self.open_path(at)
        if not isinstance(text, str):
            raise InputTypeError(f"a text to force is text, not {type(text).__name__}.")
        root, groups = self.grower.force(self, at, text)
        focus, node = list(at), replace(self, root=root).at(*at)
        for ids in groups:
            focus.append(next(index for index, child in enumerate(node.children) if child.ids == ids))
            node = node.children[focus[-1]]
        return replace(self, root=root, focus=tuple(focus))

    def _along(self, at: Sequence[int]) -> list[Node]:
        """The root, and every node on a path."""
        nodes = [self.root]
        for step, index in enumerate(at):
            node = nodes[-1]
            if not isinstance(index, int) or not 0 <= index < len(node.children):
                where = f"node {format_path(at[:step])}" if step else "the root"
                count = len(node.children)
                children = f"{count} children (0 to {count - 1})" if count > 1 else "1 child (0)" if count else "no children"
                raise InputError(f"there is no node {format_path(at)}: {where} has {children}.")
            nodes.append(node.children[index])
        return nodes

    def open_path(self, at: Sequence[int]) -> list[Node]:
        """The nodes on the path to one at which the text has not ended; InputError where it has."""
        _, *nodes = self._along(at)
        if nodes and nodes[-1].finish:
            raise InputError(
                f"the text ends at node {format_path(at)} ({nodes[-1].text}), so nothing follows it. Take another one."
            )
        return nodes

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each node but the root, with the texts that lead to it."""

        def below(node: Node, path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
            for child in node.children:
                here = (*path, child.text)
                yield {"depth": len(here), "path": "".join(here), **flat_data(replace(child, children=()))}
                yield from below(child, here)

        return list(below(self.root, ()))

    def page(self, everything: bool = False) -> Page:
        title = f'{self.model}: {pluralize(self.nodes, "node")} after "{tail(self.prompt, 40)}"'
        shown = None if everything or self.nodes <= SHOWN_NODES else likeliest_nodes(self)
        return Page.titled(
            title,
            Paragraph(summary(self, shown)),
            paths_table(self),
            *branches(self, shown),
            Paragraph(legend(self), "dim"),
        )

    def __repr__(self) -> str:
        return f"Tree({self.nodes:,} nodes, covering {self.covered:.1%}; greedy: {self.greedy.text!r})"


def format_path(at: Sequence[int]) -> str:
    """A path as it is typed: 0.2."""
    return ".".join(map(str, at))


def walk(root: Node) -> Iterator[tuple[tuple[int, ...], Node]]:
    """Every node and its path, in the order in which they are drawn."""
    stack: list[tuple[tuple[int, ...], Node]] = [((), root)]
    while stack:
        at, node = stack.pop()
        yield at, node
        stack += [((*at, index), child) for index, child in reversed(list(enumerate(node.children)))]


def summary(tree: Tree, shown: Collection[tuple[int, ...]] | None) -> str:
    """How it was grown, and the probability of its leaves."""
    width = "the likeliest token" if tree.width == 1 else f"the {tree.width} likeliest tokens"
    levels = f" at each of {tree.depth} levels" if tree.depth > 1 else ""
    focus = f"; grown further at {format_path(tree.focus)}" if tree.focus else ""
    hidden = "" if shown is None else f"\nShown are the likeliest {len(shown) - 1} of them; --all shows all."
    leaves = "The leaf covers" if tree.leaves == 1 else f"The {tree.leaves:,} leaves cover"
    return f"{width}{levels}{focus}\n{leaves} {format_probability(tree.covered)} of all that could follow.{hidden}"


def paths_table(tree: Tree) -> Table:
    """The greedy path; and the likeliest, if that is another one."""
    columns = (Column(), Column("path"), Column("text", "token", min_width=10), Column("probability", "number"))
    rows = [_path_row(GREEDY, "greedy", tree.greedy, "chosen")]
    if tree.likeliest.at != tree.greedy.at[: tree.depth]:
        rows.append(_path_row(OTHER, "likeliest", tree.likeliest, ""))
    return Table(columns, tuple(rows))


def _path_row(sign: str, name: str, path: TreePath, style: Style) -> TableRow:
    return TableRow((sign, name, tail(path.text, 60), format_probability(path.probability, path.logprob)), style)


def legend(tree: Tree) -> str:
    signs = [f"{GREEDY} always the likeliest token", f"{OTHER} another one"]
    if any(node.forced for _, node in walk(tree.root)):
        signs.append(f"{FORCED} forced")
    place = tree.greedy.at[:2]
    return (
        f"{' · '.join(signs)}\nscore: the model's, of which softmax makes the probability after it\n"
        "path: the probability of all tokens up to there\n"
        f"to grow it from a node: --at {format_path(place)}, or tree.grown({list(place)}) in Python"
    )


def likeliest_nodes(tree: Tree) -> set[tuple[int, ...]]:
    """What is drawn of a large tree: its likeliest nodes, the likeliest where it was grown last, and the paths to these."""
    shown = set()
    for start in {(), tree.focus}:
        best = heapq.nlargest(SHOWN_NODES, walk(tree.at(*start)), key=lambda pair: (pair[1].path_logprob, -len(pair[0])))
        shown |= {(*start, *at) for at, _ in best}
    ends = (tree.greedy.at, tree.likeliest.at, tree.focus)
    return shown | {at[:count] for at in ends for count in range(len(at) + 1)}


def branches(tree: Tree, shown: Collection[tuple[int, ...]] | None) -> Iterator[PagePart]:
    """The tree; a deep one in several parts."""
    pending: deque[tuple[tuple[int, ...], Node]] = deque([((), tree.root)])
    while pending:
        start, root = pending.popleft()

        def branch(at: tuple[int, ...], node: Node, start: tuple[int, ...] = start) -> Branch:
            if len(at) - len(start) == SHOWN_LEVELS and node.children:
                pending.append((at, node))
                return Branch(node_text(node), node_note(at, node, below=True), node_style(node), node.probability)
            paths = [(*at, index) for index in range(len(node.children))]
            visible_paths = [path for path in paths if shown is None or path in shown]
            children = [branch(path, node.children[path[-1]]) for path in visible_paths]
            if len(visible_paths) < len(paths):
                children.append(Branch("…", f"{len(paths) - len(visible_paths)} more (--all)", "dim"))
            if at == start:
                return Branch(_root_text(tree, at), "", "strong", None, tuple(children))
            return Branch(node_text(node), node_note(at, node), node_style(node), node.probability, tuple(children))

        if start:
            yield Paragraph(f"\ncontinued from {format_path(start)}:", "dim")
        yield branch(start, root)


def _root_text(tree: Tree, at: tuple[int, ...]) -> str:
    """The first line of a part: the end of the text before it."""
    if at:
        return tail(tree.path(at).text, 60)
    return tail(tree.prompt, 60) if tree.grower.start is None else f"{tail(tree.prompt, 50)} ▶ {visible(tree.root.text)}"


def node_text(node: Node) -> str:
    sign = FORCED if node.forced else GREEDY if node.greedy else OTHER
    return f"{sign} {visible(node.text)}"


def node_style(node: Node) -> Style:
    return "chosen" if node.greedy else "special" if node.forced else ""


def node_note(at: tuple[int, ...], node: Node, below: bool = False) -> str:
    """Its score and probability, that of its path, and its path; or that it ends, or continues below."""
    notes = [] if node.score is None else [f"score {node.score:.1f}"]
    notes += [pluralize(len(node.ids), "token")] if len(node.ids) > 1 else []
    notes.append(format_probability(node.probability))
    if len(at) > 1:
        notes.append(f"path {format_probability(node.path_probability, node.path_logprob)}")
    if node.finish or below:
        notes.append("ends" if node.finish else "more below")
    elif len(format_path(at)) <= MAX_PATH:
        notes.append(f"at {format_path(at)}")
    return " · ".join(notes)


def format_probability(probability: float, logprob: float | None = None) -> str:
    """A percentage, with more digits where it is small; a very small one in scientific notation.

    >>> [format_probability(value) for value in (0.25, 0.00012, 0.00000012)], format_probability(0.0, -1000.0)
    (['25.0%', '0.012%', '1.2e-07'], '5.1e-435')
    """
    if probability >= 0.01:
        return format_percent(probability)
    if probability >= 1e-6:
        return f"{100 * probability:.2g}%"
    if probability > 1e-300 or logprob is None or not math.isfinite(logprob):
        return f"{probability:.1e}"
    power = math.floor(logprob / math.log(10))
    return f"{10 ** (logprob / math.log(10) - power):.1f}e{power}"


MAX_NODES = 100_000  # of a tree
MAX_LEVELS = 100  # of a tree: files and pages nest as deep
BATCH_ROWS = 64  # that go through together
BATCH_TOKENS = 2**14  # in these rows at the most: with PyTorch, each has a copy of all that stands before it


def child_numbers(at: str | None) -> list[int] | None:
    """A node as it is typed, such as 0.2."""
    numbers = at.split(".") if at else []
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise InputError(f"--at {at!r} is not the numbers of children, joined by dots, such as 0.2.")
    return None if at is None else [int(number) for number in numbers]


@operation(
    route="tree",
    example='glass tree --raw "Today" --width 3 --depth 3   ·   glass tree --raw "Today" --at 0.2   ·   '
    'glass tree --raw "The dog" --force " flew"',
)
def tree(
    model: ModelLike,
    prompt: Prompt,
    *,
    width: Annotated[int, about("How many tokens follow each token.", "--width", "-w", served_minimum=1)] = 3,
    depth: Annotated[int, about("How many tokens a path has.", "--depth", "-d", served_minimum=1)] = 3,
    at: Annotated[
        Sequence[int] | None,
        about(
            "A node to grow further: 0.2 is the third child of the first.",
            metavar="N.N",
            typed=str,
            check=child_numbers,
            served=False,
        ),
    ] = None,
    force: Annotated[
        str | None,
        about("Append this text at the node of --at or at the root, and grow it.", metavar="TEXT", served=False),
    ] = None,
    progress: Progress | None = None,
    **prompt_options: Unpack[PromptKeywords],
) -> Tree:
    """Show what could follow a text: the likeliest tokens, what could follow each, and how likely each path is.

    `at`: a node, by child numbers, to grow by as many levels again; or below which the text `force` follows.
    `progress`: called as (nodes so far, total).
    """
    _ = model.executor  # refuses a model that writes no text
    text, ids = encode(model, prompt, PromptOptions.of(prompt_options, tree))
    check_growth(model, ids, width, depth)
    root = GrowingNode([ids[-1] if model.decoder_start_token is None else model.decoder_start_token], None, 0.0, 0.0)
    Growth(model, width, depth, progress).grow(ids, [], root)
    grown = Tree(model.name, text, ids, width, depth, to_node(model.tokenizer, root), (), ModelTreeGrower(model))
    if force is not None:
        grown = grown.forced(at or (), force)
        return grown if grown.at(*grown.focus).finish else grown.grown(grown.focus, progress=progress)
    return grown if at is None else grown.grown(at, progress=progress)


@dataclass(frozen=True)
class ModelTreeGrower:
    """Grows a finished tree further."""

    model: ModelLike

    @property
    def start(self) -> int | None:
        return self.model.decoder_start_token

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
    before = (len(ids) if model.decoder_start_token is None else 1) + level
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
    for index in at:
        node = node.children[index]
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
    rows, start = OpenRows(model.executor), model.decoder_start_token
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
