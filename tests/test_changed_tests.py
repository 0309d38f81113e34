"""Which tests a change can reach, in a small repository and in this one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tools.changed_tests import Repository, changed_files

FILES = {
    "src/glassformer/__init__.py": "if TYPE_CHECKING:\n    from glassformer.runtime import Model as Model\n",
    "src/glassformer/__main__.py": "from glassformer import cli\n",
    "src/glassformer/cli.py": "import importlib\nimportlib.import_module(f'glassformer.verbs.{name}')\n",
    "src/glassformer/ground.py": "",
    "src/glassformer/runtime.py": "def load():\n    from glassformer.ground import check\n",
    "src/glassformer/verbs/__init__.py": "",
    "src/glassformer/verbs/run.py": "",
    "src/glassformer/engine/build.py": "",
    "src/glassformer/engine/native/kernels.cpp": "",
    "docs/page.md": "",
    "tests/conftest.py": "@pytest.fixture\ndef engine(folder):\n    from glassformer.engine import build\n",
    "tests/test_model.py": "import glassformer\nglassformer.Model\n",
    "tests/test_ground.py": "from glassformer.ground import check\n",
    "tests/test_engine.py": "def test_it(engine): ...\n",
    "tests/test_command.py": "glass('glass run')\n",
    "tests/test_code.py": "run('from glassformer.ground import check')\n",
    "tests/test_page.py": "(ROOT / 'docs').iterdir()\n",
    "tests/test_nothing.py": "'''About glassformer.ground.'''\n",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    return root


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ("src/glassformer/ground.py", "code ground model"),
        ("src/glassformer/runtime.py", "model"),
        ("src/glassformer/verbs/run.py", "command"),
        ("src/glassformer/engine/native/kernels.cpp", "engine"),
        ("src/glassformer/__init__.py", "code command engine ground model nothing page"),
        ("tests/conftest.py", "code command engine ground model nothing page"),
        ("docs/page.md", "page"),
        ("tests/test_nothing.py", "nothing"),
    ],
)
def test_what_a_change_reaches(root: Path, changed: str, reached: str) -> None:
    assert Repository(root).reached([root / changed]) == [root / f"tests/test_{name}.py" for name in reached.split()]


@pytest.mark.processes
def test_what_differs_from_a_commit(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        unavailable("git, which says what has changed")
    git = ["git", "-c", "user.name=Somebody", "-c", "user.email=somebody@localhost"]
    (tmp_path / "old.py").write_text("1")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "One"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    (tmp_path / "old.py").write_text("2")
    (tmp_path / "new.py").write_text("3")
    assert changed_files(tmp_path, "HEAD") == [tmp_path / "old.py", tmp_path / "new.py"]
