"""POST /v1/rerank: documents by how well they answer a query, in the form that Cohere's and Jina's clients know."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request

from glassformer.ground.errors import InputError, spell
from glassformer.runtime.model import Model
from glassformer.serving.http.answers import new_id
from glassformer.serving.http.context import call_in_parts, context_of
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.settings import check_inputs
from glassformer.tasks.embeddings import SimilarityTask
from glassformer.tasks.ranking import RerankTask, judges
from glassformer.tasks.registry import check_head

router = APIRouter(tags=["ranking"])


class Document(BaseModel):
    text: str


class RerankRequest(BaseModel):
    """POST /v1/rerank"""

    model: str | None = None
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False
    instruction: str | None = None


RERANKED = {
    "id": "rerank-1", "model": "minilm", "results": [{"index": 1, "relevance_score": 0.9}], "usage": {"total_tokens": 12},
}  # fmt: skip


@router.post("/v1/rerank", responses=example_answer(RERANKED))
async def rerank(request: Request, body: RerankRequest) -> Json:
    """The documents, best first. A reranker reads query and document together; other models compare vectors."""
    check_inputs("documents", body.documents, context_of(request).limits)
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    ask = partial(relevance, query=body.query, instruction=body.instruction)
    parts = await call_in_parts(request, body.model, texts, lambda model, part: ask(model, texts=part))
    scores, tokens = [score for scores, _ in parts for score in scores], sum(tokens for _, tokens in parts)
    order = sorted(range(len(texts)), key=lambda index: -scores[index])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if body.return_documents:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    name = context_of(request).registry.source(body.model).name if body.model is None else body.model
    return Json({"id": new_id("rerank-"), "model": name, "results": results, "usage": {"total_tokens": tokens}})


def relevance(model: Model, query: str, texts: Sequence[str], instruction: str | None = None) -> tuple[list[float], int]:
    """How well each text answers a query, and how many tokens were read for it.

    A model whose files do not call it a reranker is asked only by whoever says what to judge by: a client sees no note.
    """
    if judges(model):
        task = RerankTask(model, instruction=instruction)
        if instruction is None and not task.is_stated:
            raise InputError(
                f"the files of {model.name} do not say that it is a reranker, so its scores would be worth little. Take one "
                f"that is, such as {task.suggested!r}, or say in {spell('instruction')} what this one is to judge by."
            )
        scores = [answer["score"] for answer in sorted(task(query, texts), key=lambda answer: int(answer["index"]))]
        return scores, sum(map(len, task.preprocess([(query, list(texts))], task.options)))
    check_head(SimilarityTask, model)
    scores = [float(score) for score in SimilarityTask(model)(query, texts)]
    return scores, sum(len(ids) for ids in model.tokenizer([query, *texts])["input_ids"])
