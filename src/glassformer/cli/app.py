"""The `glass` command with all its verbs."""

from __future__ import annotations

import typer

from glassformer import __version__
from glassformer.cli import attention, chat, compare, doctor, lens, look, models, patch, run, task, tokens, trace, tree

app = typer.Typer(
    help="A transformer runtime in a glass case: run a model, and see every step that made each token.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", epilog=run.EXAMPLE)(run.run)
app.command("chat", epilog=chat.EXAMPLE)(chat.chat)
app.command("task", epilog=task.EXAMPLE)(task.task)
app.command("look", epilog=look.EXAMPLE)(look.look)
app.command("trace", epilog=trace.EXAMPLE)(trace.trace)
app.command("tree", epilog=tree.EXAMPLE)(tree.tree)
app.command("attention", epilog=attention.EXAMPLE)(attention.attention)
app.command("lens", epilog=lens.EXAMPLE)(lens.lens)
app.command("patch", epilog=patch.EXAMPLE)(patch.patch)
app.command("compare", epilog=compare.EXAMPLE)(compare.compare)
app.command("tokens", epilog=tokens.EXAMPLE)(tokens.tokens)
app.add_typer(models.app, name="models")
app.command("doctor", epilog=doctor.EXAMPLE)(doctor.doctor)


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
