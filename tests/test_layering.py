"""Imports run one way. The table is the architecture; a module may import what its row names, and its own package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import glassformer

ROOT = Path(glassformer.__file__).parent
GROUND = {"errors", "sites", "candidates", "hints"}
CHOOSING = {f"decoding.{name}" for name in ("shortlist", "past", "rules", "grammar", "contradictions", "settings")}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "sites": {"errors"},
    "candidates": set(),
    "hints": set(),
    "text": GROUND,
    "checkpoint": GROUND,
    "blueprints": GROUND,
    "engine.protocol": GROUND,
    "decoding.shortlist": GROUND,
    "decoding.past": GROUND | {"decoding.shortlist"},
    "decoding.grammar": GROUND | {"decoding.shortlist", "decoding.past"},
    "decoding.rules": GROUND | {"decoding.shortlist", "decoding.past"},
    "decoding.stopping": GROUND | {"decoding.past"},
    "decoding.about": GROUND,
    "decoding.contradictions": GROUND,
    "decoding.settings": GROUND | {"decoding.about", "decoding.contradictions"},
    "decoding.order": GROUND | CHOOSING,
    "decoding.recipe": GROUND | CHOOSING | {"decoding.order", "decoding.stopping"},
    "decoding.waterfall": GROUND | {"decoding.shortlist"},
    "decoding.policy": GROUND | CHOOSING | {"decoding.recipe", "decoding.stopping", "decoding.waterfall"},
    "decoding.remedies": GROUND | {"decoding.policy", "decoding.settings"},
    "decoding": GROUND | {"decoding", "engine.protocol"},  # the drivers
    "opening": GROUND | {"text", "checkpoint", "blueprints", "decoding.settings"},
    "cache": GROUND,
    "layers": GROUND | {"cache", "blueprints"},
    "outputs": GROUND | {"cache"},
    "families": GROUND | {"cache", "layers", "blueprints", "outputs"},
    "heads": GROUND | {"cache", "layers", "blueprints", "outputs", "families"},
    "engine.rows": GROUND | {"engine.protocol"},
    "engine.verify": GROUND | {"engine.protocol", "show"},
    "engine.cpu": GROUND | {"engine.protocol", "engine.rows", "checkpoint", "blueprints"},
    "engine": GROUND | {"engine", "heads", "families", "layers", "outputs"},
    "quantising": GROUND | {"opening", "checkpoint", "blueprints", "text"},
    "observe": GROUND | {"blueprints", "text", "engine.protocol", "decoding", "show"},
    "show": GROUND | {"observe", "engine.verify"},
    "history": GROUND | {"checkpoint", "families", "heads"},
    "loading": GROUND
    | {"opening", "checkpoint", "blueprints", "decoding.settings", "layers", "families", "heads", "history"},
    "generating": GROUND | {"decoding", "engine", "families", "heads", "outputs"},
    "auto": GROUND | {"opening", "loading", "generating", "blueprints", "families", "heads"},
    "running": GROUND | {"decoding", "observe", "show", "text"},
    "executing": GROUND | {"opening", "blueprints", "engine"},
    "loaded": GROUND
    | {"executing", "opening", "checkpoint", "blueprints", "decoding", "engine", "observe", "text", "auto", "loading"},
    "looking": GROUND | {"loaded", "observe", "engine"},
    "runtime": GROUND
    | {"executing", "loaded", "looking", "running", "opening", "checkpoint", "decoding", "engine", "observe", "quantising"},
    "tasks": GROUND | {"opening", "checkpoint", "blueprints", "decoding", "text", "runtime"},
    "scratch": GROUND | {"opening", "checkpoint", "blueprints", "cache", "heads", "auto"},
    "cli": {"*"},
    "__init__": {"*"},
    "__main__": {"*"},
}
NO_TORCH = (
    "text",
    "checkpoint",
    "blueprints",
    "decoding",
    "engine.protocol",
    "engine.cpu.executor",
    "engine.cpu.build",
    "engine.verify",
    "opening",
    "quantising",
    "observe",
    "show",
    "running",
    "runtime",
    "tasks",
    "cli.app",
)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def rule_for(module: str) -> str:
    """The longest row of the table that covers a module."""
    while module not in ALLOWED:
        module = module.rpartition(".")[0]
        assert module, "every module needs a row in the table"
    return module


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports, anywhere in it, except for type checking."""
    tree = ast.parse(path.read_text("utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("glassformer"):
            inside = (node.module or "").removeprefix("glassformer").lstrip(".")
            for alias in node.names:
                deeper = f"{inside}.{alias.name}".lstrip(".")
                is_module = (ROOT / deeper.replace(".", "/")).is_dir() or (ROOT / f"{deeper.replace('.', '/')}.py").exists()
                found.add(deeper if is_module else inside or "__init__")
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=name_of)
def test_imports_run_one_way(path: Path) -> None:
    module = name_of(path)
    row = rule_for(module)
    allowed = ALLOWED[row]
    for other in imported(path):
        own = other == row or other.startswith(f"{row}.") or other.split(".")[0] == module.split(".")[0] == row
        assert "*" in allowed or own or any(other == a or other.startswith(f"{a}.") for a in allowed), (
            f"{module} imports {other}, which its layer may not"
        )


@pytest.mark.parametrize("module", NO_TORCH)
def test_needs_no_torch(module: str) -> None:
    code = f"import sys, glassformer.{module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_itself_imports_nothing_heavy() -> None:
    code = "import sys, glassformer; assert not {'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_time_never_needs_the_reference() -> None:
    """But where somebody asks to be compared with it."""
    for path in set(ROOT.rglob("*.py")) - {ROOT / "observe" / "comparing" / "foreign.py"}:
        assert "import transformers" not in path.read_text("utf-8"), path
        assert "from transformers" not in path.read_text("utf-8"), path
