"""`glass studio`, as people run it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import webbrowser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from glassformer.cli.studio import open_browser
from tests.cli.test_cli import failed, glass
from tests.patience import patience

COMMAND = [sys.executable, "-c", "from glassformer.cli import main; main()", "studio", "--no-browser"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals between processes")
def test_it_serves_the_page_on_a_free_port_until_it_is_stopped(tiny_qwen3: Path) -> None:
    process = subprocess.Popen([*COMMAND, "-m", str(tiny_qwen3)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = re.fullmatch(r"the studio is at (http://127\.0\.0\.1:\d+/)\n", process.stderr.readline())
        assert address is not None
        assert process.stderr.readline() == "Ctrl-C stops.\n"
        with httpx.Client(base_url=address[1], transport=httpx.HTTPTransport(retries=5), timeout=patience(60)) as client:
            assert "<title>Glassformer Studio</title>" in client.get("/").text
            recording = client.post("/glass/record", json={"prompt": "hi", "max_tokens": 2}).json()
        assert recording["schema"] == "glassformer.recording/1"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=patience(30))
        assert (process.returncode, err) == (0, "stopped.\n")
    finally:
        process.kill()
        process.communicate()


def test_the_browser_opens_once_the_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    server: Any = SimpleNamespace(ready=threading.Event(), address="http://127.0.0.1:1234")
    thread = threading.Thread(target=open_browser, args=(server,))
    thread.start()
    assert addresses == []
    server.ready.set()
    thread.join(patience(10))
    assert addresses == ["http://127.0.0.1:1234/"]


def test_a_model_that_is_not_there_is_named() -> None:
    assert "no-such-model" in failed(glass("studio", "--no-browser", "-m", "./no-such-model"))


def test_a_training_that_is_not_there_is_named(tmp_path: Path) -> None:
    said = failed(glass("studio", "--no-browser", "--training", str(tmp_path / "nothing")))
    assert "nothing: there is no such folder. Name that of a training: glass train --out" in said
