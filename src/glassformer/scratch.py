"""The course's own model, by the names its chapters print: `from glassformer.scratch import Model`."""

from glassformer.ground.errors import needed_for

with needed_for(__name__):
    from glassformer.compat.scratch import Model, generate_with_trace

__all__ = ["Model", "generate_with_trace"]
