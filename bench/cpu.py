"""The CPU engine beside llama.cpp's `llama-bench`: the same files, the same threads, in one run.

    python bench/cpu.py --threads 2,8,16 --llama-bench PATH [--ik-llama-bench PATH] [--shapes] [--only text kinds …]
    python bench/cpu.py --results run.json --chart docs/cpu.svg

Every figure is a process of its own: `llama-bench` for llama.cpp and its fork ik_llama.cpp, `glass_bench.py`, which times
text to text, for ours. They take turns, round by round; figures are medians, in tokens per second, and a ratio above 1
means that ours is faster. Ours runs three times: with its default of fourteen bits for activations, with mixed ones, and
with q8, which is how llama.cpp rounds. The rivals run with whatever makes them fastest: before the rounds each test is tried
with and without flash attention, mmap (llama.cpp) and repacking (ik_llama.cpp). One that is not installed is left out.

    text       SmolLM2 Q4_1: prefill, decode, decode after a long context
    kinds      Qwen3-0.6B's shape in several kinds: prefill and decode
    bandwidth  what share of the measured read bandwidth decoding reaches: tokens/s times the file's bytes
    rows       8 and 16 rows decoded together ÷ 1 row
    encoders   sentence embeddings beside transformers, onnxruntime and openvino (`encoders.py`)
    start      `glass run` from the command line to its first text

`--shapes` takes files of the same shapes with random weights instead of the real SmolLM2 and MiniLM (`shapes.py`), for a
machine without them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import encoders
import shapes
from common import report
from glassformer.checkpoint.locate import locate
from read_bandwidth import read_bandwidth

Measurement: TypeAlias = Callable[[], float]
Row: TypeAlias = dict[str, Any]

HERE = Path(__file__).parent
X86 = platform.machine().lower() in ("x86_64", "amd64")
OURS, LLAMA, IK_LLAMA = "ours", "llama.cpp", "ik_llama.cpp"
COARSER = ("mixed", "q8")  # activations
ROWS = (1, 8, 16)
ROW_STEPS = 48
QUESTION = "What is the capital of France?"
FIRST_TEXT_GOAL = 0.6  # seconds
ANY = 0  # any number of threads
NEVER_SLOWER = {ANY: (1.0, 1.0)}
KIND_DECODE = {ANY: (1.2, 1.5)} if X86 else NEVER_SLOWER
GOALS: Mapping[str, Mapping[int, tuple[float, float]]] = {  # by threads: what the engine must reach, and aims at
    "SmolLM2 Q4_1, decode": {2: (1.2, 1.8), 8: (1.7, 2.5), 16: (2.0, 3.5)} if X86 else {ANY: (1.7, 2.2)},
    "SmolLM2 Q4_1, prefill of 512": {ANY: (1.3, 2.5) if X86 else (2.4, 3.0)},
    "SmolLM2 Q4_1, decode after 4,000": {ANY: (2.0, 2.0)},
    **{f"Qwen3-0.6B {kind}, decode": KIND_DECODE for kind in ("Q4_K", "Q8_0", "BF16")},
    **{f"Qwen3-0.6B {kind}, decode": NEVER_SLOWER for kind in ("Q4_0", "Q6_K")},
    **{f"Qwen3-0.6B {kind}, prefill of 512": NEVER_SLOWER for kind in shapes.KINDS},
    "Qwen3-0.6B BF16, share of the read bandwidth": {8: (0.65, 0.85)},
    "SmolLM2 Q4_1, 8 rows ÷ 1 row": {ANY: (3.0, 5.0)},
    "SmolLM2 Q4_1, 16 rows ÷ 1 row": {ANY: (5.0, 5.0)},
}


@dataclass(frozen=True)
class Test:
    """What is timed: the prefill of a prompt, or the decoding of new tokens after so many (`depth`)."""

    prompt: int = 0
    new: int = 0
    depth: int = 0

    def __str__(self) -> str:
        if self.prompt:
            return f"prefill of {self.prompt:,}"
        return f"decode after {self.depth:,}" if self.depth else "decode"

    @property
    def options(self) -> list[str]:
        return ["-p", str(self.prompt), "-n", str(self.new), *(["-d", str(self.depth)] if self.depth else [])]

    @property
    def ik_options(self) -> list[str]:
        """The fork has another option for a depth."""
        return ["-p", "0", "-n", "0", "-gp", f"{self.depth},{self.new}"] if self.depth else self.options


@dataclass(frozen=True)
class Model:
    name: str
    path: Path


def output_of(command: Sequence[str]) -> Any:
    """The JSON that a command prints."""
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"{shlex.join(command)} failed ({finished.returncode}):\n{finished.stderr}")
    return json.loads(finished.stdout)


def tokens_per_second(command: Sequence[str]) -> float:
    (result,) = output_of(command)
    return float(result["avg_ts"])


def glass_bench(model: Model, threads: int, options: Sequence[str], activations: str = "q14") -> float:
    fixed = ["-m", str(model.path), "-t", str(threads), "--activations", activations]
    return tokens_per_second([sys.executable, str(HERE / "glass_bench.py"), *fixed, *options])


def llama_bench(
    binary: str, variants: Sequence[Sequence[str]], model: Model, threads: int, options: Sequence[str]
) -> Measurement:
    """A test of llama.cpp with the fastest of the variants, each of which is tried first."""
    command = [binary, "-m", str(model.path), "-t", str(threads), "-ngl", "0", "-r", "1", "-o", "json", *options]
    fastest = max(variants, key=lambda variant: tokens_per_second([*command, *variant]))
    return partial(tokens_per_second, [*command, *fastest])


def race(contestants: Mapping[str, Measurement], rounds: int) -> dict[str, float]:
    """Medians of rounds in which all take turns."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, measure in contestants.items():
            rates[name].append(measure())
    return {name: statistics.median(measured) for name, measured in rates.items()}


def with_goals(row: Row, threads: int) -> Row:
    """A row whose ratio is marked with what it must reach, what it aims at, and which of them it reaches."""
    goals = GOALS.get(row["what"], {})
    goal = goals.get(threads, goals.get(ANY))
    if goal is None or "ratio" not in row:
        return row
    must, aim = goal
    mark = "aim reached" if row["ratio"] >= aim else "must reached" if row["ratio"] >= must else "MISSED"
    return {**row, "must": must, "aim": aim, "": mark}


@dataclass(frozen=True)
class Bench:
    rounds: int
    threads: Sequence[int]
    shapes: bool  # random weights instead of the real models
    kinds: Sequence[str]
    prefill: int
    decode: int
    depth: int
    rivals: Mapping[str, str]  # the binaries of llama-bench by name

    @property
    def smollm2(self) -> Model:
        return Model("SmolLM2 Q4_1", shapes.smollm2() if self.shapes else locate("smollm2"))

    @property
    def minilm(self) -> Path:
        return shapes.minilm() if self.shapes else locate("minilm")

    def text(self) -> Iterator[Row]:
        for threads in self.threads:
            for test in (Test(self.prefill), Test(new=self.decode), Test(new=self.decode // 4, depth=self.depth)):
                yield self._beside_rivals(self.smollm2, threads, test)

    def qwen3(self) -> Iterator[Row]:
        for kind in self.kinds:
            model = Model(f"Qwen3-0.6B {kind}", shapes.random_gguf(kind))
            for threads in self.threads:
                for test in (Test(self.prefill), Test(new=self.decode)):
                    yield self._beside_rivals(model, threads, test)

    def _beside_rivals(self, model: Model, threads: int, test: Test) -> Row:
        contestants: dict[str, Measurement] = {OURS: partial(glass_bench, model, threads, test.options)}
        if "BF16" not in model.name:  # whose activations are not rounded
            for activations in COARSER:
                contestants[f"{OURS} {activations}"] = partial(glass_bench, model, threads, test.options, activations)
        if (binary := self.rivals.get(LLAMA)) is not None:
            variants = [["-fa", flash, "-mmp", mmap] for flash, mmap in product("01", "01")]
            contestants[LLAMA] = llama_bench(binary, variants, model, threads, test.options)
        if (binary := self.rivals.get(IK_LLAMA)) is not None:
            variants = [["-fa", flash, "-rtr", repack] for flash, repack in product("01", "01")]
            contestants[IK_LLAMA] = llama_bench(binary, variants, model, threads, test.ik_options)
        rates = race(contestants, self.rounds)
        row: Row = {"what": f"{model.name}, {test}", "threads": threads, **rounded(rates)}
        if LLAMA in rates:
            row |= {"ratio": round(rates[OURS] / rates[LLAMA], 2)}
            coarser = {activations: rates[name] for activations in COARSER if (name := f"{OURS} {activations}") in rates}
            row |= {f"{activations} ratio": round(rate / rates[LLAMA], 2) for activations, rate in coarser.items()}
        if IK_LLAMA in rates:
            row |= {f"÷ {IK_LLAMA}": round(rates[OURS] / rates[IK_LLAMA], 2)}
        return with_goals(row, threads)

    def bandwidth(self) -> Iterator[Row]:
        for model in (self.smollm2, Model("Qwen3-0.6B BF16", shapes.random_gguf("BF16"))):
            size = model.path.stat().st_size
            for threads in self.threads:
                decode = partial(glass_bench, model, threads, Test(new=self.decode).options)
                rates = race({OURS: decode, "GB/s": partial(read_bandwidth, size, threads)}, self.rounds)
                limit = rates["GB/s"] * 1e9 / size
                row = {"what": f"{model.name}, share of the read bandwidth", "threads": threads, **rounded(rates)}
                yield with_goals({**row, "limit": round(limit, 1), "ratio": round(rates[OURS] / limit, 2)}, threads)

    def rows(self) -> Iterator[Row]:
        for threads in self.threads:
            options = {rows: ["-n", str(ROW_STEPS), "--rows", str(rows)] for rows in ROWS}
            contestants = {
                f"{rows}{suffix}": partial(glass_bench, self.smollm2, threads, options[rows], activations)
                for rows in ROWS
                for suffix, activations in (("", "q14"), (" mixed", "mixed"), (" q8", "q8"))
            }
            rates = race(contestants, self.rounds)
            for rows in ROWS[1:]:
                row = {"what": f"{self.smollm2.name}, {rows} rows ÷ 1 row", "threads": threads}
                row |= {OURS: round(rates[f"{rows}"], 1), "1 row": round(rates["1"], 1)}
                row |= {"ratio": round(rates[f"{rows}"] / rates["1"], 2)}
                for activations in COARSER:
                    ratio = rates[f"{rows} {activations}"] / rates[f"1 {activations}"]
                    row |= {f"{activations} ratio": round(ratio, 2)}
                yield with_goals(row, threads)

    def encoders(self) -> Iterator[Row]:
        for threads in self.threads:
            similarities: dict[str, float] = {}  # of two texts by each engine, which must be the same
            embed = partial(self._texts_per_second, threads, similarities)
            rates = race({name: partial(embed, name) for name in encoders.installed()}, self.rounds)
            row: Row = {"what": "MiniLM, 300 texts, texts/s", "threads": threads, **rounded(rates)}
            row |= {f"÷ {name}": round(rates[OURS] / rate, 2) for name, rate in rates.items() if name != OURS}
            yield row | {"similarities apart": f"{max(similarities.values()) - min(similarities.values()):.0e}"}

    def _texts_per_second(self, threads: int, similarities: dict[str, float], engine: str) -> float:
        options = ["-m", str(self.minilm), "-e", engine, "-t", str(threads)]
        result = output_of([sys.executable, str(HERE / "encoders.py"), *options])
        similarities[engine] = result["similarity"]
        return float(result["texts/s"])

    def start(self) -> Iterator[Row]:
        """`glass run`: seconds to the first text, and memory beside the model's file."""
        path = self.smollm2.path
        glass_run = [sys.executable, "-m", "glassformer", "run", QUESTION, "-m", str(path), "-n", "16"]
        command = [sys.executable, "-c", FIRST_TEXT, *glass_run]
        output_of(command)  # the first start reads more files
        first, peak = map(statistics.median, zip(*(output_of(command) for _ in range(self.rounds)), strict=True))
        memory = round((peak - path.stat().st_size) / 1e6)
        row: Row = {"what": "glass run, second start", "seconds to the first text": round(first, 2)}
        yield row | {"at most": FIRST_TEXT_GOAL, "MB beside the file": memory}


def rounded(rates: Mapping[str, float]) -> dict[str, float]:
    return {name: round(rate, 1) for name, rate in rates.items()}


FIRST_TEXT = """
import json, os, subprocess, sys, time
began = time.perf_counter()
with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
    process.stdout.read(1)
    first = time.perf_counter() - began
    process.stdout.read()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
print(json.dumps([first, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)]))
"""  # in a process of its own, for a child's peak begins with what its parent holds

PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "text": Bench.text, "kinds": Bench.qwen3, "bandwidth": Bench.bandwidth, "rows": Bench.rows,
    "encoders": Bench.encoders, "start": Bench.start,
}  # fmt: skip


def chart(rows: Sequence[Row], path: Path) -> None:
    """The ratios as bars, those of coarser activations in lighter colours, with what must be reached as a mark on each."""
    from matplotlib import pyplot as plt

    bars = []
    for row in rows:
        if "must" in row:
            rival = "" if "÷" in row["what"] or "share" in row["what"] else f" ÷ {LLAMA}"
            label = f"{row['what']}{rival}, {row['threads']} threads"
            bars.append((label, row["ratio"], row["must"], "#4878a8"))
            for activations, colour in (("mixed", "#7198be"), ("q8", "#9ab8d4")):
                if f"{activations} ratio" in row:
                    bars.append((f"{label}, {activations} activations", row[f"{activations} ratio"], row["must"], colour))
    figure, axes = plt.subplots(figsize=(9, 0.4 * len(bars) + 1))
    for number, (_, ratio, must, colour) in enumerate(bars[::-1]):
        axes.barh(number, ratio, color=colour)
        axes.plot([must] * 2, [number - 0.4, number + 0.4], color="#c44e52", linewidth=2)
        near = ratio <= must < ratio + 0.8  # the mark would lie on the number
        axes.text(must if near else ratio, number, f" {ratio:g}", va="center")
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars[::-1]])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("ratio (red: must be reached)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight")


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def measure(options: argparse.Namespace) -> list[Row]:
    rivals = {}
    for name, default, path in (
        (LLAMA, "llama-bench", options.llama_bench),
        (IK_LLAMA, "ik-llama-bench", options.ik_llama_bench),
    ):
        if (binary := shutil.which(path or default)) is not None:
            rivals[name] = binary
        elif path is not None:
            raise SystemExit(f"{path} is no program that can be run")
    bench = Bench(
        options.rounds, options.threads, options.shapes, options.kinds,
        options.prefill, options.decode, options.depth, rivals,
    )  # fmt: skip
    if (load := os.getloadavg()[0]) > (os.cpu_count() or 1) / 4:
        print(
            f"warning: the load is {load:.1f}; threads that wait for each other suffer most, so ratios are wrong",
            file=sys.stderr,
        )
    rows: list[Row] = []
    for part in options.only:
        for row in PARTS[part](bench):
            print("  ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=numbers, default=[os.cpu_count() or 1], help="such as 2,8,16")
    parser.add_argument("--llama-bench", help="llama.cpp's; by default llama-bench from the PATH")
    parser.add_argument("--ik-llama-bench", help="ik_llama.cpp's; by default ik-llama-bench from the PATH")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--kinds", nargs="+", default=shapes.KINDS)
    parser.add_argument("--prefill", type=int, default=512, help="tokens of a timed prompt")
    parser.add_argument("--decode", type=int, default=128, help="tokens that are decoded; a quarter after a long context")
    parser.add_argument("--depth", type=int, default=4000, help="tokens of the long context")
    parser.add_argument("--shapes", action="store_true", help="random weights instead of the real models")
    parser.add_argument("--chart", type=Path, help="draw the ratios into this file")
    parser.add_argument("--results", type=Path, help="the JSON of an earlier run, for a chart without measuring")
    options = parser.parse_args()
    rows: list[Row]
    if options.results is not None:
        rows = json.loads(options.results.read_text("utf-8"))["rows"]
    else:
        rows = measure(options)
        report("the CPU engine", rows)
    if options.chart is not None:
        chart(rows, options.chart)


if __name__ == "__main__":
    main()
