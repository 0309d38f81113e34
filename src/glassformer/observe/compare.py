"""Two runs, two texts or two models: picks the comparison that fits."""

from __future__ import annotations

from typing import Any

from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.progress import Progress
from glassformer.observe.activations import Activations
from glassformer.observe.compare_models import compare_models, compare_readings
from glassformer.observe.compare_runs import compare_runs
from glassformer.observe.compare_texts import compare_texts
from glassformer.views.compare_models import ModelComparison
from glassformer.views.compare_runs import RunComparison
from glassformer.views.compare_texts import TextComparison


@checked
def compare(
    first: Any,
    second: Any,
    *,
    token: int | str | None = None,
    text: str | None = None,
    names: tuple[str, str] | None = None,
    progress: Progress | None = None,
) -> TextComparison | ModelComparison | RunComparison:
    """Compare two of a kind.

    Two runs of `watch`: what each wrote, where they diverge, and what each model thought there. Two texts of `read`, in one
    model: where they diverge, and what the same token (`token`, or the last that both have) is in each; the same text in two
    models: how far these differ. Two models over a `text`, which may be long.
    """
    if hasattr(first, "steps") and hasattr(second, "steps"):
        _refuse_unused("two runs", token=token, text=text, progress=progress)
        return compare_runs(first, second, names or ("first", "second"))
    if isinstance(first, Activations) and isinstance(second, Activations):
        if first.model is second.model:
            _refuse_unused("two texts in one model", text=text, names=names, progress=progress)
            return compare_texts(first, second, token)
        _refuse_unused("one text in two models", text=text, token=token)
        return compare_readings(first, second, names, progress)
    if hasattr(first, "executor") and hasattr(second, "executor"):
        _refuse_unused("two models", token=token)
        if text is None:
            raise InputError("two models are compared over a text. Pass text=….")
        return compare_models(first, second, text, names, progress)
    raise InputTypeError(
        f"{type(first).__name__} and {type(second).__name__} cannot be compared. Give two runs of watch(…), two texts of "
        "read(…), or two models and a text."
    )


def _refuse_unused(compared: str, **arguments: Any) -> None:
    """Refuse an argument that would change nothing here."""
    if unused := [name for name, value in arguments.items() if value is not None]:
        raise InputError(f"{unused[0]} has no use in comparing {compared}. Leave it out.")
