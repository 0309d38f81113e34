"""`glass doctor`: what this machine has, what runs on it, and what could be better."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer import __version__
from glassformer.cli import common
from glassformer.errors import ExecutorError, SettingError

if TYPE_CHECKING:
    from glassformer.runtime.model import Model
    from glassformer.views.verification import Checked

EXAMPLE = "Example: glass doctor --json   ·   glass doctor --verify -m smollm2"
TEXTS = (  # to compare executors on: of several lengths, and of several kinds
    "The capital of France is",
    "1",
    "def mean(numbers):\n    return sum(numbers) / len(numbers)\n",
    "Once upon a time there was a glass case, and inside it a machine that wrote one word after another.",
)
LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "jinja2", "gguf")


def doctor(
    context: typer.Context,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the CPU engine with PyTorch on a model, layer by layer.")
    ] = False,
    model: Annotated[
        str,
        typer.Option("--model", "-m", envvar="GLASS_MODEL", help="With --verify: a name, a hub id, or a path."),
    ] = common.DEFAULT_MODEL,
    as_json: common.JsonOption = False,
) -> None:
    """Say what this machine has, what runs on it, and what could run better."""
    if verify:
        _verify(model, as_json)
        return
    if getattr(context.get_parameter_source("model"), "name", "") == "COMMANDLINE":
        raise typer.BadParameter("a model is looked at with --verify only.", param_hint="--model")
    found = examine()
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    width = max(map(len, found))
    for name, value in found.items():
        lines = [f"{key} {one}" for key, one in value.items()] if isinstance(value, dict) else value
        for number, line in enumerate(lines if isinstance(lines, list) else [lines]):
            print(f"{name.replace('_', ' ') if number == 0 else '':{width}}  {line}")


def _verify(name: str, as_json: bool) -> None:
    """Compare, say what was found, and leave with 1 if anything differs."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ExecutorError(
            f"--verify compares the CPU engine with PyTorch, and torch cannot be imported ({error}): pip install torch."
        ) from error
    model = common.open_model(name, executor="plain", dtype="float32")
    with common.waiting(f"loading {name} and comparing"):
        rows = compare(model)
    if as_json:
        about = {"model": model.name, "weights": model.opened.kind, "right": "plain, float32"}
        print(json.dumps({**about, "checks": [row.to_dict() for row in rows]}, ensure_ascii=False))
    else:
        from rich.console import Console

        from glassformer.views.verification import FOOT, verdicts

        print(f"{model.name} ({model.opened.kind}): the CPU engine beside PyTorch in float32, at every site")
        Console().print(verdicts(rows))
        print(FOOT)
    if not all(row.agrees for row in rows):
        raise typer.Exit(1)


def compare(model: Model) -> list[Checked]:
    """The CPU engine beside a plain model: each level that runs here, and on the best one each way to round."""
    from glassformer.engine.cpu.executor import Cpu
    from glassformer.engine.cpu.library import Engine, levels
    from glassformer.engine.protocol import ACTIVATIONS, CACHES
    from glassformer.observe.verify import bound, verify_all
    from glassformer.opened import Opened
    from glassformer.views.verification import Checked

    assert isinstance(model.opened, Opened)
    best, *_ = known = levels()
    exact, *coarser = ACTIVATIONS
    ways = [(level, "f32", exact) for level in known]
    ways += [(best, cache, exact) for cache in CACHES if cache != "f32"]
    ids = [model.tokenizer(text)["input_ids"][: model.config.context // 2] for text in TEXTS]
    starts = [] if model.start is None else [model.start]  # an encoder-decoder writes what it reads
    prompts, sources = [[*starts, *some] for some in ids], ids if starts else None
    tensors, made = model.opened.tensors, model.blueprint
    packed = any(one.packed for one in tensors.values())
    ways += [(best, "f32", activations) for activations in coarser if packed]
    engines = [
        Cpu(model.config, made, tensors, cache=cache, activations=activations, engine=Engine(level))
        for level, cache, activations in ways
    ]
    found = verify_all(model.executor, engines, prompts, made.blocks, made.encoder, sources)
    return [Checked(*way, one, bound(packed, *way[1:])) for way, one in zip(ways, found, strict=True)]


def examine() -> dict[str, Any]:
    """The findings, as plain data."""
    import platform

    from glassformer.blueprints import known
    from glassformer.checkpoint.catalogue import CATALOGUE
    from glassformer.checkpoint.locate import held, home

    executors, advice = _executors()
    here = {name: str(path) for name in CATALOGUE if (path := held(name))}
    return {
        "glassformer": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
        "libraries": {name: _version(name) for name in LIBRARIES},
        "executors": executors,
        "families": list(known()),
        "models": here or {"none yet:": "glass models pull smollm2"},
        "cache": str(home()),
        "hub_offline": bool(os.environ.get("HF_HUB_OFFLINE")),
        "advice": advice or ["nothing to mend"],
    }


def _version(name: str) -> str:
    import importlib.metadata  # a slow import, and this module is imported for every verb

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _executors() -> tuple[list[str], list[str]]:
    """A line for each executor, and what could be better about them."""
    cpu, mend = _cpu()
    plain, faster = _plain(alone=bool(mend))
    return [plain, cpu], faster + mend


def _plain(alone: bool) -> tuple[str, list[str]]:
    """PyTorch; how it would be faster matters where it is alone."""
    try:
        import torch
    except ImportError as error:
        return "plain: cannot run", [f"torch cannot be imported ({error}): pip install torch"]
    from glassformer.layers.linear import multiplies_well

    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    if torch.cuda.is_available():
        devices.append(torch.cuda.get_device_name())
    advice = []
    if alone and not multiplies_well(torch.bfloat16):
        advice.append("this CPU has no bfloat16 products, so bfloat16 checkpoints run faster with --dtype float32")
    return f"plain: runs on {', '.join(devices)}", advice


def _cpu() -> tuple[str, list[str]]:
    from glassformer.engine.cpu import build, library

    common.listen()  # for what building it has to say
    try:
        before = build.held()
        about = library.describe()
    except (ExecutorError, SettingError, OSError) as error:
        return "cpu: cannot run, see the advice", [str(error)]
    others = [level for level in about["levels"] if level != about["level"]]
    level = about["level"] + (f" (also {', '.join(others)})" if others else "")
    return f"cpu: runs on {about['threads']} threads, level {level}; its library is {_library(new=before is None)}", []


def _library(new: bool) -> str:
    """Where the native library lies, and how it came there."""
    from glassformer.engine.cpu import build

    if given := os.environ.get("GLASS_LIBRARY"):
        return f"named by GLASS_LIBRARY: {given}"
    path = build.held()
    return f"{'built just now' if new else 'prebuilt' if path == build.prebuilt() else 'cached'}: {path}"
