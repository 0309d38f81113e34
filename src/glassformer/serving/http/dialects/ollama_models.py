"""Ollama's models: GET /api/tags, /api/ps, /api/version and POST /api/show, /api/embed(dings), which clients ask before
they chat.

POST /api/pull, POST /api/copy, DELETE /api/delete: models that come and go while the server runs, where that is allowed. A
name is one of the catalogue or of the hub, never a path.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from glassformer.checkpoint import local_cache
from glassformer.checkpoint.catalogue import CATALOGUE
from glassformer.checkpoint.locate import HUB_ID
from glassformer.ground.errors import FetchError, GlassError, InputError, ModelNotFound, did_you_mean
from glassformer.runtime.model import Model
from glassformer.serving.http.context import ServingContext, context_of
from glassformer.serving.http.dialect import iso_time
from glassformer.serving.http.dialects.ollama import LATEST, LINES, error_line, registry_name
from glassformer.serving.http.dialects.openai_models import embed_inputs
from glassformer.serving.http.errors import HttpError, Json, to_json
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.streaming import EventStream
from glassformer.serving.registry import ModelFacts, ModelSource, Pull, ServedModel, facts_of

router = APIRouter(tags=["Ollama"])
HUB_HOSTS = re.compile(r"^(hf\.co|huggingface\.co)/")
LONGEST_NAME = 200  # characters of a hub id
SUCCESS = {"status": "success"}
API_VERSION = "0.12.6"  # of Ollama: clients ask whether it has what they need
log = logging.getLogger("glassformer")


class NamedModelRequest(BaseModel):
    """What names a model, by either name of the field."""

    model: str = ""
    name: str = ""  # the older

    @property
    def named(self) -> str:
        if not (self.model or self.name):
            raise HttpError(400, "model is missing. Name one of GET /api/tags.", param="model")
        return self.model or self.name


class ShowRequest(NamedModelRequest):
    """POST /api/show"""

    verbose: bool = False


class PullRequest(NamedModelRequest):
    """POST /api/pull"""

    stream: bool = True
    insecure: bool = False  # no other registry is asked than the catalogue's own and the hub


class DeleteRequest(NamedModelRequest):
    """DELETE /api/delete"""


class CopyRequest(BaseModel):
    """POST /api/copy"""

    source: str
    destination: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*(:[\w.-]+)?$", max_length=128)]


class EmbedRequest(BaseModel):
    """POST /api/embed"""

    model: str
    input: str | Annotated[list[str], Field(min_length=1)]
    truncate: bool = True
    dimensions: Annotated[int, Field(ge=1)] | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None


class EmbeddingsRequest(BaseModel):
    """POST /api/embeddings, the older form: one text."""

    model: str
    prompt: str = ""
    options: dict[str, Any] | None = None
    keep_alive: Any = None


@router.get("/api/version", responses=example_answer({"version": API_VERSION}))
async def version() -> Json:
    """Which version of Ollama's API is spoken."""
    return Json({"version": API_VERSION})


@router.get("/api/tags", responses=example_answer({"models": [{"name": "smollm2"}]}))
async def list_models(request: Request) -> Json:
    """The models by name and alias."""
    registry = context_of(request).registry
    loaded = registry.served()
    return Json({
        "models": [
            {**_entry(source, name, loaded.get(source.name)), "modified_at": iso_time(source.created)}
            for source in registry.sources.values()
            for name in (source.name, *source.aliases)
        ]
    })  # fmt: skip


@router.get("/api/ps", responses=example_answer({"models": [{"name": "smollm2"}]}))
async def list_loaded_models(request: Request) -> Json:
    """The models that are loaded, and when they will be unloaded if nobody uses them."""
    context = context_of(request)
    now, idle = time.time(), context.limits.idle_seconds
    return Json({
        "models": [
            {
                **_entry(served.source, served.name, served),
                "expires_at": iso_time(now + idle - (time.monotonic() - served.last_used)),
                "size_vram": 0,
                "context_length": served.model.config.context,
            }
            for served in context.registry.served().values()
        ]
    })  # fmt: skip


@router.post("/api/show", responses=example_answer({"details": {"family": "llama"}, "capabilities": ["completion"]}))
async def show_model(request: Request, body: ShowRequest) -> Json:
    """What a model is: its template, its sizes and what it can do. Loads it if need be."""
    async with context_of(request).use(registry_name(context_of(request), body.named)) as served:
        return Json(await asyncio.to_thread(description, served.model))  # without a pass, so in nobody's turn


def description(model: Model) -> dict[str, Any]:
    template = model.tokenizer.chat_template
    template = template.get("default", "") if isinstance(template, Mapping) else template or ""
    family = model.config.model_type
    return {
        "modelfile": "",
        "parameters": "",
        "license": "",
        "template": template,
        "details": _details(facts_of(model.opened)),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": model.blueprint.parameters,
            f"{family}.context_length": model.config.context,
            f"{family}.embedding_length": model.config.hidden_size,
            f"{family}.block_count": model.blueprint.blocks,
        },
        "capabilities": capabilities(model),
    }


def capabilities(model: Model) -> list[str]:
    if not model.writes:
        return ["embedding"]
    tokenizer = model.tokenizer
    thinks = tokenizer.chat_template is not None and "enable_thinking" in tokenizer.template().variables
    tools = tokenizer.chat_template is not None  # one that knows none is told of them in words
    return ["completion", *(["tools"] if tools else []), *(["thinking"] if thinks else [])]


@router.post("/api/embed", responses=example_answer({"model": "minilm", "embeddings": [[0.1]]}))
async def embed(request: Request, body: EmbedRequest) -> Json:
    """A vector of length 1 for each text."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    began = time.perf_counter()
    vectors, tokens = await embed_inputs(request, registry_name(context_of(request), body.model), texts, body.dimensions)
    duration = int((time.perf_counter() - began) * 1e9)
    return Json({
        "model": body.model, "embeddings": vectors.tolist(), "total_duration": duration, "load_duration": 0,
        "prompt_eval_count": tokens,
    })  # fmt: skip


@router.post("/api/embeddings", responses=example_answer({"embedding": [0.1]}))
async def embed_one(request: Request, body: EmbeddingsRequest) -> Json:
    """The older form: a vector for one text; without one, the model is loaded."""
    name = registry_name(context_of(request), body.model)
    if not body.prompt:
        async with context_of(request).use(name):
            return Json({"embedding": []})
    vectors, _ = await embed_inputs(request, name, [body.prompt], None)
    return Json({"embedding": vectors[0].tolist()})


def _entry(source: ModelSource, name: str, served: ServedModel | None) -> dict[str, Any]:
    """A model in a list."""
    tagged = name if ":" in name else name + LATEST
    facts = source.facts if served is None else facts_of(served.model.opened)
    return {
        "name": tagged,
        "model": tagged,
        "size": facts.bytes,
        "digest": sha256(source.name.encode()).hexdigest(),
        "details": _details(facts),
    }


def _details(facts: ModelFacts) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": facts.format,
        "family": facts.family,
        "families": [facts.family] if facts.family else [],
        "parameter_size": _count(facts.parameters) if facts.parameters else "",
        "quantization_level": facts.kind,
    }


def _count(parameters: int) -> str:
    """A number of parameters as people write it.

    >>> _count(134_515_008), _count(1_540_000_000)
    ('134.5M', '1.5B')
    """
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"


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
    context.registry.copy(registry_name(context_of(request), body.source), body.destination.removesuffix(LATEST))
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
