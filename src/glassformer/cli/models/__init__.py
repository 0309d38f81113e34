"""`glass models`: list, fetch, inspect, quantize and remove models."""

from __future__ import annotations

import typer

from glassformer.cli.models import list_models, params, pull, quantize, rm

app = typer.Typer(help="List, fetch, inspect, quantize and remove models.", no_args_is_help=True)
app.command("list", epilog=list_models.EXAMPLE)(list_models.list_models)
app.command("pull", epilog=pull.EXAMPLE)(pull.pull)
app.command("params", epilog=params.EXAMPLE)(params.params)
app.command("quantize", epilog=quantize.EXAMPLE)(quantize.quantize)
app.command("rm", epilog=rm.EXAMPLE)(rm.rm)
