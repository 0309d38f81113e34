"""A text that a model has read: every view of it, each by one call and in a pass of its own.

The views attach themselves: each is an operation in its own file of this folder. Type checkers and editors know them by
`reading.pyi`, which is made from them.
"""

from __future__ import annotations

from glassformer.ground.operations import READING, import_operations, operations_on
from glassformer.observe.activations import Activations


class Reading(Activations):
    """A text that a model has read, and perhaps written."""


import_operations(__package__)
for _operation in operations_on(READING):
    setattr(Reading, _operation.name, _operation.method())
