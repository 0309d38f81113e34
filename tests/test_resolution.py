"""What is pinned can be installed. `make resolution` asks the package index itself; here is what needs no network."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from glassformer.ground.errors import EXTRAS
from tools import check_resolution

ROOT = Path(__file__).parents[1]
PINS = {
    canonicalize_name(pin.name): next(iter(pin.specifier)).version
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
    for pin in [Requirement(line)]
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REQUIREMENTS = [
    Requirement(text)
    for texts in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for text in texts
    if not text.startswith("glassformer[")
]


def test_every_requirement_admits_its_pin() -> None:
    pinned = [requirement for requirement in REQUIREMENTS if canonicalize_name(requirement.name) in PINS]
    assert len(pinned) > 30
    refused = [str(one) for one in pinned if not one.specifier.contains(PINS[canonicalize_name(one.name)])]
    assert refused == []


def test_pytorch_is_an_extra() -> None:
    light = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert light == {"click", "gguf", "huggingface_hub", "jinja2", "numpy", "rich", "safetensors", "tokenizers"}
    assert PROJECT["optional-dependencies"]["torch"] == ["torch>=2.6"]


@pytest.mark.parametrize(("module", "extra"), EXTRAS.items())
def test_every_extra_that_an_error_names_can_be_installed(module: str, extra: str) -> None:
    assert extra in PROJECT["optional-dependencies"]


def test_every_supported_python_is_resolved_for() -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert tuple(named) == check_resolution.PYTHONS


@pytest.mark.parametrize("configured", [None, "index of the configuration"])
def test_nothing_but_the_index_is_asked(configured: str | None) -> None:
    local = {"PIP_FIND_LINKS": "wheels", "PIP_EXTRA_INDEX_URL": "more", "UV_FIND_LINKS": "wheels", "PATH": "programs"}
    bare = check_resolution.index_only(local, configured)
    assert bare["PATH"] == "programs"
    assert not {"wheels", "more"} & set(bare.values())
    assert bare.get("PIP_INDEX_URL") == bare.get("UV_DEFAULT_INDEX") == configured
    assert check_resolution.index_only(local | {"PIP_INDEX_URL": "mine"}, configured)["UV_DEFAULT_INDEX"] == "mine"


def test_each_extra_is_resolved_for_each_python_and_architecture(tmp_path: Path) -> None:
    commands = check_resolution.uv_commands(tmp_path)
    assert len(commands) == 40
    assert ".[dev] for Python 3.14 on aarch64-manylinux_2_31" in commands


def test_what_cannot_be_resolved_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {
        "good": [sys.executable, "-c", "pass"],
        "bad": [sys.executable, "-c", "import sys; sys.exit('ResolutionImpossible')"],
    }
    assert list(check_resolution.failures(commands, {}, at_once=2)) == ["bad:\nResolutionImpossible"]
    assert capsys.readouterr().out == "good: resolved\n"


def test_what_the_network_may_have_spoiled_is_tried_again(tmp_path: Path) -> None:
    count = f"import pathlib, sys; path = pathlib.Path({str(tmp_path / 'tries')!r}); path.open('a').write('x'); "
    flaky = count + "sys.exit('timed out' if path.stat().st_size < 3 else 0)"
    assert list(check_resolution.failures({"flaky": [sys.executable, "-c", flaky]}, {}, at_once=1)) == []
    (tmp_path / "tries").unlink()
    contradictory = count + "sys.exit('No solution found')"
    found = list(check_resolution.failures({"bad": [sys.executable, "-c", contradictory]}, {}, at_once=1))
    assert (found, (tmp_path / "tries").read_text("utf-8")) == (["bad:\nNo solution found"], "x")
