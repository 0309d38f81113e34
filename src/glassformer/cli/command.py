"""A verb's command: the function's signature says what the command line takes, click parses it.

    def lens(prompt: PromptArgument = None, *, output: OutputGroup) -> None: ...

A parameter is annotated with `option(…)` or `argument(…)`; one that is an `OptionGroup` stands for the group's fields, under
a heading of their own in the help. Help is plain text, so that its examples can be copied.

(typer reads signatures too, but takes a tenth of a second at every start, as long as it takes to open a model.)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from glassformer.cli.command_synonyms import familiar_command, familiar_option
from glassformer.ground.errors import InputError, did_you_mean, needed_for
from glassformer.ground.operations import ArgumentInfo, summary

OTHER_NAMES = {"--out": ("--output", "-o")}  # of an option, where the command has no other of that name


@dataclass(frozen=True)
class OptionGroup:
    """Options that belong together, as fields."""

    HEADING: ClassVar[str]  # over them in the help

    @classmethod
    def options(cls) -> Mapping[str, tuple[Any, ArgumentInfo, Any]]:
        """Each option's type, description and default."""
        hints = get_type_hints(cls, include_extras=True)
        return {field.name: (*get_args(hints[field.name]), field.default) for field in fields(cls)}


def option(*names: str, help: str, **more: Any) -> ArgumentInfo:  # noqa: A002
    """An option with these names, or with its parameter's own."""
    return ArgumentInfo(help, names, **more)


def argument(*, help: str, **more: Any) -> ArgumentInfo:  # noqa: A002
    return ArgumentInfo(help, positional=True, **more)


def command(
    function: Callable[..., None], name: str, examples: str, needs: Mapping[str, str] | None = None,
    excludes: Iterable[tuple[str, str]] = (),
) -> click.Command:  # fmt: skip
    """A function as a command.

    `needs`: for parameters the one that each has no use without; `excludes`: pairs of which one has no use with the other.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[click.Parameter] = []
    groups: dict[str, type[OptionGroup]] = {}
    context = None  # the parameter that is told where the values came from
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if hint is click.Context:
            context = parameter.name
        elif isinstance(hint, type) and issubclass(hint, OptionGroup):
            groups[parameter.name] = hint
            for option_name, (kind, info, default) in hint.options().items():
                parameters.append(_parameter(option_name, kind, info, default, hint.HEADING))
        else:
            kind, info = get_args(hint)
            parameters.append(_parameter(parameter.name, kind, info, parameter.default))

    def call(**values: Any) -> None:
        words, given = typed_parameters(click.get_current_context())
        for parameter, needed in (needs or {}).items():
            if parameter in given and needed not in given:
                raise InputError(needs_other(words[parameter], words[needed]))
        for parameter, other in excludes:
            if {parameter, other} <= given:
                raise InputError(excludes_other(words[parameter], words[other]))
        grouped: dict[str, Any] = {
            name: group(**{option: values.pop(option) for option in group.options()}) for name, group in groups.items()
        }
        if context is not None:
            grouped[context] = click.get_current_context()
        function(**values, **grouped)

    taken = {word for each in parameters for word in each.opts}
    for each in parameters:
        if isinstance(each, HeadedOption):
            names = (other for word in each.opts for other in OTHER_NAMES.get(word, ()))
            each.other_names = [other for other in names if other not in taken]
    return Verb(name, callback=call, params=parameters, help=inspect.getdoc(function), epilog=examples)


def typed_parameters(context: click.Context) -> tuple[dict[str, str], set[str]]:
    """How each parameter is typed, and which of them were."""
    parameters = [parameter for parameter in context.command.params if parameter.name is not None]
    positional = {
        str(one.name): (one.metavar or str(one.name).upper()).strip("[]")
        for one in parameters
        if isinstance(one, click.Argument)
    }
    words = {str(one.name): one.opts[0] for one in parameters} | positional
    return words, {name for name in words if context.get_parameter_source(name) is not ParameterSource.DEFAULT}


def needs_other(word: str, needed: str) -> str:
    return f"{word} goes with {needed}. Give {needed} too, or leave {word} out."


def excludes_other(word: str, other: str) -> str:
    return f"{word} has no use with {other}. Leave one of them out."


def _parameter(name: str, kind: Any, info: ArgumentInfo, default: Any, heading: str | None = None) -> click.Parameter:
    """One parameter of the command line."""
    default = info.none_word if default is None else default
    repeated = any(get_origin(part) is list for part in (kind, *get_args(kind)))
    (value,) = {part for part in parts(kind) if part is not NoneType}
    settings: dict[str, Any] = {
        "type": _click_type(value, info),
        "default": () if repeated and default is None else default,
        "required": default is inspect.Parameter.empty,
        "metavar": info.metavar,
        "envvar": info.envvar,
        "callback": _callback(repeated, info),
    }
    if settings["required"]:
        del settings["default"]
    if info.positional:
        return DescribedArgument([name], nargs=-1 if repeated else 1, description=info.help, **settings)
    flag = value is bool
    shown = info.default_shown if isinstance(info.default_shown, str) else bool(info.default_shown and default and not flag)
    return HeadedOption(
        [name, *info.named(name)], is_flag=flag, multiple=repeated, help=info.help, show_default=shown,
        show_envvar=info.envvar is not None, heading=heading, **(settings | ({"type": None} if flag else {})),
    )  # fmt: skip


def parts(kind: Any) -> Iterable[Any]:
    """The types that a hint is made of: `list[str] | None` of str and None."""
    arguments = get_args(kind)
    return [kind] if not arguments else [part for argument in arguments for part in parts(argument)]


def _click_type(value: type, info: ArgumentInfo) -> Any:
    if value is Path:
        return click.Path(path_type=Path)
    if info.minimum is not None or info.maximum is not None:
        return click.IntRange(info.minimum, info.maximum)
    return value


def _callback(repeated: bool, info: ArgumentInfo) -> Callable[..., Any] | None:
    """What a parsed value goes through: nothing repeated is None, and so is a word for it; and the parameter's own check."""
    if not repeated and info.check is None and info.none_word is None:
        return None

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        value = (list(value) or None) if repeated else None if value == info.none_word else value
        return value if info.check is None else info.check(value)

    return callback


class HeadedOption(click.Option):
    """An option that knows its heading in the help, and by which other names it may be typed that no help shows."""

    def __init__(self, *values: Any, heading: str | None = None, **more: Any) -> None:
        super().__init__(*values, **more)
        self.heading = heading
        self.other_names: list[str] = []

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        documented = self.opts
        self.opts = [*documented, *self.other_names]
        super().add_to_parser(parser, ctx)
        self.opts = documented


class DescribedArgument(click.Argument):
    """An argument with a help text."""

    def __init__(self, *values: Any, description: str, **more: Any) -> None:
        super().__init__(*values, **more)
        self.description = description

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.make_metavar(ctx), self.description


class Verb(click.Command):
    """A command whose help has its options in sections and its examples line by line."""

    def invoke(self, ctx: click.Context) -> Any:
        with needed_for(ctx.command_path):
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [name for parameter in self.get_params(ctx) for name in parameter.opts]
            if (option := familiar_option(error.option_name, known)) is None:
                raise
            message = f"No such option {error.option_name!r}. Did you mean {option!r}?"
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            with formatter.section(click.style("Examples", bold=True)):
                for example in self.epilog.removeprefix("Example: ").split("   ·   "):
                    formatter.write(f"  {example}\n")


class VerbGroup(click.Group):
    """A command of commands, in the same style."""

    def sections(self, ctx: click.Context) -> dict[str, dict[str, str]]:
        """Under each heading of the help, each command's name and what it is for."""
        shown = {name: summary(command.help) for name, command in self.commands.items() if not command.hidden}
        return {"Commands": shown}

    def suggestion(self, ctx: click.Context, word: str) -> str:
        """A sentence for who typed a word that is no command, or nothing."""
        return did_you_mean(word, self.list_commands(ctx)) or familiar_command(word)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{self.suggestion(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in self.sections(ctx).items():
            write_section(heading, list(commands.items()), formatter)
        write_options(self, ctx, formatter)


def write_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    """The parameters under their headings, arguments first."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(context):
        usual = "Arguments" if isinstance(parameter, click.Argument) else "Options"
        if record := parameter.get_help_record(context):
            sections.setdefault(getattr(parameter, "heading", None) or usual, []).append(record)
    for heading, records in sections.items():
        write_section(heading, records, formatter)


def write_section(heading: str, records: Sequence[tuple[str, str]], formatter: click.HelpFormatter) -> None:
    if records:
        with formatter.section(click.style(heading, bold=True)):
            formatter.write_dl(records)
