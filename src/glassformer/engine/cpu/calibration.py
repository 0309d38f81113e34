"""How fast this machine decodes a model that is not here, from its size: measured once on weights that hold no model.

A token takes a time for each block (threads that wait for each other, norms, attention) and a time for each byte of weights
that is read and multiplied. Both follow from two synthetic models, a deep narrow one and a wide shallow one, for each kind
of weights. The result is kept in the cache for this processor, these cores and this library; if other programs took a part
of the processors, for a day.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.engine.cpu.cores import available
from glassformer.engine.cpu.library import Engine, FileKind, MatrixKind
from glassformer.engine.cpu.thread_bench import SHAPES, SyntheticDecoder, WeightKind, best_times
from glassformer.engine.cpu.thread_count import DAY, chosen_threads, kept_path
from glassformer.ground.errors import WriteError
from glassformer.ground.files import write_text
from glassformer.ground.progress import Progress

WIDE: Mapping[str, Any] = {
    **SHAPES, "num_hidden_layers": 3, "hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
KINDS: Mapping[str, tuple[WeightKind, WeightKind]] = {  # of matrices and of the table
    "Q4_1": (FileKind.Q4_1, FileKind.Q8_0),
    "Q8_0": (FileKind.Q8_0, FileKind.Q8_0),
    "BF16": (MatrixKind.BF16, MatrixKind.BF16),
}
SECONDS = 0.4  # of measuring each model of each kind


@dataclass(frozen=True)
class DecodeRate:
    """What a token takes."""

    seconds_per_block: float
    bytes_per_second: float  # of weights, read and multiplied

    def tokens_per_second(self, blocks: int, weight_bytes: int) -> float:
        return 1 / (blocks * self.seconds_per_block + weight_bytes / self.bytes_per_second)


@dataclass(frozen=True)
class Calibration:
    threads: int
    rates: Mapping[str, DecodeRate]  # by kind
    disturbed: bool  # whether other programs took a part of the processors meanwhile


def calibration(progress: Progress | None = None) -> Calibration:
    """This machine's, measured now if none is kept."""
    threads = chosen_threads().threads
    path = _path(threads)
    return _read(path, threads) or _keep(path, measure(threads, progress))


def measure(threads: int, progress: Progress | None = None) -> Calibration:
    rates: dict[str, DecodeRate] = {}
    disturbed = False
    for index, (kind, kinds) in enumerate(KINDS.items()):
        points = []
        for part, shapes in enumerate((SHAPES, WIDE)):
            decoder = SyntheticDecoder(shapes, *kinds)
            timing = best_times({threads: partial(decoder.run, Engine(threads=threads))}, SECONDS)[threads]
            points.append((shapes["num_hidden_layers"], decoder.weight_bytes, timing.seconds))
            disturbed |= timing.disturbed
            if progress is not None:
                progress(2 * index + part + 1, 2 * len(KINDS))
        rates[kind] = solve(*points)
    return Calibration(threads, rates, disturbed)


def solve(deep: tuple[int, int, float], wide: tuple[int, int, float]) -> DecodeRate:
    """The two times that explain two measurements of (blocks, bytes, seconds); a block takes no less than nothing."""
    (blocks, size, seconds), (few, large, longer) = deep, wide
    per_byte = (longer * blocks - seconds * few) / (large * blocks - size * few)
    per_block = (seconds - size * per_byte) / blocks
    if per_byte <= 0 or per_block < 0:
        return DecodeRate(0.0, (size + large) / (seconds + longer))
    return DecodeRate(per_block, 1 / per_byte)


def _path(threads: int) -> Path:
    """Beside the number of threads, whose name is a hash of what both depend on."""
    kept = kept_path(available())
    return kept.with_name(kept.name.replace("threads-", f"speed-{threads}-"))


def _read(path: Path, threads: int) -> Calibration | None:
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):
        kept = json.loads(path.read_text("utf-8"))
        rates = {kind: DecodeRate(**kept["rates"][kind]) for kind in KINDS}
        sound = all(rate.seconds_per_block >= 0 and rate.bytes_per_second > 0 for rate in rates.values())
        if sound and (kept["expires"] is None or time.time() < kept["expires"] <= time.time() + DAY):
            return Calibration(threads, rates, bool(kept["disturbed"]))
    return None


def _keep(path: Path, found: Calibration) -> Calibration:
    rates = {kind: asdict(rate) for kind, rate in found.rates.items()}
    kept = {"rates": rates, "disturbed": found.disturbed, "expires": time.time() + DAY if found.disturbed else None}
    with suppress(OSError, WriteError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(kept))
    return found
