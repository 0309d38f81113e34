"""GET / and GET /studio/{name}: the studio, a page over the routes under /glass.

Its files are the same for everybody and need no key; what the page asks for does. They are looked up by name among those of
the build, so no path leads out of it.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from glassformer.serving.http.errors import HttpError
from glassformer.serving.http.openapi import text_answer
from glassformer.studio import static_files

router = APIRouter(tags=["studio"])
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
FOREVER = "public, max-age=31536000, immutable"  # a name holds the hash of its content


@router.get("/", response_class=Response, responses=text_answer("text/html"))
async def page() -> Response:
    """The studio's page."""
    return _file("index.html", "no-cache")


@router.head("/", response_class=Response, responses=text_answer("text/html"))
async def running() -> Response:
    """That the server runs: what Ollama's clients ask first."""
    return Response(media_type="text/html")


@router.get("/studio/{name}", response_class=Response, responses=text_answer("*/*"))
async def asset(name: str) -> Response:
    """A script, a style, a picture or the data that the page opens with."""
    return _file(f"studio/{name}", FOREVER)


def _file(path: str, caching: str) -> Response:
    file = static_files().get(path)
    if file is None:
        raise HttpError(
            404, "the studio has no such file. Load the page again: it may be of another version.", code="not_found"
        )
    return Response(file.content, media_type=file.media_type, headers={**HEADERS, "Cache-Control": caching})
