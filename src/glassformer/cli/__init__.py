"""The command: few verbs, each a thin shell over the library.

Data goes to stdout, notes and progress to stderr. Exit codes: 0 done, 1 an error that the message explains,
2 a wrong call, 130 interrupted.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The entry point of `glass`: runs the verb, and turns every expected error into one sentence."""
    from glassformer.cli.app import app
    from glassformer.errors import GlassError

    try:
        app(prog_name="glass")
    except GlassError as error:
        print(f"glass: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
