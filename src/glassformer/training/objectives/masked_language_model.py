"""Guess hidden tokens by those on both sides, as BERT is trained (https://arxiv.org/abs/1810.04805, section 3.1).

Of all tokens 15 % are to be guessed. A mask stands in for most of them (80 %); some are replaced by a random token (10 %) or
left as they are (10 %), so that the model cannot rely on seeing what was hidden.

Shapes: ids (batch, length); targets the same, -100 where nothing is to be guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.families.shared.base import IGNORED
from glassformer.ground.errors import InputError
from glassformer.text import Tokenizer
from glassformer.training.objectives.language_model import Ids, TokenWindows
from glassformer.training.objectives.objective import ExampleBatch, scores_loss

GUESSED, MASKED, REPLACED = 0.15, 0.8, 0.1  # the share of tokens; and the shares of these


class MaskedLanguageModel(TokenWindows):
    head = "masked"

    def __init__(self, tokenizer: Tokenizer, ids: Ids, length: int, held_out: Ids, source: str) -> None:
        super().__init__(tokenizer, ids, length, held_out, source)
        if tokenizer.mask_token_id is None:
            raise InputError("the tokenizer has no mask token, which guessing hidden tokens needs. Take another model.")
        self.mask: int = tokenizer.mask_token_id
        self.special = np.array(tokenizer.all_special_ids, np.int64)
        self.ordinary = np.setdiff1d(np.arange(len(tokenizer)), self.special)  # what a random token may be

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        pairs = [self._hidden(row, held_out) for row in rows]
        ids, targets = (torch.from_numpy(np.stack(side)) for side in zip(*pairs, strict=True))
        return ExampleBatch({"input_ids": ids}, targets, list(rows))

    def _hidden(self, row: int, held_out: bool) -> tuple[Ids, Ids]:
        """A window as the model gets it, and what it is to guess."""
        window, draw = self.window(row, held_out), self.draws(row, held_out)
        order, kind = draw.random(len(window)), draw.random(len(window))
        order[np.isin(window, self.special)] = 2.0  # never: nobody asks for these
        guessed = order < GUESSED
        guessed[np.argmin(order)] = True  # at least one
        shown = np.where(guessed & (kind < MASKED), self.mask, window)
        other = guessed & (kind >= MASKED) & (kind < MASKED + REPLACED)
        shown = np.where(other, draw.choice(self.ordinary, len(window)), shown)
        ids = np.concatenate((self.before, shown, self.after)).astype(np.int64)
        targets = np.full(len(ids), IGNORED, np.int64)
        targets[len(self.before) : len(self.before) + len(window)] = np.where(guessed, window, IGNORED)
        return ids, targets

    def loss(self, model: Any, batch: ExampleBatch) -> Tensor:
        """Only the tokens to be guessed are scored: a vocabulary's scores for all of them would be most of the work."""
        states = model.base_model(batch.inputs["input_ids"]).last_hidden_state
        guessed = batch.targets != IGNORED
        return scores_loss(model, states[guessed], batch.targets[guessed], self.label_smoothing)

    @torch.no_grad()
    def sample(self, model: Any) -> str:
        batch = self.batch([0], held_out=self.held_out > 0).to(model.device)
        ids = batch.inputs["input_ids"]
        best = model(ids).logits.argmax(-1)
        filled = torch.where(batch.targets != IGNORED, best, ids)[0].tolist()
        text: str = self.tokenizer.decode(filled, skip_special_tokens=True)
        return text
