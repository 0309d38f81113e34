"""A tree, drawn: each token with its probability, that of its whole path, and the numbers that lead to it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterator

from glassformer.observe.tree import Node, Path, Tree, told, walk
from glassformer.show.page import Branch, Column, Page, Part, Row, Style, Table, Words
from glassformer.show.words import brief, many, share, visible

MOST = 60  # nodes that are drawn of a large tree: the likeliest ones
LEVELS = 7  # that are drawn one inside the other; what is deeper goes on below
LONGEST = 14  # characters of a path's numbers that are told at a node
GREEDY, OTHER, FORCED = "●", "○", "◆"


def page(tree: Tree, everything: bool = False) -> Page:
    said = f'{many(tree.nodes, "node")} after "{brief(tree.prompt, 40)}"'
    shown = None if everything or tree.nodes <= MOST else chosen(tree)
    return Page(
        f"{tree.model}: {said}",
        (Words(said + "\n" + summary(tree, shown)), paths(tree), *drawn(tree, shown), Words(legend(tree), "dim")),
    )


def summary(tree: Tree, shown: Collection[tuple[int, ...]] | None) -> str:
    """What has grown, and how much of all it is."""
    ways = f"{many(tree.width, 'way')} on" + (f" at each of {tree.depth} levels" if tree.depth > 1 else "")
    more = f"; grown on at {told(tree.focus)}" if tree.focus else ""
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
        f"to grow on from a node: --at {told(place)}, or tree.grown({list(place)}) in Python"
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
            yield Words(f"\non from {told(first)}:", "dim")
        yield branch(first, root)


def _root(tree: Tree, at: tuple[int, ...]) -> str:
    """What the first line of a part says: the end of all that stands before."""
    if at:
        return brief(tree.path(at).text, 60)
    return brief(tree.prompt, 60) if tree.writer.start is None else f"{brief(tree.prompt, 50)} ▶ {visible(tree.root.text)}"


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
    elif len(told(at)) <= LONGEST:
        said.append(f"at {told(at)}")
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
