"""The studio in a notebook's cell, rendered by the module that anywidget would load."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from glassformer.errors import SettingError
from glassformer.runtime.run import Run
from glassformer.studio import widget
from glassformer.studio.saved_page import script
from glassformer.views.recording import Recording
from tests.conftest import unavailable
from tests.studio.browser import OpenPage, visible
from tests.studio.test_page import shares

NOTEBOOK = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>notebook</title>
<style>button { color: rgb(1, 2, 3) } h2 { display: none }</style></head>
<body data-jp-theme-light="false"><p>before</p><div class="cell"></div><div class="cell"></div><button>theirs</button>
<script type="module">
import widget from "./widget.js";
const traits = await (await fetch("./traits.json")).json();
const model = { get: (name) => traits[name] };
window.ends = [...document.querySelectorAll(".cell")].map((el) => widget.render({ model, el }));
</script></body></html>"""


@pytest.fixture
def without_anywidget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    widget._widget_class.cache_clear()


@pytest.mark.usefixtures("without_anywidget")
def test_without_anywidget_one_sentence_says_so(run: Run) -> None:
    with pytest.raises(SettingError, match=r"^widgets need anywidget. Install it: pip install 'glassformer\[notebooks\]'.$"):
        run.widget()


def test_the_widget_carries_the_recording(run: Run) -> None:
    try:
        import anywidget  # noqa: F401
    except ImportError:
        unavailable("anywidget")
    shown = run.widget(height=500)
    state = shown.get_state()
    assert state["recording"] == run.recording.to_dict()
    assert state["height"] == 500
    assert shown._esm == script()


def bars(cell: Locator) -> list[float]:
    widths: list[float] = (
        cell.get_by_role("region", name="Why this token")
        .locator("ol")
        .first.locator(".bar")
        .evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    )
    return widths


def test_two_widgets_share_a_notebook(open_page: OpenPage, recording: Recording) -> None:
    page = open_page()
    traits = json.dumps({"recording": recording.to_dict(), "height": 640})
    files: dict[str, Any] = {
        "": (NOTEBOOK, "text/html"), "widget.js": (script(), "text/javascript"), "traits.json": (traits, "application/json")
    }  # fmt: skip

    def answer(route: Any) -> None:
        body, kind = files[route.request.url.removeprefix("http://notebook.test/")]
        route.fulfill(body=body, content_type=kind)

    page.page.route("http://notebook.test/*", answer)
    page.page.goto("http://notebook.test/")
    first, second = page.page.locator(".cell").first, page.page.locator(".cell").last
    for cell, number in ((first, 1), (second, 4)):
        tokens = cell.get_by_role("group", name="The answer's tokens").get_by_role("button")
        assert tokens.all_text_contents() == [visible(step.token.text) for step in recording.steps]
        tokens.nth(number).click()
    for cell, number in ((first, 1), (second, 4)):
        expect(cell.locator(".token.mono")).to_have_text(visible(recording.steps[number].token.text))
        assert sum(bars(cell)) == pytest.approx(100, abs=0.1)
    before = bars(second)
    first.get_by_role("slider", name="temperature").fill("0.05")
    expected = shares(recording.to_dict()["steps"][1], 0.05, 40, 0.95)
    assert bars(first)[: len(expected)] == pytest.approx(expected, abs=0.1)
    assert bars(second) == before

    first.get_by_role("button", name="Find").click()
    expect(first.get_by_role("dialog")).to_be_visible()
    assert second.get_by_role("dialog").count() == 0
    page.page.keyboard.press("Escape")
    page.page.get_by_text("before").click()
    page.page.keyboard.press("Control+k")
    assert page.page.get_by_role("dialog").count() == 0, "keys outside are the notebook's"

    assert page.value("location.hash") == ""
    theirs = page.page.get_by_role("button", name="theirs")
    assert theirs.evaluate("button => getComputedStyle(button).color") == "rgb(1, 2, 3)"
    assert first.locator("h2").first.is_visible(), "the notebook's style stays outside"
    assert page.page.locator(".cell > div").first.get_attribute("data-theme") == "dark"
    assert page.page.locator("html[data-theme]").count() == 0
    assert second.get_by_role("button", name="Share").count() == 0

    page.value("window.ends.map((end) => end())")
    assert page.answer.count() == 0


def test_the_module_reaches_for_nothing_outside() -> None:
    sources = Path(__file__).parents[2] / "studio" / "src"
    pages_own = {"main.ts", "address.ts", "embedded.ts"}
    for path in [*sources.rglob("*.svelte"), *sources.rglob("*.ts")]:
        if path.name in pages_own or path.name.endswith(".d.ts"):
            continue
        text = path.read_text("utf-8")
        for name in ("location.", "history.", "svelte:window", "svelte:document", "svelte:body", "document.getElementById"):
            assert name not in text, f"{path.name} uses {name}: take it from the host, which may be a notebook's cell"
