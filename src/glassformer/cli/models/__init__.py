"""`glass models`: list, fetch, inspect, quantize and remove models."""

from __future__ import annotations

import typer

from glassformer.cli.help import Verb, VerbGroup
from glassformer.cli.models import list_models, params, pull, quantize, rm

app = typer.Typer(
    cls=VerbGroup,
    help="List, fetch, inspect, quantize and remove models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("list", epilog=list_models.EXAMPLE, cls=Verb)(list_models.list_models)
app.command("pull", epilog=pull.EXAMPLE, cls=Verb)(pull.pull)
app.command("params", epilog=params.EXAMPLE, cls=Verb)(params.params)
app.command("quantize", epilog=quantize.EXAMPLE, cls=Verb)(quantize.quantize)
app.command("rm", epilog=rm.EXAMPLE, cls=Verb)(rm.rm)
