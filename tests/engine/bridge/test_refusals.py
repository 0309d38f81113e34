"""What cannot be is refused before transformers is read: that takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.engine.bridge import installed
from tests.engine.bridge import families

REFUSALS = """
import sys
import glassformer
from glassformer.ground.errors import GlassError

folder, unknown = sys.argv[1:]
for name, option in ((folder, {"weights": "q8_0"}), (folder, {"executor": "cpu"}), (folder, {"cache": "q8"}), (unknown, {})):
    try:
        glassformer.load(name, **option)
    except GlassError:
        continue
    raise SystemExit(f"{name} with {option} is not refused")
if found := {"torch", "transformers"} & sys.modules.keys():
    raise SystemExit(f"imported: {found}")
"""


def test_refusals_import_neither_torch_nor_transformers(tmp_path: Path) -> None:
    known, unknown = tmp_path / "codegen", tmp_path / "unknown"
    for folder, kind in ((known, "codegen"), (unknown, "no such family")):
        folder.mkdir()
        families.write(folder, "codegen")
        config = json.loads((folder / "config.json").read_text("utf-8"))
        (folder / "config.json").write_text(json.dumps({**config, "model_type": kind}), "utf-8")
    ran = subprocess.run([sys.executable, "-c", REFUSALS, known, unknown], capture_output=True, text=True, check=False)
    assert ran.stderr == ""


@pytest.mark.parametrize("written", [True, False])
def test_lists_of_classes_are_those_of_the_library(written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read off its text, or imported where a version has them written otherwise."""
    from transformers.models.auto import modeling_auto

    if not written:
        monkeypatch.setattr(installed, "_written_lists", dict)
    for name in installed.LISTS.values():
        assert written == (name in installed._written_lists())
        assert dict(installed._list(name)) == dict(getattr(modeling_auto, name))
    assert installed.classes("codegen") | {"causal": ("CodeGenForCausalLM",)} == installed.classes("codegen")
    assert installed.classes("vit") == {}
