"""The operations on a text that a model has read, as methods: each attaches itself by its first parameter.

Its file is imported when it is first asked for. Type checkers and editors know them by the stub, which is made from them.
"""

from __future__ import annotations

from glassformer.ground.operations import READING, attach_operations


class ReadingOperations:
    """What can be seen of a text that a model has read."""


attach_operations(ReadingOperations, __package__, READING)
