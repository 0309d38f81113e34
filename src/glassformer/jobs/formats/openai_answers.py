"""Parts of OpenAI's answers that the server and batch files share: why a text ended, and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.decoding import Finish, Step
from glassformer.text import Tokenizer


def finish_reason(finish: Finish | None) -> str:
    """Why a text ended, in OpenAI's words."""
    return "length" if finish in (Finish.LENGTH, Finish.TIME) else "stop"


def chat_logprobs(tokenizer: Tokenizer, steps: Sequence[Step], count: int) -> dict[str, Any]:
    """The log-probability of each token and of the best few; the token that ended the text is no part of it."""
    content = [
        {
            **_token_logprob(tokenizer, step.id, step.logprob),
            "top_logprobs": [_token_logprob(tokenizer, *pair) for pair in _best(step, count)],
        }
        for step in _shown(steps)
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The log-probabilities of a completion's tokens; offsets go on from piece to piece."""

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self._tokenizer, self._count, self._offset = tokenizer, count, 0

    def of(self, steps: Sequence[Step]) -> dict[str, Any]:
        shown = _shown(steps)
        tokens = [self._text(step.id) for step in shown]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [step.logprob for step in shown],
            "top_logprobs": [None if step.logprob is None else self._best_texts(step) for step in shown],
            "text_offset": offsets,
        }

    def _best_texts(self, step: Step) -> dict[str, float]:
        return {self._text(token): logprob for token, logprob in _best(step, self._count)}

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")


def _shown(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step.finish is not Finish.EOS]


def _best(step: Step, count: int) -> list[tuple[int, float]]:
    """The ids that the model thought likeliest, and their log-probabilities."""
    if step.candidates is None:
        return []
    return list(zip(step.candidates.ids.tolist(), step.candidates.logprobs.tolist(), strict=True))[:count]


def _token_logprob(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
