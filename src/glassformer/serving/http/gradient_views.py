"""POST /glass/saliency and /glass/attribution-patch: what gradients show of a model and a text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from glassformer.ground.errors import InputError
from glassformer.observe.reading import Reading
from glassformer.runtime.model import Model
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import view_answer
from glassformer.serving.http.python_lines import OPTIONS
from glassformer.serving.http.views import Number, PatchRequest, ReadingRequest, see
from glassformer.views.patching import AttributionPatching
from glassformer.views.saliency import Baseline, Saliency, SaliencyMethod

router = APIRouter(tags=["glass"], prefix="/glass")
MAX_TOKENS = 4096  # of a text that a request has differentiated
MAX_STEPS = 64


class SaliencyRequest(ReadingRequest):
    """POST /glass/saliency: of the best token, unless another token or label is named"""

    token: Number | str | None = None
    against: Number | str | None = None
    position: int | str | None = None
    metric: Literal["lead", "logit", "log-probability", "loss"] = "lead"
    method: SaliencyMethod = "leave-one-out"
    baseline: Baseline | None = None
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = None


class AttributionPatchRequest(PatchRequest):
    """POST /glass/attribution-patch: as /glass/patch, estimated; `check` patches too"""

    check: bool = False


@router.post("/saliency", responses=view_answer(Saliency))
async def saliency(request: Request, body: SaliencyRequest) -> Json:
    """How much each token of a text matters to the next one, to a label or to the loss: what that loses without it."""

    def look(model: Model) -> Any:
        reading = body.reading(model)
        check_length(reading)
        return reading.saliency(
            body.token, body.against, body.position, metric=body.metric, method=body.method, baseline=body.baseline,
            steps=body.steps,
        )  # fmt: skip

    call = "saliency(token, against, position, metric=metric, method=method, baseline=baseline, steps=steps)"
    return await see(request, body, look, f"{body.python_reading}.{call}")


@router.post("/attribution-patch", responses=view_answer(AttributionPatching))
async def attribution_patch(request: Request, body: AttributionPatchRequest) -> Json:
    """What patching each place would bring back of the first text's answer, estimated by one backward pass."""

    def look(model: Model) -> Any:
        check_length(model.read(body.first, **body.prompt_options))
        return model.attribution_patch(
            body.first, body.second, body.part, body.positions, answer=body.answer, against=body.against, check=body.check,
            **body.prompt_options,
        )  # fmt: skip

    arguments = f"first, second, part, positions, answer=answer, against=against, check=check, {OPTIONS}"
    return await see(request, body, look, f"model.attribution_patch({arguments})")


def check_length(reading: Reading) -> None:
    """Refuse a text whose gradients would take others' memory and time."""
    if (length := len(reading.ids) + len(reading.source or ())) > MAX_TOKENS:
        raise InputError(f"the text has {length:,} tokens; this server differentiates {MAX_TOKENS:,} at most.")
