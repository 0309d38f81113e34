"""The server's OpenAPI document, which the studio's types are generated from: `make studio`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from glassformer.serving.http.app import create_app
from glassformer.serving.registry import ModelSource, Registry


def document() -> dict[str, Any]:
    """The OpenAPI document of a server, whatever its models."""
    registry = Registry([ModelSource("model", _no_model)])
    api: dict[str, Any] = create_app(registry).openapi()
    registry.close()
    return api


def _no_model() -> Any:
    raise AssertionError("the document needs no model")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="where to write it")
    parser.parse_args().file.write_text(json.dumps(document(), sort_keys=True), "utf-8")
