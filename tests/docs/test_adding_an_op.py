"""docs/adding-an-op.md: its files are put where ops and families are looked for, and every executor runs its model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from glassformer.ops.op import Op
from tests.docs.pages import blocks
from tests.patience import patience
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "adding-an-op.md"
EVERY_EXECUTOR = """
import tests.engine.gpu.triton_interpreter
import numpy as np
import glassformer
from pathlib import Path
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from glassformer.engine.gpu import kernels
from glassformer.engine.tensor_parallel.split import rank_blueprint
from glassformer.engine.tensor_parallel.split import split_model
from glassformer.see.inside.compute import OpValues
from tests.engine.executors import Subject

subject = Subject(Path("tiny"))
for executor in (subject.cpu(), subject.gpu(), subject.gpu(kernels=kernels)):
    verdict = subject.verdict(executor, (1, 5))
    assert verdict.agrees(1e-5), verdict.worst
words = {f"word{number}": number for number in range(100)}
Tokenizer(WordLevel(words, unk_token="word0")).save("tiny/tokenizer.json")
model = glassformer.load("tiny", executor="cpu")
reading = model.read([5, 6, 7])
values = OpValues(reading, 1)
for number, op in enumerate(model.blueprint.ops):
    if op.kind == "squared_relu":
        computed = op.value([values.value(source) for source in op.inputs], values.token(op))
        assert np.allclose(computed, values.value(number), atol=1e-5)
view = reading.inside("blocks.1.mlp.hidden.3", 1)
assert abs(view.steps[-1].value - view.result) < 1e-5
split = split_model(model.blueprint, 2)
own = rank_blueprint(model.blueprint, split, 1)
assert {op.shape[-1] for op in own.ops if op.kind == "squared_relu"} == {32}
"""


def test_the_example_op_runs_on_every_executor(tmp_path: Path) -> None:
    written = list(blocks(PAGE))
    files = {kind.removeprefix("python file="): code for kind, code, _ in written if kind.startswith("python file=")}
    assert list(files) == ["ops/squared_relu.py", "blueprints/primer.py"]
    for name, code in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(code, "utf-8")
    ((after, expected),) = [(code, shown) for kind, code, shown in written if kind == "python after=primer"]
    places = "\n".join(
        f"import glassformer.{folder}; glassformer.{folder}.__path__.append({str(tmp_path / folder)!r})"
        for folder in ("ops", "blueprints")
    )
    begin = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport tests.engine.gpu.triton_interpreter"
    done = subprocess.run(
        [sys.executable, "-c", f"{begin}\n{places}\n{after}\n{EVERY_EXECUTOR}"],
        capture_output=True,
        text=True,
        timeout=patience(240),
        cwd=tmp_path,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected


def test_every_question_that_the_page_names_exists() -> None:
    table = PAGE.read_text("utf-8").split("|---|---|---|\n")[1].split("\n\n")[0]
    names = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert all(hasattr(Op, name) for name in names)
    assert {"value", "lower", "split", "linear"} <= names
