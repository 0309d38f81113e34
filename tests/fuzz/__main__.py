"""One target's cases, in this process, under limits on time and memory; what came of them is printed as JSON.

The number of the case at work is written to the file named by FUZZ_CASE, so that a case which ends the process can be named.
With `--fork` a process is forked for each target that is asked for on stdin: what takes seconds to import is there already.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from glassformer.ground.errors import GlassError
from tests.fuzz.targets import TARGETS

SECONDS = int(os.environ.get("FUZZ_SECONDS", 10))  # for one case
MEMORY = int(os.environ.get("FUZZ_MEMORY", 2 << 30))  # bytes that a case may take beyond what there is at the start; 0: any
MOST_FAILURES = 20


class TimeLimit(BaseException):
    """Not to be caught by what is tested."""


def _expire(number: int, frame: FrameType | None) -> None:
    raise TimeLimit


def virtual_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def fuzz(name: str, first: int, count: int) -> dict[str, Any]:
    """Cases `first` to `first + count - 1`: how many were accepted and refused, and which failed how."""
    signal.signal(signal.SIGALRM, _expire)
    warnings.simplefilter("always")
    warnings.simplefilter("ignore", DeprecationWarning)  # as Python does for people
    logging.getLogger("glassformer").addHandler(logging.NullHandler())  # notes for people are no noise
    accepted = refused = 0
    failures: list[tuple[int, str]] = []
    case = os.open(os.environ.get("FUZZ_CASE", os.devnull), os.O_WRONLY | os.O_CREAT)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, tempfile.TemporaryFile() as noise:
        target = TARGETS[name](Path(folder))
        target.read(target.make_good())
        if sys.platform == "linux" and MEMORY:
            resource.setrlimit(resource.RLIMIT_AS, (virtual_memory() + MEMORY, resource.RLIM_INFINITY))
        stderr = os.dup(2)
        os.dup2(noise.fileno(), 2)
        for number in range(first, first + count):
            os.pwrite(case, b"%15d" % number, 0)
            subject = target.make(random.Random(f"{name} {number}"))
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                target.read(subject)
                accepted += 1
            except GlassError:
                refused += 1
            except TimeLimit:
                failures.append((number, f"took more than {SECONDS} s"))
            except Exception as error:
                failures.append((number, f"{type(error).__name__}: {error}"[:300]))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if os.fstat(noise.fileno()).st_size:
                failures.append((number, f"wrote to stderr: {os.pread(noise.fileno(), 300, 0)!r}"))
                os.truncate(noise.fileno(), 0)
                os.lseek(noise.fileno(), 0, os.SEEK_SET)
            if len(failures) >= MOST_FAILURES:
                break
        os.dup2(stderr, 2)
    return {"accepted": accepted, "refused": refused, "refuses": target.refuses, "failures": failures}


def fork_for_each() -> None:
    """For each line `[name, first, count, folder]` a process, whose outcome is left in the folder; its status is printed."""
    import tokenizers  # noqa: F401
    import torch  # noqa: F401

    import glassformer.model_files
    import glassformer.runtime.model  # noqa: F401

    gc.freeze()  # what is imported is not searched for garbage in each of them
    for line in sys.stdin:
        name, first, count, folder = json.loads(line)
        child = os.fork()
        if not child:
            os.dup2(os.open(Path(folder, "stderr"), os.O_WRONLY | os.O_CREAT), 2)
            os.environ.update(FUZZ_CASE=str(Path(folder, "case")), TMPDIR=folder)
            tempfile.tempdir = None  # which is that of the process before
            Path(folder, "outcome").write_text(json.dumps(fuzz(name, first, count)))
            break
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print("\n".join(TARGETS))
    elif sys.argv[1] == "--fork":
        fork_for_each()
    else:
        json.dump(fuzz(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), sys.stdout)
