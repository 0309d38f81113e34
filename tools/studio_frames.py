"""How smoothly the studio moves: the frames of a slider that is dragged, and of a long lens that is scrolled.

It opens a saved page, so that nothing but the page is measured. Figures depend on the machine: compare them with those of an
empty page, which the first row has.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

from glassformer.studio import saved_page

SHIPPED = Path(__file__).parents[1] / "studio" / "shipped-run.json"
TOKENS = 500
MOVES = 180  # of the mouse, in one drag; steps of one scroll
COLLECT = """() => {
  let last = performance.now();
  Object.assign(window, { frameTimes: [], counting: true });
  requestAnimationFrame(function next(now) {
    window.frameTimes.push(now - last);
    last = now;
    if (window.counting) requestAnimationFrame(next);
  });
}"""
HOVER = """() => new Promise((done) => {
  const cells = [...document.querySelectorAll("[role=gridcell]")].slice(0, 200);
  const times = [];
  (function next() {
    const cell = cells.pop();
    if (!cell) return done(times);
    const began = performance.now();
    cell.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
    queueMicrotask(() => {
      document.body.offsetHeight; // laid out
      times.push(performance.now() - began);
      requestAnimationFrame(next);
    });
  })();
})"""


def frames(page: Page, action: Callable[[], object]) -> tuple[list[float], float]:
    """While something is done: the milliseconds from frame to frame, and those that the page's thread works for one."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _worked(session)
    page.evaluate(COLLECT)
    action()
    taken: list[float] = page.evaluate("() => { window.counting = false; return window.frameTimes.slice(1) }")
    return taken, 1000 * (_worked(session) - before) / len(taken)


def _worked(session: CDPSession) -> float:
    """How long the page's thread has worked, in seconds; what other programs take does not count."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def row(name: str, measured: tuple[list[float], float]) -> str:
    taken, work = measured
    ordered = sorted(taken)
    late = sum(frame > 1.5 * 1000 / 60 for frame in taken) / len(taken)
    worst = ordered[int(0.95 * (len(ordered) - 1))]
    return f"{name:<34}{statistics.median(taken):8.1f}{worst:8.1f}{100 * late:9.1f} %{work:8.1f}"


def drag(page: Page) -> None:
    """The temperature from one end to the other, and back."""
    box = page.get_by_role("slider", name="temperature").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 4, y, steps=MOVES)
    page.mouse.move(box["x"] + box["width"] - 4, y, steps=2 * MOVES)
    page.mouse.up()


def scroll(page: Page) -> None:
    """Through the whole lens, a fixed way in each frame."""
    page.get_by_role("grid").evaluate(
        """(grid, steps) => new Promise((done) => {
          const width = grid.scrollWidth;
          let step = 0;
          requestAnimationFrame(function next() {
            grid.scrollLeft = (width * ++step) / steps;
            if (step < steps) requestAnimationFrame(next);
            else done();
          });
        })""",
        3 * MOVES,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    browser_path = parser.parse_args().browser
    shipped: dict[str, Any] = json.loads(SHIPPED.read_text("utf-8"))
    steps = [shipped["steps"][number % len(shipped["steps"])] for number in range(TOKENS)]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "long.html"
        file.write_text(saved_page({**shipped, "steps": steps}), "utf-8")
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
        print(f"{'milliseconds from frame to frame':<34}{'median':>8}{'95 %':>8}{'late':>11}{'work':>8}")
        page.goto("about:blank")
        print(row("an empty page", frames(page, lambda: page.wait_for_timeout(2000))))
        page.goto(f"{file.as_uri()}#token=3")
        page.get_by_role("slider", name="temperature").wait_for()
        print(row("temperature is dragged", frames(page, lambda: drag(page))))
        page.goto("about:blank")
        page.goto(f"{file.as_uri()}#view=lens&token=0")
        page.get_by_role("grid").wait_for()
        print(row(f"a lens of {TOKENS} tokens is scrolled", frames(page, lambda: scroll(page))))
        page.get_by_role("grid").evaluate("grid => { grid.scrollLeft = 0 }")
        hovers = page.evaluate(HOVER)
        worst = sorted(hovers)[int(0.95 * (len(hovers) - 1))]
        print(f"{'a cell that is pointed at':<34}{statistics.median(hovers):8.1f}{worst:8.1f}")
        print(f"{page.evaluate('document.querySelectorAll(`*`).length'):,} elements")
        browser.close()


if __name__ == "__main__":
    main()
