"""Activations of texts at one site, a row for each token, as a stream: what features and probes are learned from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glassformer.features.feature_change import token_rows
from glassformer.observe.activations import Activations
from glassformer.observe.perplexity import added_bos, windows
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.steering.token_axis import token_site


@dataclass(frozen=True)
class ActivationRows:
    """The rows of windows of a text, read anew each time that they are iterated over; (tokens, width) for each window.

    The first token of each is left out: in most decoders its numbers are huge whatever it is.
    """

    model: ModelLike
    site: str
    windows: Sequence[tuple[int, ...]]

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return math.prod(token_site(self.model.blueprint, self.site, self.model.name)[1])

    def __iter__(self) -> Iterator[Floats]:
        axis, _ = token_site(self.model.blueprint, self.site, self.model.name)
        for ids in self.windows:
            yield token_rows(self._reading(ids).at(self.site)[None], axis + 1)[1:]

    def _reading(self, ids: tuple[int, ...]) -> Activations:
        start = self.model.start
        return Activations(self.model, ids) if start is None else Activations(self.model, (start,), ids, 1)


def activation_rows(model: ModelLike, text: str, site: str, length: int = 128) -> ActivationRows:
    """The rows of a text in windows of so many tokens."""
    token_site(model.blueprint, site, model.name)  # which refuses a site that has none
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    spans = windows(ids, added_bos(model.tokenizer), min(length, model.config.context))
    return ActivationRows(model, site, [span for span in spans if len(span) > 1])
