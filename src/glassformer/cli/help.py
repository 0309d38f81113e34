"""How the command's help looks: plain text in sections, whose examples can be copied, without the import of a renderer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from typer import style
from typer.core import TyperCommand, TyperGroup, TyperOption

_LIST = re.compile(r"<list\[(\w+)\]>")  # an option that may be repeated takes one value each time
_BETWEEN_EXAMPLES = re.compile(r"\s+·\s+")


def _panel(parameter: Any) -> str:
    default = "Options" if isinstance(parameter, TyperOption) else "Arguments"
    return getattr(parameter, "rich_help_panel", None) or default


def _write_sections(parameters: Iterable[Any], context: Any, formatter: Any) -> None:
    """The parameters under the headings of their panels, arguments first."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in parameters:
        if record := parameter.get_help_record(context):
            names, text = record
            sections.setdefault(_panel(parameter), []).append((_LIST.sub(r"<\1>", names), text))
    for heading, records in sections.items():
        _write_section(heading, records, formatter)


def _write_section(heading: str, records: Sequence[tuple[str, str]], formatter: Any) -> None:
    if records:
        with formatter.section(style(heading, bold=True)):
            formatter.write_dl(records)


def _write_examples(examples: str | None, formatter: Any) -> None:
    if examples:
        with formatter.section(style("Examples", bold=True)):
            for example in _BETWEEN_EXAMPLES.split(examples.removeprefix("Example: ")):
                formatter.write(f"  {example}\n")


def summary(text: str | None) -> str:
    """The first paragraph of a help text, in one line."""
    return " ".join((text or "").split("\n\n")[0].split())


class Verb(TyperCommand):
    """A command with its options in sections and its examples line by line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_sections(self.get_params(ctx), ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(self.epilog, formatter)


class VerbGroup(TyperGroup):
    """A command of commands, in the same style."""

    def summaries(self, ctx: Any) -> dict[str, str]:
        """Each command's name and the sentence that it is for."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        return {name: summary(command.help) for name, command in commands.items() if command and not command.hidden}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_section("Commands", list(self.summaries(ctx).items()), formatter)
        _write_sections(self.get_params(ctx), ctx, formatter)
