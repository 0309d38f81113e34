"""An operation is stated once: its signature, its types and its docstring say all that there is to know of it.

    @operation(route="attention-maps")
    def attention_maps(
        reading: Activations,
        first: Annotated[int, about("The first layer that is shown; -1 is the last.")] = 0,
        …
    ) -> AttentionMaps:
        \"""Show every head's attention in a text, a byte for each weight.\"""

From that come: the method with its checks and its help; with a `route`, `POST /glass/ROUTE` with its schema, the Python line
that a page offers, the studio's form and the row in docs/serving.md; with an `example`, the verb.

The first parameter says whose method it is: `model` is `Model`'s, `reading` that of a text which a model has read, `run`
that of one which it wrote. The file in which it is stated is imported when the method is first asked for (`LazyMethod`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from glassformer.ground.arguments import argument_types, checked

F = TypeVar("F", bound=Callable[..., Any])
MODEL, READING, RUN = "model", "reading", "run"  # first parameters: of operations on a model, on a text it read or wrote
COMMAND = "model_options"  # that of a view which the command makes by itself: how a model is loaded
ON_TEXT = (READING, "command.reading")  # owners of operations on a text; the second: of those that the command alone has
PROGRESS = "progress"  # a parameter that is told how far the work is
SECTION = "Look inside"  # of the command's help, in which a verb stands unless it says otherwise
STATEMENT = re.compile(  # what a file has for each operation: its arguments, its function, the first parameter, the help
    rb'\n@operation\((.*?)\)\ndef (\w+)\(\s*(\w+).*?\n    """(.*?)(?:\n\n|""")', re.DOTALL
)
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
    served: Any = True  # whether requests have it; or their type, where Python takes more; or that type's name
    served_minimum: float | None = None
    served_maximum: float | None = None
    served_length: int | None = None  # of a text, at most
    served_items: tuple[int, int] | None = None  # how many a list has, at least and at most
    served_default: Any = None  # where it is not Python's
    typed: Any = None  # its type at the command line, where Python takes more; False: it is not typed there
    from_file: bool = False  # whether a file of rows is typed in its place
    every_position: bool = False  # what `--all` asks for
    opened_by: str | None = None  # the method of a model that opens it by name: commands and requests name it

    def named(self, parameter: str) -> tuple[str, ...]:
        """Its options at the command line, or its place there."""
        place = (self.metavar or parameter.upper()).strip("[]")
        return self.names or (place if self.positional else f"--{parameter.replace('_', '-')}",)


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
    several: bool  # whether it is several arguments of Python: *sites

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty and self.info.served_default is None

    def named(self) -> tuple[str, ...]:
        """As it is typed."""
        return self.info.named(self.name)

    def open(self, value: Any, model: Any, **more: Any) -> Any:
        """A value as it was typed or requested, with what it names opened; words that its type has are no names."""
        if self.info.opened_by is None or value is None:
            return value
        if value == self.info.none_word:
            return None
        words = [word for part in get_args(self.hint) if get_origin(part) is Literal for word in get_args(part)]
        return value if value in words else getattr(model, self.info.opened_by)(value, **more)


@dataclass(frozen=True, eq=False)
class Operation:
    """A function that is offered everywhere."""

    function: Callable[..., Any]
    name: str  # of the method
    route: str | None  # under /glass/
    verb: str | None  # of the command, perhaps with other operations
    chosen_by: tuple[str, ...]  # the arguments or flags that ask the verb for this one of them
    flags: Mapping[str, str]  # those of them that are no arguments and mean no more than the defaults, with their help
    example: str | None  # of the verb, at the operation that says what it is for
    verb_help: str | None  # what the verb is for, if that is more than this operation
    owner: str  # whose method it is, as Python spells it: reading, model, model.circuits, reading.attention
    is_property: bool
    passes: bool  # whether it runs the model, and does not just read files or weights
    settings_of: Callable[..., Any] | None  # to which it passes on its `**settings`
    needs: Mapping[str, str]  # arguments of its verb that have no use without another one
    excludes: tuple[tuple[str, str], ...]  # those of which one has no use with the other

    @property
    def on_text(self) -> bool:
        return (self.owner if self.subject is None else self.subject.owner) in ON_TEXT

    @property
    def subject(self) -> Operation | None:
        """The operation whose result it is a method of: `model.circuits`, `reading.attention`."""
        owner, _, name = self.owner.rpartition(".")
        return OPERATIONS.get((owner, name))

    @property
    def line(self) -> tuple[Operation, ...]:
        """It and the operations that lead to it, which come first."""
        return (self,) if self.subject is None else (*self.subject.line, self)

    @property
    def takes_prompt(self) -> bool:
        """Whether it makes a prompt of a text itself."""
        return "prompt" in inspect.signature(self.function).parameters

    @property
    def makes_prompts(self) -> bool:
        """Whether it is told how a text becomes a prompt."""
        parameters = inspect.signature(self.function).parameters.values()
        return self.settings_of is None and any(p.kind is p.VAR_KEYWORD for p in parameters)

    @property
    def reports_progress(self) -> bool:
        return any(PROGRESS in inspect.signature(one.function).parameters for one in self.line)

    @property
    def summary(self) -> str:
        return summary(inspect.getdoc(self.function))

    @property
    def view_name(self) -> str:
        """The class of what it gives."""
        return str(self.function.__annotations__["return"])

    @functools.cached_property
    def arguments(self) -> tuple[OperationArgument, ...]:
        """Those that somebody chooses: not the text or the model, not how a text becomes a prompt, not the progress.

        Also those of the operations that lead to it.
        """
        return tuple(argument for one in self.line for argument in one.own_arguments)

    @functools.cached_property
    def own_arguments(self) -> tuple[OperationArgument, ...]:
        settings = {} if self.settings_of is None else {one.name: one for one in arguments_of(self.settings_of)}
        own = {one.name: one for one in arguments_of(self.function)}
        own = {name: one if one.info.help else settings.get(name, one) for name, one in own.items()}
        passed_on = {name: one for name, one in settings.items() if one.info.help and one.info.typed is not False}
        return tuple({**own, **passed_on, **own}.values())

    @property
    def served_arguments(self) -> list[OperationArgument]:
        return [argument for argument in self.arguments if argument.info.served]

    def call(self, owner: Any, values: Mapping[str, Any]) -> Any:
        """What it gives of a model or of a text; `values`: by name, also those for the operations that lead to it."""
        if self.subject is not None:
            taken = inspect.signature(self.function).parameters
            owner = self.subject.call(owner, {name: value for name, value in values.items() if name not in taken})
            values = {name: value for name, value in values.items() if name in taken}
        if self.owner.startswith("command."):
            return self.function(owner, **values)
        member = getattr(owner, self.name)
        if self.is_property:
            return member
        several = {argument.name: values.get(argument.name) or () for argument in self.own_arguments if argument.several}
        if not several:
            return member(**values)
        bound = inspect.BoundArguments(inspect.signature(member), OrderedDict({**values, **several}))
        return member(*bound.args, **bound.kwargs)

    def method(self, through: str = "") -> Any:
        """The function as a method or a property, with its checks and all of its help.

        `through`: the attribute that has what the function takes first, if it is not the object itself.
        """
        method = checked(self.function, self.name, first_is_self=True)
        method.__name__, method.__doc__ = self.name, full_help(self.function)
        method.__signature__ = self._plain_signature()  # type: ignore[attr-defined]
        if through:
            direct = method
            method = functools.wraps(direct)(lambda self, *args, **named: direct(getattr(self, through), *args, **named))
        return property(method) if self.is_property else method

    def _plain_signature(self) -> inspect.Signature:
        """Its signature, with types that people read."""
        signature, hints = inspect.signature(self.function), argument_types(self.function)
        plain = [p.replace(annotation=_split(hints.get(p.name, p.annotation))[0]) for p in signature.parameters.values()]
        return signature.replace(parameters=plain)


OPERATIONS: dict[tuple[str, str], Operation] = {}  # by owner and name


def operation(
    *, name: str | None = None, route: str | None = None, verb: str | None = None, chosen_by: tuple[str, ...] = (),
    flags: Mapping[str, str] | None = None, example: str | None = None, verb_help: str | None = None,
    section: str = SECTION, owner: str | None = None, is_property: bool = False, passes: bool = True,
    settings_of: Callable[..., Any] | None = None, needs: Mapping[str, str] | None = None,
    excludes: tuple[tuple[str, str], ...] = (),
) -> Callable[[F], F]:  # fmt: skip
    """The decorator of a function that is an operation; the function stays what it is.

    Args:
        name: of the method, by default the function's.
        route: under which it is served, below /glass/.
        verb: of the command, which it may share with others; with an example by default its name.
        chosen_by: arguments of which each asks a shared verb for this operation; what is no argument becomes a flag.
        flags: further flags that ask for it as it is by default, and their help.
        example: of its verb, `glass NAME`; several are separated by three blanks, a middle dot and three blanks.
        verb_help: what that verb is for, in a sentence; by default what this operation is for.
        section: of the command's help in which its verb stands (`cli/app.py`).
        owner: whose method it is; by default as the first parameter says.
        is_property: whether Python gets it without a call.
        passes: whether it runs the model.
        settings_of: a function whose described arguments are this one's `**settings`, and say what its own mean.
        needs: for some arguments of its verb the one that each has no use without; at the operation with the example.
        excludes: pairs of them, of which one has no use with the other.
    """

    def register(function: F) -> F:
        whose = owner or next(iter(inspect.signature(function).parameters))
        called = name or function.__name__
        word = verb or (None if example is None else called.replace("_", "-"))
        more = flags or {}
        OPERATIONS[whose, called] = Operation(
            function, called, route, word, (*chosen_by, *more), more, example, verb_help, whose, is_property, passes,
            settings_of, needs or {}, excludes,
        )  # fmt: skip
        return function

    return register


@dataclass(frozen=True)
class Statement:
    """What can be known of an operation without importing its file."""

    module: str
    owner: str
    name: str
    summary: str
    verb: str | None
    verb_help: str  # its summary, if nothing else is said
    section: str | None  # of the command's help, at the operation that says what the verb is for


@functools.cache
def statements(package: str) -> tuple[Statement, ...]:
    """The operations that are stated in a package, read off its files."""
    found = []
    for folder in map(Path, importlib.import_module(package).__path__):
        for file in sorted(folder.rglob("*.py")):
            module = ".".join([package, *file.relative_to(folder).with_suffix("").parts])
            for match in STATEMENT.finditer(file.read_bytes()):
                decorator, function, first, text = (part.decode() for part in match.groups())
                given = dict(re.findall(r'\b(name|owner|verb|verb_help|section)="([^"]+)"', decorator))
                owner, name = given.get("owner", first), given.get("name", function)
                explains = "example=" in decorator
                verb = given.get("verb", name.replace("_", "-") if explains else None)
                section = given.get("section", SECTION) if explains else None
                verb_help = given.get("verb_help", summary(text))
                found.append(Statement(module, owner, name, summary(text), verb, verb_help, section))
    return tuple(found)


class LazyMethod:
    """An operation as a method or a property of a class, whose file is imported when it is first asked for."""

    def __init__(self, statement: Statement, cls: type, through: str) -> None:
        self.statement, self.cls, self.through = statement, cls, through

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        importlib.import_module(self.statement.module)
        method = OPERATIONS[self.statement.owner, self.statement.name].method(self.through)
        setattr(self.cls, self.statement.name, method)
        return method.__get__(instance, owner)


def attach_operations(cls: type, package: str, owner: str, through: str = "") -> None:
    """Give a class the operations of a package that are on it, or on one of its attributes."""
    for statement in statements(package):
        if statement.owner == owner:
            setattr(cls, statement.name, LazyMethod(statement, cls, through))


def operations_on(owner: str) -> list[Operation]:
    """Those of one owner, by name."""
    return sorted((stated for stated in OPERATIONS.values() if stated.owner == owner), key=lambda stated: stated.name)


def import_operations(package: str) -> None:
    """Import the files of a package in which operations are stated."""
    for module in dict.fromkeys(statement.module for statement in statements(package)):
        importlib.import_module(module)


def import_files(package: str, chosen: Callable[[bytes], bool]) -> None:
    """Import some files of a package, chosen by their text, so that the others can wait."""
    for folder in map(Path, importlib.import_module(package).__path__):
        for file in sorted(folder.rglob("*.py")):
            if chosen(file.read_bytes()):
                importlib.import_module(".".join([package, *file.relative_to(folder).with_suffix("").parts]))


def summary(text: str | None) -> str:
    """The first paragraph of a help text, in one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def full_help(function: Callable[..., Any]) -> str:
    """A function's docstring with what each argument means, where that is said in its type."""
    text = inspect.getdoc(function) or ""
    described = [
        fill(f"{argument.name}: {argument.info.help}", WIDTH, initial_indent="    ", subsequent_indent="        ")
        for argument in arguments_of(function)
        if argument.info.help
    ]
    return "\n".join([text.partition("\n\nArgs:")[0], "", "Args:", *described]) if described else text


def described(function: F) -> F:
    """A method whose docstring says what its arguments mean, as their types have it."""
    function.__doc__ = full_help(function)
    return function


def arguments_of(function: Callable[..., Any]) -> Iterator[OperationArgument]:
    """Those that a function takes by name, but for the first one, the prompt and the progress."""
    hints = argument_types(function)
    for p in list(inspect.signature(function).parameters.values())[1:]:
        if p.name not in ("prompt", PROGRESS) and p.kind is not p.VAR_KEYWORD:
            several = p.kind is p.VAR_POSITIONAL
            argument = OperationArgument(p.name, *_split(hints[p.name]), p.default, p.kind is p.KEYWORD_ONLY, several)
            if argument.info.help or not several:
                yield argument


def _split(hint: Any) -> tuple[Any, ArgumentInfo]:
    """A type, and what is said about it."""
    if get_origin(hint) is Annotated:
        info = next((part for part in hint.__metadata__ if isinstance(part, ArgumentInfo)), None)
        if info is not None:
            return get_args(hint)[0], info
    return hint, ArgumentInfo("")
