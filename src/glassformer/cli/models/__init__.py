"""`glass models`: what can be run, fetching it, looking at its parameters, packing its weights, and removing it."""

from __future__ import annotations

import typer

from glassformer.cli.models import listing, params, pull, quantize, rm

app = typer.Typer(help="List, fetch, look into, pack and remove models.", no_args_is_help=True)
app.command("list", epilog=listing.EXAMPLE)(listing.list_models)
app.command("pull", epilog=pull.EXAMPLE)(pull.pull)
app.command("params", epilog=params.EXAMPLE)(params.params)
app.command("quantize", epilog=quantize.EXAMPLE)(quantize.quantize)
app.command("rm", epilog=rm.EXAMPLE)(rm.rm)
