"""Looking inside SmolLM2-135M, beside TransformerLens and nnsight: what a researcher asks, and how long it takes.

    pip install --no-deps nnsight        (TransformerLens is there after `make setup`)
    python bench/looking.py [--rounds 3] [--tasks lens,heads] [--contestants "ours, packed;nnsight"]

Each contestant (`lookers.py`) is a process of its own, so that its memory is its own; they take turns, task by task, and the
first turn of each warms up (with `--rounds 0` it counts). Figures are medians in seconds; a ratio is the faster of the two
÷ ours on the packed file, and above 1 ours is faster. Of memory it is ours ÷ the smaller of the two. `must` and `aim` are
what we want to reach.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import report
from lookers import CONTESTANTS, float32_folder

TASKS: dict[str, tuple[str, float | None, float | None]] = {  # what it is called in the table, and what we want to reach
    "residuals": ("residuals of 100 texts to disk", 2, 4),
    "lens": ("lens of 64 tokens at all layers", 2, 5),
    "patterns": ("all patterns of 256 tokens", 2, 4),
    "heads": ("270 heads patched", 4, 8),
    "pairs": ("50 pairs patched, 30 blocks each", 6, 12),
    "attribution_patching": ("attribution patching of all heads", 3, 6),
    "steering": ("steering while generating 64 tokens", 8, 10),
    "own_function": ("an own function instead", 4, 8),
    "writing": ("generating 64 tokens", None, None),
    "watching": ("watching a residual while generating them", None, None),
}
OTHERS = ("TransformerLens", "nnsight")


class Contestant:
    """A process that answers tasks."""

    def __init__(self, name: str) -> None:
        self.name, self.memory, self.errors = name, 0.0, dict[str, str]()
        self.seconds: dict[str, list[float]] = {}
        started = time.perf_counter()
        command = [sys.executable, str(Path(__file__).with_name("lookers.py")), name]
        environment = {**os.environ, "OMP_NUM_THREADS": "2", "GLASS_THREADS": "2", "TRANSFORMERS_VERBOSITY": "error"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        ready = self._line()
        self.load = time.perf_counter() - started
        if ready != "ready":
            raise SystemExit(f"{name} did not start: is it installed?")

    def run(self, task: str, counts: bool) -> Any:
        assert self.process.stdin is not None
        print(task, file=self.process.stdin, flush=True)
        reply = json.loads(self._line())
        self.memory = reply["memory"]
        if reply["error"]:
            self.errors[task] = reply["error"]
        if reply["seconds"] is not None and counts:
            self.seconds.setdefault(task, []).append(reply["seconds"])
        return reply["answer"]

    def median(self, task: str) -> float | None:
        return statistics.median(self.seconds[task]) if task in self.seconds else None

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def row(
    what: str, values: dict[str, float | None], must: float | None, aim: float | None, memory: bool = False
) -> dict[str, Any]:
    """A line of the table."""
    ours, theirs = values.get("ours, packed"), [values[name] for name in OTHERS if values.get(name)]
    ratio = None
    if ours and theirs:
        best = min(value for value in theirs if value)
        ratio = round(ours / best if memory else best / ours, 2)
    figures = {name: None if value is None else round(value, 2) for name, value in values.items()}
    return {"what": what, **figures, "ratio": ratio, "must": must, "aim": aim}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--contestants", default=";".join(CONTESTANTS), help="separated by semicolons")
    arguments = parser.parse_args()
    float32_folder()
    contestants = [Contestant(name) for name in arguments.contestants.split(";")]
    rows = [row("load", {one.name: one.load for one in contestants}, None, None)]
    for task in arguments.tasks.split(","):
        for turn in range(arguments.rounds + 1):
            answers = {one.name: one.run(task, counts=turn > 0 or not arguments.rounds) for one in contestants}
        what, must, aim = TASKS[task]
        rows.append(row(what, {one.name: one.median(task) for one in contestants}, must, aim))
        print(f"{what}: {answers}"[:600], file=sys.stderr)
    for one in contestants:
        one.close()
        for task, error in one.errors.items():
            print(f"{one.name}, {TASKS[task][0]}: {error}", file=sys.stderr)
    rows.append(row("peak memory, GB", {one.name: one.memory for one in contestants}, 0.5, 0.33, memory=True))
    plain, watched = (contestants[0].median(task) for task in ("writing", "watching"))
    if plain and watched:
        rows.append({"what": "watching ÷ not watching", "ours, packed": round(watched / plain, 3), "must": 1.1})
    report("looking", rows)


if __name__ == "__main__":
    main()
