"""`glass models`: list, recommend, fetch, inspect, quantize and remove models."""

from __future__ import annotations

from glassformer.cli.command import VerbGroup, command
from glassformer.cli.models import list_models, params, ps, pull, quantize, recommend, rm

app = VerbGroup("models", help="List, recommend, fetch, inspect, quantize and remove models.", no_args_is_help=True)
app.add_command(command(list_models.list_models, "list", list_models.EXAMPLE))
app.add_command(command(recommend.recommend, "recommend", recommend.EXAMPLE))
app.add_command(command(pull.pull, "pull", pull.EXAMPLE))
app.add_command(command(params.params, "params", params.EXAMPLE))
app.add_command(command(quantize.quantize, "quantize", quantize.EXAMPLE))
app.add_command(command(ps.ps, "ps", ps.EXAMPLE))
app.add_command(command(rm.rm, "rm", rm.EXAMPLE))
