"""`glass compare`: two texts, two ways of writing, or two models, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import common, settings
from glassformer.cli.options import LOADING, SHOWING, WORDING, Loading, Showing, Wording, bundled, changes
from glassformer.errors import InputError, SettingError

if TYPE_CHECKING:
    from glassformer.runtime.model import Model
    from glassformer.sites import Change
    from glassformer.views.view import View

NEW = 40  # tokens, unless it is said
EXAMPLE = (
    'Example: glass compare --raw "Hi dog" "Hello dog" --token dog   ·   '
    'glass compare "how are you?" --with temperature=1.5   ·   '
    'glass compare "how are you?" --change "blocks.5.attention.heads:2=0"   ·   '
    "glass compare --file text.txt --other-weights q4_k"
)


@bundled
def compare(
    prompt: common.PromptArgument = None,
    second: Annotated[str | None, typer.Argument(help="A second text.", show_default=False)] = None,
    token: Annotated[str | None, typer.Option("--token", "-t", help="Two texts: the token to follow in both.")] = None,
    other: Annotated[str | None, typer.Option("--other", help="Another model over the same text.")] = None,
    other_weights: Annotated[str | None, typer.Option(help="The same model in another packing: q8_0, q4_k, ….")] = None,
    other_executor: Annotated[str | None, typer.Option(help="The same model on another executor.")] = None,
    other_cache: Annotated[str | None, typer.Option(help="The same model with another --cache.")] = None,
    other_activations: Annotated[str | None, typer.Option(help="The same model with other --activations.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Two models: the text to compare them on.")] = None,
    with_: Annotated[
        list[str] | None, typer.Option("--with", metavar="NAME=VALUE", help="Another setting on the second side.")
    ] = None,
    other_template: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Another variable of the chat template there.")
    ] = None,
    other_raw: Annotated[bool, typer.Option("--other-raw", help="No chat template there.")] = False,
    other_system: Annotated[str | None, typer.Option(help="Another system message there.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--change",
            metavar="SITE[:HEADS]=FACTOR",
            help="What if? Scale a site there, or some of its heads: 0 zeroes them.",
        ),
    ] = None,
    max_new_tokens: settings.NewTokensOption = None,
    seed: settings.SeedOption = None,
    option: settings.OtherOption = None,
    load: Loading = LOADING,
    word: Wording = WORDING,
    shown: Showing = SHOWING,
) -> None:
    """Compare two texts in one model, two ways of writing, or two models over one text: where they part, and how far."""
    from glassformer.observe.compare_models import compare_models, labels
    from glassformer.observe.compare_runs import compare_runs
    from glassformer.observe.compare_texts import compare_texts

    otherwise = settings.given(
        weights=other_weights, executor=other_executor, cache=other_cache, activations=other_activations
    )
    models = other or otherwise
    ways = settings.given(
        **{"--with": with_, "--other-template": other_template, "--other-raw": other_raw or None,
           "--other-system": other_system, "--change": change}
    )  # fmt: skip
    asked = [
        name for name, wanted in (("a second text", second), ("another model", models), ("another way", ways)) if wanted
    ]
    if len(asked) != 1:
        said = f"{asked[0]} and {asked[1]}" if asked else "nothing"
        raise SettingError(f"compare with what? Here is {said}. Give one: a second text, --other…, --with or --change.")
    scored = models and max_new_tokens is None  # a text as it stands; otherwise both sides write
    if scored:
        _refuse(settings.given(seed=seed, option=option, system=word.system, template=word.template))
    loaded = load.open()
    how: dict[str, Any] = word.how()
    chosen: dict[str, Any] = {"max_new_tokens": max_new_tokens or NEW, **settings.given(seed=seed)}
    chosen |= common.pairs(option, "--option", "num_beams=4")
    found: View
    with common.counting(f"{load.model} reads") as progress:
        if models:
            text, against = _text(prompt, file), _other(load, other, otherwise)
            if scored:
                found = compare_models(loaded, against, text, progress=progress)
            else:
                one, other_run = (model.watch(text, **how, **_repeatable(chosen)) for model in (loaded, against))
                found = compare_runs(one, other_run, labels(loaded, against))
        elif second is not None:
            found = compare_texts(loaded.read(common.read_prompt(prompt), **how), loaded.read(second, **how), token)
        else:
            changed = {**how, "raw": word.raw or other_raw}
            changed["system"] = word.system if other_system is None else other_system
            changed["template"] = {
                **how["template"],
                **common.pairs(other_template, "--other-template", "enable_thinking=true"),
            }
            more = {**chosen, **common.pairs(with_, "--with", "temperature=1.5")}
            found = _ways(loaded, common.read_prompt(prompt), (how, chosen), (changed, more), changes(change), _name(ways))
    shown.show(found)


def _ways(
    model: Model, text: str, first: tuple[dict[str, Any], dict[str, Any]], second: tuple[dict[str, Any], dict[str, Any]],
    change: dict[str, Change], name: str,
) -> View:  # fmt: skip
    from glassformer.observe.compare_runs import compare_runs

    (how, chosen), (other_how, other_chosen) = first, second
    as_it_is = model.watch(text, **how, **_repeatable(chosen))
    otherwise = model.watch(text, **other_how, change=change or None, **_repeatable(other_chosen))
    return compare_runs(as_it_is, otherwise, ("as it is", name))


def _repeatable(chosen: dict[str, Any]) -> dict[str, Any]:
    """Settings with a seed, so that both sides draw alike; and drawn, if they say how to draw."""
    from glassformer.observe.sweep import DRAWN

    drawn = {"do_sample": True} if set(chosen) & set(DRAWN) and "do_sample" not in chosen else {}
    return {"seed": 0, **drawn, **chosen}


def _refuse(given: dict[str, Any]) -> None:
    if given:
        name = next(iter(given))
        raise SettingError(
            f"--{name} is for texts that are written; two models score this one as it stands. -n lets both write."
        )


def _name(ways: dict[str, Any]) -> str:
    told = [" ".join(value) if isinstance(value, list) else ("" if value is True else str(value)) for value in ways.values()]
    return ", ".join(f"{name} {value}".strip() for name, value in zip(ways, told, strict=True))


def _other(load: Loading, other: str | None, otherwise: dict[str, Any]) -> Any:
    """The second model: another one, or this one otherwise."""
    how = {"weights": None, "executor": "auto"}
    if otherwise.get("executor") == "plain":  # which has neither
        how |= {"cache": None, "activations": None}
    return load.open(other, **how | otherwise)


def _text(prompt: str | None, file: Path | None) -> str:
    if file is None:
        return common.read_prompt(prompt)
    if prompt is not None:
        raise SettingError("a text and --file: give one of them.")
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--file {str(file)!r} is no text that can be read: {error}") from error
