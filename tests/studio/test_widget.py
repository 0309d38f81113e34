"""The studio in a notebook's cell, rendered by the module that anywidget would load."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

import glassformer
from glassformer import studio
from glassformer.ground.errors import MissingExtra
from glassformer.runtime.run import Run
from glassformer.see.recording import Recording
from glassformer.studio import script
from tests.conftest import unavailable
from tests.patience import patience
from tests.studio.browser import OpenPage, StudioPage, visible
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
    studio._widget_class.cache_clear()


@pytest.mark.usefixtures("without_anywidget")
def test_without_anywidget_one_sentence_says_so(run: Run) -> None:
    with pytest.raises(MissingExtra, match=r"^a widget needs anywidget: pip install 'glassformer\[notebooks\]'.$"):
        run.widget()


def test_the_widget_carries_the_recording(run: Run) -> None:
    try:
        import anywidget  # noqa: F401
    except ImportError:
        unavailable("anywidget")
    shown = run.widget(height=500)
    state = shown.get_state()
    assert state["recording"] == run.recording.to_dict()
    assert state["slices"].keys() == {"attention-maps/self", "experiments", "lens"}
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


def show_notebook(page: StudioPage, traits: dict[str, Any], module: str) -> None:
    """A page with two cells, in which a widget's module renders its traits as anywidget lets it."""
    files = {
        "": (NOTEBOOK, "text/html"), "widget.js": (module, "text/javascript"),
        "traits.json": (json.dumps(traits), "application/json"),
    }  # fmt: skip

    def answer(route: Any) -> None:
        body, kind = files[route.request.url.removeprefix("http://notebook.test/")]
        route.fulfill(body=body, content_type=kind)

    page.page.route("http://notebook.test/*", answer)
    page.page.goto("http://notebook.test/")


def test_two_widgets_share_a_notebook(open_page: OpenPage, recording: Recording) -> None:
    page = open_page()
    show_notebook(page, {"recording": recording.to_dict(), "slices": {}, "height": 640}, script())
    first, second = page.page.locator(".cell").first, page.page.locator(".cell").last
    for cell, number in ((first, 1), (second, 4)):
        tokens = cell.get_by_role("group", name="The answer's tokens").get_by_role("button")
        expect(tokens).to_have_text([visible(step.token.text) for step in recording.steps])
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


@pytest.fixture(scope="module")
def executed(tiny_qwen3: Path) -> dict[str, Any]:
    """The state of a widget that a notebook's cell has made in a kernel of its own."""
    try:
        import anywidget  # noqa: F401
        import ipykernel  # noqa: F401
        import nbclient
        import nbformat
    except ImportError as error:
        unavailable(f"a notebook's kernel ({error.name})")
    cell = f"""
        import glassformer
        run = glassformer.load({str(tiny_qwen3)!r}).watch("how are you?", look=64, max_new_tokens=3, do_sample=False)
        run.widget()
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell))])
    nbclient.NotebookClient(notebook, timeout=round(patience(300)), kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    shown = output["data"]["application/vnd.jupyter.widget-view+json"]["model_id"]
    state: dict[str, Any] = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"][shown][
        "state"
    ]
    return state


def test_a_kernel_makes_the_widget_that_a_notebook_shows(
    open_page: OpenPage, executed: dict[str, Any], tiny_qwen3: Path
) -> None:
    run = glassformer.load(tiny_qwen3).watch("how are you?", look=64, max_new_tokens=3, do_sample=False)
    page = open_page()
    show_notebook(page, {name: executed[name] for name in ("recording", "slices", "height")}, executed["_esm"])
    cell = page.page.locator(".cell").first
    tokens = cell.get_by_role("group", name="The answer's tokens").get_by_role("button")
    expect(tokens).to_have_text([visible(step.token.text) for step in run.recording.steps])
    cell.get_by_role("button", name="Attention").click()
    expect(cell.get_by_role("group", name="Tokens that attend").get_by_role("button")).to_have_count(
        len(run.prompt_ids) + len(run.ids)
    )


def test_the_module_reaches_for_nothing_outside() -> None:
    sources = Path(__file__).parents[2] / "studio" / "src"
    pages_own = {"main.ts", "address.ts", "embedded.ts"}
    for path in [*sources.rglob("*.svelte"), *sources.rglob("*.ts")]:
        if path.name in pages_own or path.name.endswith(".d.ts"):
            continue
        text = path.read_text("utf-8")
        for name in ("location.", "history.", "svelte:window", "svelte:document", "svelte:body", "document.getElementById"):
            assert name not in text, f"{path.name} uses {name}: take it from the host, which may be a notebook's cell"
