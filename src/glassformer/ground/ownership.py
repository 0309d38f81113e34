"""Objects that own something outside of Python: native memory, a descriptor, processes, or the lock around them.

What they own is released once. A copy would release it again, or use it afterwards, and in another process it means nothing.
So `copy`, `deepcopy` and `pickle`, which all ask for `__reduce_ex__`, get an error, or the object itself where sharing it is
safe. Nor does anything here release by reading attributes, which half-made objects lack and copied ones have twice: that is
left to a `weakref.finalize` of the one object that acquired it.
"""

from __future__ import annotations

from typing import Any, Never, Self, SupportsIndex

from glassformer.ground.errors import CopyError


class NotCopied:
    """A mixin for what owns something, and changes: it cannot be copied or pickled."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        raise CopyError(
            f"a {type(self).__name__} belongs to this process and cannot be copied or pickled: use the same one, or load "
            "the model again where it is needed."
        )


class Shared(NotCopied):
    """A mixin for what owns something, and can be used by many: its copy is the object itself. It cannot be pickled."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
