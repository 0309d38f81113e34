"""How far the CPU engine's scores are from float32 arithmetic on the same file, beside llama.cpp's.

    python bench/quality.py [--tokens 5120]

Teacher-forced over real English text (a chapter of Moby-Dick and these docs), in windows of 512 tokens. The reference is the
plain executor, which expands the file's weights to float32 and computes in it. `KL` is the mean divergence of the next
token's distribution from the reference's, in bits. llama.cpp's row needs `llama-cpp-python`, and is left out without it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import glassformer
from common import report
from glassformer.checkpoint.locate import locate
from glassformer.engine.protocol import Feed
from glassformer.see.evaluation import HELD_OUT, compare_likelihoods

ROOT = Path(__file__).parent.parent


class Llama:
    """llama.cpp as far as a comparison needs an executor: one row at a time, every position scored."""

    context = 512

    def __init__(self, path: Path) -> None:
        from llama_cpp import Llama as Model

        self._model = Model(str(path), n_ctx=self.context, n_batch=512, n_threads=2, verbose=False, logits_all=True)
        self._scores = np.empty((0, 0), np.float32)

    def open(self) -> object:
        self._model.reset()
        return self

    def run(self, feeds: Sequence[Feed]) -> list[Llama]:
        (feed,) = feeds
        before = self._model.n_tokens
        self._model.eval(list(feed.ids))
        self._scores = np.array(self._model.scores[before : before + len(feed.ids)])
        return [self]

    def host(self, index: int) -> Any:
        return self._scores[index]

    def close(self, row: object) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=5120)
    arguments = parser.parse_args()
    path = locate("smollm2")
    plain = glassformer.load(path, executor="plain")
    text = "\n".join(page.read_text("utf-8") for page in (HELD_OUT, *sorted((ROOT / "docs").glob("*.md"))))
    ids = plain.tokenizer(text)["input_ids"][: arguments.tokens]
    options: dict[str, dict[str, str]] = {
        "activations in q14, the default": {},
        "cache in q8": {"cache": "q8"},
        "activations mixed": {"activations": "mixed"},
        "activations in q8": {"activations": "q8"},
    }
    others: dict[str, Any] = {
        f"the CPU engine, {name}": glassformer.load(path, executor="cpu", **some).executor for name, some in options.items()
    }
    with suppress(ImportError):
        others["llama.cpp"] = Llama(path)
    rows = []
    for name, executor in others.items():
        compared = compare_likelihoods(plain.executor, executor, ids)
        rows.append({
            "who": name, "tokens": compared.first.tokens, "KL, bits": f"{compared.divergence:.2e}",
            "same best token": f"{compared.agreement:.2%}", "perplexity": f"{compared.second.perplexity:.4f}",
            "in float32": f"{compared.first.perplexity:.4f}",
        })  # fmt: skip
    report("quality on SmolLM2's Q4_1 file, against float32", rows)


if __name__ == "__main__":
    main()
