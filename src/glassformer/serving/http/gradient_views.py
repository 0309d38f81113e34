"""POST /glass/attribution-patch: what gradients show of two texts; and how long a text may be for them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from glassformer.ground.errors import InputError
from glassformer.observe.reading import Reading
from glassformer.runtime.model import Model
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import view_response
from glassformer.serving.http.view_responses import OPTIONS
from glassformer.serving.http.views import PatchRequest, respond_with_view
from glassformer.views.patching import AttributionPatching

router = APIRouter(tags=["glass"], prefix="/glass")
MAX_TOKENS = 4096  # of a text that a request has differentiated


class AttributionPatchRequest(PatchRequest):
    """POST /glass/attribution-patch: as /glass/patch, estimated; `check` patches too"""

    check: bool = False


@router.post("/attribution-patch", responses=view_response(AttributionPatching))
async def attribution_patch(request: Request, body: AttributionPatchRequest) -> Json:
    """What patching each place would bring back of the first text's answer, estimated by one backward pass."""

    def look(model: Model) -> Any:
        check_length(model.read(body.first, **body.prompt_options))
        return model.attribution_patch(
            body.first, body.second, body.part, body.positions, answer=body.answer, against=body.against, check=body.check,
            **body.prompt_options,
        )  # fmt: skip

    arguments = f"first, second, part, positions, answer=answer, against=against, check=check, {OPTIONS}"
    return await respond_with_view(request, body, look, f"model.attribution_patch({arguments})")


def check_length(reading: Reading) -> None:
    """Refuse a text whose gradients would take others' memory and time."""
    if (length := len(reading.ids) + len(reading.source or ())) > MAX_TOKENS:
        raise InputError(f"the text has {length:,} tokens; this server differentiates {MAX_TOKENS:,} at most.")
