"""The operations on a model and on its runs as methods: each attaches itself by its first parameter.

Its file is imported when it is first asked for, so that an answer does not wait for the views. Type checkers and editors
know them by the stub, which is made from them.
"""

from __future__ import annotations

from glassformer.ground.operations import MODEL, READING, RUN, attach_operations


class ModelOperations:
    """What can be seen of a model."""


class RunOperations:
    """What can be seen of a text that a model has written: also all that can be seen of it once it is read again."""


attach_operations(ModelOperations, __package__, MODEL)
attach_operations(RunOperations, __package__, READING, through="reading")
attach_operations(RunOperations, __package__, RUN)
