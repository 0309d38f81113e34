"""The studio's built files, made from `studio/` by `make studio`, so that nobody who runs it needs Node.

A recording becomes one HTML page that needs no server, or a widget in a notebook: the same app, in one cell. The page's
template is a build of the studio in one file. Its Save button fills it in the same way, in studio/src/data/saved-page.ts, so
that a run gives the same bytes here and there; hence JSON as JavaScript writes it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from glassformer.ground.errors import needed_for

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {  # of every kind of file that a build has; the system's own table may say anything
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
PLACEHOLDER = "__RECORDING__"
SLICES = "__SLICES__"
SELECTION = "__SELECTION__"  # what the page opens with; nothing: whatever it chooses itself
SCRIPT = '<script type="module">'
SAFE_INTEGER = 2**53  # JavaScript's numbers are float64
HALF_PAIR = re.compile("[\ud800-\udfff]")
HEIGHT = 720  # of a notebook's cell, in pixels


@dataclass(frozen=True)
class StaticFile:
    content: bytes
    media_type: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Every file of the build by its path in it, such as `index.html`. What is not here is not served."""
    return {
        path.relative_to(STATIC).as_posix(): StaticFile(path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in sorted(STATIC.rglob("*"))
        if path.is_file()
    }


def saved_page(recording: Mapping[str, Any], slices: Mapping[str, Any] | None = None, token: int | None = None) -> str:
    """The page with a recording's data in it, and with what its views would ask a model for; `token`: that it opens with."""
    before, _, rest = template().replace(SELECTION, "" if token is None else f"token={token}", 1).partition(PLACEHOLDER)
    between, _, after = rest.partition(SLICES)
    return before + _inert(recording) + between + _inert(slices or {}) + after


def _inert(data: Mapping[str, Any]) -> str:
    """JSON in which nothing ends the element it stands in."""
    return javascript_json(data).replace("<", "\\u003c")


@cache
def template() -> str:
    (content,) = (file.content for path, file in static_files().items() if path.startswith("studio/saved-page-"))
    return content.decode()


@cache
def script() -> str:
    """The whole studio as one module."""
    return template().partition(SCRIPT)[2].partition("</script>")[0]


def javascript_json(value: Any) -> str:
    r"""Compact JSON with sorted names, the same bytes that JavaScript's `JSON.stringify` writes.

    >>> javascript_json({"b": [1.0, 1e-7, None, True], "a": "é\n\ud800"})
    '{"a":"é\\n\\ud800","b":[1,1e-7,null,true]}'
    """
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=_place)
        return "{" + ",".join(f"{_string(name)}:{javascript_json(item)}" for name, item in items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(javascript_json, value)) + "]"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float) or (type(value) is int and abs(value) > SAFE_INTEGER):
        return _number(float(value))
    return json.dumps(value)


def _place(item: tuple[str, Any]) -> tuple[int, int, bytes]:
    """JavaScript's objects have names that are array indices first, by number."""
    name = item[0]
    if re.fullmatch("0|[1-9][0-9]{0,9}", name) and int(name) < 2**32 - 1:
        return 0, int(name), b""
    return 1, 0, name.encode("utf-16-be", "surrogatepass")


def _string(text: str) -> str:
    return HALF_PAIR.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(text, ensure_ascii=False))


def _number(number: float) -> str:
    """The fewest digits that give it again, with an exponent only where ECMAScript writes one."""
    if not math.isfinite(number):
        return "null"
    if number == 0:
        return "0"
    digits = Decimal(repr(number)).normalize()
    if 1e-6 <= abs(number) < 1e21:
        return f"{digits:f}"
    mantissa, _, exponent = f"{digits:e}".partition("e")
    return f"{mantissa}e{int(exponent):+d}"


def recording_widget(recording: Mapping[str, Any], slices: Mapping[str, Any], height: int = HEIGHT) -> Any:
    """A widget that shows a recording's data, and in its views the slices that there are."""
    return _widget_class()(recording=recording, slices=slices, height=height)


@cache
def _widget_class() -> Any:
    """Made when it is first asked for: its base is in an extra."""
    with needed_for("a widget"):
        import anywidget
        import traitlets

    class StudioWidget(anywidget.AnyWidget):  # type: ignore[misc]
        """A run that can be explored."""

        _esm = script()
        recording = traitlets.Dict().tag(sync=True)
        slices = traitlets.Dict().tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)

    return StudioWidget
