"""The short API: `load` a model by name, then `chat`, `stream` or `watch` it."""

from glassformer.runtime.model import Model, load
from glassformer.runtime.run import Run

__all__ = ["Model", "Run", "load"]
