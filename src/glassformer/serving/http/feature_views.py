"""POST /glass/features: what a sparse autoencoder finds in a text; and which of them a request can name."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from glassformer.observe.features import TOP, known_dictionaries
from glassformer.runtime.model import Model
from glassformer.serving.http.context import call_model
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import view_answer
from glassformer.serving.http.view_answers import ViewForm
from glassformer.serving.http.views import DescriptionRequest, ReadingRequest, see
from glassformer.views.features import FeatureDictionaries, Features

router = APIRouter(tags=["glass"], prefix="/glass")


class FeaturesRequest(ReadingRequest):
    """POST /glass/features: a text, and an autoencoder by its name."""

    dictionary: Annotated[str, Field(min_length=1, max_length=200)]
    best: Annotated[int, Field(ge=1, le=64)] = TOP


class FeatureDictionariesRequest(DescriptionRequest):
    """POST /glass/feature-dictionaries"""


@router.post("/features", responses=view_answer(Features))
async def features(request: Request, body: FeaturesRequest) -> Json:
    """The features of a text, token by token, and how well they explain it."""

    def look(model: Model) -> Any:
        return body.reading(model).features(model.dictionary(body.dictionary), body.best)

    return await see(request, body, look, f"{body.python_reading}.features(model.dictionary(dictionary), best)")


@router.post("/feature-dictionaries", responses=view_answer(FeatureDictionaries))
async def feature_dictionaries(request: Request, body: FeatureDictionariesRequest) -> Json:
    """The autoencoders of the folder that the operator named, and whether each fits the model."""

    form = ViewForm.of(request, body)
    return form.answer(
        await call_model(request, body.model, lambda model: form.data(known_dictionaries(model, model.library)))
    )
