"""The command: few verbs, each a thin shell over the library.

Data goes to stdout, notes and progress to stderr. Exit codes: 0 done, 1 an error that the message explains,
2 a wrong call, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

from glassformer.ground.garbage_collection import collect_rarely

_AGAIN = 0.05  # seconds after which an interrupt that had to wait is tried again


def main() -> None:
    """The entry point of `glass`: runs the verb, and turns every expected error into one sentence."""
    _use_utf8()
    collect_rarely()
    import click

    from glassformer.ground.errors import GlassError

    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # a terminal may lack a character of the answer
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was begun is cleaned up
    signal.signal(signal.SIGINT, _interrupt)
    try:
        from glassformer.cli.app import app

        sys.exit(app.main(prog_name="glass", standalone_mode=False))
    except GlassError as error:
        _print_error(str(error))
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before a verb has begun
        print("\nglass: stopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _print_error(f"{error.strerror or error}.")
        sys.exit(1)
    except Exception as error:  # a bug: its traceback is for those who mend it
        if os.environ.get("GLASS_DEBUG"):
            raise
        print(
            f"glass: an error that should not happen, {type(error).__name__}: {error}. "
            "GLASS_DEBUG=1 shows where; please report it with that.",
            file=sys.stderr,
        )
        sys.exit(1)


def _use_utf8() -> None:
    """Begin anew in Python's UTF-8 mode where the locale has another encoding: LC_ALL=C says nothing about a text.

    Python chose the encoding of arguments, file names and streams before any of this ran.
    """
    if sys.platform != "win32" and sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        with suppress(OSError):
            os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _print_error(message: str) -> None:
    """An error on stderr; the names in it may be anybody's."""
    from glassformer.page.format import escape_control

    print(f"glass: {escape_control(message)}", file=sys.stderr)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Stop, but never inside an import: a library's native part that is broken off half-way may take the process along."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            later = threading.Timer(_AGAIN, _signal, (number,))
            later.daemon = True
            return later.start()
        frame = frame.f_back
    raise KeyboardInterrupt


def _signal(number: int) -> None:
    """Send this process a signal that also wakes its sleeping main thread."""
    if sys.platform == "win32":
        signal.raise_signal(number)
    else:
        os.kill(os.getpid(), number)
