"""An operation is stated once: its signature, its types and its docstring say all that there is to know of it.

    @operation(route="attention-maps")
    def attention_maps(
        reading: Activations,
        first: Annotated[int, about("The first layer that is shown; -1 is the last.")] = 0,
        …
    ) -> AttentionMaps:
        \"""Show every head's attention in a text, a byte for each weight.\"""

From that come: the method of `Reading` with its checks and its help; with a `route`, `POST /glass/ROUTE` with its schema,
the Python line that a page offers, the studio's form and the row in docs/serving.md; with an `example`, the verb.

Operations on a text are functions under `observe/` whose first parameter is `reading`; those on a model are its methods.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, TypeVar, get_args, get_origin

from glassformer.ground.arguments import argument_types, checked

F = TypeVar("F", bound=Callable[..., Any])
READING = "reading"  # the first parameter of an operation on a text
PROGRESS = "progress"  # a parameter that is told how far the work is
MARK = b"\n@operation("  # what a file has in which an operation is stated
WIDTH = 118


@dataclass(frozen=True)
class ArgumentInfo:
    """What the type of an argument cannot say of it: its help, its options, its bounds."""

    help: str
    names: tuple[str, ...] = ()  # as typed at the command line; none: --its-name
    positional: bool = False  # at the command line
    metavar: str | None = None
    envvar: str | None = None
    default_shown: str | bool = True
    minimum: int | None = None
    maximum: int | None = None
    check: Callable[[Any], Any] | None = None  # of the value that was typed; gives what is passed on
    none_word: str | None = None  # a word that stands for None at the command line
    served: Any = True  # whether requests have it; or a type for theirs, where Python takes more
    served_minimum: float | None = None
    served_maximum: float | None = None
    served_length: int | None = None  # of a text, at most
    opened_by: str | None = None  # the method of a model that opens it by name: commands and requests name it

    def named(self, parameter: str) -> tuple[str, ...]:
        return self.names or (parameter if self.positional else f"--{parameter.replace('_', '-')}",)


def about(help: str, *names: str, **more: Any) -> ArgumentInfo:  # noqa: A002
    """Of an operation's argument: what it means, in a sentence, and its options if they are not called like it."""
    return ArgumentInfo(help, names, **more)


@dataclass(frozen=True)
class OperationArgument:
    """One argument of an operation."""

    name: str
    hint: Any  # its type, without what is said about it
    info: ArgumentInfo
    default: Any  # `inspect.Parameter.empty`: it is required
    by_name: bool  # whether Python takes it by its name alone

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True)
class Operation:
    """A function that is offered everywhere."""

    function: Callable[..., Any]
    route: str | None  # under /glass/
    example: str | None  # of the verb
    owner: str  # whose method it is, as Python spells it: reading, model, model.circuits
    is_property: bool
    passes: bool  # whether it runs the model, and does not just read files or weights

    @property
    def name(self) -> str:
        """Its own, and that of the method."""
        return self.function.__name__

    @property
    def on_text(self) -> bool:
        return self.owner == READING

    @property
    def takes_prompt(self) -> bool:
        """Whether it makes a prompt of a text itself."""
        return "prompt" in inspect.signature(self.function).parameters

    @property
    def reports_progress(self) -> bool:
        return PROGRESS in inspect.signature(self.function).parameters

    @property
    def help(self) -> str:
        """Its docstring, without what each argument means."""
        return (inspect.getdoc(self.function) or "").partition("\n\nArgs:")[0]

    @property
    def summary(self) -> str:
        return summary(self.help)

    @property
    def view_name(self) -> str:
        """The class of what it gives."""
        return str(self.function.__annotations__["return"])

    @functools.cached_property
    def arguments(self) -> tuple[OperationArgument, ...]:
        """Those that somebody chooses: not the text or the model, not how a text becomes a prompt, not the progress."""
        hints = argument_types(self.function)
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        chosen = [p for p in parameters if p.name not in ("prompt", PROGRESS) and p.kind is not p.VAR_KEYWORD]
        return tuple(OperationArgument(p.name, *_split(hints[p.name]), p.default, p.kind is p.KEYWORD_ONLY) for p in chosen)

    def served_arguments(self) -> Iterator[OperationArgument]:
        return (argument for argument in self.arguments if argument.info.served)

    def method(self) -> Callable[..., Any]:
        """The function as a method, with its checks and all of its help."""
        method = checked(self.function, self.name, first_is_self=True)
        method.__doc__ = self.full_help()
        method.__signature__ = self._plain_signature()  # type: ignore[attr-defined]
        return method

    def _plain_signature(self) -> inspect.Signature:
        """Its signature, with types that people read."""
        signature, hints = inspect.signature(self.function), argument_types(self.function)
        plain = [p.replace(annotation=_split(hints[p.name])[0]) for p in signature.parameters.values()]
        return signature.replace(parameters=plain)

    def full_help(self) -> str:
        described = [
            fill(f"{argument.name}: {argument.info.help}", WIDTH, initial_indent="    ", subsequent_indent="        ")
            for argument in self.arguments
            if argument.info.help
        ]
        return "\n".join([self.help, "", "Args:", *described]) if described else self.help


OPERATIONS: dict[tuple[str, str], Operation] = {}  # by owner and name


def operation(
    *, route: str | None = None, example: str | None = None, owner: str | None = None, is_property: bool = False,
    passes: bool = True,
) -> Callable[[F], F]:  # fmt: skip
    """The decorator of a function that is an operation; the function stays what it is.

    Args:
        route: under which it is served, below /glass/.
        example: of its verb, `glass NAME`; several are separated by three blanks, a middle dot and three blanks.
        owner: whose method it is; by default `reading` or `model`, as the first parameter says.
        is_property: whether Python gets it without a call.
        passes: whether it runs the model.
    """

    def register(function: F) -> F:
        first = next(iter(inspect.signature(function).parameters))
        whose = owner or (READING if first == READING else "model")
        OPERATIONS[whose, function.__name__] = Operation(function, route, example, whose, is_property, passes)
        return function

    return register


def operations_on(owner: str) -> list[Operation]:
    """Those of one owner, by name."""
    return sorted((stated for stated in OPERATIONS.values() if stated.owner == owner), key=lambda stated: stated.name)


def import_operations(package: str) -> None:
    """Import the files of a package in which operations are stated. They are known by their text: the others can wait."""
    for file in files_with_operations(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{file.stem}")


def files_with_operations(folders: Sequence[str]) -> Iterator[Path]:
    """The files of some folders in which operations are stated."""
    files = (file for folder in folders for file in sorted(Path(folder).glob("*.py")))
    return (file for file in files if MARK in file.read_bytes())


def stated_verbs(folders: Sequence[str]) -> dict[str, str]:
    """The verbs of the operations in some folders, each with its summary: read off the files, so that none is imported."""
    verbs = {}
    for file in files_with_operations(folders):
        source = file.read_bytes()
        for node in ast.parse(source).body if b"example=" in source else ():
            if isinstance(node, ast.FunctionDef) and any(map(_has_example, node.decorator_list)):
                verbs[node.name.replace("_", "-")] = summary(ast.get_docstring(node))
    return verbs


def _has_example(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and any(keyword.arg == "example" for keyword in decorator.keywords)


def summary(text: str | None) -> str:
    """The first paragraph of a help text, in one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def _split(hint: Any) -> tuple[Any, ArgumentInfo]:
    """A type, and what is said about it."""
    if get_origin(hint) is Annotated:
        info = next((part for part in hint.__metadata__ if isinstance(part, ArgumentInfo)), None)
        if info is not None:
            return get_args(hint)[0], info
    return hint, ArgumentInfo("")
