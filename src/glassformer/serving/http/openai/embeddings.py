"""POST /v1/embeddings: texts as vectors."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request

from glassformer.ground.errors import InputError
from glassformer.runtime.model import Model
from glassformer.serving.http.context import call_in_parts, context_of
from glassformer.serving.http.errors import HttpError, Json
from glassformer.serving.http.openai.schemas import NEUTRAL, EmbeddingRequest, as_inputs
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.settings import engine_settings
from glassformer.tasks.embeddings import EmbedTask
from glassformer.tasks.registry import check_head

router = APIRouter(tags=["OpenAI"])


EMBEDDED = {
    "object": "list", "data": [{"object": "embedding", "index": 0}], "model": "minilm",
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}  # fmt: skip


@router.post("/v1/embeddings", responses=example_answer(EMBEDDED))
async def embeddings(request: Request, body: EmbeddingRequest) -> Json:
    """A vector for each text."""
    if unknown := engine_settings(body.model_extra, NEUTRAL):
        raise HttpError(400, f"embeddings take no {min(unknown)!r}. Leave it out.", param=min(unknown))
    vectors, tokens = await embed_inputs(request, body.model, as_inputs(body.input), body.dimensions)
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Json({"object": "list", "data": data, "model": body.model, "usage": usage})


async def embed_inputs(
    request: Request, model_name: str, inputs: Sequence[str | list[int]], dimensions: int | None
) -> tuple[Any, int]:
    """A vector for each input (inputs, dimensions), and how many tokens they have."""
    most = context_of(request).limits.inputs
    if not 0 < len(inputs) <= most:
        raise HttpError(400, f"input has {len(inputs)} texts; it may have from 1 to {most}.", param="input")

    def embed(model: Model, part: Sequence[str | list[int]]) -> tuple[Any, int]:
        check_head(EmbedTask, model)
        task = EmbedTask(model, truncate_dim=dimensions, normalize=True if dimensions else None)
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
