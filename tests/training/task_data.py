"""Rows of each task, few enough to be learned by heart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REVIEWS = [
    {"text": f"a {word} {thing}", "label": label}
    for thing in ("film", "book")
    for word, label in (("great", "good"), ("lovely", "good"), ("dull", "bad"), ("awful", "bad"))
]
NAMES = [
    {"tokens": [*who, "lived", "in", *where], "tags": [*tags(who, "PER"), "O", "O", *tags(where, "LOC")]}
    for tags in [lambda words, kind: [f"B-{kind}", *[f"I-{kind}"] * (len(words) - 1)]]
    for who in (["Ada"], ["Alan", "Turing"])
    for where in (["London"], ["New", "York"])
]
WORDS = [{"source": word, "target": word[::-1]} for word in ("abc", "def", "ghi", "jkl")]
ROWS: dict[str, list[dict[str, Any]]] = {"classify": REVIEWS, "tag": NAMES, "seq2seq": WORDS}


def write_rows(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)
