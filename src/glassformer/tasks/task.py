"""What all tasks share: one input or many, options, answers in the order of the questions."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from glassformer.blueprints import Head
from glassformer.errors import GlassError, InputError, InputTypeError, SettingError, UnknownArgument, nearest
from glassformer.text.inputs import explain
from glassformer.typecheck import fits, words

if TYPE_CHECKING:
    from glassformer.runtime.model import Model
    from glassformer.text import Tokenizer

FIRST, MOST = 32, 1024  # inputs that are read before the first of them is answered, so that batches are of like length


@dataclass(frozen=True)
class Options:
    """What can be asked of a task; each task adds its own."""

    batch_size: int | None = None  # at most so many rows in one pass; by default as many as make a good load

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if not fits(value, hints[one.name]):
                raise SettingError(f"{one.name} is {value!r}; it must be {words(hints[one.name])}.")
        check_positive(self, "batch_size")


class Task(ABC):
    """A task over a loaded model. Call it with one input or many."""

    name: ClassVar[str]
    about: ClassVar[str]
    heads: ClassVar[tuple[Head, ...]]  # that the model may have
    model_name: ClassVar[str | None] = None  # used when no model is named; it can be had without a hub
    suggested: ClassVar[str]  # one that fits, from the hub
    example: ClassVar[str]  # of what `glass task` is given
    Options: ClassVar[type[Any]]

    def __init__(self, model: Model, **options: Any) -> None:
        self.model = model
        self.options = self._given(options)

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
        chosen = self._given(options)
        if isinstance(inputs, Sequence) and not self.single(inputs, chosen):
            return self.shaped([_raised(one, f"input {at}: ") for at, one in enumerate(self._each(inputs, chosen))], chosen)
        if not isinstance(inputs, (Iterable, Mapping)) and hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"):
            inputs = map(inputs.__getitem__, range(len(inputs)))  # a torch Dataset, or its like
        if isinstance(inputs, Iterable) and not isinstance(inputs, (Mapping, Sequence)):
            return (_raised(one, f"input {at}: ") for at, one in enumerate(self._each(inputs, chosen)))
        return _raised(next(self._each([inputs], chosen)))

    def stream(self, inputs: Iterable[Any], **options: Any) -> Iterator[Any]:
        """Answers one by one, in the order of the inputs, which may be endless.

        What cannot be answered gives its error in place of an answer, so that one bad line does not end a long job.
        """
        return self._each(inputs, self._given(options))

    def _each(self, inputs: Iterable[Any], options: Any) -> Iterator[Any]:
        waiting, ahead = iter(inputs), options.batch_size or FIRST
        while chunk := list(islice(waiting, ahead)):
            if options.batch_size is None:
                ahead = min(2 * ahead, MOST)  # the first answers come soon, the later ones in better batches
            checked = [self._checked(one, options) for one in chunk]
            good = [one for one in checked if not isinstance(one, GlassError)]
            answers = iter(self.answer(good, options)) if good else iter(())
            yield from (one if isinstance(one, GlassError) else next(answers) for one in checked)

    def _checked(self, given: Any, options: Any) -> Any:
        if isinstance(given, GlassError):  # it could not even be read
            return given
        try:
            return self.check(given, options)
        except GlassError as error:
            return error

    def _given(self, options: Mapping[str, Any]) -> Any:
        """The task's options with a call's own on top."""
        known = [field.name for field in dataclasses.fields(self.Options)]
        for name in options:
            if name not in known:
                raise UnknownArgument(
                    f"the task {self.name} has no option {name!r}.{nearest(name, known)} It takes: {', '.join(known)}."
                )
        before = getattr(self, "options", None)
        return self.Options(**options) if before is None else dataclasses.replace(before, **options)

    def single(self, inputs: Any, options: Any) -> bool:
        """Whether a sequence is one input, as a text is, and not a list of them."""
        return isinstance(inputs, (str, bytes))

    def shaped(self, found: list[Any], options: Any) -> Any:
        """What a list of inputs gives."""
        return found

    def check(self, given: Any, options: Any) -> Any:
        """An input as this task takes it, or an error that says what it takes."""
        return checked_text(given)

    @abstractmethod
    def answer(self, items: Sequence[Any], options: Any) -> Iterable[Any]:
        """The answers to checked inputs, in their order; what has none gives its error."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.name!r})"


def _raised(found: Any, where: str = "") -> Any:
    """An answer; an error in its place is raised."""
    if isinstance(found, GlassError):
        raise type(found)(f"{where}{found}") from found
    return found


def checked_text(given: Any) -> str:
    """A text with something in it, by itself or as `{"text": "…"}`, where it may have other things beside it."""
    if isinstance(given, Mapping):
        if "text" not in given:
            raise InputError(f"an object needs a 'text'; this one has {', '.join(map(repr, given)) or 'nothing'}.")
        given = given["text"]
    if not isinstance(given, str):
        raise InputTypeError(f"a task takes text, not {type(given).__name__}.")
    if not given.strip():
        raise InputError("the text is empty. Give it at least one word.")
    try:
        given.encode()
    except UnicodeEncodeError:
        explain([given], single=True, words=False)
    return given


def paired(given: Any) -> tuple[str, str | None]:
    """A text, alone or with a second one: "…", ("…", "…") or {"text": "…", "text_pair": "…"}."""
    if isinstance(given, Mapping) and given.get("text_pair") is not None:
        return checked_text(given), checked_text(given["text_pair"])
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return checked_text(given[0]), checked_text(given[1])
    return checked_text(given), None


def check_positive(options: object, *names: str) -> None:
    """Refuse counts that are none; None is no count, and fine."""
    for name in names:
        value = getattr(options, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise SettingError(f"{name} is {value!r}; it must be a whole number of at least 1.")


def check_choice(options: object, name: str, known: Iterable[str]) -> None:
    """Refuse what is not among the known; None leaves the choice to the model."""
    value = getattr(options, name)
    if value is not None and str(value).lower() not in known:
        raise SettingError(f"{name} is {value!r}.{nearest(str(value), known)} It is one of: {', '.join(known)}.")
