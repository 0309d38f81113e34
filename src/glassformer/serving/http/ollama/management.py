"""POST /api/pull, POST /api/copy, DELETE /api/delete: models that come and go while the server runs, where that is allowed.

A name is one of the catalogue or of the hub, never a path.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from hashlib import sha256
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from glassformer.checkpoint import local_cache
from glassformer.checkpoint.catalogue import CATALOGUE
from glassformer.checkpoint.locate import HUB_ID
from glassformer.ground.errors import FetchError, GlassError, InputError, ModelNotFound, did_you_mean
from glassformer.serving.http.context import ServingContext, context_of
from glassformer.serving.http.errors import HttpError, Json, to_json
from glassformer.serving.http.ollama.errors import error_line
from glassformer.serving.http.ollama.generation import LINES
from glassformer.serving.http.ollama.names import LATEST, registry_name
from glassformer.serving.http.ollama.schemas import CopyRequest, DeleteRequest, PullRequest
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.streaming import EventStream
from glassformer.serving.permissions import Pull

router = APIRouter(tags=["Ollama"])
HUB_HOSTS = re.compile(r"^(hf\.co|huggingface\.co)/")
LONGEST_NAME = 200  # characters of a hub id
SUCCESS = {"status": "success"}
log = logging.getLogger("glassformer")


@router.post("/api/pull", responses=example_answer(SUCCESS, streams=True, stream_type=LINES))
async def pull_model(request: Request, body: PullRequest) -> Response:
    """Fetch a model of the catalogue or the hub, and offer it; as lines that tell how far it is."""
    context, name = context_of(request), fetched_name(body.named)
    pull = context.permissions.pull
    if pull is None:
        raise _not_allowed("pull models", "--allow-pull")
    fetching = Fetching(context, name, pull)
    if body.stream:
        return EventStream(fetching, fetching.lines(), error_line, LINES)
    async for _ in fetching.lines():
        pass
    return Json(SUCCESS)


@router.post("/api/copy", responses=example_answer({}))
async def copy_model(request: Request, body: CopyRequest) -> Json:
    """Give a model a further name."""
    context = context_of(request)
    if not context.permissions.delete:
        raise _not_allowed("copy models", "--allow-delete")
    context.registry.copy(registry_name(request, body.source), body.destination.removesuffix(LATEST))
    return Json({})


@router.delete("/api/delete", responses=example_answer({}))
async def delete_model(request: Request, body: DeleteRequest) -> Json:
    """Remove one of a model's further names; or the model, from the disk too if it was fetched."""
    context = context_of(request)
    if not context.permissions.delete:
        raise _not_allowed("delete models", "--allow-delete")
    registry, name = context.registry, body.named
    name = name if name in registry.names else name.removesuffix(LATEST)
    source = registry.source(name)
    if name == source.name and source.fetched_as is None:
        raise InputError(f"{name} was not fetched, so it is not deleted here. Its operator can remove it.")
    if (removed := await asyncio.to_thread(registry.remove, name)) is not None and removed.fetched_as is not None:
        await asyncio.to_thread(_delete_files, removed.fetched_as)
    return Json({})


def fetched_name(name: str) -> str:
    """A name in the catalogue or on the hub, as Ollama's clients may write it.

    >>> fetched_name("smollm2:latest"), fetched_name("hf.co/Qwen/Qwen3-0.6B")
    ('smollm2', 'Qwen/Qwen3-0.6B')
    """
    plain = HUB_HOSTS.sub("", name).removesuffix(LATEST)
    known = [key for key, entry in CATALOGUE.items() if entry.kind == "model"]
    on_hub = (
        len(plain) <= LONGEST_NAME
        and HUB_ID.fullmatch(plain)
        and not plain.startswith(".")
        and ".." not in plain
        and not Path(plain).exists()
    )
    if plain not in known and not on_hub:
        hint = did_you_mean(plain[:LONGEST_NAME], known)
        raise ModelNotFound(
            f"there is no model {name[:LONGEST_NAME]!r} to pull.{hint} Give a hub id, or one of: {', '.join(known)}."
        )
    return plain


class Fetching:
    """A model on its way. It comes to its end when nobody waits for it any more, too."""

    def __init__(self, context: ServingContext, name: str, pull: Pull) -> None:
        self._context, self._name, self._pull = context, name, pull
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()  # how far it is; None: no more comes
        self._last: tuple[str, int] = ("", -1)
        self._task = asyncio.create_task(self._fetch())

    @property
    def deadline(self) -> float:
        return float("inf")

    async def lines(self) -> AsyncGenerator[bytes]:
        yield to_json({"status": "pulling manifest"}) + b"\n"
        while (news := await self._news.get()) is not None:
            yield to_json(news) + b"\n"
        await self._task
        yield to_json(SUCCESS) + b"\n"

    async def close(self) -> None:
        self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    async def _fetch(self) -> None:
        try:
            async with self._context.pulling:  # one at a time
                source = await asyncio.to_thread(self._pull, self._name, self._tell)
            self._context.registry.add(source)
        except ModelNotFound:
            raise
        except GlassError as error:
            log.warning(f"{self._name} cannot be pulled: {error}")
            raise FetchError(f"{self._name} cannot be pulled; the server's log says why.") from error
        finally:
            self._news.put_nowait(None)

    def _tell(self, what: str, done: int, total: int) -> None:
        """Called on the thread that fetches."""
        percent = done * 100 // max(total, 1)
        if (what, percent) != self._last:
            self._last = (what, percent)
            digest = f"sha256:{sha256(what.encode()).hexdigest()}"
            news = {"status": f"pulling {digest[7:19]}", "digest": digest, "total": total, "completed": min(done, total)}
            self._loop.call_soon_threadsafe(self._news.put_nowait, news)


def _delete_files(name: str) -> None:
    try:
        local_cache.remove(local_cache.cached_items(name))
    except ModelNotFound:  # gone already
        pass
    except GlassError as error:
        log.warning(f"{name} cannot be deleted: {error}")
        raise InputError(
            f"{name} is offered no more, but its files could not be removed; the server's log says why."
        ) from None


def _not_allowed(what: str, flag: str) -> HttpError:
    return HttpError(403, f"clients may not {what} here. Start the server with {flag}.", code="not_allowed")
