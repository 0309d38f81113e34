"""Run the notebooks anew and write them back, so that what they show is what the code gives.

    python examples/refresh.py                # all of them
    python examples/refresh.py examples/1-*   # some

It needs the `notebooks` extra and nbclient. What would change from run to run (versions, random
cell names) is left out, so an unchanged notebook stays unchanged, but for times in pictures.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECONDS = 300  # for one cell; all of a notebook takes less than a minute on two cores
STEADY = {  # the kernel's surroundings: no hub, and the same order of sums each time
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", "GLASS_THREADS": "2", "COLUMNS": "100",
    "PYTHONHASHSEED": "0",
}  # fmt: skip


def notebooks() -> list[Path]:
    """All of them, in reading order."""
    return sorted(HERE.glob("[0-9]-*.ipynb"))


def notebook_format() -> Any:
    """nbformat, which has no types."""
    return importlib.import_module("nbformat")


def rerun(path: Path, folder: Path) -> Any:
    """The notebook with the outputs of a fresh kernel that works in `folder`."""
    import matplotlib.font_manager  # noqa: F401  # lists the fonts, once, so that no kernel has to say that it does
    from nbclient import NotebookClient

    book = notebook_format().read(path, as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    os.environ.update(STEADY)
    NotebookClient(
        book,
        timeout=SECONDS,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    return tidy(book)


def tidy(book: Any) -> Any:
    """Without what changes from run to run and from machine to machine."""
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    book.nbformat, book.nbformat_minor = 4, 5
    for number, cell in enumerate(book.cells, start=1):
        cell.id = f"cell-{number:02}"
        cell.metadata = {name: value for name, value in cell.metadata.items() if name == "tags"}
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = {}
    return book


def main(chosen: list[str]) -> None:
    nbformat = notebook_format()
    for path in map(Path, chosen) if chosen else notebooks():
        with tempfile.TemporaryDirectory() as folder:
            book = rerun(path, Path(folder))
        nbformat.validate(book)
        path.write_text(nbformat.writes(book) + "\n", "utf-8")
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
