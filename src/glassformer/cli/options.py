"""Options that several verbs share, bundled: a verb names the bundle, and the command line has each of its options.

@bundled
def lens(prompt: common.PromptArgument = None, load: Loading = LOADING, shown: Showing = SHOWING) -> None: ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_type_hints

import typer

from glassformer.cli import common
from glassformer.errors import InputError, SettingError

if TYPE_CHECKING:
    from glassformer.observe.reading import Reading
    from glassformer.runtime.model import Model
    from glassformer.sites import Change
    from glassformer.views.view import View


def _form(path: Path | None) -> Path | None:
    """Refuse a file whose name does not say what to write, before anything runs."""
    if path is not None:
        from glassformer.views.view import form_of

        form_of(path)
        if not path.absolute().parent.is_dir():
            raise InputError(f"{str(path)!r} cannot be written: there is no folder {str(path.absolute().parent)!r}.")
    return path


AllOption = Annotated[bool, typer.Option("--all", help="Show all of it, however long.")]
SaveOption = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", callback=_form, help="Write it instead: .html for a browser, .json, or .txt."),
]
KeepOption = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", callback=_form, help="Also keep the run: .json to replay it, .html to look at."),
]


@dataclass(frozen=True)
class Bundle:
    """Options that go together, as a class's fields."""

    PANEL: ClassVar[str]  # under which the help lists them


@dataclass(frozen=True)
class Loading(Bundle):
    """Which model, and how it runs."""

    PANEL = "Which model, and how it runs"

    model: common.ModelOption = common.DEFAULT_MODEL
    executor: common.ExecutorOption = "auto"
    weights: common.WeightsOption = None
    cache: common.CacheOption = None
    activations: common.ActivationsOption = None
    dtype: common.DtypeOption = None

    def open(self, name: str | None = None, **other: Any) -> Model:
        """The model; another one, or this one loaded otherwise, where it is said."""
        how = {one: getattr(self, one) for one in ("executor", "weights", "cache", "activations", "dtype")}
        return common.open_model(name or self.model, **how | other)


@dataclass(frozen=True)
class Changing(Loading):
    """The same, with a look at what would be if something inside were not as it is."""

    change: Annotated[
        list[str] | None,
        typer.Option("--change", metavar="SITE[:HEADS]=FACTOR", help="What if? Scale a site, or heads of it; 0 zeroes."),
    ] = None

    def open(self, name: str | None = None, **other: Any) -> Model:
        found, wanted = super().open(name, **other), changes(self.change)
        return found.changed(wanted) if wanted else found


@dataclass(frozen=True)
class Wording(Bundle):
    """How a text becomes a prompt."""

    PANEL = "How the text becomes a prompt"

    raw: common.RawOption = False
    system: common.SystemOption = None
    template: common.TemplateOption = None

    def how(self) -> dict[str, Any]:
        """As a model's calls take it."""
        return {"raw": self.raw, "system": self.system, "template": common.variables(self.template)}

    def reading(self, model: Model, text: str, target: str | None, new: int) -> Reading:
        """A text under the glass, with so many tokens that the model wrote after it."""
        if not new:
            return model.read(text, target, **self.how())
        if target is not None:
            raise SettingError("--target is what is to be written; -n lets the model write. Leave one out.")
        with common.waiting(f"writing {new} tokens"):
            return model.watch(text, max_new_tokens=new, **self.how()).reading


@dataclass(frozen=True)
class Showing(Bundle):
    """In which form a view is given."""

    PANEL = "How it is shown"

    everything: AllOption = False
    as_json: common.JsonOption = False
    save: SaveOption = None

    def show(self, found: View) -> None:
        common.show(found, as_json=self.as_json, everything=self.everything, save=self.save)


def _under(panel: str, option: Any) -> Any:
    """An option, in a panel of the help."""
    kind, info = get_args(option)
    info = copy(info)
    info.rich_help_panel = panel
    return Annotated[kind, info]


LOADING, CHANGING, WORDING, SHOWING = Loading(), Changing(), Wording(), Showing()


def changes(given: list[str] | None) -> dict[str, Change]:
    """What to change, as it is written: SITE[:HEADS]=FACTOR."""
    from glassformer.sites import Change

    found: dict[str, Change] = {}
    for one in given or []:
        where, equals, factor = one.rpartition("=")
        site, _, heads = where.partition(":")
        try:
            numbers = [int(head) for head in heads.split(",")] if heads else None
            found[site] = Change(scale=float(factor), heads=numbers)
        except ValueError:
            equals = ""
        if not equals or not site:
            raise SettingError(f"--change {one!r} is not SITE[:HEADS]=FACTOR, such as blocks.5.attention.heads:2=0.")
    return found


def bundled(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb, with the options of its bundles spelt out."""
    hints = get_type_hints(verb, include_extras=True)
    parameters, bundles = [], {}
    for one in inspect.signature(verb).parameters.values():
        kind = hints[one.name]
        if not (isinstance(kind, type) and issubclass(kind, Bundle)):
            parameters.append(one.replace(annotation=kind))
            continue
        bundles[one.name] = kind
        inside = get_type_hints(kind, include_extras=True)
        for each in fields(kind):
            under = _under(kind.PANEL, inside[each.name])
            parameters.append(one.replace(name=each.name, annotation=under, default=each.default))

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        made = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in bundles.items()}
        verb(**given, **made)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called
