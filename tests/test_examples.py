"""The notebooks in `examples/`: whole, clean, and saying what the code says today.

The quick tests look at the files alone. The sweep runs each notebook in a fresh kernel, offline, in an empty folder, and
compares what it says with what is committed: words and whole numbers exactly, spaces not at all (a longer number moves
columns), numbers with a decimal point up to a fiftieth and shares up to two points, because sums are ordered differently
on other processors. What a cell tagged `learnt` says depends on a training run, which makes such differences grow: there,
as with pictures, only that something is said is compared; and that the loss fell to a quarter or less.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.docs

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))
NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d*)?(?:e[-+]?\d+)?%?")
MACHINE = re.compile(r"/root\b|/home/|/work\b|/tmp\b|/Users/|/usr/|[A-Z]:\\|site-packages|\d+(?:\.\d+)? ?it/s|Warning\b")
COLOUR, TIME = re.compile(r"\x1b\[[\d;]*m"), re.compile(r"\d+(?:\.\d+)? (?:µs|ms|s)\b")
NEAR = 0.02

nbformat: Any = importlib.import_module("nbformat")  # which has no types


def refresh() -> Any:
    """`examples/refresh.py`, which is no package."""
    spec = importlib.util.spec_from_file_location("refresh", EXAMPLES / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_notebook(name: str) -> Any:
    return nbformat.read(EXAMPLES / name, as_version=4)


def code_cells(name: str) -> list[Any]:
    return [cell for cell in read_notebook(name).cells if cell.cell_type == "code"]


def output_text(output: Any) -> str:
    """An output's text; of a picture, that it is one."""
    if output.output_type == "stream":
        return str(output.text)
    return "<picture>" if "image/png" in output.data else str(output.data["text/plain"])


def same_output(one: str, other: str) -> bool:
    """Whether two texts say the same: the same words and whole numbers, nearly the same of the others, whatever it took."""
    texts = [TIME.sub("a while", COLOUR.sub("", text)) for text in (one, other)]
    words = [NUMBER.sub(" # ", re.sub(r"[█ ]+", " ", text)).split() for text in texts]
    numbers = [NUMBER.findall(text) for text in texts]
    return words[0] == words[1] and len(numbers[0]) == len(numbers[1]) and all(map(numbers_agree, *numbers))


def numbers_agree(one: str, other: str) -> bool:
    if not any(mark in text for text in (one, other) for mark in ".e%"):
        return one == other
    a, b = (float(text.replace(",", "").replace("−", "-").rstrip("%")) for text in (one, other))
    return math.isclose(a, b, rel_tol=NEAR, abs_tol=2 if "%" in one else NEAR)


def losses(cells: list[Any]) -> list[list[float]]:
    """What each training cell printed, step by step."""
    texts = ["".join(output_text(output) for output in cell.outputs) for cell in cells if cell.cell_type == "code"]
    result = [[float(loss) for loss in re.findall(r"^step +\d+: loss ([\d.]+)$", text, re.MULTILINE)] for text in texts]
    return [one for one in result if one]


def test_there_are_eight_notebooks_in_reading_order() -> None:
    assert [name[:2] for name in NAMES] == ["1-", "2-", "3-", "4-", "5-", "6-", "7-", "8-"]
    assert refresh().notebooks() == [EXAMPLES / name for name in NAMES]
    readme = (EXAMPLES / "README.md").read_text("utf-8")
    assert all(f"({name})" in readme for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
class TestNotebookFile:
    def test_its_length_is_readable(self, name: str) -> None:
        whole = read_notebook(name)
        nbformat.validate(whole)
        assert len(whole.cells) <= 27
        assert whole.cells[0].source.startswith(f"# {name[0]} · ")

    def test_every_cell_was_run_in_order(self, name: str) -> None:
        cells = code_cells(name)
        assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
        silent = [cell for cell in cells if not cell.outputs]
        assert len(silent) <= 2  # a definition, a loaded model
        kinds = {(output.output_type, output.get("name")) for cell in cells for output in cell.outputs}
        assert kinds <= {("stream", "stdout"), ("display_data", None), ("execute_result", None)}  # no error, no stderr

    def test_the_loss_falls_in_training_cells(self, name: str) -> None:
        result = losses(code_cells(name))
        assert len(result) == {"4": 2, "5": 1, "6": 1, "8": 1}.get(name[0], 0)
        assert all(one[-1] <= one[0] / 4 for one in result)

    def test_no_paths_or_times_of_one_machine(self, name: str) -> None:
        for cell in code_cells(name):
            for output in cell.outputs:
                assert not MACHINE.search(output_text(output)), output_text(output)
        assert read_notebook(name).metadata.language_info == {"name": "python"}

    def test_it_imports_no_other_model_library(self, name: str) -> None:
        source = "\n".join(cell.source for cell in code_cells(name))
        assert re.search(r"^\s*(from|import) glassformer\b", source, re.MULTILINE)
        assert not re.search(r"^\s*(from|import) transformers\b", source, re.MULTILINE)

    def test_its_links_exist(self, name: str) -> None:
        texts = "\n".join(cell.source for cell in read_notebook(name).cells if cell.cell_type == "markdown")
        for target in re.findall(r"\]\(([^)]+)\)", texts):
            assert target.startswith("https://") or (EXAMPLES / target).exists(), target

    def test_it_is_normalized_by_refresh(self, name: str) -> None:
        written = (EXAMPLES / name).read_text("utf-8")
        assert nbformat.writes(refresh().tidy(read_notebook(name))) + "\n" == written


class TestSameOutput:
    def test_numbers_may_differ_a_little(self) -> None:
        assert same_output("loss 0.412, 1.5e-07", "loss 0.409, 1.6e-07")
        assert same_output("tensor([[ 0.41, -3.00]])", "tensor([[0.40, -3.01]])")
        assert not same_output("loss 0.412", "loss 0.512")
        assert not same_output("ids [57, 2]", "ids [58, 2]")
        assert not same_output("16,374,176 weights", "16,374,177 weights")
        assert not same_output("torch.Size([1, 34])", "torch.Size([1, 34, 1])")

    def test_times_are_ignored(self) -> None:
        assert same_output("blocks \x1b[1m332.8\x1b[0m ms, 12 B", "blocks 1.2 s, 12 B")
        assert not same_output("blocks 332.8 ms, 12 B", "blocks 332.8 ms, 13 B")

    def test_words_must_agree(self) -> None:
        assert same_output("│ I    │ 24.2% │", "│ I │ 24.1%   │")
        assert not same_output("Hello 0.5", "Hallo 0.5")

    def test_percentages_may_differ_by_two_points(self) -> None:
        assert same_output("'I' 24%, 3.1%", "'I' 25%, 2.9%")
        assert not same_output("'I' 24%", "'I' 28%")


@pytest.mark.sweep
@pytest.mark.usefixtures("smollm2", "minilm", "cl100k")
@pytest.mark.parametrize("name", NAMES)
def test_a_rerun_gives_the_committed_outputs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in refresh().STEADY.items():
        monkeypatch.setenv(variable, value)  # and back again afterwards
    fresh = [cell for cell in refresh().rerun(EXAMPLES / name, tmp_path).cells if cell.cell_type == "code"]
    assert all(one[-1] <= one[0] / 4 for one in losses(fresh))
    for number, (now, then) in enumerate(zip(fresh, code_cells(name), strict=True), start=1):
        outputs = [[output_text(output) for output in cell.outputs] for cell in (now, then)]
        assert [len(texts) for texts in outputs] == [len(then.outputs)] * 2, f"cell {number}: {outputs}"
        learnt = "learnt" in then.metadata.get("tags", [])
        for one, other in zip(*outputs, strict=True):
            assert (one and learnt) or same_output(one, other), f"cell {number} says:\n{one}\nand is committed as:\n{other}"
