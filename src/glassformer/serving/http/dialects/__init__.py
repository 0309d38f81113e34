"""The dialects: a file here with a `router` is served, and its `DIALECT`, if it has one, says how its errors look."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from fastapi import APIRouter

from glassformer.serving.http.errors import Dialect

MODULES = [import_module(found.name) for found in iter_modules(__path__, f"{__name__}.")]
ROUTERS: list[APIRouter] = [module.router for module in MODULES]
DIALECTS: list[Dialect] = sorted(  # the longest prefix that fits a path is the first
    (module.DIALECT for module in MODULES if hasattr(module, "DIALECT")), key=lambda dialect: -len(dialect.prefix)
)
