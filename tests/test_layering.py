"""Imports run one way, those for type checking too. The table is the architecture, and there is no circle of files."""

from __future__ import annotations

import ast
import re
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
    "engine.row_states": {"ops", "blueprints", "engine.protocol", "engine.checks", "engine.row_history"},
    "engine.paged_rows": {"engine.protocol", "engine.checks", "engine.row_history", "engine.row_states"},
    "engine.program_pass": {"engine.protocol", "engine.checks", "engine.program", "engine.paged_rows"},
    "engine.program_executor": {
        "ops", "blueprints", "engine.protocol", "engine.checks", "engine.program", "engine.paged_rows",
        "engine.program_pass", "engine.lowering",
    },
    "decoding": {"engine.protocol"},
    "adapters": {"checkpoint", "blueprints", "ops"},
    "features": {"checkpoint", "blueprints"},
    "steering": {"checkpoint", "blueprints", "features"},
    "model_files": {*MODELS, "decoding", "adapters"},
    "quantize": {*MODELS, "model_files"},
    "torch": {"ops", "blueprints"},
    "engine.named_weights": {"checkpoint", "engine.program"},
    "engine": {"ops.split", "torch"},
    "engine.tensor_parallel.split": {"ops", "blueprints"},
    "engine.bridge": {"checkpoint", "ops", "blueprints", "engine", "model_files", "torch"},
    "engine.cpu": {"checkpoint", "ops", "blueprints", "engine"},
    "engine.gpu": {"checkpoint", "ops", "blueprints", "engine"},
    "studio": set(),
    "see": {"steering", "features", "page", "studio", "engine.protocol", "engine.checks", "decoding", *MODELS},
    "compat": {"model_files", "decoding", "engine", *MODELS, "torch"},
    "runtime": {
        "steering",
        "features",
        "compat",
        "see",
        "page",
        "model_files",
        "quantize",
        "decoding",
        "engine",
        *MODELS,
    },
    "tasks": {"runtime", "see", "model_files", "decoding", "engine.protocol", *MODELS},
    "serving": {
        "steering",
        "features",
        "studio",
        "jobs",
        "tasks",
        "runtime",
        "see",
        "model_files",
        "decoding",
        "engine",
        *MODELS,
    },
    "jobs.input_rows": set(),
    "jobs": {"tasks", "runtime", "see", "decoding", "text", "checkpoint", "page"},
    "training": {"features", "adapters", "compat", "model_files", "see", "jobs.input_rows", *MODELS, "torch"},
    "scale": {"jobs", "serving", "tasks", "runtime", "see"},
    "scratch": {"compat"},
    "modeling_outputs": {"torch"},
    "cli": {"*"},
    "__init__": {"*"},
    "__main__": {"*"},
}  # fmt: skip
NO_TORCH = (
    "ground", "page.terminal", "page.html", "text", "checkpoint", "ops.attend", "blueprints", "decoding", "adapters",
    "model_files", "quantize", "steering.library",
    "engine.protocol", "engine.lowering", "engine.tensor_parallel.split", "engine.cpu.executor", "engine.cpu.build",
    "see.run", "see.reading", "see.training_curves", "see.learning", "see.compare", "see.verification",
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


def test_views_are_computed_without_the_short_face() -> None:
    for module in FILES:
        if module.startswith("see."):
            assert not {other for other in imports_of(module) if other.split(".")[0] in ("runtime", "compat")}


def test_drawing_a_view_needs_no_numerics() -> None:
    """Whatever a view's class uses, followed through functions, comes from `see`, the page and the ground alone."""
    todo = [(module, name) for module in FILES if module.startswith("see.") for name in views_of(module)]
    assert len(todo) > 40
    followed = set()
    while todo:
        module, name = place = todo.pop()
        defined, imported = definitions(module)
        if place in followed or name not in defined:
            continue
        followed.add(place)
        for used in names_used(defined[name]) & (defined.keys() | imported.keys()):
            origin, original = (module, used) if used in defined else imported[used]
            assert origin.split(".")[0] in ("see", "page", "studio", "ground"), f"{module}.{name} draws with {origin}"
            if origin.startswith("see."):
                todo.append((origin, original))


@cache
def definitions(module: str) -> tuple[dict[str, ast.stmt], dict[str, tuple[str, str]]]:
    """The functions and classes of a file, and what it imports of ours: the module, and the name there."""
    tree = ast.parse(FILES[module].read_text("utf-8"))
    defined = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("glassformer"):
            package = (node.module or "").removeprefix("glassformer").lstrip(".")
            imported.update({alias.asname or alias.name: (package or "__init__", alias.name) for alias in node.names})
    return dict(defined), imported


def views_of(module: str) -> list[str]:
    classes = [node for node in definitions(module)[0].values() if isinstance(node, ast.ClassDef)]
    return [node.name for node in classes if {getattr(base, "id", "") for base in node.bases} & {"View", "ArrayView"}]


def names_used(definition: ast.stmt) -> set[str]:
    """Global names that a definition uses when it runs: no annotations, and nothing that it assigns itself."""
    code = ast.parse(ast.unparse(definition))
    for node in ast.walk(code):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs):
                argument.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    names = [node for node in ast.walk(code) if isinstance(node, ast.Name)]
    local = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    local |= {node.arg for node in ast.walk(code) if isinstance(node, ast.arg)}
    return {node.id for node in names} - local


def test_class_names_are_unique() -> None:
    """But for each family's `Config`, and for the course's `Model`, whose name is the course's own."""
    places: dict[str, set[str]] = {}
    for module, path in FILES.items():
        for name in re.findall(r"^ *class (\w+)", path.read_text("utf-8"), re.M):
            if (module, name) != ("compat.scratch", "Model"):
                places.setdefault(name, set()).add(module)
    del places["Config"]
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


def test_modules_import_without_torch() -> None:
    lines = [f"import glassformer.{module}; assert 'torch' not in sys.modules, {module!r}" for module in NO_TORCH]
    subprocess.run([sys.executable, "-c", "\n".join(["import sys", *lines])], check=True)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, glassformer; assert not {'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_time_never_needs_the_reference_implementation() -> None:
    for module, path in FILES.items():
        if module.startswith("engine.bridge"):
            continue  # which is there for those who have it
        assert "import transformers" not in path.read_text("utf-8"), path
        assert "from transformers" not in path.read_text("utf-8"), path
