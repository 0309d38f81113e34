"""GET /v1/models: what can be asked for; POST /v1/embeddings: texts as vectors."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from glassformer.ground.errors import InputError
from glassformer.jobs.formats.openai import NEUTRAL, embeddings_answer
from glassformer.runtime.model import Model
from glassformer.serving.http.context import call_in_parts, context_of
from glassformer.serving.http.dialect import RequestBody
from glassformer.serving.http.dialects.openai_completions import TokenIds, as_inputs
from glassformer.serving.http.errors import HttpError, Json
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.settings import check_inputs
from glassformer.serving.registry import ModelSource
from glassformer.tasks.embeddings import EmbedTask
from glassformer.tasks.registry import check_head

router = APIRouter(tags=["OpenAI"])
MODEL = {"id": "smollm2", "object": "model", "created": 1700000000, "owned_by": "glassformer"}

EMBEDDED = {
    "object": "list", "data": [{"object": "embedding", "index": 0}], "model": "minilm",
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}  # fmt: skip


class EmbeddingRequest(RequestBody):
    """POST /v1/embeddings"""

    model: str
    input: str | TokenIds | list[str] | list[TokenIds]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    prompt_name: str | None = None

    NEUTRAL: ClassVar = NEUTRAL


@router.get("/v1/models", responses=example_answer({"object": "list", "data": [MODEL]}))
async def list_models(request: Request) -> Json:
    """The models by name and alias."""
    sources = context_of(request).registry.sources.values()
    return Json({"object": "list", "data": [entry for source in sources for entry in entries(source)]})


@router.get("/v1/models/{name:path}", responses=example_answer(MODEL))
async def show_model(request: Request, name: str) -> Json:
    """One of them."""
    source = context_of(request).registry.source(name)
    return Json(next(entry for entry in entries(source) if entry["id"] == name))


def entries(source: ModelSource) -> list[dict[str, Any]]:
    return [
        {"id": name, "object": "model", "created": source.created, "owned_by": "glassformer"}
        for name in (source.name, *source.aliases)
    ]


@router.post("/v1/embeddings", responses=example_answer(EMBEDDED))
async def embeddings(request: Request, body: EmbeddingRequest) -> Json:
    """A vector for each text."""
    if unknown := body.engine_settings():
        raise HttpError(400, f"embeddings take no {min(unknown)!r}. Leave it out.", param=min(unknown))
    vectors, tokens = await embed_inputs(request, body.model, as_inputs(body.input), body.dimensions, body.prompt_name)
    encoded = [_encoded(vector, body.encoding_format) for vector in vectors]
    return Json(embeddings_answer(encoded, body.model, tokens))


async def embed_inputs(
    request: Request, model_name: str, inputs: Sequence[str | list[int]], dimensions: int | None,
    prompt_name: str | None = None,
) -> tuple[Any, int]:  # fmt: skip
    """A vector for each input (inputs, dimensions), and how many tokens they have; `prompt_name`: of one of the model's
    own prompts, to be put before each text."""
    check_inputs("input", inputs, context_of(request).limits)

    def embed(model: Model, part: Sequence[str | list[int]]) -> tuple[Any, int]:
        check_head(EmbedTask, model)
        task = EmbedTask(model, truncate_dim=dimensions, normalize=True if dimensions else None, prompt_name=prompt_name)
        texts = [_text(model, value) for value in part]
        tokens = sum(len(ids) for ids in model.tokenizer(texts)["input_ids"])
        return task(texts), tokens

    parts = await call_in_parts(request, model_name, inputs, embed)
    vectors, tokens = np.concatenate([vectors for vectors, _ in parts]), sum(tokens for _, tokens in parts)
    if dimensions is not None and vectors.shape[1] < dimensions:
        raise InputError(f"dimensions is {dimensions}; the model's vectors have {vectors.shape[1]}. Ask for fewer.")
    return vectors, tokens


def _text(model: Model, value: str | list[int]) -> str:
    """An input as text; token ids are decoded, without the special tokens that encoding puts around them again."""
    return value if isinstance(value, str) else str(model.tokenizer.decode(value, skip_special_tokens=True))


def _encoded(vector: Any, form: str) -> Any:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if form == "base64" else vector.tolist()
