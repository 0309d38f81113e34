"""Looking inside: everything of a model that can be seen, each view by one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.candidates import top
from glassformer.loaded import Loaded, Prompt
from glassformer.observe.journey import TOP, Candidate, Journey, candidates, journey, next_token


class Looking(Loaded):
    """A model, and the views of what it makes of a text."""

    def look(
        self, prompt: Prompt, *, raw: bool = False, system: str | None = None, template: Mapping[str, Any] | None = None
    ) -> Journey:
        """A prompt's journey to the next token, without generating more than that."""
        return self.journey_of(*self.encode(prompt, raw=raw, system=system, **(template or {})))

    def journey_of(self, text: str, ids: Sequence[int]) -> Journey:
        """The journey of an encoded prompt; one pass."""
        start, answer = self.start, "the next token"
        if start is not None:
            answer = "the target's first token"
        if self.writes:
            found = next_token(self.tokenizer, self.executor, ids, start)
        else:
            answer, found = self._read(ids)
        return journey(self.tokenizer, self.blueprint, text, ids, found, name=self.name, answer=answer, start=start)

    def _read(self, ids: Sequence[int]) -> tuple[str, tuple[Candidate, ...]]:
        """What a head that does not write says of a text: of its first masked token, or of the whole.

        Where there is nothing to choose from, a word on where the answer is.
        """
        import torch

        head, mask = self.head, self.tokenizer.mask_token_id
        with torch.inference_mode():
            scores: Any = getattr(self.module(torch.tensor([list(ids)])), "logits", None)
        if head == "masked" and mask in ids:
            hidden = scores[0, list(ids).index(mask)]
            return "the masked token", candidates(self.tokenizer, top(hidden.float().numpy(), TOP))
        if head == "masked":
            return f"Put {self.tokenizer.mask_token} into the text to see what this model would fill in.", ()
        if head == "sequence":
            best = top(scores[0].float().numpy(), TOP)
            rows = zip(best.ids, best.scores, best.probabilities, strict=True)
            return "the label", tuple(
                Candidate(int(n), self.label(int(n)), float(score), float(share)) for n, score, share in rows
            )
        where = "the states of its tokens" if head == "base" else 'scores for every token: at["scores"]'
        return f"This model ends with {where}.", ()
