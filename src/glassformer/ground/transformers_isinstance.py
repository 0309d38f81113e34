"""Objects that `isinstance` takes for those of transformers, in a program that has imported it.

Libraries ask for transformers' classes before they accept a model or a tokenizer: lm-eval asserts that a tokenizer is a
`PreTrainedTokenizerFast`, peft adapts `Conv1D`, `Trainer` saves a `PreTrainedModel` whole and of everything else the bare
weights. Nothing here derives from those classes, and nothing imports them. But where an object's type is no subclass,
`isinstance` asks for its `__class__`, as it does for proxies and mocks. It is shown a class with two parents: ours, whose
attributes come first, and transformers'. Calling that class makes an object of ours.
"""

from __future__ import annotations

import copyreg
import sys
from functools import cache
from typing import Any, ClassVar

_TRUE_CLASS: Any = vars(object)["__class__"]


class FamiliarClass:
    """A mixin; `transformers_classes` names what the objects pass for, where it is in different versions of transformers."""

    transformers_classes: ClassVar[tuple[str, ...]] = ()  # with modules: "transformers.modeling_utils.PreTrainedModel"

    @property
    def __class__(self) -> type[Any]:
        cls: Any = type(self)
        shown: type[Any] = cls
        for path in cls.transformers_classes:
            module, _, name = path.rpartition(".")
            theirs = getattr(sys.modules.get(module), name, None)
            if theirs is not None and not issubclass(cls, theirs):
                shown = _with_both_parents(cls, theirs)
        return shown

    @__class__.setter
    def __class__(self, cls: type[Any]) -> None:  # FSDP and parametrizations give a module another class
        _TRUE_CLASS.__set__(self, cls)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As ever, except that pickle must not compare `__class__` with the type."""
        reduced: Any = object.__reduce_ex__(self, protocol)
        make, *others = reduced
        return (_new if make is copyreg.__newobj__ else make, *others)  # type: ignore[attr-defined]


def _new(cls: type[Any], *arguments: Any) -> Any:
    return cls.__new__(cls, *arguments)


@cache
def _with_both_parents(ours: Any, theirs: Any) -> type[Any]:
    def make(cls: type[Any], *args: Any, **named: Any) -> Any:
        return ours(*args, **named)

    names = {"__new__": make, "__module__": ours.__module__, "__qualname__": ours.__qualname__, "__doc__": ours.__doc__}
    return type(ours.__name__, (ours, theirs), names)
