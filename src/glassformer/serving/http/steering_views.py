"""POST /glass/steering: the steering vectors that a request can name."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from glassformer.observe.steering import known_vectors
from glassformer.serving.http.context import call_model
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import view_answer
from glassformer.serving.http.view_answers import ViewForm
from glassformer.serving.http.views import DescriptionRequest
from glassformer.views.steering import SteeringVectors

router = APIRouter(tags=["glass"], prefix="/glass")


class SteeringRequest(DescriptionRequest):
    """POST /glass/steering"""


@router.post("/steering", responses=view_answer(SteeringVectors))
async def steering(request: Request, body: SteeringRequest) -> Json:
    """The steering vectors of the folder that the operator named, and whether each fits the model."""

    form = ViewForm.of(request, body)
    return form.answer(await call_model(request, body.model, lambda model: form.data(known_vectors(model, model.library))))
