"""The tokenizer beside transformers': text to ids and back, in one run, the two taking turns.

    python bench/text.py [--rounds 15] [--only smollm2|minilm]

A ratio above 1 means that ours is faster. Both sides are given the same texts, and must give the same ids.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import glassformer
from common import report

SENTENCE = "The quick brown fox jumps over the lazy dog, and the dog – naïve as ever – doesn't mind at all in 2024. "
SHORT = "What is the capital of France?"
LONG = (SENTENCE * (100_000 // len(SENTENCE) + 1))[:100_000]
BATCH = [SENTENCE * (1 + number % 4) + f"This is sentence {number}." for number in range(512)]


def both(name: str) -> tuple[Any, Any]:
    """(ours, theirs), out of the same files."""
    import transformers

    ours = glassformer.AutoTokenizer.from_pretrained(name)
    ours.pad_token = ours.pad_token or ours.eos_token
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(Path(folder))
    return ours, theirs


def tasks(ours: Any) -> dict[str, tuple[Callable[[Any], Any], int]]:
    """What is measured, and how many times in a row."""
    ids = ours(LONG)["input_ids"][:1000]
    rows = [ids[at : at + 64] for at in range(512)]
    return {
        "one short text": (lambda one: one(SHORT)["input_ids"], 300),
        "one short text, torch": (lambda one: one(SHORT, return_tensors="pt")["input_ids"].tolist(), 300),
        "one text of 100 kB": (lambda one: one(LONG)["input_ids"], 1),
        "512 sentences, lists": (lambda one: one(BATCH)["input_ids"], 1),
        "512 sentences, padded, numpy": (lambda one: one(BATCH, padding=True, return_tensors="np")["input_ids"].tolist(), 1),
        "512 sentences, padded, torch": (lambda one: one(BATCH, padding=True, return_tensors="pt")["input_ids"].tolist(), 1),
        "512 sentences, cut to 32": (lambda one: one(BATCH, truncation=True, max_length=32)["input_ids"], 1),
        "512 sentences, windows of 32": (
            lambda one: one(BATCH, truncation=True, max_length=32, stride=8, return_overflowing_tokens=True)["input_ids"],
            1,
        ),
        "512 sentences, offsets": (lambda one: one(BATCH, return_offsets_mapping=True)["offset_mapping"], 1),
        "decode 1,000 ids": (lambda one: one.decode(ids), 30),
        "decode one id": (lambda one: one.decode(ids[0]), 300),
        "batch_decode 512 rows of 64": (lambda one: one.batch_decode(rows, skip_special_tokens=True), 1),
    }


def measure(name: str, rounds: int) -> list[dict[str, Any]]:
    ours, theirs = both(name)
    found = []
    for label, (task, times) in tasks(ours).items():
        same = task(ours) == task(theirs)
        taken: dict[str, list[float]] = {"ours": [], "theirs": []}
        for turn in range(rounds + 1):  # the first turn warms up
            for side, tokenizer in (("ours", ours), ("theirs", theirs))[:: 1 if turn % 2 else -1]:
                began = time.perf_counter()
                for _ in range(times):
                    task(tokenizer)
                if turn:
                    taken[side].append((time.perf_counter() - began) / times)
        mine, other = (statistics.median(taken[side]) * 1e3 for side in ("ours", "theirs"))
        found.append(
            {
                "model": name,
                "task": label,
                "milliseconds": f"{mine:.3f} / {other:.3f}",
                "ratio": round(other / mine, 2),
                "same": same,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=["smollm2", "minilm"])
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else ["smollm2", "minilm"]
    report("tokenizer, ours / transformers", [row for name in names for row in measure(name, arguments.rounds)])


if __name__ == "__main__":
    main()
