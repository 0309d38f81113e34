"""The server's OpenAPI document with every view's schema, which the studio's types are generated from: `make studio`."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import glassformer.views
from glassformer.serving.http.app import create_app
from glassformer.serving.registry import ModelSource, Registry
from glassformer.views.schema import schema
from glassformer.views.view import View


def document() -> dict[str, Any]:
    """The OpenAPI document; a view's schema stands among its components under its name and "Json"."""
    registry = Registry([ModelSource("model", _no_model)])
    api: dict[str, Any] = create_app(registry).openapi()
    registry.close()
    components = api["components"]["schemas"]
    for module in pkgutil.iter_modules(glassformer.views.__path__, "glassformer.views."):
        importlib.import_module(module.name)
    views = [view for view in View.__subclasses__() if view.__module__.startswith(f"{glassformer.views.__name__}.")]
    for view in sorted(views, key=lambda view: view.__name__):
        root = json.loads(json.dumps(schema(view)).replace("#/$defs/", "#/components/schemas/"))
        for name, part in {f"{view.__name__}Json": root, **root.pop("$defs")}.items():
            part.pop("$schema", None)
            if components.setdefault(name, part) != part:
                raise SystemExit(f"two schemas are called {name}. Rename one of the classes.")
    return api


def _no_model() -> Any:
    raise AssertionError("the document needs no model")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="where to write it")
    parser.parse_args().file.write_text(json.dumps(document(), sort_keys=True), "utf-8")
