"""The one way into the tokenizers library, which reports some bad files and texts by a panic.

A panic of that library is no `Exception`, so no ordinary handler sees it, and a server would fall over one request.
Whatever goes wrong inside becomes one of our own errors here; only a person's interruption passes as it is.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from types import TracebackType

from glassformer.ground.errors import CheckpointError, GlassError

PASS_THROUGH = (KeyboardInterrupt, SystemExit, GlassError)


class LibraryErrors:
    """`with LibraryErrors("vocab.txt: … ({}). Fetch it again."):` the sentence has a hole for the library's own words."""

    __slots__ = ("sentence",)

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not isinstance(error, PASS_THROUGH):
            raise CheckpointError(self.sentence.replace("{}", str(error))) from error


ENCODE_ERRORS = LibraryErrors("the tokenizer's files do not let this text be encoded ({}). Fetch them again.")
DECODE_ERRORS = LibraryErrors("the tokenizer's files do not let these ids be decoded ({}). Fetch them again.")


def unknown_merge(merges: Iterable[tuple[str, str]], vocabulary: Container[str]) -> str | None:
    """The first token that merges make and a vocabulary lacks: the library may die of one, with a trace on stderr."""
    return next((left + right for left, right in merges if left + right not in vocabulary), None)
