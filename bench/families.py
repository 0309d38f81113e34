"""The families beside transformers: an encoder's batch, GPT-2's tokens, T5's and BART's targets, in one run.

    python bench/families.py [--rounds 5]

A ratio above 1 means that ours is faster. Both sides have the same weights and ids; MiniLM's are real, the others random
in the true shape.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import glassformer
from common import BART_BASE, GPT2, T5_SMALL, race, random_checkpoint, report
from glassformer.checkpoint.locate import locate


def both(folder: Path, name: str) -> tuple[Any, Any]:
    import transformers

    ours = getattr(glassformer, name).from_pretrained(folder).requires_grad_(False)
    return ours, getattr(transformers, name).from_pretrained(folder).requires_grad_(False).eval()


def encode(rounds: int) -> dict[str, Any]:
    ours, theirs = both(locate("minilm"), "AutoModel")
    ids = torch.randint(1000, 20000, (16, 48), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    for number in range(16):
        mask[number, 48 - number :] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    found = race(lambda: ours(**inputs), lambda: theirs(**inputs), rounds)
    real = mask.bool()
    apart = (ours(**inputs).last_hidden_state[real] - theirs(**inputs).last_hidden_state[real]).abs().max()
    return row("MiniLM, 16 texts of up to 48 tokens", int(mask.sum()), found, f"{float(apart):.0e} apart")


def write(title: str, shape: dict[str, Any], name: str, prompt: int, new: int, rounds: int) -> dict[str, Any]:
    ours, theirs = both(random_checkpoint(shape), name)
    ids = torch.randint(10, 30000, (1, prompt), generator=torch.Generator().manual_seed(0))
    said = {"max_new_tokens": new, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    said |= {"forced_eos_token_id": None} if shape is BART_BASE else {}
    results: dict[str, Any] = {}

    def side(which: str, model: Any) -> Callable[[], None]:
        def run() -> None:
            results[which] = model.generate(ids, attention_mask=torch.ones_like(ids), **said)

        return run

    found = race(side("ours", ours), side("theirs", theirs), rounds)
    return row(title, new, found, "same ids" if torch.equal(results["ours"], results["theirs"]) else "other ids")


def row(title: str, tokens: int, seconds: tuple[float, float], agreement: str) -> dict[str, Any]:
    ours, theirs = seconds
    rates = f"{tokens / ours:.1f} / {tokens / theirs:.1f}"
    return {"model": title, "tokens/s": rates, "ratio": round(theirs / ours, 2), "": agreement}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    report(
        "families ÷ transformers",
        [
            encode(rounds),
            write("GPT-2's shape, 32 in, 48 out", GPT2, "AutoModelForCausalLM", 32, 48, rounds),
            write("T5-small's shape, 64 in, 48 out", T5_SMALL, "AutoModelForSeq2SeqLM", 64, 48, rounds),
            write("BART-base's shape, 64 in, 48 out", BART_BASE, "AutoModelForSeq2SeqLM", 64, 48, rounds),
        ],
    )


if __name__ == "__main__":
    main()
