"""The decision tree: the likeliest continuations of a prompt, each token with its probability and that of its whole path.

It can be grown from any node, and a text can be forced anywhere, to see how likely that would have been and what would have
followed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.progress import Progress
from glassformer.page.document import Branch, Column, Heading, Page, PagePart, Paragraph, Style, Table, TableRow
from glassformer.page.format import format_percent, pluralize, tail, visible
from glassformer.views.view import View, flat_data

MAX_NODES = 60  # of a large tree: the likeliest ones, unless everything is shown
MAX_LEVELS = 7  # of nesting; what is deeper continues below
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
            focus.append(next(number for number, child in enumerate(node.children) if child.ids == ids))
            node = node.children[focus[-1]]
        return replace(self, root=root, focus=tuple(focus))

    def _along(self, at: Sequence[int]) -> list[Node]:
        """The root, and every node on a path."""
        nodes = [self.root]
        for step, number in enumerate(at):
            node = nodes[-1]
            if not isinstance(number, int) or not 0 <= number < len(node.children):
                where = f"node {format_path(at[:step])}" if step else "the root"
                count = len(node.children)
                children = f"{count} children (0 to {count - 1})" if count > 1 else "1 child (0)" if count else "no children"
                raise InputError(f"there is no node {format_path(at)}: {where} has {children}.")
            nodes.append(node.children[number])
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
        return draw(self, everything)

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
        stack += [((*at, number), child) for number, child in reversed(list(enumerate(node.children)))]


def draw(tree: Tree, everything: bool = False) -> Page:
    title = f'{tree.model}: {pluralize(tree.nodes, "node")} after "{tail(tree.prompt, 40)}"'
    shown = None if everything or tree.nodes <= MAX_NODES else likeliest_nodes(tree)
    return Page(
        title,
        (
            Heading(title),
            Paragraph(summary(tree, shown)),
            paths_table(tree),
            *branches(tree, shown),
            Paragraph(legend(tree), "dim"),
        ),
    )


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
        best = heapq.nlargest(MAX_NODES, walk(tree.at(*start)), key=lambda pair: (pair[1].path_logprob, -len(pair[0])))
        shown |= {(*start, *at) for at, _ in best}
    ends = (tree.greedy.at, tree.likeliest.at, tree.focus)
    return shown | {at[:count] for at in ends for count in range(len(at) + 1)}


def branches(tree: Tree, shown: Collection[tuple[int, ...]] | None) -> Iterator[PagePart]:
    """The tree; a deep one in several parts."""
    pending: deque[tuple[tuple[int, ...], Node]] = deque([((), tree.root)])
    while pending:
        start, root = pending.popleft()

        def branch(at: tuple[int, ...], node: Node, start: tuple[int, ...] = start) -> Branch:
            if len(at) - len(start) == MAX_LEVELS and node.children:
                pending.append((at, node))
                return Branch(node_text(node), node_note(at, node, below=True), node_style(node), node.probability)
            paths = [(*at, number) for number in range(len(node.children))]
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
