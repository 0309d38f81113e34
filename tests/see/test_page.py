"""Any page, in the terminal at every width, and as HTML."""

from __future__ import annotations

import io
import math
import re
from html.parser import HTMLParser

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from glassformer.page.document import (
    Branch,
    Collapsible,
    Column,
    Diagram,
    DiagramEdge,
    DiagramNode,
    Grid,
    Heading,
    HoverMap,
    Line,
    LineChart,
    Page,
    Paragraph,
    Preformatted,
    Shortenable,
    Table,
    TableRow,
    ThumbnailGrid,
    TokenStrip,
    elide_middle,
)
from glassformer.page.html import html_document, html_fragment, png
from glassformer.page.terminal import TerminalPage, plain_text

NASTY = '<script>alert("x")</script>&'
PAGE = Page(
    "a page of " + NASTY,
    (
        Heading("a heading"),
        Paragraph("some words " + NASTY, "dim"),
        Preformatted(f"before {NASTY} <|end|> after", ("<|end|>",)),
        Table(
            (
                Column("token", "token", min_width=6),
                Column("score", "number"),
                Column("", "bar", priority=6),
                Column("note", priority=2),
                Column("Python", "code", priority=5),
            ),
            (
                TableRow(
                    (NASTY, "1.25", 0.5, "a long note that nobody needs", Shortenable('at["blocks.0.residual"]', "at")),
                    "chosen",
                ),
                TableRow(("你好", "-3.00", 0.0, "", "short"), "out"),
            ),
        ),
        Grid(("a", NASTY), ("x", "y"), ((1.0, None), (0.3, 0.0))),
        Grid(("layer 0",), ("␣the", "␣cat"), ((0.9, 0.1),), (("␣sat", "␣on"),)),
        Grid(("layer 0",), ("␣the", "␣cat"), ((1.2, -0.5),), (("120%", "-50%"),), texts_optional=True),
        ThumbnailGrid((NASTY,), ("x", "y"), np.zeros((1, 2, 3, 3), np.uint8)),
        LineChart(NASTY, (Line(NASTY, ((1.0, 5.0), (2.0, 3.0))), Line("held out", ((2.0, 4.0),), marked=True)), NASTY),
        LineChart("nothing yet", (Line("loss", ()),), "step", from_zero=True),
        TokenStrip(("the", NASTY), (0.1, 1.0), ("10%", "100%")),
        HoverMap(("the", NASTY), (NASTY, "cat"), ((1.0, None), (0.3, 0.7)), (("99%", ""), (NASTY, "1%"))),
        Branch("root", children=(Branch(NASTY, "50%", "chosen", 0.5, (Branch("leaf", "10%"),)), Branch("other", "20%"))),
        Diagram(
            NASTY,
            ("the", NASTY),
            ("", NASTY),
            (DiagramNode(NASTY, 1, 1, 1.0, NASTY), DiagramNode("mlp", 0, 0, -0.5, "-0.5")),
            (DiagramEdge(1, 0, -0.5, NASTY),),
        ),
        Diagram("nothing", (), (), (), ()),
        Collapsible("more", (Paragraph("inside"),)),
    ),
)


class Tags(HTMLParser):
    """Which tags there are, and the text between them."""

    VOID = ("meta", "img", "wbr")

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.stack: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> Tags:
    found = Tags()
    found.feed(html)
    found.close()
    assert not found.stack
    return found


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_a_page_fits_every_width(width: int) -> None:
    lines = plain_text(TerminalPage(PAGE), width).splitlines()
    assert max(map(cell_len, lines)) <= width


def test_no_line_ends_in_spaces() -> None:
    lines = plain_text(TerminalPage(PAGE), 80).splitlines()
    assert [line for line in lines if line != line.rstrip(" ")] == []


def test_a_page_at_80_columns() -> None:
    lines = plain_text(TerminalPage(PAGE), 80).splitlines()
    assert lines[0].startswith("a heading ───")
    table = lines.index("token                       score                        Python")
    assert lines[table + 1 : table + 4] == [
        '<script>alert("x")</scrip…   1.25  ██████████            at["blocks.0.residual"]',
        "你好                        -3.00                        short",
        "no room for: note",
    ]
    assert [line for line in lines if "─ " in line][-3:] == [f"├─ {NASTY}  50%", "│  └─ leaf  10%", "└─ other  20%"]


def test_a_grid_with_all_columns_is_drawn_in_bands() -> None:
    names, values = tuple(f"t{n}" for n in range(14)), (tuple(n / 14 for n in range(14)),)
    texts = (tuple(f"word{n}" for n in range(14)),)
    cut, whole = (
        plain_text(TerminalPage(Page("", (Grid(("0",), names, values, texts, all_columns=wanted),))), 80)
        for wanted in (False, True)
    )
    assert cut.splitlines()[0] == "7 of 14 columns: the last 7"
    assert len(whole.splitlines()) == 4
    assert all(word in whole for word in texts[0])


def test_a_narrow_grid_drops_its_optional_texts() -> None:
    """Where all columns have room they stand in the cells; where not, shades say it, and a sign which way."""
    names, values = tuple(f"token {n}" for n in range(12)), (tuple(1.2 - 0.2 * n for n in range(12)),)
    grid = Page(
        "", (Grid(("layer 0",), names, values, (tuple(f"{value:.0%}" for value in values[0]),), texts_optional=True),)
    )
    wide, narrow = (plain_text(TerminalPage(grid), width) for width in (120, 40))
    assert "█120%" in wide
    assert "▓-80%" in wide
    assert narrow.splitlines()[-1] == "layer 0 ████▓▓▒▒░░··  -·-░-▒-▓-█"
    html = html_fragment(grid)
    assert 'rgba(var(--positive), 1.000)" title="layer 0 · token 0 · 120.0%"' in html
    assert 'rgba(var(--negative), 1.000)" title="layer 0 · token 11 · -100.0%"' in html


def test_hover_map_holds_each_tokens_targets() -> None:
    """Each token of a text holds what it saw; what it could not see is dim, and a cell's note stands for its value."""
    seen = (("the", "cat"), ((1.0, None), (0.5, 1.0)), (("100%", ""), ("20%", "80%")))
    html = html_fragment(Page("", (HoverMap(("a", "b"), *seen), Grid(("a", "b"), *seen[:2], notes=seen[2]))))
    first, second = html.split('<span class="source" tabindex="0">')[1:]
    assert first.startswith('a<span class="targets">')
    assert '<span class="dim">cat</span>' in first
    assert 'rgba(var(--positive), 0.500)" title="20%">the</span>' in second
    assert 'rgba(var(--positive), 0.500)" title="b · the · 20%"' in html
    assert plain_text(TerminalPage(Page("", (HoverMap(("a", "b"), *seen),))), 80) == ""


def test_a_chart_has_a_scale_marks_and_a_summary() -> None:
    loss = Line("loss", tuple((float(step), 10.0 / step) for step in range(1, 11)))
    chart = Page("", (LineChart("losses", (loss, Line("held out", ((5.0, 4.0), (10.0, 2.0)), marked=True)), "step"),))
    lines = plain_text(TerminalPage(chart), 60).splitlines()
    assert lines[0] == "losses   ⣀⠤⠒ loss   ○ held out"
    assert lines[1].startswith("10 ┤⠱")  # the first loss is the highest
    assert "".join(lines[1:]).count("○") == 2
    assert lines[-1].split() == ["└1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "step"]
    html = html_fragment(chart)
    assert 'aria-label="losses: loss from 10 to 1; held out from 4 to 2"' in html
    assert '<polyline class="line line-0" points="64.0,10.0 144.0,121.1' in html  # x: a ninth of 720; y: 5 of 9 below
    assert "<title>held out 4 at 5</title>" in html
    assert html.count("<circle") == 2


def test_a_chart_of_one_number_has_room_around_it() -> None:
    lines = plain_text(TerminalPage(Page("", (LineChart("loss", (Line("loss", ((3.0, 7.0),)),), "step"),))), 60).splitlines()
    assert [line.split()[0] for line in lines if "┤" in line] == ["7.5", "7", "6.5"]
    assert len([line for line in lines[1:-1] if not line.endswith(("│", "┤"))]) == 1


def test_short_forms_are_taken_before_columns_are_dropped() -> None:
    lines = plain_text(TerminalPage(PAGE), 44).splitlines()
    assert any(line.startswith("token") and line.endswith("Python") for line in lines)
    assert any(line.endswith(" at") for line in lines)
    assert "no room for: note" in lines


def test_html_is_well_formed_and_escaped() -> None:
    for made in (html_fragment(PAGE), html_document(PAGE)):
        found = parsed(made)
        assert "script" not in found.tags
        assert found.text.count(NASTY) >= 6
        assert made.count("src=") == made.count('src="data:image/png;base64,') == 2
        assert "http:" not in made
        assert "https:" not in made
    assert "default-src 'none'" in html_document(PAGE)


def test_terminal_and_html_show_the_same_cells() -> None:
    terminal, html = plain_text(TerminalPage(PAGE), 200), parsed(html_document(PAGE)).text
    for part in PAGE.parts:
        if isinstance(part, Table):
            for row in part.rows:
                for cell in row.cells:
                    if not isinstance(cell, float):
                        text = cell.text if isinstance(cell, Shortenable) else cell
                        assert text in terminal
                        assert text in html


def test_elide_middle_leaves_out_the_middle_rows() -> None:
    rows = [TableRow((str(number), "x", "y")) for number in range(10)]
    assert [row.cells[0] for row in elide_middle(rows, 4)] == ["0", "1", "…", "8", "9"]
    assert elide_middle(rows, 4)[2].cells[1] == "6 more"
    assert elide_middle(rows, 10) == tuple(rows)


cells = st.text(st.characters(exclude_categories=["C"]), max_size=30)


@given(st.lists(st.tuples(cells, cells, st.floats(0, 1), cells), min_size=1, max_size=5), st.integers(24, 140))
def test_every_table_fits_its_width(rows: list[tuple[str, str, float, str]], width: int) -> None:
    columns = (
        Column("one", "token"),
        Column("two", "number", min_width=4),
        Column("", "bar", priority=5),
        Column("four", "code", priority=2),
    )
    page = Page("", (Table(columns, tuple(TableRow(row) for row in rows)),))
    assert max(map(cell_len, plain_text(TerminalPage(page), width).splitlines()), default=0) <= width
    parsed(html_document(page))


def test_png_can_be_read_back() -> None:
    """As another library reads it."""
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    found = matplotlib.image.imread(io.BytesIO(png(pixels)), format="png")
    assert np.array_equal(np.round(found * 255).astype(np.uint8), pixels)


def test_a_strip_shows_signs_by_more_than_a_color() -> None:
    page = Page("", (TokenStrip(("for", "not", "against"), (1.0, 0.0, -0.5), ("+2", "+0", "-1")),))
    drawn = plain_text(TerminalPage(page), 30).splitlines()
    assert [line.partition("│")[1:] for line in drawn] == [("│", "█" * 8), ("│", ""), ("│", "")]
    assert drawn[2].endswith(" ████│")
    tags = re.findall(r"<span([^>]*)>(\w+)</span>", html_fragment(page).split("</style>")[-1])
    assert [(text, 'class="less"' in tag) for tag, text in tags] == [("for", False), ("not", False), ("against", True)]
    assert "│" not in plain_text(TerminalPage(page), 12)  # no room for a bar


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_can_be_drawn(value: float) -> None:
    columns = (Column("bar", kind="bar"), Column("signed", kind="signed bar"))
    parts = (
        TokenStrip(("a",), (value,), ("x",)), Grid(("row",), ("column",), ((value,),)),
        Table(columns, (TableRow((abs(value), value)),)),
    )  # fmt: skip
    page = Page("numbers", parts)
    assert "a" in plain_text(TerminalPage(page), 80)
    assert "nan" not in html_fragment(page).replace("numbers", "").split("style=", 1)[1].split(">")[0]
