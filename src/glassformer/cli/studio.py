"""`glass studio`: the studio over a server of its own, on this machine alone."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassformer.cli import common
from glassformer.cli.command import option
from glassformer.cli.processes import note_models
from glassformer.cli.serve import ServedModelsGroup, model_sources, served_names
from glassformer.ground.errors import InputError
from glassformer.ground.garbage_collection import collect_as_usual

if TYPE_CHECKING:
    from glassformer.serving.http.server import GlassServer

EXAMPLE = "Example: glass studio   ·   glass studio -m ./models/qwen3   ·   glass studio --training speeches"


def studio(
    *,
    models: ServedModelsGroup,
    port: Annotated[int, option(minimum=0, maximum=65535, help="The port; 0: any that is free.")] = 0,
    training: Annotated[
        Path | None,
        option("--training", metavar="DIR", help="Follow the training in this folder: curves, samples, snapshots."),
    ] = None,
    no_browser: Annotated[bool, option("--no-browser", help="Print the address, and open no browser.")] = False,
) -> None:
    """Open the studio in the browser: a run, each token's alternatives, and what went on inside the model."""
    from glassformer.serving.http.app import create_app
    from glassformer.serving.http.server import GlassServer
    from glassformer.serving.registry import Registry

    common.log_to_stderr()
    if training is not None and not training.is_dir():
        raise InputError(f"{training}: there is no such folder. Name that of a training: glass train --out {training}")
    sources = model_sources(served_names(models), models.load, models.library)
    registry = Registry(sources)
    registry.tell_loaded = note_models
    server = GlassServer(create_app(registry, training=training), port=port)
    collect_as_usual()
    page = "" if training is None else "#view=training"
    common.note(f"the studio is at {server.address}/{page}\nCtrl-C stops.")
    if not no_browser:
        threading.Thread(target=open_browser, args=(server, page), daemon=True).start()
    server.run()
    common.note("stopped.")


def open_browser(server: GlassServer, page: str = "") -> None:
    """Show the page once the server answers; where there is no browser, its address stands in the terminal."""
    server.ready.wait()
    webbrowser.open(f"{server.address}/{page}")
