"""`glass NAME` for each operation that has an example: its arguments are the options.

Several operations may be the views of one verb (`verb`, `chosen_by`): then the options are those of all of them, what is
typed chooses the view, and what it has no use for is refused. A view that is more than an operation, because it reads and
writes files, is a function of this package.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args, get_origin

import click

from glassformer.cli import bars, common
from glassformer.cli.command import command, excludes_other, needs_other, option, parts, typed_parameters
from glassformer.cli.options import ChangeableModelGroup, ModelGroup, OutputGroup, PromptGroup
from glassformer.cli.text_input import read_prompt
from glassformer.ground.arguments import argument_types
from glassformer.ground.errors import InputError
from glassformer.ground.operations import COMMAND, MODEL, OPERATIONS, Operation, OperationArgument, Statement

if TYPE_CHECKING:
    from glassformer.runtime.model import Model
    from glassformer.training.rows import DataRow

TEXT_KINDS = (str, float, int, bool)  # what is typed for a value of some types: the first of these among them
PROMPT = "prompt"
GROUPED = {field.name for group in (ChangeableModelGroup, PromptGroup, OutputGroup) for field in fields(group)}
FILES = "tuple[Path, ...]"  # what a view gives that writes files


class OperationVerb:
    """The operations that are the views of one verb, and what can be typed for them."""

    def __init__(self, stated: Sequence[Statement]) -> None:
        for each in stated:
            importlib.import_module(each.module)
        self.name = str(stated[0].verb)
        views = [one for one in OPERATIONS.values() if one.verb == self.name]
        self.views = sorted(views, key=lambda view: (bool(view.chosen_by), len(view.line)))  # what is shown by default first
        self.main = next(one for one in self.views if one.example is not None)
        self.words: dict[str, str] = {}  # as typed, by parameter
        self.hints: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.parameters: dict[Operation, dict[str, OperationArgument]] = {view: {} for view in self.views}
        if any(map(_reads_prompt, self.views)):
            self._add(PROMPT, "PROMPT", common.PromptArgument, None)
        for view in self.views:
            arguments = _typed_arguments(view)
            names = [PROMPT, *(argument.name for argument in arguments)]
            for flag in (chooser for chooser in view.chosen_by if chooser not in names):
                help_text = view.flags.get(flag, view.summary)
                self._add(flag, f"--{flag}", Annotated[bool, option(f"--{flag}", help=help_text)], False)
            for argument in arguments:
                self.parameters[view][self._parameter(view, argument)] = argument
        if any(view.on_text for view in self.views):
            self._add("target", "--target", common.TargetOption, None)
            self._add("new", "-n", common.GeneratedFirstOption, 0)

    def _add(self, name: str, word: str, hint: Any, default: Any) -> None:
        self.words[name], self.hints[name], self.defaults[name] = word, hint, default

    def _parameter(self, view: Operation, argument: OperationArgument) -> str:
        """The parameter for an argument; views whose options have one name share it, and its default if that is the same."""
        word = argument.named()[0]
        default = None if _repeated(argument) or (argument.required and len(self.views) > 1) else argument.default
        known = next((name for name, typed in self.words.items() if typed == word), None)
        if known is None:
            if view.chosen_by and argument.name not in view.chosen_by:
                chooser = self.words[view.chosen_by[0]]
                argument = replace(
                    argument, info=replace(argument.info, help=f"With {chooser}: {_within(argument.info.help)}")
                )
            elif view.chosen_by:
                argument = replace(argument, info=replace(argument.info, default_shown=False))
            name = f"{argument.name}_" if argument.name in GROUPED else argument.name
            self._add(name, word, _typed(argument, default), default)
            return name
        if self.defaults[known] != default:
            kind, info = get_args(self.hints[known])
            self._add(known, word, Annotated[kind | None, info], None)
        return known

    def command(self) -> click.Command:
        hints = {
            **self.hints, "context": click.Context, "model_options": self._model_group(), "prompt_options": PromptGroup,
            "output": OutputGroup,
        }  # fmt: skip
        if not any(view.on_text or view.makes_prompts for view in self.views):
            del hints["prompt_options"]

        def verb(**values: Any) -> None:
            self.show(**values)

        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=self.defaults.get(name, inspect.Parameter.empty))
            for name in hints
        ]
        verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        verb.__annotations__ = hints
        own_help = inspect.getdoc(self.main.function) if self.main.owner == COMMAND else self.main.summary
        verb.__doc__ = self.main.verb_help or own_help
        return command(verb, self.name, self.main.example or "", self.main.needs, self.main.excludes)

    def _model_group(self) -> Any:
        """How a model is named and loaded: what the verb's functions take, if it has no other views."""
        groups = [argument_types(view.function)[COMMAND] for view in self.views if view.owner == COMMAND]
        return groups[0] if len(groups) == len(self.views) else ChangeableModelGroup

    def show(
        self, *, context: click.Context, model_options: ModelGroup, output: OutputGroup,
        prompt_options: PromptGroup | None = None, **values: Any,
    ) -> None:  # fmt: skip
        given = typed_parameters(context)[1].intersection(values)
        view = self.chosen(given)
        typed = {name: one for name, one in self.parameters[view].items() if name in given}
        arguments = {one.name: self._value(name, one, values[name]) for name, one in typed.items()}
        if view.owner == COMMAND:
            if view.takes_prompt and values[PROMPT] is not None:
                arguments[PROMPT] = read_prompt(values[PROMPT])
            output.show(view.function(model_options, **arguments))
            return
        text = read_prompt(values[PROMPT]) if _reads_prompt(view) else ""
        rows = _read_rows(view, arguments)
        if view.view_name == FILES:
            self._refuse_output(view)
        model = model_options.load()
        subject: Any = model
        if view.on_text:
            assert prompt_options is not None
            subject = prompt_options.read(model, text, values["target"], values["new"])
        whole = (one.name for one in view.arguments if one.info.every_position and output.everything)
        more = {**{name: range(len(subject)) for name in whole}, **_opened(view, arguments, model)}
        if view.makes_prompts and prompt_options is not None:
            more |= prompt_options.keywords()
        if view.takes_prompt:
            more[PROMPT] = text
        with ExitStack() as stack:
            if rows:
                stack.enter_context(_rows_named(rows))
            doing = f"{model_options.model} reads"
            if view.reports_progress:
                more["progress"] = stack.enter_context(bars.counter_bar(doing))
            else:
                stack.enter_context(bars.spinner(doing))
            shown = view.call(subject, more)
        if view.view_name == FILES:
            common.print_line("\n".join(map(str, shown)))
        else:
            output.show(shown)

    def _value(self, name: str, argument: OperationArgument, value: Any) -> Any:
        """A value as the chosen view takes it; another view may take several."""
        if not isinstance(value, list) or argument.info.check is not None or _repeated(argument):
            return value
        if len(value) > 1:
            raise InputError(f"{self.words[name]} is for one value here. Give {self.words[name]} once.")
        return value[0]

    def chosen(self, given: set[str]) -> Operation:
        """The view that is asked for; an error where an option is not for it, or one is missing."""
        default = next((view for view in self.views if not view.chosen_by), self.main)
        asked = [view for view in self.views if given.intersection(view.chosen_by)]
        fitting = [view for view in asked if given <= self._known(view)]
        view = next(iter(fitting or sorted(asked, key=lambda view: len(self._known(view)))), default)
        self._check_flags(view, given)
        for name in self.words:
            if name in given and name not in self._known(view):
                self._refuse(name, view, given)
        required = self._required(view)
        if missing := [self.words[name] for name in required if name not in given]:
            others = [one for one in self.views if one.chosen_by and not set(required) <= set(self._required(one))]
            shown = [] if given.intersection(view.chosen_by) else [self.words[one.chosen_by[0]] for one in others]
            are, them = ("are", "them") if missing[1:] else ("is", "it")
            raise InputError(f"{' and '.join(missing)} {are} missing. Give {', or '.join([them, *shown])}.")
        return view

    def _check_flags(self, view: Operation, given: set[str]) -> None:
        """Refuse what has no use beside a flag that asks for a view as it is by default."""
        for one in view.line:
            for flag in given.intersection(one.flags):
                if others := [name for name in one.chosen_by if name in given and name != flag]:
                    raise InputError(excludes_other(self.words[flag], self.words[others[0]]))

    def _refuse_output(self, view: Operation) -> None:
        """Refuse options for what is shown: files are written."""
        words, given = typed_parameters(click.get_current_context())
        if unused := [name for name in OutputGroup.options() if name in given]:
            raise InputError(excludes_other(words[unused[0]], self.words[view.chosen_by[0]]))

    def _refuse(self, name: str, view: Operation, given: set[str]) -> NoReturn:
        """An option that the view does not have: what chooses the one that has it, or what it cannot stand beside."""
        word = self.words[name]
        if choosing := [self.words[chooser] for chooser in view.chosen_by if chooser in given]:
            raise InputError(excludes_other(word, choosing[0]))
        chooser = next(self.words[one.chosen_by[0]] for one in self.views if name in self._known(one))
        raise InputError(needs_other(word, chooser))

    def _required(self, view: Operation) -> list[str]:
        return [name for name, argument in self.parameters[view].items() if argument.required]

    def _known(self, view: Operation) -> set[str]:
        """The parameters of a view."""
        shared = {PROMPT, "target", "new"} if view.on_text else {PROMPT} if view.takes_prompt else set[str]()
        return {*self.parameters[view], *(name for one in view.line for name in one.chosen_by), *shared}


def _within(sentence: str) -> str:
    """A sentence after a colon."""
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]


def _reads_prompt(view: Operation) -> bool:
    return view.on_text or view.takes_prompt


def _typed_arguments(view: Operation) -> list[OperationArgument]:
    """Those of a view, and those of what opens an argument by its name."""
    arguments = (argument for argument in view.arguments if argument.info.typed is not False)
    return [one for argument in arguments for one in (argument, *_opening_arguments(argument))]


def _opening_arguments(argument: OperationArgument) -> Iterator[OperationArgument]:
    if (opener := argument.info.opened_by) is not None:
        yield from (one for one in OPERATIONS[MODEL, opener].own_arguments if one.info.help)


def _opened(operation: Operation, values: dict[str, Any], model: Model) -> dict[str, Any]:
    """The values, of which some are opened by their names."""
    for argument in operation.arguments:
        more = {one.name: values.pop(one.name) for one in _opening_arguments(argument) if one.name in values}
        if argument.name in values:
            values[argument.name] = argument.open(values[argument.name], model, **more)
    return values


def _typed(argument: OperationArgument, default: Any) -> Any:
    """An argument as a command line takes it."""
    kind = _kind(argument)
    return Annotated[kind | None if default is None else kind, argument.info]


def _kind(argument: OperationArgument) -> Any:
    if argument.info.from_file:
        return Path
    if argument.info.typed is not None:
        return argument.info.typed
    kinds = {str if isinstance(part, str) else part for part in parts(argument.hint)}
    kind: Any = str if argument.info.opened_by else next((kind for kind in TEXT_KINDS if kind in kinds), Path)
    options = (argument.hint, *getattr(argument.hint, "__args__", ()))
    return list[kind] if any(get_origin(option) is Sequence for option in options) else kind


def _repeated(argument: OperationArgument) -> bool:
    return get_origin(_kind(argument)) is list


def _read_rows(view: Operation, arguments: dict[str, Any]) -> Sequence[DataRow]:
    """The rows of the file that is typed in an argument's place, if there is one; the argument becomes their fields."""
    name = next((one.name for one in view.arguments if one.info.from_file), None)
    if name is None:
        return ()
    from glassformer.training.rows import read_rows

    rows = read_rows(arguments[name])
    arguments[name] = [{key: value for key, value in row.fields.items() if value != ""} for row in rows]  # as a CSV has it
    return rows


@contextmanager
def _rows_named(rows: Sequence[DataRow]) -> Iterator[None]:
    """Around what is done with a file's rows: an error says in which row of the file it is."""
    from glassformer.see.patching.compute import PairError

    try:
        yield
    except PairError as error:
        raise InputError(f"{rows[error.number - 1].place}{error.problem}") from error
