"""A saved run in a real browser: it opens by itself, asks for nothing, and can be used with the keyboard."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from glassformer.page.document import Collapsible, Column, Page, Paragraph, Table, TableRow
from glassformer.page.html import POLICY, html_document
from tests.conftest import unavailable
from tests.patience import patience
from tests.see.models import both

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("one_thread")]
NASTY = '<img src="x" onerror="document.title=1"> & <b>bold</b>'


def browse(*options: str, url: str, folder: Path) -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        unavailable("a browser (chromium)")
    done = subprocess.run(
        [str(found), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
         "--log-level=0", f"--user-data-dir={folder / 'profile'}", *options, url],
        capture_output=True, text=True, timeout=patience(120),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints
    return done.stdout


def measured(html: str, expression: str, folder: Path, *, width: int = 1280, printed: bool = False) -> Any:
    """What a script finds in a page, which must be let in for that; `printed`: in the style for paper."""
    script = f"<script>document.title = JSON.stringify({expression})</script>"
    opened = html.replace(POLICY, "").replace("</body>", f"{script}</body>")
    file = folder / "measured.html"
    file.write_text(opened.replace("@media print", "@media all") if printed else opened, "utf-8")
    dom = browse("--dump-dom", f"--window-size={width},900", url=file.as_uri(), folder=folder)
    title = re.search("<title>(.*?)</title>", dom, re.S)
    assert title is not None
    return json.loads(unescape(title[1]))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = both("gpt2").model.watch(NASTY, max_new_tokens=5, eos_token_id=None)
    return run.save(tmp_path_factory.mktemp("page") / "run.html")


def test_the_saved_page_escapes_text_and_fetches_nothing(page: Path, tmp_path: Path) -> None:
    """No tag is the text's own, nothing is fetched, and all parts are there."""
    seen = browse("--dump-dom", url=page.as_uri(), folder=tmp_path)
    assert all("data:image/png" in picture and "onerror" not in picture for picture in re.findall("<img[^>]*>", seen))
    assert "<script" not in seen
    assert "<b>bold</b>" not in seen
    assert re.findall(r'<\w+[^<>]*\s(?:src|href)="(?!#|data:image/png)', seen) == []
    for words in ("the trace", "why each token", "the lens", "the receipt"):
        assert words in seen


def test_a_link_to_a_token_expands_its_explanation(page: Path, tmp_path: Path) -> None:
    """A link is what the keyboard can reach and follow; the parts around its target open."""
    closed = browse("--dump-dom", url=page.as_uri(), folder=tmp_path)
    opened = browse("--dump-dom", url=f"{page.as_uri()}#token-3", folder=tmp_path)
    assert closed.count("<details open") < opened.count("<details open")
    inner = opened[opened.index('<a id="token-3">') - 400 : opened.index('<a id="token-3">')]
    assert "<details open" in inner


@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_renders_in_a_browser(page: Path, tmp_path: Path, width: int) -> None:
    shot = tmp_path / "shot.png"
    browse(f"--screenshot={shot}", f"--window-size={width},900", url=page.as_uri(), folder=tmp_path)
    data = shot.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24])[1] == 900
    assert len(data) > 10_000  # an empty page is far smaller


SCROLLERS = (
    "[...document.querySelectorAll('.wide')].map(e => [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight])"
)


@pytest.mark.parametrize("view", ["attention", "heads", "lens", "trace", "look"])
def test_forty_five_tokens_fit_a_window_of_1280_pixels(view: str, tmp_path: Path) -> None:
    """Nothing is hidden in a scroller, neither to the right nor below."""
    model = both("gpt2").model
    text = "the cat sat on the mat and the dog lay in bed."
    reading = model.read(text)
    assert len(reading) >= 45
    views = {
        "attention": reading.attention,
        "heads": reading.heads,
        "lens": lambda: reading.lens(range(len(reading))),
        "trace": reading.trace,
        "look": lambda: model.look(text),
    }
    html = html_document(views[view]().page(everything=True))
    hidden = measured(html, SCROLLERS, tmp_path)
    assert hidden
    assert max(max(both_ways) for both_ways in hidden) <= 1


def test_a_negative_bar_grows_to_the_left_in_another_hue(tmp_path: Path) -> None:
    columns = (Column("part"), Column("", "signed bar"))
    page = Page("bars", (Table(columns, (TableRow(("a", -0.5)), TableRow(("b", 0.5)))),))
    expression = """[...document.querySelectorAll('.axis')].map(axis => {
        const [outer, inner] = [axis, axis.firstChild].map(e => e.getBoundingClientRect())
        const hue = getComputedStyle(axis.firstChild).backgroundColor
        return [inner.left - outer.left, inner.right - outer.left, outer.width, hue]
    })"""
    (left, right, width, hue), (other_left, other_right, _, other_hue) = measured(html_document(page), expression, tmp_path)
    assert [left, right] == pytest.approx([width / 4, width / 2], abs=1)
    assert [other_left, other_right] == pytest.approx([width / 2, width * 3 / 4], abs=1)
    assert hue != other_hue


def test_paper_shows_what_is_collapsed_on_the_screen(tmp_path: Path) -> None:
    html = html_document(Page("a page", (Collapsible("more", (Paragraph("inside"),)),)))
    expression = "document.querySelector('details p').checkVisibility({contentVisibilityAuto: true})"
    assert [measured(html, expression, tmp_path, printed=printed) for printed in (False, True)] == [False, True]


def test_a_thumbnail_opens_in_the_whole_window(tmp_path: Path) -> None:
    html = html_document(both("gpt2").model.read("the cat").heads().page())
    expression = """[false, true].map(open => {
        document.querySelector('.thumbnail').open = open
        return document.querySelector('.thumbnail img').getBoundingClientRect().width
    })"""
    small, large = measured(html, expression, tmp_path)
    assert small < 60
    assert large > 600


@pytest.mark.parametrize("view", ["attention", "heads", "lens", "attribution", "tree"])
def test_a_saved_page_says_its_title_once(view: str) -> None:
    model = both("gpt2").model
    reading = model.read("the cat")
    views = {
        "attention": reading.attention,
        "heads": reading.heads,
        "lens": reading.lens,
        "attribution": reading.attribution,
        "tree": lambda: model.tree("the cat", width=2, depth=2),
    }
    page = views[view]().page()
    html = html_document(page)
    assert html.count("<h1>") == 1
    assert f"<h2>{page.title}</h2>" not in html
    assert page.parts[0] not in page.body
