"""The studio's built files, made from `studio/` by `make studio`, so that nobody who runs it needs Node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {  # of every kind of file that a build has; the system's own table may say anything
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


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
