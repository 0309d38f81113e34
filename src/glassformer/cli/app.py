"""The `glass` command: its verbs, each imported when it is called, so that the command starts at once."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import click

from glassformer import __version__
from glassformer.cli.command import VerbGroup, command
from glassformer.cli.command_synonyms import familiar_command
from glassformer.ground.errors import spelled_by
from glassformer.ground.operations import Statement, statements

SECTIONS = {  # under each heading its verbs: a module of this package each, and what its help begins with
    "Run and serve": {
        "run": "Answer a prompt, streaming the answer; or each row of a file. Without a prompt, at a terminal: chat.",
        "chat": "Chat with a model. Each line is a message; /help lists the commands, Ctrl-D leaves.",
        "task": "Classify, extract, fill, translate, compare: a task over texts, files or stdin.",
        "serve": "Serve models over HTTP: OpenAI's API and others, for many clients at once.",
        "studio": "Open the studio in the browser: a run, each token's alternatives, and what went on inside the model.",
    },
    "Look inside": {
        "trace": "Show at each position of a text what the model expected, which token stands there, and its surprisal.",
    },
    "Change and compare": {
        "compare": "Compare two texts, two settings, or two models on one text: where they diverge, and how far.",
        "steer": "Make steering vectors from pairs of texts, and list those that there are.",
    },
    "Features and many texts": {},
    "Train and evaluate": {
        "train": "Train a model on text, or for a task on rows; or fine-tune one (LoRA, chats, DPO), and see it learn.",
        "eval": "Say how well a model predicts a text, or does a task on rows: perplexity, bits per byte; accuracy, F1, ….",
    },
    "Models and this machine": {
        "models": "List, recommend, fetch, inspect, quantize and remove models.",
        "doctor": "Report what this machine has, what runs on it, and what could run better.",
    },
}
FIRST = ("look", "tokens")  # in their section
VERBS = {name: summary for verbs in SECTIONS.values() for name, summary in verbs.items()}

MODULES = {"eval": "evaluate"}  # verbs whose name a function cannot have
SHORT_FORMS = {"ls": "list", "pull": "pull", "show": "params", "ps": "ps", "rm": "rm"}  # of `glass models`, as elsewhere


class LazyVerbs(VerbGroup):
    """The verbs by name; a verb's module is imported when the verb is called or completed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for verbs in self.sections(ctx).values() for name in verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS and cmd_name not in self.commands:
            self.add_command(_load(cmd_name), cmd_name)
        elif cmd_name not in (*self.commands, *SHORT_FORMS) and cmd_name in operation_verbs():
            from glassformer.cli.operation_verbs import OperationVerb

            self.add_command(OperationVerb(operation_verbs()[cmd_name]).command(), cmd_name)
        if cmd_name in SHORT_FORMS:
            models: Any = self.get_command(ctx, "models")
            return models.get_command(ctx, SHORT_FORMS[cmd_name])  # type: ignore[no-any-return]
        return self.commands.get(cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        from glassformer.cli.common import reported_interrupt
        from glassformer.cli.settings import command_line_spelling

        ctx.with_resource(spelled_by(command_line_spelling))  # errors name what to type here, not in Python
        with reported_interrupt():
            return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("\nglass ls, pull, show, ps and rm are short for glass models list, pull, params, ps\nand rm.\n")

    def sections(self, ctx: click.Context) -> dict[str, dict[str, str]]:
        listed = {heading: dict(verbs) for heading, verbs in SECTIONS.items()}
        for name, views in operation_verbs().items():
            (main,) = [view for view in views if view.section is not None]
            listed[main.section or ""][name] = main.verb_help
        return {
            heading: dict(sorted(verbs.items(), key=lambda verb: verb[0] not in FIRST)) for heading, verbs in listed.items()
        }

    def suggestion(self, ctx: click.Context, word: str) -> str:
        return familiar_command(word) or super().suggestion(ctx, word)


@cache
def operation_verbs() -> dict[str, list[Statement]]:
    """The operations that have a verb, by its name."""
    verbs: dict[str, list[Statement]] = {}
    for stated in (*statements("glassformer.see"), *statements("glassformer.cli")):
        if stated.verb is not None:
            verbs.setdefault(stated.verb, []).append(stated)
    return verbs


def _load(name: str) -> click.Command:
    own = MODULES.get(name, name)
    module: Any = importlib.import_module(f"glassformer.cli.{own}")
    if (group := getattr(module, "app", None)) is not None:
        return group  # type: ignore[no-any-return]
    return command(
        getattr(module, own), name, module.EXAMPLE, getattr(module, "NEEDS", None), getattr(module, "EXCLUDES", ())
    )


def _print_completion(context: click.Context, parameter: click.Parameter, shell: str | None) -> None:
    if shell is None:
        return
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(app, {}, "glass", "_GLASS_COMPLETE").source())
    context.exit()


app = LazyVerbs(
    "glass",
    help="A transformer runtime in a glass case: run a model, and see every step that made each token.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--show-completion"],
            type=click.Choice(["bash", "zsh", "fish"]),
            callback=_print_completion,
            expose_value=False,
            is_eager=True,
            help='Print what completes commands in a shell: eval "$(glass --show-completion bash)".',
        )
    ],
)
click.version_option(__version__, prog_name="glass", message="%(prog)s %(version)s", help="Print the version and exit.")(app)
