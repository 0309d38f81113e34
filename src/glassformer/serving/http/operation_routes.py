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
from glassformer.see.text_batches import token_sites
from glassformer.serving.http.answers import check_listed
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import HttpError, Json
from glassformer.serving.http.openapi import view_response, view_types
from glassformer.serving.http.view_responses import OPTIONS
from glassformer.serving.http.views import (
    DescriptionRequest,
    ModelRequest,
    Number,
    Prompt,
    PromptRequest,
    ReadingRequest,
    respond_with_view,
)

router = APIRouter(tags=["glass"], prefix="/glass")
NAME_LENGTH = 200  # of something that is opened by its name
MAX_TOKENS = 4096  # of a text that a request has differentiated
MAX_TEXTS = 256
MAX_CHARACTERS = 20_000  # of one of many texts
MAX_SITES = 64
MAX_LABELS = 16


class OptionalTextRequest(ReadingRequest):
    """A model, or a text to look into."""

    prompt: Prompt | None = None  # type: ignore[assignment]


class PairOfTexts(BaseModel):
    """Two texts, and the tokens to tell apart, if they are not what each text leads to."""

    model_config = ConfigDict(extra="forbid")

    first: str
    second: str
    answer: Number | str | None = None
    against: Number | str | None = None


def _strings(most: int, longest: int, fewest: int | None = None) -> Any:
    """A list of texts, each of at least and at most so many characters."""
    text = Annotated[str, Field(min_length=fewest, max_length=longest)]
    return Annotated[list[text], Field(min_length=1, max_length=most)]


TYPES: dict[str, Any] = {  # that arguments name
    "pairs": Annotated[list[PairOfTexts], Field(min_length=1)],
    "texts": _strings(MAX_TEXTS, MAX_CHARACTERS, 1),
    "labels": _strings(MAX_TEXTS, NAME_LENGTH),
    "sites": (SITES := _strings(MAX_SITES, NAME_LENGTH)),
    "optional sites": SITES | None,
}


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


def check_sites(request: Request, model: Model, body: Any) -> None:
    if body.sites and len(token_sites(model, body.sites)) > MAX_SITES:
        raise InputError(f"these are more than {MAX_SITES} sites. Name fewer.")


def check_probe(request: Request, model: Model, body: Any) -> None:
    check_sites(request, model, body)
    if len(set(body.labels)) > MAX_LABELS:
        raise InputError(f"these are more than {MAX_LABELS} different labels. Give fewer.")


LIMITS: dict[str, Callable[[Request, Any, Any], None]] = {  # what this server refuses, beyond the bounds of arguments
    "tokens": check_tokens,
    "probe": check_probe,
    "activations": check_sites,
    "parameters": check_values,
    "saliency": check_length,
    "attribution-patch": check_first,
    "patch-pairs": check_pairs,
}


def served_at(route: str) -> list[Operation]:
    """The operations of a route."""
    return [operation for operation in OPERATIONS.values() if operation.route == route]


def request_model(operation: Operation, *others: Operation) -> type[BaseModel]:
    """The class of the requests for an operation, or for one on the model alone and others on a text, with one route."""
    kinds: tuple[tuple[bool, type[BaseModel]], ...] = (
        (bool(others), OptionalTextRequest),
        (operation.on_text, ReadingRequest),
        (operation.takes_prompt, PromptRequest),
        (operation.makes_prompts, ModelRequest),
        (True, DescriptionRequest),
    )
    base = next(kind for fits, kind in kinds if fits)
    name = "".join(word.capitalize() for word in str(operation.route).split("-"))
    arguments = (argument for one in (operation, *others) for argument in one.served_arguments)
    fields: dict[str, Any] = {argument.name: request_field(argument) for argument in arguments}
    return create_model(f"{name}Request", __base__=base, __doc__=f"POST /glass/{operation.route}", **fields)


def request_field(argument: OperationArgument) -> tuple[Any, Any]:
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
    if operation.subject is not None:
        owner = python_template(operation.subject, reading)
    if operation.is_property:
        return f"{owner}.{operation.name}"
    given = [_given(argument) for argument in operation.own_arguments if argument.info.served]
    given = [*(["prompt"] if operation.takes_prompt else []), *given, *([OPTIONS] if operation.makes_prompts else [])]
    return f"{owner}.{operation.name}({', '.join(given)})"


def _given(argument: OperationArgument) -> str:
    """An argument in a call in Python."""
    value = argument.name if (opener := argument.info.opened_by) is None else f"model.{opener}({argument.name})"
    return f"*{value}" if argument.several else f"{argument.name}={value}" if argument.by_name else value


def _arguments(operation: Operation, body: BaseModel, model: Model) -> dict[str, Any]:
    """An operation's arguments as a request has them; what it names is opened."""
    values = ((argument, _plain(getattr(body, argument.name))) for argument in operation.served_arguments)
    return {argument.name: argument.open(value, model) for argument, value in values}


def _plain(value: Any) -> Any:
    """A value as Python takes it."""
    if isinstance(value, list):
        return list(map(_plain, value))
    return value.model_dump() if isinstance(value, BaseModel) else value


def chosen(operations: Sequence[Operation], body: Any) -> Operation:
    """The operation of a route that a request asks for: of several the one on a text, if it has a text."""
    if len(operations) == 1:
        return operations[0]
    on_text = body.prompt is not None
    found = next(one for one in operations if one.on_text == on_text)
    known = {*(ReadingRequest if on_text else ModelRequest).model_fields, *(one.name for one in found.arguments)}
    if unused := [name for name in sorted(body.model_fields_set - known) if getattr(body, name)]:
        raise InputError(f"{unused[0]} has no use {'beside' if on_text else 'without'} a prompt. Leave one out.")
    return found


def endpoint(*operations: Operation) -> Callable[..., Any]:
    """The function behind a route: of an operation, or of one on a text and one on the model alone."""

    async def respond(request: Request, body: Any) -> Json:
        operation = chosen(operations, body)

        def compute(model: Model) -> Any:
            subject: Any = body.reading(model) if operation.on_text else model
            if (check := LIMITS.get(str(operation.route))) is not None:
                check(request, subject, body)
            prompt = {"prompt": body.prompt_of(model)} if operation.takes_prompt else {}
            options = body.prompt_options if operation.makes_prompts else {}
            return operation.call(subject, {**prompt, **_arguments(operation, body, model), **options})

        python = python_template(operation, body.python_reading if operation.on_text else "")
        return await respond_with_view(request, body, compute, python, passes=operation.passes)

    main = operations[0]
    respond.__name__, respond.__doc__ = str(main.route).replace("-", "_"), main.summary
    respond.__annotations__ = {"request": Request, "body": request_model(*operations), "return": Json}
    return respond


import_operations(see.__name__)
VIEWS = view_types()
for _route in dict.fromkeys(one.route for one in OPERATIONS.values() if one.route is not None):
    _operations = served_at(_route)
    router.post(f"/{_route}", responses=view_response(VIEWS[_operations[0].view_name]))(endpoint(*_operations))
