"""Write what was taken out of a text, as T5 is trained (https://arxiv.org/abs/1910.10683, section 3.1.4).

Of a window's tokens 15 % are taken out, in spans of 3 on average. The source has a sentinel in place of each; the target has
each sentinel and the tokens that it stands for, then one more sentinel:

    source   Thank you <extra_id_0> me to your party <extra_id_1> week.
    target   <extra_id_0> for inviting <extra_id_1> last <extra_id_2>

Shapes: source (batch, source); target (batch, target), ending with the end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.families.shared.base import IGNORED
from glassformer.families.shared.seq2seq import shift_right
from glassformer.ground.errors import InputError
from glassformer.text import Tokenizer
from glassformer.training.new_tokenizer import sentinel_ids
from glassformer.training.objectives.language_model import Ids, TokenWindows
from glassformer.training.objectives.objective import ExampleBatch, padded, scores_loss

CORRUPTED = 0.15  # the share of tokens that are taken out
SPAN = 3  # tokens of a span, on average
SAMPLE_TOKENS = 60


class SpanCorruption(TokenWindows):
    head = "seq2seq"

    def __init__(self, tokenizer: Tokenizer, config: Any, ids: Ids, length: int, held_out: Ids, source: str) -> None:
        super().__init__(tokenizer, ids, length, held_out, source)
        self.config = config
        self.sentinels = sentinel_ids(tokenizer)
        self.end: int = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else config.eos_token_id
        if len(self.sentinels) < 2:
            raise InputError(
                "the tokenizer has no sentinels (<extra_id_0>, …), which stand for the spans that are taken out of a text. "
                "Take a model that has them, such as a T5."
            )

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        sources, targets = zip(*(self._corrupted(row, held_out) for row in rows), strict=True)
        ids, mask = padded(sources, self.config.pad_token_id)
        labels, _ = padded(targets, IGNORED)
        inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": shift_right(labels, self.config)}
        return ExampleBatch(inputs, labels, list(rows))

    def _corrupted(self, row: int, held_out: bool) -> tuple[list[int], list[int]]:
        """A window's source and target."""
        window, draw = self.window(row, held_out), self.draws(row, held_out)
        gone = min(max(1, round(len(window) * CORRUPTED)), len(window) - 1)
        spans = min(max(1, round(gone / SPAN)), len(window) - gone, len(self.sentinels) - 1)
        kept_lengths, gone_lengths = random_parts(len(window) - gone, spans, draw), random_parts(gone, spans, draw)
        source, target, at = [*self.before], [], 0
        for sentinel, kept, taken in zip(self.sentinels, kept_lengths, gone_lengths, strict=False):
            source += [*window[at : at + kept].tolist(), sentinel]
            target += [sentinel, *window[at + kept : at + kept + taken].tolist()]
            at += kept + taken
        return [*source, *self.after], [*target, self.sentinels[spans], self.end]

    def loss(self, model: Any, batch: ExampleBatch) -> Tensor:
        states = model.base_model(**batch.inputs, use_cache=False).last_hidden_state
        return scores_loss(model, states, batch.targets, self.label_smoothing)

    @torch.no_grad()
    def sample(self, model: Any) -> str:
        batch = self.batch([0], held_out=self.held_out > 0).to(model.device)
        inputs = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
        steps = model.steps(**inputs, max_new_tokens=SAMPLE_TOKENS, do_sample=False, eos_token_id=self.end)
        text: str = self.tokenizer.decode([step.id for _, step in steps])
        return text


def random_parts(total: int, parts: int, draw: np.random.Generator) -> list[int]:
    """A number as a sum of so many, each at least 1; every such sum is equally likely.

    >>> random_parts(5, 5, np.random.default_rng(0))
    [1, 1, 1, 1, 1]
    """
    cuts = np.sort(draw.choice(total - 1, parts - 1, replace=False)) + 1 if parts > 1 else np.zeros(0, np.int64)
    return [int(part) for part in np.diff([0, *cuts, total])]
