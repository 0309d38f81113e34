"""The CPU engine beside llama.cpp and transformers: the same GGUF files, the same threads, in one run.

    pip install llama-cpp-python        (built from source, as its makers have it for this processor)
    python bench/cpu.py [--rounds 5] [--only smollm2 qwen3 rows watched start] [--chart docs/cpu.svg]

Everybody streams text through the public face, greedy, and all take turns, round by round; figures are medians. A prompt's
rate is its tokens by the time to the first token; the rate of writing is what the tokens after the first take. A ratio
above 1 means that ours is faster. Ours runs twice: as it is, and with activations in q8, which is how llama.cpp rounds too.
Without llama.cpp its columns are left out.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

THREADS = 2
os.environ.setdefault("GLASS_THREADS", str(THREADS))

import glassformer  # noqa: E402
from common import report  # noqa: E402
from glassformer.checkpoint.locate import locate  # noqa: E402
from glassformer.engine.protocol import Feed  # noqa: E402
from glassformer.sites import Watch  # noqa: E402
from shapes import random_gguf  # noqa: E402

NEW = 64  # tokens that are timed after the first
MUST = {  # what the engine was built to reach, and what was hoped for
    "SmolLM2 Q4_1, writing ÷ llama.cpp": (1.5, 2.5),
    "SmolLM2 Q4_1, writing ÷ transformers float32": (6.0, 10.0),
    "SmolLM2 Q4_1, prompt of 512 ÷ llama.cpp": (3.0, 8.0),
    "SmolLM2 Q4_1, writing after 4,000 tokens ÷ llama.cpp": (1.0, 1.5),
    "Qwen3-0.6B's shape BF16, writing ÷ llama.cpp": (1.0, 1.2),
    "Qwen3-0.6B's shape Q8_0, writing ÷ llama.cpp": (1.1, 1.5),
    "Qwen3-0.6B's shape Q4_K, writing ÷ llama.cpp": (1.1, 1.5),
    "8 rows ÷ one row, tokens/s": (3.0, 5.0),
    "watched ÷ unwatched": (0.85, 0.95),
}
Q8 = ", activations in q8"
OURS = ("ours", f"ours{Q8}")
TALE = "The keeper of the lighthouse told me how the storm came in that night: first the wind, then the rain, and then "

Write = Callable[[str, int], None]  # a prompt, and how many tokens to write after it


def ours(path: Path) -> dict[str, Write]:
    return {name: writer(path, activations) for name, activations in zip(OURS, ("q14", "q8"), strict=True)}


def writer(path: Path, activations: str) -> Write:
    model = glassformer.load(path, executor="cpu", activations=activations)
    logging.getLogger("glassformer").setLevel(logging.ERROR)  # what is written does not matter here

    def write(prompt: str, new: int) -> None:
        for _ in model.stream(prompt, raw=True, max_new_tokens=new, do_sample=False):
            pass

    return write


def llama(path: Path) -> Write | None:
    try:
        from llama_cpp import Llama
    except ImportError:
        return None
    model = Llama(str(path), n_ctx=5120, n_threads=THREADS, n_threads_batch=THREADS, n_batch=512, verbose=False)

    def write(prompt: str, new: int) -> None:
        model.reset()  # else it would remember the prompt of the last round
        for _ in model.create_completion(prompt, max_tokens=new, temperature=0.0, stream=True):
            pass

    return write


def transformers(path: Path) -> Write:
    """The same model with its weights expanded to float32, as transformers reads them."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    tokenizer = glassformer.AutoTokenizer.from_pretrained(path)
    with tempfile.TemporaryDirectory() as folder:
        glassformer.AutoModelForCausalLM.from_pretrained(path).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def write(prompt: str, new: int) -> None:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, pad_token_id=0)

    return write


def seconds(write: Write, prompt: str, new: int) -> float:
    began = time.perf_counter()
    write(prompt, new)
    return time.perf_counter() - began


def race(
    writers: Mapping[str, Write | None], prompt: str, new: int, rounds: int, warm: bool = True
) -> dict[str, tuple[float, float]]:
    """Seconds to the first token, and for each one after it: medians of rounds in which all take turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, write in writers.items() if write}
    for turn in range(rounds + warm):
        for name, found in times.items():
            write = writers[name]
            assert write is not None
            first = seconds(write, prompt, 1)
            whole = seconds(write, prompt, 1 + new)
            if turn or not warm:  # the first turn warms up
                found.append((first, (whole - first) / new))
    return {
        name: (statistics.median(one[0] for one in found), statistics.median(one[1] for one in found))
        for name, found in times.items()
    }


def text_of(path: Path, tokens: int) -> str:
    """A tale of so many tokens."""
    tokenizer = glassformer.AutoTokenizer.from_pretrained(path)
    ids = tokenizer(TALE * (tokens // 10 + 1))["input_ids"][:tokens]
    return str(tokenizer.decode(ids))


def ratios(found: Mapping[str, tuple[float, float]], which: int, what: str) -> list[dict[str, Any]]:
    return [
        {"what": f"{what} ÷ {name}{how.removeprefix('ours')}", "ratio": round(taken[which] / found[how][which], 2)}
        for how in OURS
        for name, taken in found.items()
        if how in found and name not in OURS
    ]


def rates(what: str, found: Mapping[str, tuple[float, float]], tokens: int) -> list[dict[str, Any]]:
    rows = []
    for name, (first, each) in found.items():
        rows.append({"what": what, "who": name, "prompt tokens/s": round(tokens / first, 1), "tokens/s": round(1 / each, 1)})
    return rows


def smollm2(rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    path = locate("smollm2")
    both = {**ours(path), "llama.cpp": llama(path)}
    short = race({**both, "transformers float32": transformers(path)}, TALE, NEW, rounds)
    prompt = race(both, text_of(path, 512), 16, rounds)
    long = race(both, text_of(path, 4000), 32, 1, warm=False)  # a minute and a half
    name = "SmolLM2 Q4_1"
    told = (
        rates(f"{name}, 26 tokens", short, 26)
        + rates(f"{name}, 512 tokens", prompt, 512)
        + rates(f"{name}, 4,000", long, 4000)
    )
    found = ratios(short, 1, f"{name}, writing") + ratios(prompt, 0, f"{name}, prompt of 512")
    return told, found + ratios(long, 1, f"{name}, writing after 4,000 tokens")


def qwen3(rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    told, found = [], []
    for kind in ("BF16", "Q8_0", "Q4_K"):
        path = random_gguf(kind)
        slow = kind == "BF16"  # without the instructions the other side takes a second for a token
        prompt, new, turns = (8, 6, 1) if slow else (64, 24, max(2, rounds // 2))
        mine = {OURS[0]: writer(path, "q14")} if slow else ours(path)  # floats are not rounded
        taken = race({**mine, "llama.cpp": llama(path)}, text_of(path, prompt), new, turns)
        told += rates(f"Qwen3-0.6B's shape {kind}, {prompt} tokens", taken, prompt)
        found += ratios(taken, 1, f"Qwen3-0.6B's shape {kind}, writing")
    return told, found


def per_step(executor: Any, step: Callable[[], Any], count: int = 48) -> float:
    began = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - began) / count


def rows_at_once(rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    fine, coarse = (rows_with(activations, rounds) for activations in ("q14", "q8"))
    told, found = [], []
    for how, (one, eight) in {"": fine, Q8: coarse}.items():
        told.append({"what": f"SmolLM2 Q4_1, one row and eight{how}", "tokens/s": round(one, 1), "eight": round(eight, 1)})
        found.append({"what": f"8 rows ÷ one row, tokens/s{how}", "ratio": round(eight / one, 2)})
    return told, found


def rows_with(activations: str, rounds: int) -> tuple[float, float]:
    """Tokens a second of one row, and of eight together."""
    executor = glassformer.load("smollm2", executor="cpu", activations=activations).executor
    rows = [executor.open() for _ in range(9)]
    executor.run([Feed(row, list(range(100, 120 + number))) for number, row in enumerate(rows)])

    def step(some: list[Any]) -> None:
        for scores in executor.run([Feed(row, [9]) for row in some]):
            scores.host().argmax()

    times: dict[int, list[float]] = {1: [], 8: []}
    for _ in range(rounds):
        for count, found in times.items():
            found.append(per_step(executor, lambda some=rows[9 - count :]: step(some)))
    one, eight = (statistics.median(found) for found in times.values())
    return 1 / one, 8 / eight


def watched(rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    executor = glassformer.load("smollm2", executor="cpu").executor
    rows = [executor.open() for _ in range(2)]
    executor.run([Feed(row, list(range(100, 200))) for row in rows])
    watch = Watch(frozenset({"blocks.3.attention.pattern"}))

    def plain() -> None:
        executor.run([Feed(rows[0], [9])])[0].host().argmax()

    def seen() -> None:
        (scores,) = executor.run([Feed(rows[1], [9], watch=watch)])
        scores.top(10)
        assert scores.sites["blocks.3.attention.pattern"].shape[1] == 9

    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(2 * rounds):
        for step, found in zip((plain, seen), times, strict=True):
            found.append(per_step(executor, step))
    alone, looked = map(statistics.median, times)
    told = [
        {
            "what": "ten candidates and one layer's attention",
            "tokens/s": round(1 / looked, 1),
            "unwatched": round(1 / alone, 1),
        }
    ]
    return told, [{"what": "watched ÷ unwatched", "ratio": round(alone / looked, 2)}]


MEASURE = """
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


def start(rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """`glass run` from the command line: seconds to the first text, and memory beside the model's file."""
    size = locate("smollm2").stat().st_size
    command = [str(Path(sys.executable).with_name("glass")), "run", "What is the capital of France?"]
    found = []
    for turn in range(rounds + 1):
        measured = subprocess.run([sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=True)
        if turn:
            found.append(json.loads(measured.stdout))
    first, peak = (statistics.median(column) for column in zip(*found, strict=True))
    return [{
        "what": "glass run, second start", "seconds to the first text": round(first, 2),
        "MB beside the file": round((peak - size) / 1e6),
    }], []  # fmt: skip


PARTS: dict[str, Callable[[int], tuple[list[dict[str, Any]], list[dict[str, Any]]]]] = {
    "smollm2": smollm2, "qwen3": qwen3, "rows": rows_at_once, "watched": watched, "start": start,
}  # fmt: skip


def chart(found: list[dict[str, Any]], path: Path) -> None:
    """The ratios as bars, with what was to be reached as a mark on each."""
    from matplotlib import pyplot as plt

    order = list(MUST)[::-1]
    rows = sorted((row for row in found[::-1] if "must" in row), key=lambda row: order.index(row["what"].removesuffix(Q8)))
    figure, axes = plt.subplots(figsize=(9, 0.4 * len(rows) + 1))
    colours = ["#9ab8d4" if row["what"].endswith(Q8) else "#4878a8" for row in rows]
    axes.barh([row["what"] for row in rows], [row["ratio"] for row in rows], color=colours)
    for number, row in enumerate(rows):
        axes.plot([row["must"]] * 2, [number - 0.4, number + 0.4], color="#c44e52", linewidth=2)
        near = row["ratio"] <= row["must"] < row["ratio"] + 0.8  # the mark would lie on the number
        axes.text(row["must"] if near else row["ratio"], number, f" {row['ratio']:g}", va="center")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as fast (red: what was to be reached)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--chart", type=Path)
    arguments = parser.parse_args()
    told: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for part in arguments.only:
        more, reached = PARTS[part](arguments.rounds)
        told, found = told + more, found + reached
    for row in found:
        if (what := row["what"].removesuffix(Q8)) in MUST:
            row["must"], row["aim"] = MUST[what]
    report("the CPU engine", told + found)
    if arguments.chart:
        chart(found, arguments.chart)


if __name__ == "__main__":
    main()
