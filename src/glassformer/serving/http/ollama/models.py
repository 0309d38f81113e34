"""GET /api/tags, /api/ps, /api/version and POST /api/show, /api/embed(dings): what Ollama's clients ask before they chat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from glassformer.runtime.model import Model
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import Json
from glassformer.serving.http.ollama.names import LATEST, registry_name
from glassformer.serving.http.ollama.schemas import EmbeddingsRequest, EmbedRequest, ShowRequest
from glassformer.serving.http.openai.embeddings import embed_inputs
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.model_facts import ModelFacts, facts_of
from glassformer.serving.registry import ModelSource, ServedModel

router = APIRouter(tags=["Ollama"])
API_VERSION = "0.12.6"  # of Ollama: clients ask whether it has what they need


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
            {**_entry(source, name, loaded.get(source.name)), "modified_at": _time(source.created)}
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
                "expires_at": _time(now + idle - (time.monotonic() - served.last_used)),
                "size_vram": 0,
                "context_length": served.model.config.context,
            }
            for served in context.registry.served().values()
        ]
    })  # fmt: skip


@router.post("/api/show", responses=example_answer({"details": {"family": "llama"}, "capabilities": ["completion"]}))
async def show_model(request: Request, body: ShowRequest) -> Json:
    """What a model is: its template, its sizes and what it can do. Loads it if need be."""
    async with context_of(request).use(registry_name(request, body.named)) as served:
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
    vectors, tokens = await embed_inputs(request, registry_name(request, body.model), texts, body.dimensions)
    duration = int((time.perf_counter() - began) * 1e9)
    return Json({
        "model": body.model, "embeddings": vectors.tolist(), "total_duration": duration, "load_duration": 0,
        "prompt_eval_count": tokens,
    })  # fmt: skip


@router.post("/api/embeddings", responses=example_answer({"embedding": [0.1]}))
async def embed_one(request: Request, body: EmbeddingsRequest) -> Json:
    """The older form: a vector for one text; without one, the model is loaded."""
    name = registry_name(request, body.model)
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


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
