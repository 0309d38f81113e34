"""The `glass` command: its verbs, each imported when it is called, so that the command starts at once."""

from __future__ import annotations

import importlib
from typing import Any

import typer

from glassformer import __version__
from glassformer.cli.help import Verb, VerbGroup

VERBS = {  # a module of this package each, and what its help begins with
    "run": "Answer a prompt, streaming the answer.",
    "chat": "Chat with a model. Each line is a message; /help lists the commands, Ctrl-D leaves.",
    "task": "Classify, extract, fill, translate, compare: a task over texts, files or stdin.",
    "look": "Show how a text becomes the next token: prompt, ids, every shape, logits, the choice, and the cost.",
    "trace": "Show at each position of a text what the model expected, which token stands there, and its surprisal.",
    "tree": "Show what could follow a text: the likeliest tokens, what could follow each, and how likely each path is.",
    "attention": "Show which tokens each token attended to: one map, one token's row, or all heads at once.",
    "lens": "Show what each layer would predict next, and where the answer emerges; or which blocks and heads wrote it.",
    "patch": "Patch one text's activations into another's forward pass, place by place, and see which restore its answer.",
    "compare": "Compare two texts in one model, two settings, or two models on one text: where they diverge, and how far.",
    "tokens": "Show the tokens of a text: id, piece, text and offsets of each; or several texts as a padded batch.",
    "models": "List, fetch, inspect, quantize and remove models.",
    "doctor": "Report what this machine has, what runs on it, and what could run better.",
}


class LazyVerbs(VerbGroup):
    """The verbs by name; a verb's module is imported when the verb is called or completed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for name in [cmd_name] if cmd_name in VERBS else VERBS:  # for an unknown one all, so that the nearest is suggested
            if name not in self.commands:
                self.add_command(_load(name), name)
        return self.commands.get(cmd_name)

    def summaries(self, ctx: Any) -> dict[str, str]:
        return VERBS


def _load(name: str) -> Any:
    module = importlib.import_module(f"glassformer.cli.{name}")
    verb: typer.Typer | None = getattr(module, "app", None)
    if verb is None:
        verb = typer.Typer(add_completion=False, rich_markup_mode=None)
        verb.command(name, epilog=module.EXAMPLE, cls=Verb)(getattr(module, name))
    return typer.main.get_command(verb)


app = typer.Typer(
    cls=LazyVerbs,
    help="A transformer runtime in a glass case: run a model, and see every step that made each token.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"glass {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None: ...
