"""POST /glass/…: a route for each operation that has one. Its request has the operation's arguments, within their bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.requests import Request

from glassformer import see
from glassformer.ground.errors import InputError
from glassformer.ground.operations import (
    OPERATIONS,
    ArgumentInfo,
    Operation,
    OperationArgument,
    import_operations,
)
from glassformer.runtime.model import Model
from glassformer.see.activations import Activations
from glassformer.serving.http.answers import check_listed
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import HttpError, Json
from glassformer.serving.http.openapi import view_response, view_types
from glassformer.serving.http.view_responses import OPTIONS
from glassformer.serving.http.views import (
    DescriptionRequest,
    ModelRequest,
    Number,
    PromptRequest,
    ReadingRequest,
    respond_with_view,
)

router = APIRouter(tags=["glass"], prefix="/glass")
NAME_LENGTH = 200  # of something that is opened by its name
MAX_TOKENS = 4096  # of a text that a request has differentiated


class PairOfTexts(BaseModel):
    """Two texts, and the tokens to tell apart, if they are not what each text leads to."""

    model_config = ConfigDict(extra="forbid")

    first: str
    second: str
    answer: Number | str | None = None
    against: Number | str | None = None


TYPES: dict[str, Any] = {"pairs": Annotated[list[PairOfTexts], Field(min_length=1)]}  # that arguments name


def check_tokens(request: Request, model: Model, body: Any) -> None:
    check_listed(request, len(model.tokenizer(body.text)["input_ids"]))


def check_values(request: Request, model: Model, body: Any) -> None:
    if not (body.histogram or body.stats):
        return
    count, most = model.parameters(only=body.only).tree.elements, context_of(request).limits.parameter_values
    if count > most:
        asked = f"{'a histogram' if body.histogram else 'a summary'} of {count:,} values was asked for"
        raise HttpError(
            400, f"{asked}; this server reads {most:,} at most. Name one tensor with 'only'.", param="only"
        )  # fmt: skip


def check_pairs(request: Request, model: Model, body: Any) -> None:
    if len(body.pairs) > (most := context_of(request).limits.prompts):
        raise HttpError(400, f"pairs has {len(body.pairs)} entries; this server allows {most} at most.", param="pairs")


def check_length(request: Request, text: Activations, body: Any) -> None:
    """Refuse a text whose gradients would take others' memory and time."""
    if (length := len(text.ids) + len(text.source or ())) > MAX_TOKENS:
        raise InputError(f"the text has {length:,} tokens; this server differentiates {MAX_TOKENS:,} at most.")


def check_first(request: Request, model: Model, body: Any) -> None:
    check_length(request, model.read(body.first, **body.prompt_options), body)


LIMITS: dict[str, Callable[[Request, Any, Any], None]] = {  # what this server refuses, beyond the bounds of arguments
    "tokens": check_tokens,
    "parameters": check_values,
    "saliency": check_length,
    "attribution-patch": check_first,
    "patch-pairs": check_pairs,
}


def request_model(operation: Operation) -> type[BaseModel]:
    """The class of the requests for an operation."""
    kinds: tuple[tuple[bool, type[BaseModel]], ...] = (
        (operation.on_text, ReadingRequest),
        (operation.takes_prompt, PromptRequest),
        (operation.makes_prompts, ModelRequest),
        (True, DescriptionRequest),
    )
    base = next(kind for fits, kind in kinds if fits)
    name = "".join(word.capitalize() for word in str(operation.route).split("-"))
    fields: dict[str, Any] = {argument.name: _field(argument) for argument in operation.served_arguments()}
    return create_model(f"{name}Request", __base__=base, __doc__=f"POST /glass/{operation.route}", **fields)


def _field(argument: OperationArgument) -> tuple[Any, Any]:
    info = argument.info
    hint = argument.hint if info.served is True else TYPES.get(info.served, info.served)
    if info.opened_by is not None:
        hint = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH)]
        hint = hint | None if NoneType in get_args(argument.hint) else hint
    served_default = argument.default if info.served_default is None else info.served_default
    default = {} if argument.required else {"default": served_default}
    return _bounded(hint, info), Field(description=info.help or None, **default)


def _bounded(hint: Any, info: ArgumentInfo) -> Any:
    """A type with the bounds of its numbers and texts."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(_bounded(part, info) for part in parts)]  # noqa: UP007
    if origin is Sequence:
        fewest, longest = info.served_items or (None, None)
        return Annotated[list[_bounded(parts[0], info)], Field(min_length=fewest, max_length=longest)]  # type: ignore[misc]
    if hint in (int, float):
        least, most = (
            served if served is not None else stated
            for served, stated in ((info.served_minimum, info.minimum), (info.served_maximum, info.maximum))
        )
        return Annotated[hint, Field(ge=least, le=most)] if (least, most) != (None, None) else hint
    return Annotated[str, Field(max_length=info.served_length)] if hint is str and info.served_length else hint


def python_template(operation: Operation, reading: str) -> str:
    """The call in Python, with the request's fields by their names; `reading`: what gives the text's reading."""
    owner = reading if operation.on_text else operation.owner
    if operation.is_property:
        return f"{owner}.{operation.name}"
    named = [
        (argument, argument.name if (opener := argument.info.opened_by) is None else f"model.{opener}({argument.name})")
        for argument in operation.served_arguments()
    ]
    given = [f"{argument.name}={value}" if argument.by_name else value for argument, value in named]
    given = [*(["prompt"] if operation.takes_prompt else []), *given, *([OPTIONS] if operation.makes_prompts else [])]
    return f"{owner}.{operation.name}({', '.join(given)})"


def _arguments(operation: Operation, body: BaseModel, model: Model) -> dict[str, Any]:
    """An operation's arguments as a request has them; what it names is opened."""
    values = ((argument, _plain(getattr(body, argument.name))) for argument in operation.served_arguments())
    return {argument.name: argument.open(value, model) for argument, value in values}


def _plain(value: Any) -> Any:
    """A value as Python takes it."""
    if isinstance(value, list):
        return list(map(_plain, value))
    return value.model_dump() if isinstance(value, BaseModel) else value


def endpoint(operation: Operation) -> Callable[..., Any]:
    """The function behind an operation's route."""

    async def respond(request: Request, body: Any) -> Json:
        def compute(model: Model) -> Any:
            subject: Any = body.reading(model) if operation.on_text else model
            if (check := LIMITS.get(str(operation.route))) is not None:
                check(request, subject, body)
            prompt = {"prompt": body.prompt_of(model)} if operation.takes_prompt else {}
            options = body.prompt_options if operation.makes_prompts else {}
            return operation.call(subject, {**prompt, **_arguments(operation, body, model), **options})

        python = python_template(operation, body.python_reading if operation.on_text else "")
        return await respond_with_view(request, body, compute, python, passes=operation.passes)

    respond.__name__, respond.__doc__ = str(operation.route).replace("-", "_"), operation.summary
    respond.__annotations__ = {"request": Request, "body": request_model(operation), "return": Json}
    return respond


import_operations(see.__name__)
VIEWS = view_types()
for _operation in OPERATIONS.values():
    if _operation.route is not None:
        _responses = view_response(VIEWS[_operation.view_name])
        router.post(f"/{_operation.route}", responses=_responses)(endpoint(_operation))
