"""The studio in a real browser: Playwright drives the machine's own chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.conftest import unavailable

OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
WAIT_MILLISECONDS = 30_000.0


@contextmanager
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        unavailable("a browser (chromium)")
    expect.set_options(timeout=WAIT_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        yield browser
        browser.close()


class StudioPage:
    """The studio's page in a window of its own, by the parts that a person sees."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []  # errors and warnings of its console
        page.set_default_timeout(WAIT_MILLISECONDS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note)
        self.answer = page.get_by_role("group", name="The answer's tokens").get_by_role("button")
        self.why = page.get_by_role("region", name="Why this token")
        self.notice = page.get_by_role("status").first
        self.alert = page.get_by_role("alert")

    def _note(self, message: ConsoleMessage) -> None:
        refused = "Failed to load resource" in message.text and re.search(r"/(glass|v1)/", message.location["url"])
        if message.type in ("error", "warning") and not refused:  # which the browser reports itself, and the page explains
            self.complaints.append(message.text)

    def show(self, address: str, fragment: str = "") -> None:
        """Open the studio at a place, and wait until a run is seen."""
        self.page.goto("about:blank")  # so that another fragment of the same page loads it again
        self.page.goto(f"{address}/#{fragment}")
        self.answer.first.wait_for()

    def show_file(self, path: Path, fragment: str = "") -> None:
        """Open a page from the disk, without a network."""
        self.page.context.set_offline(True)
        self.page.goto("about:blank")
        self.page.goto(f"{path.absolute().as_uri()}#{fragment}")
        self.why.locator(".token").wait_for()

    def drop(self, path: Path) -> None:
        """Drop a file on the page."""
        self.page.evaluate(
            "([name, text]) => { const dataTransfer = new DataTransfer(); dataTransfer.items.add(new File([text], name));"
            " document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true })); }",
            [path.name, path.read_text("utf-8")],
        )

    @property
    def selected(self) -> int:
        """The number of the answer's token that is selected."""
        pressed: list[str | None] = [token.get_attribute("aria-pressed") for token in self.answer.all()]
        return pressed.index("true")

    def bars(self) -> dict[str, float]:
        """The width of each candidate's bar, in percent."""
        shown: dict[str, float] = (
            self.why.locator("ol")
            .first.locator(".row")
            .evaluate_all(
                "rows => Object.fromEntries(rows.map(row =>"
                " [row.querySelector('.text').textContent, parseFloat(row.querySelector('.bar').style.width)]))"
            )
        )
        return shown

    def ask(self, text: str) -> None:
        self.page.get_by_role("textbox", name="A message to the model").fill(text)
        self.page.keyboard.press("Enter")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives in the page."""
        return self.page.evaluate(expression)

    def wait(self, expression: str) -> None:
        """Until a JavaScript expression is true."""
        self.page.wait_for_function(expression)


OpenPage = Callable[..., StudioPage]


@contextmanager
def pages(browser: Browser) -> Iterator[OpenPage]:
    """Opens windows of any size, light or dark; at the end, no page may have complained on its console."""
    contexts: list[BrowserContext] = []
    opened: list[StudioPage] = []

    def open_page(width: int = 1440, height: int = 900, *, dark: bool = False, still: bool = True) -> StudioPage:
        """`still`: a reader who asked for reduced motion."""
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if still else "no-preference", has_touch=width < 600, accept_downloads=True,
        )  # fmt: skip
        contexts.append(context)
        opened.append(StudioPage(context.new_page()))
        return opened[-1]

    try:
        yield open_page
        assert [complaint for page in opened for complaint in page.complaints] == []
    finally:
        for context in contexts:
            context.close()


def visible(text: str) -> str:
    """A token's text as the page writes it."""
    return text.replace(" ", "·").replace("\n", "⏎")
