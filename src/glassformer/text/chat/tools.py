"""Tools for a chat template: JSON schemas, and Python functions that are turned into them.

A function says all that a schema needs: its name, its docstring (a description, then Google's `Args:` and `Returns:`),
and its type hints. The schemas are those that models are trained on, so the keys and their order matter.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from glassformer.ground.errors import InputError, InputTypeError

KINDS = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    list: "array",
    tuple: "array",
    dict: "object",
}
MEDIA = {"PIL.Image.Image": "image", "torch.Tensor": "audio"}  # known by name: neither has to be installed


def schemas(tools: Any) -> list[Mapping[str, Any]] | None:
    """Each tool as a JSON schema."""
    if tools is None:
        return None
    if isinstance(tools, (str, bytes)) or not isinstance(tools, Sequence):
        raise InputTypeError(f"tools is a list of functions or JSON schemas, not {type(tools).__name__}: tools=[…].")
    return [_schema(index, tool) for index, tool in enumerate(tools)]


def _schema(index: int, tool: Any) -> Mapping[str, Any]:
    if inspect.isfunction(tool) or inspect.ismethod(tool):
        return get_json_schema(tool)
    if isinstance(tool, Mapping) and tool:
        return tool
    raise InputTypeError(
        f"tool {index} is {tool!r}; a tool is a function with type hints and a docstring, or a JSON schema: "
        "{'type': 'function', 'function': {'name': …, 'description': …, 'parameters': …}}."
    )


def validated_documents(documents: Any) -> list[Mapping[str, Any]] | None:
    """The documents, which must be a list of mappings."""
    if documents is None:
        return None
    if isinstance(documents, (str, bytes)) or not isinstance(documents, Sequence):
        raise InputTypeError(
            f"documents is a list of documents, not {type(documents).__name__}: [{{'title': '…', 'text': '…'}}]."
        )
    for index, document in enumerate(documents):
        if not isinstance(document, Mapping):
            raise InputTypeError(f"document {index} is {document!r}; a document is {{'title': '…', 'text': '…'}}.")
    return list(documents)


def get_json_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a function, out of its signature, type hints and docstring.

    >>> def weather(city: str, days: int = 1) -> str:
    ...     '''Tell the weather.
    ...
    ...     Args:
    ...         city: Where.
    ...         days: How far ahead (choices: [1, 7])
    ...     '''
    >>> get_json_schema(weather)["function"]["parameters"]["properties"]["days"]
    {'type': 'integer', 'enum': [1, 7], 'description': 'How far ahead'}
    """
    name = getattr(function, "__name__", "operation")
    doc = (inspect.getdoc(function) or "").strip()
    if not doc:
        raise InputError(f"the tool {name}() has no docstring. Say in one what it does, with an 'Args:' section.")
    description, about, returned = _parse_docstring(doc)
    hints = _hints(function, name)
    required = [parameter.name for parameter in _parameters(function, name) if parameter.default is inspect.Parameter.empty]
    result = hints.pop("return", None)
    properties = {}
    for argument, hint in hints.items():
        if argument not in about:
            raise InputError(
                f"the docstring of {name}() does not describe {argument!r}. Add a line '{argument}: …' under 'Args:'."
            )
        properties[argument] = hint | _description_and_choices(name, argument, about[argument])
    parameters = {"type": "object", "properties": properties} | ({"required": required} if required else {})
    schema = {"name": name, "description": description, "parameters": parameters}
    if result is not None:
        schema["return"] = result if returned is None else result | {"description": returned}
    return {"type": "function", "function": schema}


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """The parameters that a caller gives; a first `self` or `cls` without a hint is not one."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls") and parameters[0].annotation is inspect.Parameter.empty:
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.annotation is inspect.Parameter.empty:
            hint = f"{parameter.name}: str"
            raise InputError(f"the argument {parameter.name!r} of {name}() has no type hint. Add one, such as {hint}.")
    return parameters


def _hints(function: Callable[..., Any], name: str) -> dict[str, dict[str, Any]]:
    _parameters(function, name)
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise InputError(f"a type hint of {name}() cannot be read: {error}. Import what it names.") from error
    return {argument: _hint_schema(hint, f"{argument!r} of {name}()") for argument, hint in hints.items()}


def _hint_schema(hint: Any, where: str) -> dict[str, Any]:
    """What a type hint is in a schema."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        if hint is Any:
            return {}
        qualified = f"{getattr(hint, '__module__', '')}.{getattr(hint, '__qualname__', '')}"
        json_type = KINDS.get(hint) if isinstance(hint, type) else None
        return {"type": json_type or MEDIA.get(qualified, "object")}
    if origin in (Union, types.UnionType):
        union = _union([_hint_schema(member, where) for member in inner if member is not type(None)])
        return union | ({"nullable": True} if type(None) in inner else {})
    if origin is Literal:
        return _literal(inner, where)
    if origin is list:
        return {"type": "array", "items": _hint_schema(inner[0], where)} if inner else {"type": "array"}
    if origin is tuple:
        if len(inner) == 1 or ... in inner:
            raise InputError(f"the type hint {hint} for {where} has no fixed items. Use a list instead of a tuple.")
        return {"type": "array"} | ({"prefixItems": [_hint_schema(item, where) for item in inner]} if inner else {})
    if origin is dict:
        return {"type": "object"} | ({"additionalProperties": _hint_schema(inner[1], where)} if inner else {})
    raise InputError(f"the type hint {hint} for {where} has no JSON schema. Use basic types, list, dict, tuple or Literal.")


def _union(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    if len(kinds) == 1:
        return kinds[0]
    if all(kind.keys() == {"type"} and isinstance(kind["type"], str) for kind in kinds):
        names = sorted({kind["type"] for kind in kinds})
        return {"type": names[0] if len(names) == 1 else names}
    return {"anyOf": kinds}


def _literal(values: Sequence[Any], where: str) -> dict[str, Any]:
    for value in values:
        if type(value) not in (int, float, str, bool, type(None)):
            raise InputError(f"the choice {value!r} for {where} is no text, number, boolean or None. Use one of these.")
    names = list(dict.fromkeys(KINDS[type(value)] for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": list(values)}


def _description_and_choices(name: str, argument: str, words: str) -> dict[str, Any]:
    """A description, and the choices that it may end with: `(choices: ["tea", "coffee"])`."""
    match = re.search(r"\(choices:(.*)\)\s*$", words, re.IGNORECASE)
    if match is None:
        return {"description": words}
    try:
        values = json.loads(match[1])
        values = [choice.strip() if isinstance(choice, str) else choice for choice in values]
    except (ValueError, TypeError) as error:
        raise InputError(
            f"the choices for {argument!r} of {name}() are no JSON list: {match[1].strip()}. "
            'Write them as in (choices: ["tea", "coffee"]).'
        ) from error
    return {"enum": values, "description": words[: match.start()].strip()}


def _parse_docstring(doc: str) -> tuple[str, dict[str, str], str | None]:
    """A docstring's description, what it says of each argument, and of what comes back."""
    description = re.split(r"Args:|Returns:|Raises:", doc, maxsplit=1)[0].strip()
    arguments = _section(doc, "Args", "Returns:|Raises:") or ""
    about: dict[str, list[str]] = {}
    current: list[str] = []
    for line in filter(str.strip, arguments.split("\n")):
        if begun := re.match(r"\s*(\w+):", line):
            current = about[begun[1]] = []
            line = line[begun.end() :]
        current.append(line.strip())
    return description, {name: " ".join(lines).strip() for name, lines in about.items()}, _section(doc, "Returns", "Raises:")


def _section(doc: str, name: str, end: str) -> str | None:
    """The text under a heading that has its line to itself, up to the next one."""
    begun = re.search(rf"\n\s*{name}:\n", doc)
    return None if begun is None else re.split(end, doc[begun.end() :], maxsplit=1)[0].strip()
