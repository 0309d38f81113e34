"""A question and the text in which a model looks for its answer: the passages of the text are what it chooses from.

A passage's logit is the sum of those that it begins at its first token and ends at its last, each as a log-probability, so
that a lead is the passages' ratio. In another text a passage stands where its first and last token stand.

Shapes: logits (tokens, 2), of beginning and ending at each; of passages (passages,).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassformer.ground.candidates import log_softmax
from glassformer.ground.errors import InputError, did_you_mean
from glassformer.see.activations import Activations
from glassformer.see.explain.explanation import Outcome
from glassformer.see.explain.texts import ReadWhole
from glassformer.see.explain.words import Word
from glassformer.see.patching.pair import align
from glassformer.see.protocols import ModelLike
from glassformer.see.view import Floats
from glassformer.text import BatchEncoding

MAX_ANSWER = 15  # tokens, as in the task
NEVER = -30.0  # the logit of a passage that is not in a text


def read_two(model: ModelLike, first: str, second: str) -> tuple[Activations, BatchEncoding]:
    """Two texts as an encoder reads them together."""
    encoding = model.tokenizer([first], [second], return_offsets_mapping=True)
    ids, owners = encoding["input_ids"][0], encoding.sequence_ids(0)
    limit = min(model.config.context, model.tokenizer.model_max_length)
    if len(ids) > limit:
        raise InputError(
            f"both texts have {len(ids)} tokens together, and {model.name} reads at most {limit}. Shorten them."
        )
    if missing := [name for name, owner in (("first", 0), ("second", 1)) if owner not in owners]:
        raise InputError(f"the {missing[0]} text has no tokens. Say something.")
    begin = owners.index(1)
    if None not in owners[:begin][owners.index(0) :]:
        raise InputError(f"{model.name}'s tokenizer puts nothing between two texts, so it cannot read them as a pair.")
    return Activations(model, tuple(ids), None, len(ids), owners=tuple(owners)), encoding


class ReadPassages(ReadWhole):
    """A text with the passages that can be its question's answer."""

    def __init__(self, reading: Activations, encoding: BatchEncoding, context: str) -> None:
        super().__init__(reading, None)
        self.context, self.offsets = context, encoding["offset_mapping"][0]
        self.word_ids, owners = encoding.word_ids(0), encoding.sequence_ids(0)
        self.tokens = [position for position, owner in enumerate(owners) if owner == 1]
        pairs = [(first, last) for first in self.tokens for last in self.tokens if 0 <= last - first < MAX_ANSWER]
        self.firsts, self.lasts = (np.array(places) for places in zip(*pairs, strict=True))

    def words(self) -> list[Word]:
        """All but those of the answer, without which there would be none."""
        stays = {place for index in self.chosen for place in range(self.firsts[index], self.lasts[index] + 1)}
        return [word for word in super().words() if stays.isdisjoint(word.positions)]

    def answer(self, index: int) -> str:
        """A passage, made of whole words."""
        first, last = int(self.firsts[index]), int(self.lasts[index])
        while first > self.tokens[0] and None is not self.word_ids[first] == self.word_ids[first - 1]:
            first -= 1
        while last < self.tokens[-1] and None is not self.word_ids[last] == self.word_ids[last + 1]:
            last += 1
        return self.context[self.offsets[first][0] : self.offsets[last][1]].strip()

    def said(self, index: int, ids: Sequence[int]) -> str:
        place = {origin: position for position, origin in align(self.ids, ids).items()}
        first, last = place[int(self.firsts[index])], place[int(self.lasts[index])]
        if ids[first : last + 1] == self.ids[self.firsts[index] : self.lasts[index] + 1]:
            return self.answer(index)
        return str(self.reading.model.tokenizer.decode(ids[first : last + 1])).strip()

    def overlapping(self, index: int) -> tuple[int, ...]:
        shared = (self.firsts <= self.lasts[index]) & (self.lasts >= self.firsts[index])
        shared[index] = False
        return tuple(np.flatnonzero(shared).tolist())

    def outcome(self, best: int, answer: int) -> Outcome:
        return "unchanged" if best == answer or best in self.overlapping(answer) else "another"

    def find(self, answer: int | str | None, logits: Floats) -> int:
        """The passage of a text, the likeliest where it stands several times."""
        if answer is None:
            return int(logits.argmax())
        texts = list(map(self.answer, range(len(logits))))
        found = [index for index, text in enumerate(texts) if text == str(answer).strip()]
        if not found:
            near = did_you_mean(str(answer), texts)
            raise InputError(f"the text has no passage {answer!r} of at most {MAX_ANSWER} tokens.{near}")
        return max(found, key=lambda index: float(logits[index]))

    @property
    def without_rival(self) -> str:
        return "the text has no other passage that could be the answer. Give more of it."

    def probabilities(self, logits: Floats) -> Floats:
        """A passage's is the product of those that it begins and ends there."""
        return np.exp(logits)

    def places(self, rival: int) -> list[int]:
        ends = (side[index] for index in (self.chosen[0], rival) for side in (self.firsts, self.lasts))
        return sorted(set(map(int, ends)))

    @property
    def places_name(self) -> str:
        return "the passages' ends"

    def readout(self, scores: Floats, ids: Sequence[int]) -> Floats:
        """The passages' logits; a text's other tokens can begin and end no answer."""
        begin = self._second(ids) or 0
        inside = np.array([place >= begin and token not in self.around for place, token in enumerate(ids)])
        first, last = (log_softmax(np.where(inside, side, -1e4)) for side in scores.T)
        place = np.full(len(self.ids), -1)
        for position, origin in align(self.ids, ids).items():
            place[origin] = position
        starts, ends = place[self.firsts], place[self.lasts]
        logits = np.maximum(first[starts] + last[ends], NEVER)
        found: Floats = np.where((starts >= 0) & (ends >= starts), logits, NEVER).astype(np.float32)
        return found
