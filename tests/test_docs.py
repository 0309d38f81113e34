"""What the documents say is run: every Python block and every `glass` command of the README and of docs/."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import glass
from tests.patience import patience

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOUR = ROOT / "docs" / "tour"  # run, and compared with what it shows, in tests/docs/test_tour.py
ELSEWHERE = (
    "batch-jobs.md",
    "decoding.md",
    "features.md",
    "json.md",
    "many-texts.md",
    "models.md",
    "recurrent-layers.md",
    "scaling.md",
    "serving.md",
    "structure-to-api.md",
    "training-and-inference.md",
    "training.md",
    "vocabulary-sizes.md",
    "when-it-goes-wrong.md",
)  # run in tests/docs


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.S)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page.name not in ELSEWHERE and page.parent != TOUR],
    ids=lambda page: page.name,
)
def test_python_blocks_run(
    page: Path,
    smollm2: Path,
    minilm: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = []
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)
        printed.append(capsys.readouterr().out)
    assert any(printed)
    if page.name == "README.md":  # the first block's comments say what it prints
        assert "Paris" in printed[0]
        assert "Candidates(57: 24." in printed[0]
        assert printed[0].rstrip().endswith("(1, 34, 576)")


def test_pages_run_elsewhere_have_their_tests() -> None:
    for name in ELSEWHERE:
        assert (ROOT / "docs" / name).exists()
        assert (ROOT / "tests" / "docs" / f"test_{name.removesuffix('.md').replace('-', '_')}.py").exists()


def test_example_family_loads(tmp_path: Path) -> None:
    """The file of the page is put where families are looked for, and its last block is run."""
    text = (ROOT / "docs" / "adding-a-family.md").read_text("utf-8")
    files = re.findall(r"```python file=(\S+)\n(.*?)```", text, re.S)
    ((name, code),) = files
    assert name == "blueprints/parallel.py"
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(code, "utf-8")
    (after,) = re.findall(r"```python after=parallel\n(.*?)```", text, re.S)
    place = f"import glassformer.blueprints; glassformer.blueprints.__path__.append({str(tmp_path / 'blueprints')!r})"
    done = subprocess.run([sys.executable, "-c", f"{place}\n{after}"], capture_output=True, text=True, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    assert re.match(r"tensor\(\[\[ *5, +6, +7, ", done.stdout)


def test_incomplete_families_are_refused(tmp_path: Path) -> None:
    """Each message says what is missing, and none stands in another family's way."""
    files = {
        "blueprints/alone.py": "alone",
        "blueprints/renamed.py": "other",
    }
    for name, model_type in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        code = f"class Config:\n    model_type = {model_type!r}\n" if model_type else ""
        (tmp_path / name).write_text(code, "utf-8")
    code = f"""
import glassformer.blueprints, glassformer.torch
from glassformer.compat.auto import model_class_for_head

glassformer.blueprints.__path__.append({str(tmp_path / "blueprints")!r})
print(model_class_for_head("gpt2", "causal").__name__)
for name in ("alone", "renamed"):
    try:
        glassformer.torch.base_class_for(name)
    except glassformer.GlassError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(120), check=True)
    known, alone, renamed = done.stdout.splitlines()
    assert known == "GPT2LMHeadModel"
    assert alone == "alone has a blueprint, but no names: blueprints/alone.py must have a FAMILY."
    assert "blueprints/renamed.py has a Config for model_type 'other'." in renamed


SLOW = ("glass doctor --verify", "glass doctor --bench")  # what they say is tested with small models


def commands(tour: bool) -> list[str]:
    """The commands of the tour, or of all other pages, each once."""
    shells = (block for page in PAGES if (page.parent == TOUR) is tour for block in blocks(page, "sh"))
    return list(dict.fromkeys(line for block in shells for line in block.splitlines() if line.startswith("glass ")))


COMMANDS = [
    pytest.param(line, marks=[pytest.mark.sweep] if line.startswith(SLOW) else [])
    for line in commands(tour=False)
    if line not in commands(tour=True)
]


@pytest.mark.parametrize("line", COMMANDS)
def test_documented_commands_run(line: str, smollm2: Path, command_folder: Path) -> None:
    glass(line)


def test_links_resolve() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readmes_map_names_real_files() -> None:
    """Each path is in the package, or in the folder that its line begins with."""
    package = ROOT / "src" / "glassformer"
    drawn = (ROOT / "README.md").read_text("utf-8").split("src/glassformer/\n")[1].split("```")[0]
    for line in drawn.splitlines():
        paths = re.findall(r"(?<![\w/])((?:[a-z_]+/)+|[a-z_]+\.py)", line)
        for path in paths:
            assert (package / path).exists() or (package / paths[0] / path).exists(), path


def test_ci_workflow_runs_what_make_runs() -> None:
    """It can only be read here: that it parses, covers the three systems, and runs the same checks."""
    import yaml

    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    job = workflow["jobs"]["test"]
    assert {name.partition("-")[0] for name in job["strategy"]["matrix"]["os"]} == {"ubuntu", "macos", "windows"}
    steps = "\n".join(step.get("run", "") for step in job["steps"])
    makefile = (ROOT / "Makefile").read_text("utf-8")
    parts = ('-m "not (sweep or needs)"', '-m "needs and not sweep"', "--durations=50")
    for check in ("ruff check .", "ruff format --check .", "mypy", "pytest -n auto", *parts):
        assert check in steps
        assert check in makefile
