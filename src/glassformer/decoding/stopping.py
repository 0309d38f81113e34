"""When a text ends: functions of what stands so far, asked after each token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeAlias

from glassformer.decoding.token_history import TokenHistory
from glassformer.ground.errors import needed_for

SLACK = 8  # tokens looked at beyond the longest stop string: halves of characters, and the first one's missing space


class Finish(Enum):
    """Why a text ended."""

    EOS = "eos"  # the model said so
    LENGTH = "length"  # it reached its limit, or the context's end
    STOP = "stop"  # it holds a stop string
    COMPLETE = "complete"  # nothing more fits its grammar
    TIME = "time"  # max_time is over
    CRITERION = "criterion"  # a function of the user's said so
    CANCELLED = "cancelled"  # somebody asked for it


Stop: TypeAlias = Callable[[TokenHistory], "Finish | None"]


def stop_string_tail(texts: Sequence[str]) -> int:
    """How many last tokens can hold one of these texts."""
    return max(len(text.encode()) for text in texts) + SLACK  # a token is a byte at least


def at_strings(texts: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Stop:
    """When the text, prompt not included, holds one of these; they may begin and end inside tokens."""
    tail = stop_string_tail(texts)

    def stop(history: TokenHistory) -> Finish | None:
        text = decode(history.chosen[-tail:])
        return Finish.STOP if any(stop_string in text for stop_string in texts) else None

    return stop


def after_seconds(seconds: float, clock: Callable[[], float] = time.monotonic) -> Stop:
    """When this many seconds are over, from now on."""
    end = clock() + seconds
    return lambda history: Finish.TIME if clock() >= end else None


def after_tokens(count: int, finish: Finish) -> Stop:
    """When this many tokens stand, for the reason named."""
    return lambda history: finish if history.step >= count else None


def by_function(function: Callable[..., Any]) -> Stop:
    """When a function of the ids so far, as a numpy array, says so."""
    return lambda history: Finish.CRITERION if function(history.ids.copy()) else None


def by_criterion(function: Callable[..., Any]) -> Stop:
    """When a function of (input_ids (1, length), scores) says so: a truth value, or a tensor of one."""
    with needed_for("a stopping criterion"):
        import torch

    def stop(history: TokenHistory) -> Finish | None:
        verdict = function(torch.from_numpy(history.ids.copy())[None], None)
        return Finish.CRITERION if verdict is not None and bool(torch.as_tensor(verdict).all()) else None

    return stop


def when_cancelled(event: Any) -> Stop:
    """When an event was set, from whatever thread."""
    return lambda history: Finish.CANCELLED if event.is_set() else None
