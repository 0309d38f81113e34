"""Take the README's pictures of the studio, two still ones and a short animation: `python tools/studio_pictures.py`.

They are of the real page over the real model. It needs the extra `serve`, Playwright with a chromium, and Pillow, which
comes with matplotlib.
"""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import glassformer
from glassformer.serving.http.app import create_app
from glassformer.serving.http.server import GlassServer
from glassformer.serving.registry import ModelSource, Registry

DOCS = Path(__file__).parents[1] / "docs"
SIZE = {"width": 1280, "height": 800}
MAX_STILL, MAX_MOVING = 200_000, 1_500_000  # bytes
FRAME_MILLISECONDS = 120
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


@contextmanager
def server() -> Iterator[str]:
    """The studio over the real model; yields its address."""
    registry = Registry([ModelSource("smollm2", lambda: glassformer.load("smollm2"))])
    running = GlassServer(create_app(registry), port=0)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    running.ready.wait()
    try:
        yield f"{running.address}/"
    finally:
        running.stop()
        thread.join()


def opened(browser: Browser, address: str, theme: str) -> Page:
    """The page in a window of its own, when its run is shown."""
    context = browser.new_context(viewport=SIZE, color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(address)
    page.get_by_role("group", name="The answer's tokens").wait_for()
    page.wait_for_load_state("networkidle")
    return page


def picture(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def walk(page: Page) -> Iterator[Image.Image]:
    """A reader goes through the answer, drags the temperature, goes on from another candidate, and looks into the model."""
    answer = page.get_by_role("group", name="The answer's tokens").first.get_by_role("button")
    for number in (7, 7, 7, 3, 3, 3, 0, 0, 0, 0):
        answer.nth(number).click()
        page.mouse.move(0, 0)
        yield picture(page)
    slider = page.get_by_role("slider", name="temperature")
    for hundredth in [*range(100, 10, -15), *range(10, 200, 15), *range(200, 95, -15)]:
        slider.fill(str(hundredth / 100))
        yield picture(page)
    page.get_by_label("at most").fill("24")
    why = page.get_by_role("region", name="Why this token")
    why.get_by_role("button", name="How").click()
    yield from rest(page, 5)
    why.get_by_role("button", name="Go on from here").click()
    while page.get_by_role("button", name="Stop").is_visible():
        yield picture(page)
    yield from rest(page, 8)
    for view in ("Attention", "Lens", "Step inside"):
        page.get_by_role("navigation", name="Views").get_by_role("button", name=view).click()
        page.get_by_role("region", name=view).wait_for()
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)  # until what is asked for is being read
        page.get_by_text("reading…").wait_for(state="detached")
        page.wait_for_load_state("networkidle")
        yield from rest(page, 10)


def rest(page: Page, frames: int) -> Iterator[Image.Image]:
    """Nothing moves for a while, so that a reader can look."""
    return repeat(picture(page), frames)


def save(image: Image.Image, name: str) -> None:
    path = DOCS / name
    image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    check(path, MAX_STILL)


def check(path: Path, limit: int) -> None:
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    if size > limit:
        raise SystemExit(f"{path.name} has {size:,} bytes, and may have {limit:,}. Make the picture smaller.")


def main() -> None:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("there is no browser. Install chromium.")
    with server() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        for theme in ("light", "dark"):
            save(picture(opened(browser, address, theme)), f"studio-{theme}.png")
        first, *others = walk(opened(browser, address, "light"))
        browser.close()
    path = DOCS / "studio.webp"
    first.save(path, save_all=True, append_images=others, duration=FRAME_MILLISECONDS, loop=0, quality=60, method=4)
    check(path, MAX_MOVING)


if __name__ == "__main__":
    main()
