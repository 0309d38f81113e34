"""Imports run one way, those for type checking too. The table is the architecture, and there is no circle of files."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import glassformer

ROOT = Path(glassformer.__file__).parent
MODELS = {"text", "checkpoint", "blueprints", "ops"}
NUMBERS = {"ops.positions", "ops.rope"}  # which programs and ops both need
TORCH = {"layers", "families"}
ALLOWED: dict[str, set[str]] = {  # what a package may import beside itself and the ground
    "ground": set(),
    "page": set(),
    "text": set(),
    "checkpoint": set(),
    "ops.positions": set(),
    "ops.rope": set(),
    "ops": {"engine.program"},
    "blueprints": {"ops"},
    "engine.protocol": set(),
    "engine.checks": {"engine.protocol"},
    "engine.program": NUMBERS,
    "engine.lowering": {"ops", "blueprints", "engine.program"},
    "engine.row_history": {*NUMBERS, "blueprints", "engine.protocol"},
    "engine.paged_rows": {"engine.protocol", "engine.checks", "engine.row_history"},
    "engine.program_pass": {"engine.protocol", "engine.checks", "engine.program", "engine.paged_rows"},
    "engine.program_executor": {
        "blueprints", "engine.protocol", "engine.checks", "engine.program", "engine.paged_rows", "engine.program_pass",
        "engine.lowering",
    },
    "decoding": {"engine.protocol"},
    "adapters": {"checkpoint", "blueprints", "ops"},
    "features": {"checkpoint", "blueprints"},
    "steering": {"checkpoint", "blueprints", "features"},
    "model_files": {*MODELS, "decoding", "adapters"},
    "quantize": {*MODELS, "model_files"},
    "layers": {"ops", "blueprints"},
    "families": {"ops", "blueprints", "layers"},
    "engine.named_weights": {"checkpoint"},
    "engine": {"ops.split", *TORCH},
    "engine.tensor_parallel.split": {"ops", "blueprints"},
    "engine.tensor_parallel.rank_blueprint": {"ops", "blueprints", "engine.tensor_parallel.split"},
    "engine.cpu": {"checkpoint", "ops", "blueprints", "engine"},
    "engine.gpu": {"checkpoint", "ops", "blueprints", "engine"},
    "studio": set(),
    "views": {"page", "studio"},
    "observe": {"steering", "features", "views", "page", "engine.protocol", "decoding", *MODELS},
    "compat": {"model_files", "decoding", "engine", *MODELS, *TORCH},
    "runtime": {
        "steering",
        "features",
        "compat",
        "observe",
        "views",
        "page",
        "model_files",
        "quantize",
        "decoding",
        "engine",
        *MODELS,
    },
    "tasks": {"runtime", "views", "model_files", "decoding", *MODELS},
    "serving": {
        "steering",
        "features",
        "studio",
        "jobs",
        "tasks",
        "runtime",
        "observe",
        "views",
        "model_files",
        "decoding",
        "engine",
        *MODELS,
    },
    "jobs.input_rows": set(),
    "jobs": {"tasks", "runtime", "observe", "decoding", "text", "checkpoint", "page"},
    "training": {"features", "adapters", "compat", "model_files", "views", "jobs.input_rows", *MODELS, *TORCH},
    "scale": {"jobs", "serving", "tasks", "runtime", "observe"},
    "scratch": {"compat"},
    "modeling_outputs": {"families"},
    "cli": {"*"},
    "__init__": {"*"},
    "__main__": {"*"},
}  # fmt: skip
NO_TORCH = (
    "ground", "page.terminal", "page.html", "text", "checkpoint", "ops.attend", "blueprints", "decoding", "adapters",
    "model_files", "quantize", "steering.library",
    "engine.protocol", "engine.lowering", "engine.tensor_parallel.rank_blueprint", "engine.cpu.executor", "engine.cpu.build",
    "views.run", "observe.reading", "observe.training_log", "observe.learning", "observe.compare", "observe.verification",
    "runtime", "tasks", "jobs", "scale", "serving.registry", "cli.app",
)  # fmt: skip


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


FILES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def layer_of(module: str) -> str:
    """The longest row of the table that covers a module."""
    while module not in ALLOWED:
        module = module.rpartition(".")[0]
        assert module, "every module needs a row in the table"
    return module


@cache
def imports_of(module: str) -> frozenset[str]:
    """Modules of ours that a file imports, anywhere in it, for type checking too."""
    imported = set()
    for node in ast.walk(ast.parse(FILES[module].read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "glassformer":
            package = (node.module or "").removeprefix("glassformer").lstrip(".")
            for alias in node.names:
                inner = f"{package}.{alias.name}".lstrip(".")
                imported.add(inner if inner in FILES else package or "__init__")
    return frozenset(imported - {module})


def may_import(layer: str, other: str) -> bool:
    allowed = {layer, "ground", *ALLOWED[layer]}
    return "*" in allowed or any(other == one or other.startswith(f"{one}.") for one in allowed)


def test_modules_import_only_what_their_layers_may() -> None:
    pairs = ((module, other) for module in FILES for other in imports_of(module))
    assert not [f"{module} imports {other}" for module, other in pairs if not may_import(layer_of(module), other)]


def test_no_circle_of_files() -> None:
    """Type-only imports included. A package's own `__init__` gathers its modules, and they do not import it."""
    try:
        TopologicalSorter({module: imports_of(module) for module in FILES}).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_views_know_nothing_of_how_they_are_computed() -> None:
    for module in FILES:
        if module.startswith("views."):
            assert not {other for other in imports_of(module) if other.split(".")[0] in ("observe", "runtime", "engine")}
        if module.startswith("observe."):
            assert not {other for other in imports_of(module) if other.split(".")[0] in ("runtime", "compat")}


def test_modules_import_without_torch() -> None:
    lines = [f"import glassformer.{module}; assert 'torch' not in sys.modules, {module!r}" for module in NO_TORCH]
    subprocess.run([sys.executable, "-c", "\n".join(["import sys", *lines])], check=True)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, glassformer; assert not {'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_time_never_needs_the_reference_implementation() -> None:
    for path in FILES.values():
        assert "import transformers" not in path.read_text("utf-8"), path
        assert "from transformers" not in path.read_text("utf-8"), path
