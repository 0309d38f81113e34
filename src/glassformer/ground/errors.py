"""All errors that a person can fix, as one hierarchy.

    GlassError
    ├── ModelNotFound      (LookupError)   a name that is no path, no catalogue entry and no hub id
    ├── FetchError         (OSError)       no network, a failed download, a hash that does not match
    ├── CheckpointError    (ValueError)    a file that is missing, cut short, damaged or hostile
    ├── WriteError         (OSError)       a file or folder that cannot be written; what was there before is as it was
    ├── ConfigError        (ValueError)    a configuration value that cannot be honoured
    ├── TemplateError      (ValueError)    a chat template that is missing, broken, or raised by itself
    ├── InputError         (ValueError)    token ids or text that the model cannot take
    │   └── ContextExceeded                more of them than the model's context has room for
    ├── InputTypeError     (TypeError)     the wrong kind of thing altogether, such as text given to a model
    ├── CopyError          (TypeError)     a copy of what owns native memory, files or processes
    ├── SettingError       (ValueError)    a generation setting that is unknown, contradictory or out of range
    ├── UnknownArgument    (TypeError)     an argument that does not exist; the nearest one is suggested
    ├── SiteError          (ValueError)    a site that is not in the vocabulary
    ├── ExecutorError      (RuntimeError)  an executor that was asked for and cannot run
    │   ├── NotNumbers                     scores that nothing can be chosen by
    │   └── RankLost                       a process that has a part of the model, and stopped
    ├── TrainingDiverged   (RuntimeError)  a training whose loss has risen far above where it began
    ├── MissingExtra       (ImportError)   a library that is an extra of this package, and is not installed
    ├── QueueFull          (RuntimeError)  a scheduler that has as many requests waiting as it may have
    └── Unavailable        (RuntimeError)  a server that is stopping, or took too long

Each also is the built-in exception that people would expect, and each reads as one sentence: what was wrong,
where, and how to fix it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Never, Protocol

MAX_MESSAGE = 8_000  # characters: what a damaged file puts into a message is cut
EXTRAS = {  # which extra of pyproject.toml brings a module
    "anywidget": "notebooks", "fastapi": "serve", "llguidance": "grammar", "pyarrow": "parquet", "pydantic": "serve",
    "ray": "ray", "starlette": "serve", "torch": "torch", "traitlets": "notebooks", "transformers": "transformers",
    "triton": "gpu", "uvicorn": "serve",
}  # fmt: skip
LIBRARY_NAMES = {"ray": "Ray", "torch": "PyTorch", "triton": "Triton"}


class GlassError(Exception):
    """The root: catch this to catch everything that Glassformer raises on purpose."""

    def __str__(self) -> str:
        return shortened(super().__str__(), MAX_MESSAGE)


class ModelNotFound(GlassError, LookupError, OSError):  # OSError: what scripts for transformers catch
    def __str__(self) -> str:  # LookupError has no quoting habits, but its child KeyError does; stay plain
        return " ".join(str(part) for part in self.args)


class FetchError(GlassError, OSError): ...


class CheckpointError(GlassError, ValueError): ...


class WriteError(GlassError, OSError): ...


class ConfigError(GlassError, ValueError): ...


class TemplateError(GlassError, ValueError): ...


class InputError(GlassError, ValueError): ...


class ContextExceeded(InputError): ...


class InputTypeError(GlassError, TypeError): ...


class CopyError(GlassError, TypeError): ...


class SettingError(GlassError, ValueError): ...


class UnknownArgument(GlassError, TypeError): ...


class SiteError(GlassError, ValueError): ...


class ExecutorError(GlassError, RuntimeError): ...


class NotNumbers(ExecutorError): ...


class RankLost(ExecutorError): ...


class TrainingDiverged(GlassError, RuntimeError): ...


class MissingExtra(GlassError, ModuleNotFoundError): ...


class QueueFull(GlassError, RuntimeError): ...


class Unavailable(GlassError, RuntimeError): ...


class Spelling(Protocol):
    """How an argument is typed: its name alone, or with a value."""

    def __call__(self, name: str, *value: Any) -> str: ...


def python_spelling(name: str, *value: Any) -> str:
    return f"{name}={value[0]!r}" if value else name


_spelling: ContextVar[Spelling] = ContextVar("spelling", default=python_spelling)


def join_names(names: Sequence[str]) -> str:
    """A few names for a message, and how many more there are.

    >>> join_names(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def spell(name: str, *value: Any) -> str:
    """An argument as the reader of a message types it: in Python, unless `spelled_by` says otherwise.

    >>> spell("do_sample", True)
    'do_sample=True'
    """
    return _spelling.get()(name, *value)


def current_spelling() -> Spelling:
    """How arguments are spelled here, for `spelled_by` in another process."""
    return _spelling.get()


@contextlib.contextmanager
def spelled_by(spelling: Spelling) -> Iterator[None]:
    """Messages that name arguments as another reader types them, at the command line for instance."""
    token = _spelling.set(spelling)
    try:
        yield
    finally:
        _spelling.reset(token)


@contextlib.contextmanager
def needed_for(what: str = "this") -> Iterator[None]:
    """Say how to install what is imported within, where it is an extra that is missing; `what` needs it.

    >>> with needed_for("training"):
    ...     raise ModuleNotFoundError(name="torch")
    Traceback (most recent call last):
    glassformer.ground.errors.MissingExtra: training needs PyTorch: pip install 'glassformer[torch]'.
    """
    try:
        yield
    except MissingExtra:
        raise  # it was said closer to where it is needed
    except ModuleNotFoundError as error:
        if (module := error.name) not in EXTRAS:
            raise
        raise MissingExtra(f"{what} needs {LIBRARY_NAMES.get(module, module)}: {install(module)}.", name=module) from error


def install(module: str) -> str:
    """The command that installs a module of an extra.

    >>> install("torch")
    "pip install 'glassformer[torch]'"
    """
    return f"pip install 'glassformer[{EXTRAS[module]}]'"


def shortened(text: str, limit: int) -> str:
    """A text without its middle, where it is longer than `limit` characters.

    >>> shortened("how are you today?", 9)
    'how … ay?'
    """
    head = limit // 2
    return text if len(text) <= limit else f"{text[:head].rstrip()} … {text[len(text) - (limit - head - 2) :]}"


def reason_of(error: BaseException) -> str:
    """The words of another library's error, for the middle of a sentence: one line, and no longer than one."""
    return shortened(" ".join(str(error).split()), 200).rstrip(".")


SHORTEST_BEGINNING = 3  # letters of a word that are taken for its beginning


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" for the known word closest to `word`, or that it begins; or nothing when there is none.

    >>> did_you_mean("temp", ["top_p", "temperature"])
    " Did you mean 'temperature'?"
    """
    import difflib

    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    if not close and len(word) >= SHORTEST_BEGINNING:
        close = sorted((name for name in names if name.startswith(word.lower())), key=len)[:1]
    return f" Did you mean {names[close[0]]!r}?" if close else ""


def did_you_misspell(word: str, families: Iterable[str]) -> str:
    """`did_you_mean` for families, whose names are near each other though their models differ: one slip inside a name alone.

    >>> did_you_misspell("lama", ["llama", "phi3"]), did_you_misspell("phi", ["llama", "phi3"])
    (" Did you mean 'llama'?", '')
    """
    return did_you_mean(word, [family for family in families if _is_slip(_letters(word), _letters(family))])


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _is_slip(word: str, name: str) -> bool:
    """Whether words are the same but for one letter within them: wrong, missing, doubled, or swapped with the next."""
    if word == name:
        return True
    if word[:1] != name[:1] or word[-1:] != name[-1:] or [*filter(str.isdigit, word)] != [*filter(str.isdigit, name)]:
        return False
    shorter, longer = sorted((word, name), key=len)
    if len(shorter) < len(longer):
        return any(longer[:index] + longer[index + 1 :] == shorter for index in range(len(longer)))
    wrong = [index for index, (one, other) in enumerate(zip(word, name, strict=True)) if one != other]
    swapped = len(wrong) == 2 and wrong[1] - wrong[0] == 1 and sorted(word) == sorted(name)
    return len(wrong) == 1 or swapped


def refuse_unknown(unknown: Mapping[str, Any], function: Callable[..., Any], also: Iterable[str] = ()) -> None:
    """Raise for the first keyword argument that `function` does not have; return when there is none.

    >>> refuse_unknown({}, print)
    """
    if not unknown:
        return
    named = (p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD)
    known = sorted({*named, *also} - {"self", "p"})  # p is internal to executors and models
    word = next(iter(unknown))
    name = "tokenizer" if function.__name__ == "__call__" else function.__name__
    raise UnknownArgument(f"{name}() has no argument {word!r}.{did_you_mean(word, known)} It takes: {', '.join(known)}.")


def refuse_text(value: object, where: str) -> Never:
    """A string where token ids belong: the first mistake everybody makes, so it gets the best answer."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        raise InputTypeError(f"{where} takes the tokens unpacked: put two stars before them, as in generate(**tokens).")
    raise InputTypeError(
        f"{where} takes token ids as a tensor, not {kind}. "
        "Turn text into ids first: tokens = tokenizer(text, return_tensors='pt'), then pass **tokens; "
        "or let glassformer.load(name).chat(text) do both."
    )


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Refuse token ids that no row of the embedding table belongs to."""
    if len(ids) and min(ids) >= 0 and max(ids) < vocabulary:
        return
    for token in ids:
        if not 0 <= token < vocabulary:
            raise InputError(f"token id {token} is outside the vocabulary of {vocabulary}.")


def check_context(tokens: int, context: int, what: str = "text") -> None:
    """Refuse more tokens than a model has room for.

    >>> check_context(3, context=8)
    """
    if tokens > context:
        raise ContextExceeded(f"{tokens} tokens do not fit into the model's context of {context}. Shorten the {what}.")
