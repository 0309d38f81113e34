"""A real browser, driven over its debugging pipe (the Chrome DevTools Protocol): no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import unavailable

WAIT_SECONDS = 30.0


class Browser:
    """One page of a browser."""

    def __init__(self, commands: int, replies: int) -> None:
        self._commands, self._replies = os.fdopen(commands, "wb", 0), os.fdopen(replies, "rb", 0)
        self._buffer, self._number = b"", 0
        self.complaints: list[str] = []  # errors and warnings of the page's console
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    _session = None

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while (reply := self._read()).get("id") != self._number:
            self._note(reply)
        assert "error" not in reply, (method, reply)
        return reply["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = self._replies.read(1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])

    def show(self, url: str, *, width: int = 1440, height: int = 900, dark: bool = False, still: bool = True) -> None:
        """Open an address in a window of this size; `still`: with reduced motion."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        features = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce" if still else ""}
        self._call("Emulation.setEmulatedMedia", features=[{"name": name, "value": features[name]} for name in features])
        self._call("Page.navigate", url="about:blank")  # so that another fragment of the same page loads it again
        self._call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives in the page."""
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + WAIT_SECONDS
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}\n{self.complaints}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        data = self._call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in a folder."""
    if os.name != "posix":
        pytest.skip("the debugging pipe is given by the number of its file, which Windows has not")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        unavailable("a browser (chromium)")
    import fcntl

    commands, replies = os.pipe(), os.pipe()
    inherited = tuple(fcntl.fcntl(number, fcntl.F_DUPFD, 10) for number in (commands[0], replies[1]))
    for number in (commands[0], replies[1]):
        os.close(number)
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    # The browser reads from file 3, and writes to 4.
    script = f"import os, sys; os.dup2({inherited[0]}, 3); os.dup2({inherited[1]}, 4); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(program), *options, f"--user-data-dir={folder}", "--remote-debugging-pipe"],
        pass_fds=inherited, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for number in inherited:
        os.close(number)
    try:
        yield Browser(commands[1], replies[0])
    finally:
        process.kill()
        process.wait()
