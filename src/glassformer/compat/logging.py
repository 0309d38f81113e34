"""How much is said while models load and run, by the names that scripts use: `glassformer.logging.set_verbosity_error()`.

Everything goes through the standard library's logger "glassformer".
"""

from __future__ import annotations

import logging

CRITICAL, FATAL, ERROR = logging.CRITICAL, logging.FATAL, logging.ERROR
WARNING, WARN, INFO, DEBUG, NOTSET = logging.WARNING, logging.WARNING, logging.INFO, logging.DEBUG, logging.NOTSET
_ROOT = "glassformer"


def get_logger(name: str | None = None) -> logging.Logger:
    """The logger of a name; by default the library's own."""
    return logging.getLogger(name or _ROOT)


def get_verbosity() -> int:
    return get_logger().getEffectiveLevel()


def set_verbosity(level: int) -> None:
    """Say only what is at least this important: `logging.ERROR`, …."""
    get_logger().setLevel(level)


def set_verbosity_debug() -> None:
    set_verbosity(DEBUG)


def set_verbosity_info() -> None:
    set_verbosity(INFO)


def set_verbosity_warning() -> None:
    set_verbosity(WARNING)


def set_verbosity_error() -> None:
    set_verbosity(ERROR)


def enable_propagation() -> None:
    """Hand messages on to the root logger's handlers, as is the default."""
    get_logger().propagate = True


def disable_propagation() -> None:
    get_logger().propagate = False


def disable_progress_bar() -> None:
    """Nothing to do: the library draws no progress bars; only the command `glass` does."""


def enable_progress_bar() -> None:
    """Nothing to do: see `disable_progress_bar`."""
