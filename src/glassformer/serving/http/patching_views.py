"""POST /glass/patch-pairs and /glass/patch-path: activation patching over many pairs of texts, and along paths."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from glassformer.runtime.model import Model
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import HttpError, Json
from glassformer.serving.http.openapi import view_response
from glassformer.serving.http.view_responses import OPTIONS
from glassformer.serving.http.views import ModelRequest, Number, respond_with_view
from glassformer.views.patching import MetricName, PairPatching, PatchedPart, PathPatching

router = APIRouter(tags=["glass"], prefix="/glass")


class PairOfTexts(BaseModel):
    """Two texts, and the tokens to tell apart, if they are not what each text leads to."""

    model_config = ConfigDict(extra="forbid")

    first: str
    second: str
    answer: Number | str | None = None
    against: Number | str | None = None


class PatchPairsRequest(ModelRequest):
    """POST /glass/patch-pairs: each pair's first text in its second's pass, and the mean of what that restores."""

    pairs: Annotated[list[PairOfTexts], Field(min_length=1)]
    part: PatchedPart = "heads"
    positions: list[int | str] | None = None
    metric: MetricName = "recovered"


SiteName = Annotated[str, Field(max_length=200)]


class PatchPathRequest(ModelRequest):
    """POST /glass/patch-path: a sender's value of the first text, as some receivers in the second see it."""

    first: str
    second: str
    sender: SiteName = "blocks.*.attention.heads"
    receivers: Annotated[list[SiteName], Field(min_length=1, max_length=64)] = ["final"]
    positions: list[int | str] | None = None
    answer: Number | str | None = None
    against: Number | str | None = None
    freeze_mlps: bool = False


@router.post("/patch-pairs", responses=view_response(PairPatching))
async def patch_pairs(request: Request, body: PatchPairsRequest) -> Json:
    """What each place restores of the first texts' answers, on average over many pairs of texts."""
    if len(body.pairs) > (most := context_of(request).limits.prompts):
        raise HttpError(400, f"pairs has {len(body.pairs)} entries; this server allows {most} at most.", param="pairs")

    def look(model: Model) -> Any:
        pairs = [pair.model_dump() for pair in body.pairs]
        return model.patch_pairs(pairs, body.part, body.positions, metric=body.metric, **body.prompt_options)

    python = f"model.patch_pairs(pairs, part, positions, metric=metric, {OPTIONS})"
    return await respond_with_view(request, body, look, python)


@router.post("/patch-path", responses=view_response(PathPatching))
async def patch_path(request: Request, body: PatchPathRequest) -> Json:
    """How much of the first text's answer goes from each sender to the receivers, past all other heads."""

    def look(model: Model) -> Any:
        return model.patch_path(
            body.first, body.second, body.sender, body.receivers, body.positions, answer=body.answer, against=body.against,
            freeze_mlps=body.freeze_mlps, **body.prompt_options,
        )  # fmt: skip

    tokens = "answer=answer, against=against, freeze_mlps=freeze_mlps"
    return await respond_with_view(
        request, body, look, f"model.patch_path(first, second, sender, receivers, positions, {tokens}, {OPTIONS})"
    )
