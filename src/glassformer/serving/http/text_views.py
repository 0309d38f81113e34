"""POST /glass/…: views of many texts. How many, how long and at how many sites is bounded before anything runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from glassformer.ground.errors import InputError
from glassformer.runtime.model import Model
from glassformer.see.activation_statistics import ActivationStatistics
from glassformer.see.probes import Probes
from glassformer.see.text_batches import token_sites
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import view_response
from glassformer.serving.http.views import DescriptionRequest, respond_with_view

router = APIRouter(tags=["glass"], prefix="/glass")
MAX_TEXTS = 256
MAX_TOKENS = 256  # of a text that are read
MAX_CHARACTERS = 20_000  # of a text
MAX_SITES = 64
MAX_LABELS = 16
Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
Site = Annotated[str, Field(max_length=200)]


class TextsRequest(DescriptionRequest):
    """Texts, read as they are."""

    texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    length: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = MAX_TOKENS  # tokens of a text, at most

    def check_sites(self, model: Model, patterns: list[str]) -> None:
        if len(token_sites(model, patterns)) > MAX_SITES:
            raise InputError(f"these are more than {MAX_SITES} sites. Name fewer.")


class ProbeRequest(TextsRequest):
    """POST /glass/probe: one label for each text."""

    labels: Annotated[list[Annotated[str, Field(max_length=200)]], Field(min_length=1, max_length=MAX_TEXTS)]
    sites: Annotated[list[Site], Field(min_length=1, max_length=MAX_SITES)] | None = None
    position: Literal["last", "mean"] = "last"


class StatisticsRequest(TextsRequest):
    """POST /glass/activations"""

    sites: Annotated[list[Site], Field(min_length=1, max_length=MAX_SITES)]
    neurons: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)] | None = None
    examples: Annotated[int, Field(ge=1, le=20)] = 5


@router.post("/probe", responses=view_response(Probes))
async def probe(request: Request, body: ProbeRequest) -> Json:
    """A linear probe of labelled texts at each of some sites, and its accuracy on held-out ones."""

    def compute(model: Model) -> Any:
        stream = "encoder.blocks.*.residual" if model.decoder_start_token is not None else "blocks.*.residual"
        sites = body.sites or [stream]
        body.check_sites(model, sites)
        if len(set(body.labels)) > MAX_LABELS:
            raise InputError(f"these are more than {MAX_LABELS} different labels. Give fewer.")
        return model.read_many(body.texts, length=body.length).probe(body.labels, *sites, position=body.position).view

    sites = "*sites" if body.sites else "'blocks.*.residual'"
    python = f"model.read_many(texts, length=length).probe(labels, {sites}, position=position).view"
    return await respond_with_view(request, body, compute, python)


@router.post("/activations", responses=view_response(ActivationStatistics))
async def activations(request: Request, body: StatisticsRequest) -> Json:
    """What texts have in common at some sites: means, deviations, and where neurons are strongest."""

    def compute(model: Model) -> Any:
        body.check_sites(model, body.sites)
        readings = model.read_many(body.texts, length=body.length)
        return readings.statistics(*body.sites, examples=body.examples).view(body.neurons)

    python = "model.read_many(texts, length=length).statistics(*sites, examples=examples).view(neurons)"
    return await respond_with_view(request, body, compute, python)
