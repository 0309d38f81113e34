"""What models give back, where scripts for transformers look for it: `from glassformer.modeling_outputs import …`."""

from __future__ import annotations

from typing import Any

from glassformer.ground.errors import needed_for

with needed_for(__name__):
    from glassformer.torch import outputs


def __getattr__(name: str) -> Any:
    kind = getattr(outputs, name, None)
    if name.startswith("_") or not (isinstance(kind, type) and issubclass(kind, outputs.ModelOutput)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return kind
