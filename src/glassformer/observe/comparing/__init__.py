"""Two of a kind side by side: two texts in one model, two models over one text, two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from glassformer.errors import InputError, InputTypeError
from glassformer.observe.comparing.runs import Runs, runs
from glassformer.observe.comparing.sides import Sides, sides
from glassformer.observe.comparing.texts import Texts, texts
from glassformer.observe.passes import Passes, Tell
from glassformer.observe.perplexity import WINDOW, begins_with

if TYPE_CHECKING:
    from glassformer.loaded import Loaded

__all__ = ["Runs", "Sides", "Texts", "compare", "labels"]
TRANSFORMERS = "transformers"


def compare(
    first: Any,
    second: Any,
    *,
    token: int | str | None = None,
    text: str | None = None,
    names: tuple[str, str] | None = None,
    tell: Tell | None = None,
) -> Texts | Sides | Runs:
    """Compare two of a kind.

    Two runs of `watch`: what each wrote, where they part, what each thought there. Two texts of `read`, in one model: where
    they part, and what the same token (`token`, or the last that both have) is in each; the same text in two models: how far
    these are apart. Two models over a `text`, which may be long; the second may be 'transformers', where it is installed.
    """
    if hasattr(first, "steps") and hasattr(second, "steps"):
        return runs(first, second, names or ("first", "second"))
    if isinstance(first, Passes) and isinstance(second, Passes):
        if first.model is second.model:
            return texts(first, second, token)
        return sides([first], [second], names or labels(first.model, second.model), first.model.tokenizer, tell)
    if hasattr(first, "encode") and (second == TRANSFORMERS or hasattr(second, "encode")):
        if text is None:
            raise InputError("two models are compared over a text. Pass text=….")
        return models(first, second, text, names, tell)
    raise InputTypeError(
        f"{type(first).__name__} and {type(second).__name__} cannot be compared. Give two runs of watch(…), two texts of "
        "read(…), or two models and a text."
    )


def models(
    first: Loaded, second: Loaded | Literal["transformers"], text: str, names: tuple[str, str] | None, tell: Tell | None
) -> Sides:
    """Two models over a text of any length, window by window."""
    from glassformer.observe.comparing.foreign import Foreign

    if not first.writes or first.start is not None:
        raise InputError(f"{first.name} does not continue texts, so there is nothing to compare on one.")
    ids = first.tokenizer(text, add_special_tokens=False)["input_ids"]
    if isinstance(second, str):
        foreign, context, other = Foreign(first), first.config.context, None
    else:
        if second.tokenizer(text, add_special_tokens=False)["input_ids"] != ids:
            raise InputError(
                f"{first.name} and {second.name} cut this text into different tokens, so they cannot be compared on it."
            )
        foreign, context, other = None, min(first.config.context, second.config.context), second
    windows = _windows(ids, begins_with(first.tokenizer), min(WINDOW, context))
    mine = [Passes(first, window, None, len(window)) for window in windows]
    if foreign is not None:
        theirs = [foreign.over(window) for window in windows]
        label = (first.name, TRANSFORMERS)
    else:
        assert other is not None
        theirs = [Passes(other, window, None, len(window)) for window in windows]
        label = labels(first, other)
    return sides(mine, theirs, names or label, first.tokenizer, tell)


def _windows(ids: Sequence[int], begin: int | None, size: int) -> list[tuple[int, ...]]:
    before = () if begin is None else (begin,)
    step = size - len(before)
    return [(*before, *ids[start : start + step]) for start in range(0, len(ids), step)]


def labels(first: Loaded, second: Loaded) -> tuple[str, str]:
    """What to call two models: by what differs."""
    one, other = (_named(model) for model in (first, second))
    return (first.name, second.name) if first.name != second.name else (one, other if other != one else f"{other}, again")


def _named(model: Loaded) -> str:
    """A model with how it runs: its executor, its weights' kind, and what was asked for."""
    if not model.writes:
        return f"{model.name}{', changed' if model.changes else ''}"
    about = model.executor.describe()
    how = [about.name, about.dtype, *(f"{name} in {kind}" for name, kind in about.options.items())]
    return f"{model.name} ({', '.join(how)}{', changed' if model.changes else ''})"
