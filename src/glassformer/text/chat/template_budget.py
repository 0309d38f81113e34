"""What a chat template may spend: a template out of a model file is a program, and must not run or grow without end.

Steps and sizes are counted, not seconds, so that the same template and conversation always end the same way. A unit
is about one small step of Python, or 16 characters handled at once. Each loop pays per round, and each operation for
the size of what it is given, and of what it would make, *before* it runs. The allowance grows with the conversation:
ordinary templates use a small part of it; an endless one is stopped within seconds and a few hundred megabytes.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Self, TypeAlias

import jinja2
from jinja2.runtime import LoopContext, Macro
from jinja2.utils import Namespace

ALLOWANCE = 2_000_000
PER_INPUT_UNIT = 1_000  # a long conversation may cost more, even where a template looks back at every turn
CHARACTERS_PER_UNIT = 16  # of a text, for one unit
MAX_CHARACTERS = 2**25  # characters in one text
MAX_BITS = 2**16  # in one whole number
MAX_WIDTH = 10_000  # what a format may pad to
MAX_CALLS = 40  # of macros and recursive loops within each other: each takes some of the thread's stack
MAX_LEVELS = 200  # of lists within lists
MAX_LAZY = 40  # of lazy filters that read from each other: each takes some of the thread's stack, also when it is freed

# Filters whose cost does not depend on the size of their input, and those that only walk along it.
FREE_FILTERS = {"length", "count", "default", "d", "first", "last", "attr", "safe", "random"}
WALKING_FILTERS = {"map", "select", "reject", "selectattr", "rejectattr", "reverse", "list", "batch", "slice", "items"}


class BudgetExceeded(jinja2.TemplateRuntimeError):
    """The template ran or grew past its allowance."""


class Budget:
    """What is left to spend in one rendering."""

    __slots__ = ("calls", "left", "pulls")

    def __init__(self, inputs: Any = None) -> None:
        self.calls = 0  # those within which it is just now
        self.pulls = 0  # of lazy filters from each other, likewise
        self.left = 2**62
        self.left = ALLOWANCE + PER_INPUT_UNIT * self.charge_value(inputs)

    def spend(self, units: int) -> None:
        if units > 0:  # a negative width or count earns nothing
            self.left -= units
        if self.left < 0:
            raise BudgetExceeded("it takes too many steps or too much memory")

    def charge_text(self, length: int) -> int:
        """Pay for a text of that length, and return how much it was."""
        if length > MAX_CHARACTERS:
            raise BudgetExceeded(f"it makes a text of more than {MAX_CHARACTERS:,} characters")
        units = 1 + (length // CHARACTERS_PER_UNIT if length > 0 else 0)
        self.left -= units
        if self.left < 0:
            self.spend(0)
        return units

    def charge_value(self, value: Any, levels: int = MAX_LEVELS) -> int:
        """Pay for all that a value holds, to any depth, and return how much it was: what printing or comparing it costs."""
        kind = type(value)
        if kind is str:
            return self.charge_text(len(value))
        if kind is bool or kind is float or value is None:
            self.spend(1)
            return 1
        units = 1
        if not levels:
            raise BudgetExceeded(f"it handles values that are nested more than {MAX_LEVELS} levels deep")
        if isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise BudgetExceeded(f"it makes a number of more than {MAX_BITS:,} bits")
        elif isinstance(value, dict):
            for key, item in value.items():
                units += self.charge_value(key, levels - 1) + self.charge_value(item, levels - 1)
        elif isinstance(value, (list, tuple, AbstractSet)):
            for item in value:
                units += self.charge_value(item, levels - 1)
        elif isinstance(value, (str, bytes)):
            return self.charge_text(len(value))
        elif isinstance(value, Namespace):
            units += self.charge_value(object.__getattribute__(value, "_Namespace__attrs"), levels - 1)
        elif isinstance(value, range):
            units += len(value)
            self.spend(len(value))
        elif isinstance(value, ValuesView):
            units += self.charge_value(list(value), levels - 1)
        self.spend(1)
        return units

    def charge_walk(self, value: Any, cost: int = 1) -> None:
        """Pay for one round over a value; an iterator pays for itself, as it goes."""
        try:
            length = len(value)
        except TypeError:
            length = 0
        self.spend(1 + cost * length)

    def charge_result(self, value: Any, *sources: Any) -> Any:
        """Pay for the result of an operation on `sources`, and return it."""
        if isinstance(value, (str, bytes)):
            self.charge_text(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.spend(len(value))
        elif isinstance(value, Iterator) and not isinstance(value, LazyItems):
            return LazyItems(self, value, sources)
        return value

    def check_lazy(self, levels: int) -> None:
        if levels > MAX_LAZY:
            raise BudgetExceeded(f"its lazy filters, such as map, read from each other more than {MAX_LAZY} levels deep")

    # Before each kind of operation ------------------------------------------------------------------------------

    def charge_filter(self, name: str, value: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Pay for a filter; returns its input, gathered where it has to be seen whole."""
        arguments = [*args, *options.values()]
        self.spend(4)
        if name in FREE_FILTERS:
            return value
        if name in WALKING_FILTERS:
            self.charge_walk(value)
            self.spend(max(_numbers(arguments), default=0))  # batch and slice fill up to a number
        else:
            value = list(value) if isinstance(value, Iterator) else value
            self._charge_method(f"|{name}" if f"|{name}" in RULES else name, value, arguments)
        return value

    def charge_call(self, function: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, ...]:
        """Pay for a call; returns its arguments, gathered where they have to be seen whole."""
        self.spend(8)
        if isinstance(function, Macro):  # its body pays
            return args
        if isinstance(function, LoopContext):  # a recursive loop: its body pays for each round
            self.charge_walk(args[0] if args else ())
            return args
        function = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if name == "join" and args and isinstance(args[0], Iterator):
            args = (list(args[0]), *args[1:])
        arguments = [*args, *(value for key, value in options.items() if not key.startswith("_"))]
        self._charge_method(name, owner if isinstance(owner, (str, bytes, list, tuple, int)) else None, arguments)
        return args

    def charge_operator(self, sign: str, left: Any, right: Any) -> None:
        """Pay for `left sign right`."""
        if type(left) is type(right) is str and sign == "+":
            self.charge_text(len(left) + len(right))
            return
        units = self.charge_value(left) + self.charge_value(right)
        if sign == "*":
            for repeated, times in ((left, right), (right, left)):
                if isinstance(repeated, (str, bytes)) and isinstance(times, int):
                    self.charge_text(len(repeated) * times)
                elif isinstance(repeated, (list, tuple)) and isinstance(times, int):
                    self.spend(len(repeated) * times)
        elif sign == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > MAX_BITS:
                raise BudgetExceeded(f"it makes a number of more than {MAX_BITS:,} bits")
        elif sign == "%" and isinstance(left, (str, bytes)):
            self.spend(_percent(Call(left, right if isinstance(right, tuple) else (right,), 1, units)))

    def _charge_method(self, name: str, owner: Any, args: list[Any]) -> None:
        """Pay for a method of a text, list or number, or for the filter or function of that name."""
        size, arguments_size = self.charge_value(owner), self.charge_value(args)
        if rule := RULES.get(name):
            self.spend(rule(Call(owner, args, size, arguments_size)))


class LazyItems:
    """An iterator that pays for each item, and knows how many others stand behind it.

    A chain of iterators takes the stack, level by level, when an item is pulled through it and when it is freed. Levels
    are counted as it grows; one behind which others are hidden, such as in a list, is found when it is read.
    """

    __slots__ = ("_budget", "_items", "_levels")  # underscored: no template can spell them

    def __init__(self, budget: Budget, items: Iterator[Any], sources: Sequence[Any]) -> None:
        self._budget, self._items = budget, items
        self._levels: int = 1 + max((source._levels for source in sources if isinstance(source, LazyItems)), default=0)
        budget.check_lazy(self._levels)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        budget = self._budget
        budget.spend(1)
        budget.pulls += 1
        try:
            budget.check_lazy(budget.pulls)
            return next(self._items)
        finally:
            budget.pulls -= 1


# What an operation costs beyond reading what it is given ------------------------------------------------------------


class Call(NamedTuple):
    """An operation that is to be paid for."""

    owner: Any
    args: Sequence[Any]
    size: int  # what the owner weighs
    args_size: int

    @property
    def numbers(self) -> list[int]:
        return _numbers(self.args)


Rule: TypeAlias = Callable[[Call], int]


def _numbers(values: Sequence[Any]) -> list[int]:
    return [value for value in values if isinstance(value, int)]


def _square(call: Call) -> int:
    length = CHARACTERS_PER_UNIT * (call.size + call.args_size) + sum(map(abs, call.numbers))
    return length * length >> 6


def _per_item(call: Call) -> int:
    """A filter over the items of a list, or the letters of a text, with something such as a comma for each."""
    return len(call.owner) * call.args_size if isinstance(call.owner, Sized) else 0


def _encoded(call: Call) -> int:
    """Some encodings, such as punycode, look back at all that came before."""
    common = not call.args or str(call.args[0]).lower() in ("utf-8", "utf8", "ascii")
    return 0 if common else _square(call)


def _replaced(call: Call) -> int:
    owner, args = call.owner, call.args
    if len(args) < 2 or not all(isinstance(text, (str, bytes)) for text in (owner, *args[:2])):
        return 0
    places = owner.count(args[0]) if type(args[0]) is type(owner) else len(owner) + 1
    return places * (1 + len(args[1])) // CHARACTERS_PER_UNIT


def _split(call: Call) -> int:
    if call.args and call.args[0] and isinstance(call.args[0], str) and isinstance(call.owner, str):
        return call.owner.count(call.args[0])
    return CHARACTERS_PER_UNIT * call.size


def _percent(call: Call) -> int:
    """`owner % args`: each place may hold all the values, padded as far as it says."""
    text = call.owner.decode("latin-1") if isinstance(call.owner, bytes) else str(call.owner)
    places: list[str] = re.findall(r"%[^a-zA-Z%]*", text)
    starred = any("*" in place for place in places)
    _check_width([*(digits for place in places for digits in re.findall(r"\d+", place)), *(call.numbers if starred else [])])
    return len(places) * call.args_size


def _braces(call: Call) -> int:
    """`owner.format(*args)`, in the same way; a width may come out of the values, and a value may be text."""
    specs = [spec for _, field, spec, _ in string.Formatter().parse(str(call.owner)) if field is not None]
    nested = any("{" in spec for spec in specs if spec)
    values = re.findall(r"\d+", str(call.args)) if nested else []
    _check_width([*(digits for spec in specs if spec for digits in re.findall(r"\d+", spec)), *values])
    return len(specs) * (8 + call.args_size)


def _check_width(widths: Sequence[str | int]) -> None:
    if any(len(str(width)) > 5 or int(width) > MAX_WIDTH for width in widths):
        raise BudgetExceeded(f"it formats a value to more than {MAX_WIDTH:,} places")


RULES: dict[str, Rule] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes"), lambda call: max(call.numbers, default=0)),
    **dict.fromkeys(("urlize", "wordwrap", "pprint", "sum", "round", "generate_lorem_ipsum"), _square),
    **dict.fromkeys(
        ("strip", "lstrip", "rstrip", "trim", "rfind", "rindex", "rpartition", "translate"),
        lambda call: CHARACTERS_PER_UNIT * call.size * call.args_size if call.args else 0,
    ),
    **dict.fromkeys(("split", "splitlines", "wordcount", "title"), _split),
    **dict.fromkeys(("encode", "decode"), _encoded),
    **dict.fromkeys(("format", "format_map"), _braces),
    "rsplit": lambda call: _split(call) + call.size * call.args_size,
    **dict.fromkeys(("|join", "sort", "min", "max"), _per_item),
    "join": lambda call: _per_item(Call(call.args[0], (), call.args_size, call.size)) if call.args else 0,
    "expandtabs": lambda call: CHARACTERS_PER_UNIT * call.size * max(call.numbers, default=0) if call.args else 0,
    "indent": lambda call: (str(call.owner).count("\n") + 1) * max(4, call.args_size, *call.numbers),
    "replace": _replaced,
    "|format": _percent,
    "strftime_now": lambda call: 256 * call.args_size,
}
