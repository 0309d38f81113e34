"""A text that a model has read: every view of it, each by one call and in a pass of its own.

The views attach themselves: each is an operation in its own file of this folder. `reading_operations.pyi`, which is made
from them, tells type checkers and editors.
"""

from __future__ import annotations

from glassformer.ground.operations import READING, import_operations, operations_on
from glassformer.observe.activations import Activations
from glassformer.observe.reading_operations import ReadingOperations


class Reading(Activations, ReadingOperations):
    """A text that a model has read, and perhaps written."""


import_operations(__package__)
for _operation in operations_on(READING):
    setattr(Reading, _operation.name, _operation.method())
