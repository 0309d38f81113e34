"""What all tasks share: one input or many, options, answers in the order of the inputs."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from glassformer.blueprints import Head
from glassformer.ground.arguments import checked
from glassformer.ground.errors import GlassError, InputError, InputTypeError, SettingError, UnknownArgument, did_you_mean
from glassformer.ground.typecheck import brief, matches_type, type_words
from glassformer.text.inputs import check_inputs

if TYPE_CHECKING:
    from glassformer.runtime.model import Model
    from glassformer.text import Tokenizer

FIRST_CHUNK, LARGEST_CHUNK = 32, 1024  # inputs read ahead of the first answer, so that a batch's lengths are similar


@dataclass(frozen=True)
class TaskOptions:
    """The options of every task; each task adds its own."""

    POSITIVE: ClassVar[tuple[str, ...]] = ("batch_size",)  # counts of at least 1
    CHOICES: ClassVar[Mapping[str, Collection[str]]] = {}  # options that are one of these

    batch_size: int | None = None  # rows in one pass, at most; by default as many as keep the machine busy

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not matches_type(value, hints[field.name]):
                raise SettingError(f"{field.name} is {value!r}; it must be {type_words(hints[field.name])}.")
        for name in self.POSITIVE:
            check_positive(name, getattr(self, name))
        for name, known in self.CHOICES.items():
            if (choice := getattr(self, name)) is not None and str(choice).lower() not in known:
                hint = did_you_mean(str(choice), known)
                raise SettingError(f"{name} is {choice!r}.{hint} It is one of: {', '.join(known)}.")


class Task(ABC):
    """A task over a loaded model. Call it with one input or many."""

    name: ClassVar[str]
    about: ClassVar[str]
    heads: ClassVar[tuple[Head, ...]]  # that the model may have
    model_name: ClassVar[str | None] = None  # the default model, which needs no hub
    suggested: ClassVar[str]  # one that fits, from the hub
    example: ClassVar[str]  # an input, as `glass task` takes it
    options_type: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        """Each task's calls check their arguments."""
        for name in ("__call__", "stream"):
            setattr(cls, name, checked(inspect.unwrap(getattr(cls, name)), cls.__dict__.get("name", cls.__name__)))

    def __init__(self, model: Model, **options: Any) -> None:
        self.model = model
        self.options = self._merge_options(options)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @property
    def task(self) -> str:
        return self.name

    @property
    def device(self) -> Any:
        return self.model.module.device

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """The answer to one input, a list of answers to a list, or an iterator over the answers to any other iterable."""
        merged = self._merge_options(options)
        if isinstance(inputs, Sequence) and not self.is_single(inputs, merged):
            return self.collect(list(self._raising_answers(inputs, merged)), merged)
        if not isinstance(inputs, (Iterable, Mapping)) and hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"):
            inputs = map(inputs.__getitem__, range(len(inputs)))  # such as a torch Dataset
        if isinstance(inputs, Iterable) and not isinstance(inputs, (Mapping, Sequence)):
            return self._raising_answers(inputs, merged)
        return _raise_error(next(self._answers([inputs], merged)))

    def stream(self, inputs: Iterable[Any], **options: Any) -> Iterator[Any]:
        """Answers one by one, in the order of the inputs, which may be endless.

        An input without an answer yields its error, so that one bad line does not end a long job.
        """
        if isinstance(inputs, (str, bytes)) or (not isinstance(inputs, Iterable) and not hasattr(inputs, "__getitem__")):
            raise InputTypeError(f"stream() takes many inputs, as a list or an iterator, not {brief(inputs)}.")
        return self._answers(inputs, self._merge_options(options))

    def _answers(self, inputs: Iterable[Any], options: Any) -> Iterator[Any]:
        remaining, size = iter(inputs), min(options.batch_size or FIRST_CHUNK, sys.maxsize)
        while chunk := list(islice(remaining, size)):
            if options.batch_size is None:
                size = min(2 * size, LARGEST_CHUNK)  # the first answers come soon, the later ones in better batches
            items = [self._parse_or_error(value, options) for value in chunk]
            valid = [item for item in items if not isinstance(item, GlassError)]
            answers = iter(self.answer(valid, options)) if valid else iter(())
            yield from (item if isinstance(item, GlassError) else next(answers) for item in items)

    def _raising_answers(self, inputs: Iterable[Any], options: Any) -> Iterator[Any]:
        return (_raise_error(answer, f"input {index}: ") for index, answer in enumerate(self._answers(inputs, options)))

    def _parse_or_error(self, value: Any, options: Any) -> Any:
        if isinstance(value, GlassError):  # it could not even be read
            return value
        try:
            return self.parse_input(value, options)
        except GlassError as error:
            return error

    def _merge_options(self, options: Mapping[str, Any]) -> Any:
        """The task's options, overridden by a call's."""
        known = [field.name for field in dataclasses.fields(self.options_type)]
        for name in options:
            if name not in known:
                raise UnknownArgument(
                    f"the task {self.name} has no option {name!r}.{did_you_mean(name, known)} It takes: {', '.join(known)}."
                )
        defaults = getattr(self, "options", None)
        return self.options_type(**options) if defaults is None else dataclasses.replace(defaults, **options)

    def is_single(self, inputs: Any, options: Any) -> bool:
        """Whether a sequence is one input, as a text is, and not a list of them."""
        return isinstance(inputs, (str, bytes))

    def collect(self, answers: list[Any], options: Any) -> Any:
        """The result for a list of inputs."""
        return answers

    def parse_input(self, value: Any, options: Any) -> Any:
        """An input as this task takes it, or an error that says what it takes."""
        return parse_text(value)

    @abstractmethod
    def answer(self, items: Sequence[Any], options: Any) -> Iterable[Any]:
        """The answers to parsed inputs, in their order; an error in place of an answer."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.name!r})"


def _raise_error(answer: Any, prefix: str = "") -> Any:
    """An answer; an error in its place is raised."""
    if isinstance(answer, GlassError):
        raise type(answer)(f"{prefix}{answer}") from answer
    return answer


def parse_text(value: Any) -> str:
    """A non-empty text, by itself or as `{"text": "…"}`; other keys are ignored."""
    text = value
    if isinstance(value, Mapping):
        if "text" not in value:
            raise InputError(f"an object needs a 'text'; this one has {', '.join(map(repr, value)) or 'nothing'}.")
        text = value["text"]
    if not isinstance(text, str):
        raise InputTypeError(f"a task takes text, not {type(text).__name__}.")
    if not text.strip():
        raise InputError("the text is empty. Give it at least one word.")
    try:
        text.encode()
    except UnicodeEncodeError:
        check_inputs([text], single=True, words=False)
    return text


def parse_pair(value: Any) -> tuple[str, str | None]:
    """A text, alone or with a second one: "…", ("…", "…") or {"text": "…", "text_pair": "…"}."""
    if isinstance(value, Mapping) and value.get("text_pair") is not None:
        return parse_text(value), parse_text(value["text_pair"])
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return parse_text(value[0]), parse_text(value[1])
    return parse_text(value), None


def check_positive(name: str, count: Any) -> None:
    """Refuse counts below 1; None is allowed."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise SettingError(f"{name} is {count!r}; it must be a whole number of at least 1.")


def json_value(answer: Any) -> Any:
    """A task's answer, or the error in place of one, as JSON can represent it."""
    if isinstance(answer, GlassError):
        return str(answer)
    return answer.tolist() if hasattr(answer, "tolist") else answer
