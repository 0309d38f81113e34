"""`glass trace`: at each place of a text, what was expected, what came, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import common
from glassformer.cli.options import CHANGING, SHOWING, WORDING, Changing, Showing, Wording, bundled
from glassformer.cli.settings import WRITING, Writing
from glassformer.errors import SettingError

if TYPE_CHECKING:
    from glassformer.runtime.model import Model
    from glassformer.views.view import View

NEW = 20  # tokens, unless it is said
EXAMPLE = (
    'Example: glass trace "how are you?" -n 5   ·   glass trace --raw --given "Hi, how are you doing today?"   ·   '
    'glass trace "how are you?" --sweep temperature=0.2,0.7,1.2'
)


@bundled
def trace(
    prompt: common.PromptArgument = None,
    given: Annotated[
        bool, typer.Option("--given", help="Write nothing: the text itself is scored, token by token.")
    ] = False,
    target: Annotated[
        str | None, typer.Option("--target", help="With --given: what an encoder-decoder is to write of the text.")
    ] = None,
    whole: Annotated[bool, typer.Option("--prompt", help="Also the prompt's own tokens.")] = False,
    waterfall: Annotated[
        bool, typer.Option("--waterfall", help="What each rule did to each candidate, step by step.")
    ] = False,
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", metavar="NAME=A,B,…", help="One step's scores under several values of a setting."),
    ] = None,
    step: Annotated[int, typer.Option("--step", help="With --sweep: which token, 0 the first.")] = 0,
    strategies: Annotated[bool, typer.Option("--strategies", help="The customary strategies side by side.")] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="With the cache and without: tokens, time and bytes.")
    ] = False,
    best: Annotated[int, typer.Option("--best", min=1, max=1000, help="How many candidates of each place are kept.")] = 5,
    write: Writing = WRITING,
    load: Changing = CHANGING,
    word: Wording = WORDING,
    shown: Showing = SHOWING,
) -> None:
    """Show at each place of a text what the model expected, what came, and how surprising that was."""
    kinds = {
        "--given": given,
        "--waterfall": waterfall,
        "--sweep": sweep,
        "--strategies": strategies,
        "--no-cache": no_cache,
    }
    asked = [name for name, wanted in kinds.items() if wanted]
    if len(asked) > 1:
        raise SettingError(f"{' and '.join(asked[:2])} are two different views. Ask for one at a time.")
    if target is not None and not given:
        raise SettingError("--target is what is scored of a given text. Pass --given too.")
    if step and sweep is None:
        raise SettingError("--step is for --sweep. Leave it out, or sweep a setting.")
    text = common.read_prompt(prompt)
    chosen = write.settings(as_json=True)
    if given and chosen:
        raise SettingError(f"--given writes nothing, so {min(chosen)} would change nothing. Leave one out.")
    swept = _swept(sweep)
    loaded = load.open()
    how: dict[str, Any] = word.how()
    with common.counting(f"{load.model} reads") as progress:
        found: View
        if given or not loaded.writes:
            if given and not word.raw and loaded.tokenizer.chat_template is not None:
                common.note("glass: the chat template's own tokens are scored too. --raw scores the text alone.")
            found = loaded.read(text, target, **how).trace(best, progress=progress)
        else:
            found = _written(loaded, text, how, {"max_new_tokens": NEW, **chosen}, asked, best, whole, swept, step, progress)
    shown.show(found)


def _written(
    model: Model, text: str, how: dict[str, Any], chosen: dict[str, Any], asked: list[str], best: int, whole: bool,
    swept: tuple[str, list[Any]] | None, step: int, progress: Any,
) -> View:  # fmt: skip
    """The view of a text that is written first."""
    from glassformer.observe.caching import caching
    from glassformer.observe.trace import whole as all_of

    if asked == ["--strategies"]:
        return model.strategies(text, **how, **chosen)
    if swept is not None:
        chosen = {**chosen, "max_new_tokens": max(1, step)}
    run = model.watch(text, look=max(best, 10), **how, **chosen)
    if swept is not None:
        return run.sweep(*swept, step=step)
    if asked == ["--waterfall"]:
        return run.whys
    if asked == ["--no-cache"]:
        return caching(run, progress)
    return all_of(run, best) if whole else run.trace


def _swept(sweep: str | None) -> tuple[str, list[Any]] | None:
    """A setting and its values."""
    if sweep is None:
        return None
    name, equals, values = sweep.partition("=")
    if not equals or not name or not values:
        raise SettingError(f"--sweep {sweep!r} is not NAME=A,B,…, such as temperature=0.2,0.7,1.2.")
    return name.strip(), [_value(one) for one in values.split(",")]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()
