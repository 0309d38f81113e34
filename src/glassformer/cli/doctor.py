"""`glass doctor`: what this machine has, what runs on it, and what could be better."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import click

from glassformer import __version__
from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.ground.errors import EXTRAS, ExecutorError, SettingError, install, needed_for
from glassformer.page.format import pluralize

if TYPE_CHECKING:
    from glassformer.runtime.model import Model
    from glassformer.see.thread_bench import Machine, ThreadBench
    from glassformer.see.verification import EngineVerdict

EXAMPLE = "Example: glass doctor --json   ·   glass doctor --verify -m smollm2   ·   glass doctor --bench"
TEXTS = (  # that executors are compared on: of different lengths, and of different kinds
    "The capital of France is",
    "1",
    "def mean(numbers):\n    return sum(numbers) / len(numbers)\n",
    "Once upon a time there was a glass case, and inside it a machine that wrote one word after another.",
)
MEASURE_AGAIN = "Measure again when the machine is idle."
LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "jinja2", "gguf")


def doctor(
    context: click.Context,
    verify: Annotated[
        bool, option("--verify", help="Compare the CPU engine, and a GPU's, with PyTorch on a model, layer by layer.")
    ] = False,
    bench: Annotated[
        bool, option("--bench", help="Measure how many threads are fastest, and use so many from now on; with -m, a model.")
    ] = False,
    model: Annotated[
        str,
        option("--model", "-m", envvar="GLASS_MODEL", help="With --verify or --bench: a name, a hub id, or a path."),
    ] = common.DEFAULT_MODEL,
    threads: Annotated[
        int | None, option("--threads", minimum=1, maximum=256, help="With --verify: threads to compute with.")
    ] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Report what this machine has, what runs on it, and what could run better."""
    model_named = getattr(context.get_parameter_source("model"), "name", "") == "COMMANDLINE"
    if verify and bench:
        raise click.BadParameter("one at a time: leave --verify or --bench out.", param_hint="--bench")
    if threads is not None and not verify:
        raise click.BadParameter("threads are for --verify only; --bench measures each number.", param_hint="--threads")
    if verify:
        common.use_threads(threads)
        _verify(model, as_json)
        return
    if bench:
        common.log_to_stderr()
        report = bench_model(model) if model_named else bench_machine()
        common.print_json(report.to_dict()) if as_json else _print(report)
        return
    if model_named:
        raise click.BadParameter("a model is for --verify and --bench only.", param_hint="--model")
    findings = examine()
    if as_json:
        common.print_json(findings)
        return
    width = max(map(len, findings))
    for name, value in findings.items():
        lines = [f"{key} {item}" for key, item in value.items()] if isinstance(value, dict) else value
        for number, line in enumerate(lines if isinstance(lines, list) else [lines]):
            common.print_line(f"{name.replace('_', ' ') if number == 0 else '':{width}}  {line}")


def bench_machine() -> ThreadBench:
    """How fast the CPU engine decodes with each number of threads; the result is kept for every model."""
    from glassformer.engine.cpu import thread_count
    from glassformer.engine.cpu.cores import available
    from glassformer.engine.cpu.library import requested_threads
    from glassformer.see.thread_bench import ThreadBench, ThreadSpeed

    processors, requested = available(), requested_threads()
    with bars.spinner("measuring"):
        speeds, path = thread_count.measure_anew(processors)
    choice = thread_count.choose(speeds, processors)
    lines = [
        f"{pluralize(choice.threads, 'thread')}, {choice.reason}.",
        f"A token reads {speeds.weight_bytes / 1e6:.0f} MB of weights, in SmolLM2's shapes.",
    ]
    if speeds.disturbed:
        lines.append(MEASURE_AGAIN)
    if path is None:
        lines.append(f"This cannot be kept: nothing can be written to {thread_count.kept_path(processors).parent}.")
    if requested is not None:
        lines.append(f"{requested[1]} is set, so that models run on {pluralize(requested[0], 'thread')} nevertheless.")
    rows = tuple(
        ThreadSpeed(count, speed, bandwidth=speed * speeds.weight_bytes) for count, speed in speeds.tokens_per_second.items()
    )
    return ThreadBench(
        _machine(), None, speeds.weight_bytes, rows, speeds.disturbed, choice.threads, "\n".join(lines),
        None if path is None else str(path),
    )  # fmt: skip


def bench_model(name: str) -> ThreadBench:
    """A model's speed with each number of threads."""
    from glassformer.engine.cpu import thread_count
    from glassformer.engine.cpu.cores import available
    from glassformer.engine.cpu.thread_bench import model_speeds
    from glassformer.model_files import ModelFiles
    from glassformer.see.thread_bench import ThreadBench, ThreadSpeed

    model = common.load_model(name, executor="cpu")
    assert isinstance(model.opened, ModelFiles)
    with bars.spinner(f"loading {name} and measuring"):
        in_use = model.executor.describe().threads  # refuses a model that writes nothing
        counts = sorted({*available().thread_counts(), in_use})
        speeds = model_speeds(model.config, model.blueprint, model.opened.tensors, counts)
    fastest = thread_count.fewest_of_fastest({count: speed.decode for count, speed in speeds.items()})
    conclusion = (
        f"{model.name} ({model.opened.kind_text}) decodes fastest with {pluralize(fastest, 'thread')}; it runs on {in_use} "
        f"({thread_count.chosen_threads().reason})."
    )
    disturbed = any(speed.disturbed for speed in speeds.values())
    rows = tuple(ThreadSpeed(count, speed.decode, speed.prefill) for count, speed in speeds.items())
    size = sum(tensor.size for tensor in model.opened.tensors.values())
    conclusion += f"\nOther programs disturbed the measurement. {MEASURE_AGAIN}" if disturbed else ""
    return ThreadBench(_machine(), model.name, size, rows, disturbed, in_use, conclusion, None)


def _machine() -> Machine:
    from glassformer.engine.cpu.cores import available
    from glassformer.engine.cpu.library import chosen_level, pinning_requested
    from glassformer.see.thread_bench import Machine

    processors = available()
    return Machine(
        processors.name, len(processors.cores), processors.fast_cores, len(processors.allowed), processors.quota,
        chosen_level(), pinning_requested(),
    )  # fmt: skip


def _print(report: object) -> None:
    from rich.console import Console

    Console().print(report)


def _verify(name: str, as_json: bool) -> None:
    """Compare the CPU engine with PyTorch and print the verdicts; exit code 1 if anything differs."""
    with needed_for("--verify"):
        import torch  # noqa: F401
    model = common.load_model(name, executor="plain", dtype="float32")
    with bars.spinner(f"loading {name} and comparing"):
        rows = verify_engine(model)
    if as_json:
        about = {"model": model.name, "weights": model.opened.kind, "right": "plain, float32"}
        common.print_json({**about, "checks": [row.to_dict() for row in rows]})
    else:
        from rich.console import Console

        from glassformer.see.verification import LEGEND, verdicts_table

        common.print_line(
            f"{model.name} ({model.opened.kind_text}): the CPU engine beside PyTorch in float32, at every site"
        )
        Console().print(verdicts_table(rows))
        print(LEGEND)
    if not all(row.agrees for row in rows):
        raise click.exceptions.Exit(1)


def verify_engine(model: Model) -> list[EngineVerdict]:
    """The engines against a plain model: each SIMD level that runs here, on the best one each rounding; and the GPU."""
    from glassformer.engine.cpu.executor import CpuExecutor
    from glassformer.engine.cpu.library import Engine, levels
    from glassformer.engine.gpu.device import blueprint_reason, unusable_reason
    from glassformer.engine.protocol import ACTIVATIONS, CACHES, Executor
    from glassformer.model_files import ModelFiles
    from glassformer.see.verification import EngineVerdict, gpu_tolerance, tolerance, verify_all

    assert isinstance(model.opened, ModelFiles)
    best, *_ = all_levels = levels()
    exact, *coarser = ACTIVATIONS
    variants = [(level, "f32", exact) for level in all_levels]
    variants += [(best, cache, exact) for cache in CACHES if cache != "f32"]
    ids = [model.tokenizer(text)["input_ids"][: model.config.context // 2] for text in TEXTS]
    starts = (
        [] if model.decoder_start_token is None else [model.decoder_start_token]
    )  # an encoder-decoder writes what it reads
    prompts, sources = [[*starts, *text_ids] for text_ids in ids], ids if starts else None
    tensors, blueprint = model.opened.tensors, model.blueprint
    packed = any(tensor.packed for tensor in tensors.values())
    variants += [(best, "f32", activations) for activations in coarser if packed]
    engines: list[Executor] = [
        CpuExecutor(model.config, blueprint, tensors, cache=cache, activations=activations, engine=Engine(level))
        for level, cache, activations in variants
    ]
    bounds = [tolerance(packed, *variant[1:]) for variant in variants]
    if unusable_reason() is None and blueprint_reason(blueprint) is None:
        from glassformer.engine.gpu.executor import GpuExecutor

        on_gpu = GpuExecutor(model.config, blueprint, tensors)
        engines.append(on_gpu)
        variants.append(("gpu", on_gpu.cache, "float"))
        bounds.append(gpu_tolerance(model.opened.kind, on_gpu.cache))
    verifications = verify_all(model.executor, engines, prompts, blueprint.site_names, sources)
    return [
        EngineVerdict(*variant, verification, bound)
        for variant, verification, bound in zip(variants, verifications, bounds, strict=True)
    ]


def examine() -> dict[str, Any]:
    """What this machine has and what could be better, as plain data."""
    import platform

    from glassformer.blueprints import model_types
    from glassformer.checkpoint.catalogue import CATALOGUE
    from glassformer.checkpoint.locate import local_path
    from glassformer.engine.cpu.cores import available
    from glassformer.ground.files import home

    executors, advice = _executors()
    here = {name: str(path) for name in CATALOGUE if (path := local_path(name))}
    return {
        "glassformer": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": len(available().cores),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "extras": {extra: _extra(extra) for extra in sorted({*EXTRAS.values()})},
        "executors": executors,
        "families": list(model_types()),
        "models": here or {"none yet:": "glass models pull smollm2"},
        "cache": str(home()),
        "hub_offline": bool(os.environ.get("HF_HUB_OFFLINE")),
        "advice": advice or ["nothing to fix"],
    }


def _version(name: str) -> str:
    import importlib.metadata  # a slow import, and this module is imported for every verb

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _extra(extra: str) -> str:
    """Whether what this package imports of an extra is here, or how to install it."""
    modules = [module for module, brought_by in EXTRAS.items() if brought_by == extra]
    return "installed" if all(map(find_spec, modules)) else f"not installed: {install(modules[0])}"


def _executors() -> tuple[list[str], list[str]]:
    """A line for each executor, and advice about them."""
    cpu, cpu_advice = _cpu()
    plain, plain_advice = _plain(alone=bool(cpu_advice))
    return [plain, cpu, _gpu()], plain_advice + cpu_advice


def _gpu() -> str:
    """The GPU engine; most machines have no GPU, which needs no advice."""
    from glassformer.engine.gpu import device

    try:
        reason = device.unusable_reason()
    except ImportError as error:  # a PyTorch that is here, and broken
        reason = f"torch cannot be imported ({error})"
    if reason is not None:
        return f"gpu: cannot run: {reason}"
    card, free = device.describe()
    return f"gpu: runs on {card}, {free / 1e9:.0f} GB of memory free"


def _plain(alone: bool) -> tuple[str, list[str]]:
    """PyTorch; advice on it matters only if it is the only executor."""
    try:
        import torch
    except ImportError as error:
        needed = f"torch cannot be imported ({error}): {install('torch')}"
        return f"plain: cannot run: {needed}", [needed] if alone else []
    from glassformer.torch.layers import has_fast_matmul

    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    if torch.cuda.is_available():
        devices.append(torch.cuda.get_device_name())
    advice = []
    if alone and not has_fast_matmul(torch.bfloat16):
        advice.append("this CPU has no bfloat16 arithmetic, so bfloat16 checkpoints run faster with --dtype float32")
    return f"plain: runs on {', '.join(devices)}", advice


def _cpu() -> tuple[str, list[str]]:
    from glassformer.engine.cpu import build, library, thread_count

    common.log_to_stderr()  # for the notes of a build
    try:
        before = build.find_library()
        about, choice = library.describe(), thread_count.chosen_threads()
    except (ExecutorError, SettingError, OSError) as error:
        return "cpu: cannot run, see the advice", [str(error)]
    others = [level for level in about["levels"] if level != about["level"]]
    level = about["level"] + (f" (also {', '.join(others)})" if others else "")
    threads = f"{pluralize(choice.threads, 'thread')} ({choice.reason})"
    return f"cpu: runs on {threads}, level {level}; its library is {_library(new=before is None)}", []


def _library(new: bool) -> str:
    """Where the native library is, and how it got there."""
    from glassformer.engine.cpu import build

    if override := os.environ.get("GLASS_LIBRARY"):
        return f"set by GLASS_LIBRARY: {override}"
    path = build.find_library()
    return f"{'built just now' if new else 'prebuilt' if path == build.prebuilt() else 'cached'}: {path}"
