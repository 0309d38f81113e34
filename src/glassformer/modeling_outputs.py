"""What models give back, where scripts for transformers look for it: `from glassformer.modeling_outputs import …`."""

from __future__ import annotations

from glassformer.families.shared import outputs
from glassformer.families.shared.outputs import ModelOutput

_NAMES = {
    name: value
    for name, value in vars(outputs).items()
    if isinstance(value, type) and issubclass(value, ModelOutput) and name[0] != "_"
}
__all__ = sorted(_NAMES)
globals().update(_NAMES)
