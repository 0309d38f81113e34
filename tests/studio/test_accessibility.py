"""What axe-core finds on each view, and that the page asks for no motion, colour or mouse to be understood."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.conftest import unavailable
from tests.patience import patience
from tests.studio.browser import OpenPage, StudioPage
from tests.studio.test_experiments import ALL_KINDS, answer_with, run, show
from tests.sweeps import swept

PROJECT = Path(__file__).parents[2] / "studio"
AXE = "axe-core@4.12.1"  # as in package.json
THEMES = [False, *swept([True])]  # every run holds both themes' colours against each other, in test_static.py


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's script: from the studio's packages if they are installed, else fetched alone."""
    installed = PROJECT / "node_modules" / "axe-core" / "axe.min.js"
    if installed.exists():
        return installed.read_text("utf-8")
    npm = shutil.which("npm")
    if npm is None:
        unavailable("npm, which fetches axe-core")
    folder = tmp_path_factory.mktemp("axe")
    words = [str(npm), "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefer-offline", AXE]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=patience(300))
    if done.returncode:
        unavailable(f"axe-core could not be fetched: {done.stderr[-500:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


def faults(page: StudioPage, rule: str | None = None, part: str = "body") -> list[str]:
    """The serious and critical ones of a part of the page, each with what it is about; of one rule or of all."""
    options = json.dumps({"resultTypes": ["violations"], **({} if rule is None else {"runOnly": [rule]})})
    violations: list[dict[str, Any]] = page.value(f"axe.run('{part}', {options}).then(r => r.violations)")
    return [
        f"{violation['id']}: {node['html'][:200]}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("dark", THEMES, ids=lambda dark: "dark" if dark else "light")
def test_axe_finds_no_serious_fault_on_any_view(open_page: OpenPage, address: str, axe: str, dark: bool) -> None:
    rule = "color-contrast" if dark else None  # the only one that a theme can break
    page = open_page(dark=dark)
    page.show(address)
    page.value(axe)
    bar = page.page.get_by_role("navigation", name="Views").get_by_role("button")
    for number in range(bar.count()):
        bar.nth(number).click()
        expect(bar.nth(number)).to_have_attribute("aria-pressed", "true")
        part = "body" if number == 0 else "section.left"  # the rest stays as it is
        if number:
            page.page.locator(".view > *").first.wait_for()  # its file is loaded
        expect(page.page.get_by_role("status").filter(has_text="reading…")).to_have_count(0)
        assert faults(page, rule, part) == [], bar.nth(number).text_content()
    for key in ("Control+k", "?"):
        page.page.keyboard.press(key)
        page.page.get_by_role("dialog").wait_for()
        assert faults(page, rule, "dialog[open]") == [], key
        page.page.keyboard.press("Escape")


@pytest.mark.parametrize("dark", THEMES, ids=lambda dark: "dark" if dark else "light")
def test_axe_finds_no_serious_fault_on_any_part_of_a_page(open_page: OpenPage, address: str, axe: str, dark: bool) -> None:
    page = open_page(dark=dark)
    region = show(page, address, "trace", {"prompt": "a cat"})
    answer_with(page, "trace", ALL_KINDS)
    run(region)
    page.value(axe)
    assert faults(page, part="section.left") == []


def test_axe_finds_no_serious_fault_on_a_phone(open_page: OpenPage, address: str, axe: str) -> None:
    page = open_page(390, 844)
    page.show(address)
    page.why.locator(".handle").click()
    page.value(axe)
    assert faults(page) == []


def test_nothing_moves_for_a_reader_who_asked_for_that(open_page: OpenPage, address: str) -> None:
    page = open_page(still=True)
    page.show(address)
    assert page.answer.last.is_visible(), "the opening is not written once more"
    page.answer.nth(4).click()
    page.page.keyboard.press("Control+k")
    assert page.value("document.getAnimations().length") == 0
