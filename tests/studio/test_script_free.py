"""Pages without script go on beside the studio, and show the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glassformer.runtime.run import Run
from tests.studio.browser import OpenPage


def test_a_page_without_script_shows_the_recordings_numbers(open_page: OpenPage, run: Run, tmp_path: Path) -> None:
    recording = run.recording
    page = open_page()
    page.page.goto(run.save(tmp_path / "run.html").as_uri())
    html = page.page.content()
    assert "<script" not in html
    shown = [float(number) for number in re.findall(r"([0-9.]+) bits", page.page.locator(".strip").first.inner_html())]
    assert shown == pytest.approx([step.surprisal for step in recording.steps], abs=0.006)
    for step in recording.steps:
        assert f"{step.entropy:.2f}" in html


def test_a_notebook_shows_a_recording_without_script(run: Run) -> None:
    html = run.recording._repr_html_()
    assert "<script" not in html
    assert [float(number) for number in re.findall(r"([0-9.]+) bits", html)] == pytest.approx(
        [step.surprisal for step in run.recording.steps], abs=0.06
    )
