"""POST /glass/patch-pairs: activation patching over many pairs of texts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from glassformer.runtime.model import Model
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import HttpError, Json
from glassformer.serving.http.openapi import view_answer
from glassformer.serving.http.views import ModelRequest, Number, see
from glassformer.views.patching import PatchedPart
from glassformer.views.patching_pairs import MetricName, PairPatching

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


@router.post("/patch-pairs", responses=view_answer(PairPatching))
async def patch_pairs(request: Request, body: PatchPairsRequest) -> Json:
    """What each place restores of the first texts' answers, on average over many pairs of texts."""
    if len(body.pairs) > (most := context_of(request).limits.prompts):
        raise HttpError(400, f"pairs has {len(body.pairs)} entries; this server allows {most} at most.", param="pairs")

    def look(model: Model) -> Any:
        pairs = [pair.model_dump() for pair in body.pairs]
        return model.patch_pairs(pairs, body.part, body.positions, metric=body.metric, **body.prompt_options)

    return await see(request, body, look)
