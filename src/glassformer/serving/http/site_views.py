"""POST /glass/sites: what can be read and changed in a model, and what other libraries call it."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request

from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import view_answer
from glassformer.serving.http.view_answers import ViewForm
from glassformer.views.site_names import SiteNames

router = APIRouter(tags=["glass"], prefix="/glass")


class SitesRequest(BaseModel):
    """POST /glass/sites"""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str | None = None


@router.post("/sites", responses=view_answer(SiteNames))
async def sites(request: Request, body: SitesRequest) -> Json:
    """Every site of a model, with its axes, its shape and its other names."""
    async with context_of(request).use(body.model) as served:
        form = ViewForm.of(request, body, "model.sites")
        return form.answer(form.data(served.model.sites))
