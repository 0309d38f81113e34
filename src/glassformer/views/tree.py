"""The decision tree: the likeliest ways on from a prompt, each token with its probability and that of its whole path.

From any node it can be grown on, and a text can be forced anywhere, to see how likely that would have been and what would
have followed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from glassformer.errors import InputError, InputTypeError
from glassformer.page.document import Branch, Column, Page, Part, Row, Style, Table, Words
from glassformer.page.format import brief, many, share, visible
from glassformer.progress import Progress
from glassformer.views.view import View

MOST = 60  # nodes that are drawn of a large tree: the likeliest ones
LEVELS = 7  # that are drawn one inside the other; what is deeper goes on below
LONGEST = 14  # characters of a path's numbers that are shown at a node
GREEDY, OTHER, FORCED = "●", "○", "◆"


class Grower(Protocol):
    """What can grow a tree on: a model that writes, as the view needs to know it."""

    @property
    def start(self) -> int | None:
        """What an encoder-decoder's target begins with."""

    def decode(self, ids: Sequence[int]) -> str: ...

    def grow(self, tree: Tree, at: Sequence[int], width: int, depth: int, progress: Progress | None) -> Node:
        """The root of the same tree, with one of its nodes grown on."""

    def force(self, tree: Tree, at: Sequence[int], text: str) -> tuple[Node, list[int]]:
        """The root of the same tree, with a text put behind one of its nodes; and the text's ids."""


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
class Tree(View):
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
    grower: Grower = field(compare=False, metadata={"stored": False})

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
        return Path(tuple(at), ids, self.grower.decode(ids), last.path_probability, last.path_logprob)

    def grown(
        self, at: Sequence[int] = (), *, width: int | None = None, depth: int | None = None, progress: Progress | None = None
    ) -> Tree:
        """A tree in which one node was grown on, by as many levels as this tree had at first, or as are asked for."""
        self.open_path(at)
        width, depth = self.width if width is None else width, self.depth if depth is None else depth
        return replace(self, root=self.grower.grow(self, at, width, depth, progress), focus=tuple(at))

    def forced(self, at: Sequence[int], text: str) -> Tree:
        """A tree in which a text follows one node, each of its tokens with its true probability; `focus` is the last one."""
        self.open_path(at)
        if not isinstance(text, str):
            raise InputTypeError(f"a text to force is text, not {type(text).__name__}.")
        root, ids = self.grower.force(self, at, text)
        focus, node = list(at), replace(self, root=root).at(*at)
        for token in ids:
            focus.append(next(number for number, child in enumerate(node.children) if child.id == token))
            node = node.children[focus[-1]]
        return replace(self, root=root, focus=tuple(focus))

    def _along(self, at: Sequence[int]) -> list[Node]:
        """The root, and every node on the way."""
        nodes = [self.root]
        for step, number in enumerate(at):
            node = nodes[-1]
            if not isinstance(number, int) or not 0 <= number < len(node.children):
                where = f"node {format_path(at[:step])}" if step else "the root"
                count = len(node.children)
                said = (
                    "no children" if not count else "1 child (0)" if count == 1 else f"{count} children (0 to {count - 1})"
                )
                raise InputError(f"there is no node {format_path(at)}: {where} has {said}.")
            nodes.append(node.children[number])
        return nodes

    def open_path(self, at: Sequence[int]) -> list[Node]:
        """The nodes on the way to one that something can follow."""
        _, *nodes = self._along(at)
        if nodes and nodes[-1].finish:
            raise InputError(
                f"the text ends at node {format_path(at)} ({nodes[-1].text}), so nothing follows it. Take another one."
            )
        return nodes

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"Tree({self.nodes:,} nodes, covering {self.covered:.1%}; greedy: {self.greedy.text!r})"


def format_path(at: Sequence[int]) -> str:
    """A path as it is written: 0.2."""
    return ".".join(map(str, at))


def walk(root: Node) -> Iterator[tuple[tuple[int, ...], Node]]:
    """Every node and its path, in the order in which they are drawn."""
    left: list[tuple[tuple[int, ...], Node]] = [((), root)]
    while left:
        at, node = left.pop()
        yield at, node
        left += [((*at, number), child) for number, child in reversed(list(enumerate(node.children)))]


def draw(tree: Tree, everything: bool = False) -> Page:
    said = f'{many(tree.nodes, "node")} after "{brief(tree.prompt, 40)}"'
    shown = None if everything or tree.nodes <= MOST else chosen(tree)
    return Page(
        f"{tree.model}: {said}",
        (Words(said + "\n" + summary(tree, shown)), paths(tree), *drawn(tree, shown), Words(legend(tree), "dim")),
    )


def summary(tree: Tree, shown: Collection[tuple[int, ...]] | None) -> str:
    """What has grown, and how much of all it is."""
    ways = f"{many(tree.width, 'way')} on" + (f" at each of {tree.depth} levels" if tree.depth > 1 else "")
    more = f"; grown on at {format_path(tree.focus)}" if tree.focus else ""
    left = "" if shown is None else f"\nShown are {len(shown) - 1} of them, the likeliest; with --all, all."
    leaves = "The leaf covers" if tree.leaves == 1 else f"The {tree.leaves:,} leaves cover"
    return f"{ways}{more}\n{leaves} {chance(tree.covered)} of all that could follow.{left}"


def paths(tree: Tree) -> Table:
    """The greedy path; and the likeliest, if that is another one."""
    columns = (Column(), Column("path"), Column("text", "token", least=10), Column("probability", "number"))
    rows = [_path(GREEDY, "greedy", tree.greedy, "chosen")]
    if tree.likeliest.at != tree.greedy.at[: tree.depth]:
        rows.append(_path(OTHER, "likeliest", tree.likeliest, ""))
    return Table(columns, tuple(rows))


def _path(sign: str, name: str, path: Path, style: Style) -> Row:
    return Row((sign, name, brief(path.text, 60), chance(path.probability, path.logprob)), style)


def legend(tree: Tree) -> str:
    signs = [f"{GREEDY} always the likeliest token", f"{OTHER} another one"]
    if any(node.forced for _, node in walk(tree.root)):
        signs.append(f"{FORCED} forced")
    place = tree.greedy.at[:2]
    return (
        f"{' · '.join(signs)}\npath: the probability of all tokens up to there\n"
        f"to grow on from a node: --at {format_path(place)}, or tree.grown({list(place)}) in Python"
    )


def chosen(tree: Tree) -> set[tuple[int, ...]]:
    """What is drawn of a large tree: its likeliest nodes, the likeliest where it was grown last, and the paths to these."""
    found = set()
    for first in {(), tree.focus}:
        inside = heapq.nlargest(MOST, walk(tree.at(*first)), key=lambda one: (one[1].path_logprob, -len(one[0])))
        found |= {(*first, *at) for at, _ in inside}
    ends = (tree.greedy.at, tree.likeliest.at, tree.focus)
    return found | {at[:count] for at in ends for count in range(len(at) + 1)}


def drawn(tree: Tree, shown: Collection[tuple[int, ...]] | None) -> Iterator[Part]:
    """The tree; where it is tall, one part after the other."""
    left: deque[tuple[tuple[int, ...], Node]] = deque([((), tree.root)])
    while left:
        first, root = left.popleft()

        def branch(at: tuple[int, ...], node: Node, first: tuple[int, ...] = first) -> Branch:
            if len(at) - len(first) == LEVELS and node.children:
                left.append((at, node))
                return Branch(text(node), note(at, node, below=True), style(node), node.probability)
            there = [((*at, number), child) for number, child in enumerate(node.children)]
            kept = [one for one in there if shown is None or one[0] in shown]
            children = [branch(*one) for one in kept]
            if len(kept) < len(there):
                children.append(Branch("…", f"{len(there) - len(kept)} more (--all)", "dim"))
            if at == first:
                return Branch(_root(tree, at), "", "strong", None, tuple(children))
            return Branch(text(node), note(at, node), style(node), node.probability, tuple(children))

        if first:
            yield Words(f"\non from {format_path(first)}:", "dim")
        yield branch(first, root)


def _root(tree: Tree, at: tuple[int, ...]) -> str:
    """What the first line of a part says: the end of all that stands before."""
    if at:
        return brief(tree.path(at).text, 60)
    return brief(tree.prompt, 60) if tree.grower.start is None else f"{brief(tree.prompt, 50)} ▶ {visible(tree.root.text)}"


def text(node: Node) -> str:
    sign = FORCED if node.forced else GREEDY if node.greedy else OTHER
    return f"{sign} {visible(node.text)}"


def style(node: Node) -> Style:
    return "chosen" if node.greedy else "special" if node.forced else ""


def note(at: tuple[int, ...], node: Node, below: bool = False) -> str:
    """Its probability, that of its path, and where it stands; or that it goes on below, where that is told."""
    said = [chance(node.probability)]
    if len(at) > 1:
        said.append(f"path {chance(node.path_probability, node.path_logprob)}")
    if node.finish or below:
        said.append("ends" if node.finish else "goes on below")
    elif len(format_path(at)) <= LONGEST:
        said.append(f"at {format_path(at)}")
    return " · ".join(said)


def chance(probability: float, logprob: float | None = None) -> str:
    """A share, with more digits where it is small; a very small one by its power of ten, however small.

    >>> chance(0.25), chance(0.00012), chance(0.00000012), chance(0.0, -1000.0)
    ('25.0%', '0.012%', '1.2e-07', '5.1e-435')
    """
    if probability >= 0.01:
        return share(probability)
    if probability >= 1e-6:
        return f"{100 * probability:.2g}%"
    if probability > 1e-300 or logprob is None or not math.isfinite(logprob):
        return f"{probability:.1e}"
    power = math.floor(logprob / math.log(10))
    return f"{10 ** (logprob / math.log(10) - power):.1f}e{power}"
