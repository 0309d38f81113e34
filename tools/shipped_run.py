"""Record the run that the studio opens with, from the real model: `python tools/shipped_run.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import glassformer
from glassformer.see.recording import CANDIDATES

FILE = Path(__file__).parents[1] / "studio" / "shipped-run.json"
MAX_BYTES = 60_000
DIGITS = {"scores": 5, "paths": 5, "draw": 5}  # significant digits of a number; of others OTHER_DIGITS
OTHER_DIGITS = 3  # more than any pixel shows


def shortened(value: Any, digits: int = OTHER_DIGITS) -> Any:
    """Plain data with numbers of a few digits, and without the zeros that they end with."""
    if isinstance(value, float):
        number = float(f"{value:.{digits}g}")
        return int(number) if number.is_integer() else number
    if isinstance(value, dict):
        return {name: shortened(item, DIGITS.get(name, digits)) for name, item in value.items()}
    return [shortened(item, digits) for item in value] if isinstance(value, list) else value


def main() -> None:
    model = glassformer.load("smollm2")
    run = model.watch(
        "how are you?", look=CANDIDATES, do_sample=True, temperature=1.0, top_p=0.95, seed=143, max_new_tokens=64
    )
    data = json.dumps(shortened(run.recording.to_dict()), ensure_ascii=False, separators=(",", ":")) + "\n"
    if (size := len(data.encode())) > MAX_BYTES:
        raise SystemExit(f"the recording has {size:,} bytes, and may have {MAX_BYTES:,}. Choose a shorter run.")
    FILE.write_text(data, "utf-8")
    print(f"{FILE.name}: {size:,} bytes, {len(run.steps)} tokens: {run.text}")


if __name__ == "__main__":
    main()
