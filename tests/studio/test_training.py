"""The studio's view of a training: what it shows are the metrics' numbers, also of those that come while it is open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

import glassformer
from glassformer.checkpoint.training_layout import METRICS
from glassformer.see.learning import Learning, learning
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.conftest import serving
from tests.studio.browser import OpenPage
from tests.studio.test_accessibility import axe, faults
from tests.training.folders import evaluation_line, sample_line, step_line, training_folder, write_lines

__all__ = ["axe"]
TEXT = "the cat sat"
LOSSES = (5.5, 4.25, 3.75, 3.5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [step_line(step, loss) for step, loss in enumerate(LOSSES, 1)]
    samples = [sample_line(2, "the <b>mat</b>"), evaluation_line(4, 3.625), sample_line(4, "sat\non the mat")]
    return training_folder(tmp_path / "book", [*lines, *samples], ("gpt2", "qwen3", "gpt2"), steps=6)


@pytest.fixture
def address(sources: tuple[ModelSource, ...], folder: Path) -> Iterator[str]:
    limits = Limits(seconds=60, stop_seconds=1)
    with serving(create_app(Registry(sources, limits), limits, training=folder)) as address:
        yield address


def seen(folder: Path, **choice: int) -> Learning:
    return learning(folder, lambda path: glassformer.load(path).read(TEXT, raw=True), **choice)


def test_curves_and_samples_grow_with_the_training(open_page: OpenPage, address: str, folder: Path) -> None:
    page = open_page().page
    page.goto(f"{address}/#view=training")
    expect(page.get_by_role("img", name="loss from 5.5 to 3.5; held-out loss from 3.625 to 3.625")).to_be_visible()
    expect(page.get_by_role("img", name="Learning rate: learning rate from 0.001 to 0.004")).to_be_visible()
    expect(page.get_by_text("step 4 of 6 · 400 tokens read · 200 tokens/s")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "4")
    written = page.get_by_role("region", name="What it writes")
    expect(written.get_by_role("listitem").first).to_have_text("after step 4sat\non the mat")
    write_lines(folder / METRICS, [step_line(5, 3.25), step_line(6, 3.0), evaluation_line(6, 3.125), sample_line(6, "new")])
    expect(page.get_by_role("img", name="loss from 5.5 to 3; held-out loss from 3.625 to 3.125")).to_be_visible()
    expect(written.get_by_role("listitem").first).to_have_text("after step 6new")
    expect(page.get_by_text("finished")).to_be_visible()
    written.get_by_text("what it wrote before").click()
    expect(written.get_by_text("the <b>mat</b>")).to_be_visible()  # text is only ever text


def test_the_chart_s_points_are_the_metrics(open_page: OpenPage, address: str) -> None:
    page = open_page().page
    page.goto(f"{address}/#view=training")
    chart = page.get_by_role("img", name="loss from 5.5")
    chart.focus()
    for step, loss in reversed([*enumerate(LOSSES, 1)]):
        page.keyboard.press("ArrowLeft")
        figure = page.get_by_role("figure").first
        expect(figure.get_by_role("status")).to_have_text(f"at step {step}")
        expect(figure.locator(".key").first).to_contain_text(f"{loss:g}")
    line = chart.locator("polyline").first.get_attribute("points") or ""
    heights = [float(point.split(",")[1]) for point in line.split()]
    spread = heights[-1] - heights[0]
    shares = [(height - heights[0]) / spread for height in heights]
    assert shares == pytest.approx([(5.5 - loss) / 2.0 for loss in LOSSES], abs=0.01)


def test_a_text_at_each_snapshot_with_a_slider(open_page: OpenPage, address: str, folder: Path) -> None:
    page = open_page().page
    page.goto(f"{address}/#view=training")
    page.get_by_role("textbox", name="text").fill(TEXT)
    page.get_by_role("button", name="Read it at each of 3 snapshots").click()
    view = seen(folder)
    tokens = page.get_by_role("group", name="The text's tokens, with the loss of each in nats").get_by_role("button")
    slider = page.get_by_role("slider", name="Snapshot")
    expect(slider).to_have_attribute("aria-valuetext", "after step 20")
    for number in (2, 1, 0):
        shot = view.snapshots[number]
        expect(slider).to_have_attribute("aria-valuetext", f"after step {shot.step}")
        for at, loss in enumerate(shot.losses[1:], 1):
            expect(tokens.nth(at)).to_contain_text(f"{loss:.2f}")
        slider.focus()
        page.keyboard.press("ArrowLeft")
    assert "step=0" in page.url
    grid = page.get_by_role("grid", name="What each layer would predict, by step")
    for row, guess in enumerate(view.snapshots[0].layers):
        label = grid.locator(f'[data-row="{row}"][data-column="0"]').get_attribute("aria-label") or ""
        assert "after step 0: " in label
        shown = float(label.rsplit(" ", 2)[1])
        assert shown == pytest.approx(100 * guess.probability, rel=0.1, abs=0.05)
    grid.locator('[data-row="1"][data-column="1"]').click()
    expect(slider).to_have_attribute("aria-valuetext", "after step 10")


def test_a_link_leads_to_a_token_a_head_and_a_step(open_page: OpenPage, address: str, folder: Path) -> None:
    page = open_page(dark=True).page
    page.goto(f"{address}/#view=training&text=the+cat+sat&position=4&layer=1&head=1&step=10")
    view = seen(folder, position=4, layer=1, head=1)
    shot = view.snapshots[1]
    expect(page.get_by_role("slider", name="Snapshot")).to_have_attribute("aria-valuetext", "after step 10")
    attended = page.get_by_role("list", name="Attention of the selected token").get_by_role("listitem")
    expect(attended).to_have_count(view.position + 1)
    widths = attended.locator(".bar").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    assert widths == pytest.approx([100 * weight for weight in shot.attention[4][:5]], abs=0.01)
    expected = page.get_by_role("list", name="Expected after the selected token").locator(".bar")
    widths = expected.evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    assert widths == pytest.approx([100 * candidate.probability for candidate in shot.candidates[4]], rel=0.001)
    page.get_by_role("combobox", name="layer").select_option("0")
    expect(page.get_by_text("layer=0, head=1)")).to_be_visible()
    tokens = page.get_by_role("group", name="The text's tokens").get_by_role("button")
    tokens.nth(4).focus()
    page.keyboard.press("ArrowLeft")
    expect(tokens.nth(3)).to_have_attribute("aria-pressed", "true")


def test_axe_finds_no_serious_fault(open_page: OpenPage, address: str, axe: str) -> None:
    for dark in (False, True):
        page = open_page(dark=dark)
        page.page.goto(f"{address}/#view=training&text=the+cat+sat")
        page.page.get_by_role("slider", name="Snapshot").wait_for()
        page.value(axe)
        assert faults(page, "color-contrast" if dark else None, "section.left") == []


def test_without_a_training_it_says_how_to_start_one(
    open_page: OpenPage, sources: tuple[ModelSource, ...], folder: Path
) -> None:
    limits = Limits(seconds=60, stop_seconds=1)
    page = open_page().page
    with serving(create_app(Registry(sources, limits), limits)) as address:
        page.goto(f"{address}/#view=training")
        expect(page.get_by_role("alert")).to_contain_text("this server follows no training")
        expect(page.get_by_text("glass studio --training speeches")).to_be_visible()
        page.goto("about:blank")
    (folder / METRICS).write_text("")
    with serving(create_app(Registry(sources, limits), limits, training=folder)) as address:
        page.goto(f"{address}/#view=training")
        expect(page.get_by_role("alert")).to_contain_text("book/metrics.jsonl: no step of a training stands in it")
        write_lines(folder / METRICS, [step_line(1, 5.0)])  # its first step
        expect(page.get_by_text("step 1 of 6")).to_be_visible()
