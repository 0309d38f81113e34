"""The plain executor beside transformers: decode and prefill, in one run, on SmolLM2 (float32) and Qwen3-0.6B's shape.

    python bench/plain.py [--rounds 5] [--only smollm2|qwen3]

A ratio above 1 means that ours is faster. Both sides run `generate`, greedy, on the same ids and weights.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

import glassformer
from common import random_checkpoint, report, rounds
from glassformer.checkpoint.locate import locate


def both(folder: Path) -> tuple[Any, Any]:
    """(ours, theirs) of one folder."""
    import transformers

    ours = glassformer.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False).eval()
    assert ours.dtype == theirs.dtype
    return ours, theirs


def measure(name: str, folder: Path, prompt: int, new: int, count: int) -> dict[str, Any]:
    ours, theirs = both(folder)
    ids = torch.randint(10, ours.config.vocab_size, (1, prompt), generator=torch.Generator().manual_seed(0))
    short = ids[:, :8]
    settings: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def run(model: Any, ids: torch.Tensor, tokens: int) -> Any:
        return lambda: model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **settings)

    times = rounds(
        {
            "prefill ours": run(ours, ids, 1),
            "prefill theirs": run(theirs, ids, 1),
            "first ours": run(ours, short, 1),
            "first theirs": run(theirs, short, 1),
            "whole ours": run(ours, short, 1 + new),
            "whole theirs": run(theirs, short, 1 + new),
        },
        count,
    )
    decode = {side: new / (times[f"whole {side}"] - times[f"first {side}"]) for side in ("ours", "theirs")}
    prefill = {side: prompt / times[f"prefill {side}"] for side in ("ours", "theirs")}
    return {
        "model": name,
        "decode tokens/s": f"{decode['ours']:.2f} / {decode['theirs']:.2f}",
        "decode ratio": round(decode["ours"] / decode["theirs"], 2),
        "prefill tokens/s": f"{prefill['ours']:.1f} / {prefill['theirs']:.1f}",
        "prefill ratio": round(prefill["ours"] / prefill["theirs"], 2),
        "same ids": run(ours, short, new)().tolist() == run(theirs, short, new)().tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["smollm2", "qwen3"])
    asked = parser.parse_args()
    rows = []
    if asked.only != "qwen3":
        with tempfile.TemporaryDirectory() as folder:
            glassformer.AutoModelForCausalLM.from_pretrained(locate("smollm2")).save_pretrained(folder)
            rows.append(measure("SmolLM2-135M float32", Path(folder), 256, 32, asked.rounds))
    if asked.only != "smollm2":
        from glassformer.layers.linear import multiplies_well

        fast = multiplies_well(torch.bfloat16)  # without the instructions the other side takes minutes for a prompt
        prompt, new, count = (256, 16, asked.rounds) if fast else (16, 2, 1)
        rows.append(measure("Qwen3-0.6B shape bfloat16", random_checkpoint(), prompt, new, count))
    report("plain executor ÷ transformers", rows)


if __name__ == "__main__":
    main()
