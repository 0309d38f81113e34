"""The process of a rank other than 0: it loads its part of each model, and makes the calls that rank 0 makes."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from glassformer.engine.tensor_parallel.executor import FollowingExecutor
from glassformer.engine.tensor_parallel.process_group import ProcessGroup, join
from glassformer.engine.tensor_parallel.ranks import SAME_ON_ALL_RANKS
from glassformer.ground.errors import GlassError


def main() -> None:
    """Run a rank, with the arguments that `ranks.start` gives it, until rank 0 ends."""
    handle, folder, rank, ranks, device, timeout, threads = sys.argv[1:]
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    logging.getLogger("glassformer").addHandler(logging.NullHandler())  # rank 0 says the same
    torch.set_num_threads(int(threads))
    connection = Connection(int(handle))
    try:
        follow(connection, join(Path(folder), int(rank), int(ranks), device, float(timeout)))
    except EOFError:
        os._exit(0)
    except BaseException as error:
        first_line = (str(error).splitlines() or [""])[0].rstrip(".")
        connection.send(first_line if isinstance(error, GlassError) else f"{type(error).__name__}: {first_line}")
        os._exit(1)  # whatever another thread waits for


def follow(connection: Connection, group: ProcessGroup) -> None:
    """Make the calls that arrive, until the connection ends."""
    models: dict[int, FollowingExecutor] = {}
    while True:
        number, method, *arguments = connection.recv()
        if method == "load":
            (part,) = arguments
            models[number] = FollowingExecutor(part.load(group))
            connection.send(None)
            continue
        with suppress(*SAME_ON_ALL_RANKS):  # about the call itself: rank 0 raises it too
            getattr(models[number], method)(*arguments)


def _end_with_rank_0() -> None:
    """End when rank 0 does, also in the middle of a sum with it: it holds the other end of stdin."""
    sys.stdin.buffer.read()
    os._exit(0)
