"""Models by Ollama's names, which may end with a tag."""

from __future__ import annotations

from starlette.requests import Request

from glassformer.ground.errors import ModelNotFound
from glassformer.serving.http.context import context_of

LATEST = ":latest"  # the tag of every model here


def registry_name(request: Request, name: str) -> str:
    """The registry's name for a model that a client may call with a tag."""
    registry = context_of(request).registry
    try:
        return registry.source(name).name
    except ModelNotFound:
        return registry.source(name.removesuffix(LATEST)).name
