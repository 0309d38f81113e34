"""Groups of options that several verbs share: a verb has the group as a parameter, its command line each of the options.

def lens(prompt: common.PromptArgument = None, *, output: OutputGroup) -> None: ...
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.command import OptionGroup, option
from glassformer.ground.errors import InputError, SettingError

if TYPE_CHECKING:
    from glassformer.ground.changes import Change
    from glassformer.runtime.model import Model
    from glassformer.see.reading import Reading
    from glassformer.see.view import View
    from glassformer.text.prompt import PromptKeywords


def _check_save_path(path: Path | None) -> Path | None:
    """Refuse a file of unknown format, or in a folder that is not there, before anything runs."""
    if path is not None:
        from glassformer.see.view import form_of

        form_of(path)
        if not path.absolute().parent.is_dir():
            raise InputError(f"{str(path)!r} cannot be written: there is no folder {str(path.absolute().parent)!r}.")
    return path


AllOption = Annotated[bool, option("--all", help="Show everything, however long.")]
SaveOption = Annotated[
    Path | None,
    option("--save", metavar="FILE", check=_check_save_path, help="Write a file instead: .html, .json or .txt."),
]
SaveRunOption = Annotated[
    Path | None,
    option("--save", metavar="FILE", check=_check_save_path, help="Save the run: .json to replay, .html to view."),
]
SaveStudioOption = Annotated[
    Path | None,
    option(
        "--studio",
        metavar="FILE",
        check=_check_save_path,
        help="Save the run as a page to explore: .html; or its data: .json.",
    ),
]


@dataclass(frozen=True)
class ModelGroup(OptionGroup):
    """Which model, and how it runs."""

    HEADING = "Model"

    model: common.ModelOption = common.DEFAULT_MODEL
    adapter: common.AdapterOption = None
    adapter_mode: common.AdapterModeOption = "merged"
    executor: common.ExecutorOption = "auto"
    weights: common.WeightsOption = None
    cache: common.CacheOption = None
    activations: common.ActivationsOption = None
    batch_invariant: common.BatchInvariantOption = True
    dtype: common.DtypeOption = None
    tensor_parallel: common.TensorParallelOption = 1
    threads: common.ThreadsOption = None

    def load(self, name: str | None = None, **overrides: Any) -> Model:
        """The model, or the one called `name`, loaded with these options and `overrides`."""
        common.use_threads(self.threads)
        names = (
            "executor", "weights", "cache", "activations", "batch_invariant", "dtype", "tensor_parallel", "adapter_mode",
        )  # fmt: skip
        options = {name: getattr(self, name) for name in names} | {"adapter": common.adapter_weights(self.adapter)}
        return common.load_model(name or self.model, **options | overrides)

    @property
    def gpus(self) -> bool | None:
        """Whether it needs a GPU; None: it takes one where there is one."""
        return {"cpu": False, "gpu": True}.get(self.executor)


@dataclass(frozen=True)
class SteerableModelGroup(ModelGroup):
    """The same, steered."""

    steer: Annotated[
        list[str] | None,
        option("--steer", metavar="NAME=STRENGTH", help="Add a steering vector, or a feature (SAE/NUMBER); repeatable."),
    ] = None
    clamp: Annotated[
        list[str] | None,
        option("--clamp", metavar="SAE/NUMBER=VALUE", help="Hold a feature of an autoencoder at a value; 0 ablates."),
    ] = None

    def load(self, name: str | None = None, **overrides: Any) -> Model:
        return self.steered(super().load(name, **overrides))

    def steered(self, model: Model) -> Model:
        return model.steered(self.steering) if self.steering else model

    @property
    def steering(self) -> list[dict[str, Any]]:
        return [*parse_steering(self.steer), *parse_steering(self.clamp, "--clamp", "clamp", "SAE/NUMBER=VALUE")]


@dataclass(frozen=True)
class ChangeableModelGroup(SteerableModelGroup):
    """The same, with changes inside the model."""

    change: Annotated[
        list[str] | None,
        option("--change", metavar="SITE[:HEADS]=FACTOR", help="Scale a site, or some of its heads; 0 ablates."),
    ] = None

    def load(self, name: str | None = None, **overrides: Any) -> Model:
        changes, model = parse_changes(self.change), ModelGroup.load(self, name, **overrides)
        model = model.changed(changes) if changes else model  # and then steered: what is added is not changed again
        return self.steered(model)


@dataclass(frozen=True)
class PromptGroup(OptionGroup):
    """How a text becomes a prompt."""

    HEADING = "Prompt"

    raw: common.RawOption = False
    system: common.SystemOption = None
    template: common.TemplateOption = None

    def keywords(self) -> PromptKeywords:
        """As a model's methods take them."""
        return {"raw": self.raw, "system": self.system, "template": common.template_variables(self.template)}

    def read(self, model: Model, text: str, target: str | None, new: int) -> Reading:
        """A text under the glass, followed by `new` tokens that the model generates."""
        if not new:
            return model.read(text, target, **self.keywords())
        if target is not None:
            raise SettingError("--target is the text to score; -n lets the model generate one. Leave one out.")
        with bars.spinner(f"generating {new} tokens"):
            return model.watch(text, max_new_tokens=new, **self.keywords()).reading


@dataclass(frozen=True)
class OutputGroup(OptionGroup):
    """How a view is printed or saved."""

    HEADING = "Output"

    everything: AllOption = False
    as_json: common.JsonOption = False
    save: SaveOption = None

    def show(self, view: View) -> None:
        common.show(view, as_json=self.as_json, everything=self.everything, save=self.save)


def parse_steering(
    arguments: list[str] | None, option: str = "--steer", how: str = "strength", form: str = "NAME=STRENGTH"
) -> list[dict[str, Any]]:
    """The values of --steer or --clamp."""
    from glassformer.steering.steer import steering_entry

    entries = []
    for argument in arguments or []:
        name, equals, number = argument.rpartition("=")
        try:
            entries.append(steering_entry(name, **{how: float(number)}))
        except ValueError:
            equals = ""
        if not equals or not name:
            example = f"{argument.partition('=')[0] or 'formal'}=1" if how == "strength" else "resid-8/123=0"
            raise SettingError(f"{option} {argument!r} is not {form}, such as {example}.")
    return entries


def parse_changes(arguments: list[str] | None) -> dict[str, Change]:
    """The values of --change, SITE[:HEADS]=FACTOR."""
    from glassformer.ground.changes import Change

    changes: dict[str, Change] = {}
    for argument in arguments or []:
        where, equals, factor = argument.rpartition("=")
        site, _, heads = where.partition(":")
        try:
            numbers = [int(head) for head in heads.split(",")] if heads else None
            changes[site] = Change(scale=float(factor), heads=numbers)
        except ValueError:
            equals = ""
        if not equals or not site:
            raise SettingError(
                f"--change {argument!r} is not SITE[:HEADS]=FACTOR with a finite number, such as "
                "blocks.5.attention.heads:2=0."
            )
    return changes
