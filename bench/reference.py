"""One model over a text, ours beside transformers: perplexity, KL divergence, agreement, and the layers that differ most.

    python bench/reference.py [-m MODEL] [--file TEXT] [--executor auto] [--tokens 2048]

Transformers loads the same checkpoint in float32, so that a difference is not its rounding. Its hidden states are the sites
`embedding`, `blocks.N.residual` and `final` here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import glassformer
from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.see.activations import Activations, Chunk
from glassformer.see.compare_models import ModelComparison, compare_windows
from glassformer.see.evaluation import HELD_OUT, WINDOW, added_bos, windows
from glassformer.see.protocols import ModelLike


@dataclass(frozen=True)
class TransformersActivations(Activations):
    """A text as transformers' module reads it."""

    module: Any = None

    def chunks(
        self, *patterns: str, scored: bool = False, size: int | None = None, progress: Progress | None = None
    ) -> Iterator[Chunk]:
        """One pass over the whole text, cut into chunks like ours."""
        with torch.inference_mode():
            output = self.module(torch.tensor([self.ids]), output_hidden_states=True)
        states = [state[0].float().numpy() for state in output.hidden_states]
        names = ["embedding", *(f"blocks.{number}.residual" for number in range(len(states) - 2)), "final"]
        values = dict(zip(names, states, strict=True))
        for start in range(0, len(self.ids), size or len(self.ids)):
            part = slice(start, start + (size or len(self.ids)))
            scores = output.logits[0, part].float().numpy() if scored else None
            yield Chunk(start, len(self.ids[part]), scores, {site: values[site][part] for site in self.sites(*patterns)})


def load_reference(model: ModelLike) -> Any:
    """The checkpoint of one of our models, as transformers loads it."""
    from transformers import AutoModelForCausalLM

    path = getattr(model.opened, "path", None)
    if model.head != "causal" or path is None:
        raise InputError(f"{model.name} cannot be compared with transformers: it must be a decoder, from a file.")
    options: dict[str, Any] = {"dtype": "float32", "attn_implementation": "eager", "local_files_only": True}
    if path.suffix == ".gguf":
        path, options["gguf_file"] = path.parent, path.name
    return AutoModelForCausalLM.from_pretrained(path, **options).eval()


def compare_with_transformers(
    model: ModelLike, text: str, tokens: int | None = None, progress: Progress | None = None
) -> ModelComparison:
    """Our model beside transformers', over the first so many tokens of a text."""
    module, tokenizer = load_reference(model), model.tokenizer
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:tokens]
    spans = windows(ids, added_bos(tokenizer), min(WINDOW, model.config.context))
    ours = [Activations(model, span) for span in spans]
    theirs = [TransformersActivations(model, span, module=module) for span in spans]
    return compare_windows(ours, theirs, (model.name, "transformers"), tokenizer, progress)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--file", type=Path, default=HELD_OUT, help="a text; by default a chapter of Moby-Dick")
    parser.add_argument("--executor", default="auto", choices=["auto", "plain", "cpu"])
    parser.add_argument("--tokens", type=int, default=2048, help="of the text")
    arguments = parser.parse_args()
    model = glassformer.load(arguments.model, executor=arguments.executor)
    text = arguments.file.read_text("utf-8")
    print(compare_with_transformers(model, text, arguments.tokens, lambda *done: print(*done, file=sys.stderr)))


if __name__ == "__main__":
    main()
