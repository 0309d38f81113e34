"""Functions as tools: the schema that the reference makes of each, key for key and in its order."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any, Dict, List, Literal, Optional, Tuple, Union  # noqa: UP035 - the old names are hints too

import pytest
import torch

from glassformer.ground.errors import InputError, InputTypeError
from glassformer.text import Tokenizer
from glassformer.text.chat.tools import get_json_schema
from tests.text.test_template import WEATHER, user


def plain(a: int, b: float, c: str, d: bool, e: Any, f: None) -> None:
    """Do something.

    Args:
        a: One
        b: Two
        c: Three
        d: Four
        e: Five
        f: Six
    """


def containers(
    a: list, b: list[int], c: dict, d: dict[str, float], e: tuple, f: tuple[int, str], g: list[dict[str, list[bool]]]
) -> list[str]:
    """Hold things.

    Args:
        a: A
        b: B
        c: C
        d: D
        e: E
        f: F
        g: G

    Returns:
        A list
        of texts.
    """
    return []


def old_names(a: List[int], b: Dict[str, int], c: Tuple[int, str], d: Optional[str], e: Union[int, str], f: List, g: Tuple):  # noqa: UP006, UP007, UP045
    """Old names.

    Args:
        a: A
        b: B
        c: C
        d: D
        e: E
        f: F
        g: G
    """


def unions(
    a: int | str, b: int | None, c: list[int] | str, d: str | int | float | None, e: list | tuple, f: Any | int = 3
) -> int | None:
    """Choose.

    Args:
        a: A
        b: B
        c: C
        d: D
        e: E
        f: F
    """


def literals(a: Literal["x", "y"], b: Literal[1, "z", None, True] = 1, c: Literal[2] | None = None) -> Literal["done"]:
    """Choose from a few.

    Args:
        a: A
        b: B
        c: C
    """
    return "done"


def choices(a: str, b: int = 1, c: Literal["x", "y"] = "x") -> str:
    """Choose in words.

    Args:
        a: A drink (choices: ["tea", " coffee "])
        b: How many (Choices: [1, 2.5, true, null])
        c: Both ways (choices: ["z"])

    Returns:
        The drink.

    Raises:
        ValueError: never.
    """
    return a


def long_lines(first: str, second_one: int = 0) -> str:
    """A description
    over two lines.

    And a paragraph: with a colon.

    Args:
        first: It begins here
            and goes on, with a: colon,
            to here.

        second_one:
            It begins below.

    Raises:
        Nothing
    Returns:
        Text: with a colon.
    """
    return first


def no_arguments() -> str:
    """Say the time."""
    return ""


def no_return(city: str, *rest: int, unit: str = "C", **more: Any):
    """
    Tell the weather.

    Args:
        city: Where
        rest: More
        unit: In what
        more: Anything
    Returns: nothing at all
    """


class Custom:
    def method(self, a: int) -> Custom:
        """A method.

        Args:
            a: A
        """
        return self

    @classmethod
    def of_class(cls, a: int) -> None:
        """A class's.

        Args:
            a: A
        """

    @staticmethod
    def of_none(self: int) -> None:
        """A static one, whose self has a hint.

        Args:
            self: A number
        """


def media(sound: torch.Tensor, thing: Custom) -> torch.Tensor:
    """Play.

    Args:
        sound: Of what
        thing: With what
    """
    return sound


FUNCTIONS = [plain, containers, old_names, unions, literals, choices, long_lines, no_arguments, no_return, media]
FUNCTIONS += [Custom.method, Custom().method, Custom.of_class, Custom.of_none]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__qualname__)
def test_get_json_schema_matches_the_reference(function: Callable[..., Any]) -> None:
    from transformers.utils import get_json_schema as theirs

    assert json.dumps(get_json_schema(function)) == json.dumps(theirs(function))


def test_functions_and_schemas_as_tools(qwen: Tokenizer, reference: Any) -> None:
    tools = [choices, WEATHER, Custom().method]
    options = {"tools": tools, "tokenize": False}
    ours, theirs = (which.apply_chat_template([user("Hi!")], **options) for which in (qwen, reference))
    assert ours == theirs
    assert '"enum": ["tea", "coffee"]' in ours


def undocumented(a: int) -> None: ...


def unhinted(a, b: int) -> None:
    """Half a function.

    Args:
        a: A
        b: B
    """


def undescribed(a: int, b: int) -> None:
    """Half a description.

    Args:
        a: A
    """


def one_item(a: tuple[int]) -> None:
    """One.

    Args:
        a: A
    """


def any_length(a: tuple[int, ...]) -> None:
    """Many.

    Args:
        a: A
    """


def strange(a: Iterable[int]) -> None:
    """Strange.

    Args:
        a: A
    """


def strange_choice(a: Literal[b"x"]) -> None:
    """Strange.

    Args:
        a: A
    """


def bad_choices(a: str) -> None:
    """Bad.

    Args:
        a: A (choices: tea, coffee)
    """


def unknown_name(a: Nowhere) -> None:  # type: ignore[name-defined] # noqa: F821
    """Unknown.

    Args:
        a: A
    """


WRONG = {
    undocumented: r"the tool undocumented\(\) has no docstring\. Say in one what it does, with an 'Args:' section",
    unhinted: r"the argument 'a' of unhinted\(\) has no type hint\. Add one, such as a: str",
    undescribed: r"the docstring of undescribed\(\) does not describe 'b'\. Add a line 'b: …' under 'Args:'",
    one_item: r"the type hint tuple\[int\] for 'a' of one_item\(\) has no fixed items\. Use a list",
    any_length: r"the type hint tuple\[int, \.\.\.\] for 'a' of any_length\(\) has no fixed items\. Use a list",
    strange: r"the type hint .*Iterable\[int\] for 'a' of strange\(\) has no JSON schema\. Use basic types",
    strange_choice: r"the choice b'x' for 'a' of strange_choice\(\) is no text, number, boolean or None",
    bad_choices: r"the choices for 'a' of bad_choices\(\) are no JSON list: tea, coffee\. Write them as in",
    unknown_name: r"a type hint of unknown_name\(\) cannot be read: .*Nowhere.*\. Import what it names",
}


@pytest.mark.parametrize("function", WRONG, ids=lambda one: one.__name__)
def test_get_json_schema_refusals(function: Callable[..., Any]) -> None:
    from transformers.utils import get_json_schema as theirs

    with pytest.raises(Exception):  # noqa: B017, PT011 - each of its own kind
        theirs(function)
    with pytest.raises(InputError, match=WRONG[function]):
        get_json_schema(function)


@pytest.mark.parametrize(
    "tools", ["weather", b"x", 7, {"name": "weather"}, plain, {1}], ids=lambda given: type(given).__name__
)
def test_tools_must_be_a_list(qwen: Tokenizer, tools: Any) -> None:
    with pytest.raises(InputTypeError, match=type(tools).__name__):
        qwen.apply_chat_template([user("Hi!")], tools=tools)


@pytest.mark.parametrize(
    "tool", ["weather", None, 7, {}, len, Custom, functools.partial(plain, 1)], ids=lambda given: type(given).__name__
)
def test_a_tool_of_the_wrong_type(qwen: Tokenizer, tool: Any) -> None:
    with pytest.raises(InputTypeError, match="tool 1"):
        qwen.apply_chat_template([user("Hi!")], tools=[WEATHER, tool])


@pytest.mark.parametrize("documents", ["text", 7, {"title": "a"}], ids=lambda given: type(given).__name__)
def test_documents_must_be_a_list(qwen: Tokenizer, documents: Any) -> None:
    with pytest.raises(InputTypeError, match=type(documents).__name__):
        qwen.apply_chat_template([user("Hi!")], documents=documents)
