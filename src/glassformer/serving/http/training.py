"""GET /glass/training and POST /glass/learning: a training that is followed, and what its snapshots make of a text.

The folder is the server's to name, never a request's.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, create_model
from starlette.requests import Request

from glassformer.ground.errors import Unavailable
from glassformer.ground.operations import arguments_of
from glassformer.see.learning import Learning
from glassformer.see.learning import learning as see_learning
from glassformer.see.training_curves import TrainingCurves
from glassformer.serving.followed_training import FollowedTraining
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import ClientDisconnected, HttpError, Json
from glassformer.serving.http.openapi import view_response
from glassformer.serving.http.operation_routes import request_field
from glassformer.serving.http.streaming import disconnected
from glassformer.serving.http.view_responses import ViewForm

router = APIRouter(tags=["glass"], prefix="/glass")
OPTIONS = [argument for argument in arguments_of(see_learning) if argument.info.help and argument.info.served]


class SnapshotsText(BaseModel):
    """A text that snapshots read."""

    model_config = ConfigDict(extra="forbid")

    prompt: str
    target: str | None = None  # an encoder-decoder's output


FIELDS: dict[str, Any] = {option.name: request_field(option) for option in OPTIONS}
LearningRequest: Any = create_model("LearningRequest", __base__=SnapshotsText, __doc__="POST /glass/learning", **FIELDS)


@router.get("/training", responses=view_response(TrainingCurves))
async def training(request: Request) -> Json:
    """The losses and samples so far of the training that the server follows."""
    form = ViewForm.of(request)
    return form.answer(form.data(await asyncio.to_thread(_followed(request).curves)))


@router.post("/learning", responses=view_response(Learning))
async def learning(request: Request, body: LearningRequest) -> Json:
    """What each snapshot of that training makes of a text. It ends when the client leaves, or its time is over."""
    followed, stop = _followed(request), threading.Event()
    options = {option.name: getattr(body, option.name) for option in OPTIONS}
    work = asyncio.ensure_future(asyncio.to_thread(followed.learning, body.prompt, body.target, stop, **options))
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait((work, leaving), timeout=context_of(request).limits.seconds, return_when=asyncio.FIRST_COMPLETED)
        stop.set()  # which does nothing to work that is done
        view = await work
    except Unavailable:
        if leaving.done():
            raise ClientDisconnected from None
        raise
    finally:
        leaving.cancel()
    form = ViewForm.of(request)
    return form.answer(form.data(view))


def _followed(request: Request) -> FollowedTraining:
    followed = context_of(request).training
    if followed is None:
        raise HttpError(
            404, "this server follows no training. Start it with one: glass studio --training DIR", code="no_training"
        )
    return followed
