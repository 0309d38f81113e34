"""Rules that users write: functions of the ids so far and the scores of the whole vocabulary, giving other scores.

Two forms are taken: numpy arrays of one text (`ids`, `scores`), and that of transformers, tensors with a batch axis
(`input_ids` (1, length), `scores` (1, vocabulary)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from glassformer.decoding.rules import Rule
from glassformer.decoding.shortlist import Shortlist
from glassformer.decoding.token_history import TokenHistory
from glassformer.ground.errors import SettingError, needed_for
from glassformer.ground.typecheck import brief


def from_function(function: Callable[..., Any]) -> Rule:
    """A function of numpy arrays: what is minus infinity, or was, is out."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        scores = shortlist.full_scores(history.size)
        result = function(history.ids.copy(), scores.copy())
        try:
            changed = np.asarray(result, np.float32)
        except (TypeError, ValueError):
            changed = np.empty(0, np.float32)
        if result is None or changed.shape != scores.shape:
            what = f"scores of shape {changed.shape}" if isinstance(result, np.ndarray) else type(result).__name__
            raise SettingError(f"the rule {name_of(function)} gave {what}; it must give scores of shape {scores.shape}.")
        if np.isnan(changed).any():
            raise SettingError(
                f"the rule {name_of(function)} gave scores that are not numbers (NaN) at step {history.step}."
            )
        return Shortlist(changed, None) if shortlist.ids is None else Shortlist(changed[shortlist.ids], shortlist.ids)

    return rule


def from_logits_processor(function: Callable[..., Any]) -> Rule:
    """A function of tensors with a batch of one, as transformers' logits processors are."""

    with needed_for("a logits processor"):
        import torch

    def as_arrays(ids: Any, scores: Any) -> Any:
        result = function(torch.from_numpy(ids)[None], torch.from_numpy(scores)[None])
        if not isinstance(result, torch.Tensor) or result.dim() != 2:
            what = type(result).__name__
            raise SettingError(f"the rule {name_of(function)} gave {what}; it must give a tensor of scores, as it got.")
        return result[0].detach().float().cpu().numpy()

    as_arrays.__name__ = name_of(function)
    return from_function(as_arrays)


def from_allowed_tokens(prefix_allowed_tokens_fn: Callable[..., Any]) -> Rule:
    """A function of the prompt's index in its batch and the ids so far, as a tensor, that lists the ids that may follow."""

    with needed_for("prefix_allowed_tokens_fn"):
        import torch

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        allowed = prefix_allowed_tokens_fn(history.prompt_index, torch.from_numpy(history.ids.copy()))
        try:
            tokens = np.unique(np.asarray(allowed, np.int64))
        except (TypeError, ValueError, OverflowError):
            tokens = np.empty(0, np.int64)
        if not tokens.size or tokens[0] < 0 or tokens[-1] >= history.size:
            raise SettingError(
                f"prefix_allowed_tokens_fn gave {brief(allowed)} at step {history.step}; it must give at least one token "
                f"id, each below {history.size}."
            )
        return shortlist.select(shortlist.indices_of(tokens)[0])

    return rule


def name_of(function: Callable[..., Any]) -> str:
    """A function's name, for people."""
    return getattr(function, "__name__", type(function).__name__)
