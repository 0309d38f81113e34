"""`glass NAME` for each operation on a text that has an example: its arguments are the options."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import click

from glassformer.cli import bars, common
from glassformer.cli.command import command, parts
from glassformer.cli.options import ChangeableModelGroup, OutputGroup, PromptGroup
from glassformer.cli.text_input import read_prompt
from glassformer.ground.operations import OPERATIONS, READING, Operation, OperationArgument

if TYPE_CHECKING:
    from glassformer.runtime.model import Model

TEXT_KINDS = (str, float, int, bool)  # what is typed for a value of some types: the first of these among them


def operation_verb(name: str) -> click.Command:
    """The verb of an operation on a text."""
    from glassformer.observe import reading  # whose operations it has then

    operation = OPERATIONS[READING, name.replace("-", "_")]
    assert hasattr(reading.Reading, operation.name)

    def verb(
        *, prompt: str | None, target: str | None, new: int, model_options: ChangeableModelGroup,
        prompt_options: PromptGroup, output: OutputGroup, **values: Any,
    ) -> None:  # fmt: skip
        text = read_prompt(prompt)
        model = model_options.load()
        text_read = prompt_options.read(model, text, target, new)
        with ExitStack() as stack:
            if operation.reports_progress:
                values["progress"] = stack.enter_context(bars.counter_bar(f"{model_options.model} reads"))
            view = getattr(text_read, operation.name)(**_opened(operation, values, model))
        output.show(view)

    own = {argument.name: _typed(argument) for argument in operation.arguments}
    hints = {
        "prompt": common.PromptArgument, **own, "target": common.TargetOption, "new": common.GeneratedFirstOption,
        "model_options": ChangeableModelGroup, "prompt_options": PromptGroup, "output": OutputGroup,
    }  # fmt: skip
    defaults = {"prompt": None, "target": None, "new": 0, **{one.name: one.default for one in operation.arguments}}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, inspect.Parameter.empty))
        for name in hints
    ]
    verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = hints
    verb.__doc__ = operation.summary
    return command(verb, name, operation.example or "")


def _opened(operation: Operation, values: dict[str, Any], model: Model) -> dict[str, Any]:
    """The values, of which some are opened by their names."""
    openers = {argument.name: argument.info.opened_by for argument in operation.arguments}
    return {
        name: getattr(model, opener)(value) if (opener := openers.get(name)) and value is not None else value
        for name, value in values.items()
    }


def _typed(argument: OperationArgument) -> Any:
    """An argument as a command line takes it."""
    kinds = {str if isinstance(part, str) else part for part in parts(argument.hint)}
    kind: Any = str if argument.info.opened_by else next(kind for kind in TEXT_KINDS if kind in kinds)
    several = any(get_origin(option) is Sequence for option in (argument.hint, *getattr(argument.hint, "__args__", ())))
    kind = list[kind] if several else kind
    return Annotated[kind | None if argument.default is None else kind, argument.info]
