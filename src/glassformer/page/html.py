"""Pages for a browser or a notebook: self-contained HTML.

Every text is escaped, whatever tokens it consists of; there is no script, and a file's content policy forbids any. What can
be expanded, scrolled, followed or hovered over is within the keyboard's reach too.
"""

from __future__ import annotations

import re
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import singledispatch
from html import escape
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glassformer.page.chart import svg_chart
from glassformer.page.diagram import svg_diagram
from glassformer.page.document import (
    Branch,
    Cell,
    Collapsible,
    ColumnKind,
    Diagram,
    Grid,
    Heading,
    HoverMap,
    LineChart,
    Page,
    PagePart,
    Paragraph,
    Preformatted,
    Shortenable,
    Table,
    TableRow,
    ThumbnailGrid,
    TokenStrip,
    escape_page,
)
from glassformer.page.format import drawable
from glassformer.page.palette import page_css


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A picture of (height, width) greys, 0 black."""
    height, width = pixels.shape
    lines = np.zeros((height, width + 1), np.uint8)  # each line begins with the number of its filter: none
    lines[:, 1:] = pixels
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


STYLE = page_css() + Path(__file__).with_name("style.css").read_text("utf-8")
FILE_STYLE = "body { margin: 0 }\n.glass { margin: 0 auto; padding: 1rem; min-height: 100vh }\n"  # the whole window
BAND_COLUMNS = 12  # of a grid with texts
LINE_BREAK = "<wbr>"  # a line may end after each token, whose spaces are visible characters
MIN_SHADE = 0.05  # below, a shade behind a text cannot be seen
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def html_fragment(page: Page) -> str:
    """A page for a notebook's cell."""
    return f'<div class="glass"><style>{STYLE}</style>{html_parts(escape_page(page).parts)}</div>'


def html_document(page: Page) -> str:
    """A page as a complete HTML file."""
    page = escape_page(page)
    title = escape(page.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{STYLE}{FILE_STYLE}</style>\n</head>\n<body>\n"
        f'<main class="glass">\n<h1>{title}</h1>\n{html_parts(page.body)}\n</main>\n</body>\n</html>\n'
    )


def html_parts(parts: Sequence[PagePart]) -> str:
    return "\n".join(map(render, parts))


@singledispatch
def render(part: object) -> str:
    """A part as HTML."""
    raise NotImplementedError(type(part).__name__)


@render.register
def _(part: Heading) -> str:
    return f"<h2>{escape(part.text)}</h2>"


@render.register
def _(part: Paragraph) -> str:
    return f"<p{_class(part.style)}>{escape(part.text)}</p>"


@render.register
def _(part: Preformatted) -> str:
    if not part.highlights:
        return f"<pre>{escape(part.text)}</pre>"
    pieces = re.split(
        f"({'|'.join(re.escape(piece) for piece in sorted(set(part.highlights), key=len, reverse=True))})", part.text
    )
    html = (f"<mark>{escape(piece)}</mark>" if index % 2 else escape(piece) for index, piece in enumerate(pieces))
    return f"<pre>{''.join(html)}</pre>"


@render.register
def _(part: Collapsible) -> str:
    inside = html_parts(part.parts)
    state = " open" if part.expanded else ""
    anchor = f'<a id="{escape(part.anchor)}"></a>' if part.anchor else ""  # inside, so that going there expands it
    return f'<details{state}><summary class="title">{escape(part.title)}</summary>{anchor}\n{inside}\n</details>'


@render.register
def _(part: Table) -> str:
    heads = "".join(f"<th{_class(column.kind)}>{escape(column.name)}</th>" for column in part.columns)
    kinds = [column.kind for column in part.columns]
    rows = "\n".join(f"<tr{_class(row.style)}>{_cells(row, kinds)}</tr>" for row in part.rows)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'


def _cells(row: TableRow, kinds: Sequence[ColumnKind]) -> str:
    return "".join(
        f"<td{_cell_class(cell, kind)}>{_cell(cell, kind)}</td>" for kind, cell in zip(kinds, row.cells, strict=True)
    )


def _cell_class(cell: Cell, kind: ColumnKind) -> str:
    """What could be shortened elsewhere is wrapped here."""
    return _class(f"{kind} wrap" if isinstance(cell, Shortenable) else kind)


def _cell(cell: Cell, kind: ColumnKind) -> str:
    if isinstance(cell, float) and kind == "signed bar":
        sign, side = ("less", "right") if cell < 0 else ("more", "left")
        width = abs(drawable(cell)) * 50
        return f'<span class="axis"><span class="fill {sign}" style="{side}:50%;width:{width:.2f}%"></span></span>'
    if isinstance(cell, float):
        return f'<span class="fill" style="width:{drawable(cell) * 10:.2f}rem"></span>'
    return escape(cell.text if isinstance(cell, Shortenable) else cell)


def _class(name: str) -> str:
    return f' class="{name}"' if name and name != "text" else ""


@render.register
def _(part: Grid) -> str:
    """Texts make cells wide, so that many columns stand in several bands; shades alone become as narrow as they must."""
    columns = range(len(part.column_labels))
    bands = [columns[start : start + BAND_COLUMNS] for start in columns[::BAND_COLUMNS]] if part.texts else [columns]
    return "\n".join(_grid_band(part, band) for band in bands)


def _grid_band(part: Grid, columns: range) -> str:
    """Some columns of a grid, as a table."""
    heads = "".join(f"<th>{escape(part.column_labels[column])}</th>" for column in columns)
    rows = []
    for index, name in enumerate(part.row_labels):
        blank = ("",) * len(part.column_labels)
        texts, notes = (cells[index] if cells else blank for cells in (part.texts, part.notes))
        cells = (
            _shaded_cell(part.values[index][column], f"{name} · {part.column_labels[column]}", texts[column], notes[column])
            for column in columns
        )
        rows.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    kind = "grid texts" if part.texts else "grid shades"
    table = f"<thead><tr><th></th>{heads}</tr></thead><tbody>\n{chr(10).join(rows)}\n</tbody>"
    return f'<div class="wide" tabindex="0"><table class="{kind}" style="--columns:{len(columns)}">{table}</table></div>'


def _shaded_cell(value: float | None, where: str, text: str, note: str) -> str:
    if value is None:
        return "<td></td>"
    return f'<td style="{_shade(value)}" title="{escape(where)} · {escape(note) or f"{value:.1%}"}">{escape(text)}</td>'


@render.register
def _(part: ThumbnailGrid) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in part.column_labels)
    rows = []
    for name, row in zip(part.row_labels, part.maps, strict=True):
        cells = (_image_cell(pixels, f"{name}, {column}") for pixels, column in zip(row, part.column_labels, strict=True))
        rows.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    table = f"<thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    kind = "grid thumbnails" if part.maps.shape[:2] != (1, 1) else "grid thumbnails one"
    columns = len(part.column_labels)
    return f'<div class="wide" tabindex="0"><table class="{kind}" style="--columns:{columns}">{table}</table></div>'


def _image_cell(pixels: npt.NDArray[np.uint8], where: str) -> str:
    """An image that opens in the whole window, and closes again."""
    data = b64encode(png(255 - pixels)).decode("ascii")
    image = f'<img alt="{escape(where)}" title="{escape(where)}" src="data:image/png;base64,{data}">'
    return f'<td><details class="thumbnail"><summary>{image}</summary><p>{escape(where)}</p></details></td>'


@render.register
def _(part: LineChart) -> str:
    return svg_chart(part)


@render.register
def _(part: Diagram) -> str:
    return svg_diagram(part)


@render.register
def _(part: TokenStrip) -> str:
    links = part.links or ("",) * len(part.tokens)
    tokens = (_shaded_token(*cells) for cells in zip(part.tokens, part.values, part.notes, links, strict=True))
    return f'<p class="strip">{LINE_BREAK.join(tokens)}</p>'


def _shaded_token(token: str, value: float, note: str, link: str) -> str:
    tag, where = ("a", f' href="#{escape(link)}"') if link else ("span", "")
    sign = _class("less") if value < 0 else ""
    return f'<{tag}{where}{sign} style="{_shade(value)}" title="{escape(note)}">{escape(token)}</{tag}>'


def _shade(value: float) -> str:
    """The style of what is shaded by a value from -1 to 1; text can be read on any of them."""
    return f"background: rgba(var(--{'positive' if value >= 0 else 'negative'}), {abs(drawable(value)):.3f})"


@render.register
def _(part: HoverMap) -> str:
    """Each token holds its targets, which the style shows below the text while the token is hovered over."""
    tokens = []
    for token, values, notes in zip(part.tokens, part.values, part.notes, strict=True):
        targets = LINE_BREAK.join(_shaded_targets(part.targets, values, notes))
        tokens.append(f'<span class="source" tabindex="0">{escape(token)}<span class="targets">{targets}</span></span>')
    room = LINE_BREAK.join(f"<span>{escape(token)}</span>" for token in part.targets)
    hint = '<p class="dim screen">point at a token of the upper text: the lower one shows what it attended to</p>'
    upper = f"<p>{LINE_BREAK.join(tokens)}</p>"
    return f'{hint}<div class="hover-map strip screen">{upper}<p class="room" aria-hidden="true">{room}</p></div>'


def _shaded_targets(tokens: Sequence[str], values: Sequence[float | None], notes: Sequence[str]) -> Iterator[str]:
    """Shaded targets one by one, runs of masked or faint ones as one piece."""
    targets = zip(tokens, values, notes, strict=True)
    for kind, group in groupby(targets, lambda target: _target_kind(target[1])):
        if kind == "shaded":
            yield from (_shaded_token(token, value or 0, note, "") for token, value, note in group)
        else:
            yield f"<span{_class(kind)}>{LINE_BREAK.join(escape(token) for token, *_ in group)}</span>"


def _target_kind(value: float | None) -> str:
    return "dim" if value is None else "" if value < MIN_SHADE else "shaded"


@render.register
def _(part: Branch) -> str:
    return f"<ul>{_node(part)}</ul>"


def _node(branch: Branch) -> str:
    bar = "" if branch.value is None else f'<span class="fill" style="width:{branch.value * 6:.2f}rem"></span> '
    note = f' <span class="dim">{escape(branch.note)}</span>' if branch.note else ""
    label = f"{bar}<span{_class(branch.style)}>{escape(branch.text)}</span>{note}"
    if not branch.children:
        return f"<li>{label}</li>"
    children = "".join(map(_node, branch.children))
    return f"<li><details open><summary>{label}</summary><ul>{children}</ul></details></li>"
