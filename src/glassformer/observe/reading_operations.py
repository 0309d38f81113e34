"""What `Reading` has of its operations, for type checkers: `tools/operation_texts.py` writes the stub beside this file."""


class ReadingOperations:
    """The operations on a text, which attach themselves to `Reading`."""
