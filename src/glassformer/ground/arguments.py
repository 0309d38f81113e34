"""The check at every public entrance: a call's arguments against the function's own signature and annotations.

    @checked
    def plan(source: Any, length: int = 16) -> Plan: ...

    plan(config, lenght=3)    UnknownArgument: plan() has no argument 'lenght'. Did you mean 'length'? …
    plan(config, "3")         InputTypeError: plan(): length is '3'; it must be a whole number.

Only arguments are checked: whatever goes wrong inside keeps its own error and traceback, except that an extra which is not
installed is named. NumPy's numbers become Python's. Bounds, and what depends on the model, are the function's own business.
"""

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_type_hints

from glassformer.ground.errors import InputError, InputTypeError, UnknownArgument, did_you_mean, needed_for, spell
from glassformer.ground.typecheck import Unknown, as_python_number, brief, matches_type, text_choices, type_words

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


def checked(function: Callable[P, R], name: str | None = None, *, first_is_self: bool = False) -> Callable[P, R]:
    """The function, whose arguments are checked before it runs; `name` is what messages call it.

    `first_is_self`: it becomes a method, whatever its first parameter is called.
    """
    title = name or function.__name__
    subject = next(iter(_signature(function).parameters)) if first_is_self else "self"

    @functools.wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        bound = bind(function, title, args, named, subject)
        hints = argument_types(function)
        for argument, value in bound.arguments.items():
            if argument in hints:
                value = bound.arguments[argument] = as_python_number(value)
                several = _signature(function).parameters[argument].kind is inspect.Parameter.VAR_POSITIONAL
                for item in value if several else (value,):
                    check_type(title, argument, item, hints[argument])
        with needed_for():
            return function(*bound.args, **bound.kwargs)

    return call


def checked_class(cls: C) -> C:
    """The class, each of whose public methods checks its arguments."""
    for name, member in vars(cls).copy().items():
        if name.startswith("_"):
            continue
        if inspect.isfunction(member):
            setattr(cls, name, checked(member))
        elif isinstance(member, classmethod):
            setattr(cls, name, classmethod(checked(member.__func__)))
    return cls


def checked_init(cls: C) -> C:
    """The class, whose constructor checks its arguments."""
    cls.__init__ = checked(cls.__init__, cls.__name__)  # type: ignore[misc]
    return cls


def bind(function: Callable[..., Any], title: str, args: Any, named: Any, subject: str = "self") -> inspect.BoundArguments:
    """The arguments by name; an unknown or missing one is an error that says which there are.

    `subject`: the parameter that the caller does not pass.
    """
    signature = _signature(function)
    try:
        return signature.bind(*args, **named)
    except TypeError:
        parameters = {name: p for name, p in signature.parameters.items() if name not in (subject, "cls")}
    known = [name for name, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    takes = f"It takes: {', '.join(known)}." if known else "It takes none."
    for word in named:
        if word not in known:
            raise UnknownArgument(f"{title}() has no argument {word!r}.{did_you_mean(word, known)} {takes}")
    owned = len(signature.parameters) - len(parameters)  # self
    positional = [name for name in known if parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(args) - owned > len(positional):
        raise InputTypeError(
            f"{title}() takes {len(positional)} arguments without a name at most, not {len(args) - owned}. {takes}"
        )
    given = {*positional[: len(args) - owned], *named}
    missing = [name for name in known if name not in given and parameters[name].default is inspect.Parameter.empty]
    if missing:
        raise InputTypeError(f"{title}() needs {missing[0]}. {takes}")
    raise InputTypeError(f"{title}() has an argument twice, once by its place and once by its name. {takes}")


def check_type(title: str, argument: str, value: Any, hint: Any) -> None:
    """Refuse a value that is not of the type."""
    if not matches_type(value, hint):
        subject = spell(argument)
        subject = f"{title}(): {argument}" if subject == argument else subject
        message = f"{subject} is {brief(value)}; it must be {type_words(hint, python=True)}."
        if isinstance(value, str) and (choices := text_choices(hint)):
            raise InputError(f"{message}{did_you_mean(value, choices)}")
        raise InputTypeError(message)


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


class _Names(dict[str, Any]):
    """The names of a module; one that is imported for type checking alone stands for any type."""

    def __missing__(self, name: str) -> type[Unknown]:
        return Unknown


@functools.cache
def argument_types(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's arguments, without those of **keywords."""
    names = _Names({**vars(builtins), **getattr(inspect.unwrap(function), "__globals__", {})})
    hints = get_type_hints(function, localns=names, include_extras=True)
    parameters = _signature(function).parameters.items()
    return {name: hints[name] for name, p in parameters if name in hints and p.kind is not p.VAR_KEYWORD}
