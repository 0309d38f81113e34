"""The studio in a real browser: Playwright drives the machine's own chromium."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

from tests.conftest import unavailable
from tests.patience import patience

OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
WAIT_MILLISECONDS = 1000 * patience(60)


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
        self.notice = page.locator("div[role=status]").first
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

    def sample(self) -> None:
        """Have the next text sampled, which by itself is written as the model's own settings say."""
        self.page.get_by_role("slider", name="temperature").fill("0.9")

    def ask(self, text: str) -> None:
        self.page.get_by_role("textbox", name="A message to the model").fill(text)
        self.page.keyboard.press("Enter")

    def wait_until_written(self) -> None:
        """Until nothing is being written."""
        expect(self.page.get_by_role("button", name="Run")).to_be_visible()

    def set_field(self, label: str, value: object) -> None:
        self.page.get_by_label(label).fill(str(value))
        self.page.keyboard.press("Tab")

    def requested(self, action: Callable[[], object]) -> dict[str, Any]:
        """What the page asks the server to write when something is done to it."""
        with self.page.expect_request("**/glass/record") as request:
            action()
        body = request.value.post_data_json
        assert isinstance(body, dict)
        assert body.pop("stream") is True
        return body

    def go_on_instead(self, token: int, rank: int) -> None:
        """Go on from a candidate of a token."""
        self.answer.nth(token).click()
        self.why.locator("ol").first.locator(".row").nth(rank).click()
        self.page.get_by_role("button", name="Go on from here").click()

    def branch(self, letter: str) -> Locator:
        """The tokens that a branch has of its own."""
        return self.page.get_by_role("group", name=f"The tokens of branch {letter}").get_by_role("button")

    def clear(self) -> None:
        """Forget what a test did to the window."""
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.context.clear_permissions()
        self.page.context.set_offline(False)
        if not self.page.url.startswith("about:"):
            self.page.evaluate("try { localStorage.clear(); sessionStorage.clear() } catch {}")
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)
        self.complaints.clear()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives in the page."""
        return self.page.evaluate(expression)

    def wait(self, expression: str) -> None:
        """Until a JavaScript expression is true."""
        self.page.wait_for_function(expression)


OpenPage = Callable[..., StudioPage]


@dataclass(frozen=True)
class WindowForm:
    """What makes a window another one: its size, its theme, and whether its reader asked for reduced motion."""

    width: int
    height: int
    dark: bool
    still: bool


class Windows:
    """Browser windows that tests use one after the other; a used one is emptied, and keeps the page's files in its cache."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[WindowForm, list[StudioPage]] = {}

    @contextmanager
    def lend(self) -> Iterator[OpenPage]:
        """Opens windows of any form; at the end, no page may have complained on its console."""
        lent: list[tuple[WindowForm, StudioPage]] = []

        def open_page(width: int = 1440, height: int = 900, *, dark: bool = False, still: bool = True) -> StudioPage:
            form = WindowForm(width, height, dark, still)
            free = self._free.setdefault(form, [])
            lent.append((form, free.pop() if free else self._new(form)))
            return lent[-1][1]

        try:
            yield open_page
            assert [complaint for _, page in lent for complaint in page.complaints] == []
        finally:
            for form, page in lent:
                page.clear()
                self._free[form].append(page)

    def _new(self, form: WindowForm) -> StudioPage:
        context = self._browser.new_context(
            viewport={"width": form.width, "height": form.height}, color_scheme="dark" if form.dark else "light",
            reduced_motion="reduce" if form.still else "no-preference", has_touch=form.width < 600, accept_downloads=True,
        )  # fmt: skip
        return StudioPage(context.new_page())


@contextmanager
def running_loop(loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
    """Playwright's loop as the thread's while its objects are used, and none while they are not.

    A browser that lives longer than a test would otherwise make every asyncio.run between its tests fail.
    """
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


def visible(text: str) -> str:
    """A token's text as the page writes it."""
    return text.replace(" ", "·").replace("\n", "⏎")
