"""A saved run in a real browser: it opens by itself, asks for nothing, and can be used with the keyboard."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.observe.models import both

pytestmark = pytest.mark.usefixtures("one_thread")
NASTY = '<img src="x" onerror="document.title=1"> & <b>bold</b>'


def browse(*options: str, url: str, folder: Path) -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        unavailable("a browser (chromium)")
    done = subprocess.run(
        [str(found), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
         "--log-level=0", f"--user-data-dir={folder / 'profile'}", *options, url],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints
    return done.stdout


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
