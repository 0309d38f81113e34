"""Tiny models for jobs, a file of rows, and jobs in a process of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import glassformer
from glassformer.runtime.model import Model
from tests.see.models import folder

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
GREEDY: list[dict[str, Any]] = [
    {"id": f"row {number}", "prompt": "the cat sat " * (number % 4 + 1), "max_new_tokens": 3 + number % 9}
    for number in range(12)
]
SAMPLED: list[dict[str, Any]] = [
    {**row, "id": f"sampled {number}", "do_sample": True, "temperature": 1.3} for number, row in enumerate(GREEDY)
]


@cache
def chat_folder() -> Path:
    """A tiny Llama with a chat template."""
    place = Path(mkdtemp()) / "tiny"
    shutil.copytree(folder("llama", "causal")[0], place)
    config = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return place


@cache
def chat_model() -> Model:
    return glassformer.load(chat_folder(), executor="cpu")


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def start_glass(*words: object, first: str = "") -> subprocess.Popen[str]:
    """The command in a process of its own, which runs some code first."""
    code = f"{first}\nfrom glassformer.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
