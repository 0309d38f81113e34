"""What drafts by a model's own head for further tokens are worth (`assistant_model="mtp"`), beside decoding without them.

    python bench/drafts.py [--kind q8_0] [--tokens 48] [--rounds 3]

Weights are random, so no head would foresee anything. Its passes are run all the same; then each guess is made the right
one with a given chance, or a wrong one. So the seconds are those of a head whose guesses come true that often; how often
those of a trained one do is not measured. All take turns, and the texts are compared. A ratio above 1 means that drafts are
faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from operator import truediv
from pathlib import Path

import numpy as np

from common import QWEN35_08B, report
from glassformer import blueprints
from glassformer.blueprints import drafts
from glassformer.decoding import GenerationConfig, Policy, Recipe, Step, policies
from glassformer.decoding.head_drafts import HeadDrafter
from glassformer.decoding.loop import loop
from glassformer.decoding.speculative import Drafts, speculate
from glassformer.engine.protocol import Executor
from glassformer.ground.files import home
from glassformer.model_files import open_model
from glassformer.quantize import requantized
from glassformer.runtime.executors import ExecutorOptions, Executors

CHANCES = (0.0, 0.5, 0.7, 0.85, 1.0)
PROMPT = 64


class GivenAcceptance(HeadDrafter):
    """A head whose guesses come true with a given chance."""

    def __init__(self, executor: Executor, text: list[int], chance: float) -> None:
        super().__init__(executor)
        self.text = text
        self.chance = chance
        self.draw = np.random.default_rng(0)

    def draft(self, room: Mapping[Policy, int]) -> Drafts:
        made = super().draft(room)
        for policy in made:
            row = self._rows[policy]
            right = self.text[row.start :][: len(row.ids)]
            row.ids = [token if self.draw.random() < self.chance else (token + 1) % 1000 for token in right]
        return {policy: self._rows[policy].ids for policy in made}


def checkpoint() -> Path:
    """A folder with random weights of Qwen3.5-0.8B's shape and a head, made once and kept beside the fetched models."""
    import torch
    from safetensors.torch import save_file

    folder = home() / "bench" / "qwen3.5-0.8b-with-a-head"
    if not (folder / "model.safetensors").exists():
        config = blueprints.read_config(QWEN35_08B)
        head = drafts.head_config(config)
        assert head is not None
        shapes = {weight.name: weight.shape for weight in blueprints.blueprint(config).weights}
        own = {
            weight.name: weight.shape for weight in blueprints.blueprint(head).weights if weight.name not in drafts.SHARED
        }
        shapes |= {drafts.file_name(config, name): shape for name, shape in own.items()}
        torch.manual_seed(0)
        weights = {
            name: (0.02 * torch.randn(shape) if len(shape) > 1 else torch.zeros(shape)).bfloat16()
            for name, shape in shapes.items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(QWEN35_08B))
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def written(executor: Executor, prompt: list[int], count: int, drafter: HeadDrafter | None) -> tuple[list[Step], float]:
    """The steps after a prompt, and the seconds of all but the first one."""
    recipe = Recipe.of(GenerationConfig(max_new_tokens=count), None, QWEN35_08B["vocab_size"])
    rows = list(policies(recipe, prompt, context=4096, seed=0))
    steps, began = [], 0.0
    for _, step in loop(executor, rows) if drafter is None else speculate(executor, rows, drafter):
        began = began or time.perf_counter()
        steps.append(step)
    return steps, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="q8_0")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    executors = Executors(requantized(open_model(checkpoint()), options.kind), ExecutorOptions(executor="cpu"))
    executor, head = executors.executor, executors.draft_head
    prompt = np.random.default_rng(1).integers(3, 1000, PROMPT).tolist()
    plain: list[float] = []
    helped: dict[float, list[float]] = {chance: [] for chance in CHANCES}
    foreseen: dict[float, float] = {}
    for turn in range(options.rounds + 1):  # the first one warms up
        steps, seconds = written(executor, prompt, options.tokens, None)
        plain += [seconds] if turn else []
        text = [*prompt, *(step.id for step in steps)]
        for chance in CHANCES:
            steps, seconds = written(executor, prompt, options.tokens, GivenAcceptance(head, text, chance))
            assert [step.id for step in steps] == text[PROMPT:], "a draft changed the text"
            helped[chance] += [seconds] if turn else []
            foreseen[chance] = sum(step.drafted for step in steps) / len(steps)
        print(f"round {turn}", file=sys.stderr)
    count = options.tokens - 1
    rows = [
        {
            "chance": chance, "of the text foreseen": f"{foreseen[chance]:.0%}",
            "tokens/s": f"{count / statistics.median(helped[chance]):.1f}",
            "without": f"{count / statistics.median(plain):.1f}",
            "ratio": f"{statistics.median(map(truediv, plain, helped[chance])):.2f}",
        }
        for chance in CHANCES
    ]  # fmt: skip
    report(f"drafts by a head, Qwen3.5-0.8B's shape, {options.kind}", rows)


if __name__ == "__main__":
    main()
