"""The plain executor beside transformers: decode and prefill, in one run, on SmolLM2 (float32) and Qwen3-0.6B's shape.

    python bench/plain.py [--rounds 5] [--only smollm2|qwen3]

A ratio above 1 means that ours is faster. Both sides run `generate`, greedy, on the same ids and weights.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import glassformer
from common import random_checkpoint, report
from glassformer.checkpoint.locate import locate


def both(folder: Path) -> tuple[Any, Any]:
    """(ours, theirs) of one folder."""
    import transformers

    ours = glassformer.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False).eval()
    assert ours.dtype == theirs.dtype
    return ours, theirs


class Clock:
    """A streamer that notes when each token comes: the prompt first, then one by one."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter() - self.began)

    def end(self) -> None: ...


def measure(name: str, folder: Path, prompt: int, new: int, count: int) -> dict[str, Any]:
    models = dict(zip(("ours", "theirs"), both(folder), strict=True))
    ids = torch.randint(10, models["ours"].config.vocab_size, (1, prompt), generator=torch.Generator().manual_seed(0))
    prefill: dict[str, list[float]] = {side: [] for side in models}
    decode: dict[str, list[float]] = {side: [] for side in models}
    results = {}
    for turn in range(count + 1):  # the first turn warms up
        for side, model in models.items():
            clock = Clock()
            results[side] = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=1 + new, streamer=clock,
                do_sample=False, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
            if turn:
                _, first, *_, last = clock.times
                prefill[side].append(prompt / first)
                decode[side].append(new / (last - first))
    rates = {what: {side: statistics.median(found) for side, found in table.items()}
             for what, table in (("decode", decode), ("prefill", prefill))}  # fmt: skip
    row: dict[str, Any] = {"model": name}
    for what, rate in rates.items():
        row[f"{what} tokens/s"] = f"{rate['ours']:.2f} / {rate['theirs']:.2f}"
        row[f"{what} ratio"] = round(rate["ours"] / rate["theirs"], 2)
    return {**row, "same ids": torch.equal(results["ours"], results["theirs"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["smollm2", "qwen3"])
    arguments = parser.parse_args()
    rows = []
    if arguments.only != "qwen3":
        with tempfile.TemporaryDirectory() as folder:
            glassformer.AutoModelForCausalLM.from_pretrained(locate("smollm2")).save_pretrained(folder)
            rows.append(measure("SmolLM2-135M float32", Path(folder), 256, 32, arguments.rounds))
    if arguments.only != "smollm2":
        from glassformer.torch.layers import has_fast_matmul

        fast = has_fast_matmul(torch.bfloat16)  # without the instructions the other side takes minutes for a prompt
        prompt, new, count = (256, 16, arguments.rounds) if fast else (8, 3, 1)
        rows.append(measure("Qwen3-0.6B shape bfloat16", random_checkpoint(), prompt, new, count))
    report("plain executor ÷ transformers", rows)


if __name__ == "__main__":
    main()
