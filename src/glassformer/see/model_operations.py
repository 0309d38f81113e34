"""The operations on a model as methods: each attaches itself by its first parameter.

Its file is imported when it is first asked for, so that an answer does not wait for the views. Type checkers and editors
know them by the stub, which is made from them.
"""

from __future__ import annotations

from glassformer.ground.operations import MODEL, attach_operations


class ModelOperations:
    """What can be seen of a model."""


attach_operations(ModelOperations, __package__, MODEL)
