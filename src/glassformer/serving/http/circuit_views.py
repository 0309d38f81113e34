"""POST /glass/attribution, graph, circuit and composition: how a score came about, and heads by their weights."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from glassformer.ground.errors import InputError, spelled_by
from glassformer.observe.attribution_graph import THRESHOLD
from glassformer.observe.circuits import BEST, MAX_TOKENS
from glassformer.runtime.model import Model
from glassformer.serving.http.context import call_model
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import view_answer
from glassformer.serving.http.python_lines import OPTIONS
from glassformer.serving.http.settings import request_spelling
from glassformer.serving.http.view_answers import ViewForm
from glassformer.serving.http.views import (
    DescriptionRequest,
    ModelRequest,
    Number,
    Prompt,
    ReadingRequest,
    resolve_prompt,
    see,
)
from glassformer.views.attribution import Attribution, ScoreMetric
from glassformer.views.attribution_graph import AttributionGraph
from glassformer.views.circuit import HeadCircuit
from glassformer.views.composition import Composition

router = APIRouter(tags=["glass"], prefix="/glass")
LEAST_THRESHOLD = 0.001  # of a graph: a lower one has more edges than anybody looks at


class AttributionRequest(ReadingRequest):
    """POST /glass/attribution: a token's lead at a position, by default the best one's, over the runner-up."""

    position: int | str = -1
    token: Number | str | None = None
    against: Number | str | None = None
    metric: ScoreMetric = "lead"
    centred: bool = False  # the logit less the mean over the vocabulary


class GraphRequest(AttributionRequest):
    """POST /glass/graph"""

    threshold: Annotated[float, Field(ge=LEAST_THRESHOLD, le=1)] = THRESHOLD


class CircuitRequest(ModelRequest):
    """POST /glass/circuit: a head, for the tokens of a prompt, for some tokens, or for those that it copies most."""

    layer: Number
    head: Number
    prompt: Prompt | None = None
    target: str | None = None  # an encoder-decoder's output
    tokens: Annotated[list[Number | str], Field(min_length=1, max_length=MAX_TOKENS)] | None = None
    distance: Number = 0
    best: Annotated[int, Field(ge=1, le=20)] = BEST


class CompositionRequest(DescriptionRequest):
    """POST /glass/composition: of the heads of one layer with all earlier ones, or of all heads."""

    layer: Number | None = None
    baseline: bool = False


@router.post("/attribution", responses=view_answer(Attribution))
async def attribution(request: Request, body: AttributionRequest) -> Json:
    """What each block and head added to a token's lead."""

    def look(model: Model) -> Any:
        return body.reading(model).attribution(
            body.position, body.token, body.against, metric=body.metric, centred=body.centred
        )

    call = "attribution(position, token, against, metric=metric, centred=centred)"
    return await see(request, body, look, f"{body.python_reading}.{call}")


@router.post("/graph", responses=view_answer(AttributionGraph))
async def graph(request: Request, body: GraphRequest) -> Json:
    """From which tokens and parts, and through which heads, a token's lead came."""

    def look(model: Model) -> Any:
        return body.reading(model).graph(
            body.position, body.token, body.against, metric=body.metric, centred=body.centred, threshold=body.threshold
        )

    call = "graph(position, token, against, metric=metric, centred=centred, threshold=threshold)"
    return await see(request, body, look, f"{body.python_reading}.{call}")


@router.post("/circuit", responses=view_answer(HeadCircuit))
async def circuit(request: Request, body: CircuitRequest) -> Json:
    """What an attention head looks for and what it writes, in tokens."""
    if body.prompt is not None and body.tokens is not None:
        raise InputError("prompt and tokens both name tokens: give one of them.")

    def look(model: Model) -> Any:
        if body.prompt is None:
            return model.circuits.head(body.layer, body.head, body.tokens, distance=body.distance, best=body.best)
        reading = model.read(resolve_prompt(body.prompt, model), body.target, **body.prompt_options)
        return reading.circuit(body.layer, body.head, distance=body.distance, best=body.best)

    python = f"model.read(prompt, target, {OPTIONS}).circuit(layer, head, distance=distance, best=best)"
    if body.prompt is None:
        python = "model.circuits.head(layer, head, tokens, distance=distance, best=best)"
    return await see(request, body, look, python)


@router.post("/composition", responses=view_answer(Composition))
async def composition(request: Request, body: CompositionRequest) -> Json:
    """How much heads read of what earlier heads write."""

    form = ViewForm.of(request, body, "model.circuits.composition(layer, baseline=baseline)")

    def work(model: Model) -> dict[str, Any]:
        with spelled_by(request_spelling):
            return form.data(model.circuits.composition(body.layer, baseline=body.baseline))

    return form.answer(await call_model(request, body.model, work, passes=False))  # weights are read
