"""Learn a language from windows of a token file, in three ways.

A **causal language model** predicts each token by those before it.

A **masked language model** guesses hidden tokens by those on both sides, as BERT is trained
(https://arxiv.org/abs/1810.04805, section 3.1). Of all tokens 15 % are to be guessed. A mask stands in for most of them
(80 %); some are replaced by a random token (10 %) or left as they are (10 %), so that the model cannot rely on seeing what
was hidden.

**Span corruption** writes what was taken out, as T5 is trained (https://arxiv.org/abs/1910.10683, section 3.1.4). Of a
window's tokens 15 % are taken out, in spans of 3 on average. The source has a sentinel in place of each; the target has each
sentinel and the tokens that it stands for, then one more sentinel:

    source   Thank you <extra_id_0> me to your party <extra_id_1> week.
    target   <extra_id_0> for inviting <extra_id_1> last <extra_id_2>

Shapes: ids and targets (batch, length), a causal model's targets one token further, -100 where nothing is to be guessed;
source (batch, source); target (batch, target), ending with the end token.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from glassformer.ground.errors import InputError
from glassformer.text import Tokenizer
from glassformer.torch.base import IGNORED
from glassformer.torch.shapes import shift_right
from glassformer.training.measures import perplexity
from glassformer.training.new_tokenizer import sentinel_ids, tokens_around
from glassformer.training.objectives.objective import ExampleBatch, Ids, Measures, Objective, padded

GUESSED, MASKED, REPLACED = 0.15, 0.8, 0.1  # the share of tokens; and the shares of these
CORRUPTED = 0.15  # the share of tokens that are taken out
SPAN = 3  # tokens of a span, on average
SAMPLE_TOKENS = 60
HELD_OUT_SEED = 1 << 63  # above the seeds of all steps


class TokenWindows(Objective[Ids]):
    """Examples are windows of a token file."""

    unit = "window"

    def __init__(self, ids: Ids, length: int, held_out: Ids, source: str, size: int) -> None:
        """`length`: of a window. `source`: the token file's fingerprint. `size`: tokens of the file in a window."""
        super().__init__(ids, held_out, f"{source} {len(ids)} {length}")
        self.length = length
        if len(ids) < size:
            raise InputError(
                f"the text has {len(ids)} tokens to train on, fewer than one window of {size}. Give more text, or a "
                "shorter length."
            )

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        return {"perplexity": perplexity(loss)}


class LanguageModel(TokenWindows):
    head = "causal"

    def __init__(self, ids: Ids, length: int, held_out: Ids, token_sizes: Ids, source: str) -> None:
        """`token_sizes`: how many bytes of text each id is, for bits per byte. `source`: the token file's."""
        super().__init__(ids, length, held_out, source, length + 1)
        self.token_sizes = token_sizes

    @property
    def examples(self) -> int:
        return (len(self.data) - 1) // self.length

    @property
    def held_out(self) -> int:
        return -(-max(0, len(self.held_out_data) - 1) // self.length)

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        ids = self.data_of(held_out)
        windows = [np.asarray(ids[row * self.length : (row + 1) * self.length + 1], np.int64) for row in rows]
        longest = max(map(len, windows))
        inputs = np.zeros((len(windows), longest - 1), np.int64)
        targets = np.full((len(windows), longest - 1), IGNORED, np.int64)  # the last held-out window may be shorter
        for index, window in enumerate(windows):
            inputs[index, : len(window) - 1], targets[index, : len(window) - 1] = window[:-1], window[1:]
        return ExampleBatch({"input_ids": torch.from_numpy(inputs)}, torch.from_numpy(targets), list(rows))

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        windows = self.held_out if most is None else min(most, self.held_out)
        predicted = self.held_out_data[1 : windows * self.length + 1]
        size = max(1, int(self.token_sizes[predicted].sum()))
        return {"perplexity": perplexity(loss), "bits_per_byte": loss * len(predicted) / math.log(2) / size}


class GapFilling(TokenWindows):
    """Windows stand between the tokens that the tokenizer puts around a text, which count in their length."""

    def __init__(self, tokenizer: Tokenizer, ids: Ids, length: int, held_out: Ids, source: str) -> None:
        self.tokenizer = tokenizer
        self.before, self.after = tokens_around(tokenizer)
        self.size = length - len(self.before) - len(self.after)
        if self.size < 2:
            raise InputError(f"a window of {length} tokens has no room for text. Give a longer length.")
        super().__init__(ids, length, held_out, source, self.size)

    @property
    def examples(self) -> int:
        return len(self.data) // self.size

    @property
    def held_out(self) -> int:
        return len(self.held_out_data) // self.size

    def window(self, row: int, held_out: bool) -> Ids:
        return np.asarray(self.data_of(held_out)[row * self.size : (row + 1) * self.size], np.int64)

    def draws(self, row: int, held_out: bool) -> np.random.Generator:
        """Where a window's random numbers come from."""
        return np.random.Generator(np.random.Philox(key=[HELD_OUT_SEED if held_out else self.step_seed, row]))

    @abstractmethod
    def sample(self, model: Any) -> str:
        """What the model puts into the gaps of one window, for people to look at."""


class MaskedLanguageModel(GapFilling):
    head = "masked"
    sparse = True

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

    @torch.no_grad()
    def sample(self, model: Any) -> str:
        batch = self.batch([0], held_out=self.held_out > 0).to(model.device)
        ids = batch.inputs["input_ids"]
        best = model(ids).logits.argmax(-1)
        filled = torch.where(batch.targets != IGNORED, best, ids)[0].tolist()
        text: str = self.tokenizer.decode(filled, skip_special_tokens=True)
        return text


class SpanCorruption(GapFilling):
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
        source, target, place = [*self.before], [], 0
        for sentinel, kept, taken in zip(self.sentinels, kept_lengths, gone_lengths, strict=False):
            source += [*window[place : place + kept].tolist(), sentinel]
            target += [sentinel, *window[place + kept : place + kept + taken].tolist()]
            place += kept + taken
        return [*source, *self.after], [*target, self.sentinels[spans], self.end]

    @torch.no_grad()
    def sample(self, model: Any) -> str:
        batch = self.batch([0], held_out=self.held_out > 0).to(model.device)
        inputs = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
        steps = model.steps(**inputs, max_new_tokens=SAMPLE_TOKENS, do_sample=False, eos_token_id=self.end)
        text: str = self.tokenizer.decode([step.id for _, step in steps])
        return text


def random_parts(total: int, parts: int, draw: np.random.Generator) -> list[int]:
    """A total as a sum of some parts, each at least 1; every such sum is equally likely.

    >>> random_parts(5, 5, np.random.default_rng(0))
    [1, 1, 1, 1, 1]
    """
    cuts = np.sort(draw.choice(total - 1, parts - 1, replace=False)) + 1 if parts > 1 else np.zeros(0, np.int64)
    return [int(part) for part in np.diff([0, *cuts, total])]
