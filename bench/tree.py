"""The decision tree after a prompt of 512 tokens on SmolLM2, beside transformers, which runs path after path.

    python bench/tree.py [--rounds 2] [--width 3] [--depth 6] [--plain]

For each node that is scored, transformers runs the tokens of its path after the prompt's cache, which it has read once, and
which is cut back to the prompt afterwards (faster than a copy of it). Both sides read the same file, transformers with its
weights expanded to float32, and take turns. "After the prompt" is the time from the prompt's end on. A ratio above 1 means
that ours is faster. The nodes that both found are compared: the weights are the same, but for ours they stay packed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import glassformer
from common import report
from glassformer.checkpoint.locate import locate
from glassformer.see.tree import Tree, walk

PROMPT = 512
THREADS = 2
TALE = "The keeper of the lighthouse told me how the storm came in that night, first the wind and then the rain. "
os.environ.setdefault("GLASS_THREADS", str(THREADS))


def text_of(path: Path, tokens: int) -> str:
    """A tale of so many tokens."""
    tokenizer = glassformer.AutoTokenizer.from_pretrained(path)
    return str(tokenizer.decode(tokenizer(TALE * (tokens // 10 + 1))["input_ids"][:tokens]))


class Ours:
    def __init__(self, executor: str, dtype: str | None = None) -> None:
        self.model = glassformer.load("smollm2", executor=executor, dtype=dtype)
        self.tree: Tree | None = None

    def grow(self, prompt: str, width: int, depth: int) -> tuple[float, float]:
        """Seconds in all, and from the prompt's end on."""
        ends: list[float] = []
        began = time.perf_counter()
        self.tree = self.model.tree(
            prompt, raw=True, width=width, depth=depth, progress=lambda *_: ends.append(time.perf_counter())
        )
        return time.perf_counter() - began, time.perf_counter() - ends[0]

    def scored(self) -> int:
        """Nodes that something follows; of a whole tree of width 3 and depth 6 there are 364, and fewer where texts end."""
        assert self.tree is not None
        return sum(bool(node.children) for _, node in walk(self.tree.root))

    def paths(self) -> list[tuple[int, ...]]:
        assert self.tree is not None
        return [self.tree.path(at).ids for at, node in walk(self.tree.root) if at and not node.children]


class Transformers:
    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM

        path = locate("smollm2")
        self.tokenizer = glassformer.AutoTokenizer.from_pretrained(path)
        with tempfile.TemporaryDirectory() as folder:
            glassformer.AutoModelForCausalLM.from_pretrained(path).save_pretrained(folder)
            self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.ends = glassformer.load(path).settings.eos
        self.leaves: list[tuple[int, ...]] = []

    @torch.inference_mode()
    def grow(self, prompt: str, width: int, depth: int) -> tuple[float, float]:
        began = time.perf_counter()
        ids = self.tokenizer(prompt)["input_ids"]
        found = self.model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        cache, after = found.past_key_values, time.perf_counter()
        level: list[tuple[int, ...]] = [()]
        self.leaves = []
        for number in range(depth):
            below = []
            for path in level:
                if path:
                    found = self.model(torch.tensor([path]), past_key_values=cache, use_cache=True, logits_to_keep=1)
                    cache.crop(-len(path))
                best = found.logits[0, -1].softmax(-1).topk(width)
                for token in best.indices.tolist():
                    ended = token in self.ends or number == depth - 1
                    (self.leaves if ended else below).append((*path, token))
            level = below
        return time.perf_counter() - began, time.perf_counter() - after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--plain", action="store_true", help="ours with PyTorch in float32 too")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    prompt = text_of(locate("smollm2"), PROMPT)
    sides: dict[str, Any] = {"ours": Ours("cpu"), "transformers float32": Transformers()}
    if arguments.plain:
        sides["ours, plain float32"] = Ours("plain", "float32")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for side in sides.values():
        side.grow(prompt, 2, 2)  # warms up
    for _ in range(arguments.rounds):
        for name, side in sides.items():
            times[name].append(side.grow(prompt, arguments.width, arguments.depth))
    scored = sides["ours"].scored()
    rows: list[dict[str, Any]] = [
        {"who": name, "scored nodes": scored, "seconds": round(statistics.median(one[0] for one in found), 2),
         "after the prompt": round(statistics.median(one[1] for one in found), 2)}
        for name, found in times.items()
    ]  # fmt: skip
    theirs = rows[1]
    for row in rows:
        if row is not theirs:
            row["ratio"] = round(theirs["seconds"] / row["seconds"], 1)
            row["ratio after the prompt"] = round(theirs["after the prompt"] / row["after the prompt"], 1)
            own = set(sides[row["who"]].paths())
            row["same paths"] = f"{len(own & set(sides[theirs['who']].leaves)) / len(own):.0%}"
    report("a tree ÷ transformers", rows)


if __name__ == "__main__":
    main()
