"""Tasks beside transformers': the same texts, the same weights, in one run, the two taking turns.

    python bench/tasks.py [--rounds 3]

A ratio above 1 means that ours is faster. Theirs is run as its documentation shows it, and once more with the batch size
that suits it best. MiniLM's weights are real, DistilBERT's random in the true shape.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import glassformer
from common import race, report, texts
from glassformer.checkpoint.locate import locate
from glassformer.ground.files import home


def distilbert(head: str) -> Path:
    """DistilBERT in its true shape, with MiniLM's vocabulary, which is BERT's."""
    folder = home() / "bench" / f"distilbert-{head}"
    if not (folder / "model.safetensors").exists():
        from glassformer.blueprints import read_config
        from glassformer.compat.auto import model_class

        torch.manual_seed(0)
        config = read_config({"model_type": "distilbert", "vocab_size": 30522})
        model_class("distilbert", head)(config).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(locate("minilm") / name, folder)
    return folder


def embed(rounds: int) -> list[dict[str, Any]]:
    import transformers

    given = texts(300)
    task = glassformer.pipeline("embed")
    model = transformers.AutoModel.from_pretrained(locate("minilm")).requires_grad_(False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(locate("minilm"))

    def theirs(size: int) -> Any:
        found = []
        for at in range(0, len(given), size):
            tokens = tokenizer(given[at : at + size], padding=True, truncation=True, max_length=256, return_tensors="pt")
            mask = tokens["attention_mask"][..., None]
            found.append(torch.nn.functional.normalize((model(**tokens)[0] * mask).sum(1) / mask.sum(1)))
        return torch.cat(found)

    apart = (torch.from_numpy(task(given)) - theirs(32)).abs().max()
    return [
        row(
            f"embed 300 texts, MiniLM; theirs in batches of {size}", race(lambda: task(given), partial(theirs, size), rounds)
        )
        for size in (1, 8, 32)
    ] + [{"": f"vectors {float(apart):.0e} apart"}]


def pipelines(name: str, head: str, ask: Callable[[Any], Any], rounds: int) -> list[dict[str, Any]]:
    import transformers

    folder = distilbert(head)
    ours = glassformer.pipeline(name, folder)
    theirs = transformers.pipeline(name, model=str(folder), device="cpu")
    return [
        row(
            f"{name}, DistilBERT's shape; theirs with batch_size={size}",
            race(lambda: ask(ours), partial(ask, partial(theirs, batch_size=size)), rounds),
        )
        for size in (1, 8)
    ]


def row(title: str, seconds: tuple[float, float]) -> dict[str, Any]:
    ours, theirs = seconds
    return {"task": title, "seconds": f"{ours:.2f} / {theirs:.2f}", "ratio": round(theirs / ours, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    some = texts(60)
    gaps = [f"{text} [MASK]." for text in some[:40]]
    rows = [
        *embed(rounds),
        *pipelines("text-classification", "ForSequenceClassification", lambda pipe: pipe(some), rounds),
        *pipelines("fill-mask", "ForMaskedLM", lambda pipe: pipe(gaps), rounds),
    ]
    report("tasks ÷ transformers", rows)


if __name__ == "__main__":
    main()
