"""Every target over all cores, in processes of a few thousand cases; a line for each target, and each failure.

python -m tests.fuzz.campaign 100000            # all targets
python -m tests.fuzz.campaign 100000 gguf model # some
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fuzz.targets import TARGETS
from tests.fuzz.test_fuzz import outcome

SHARE = 2_500  # cases in one process


def main() -> None:
    count, names = int(sys.argv[1]), sys.argv[2:] or list(TARGETS)
    shares = [(name, first, min(SHARE, count - first)) for first in range(0, count, SHARE) for name in names]
    totals: dict[str, Counter[str]] = {name: Counter() for name in names}

    def run(share: tuple[str, int, int]) -> None:
        name, first, size = share
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            try:
                result: dict[str, Any] = outcome(name, first, size, Path(folder))
            except AssertionError as error:
                result = {"accepted": 0, "refused": 0, "failures": [(first, str(error))]}
        totals[name].update(accepted=result["accepted"], refused=result["refused"], failed=len(result["failures"]))
        for number, reason in result["failures"]:
            print(f"{name} {number}: {reason}", flush=True)
        done = totals[name]["accepted"] + totals[name]["refused"]
        if done >= count:
            print(f"{name}: {done:,} cases, {dict(totals[name])}", flush=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, shares))
    cases = sum(total["accepted"] + total["refused"] for total in totals.values())
    failures = sum(total["failed"] for total in totals.values())
    print(f"{cases:,} cases of {len(names)} targets, {failures} failures")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
