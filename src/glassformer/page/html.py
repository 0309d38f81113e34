"""Pages for a browser or a notebook: one piece of HTML that needs nothing from anywhere.

Every text is escaped, whatever tokens it is made of; there is no script, and a file tells the browser to run none. What can
be opened, scrolled, followed or pointed at is reached with the keyboard too.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import singledispatch
from html import escape
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glassformer.page.document import (
    Branch,
    Cell,
    Fold,
    Gaze,
    Grid,
    Heading,
    Long,
    Mosaic,
    Page,
    Passage,
    Row,
    Strip,
    Table,
    Words,
)
from glassformer.page.png import png

STYLE = Path(__file__).with_name("style.css").read_text("utf-8")
WHOLE = (
    "body { margin: 0 }\n.glass { margin: 0 auto; padding: 1rem; min-height: 100vh }\n"  # a file has the window to itself
)
BREAK = "<wbr>"  # a line may end after each token, for none has a space as such
FAINT = 0.05  # a shade that nobody would see behind a text
READABLE = 0.55  # how strong a shade may be behind a text
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def fragment(page: Page) -> str:
    """For a notebook's cell."""
    return f'<div class="glass"><style>{STYLE}</style>{body(page)}</div>'


def document(page: Page) -> str:
    """A file of its own."""
    title = escape(page.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{STYLE}{WHOLE}</style>\n</head>\n<body>\n"
        f'<main class="glass">\n<h1>{title}</h1>\n{body(page)}\n</main>\n</body>\n</html>\n'
    )


def body(page: Page) -> str:
    return "\n".join(draw(part) for part in page.parts)


@singledispatch
def draw(part: object) -> str:
    """A part as HTML."""
    raise NotImplementedError(type(part).__name__)


@draw.register
def _(part: Heading) -> str:
    return f"<h2>{escape(part.text)}</h2>"


@draw.register
def _(part: Words) -> str:
    return f"<p{_class(part.style)}>{escape(part.text)}</p>"


@draw.register
def _(part: Passage) -> str:
    if not part.marked:
        return f"<pre>{escape(part.text)}</pre>"
    pieces = re.split(
        f"({'|'.join(re.escape(piece) for piece in sorted(set(part.marked), key=len, reverse=True))})", part.text
    )
    shown = (f"<mark>{escape(piece)}</mark>" if number % 2 else escape(piece) for number, piece in enumerate(pieces))
    return f"<pre>{''.join(shown)}</pre>"


@draw.register
def _(part: Fold) -> str:
    inside = "\n".join(draw(inner) for inner in part.parts)
    opened = " open" if part.open else ""
    anchor = f'<a id="{escape(part.name)}"></a>' if part.name else ""  # inside, so that going there opens it
    return f'<details{opened}><summary class="title">{escape(part.title)}</summary>{anchor}\n{inside}\n</details>'


@draw.register
def _(part: Table) -> str:
    heads = "".join(f"<th{_class(column.kind)}>{escape(column.name)}</th>" for column in part.columns)
    kinds = [_class(column.kind) for column in part.columns]
    rows = "\n".join(f"<tr{_class(row.style)}>{_cells(row, kinds)}</tr>" for row in part.rows)
    return (
        f'<div class="wide tall" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'
    )


def _cells(row: Row, kinds: Sequence[str]) -> str:
    return "".join(f"<td{kind}>{_cell(cell)}</td>" for kind, cell in zip(kinds, row.cells, strict=True))


def _cell(cell: Cell) -> str:
    if isinstance(cell, float):
        return f'<span class="fill" style="width:{cell * 10:.2f}rem"></span>'
    return escape(cell.text if isinstance(cell, Long) else cell)


def _class(name: str) -> str:
    return f' class="{name}"' if name and name != "text" else ""


@draw.register
def _(part: Grid) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in part.across)
    rows = []
    for number, name in enumerate(part.down):
        none = ("",) * len(part.across)
        texts, notes = (cells[number] if cells else none for cells in (part.texts, part.notes))
        cells = (
            _shade(value, f"{name} · {at}", text, note)
            for value, at, text, note in zip(part.values[number], part.across, texts, notes, strict=True)
        )
        rows.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    kind = "grid texts" if part.texts else "grid"
    table = f"<thead><tr><th></th>{heads}</tr></thead><tbody>\n{chr(10).join(rows)}\n</tbody>"
    return f'<div class="wide" tabindex="0"><table class="{kind}">{table}</table></div>'


def _shade(value: float | None, where: str, text: str, note: str) -> str:
    if value is None:
        return "<td></td>"
    strength = min(1.0, abs(value)) * (READABLE if text else 1)
    shade = f"background: rgba(var(--{'tint' if value >= 0 else 'less'}), {strength:.3f})"
    return f'<td style="{shade}" title="{escape(where)} · {escape(note) or f"{value:.1%}"}">{escape(text)}</td>'


@draw.register
def _(part: Mosaic) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in part.across)
    rows = []
    for name, row in zip(part.down, part.maps, strict=True):
        cells = (_map(one, f"{name}, {across}") for one, across in zip(row, part.across, strict=True))
        rows.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    table = f"<thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    kind = "grid mosaic" if part.maps.shape[:2] != (1, 1) else "grid mosaic one"
    return f'<div class="wide" tabindex="0"><table class="{kind}">{table}</table></div>'


def _map(pixels: npt.NDArray[np.uint8], where: str) -> str:
    data = b64encode(png(255 - pixels)).decode("ascii")
    return f'<td><img alt="{escape(where)}" title="{escape(where)}" src="data:image/png;base64,{data}"></td>'


@draw.register
def _(part: Strip) -> str:
    links = part.links or ("",) * len(part.tokens)
    tokens = (_linked(*each) for each in zip(part.tokens, part.values, part.notes, links, strict=True))
    return f'<p class="strip">{BREAK.join(tokens)}</p>'


def _linked(token: str, value: float, note: str, link: str) -> str:
    tag, where = ("a", f' href="#{escape(link)}"') if link else ("span", "")
    return f'<{tag}{where} style="background: rgba(var(--tint), {value:.3f})" title="{escape(note)}">{escape(token)}</{tag}>'


@draw.register
def _(part: Gaze) -> str:
    """Each token holds what it saw, which the style shows below the text while somebody points at the token."""
    tokens = []
    for token, values, notes in zip(part.tokens, part.values, part.notes, strict=True):
        seen = BREAK.join(_glances(part.seen, values, notes))
        tokens.append(f'<span class="who" tabindex="0">{escape(token)}<span class="seen">{seen}</span></span>')
    room = BREAK.join(f"<span>{escape(token)}</span>" for token in part.seen)
    said = '<p class="dim">point at a token of the upper text: the lower one shows what it looked at</p>'
    return f'{said}<div class="gaze strip"><p>{BREAK.join(tokens)}</p><p class="room" aria-hidden="true">{room}</p></div>'


def _glances(tokens: Sequence[str], values: Sequence[float | None], notes: Sequence[str]) -> Iterator[str]:
    """What was looked at, token by token; what was not, as one piece."""
    together = zip(tokens, values, notes, strict=True)
    for kind, group in groupby(together, lambda each: "dim" if each[1] is None else "" if each[1] < FAINT else "seen"):
        if kind == "seen":
            yield from (_linked(token, READABLE * (value or 0), note, "") for token, value, note in group)
        else:
            yield f"<span{_class(kind)}>{BREAK.join(escape(token) for token, *_ in group)}</span>"


@draw.register
def _(part: Branch) -> str:
    return f"<ul>{_node(part)}</ul>"


def _node(branch: Branch) -> str:
    bar = "" if branch.value is None else f'<span class="fill" style="width:{branch.value * 6:.2f}rem"></span> '
    note = f' <span class="dim">{escape(branch.note)}</span>' if branch.note else ""
    said = f"{bar}<span{_class(branch.style)}>{escape(branch.text)}</span>{note}"
    if not branch.children:
        return f"<li>{said}</li>"
    children = "".join(map(_node, branch.children))
    return f"<li><details open><summary>{said}</summary><ul>{children}</ul></details></li>"
