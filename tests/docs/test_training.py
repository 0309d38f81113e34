"""docs/training.md: its commands, on small texts and for a few steps."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glassformer.cli.app import app
from glassformer.training.settings import SETTINGS, TrainingSettings
from tests.test_docs import ROOT, blocks
from tests.training.chat_models import write_chat_model

PAGE = ROOT / "docs" / "training.md"
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.S | re.M)
COMMANDS = [line for mark, block in FENCED if not mark for line in block.splitlines()]
BOOK = "".join(
    f"Chapter {number}. It was a dark and stormy night, and the {number} of us sat by the fire.\n" for number in range(90)
)
MOODS = {"lovely": "good", "great": "good", "dull": "bad", "awful": "bad"}
SMALL = ["--length", "48", "--vocabulary", "300", "--batch-size", "2"]  # added to commands that train

pytestmark = pytest.mark.usefixtures("one_thread")


def glass(command: str, *more: str) -> str:
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], *more])
    assert done.exit_code == 0, (command, done.output, done.exception)
    return done.stdout + done.stderr


def find(*words: str) -> str:
    (command,) = (line for line in COMMANDS if all(word in line for word in words))
    return command


def settings_table() -> str:
    def shown(value: Any) -> str:
        return "" if value is None else f"`{value}`"

    lines = ["| setting | option | what it does | default | bounds |", "|---|---|---|---|---|"]
    defaults = TrainingSettings(steps=1)
    for name, info in SETTINGS.items():
        flags = info.flags or (f"--{name.replace('_', '-')}",)
        option = ", ".join(f"`{flag}`" for flag in flags) if info.option else ""
        default = None if name == "steps" else getattr(defaults, name)
        bounds = "" if info.least is None else f"{info.least:g} to {info.most:g}"
        lines.append(f"| `{name}` | {option} | {info.help} | {shown(default)} | {bounds} |")
    return "\n".join(lines)


def test_the_settings_are_those_of_the_code() -> None:
    (found,) = re.findall(r"<!-- settings -->\n(.*?)<!-- /settings -->", PAGE.read_text("utf-8"), re.S)
    assert found.strip() == settings_table()


def test_every_command_is_known() -> None:
    assert len(COMMANDS) == 26
    assert {line.split()[0] for line in COMMANDS} == {"glass", "torchrun"}


def test_a_book_is_trained_on_resumed_and_evaluated(command_folder: Path) -> None:
    (command_folder / "book.txt").write_text(BOOK)
    shown = glass(find("train --text book.txt --out book "), *SMALL, "--evaluate-every", "15")
    assert "step 30 of 30" in shown
    assert "the model is in book" in shown
    assert glass(find("--resume")).count("the model is in book") == 1
    for command in (find("glass run -m speeches"), find("glass look")):
        glass(command.replace("-m speeches", "-m book"))
    assert "bits per byte" in glass(find("eval book --text book.txt --window"))
    assert "step 30 of 30" in glass(min((line for line in COMMANDS if "learning book" in line), key=len))
    assert "in layer 1, head 2" in glass(find("glass learning book", "dark"))


def test_encoders_and_encoder_decoders(command_folder: Path) -> None:
    (command_folder / "book.txt").write_text(BOOK)
    small = [*SMALL, "--steps", "4"]
    shown = glass(find("--arch bert --out book-bert"), *small)
    assert "glass task fill-mask -m book-bert" in shown
    assert shown.endswith("or glass learning book-bert\n")  # without a text, of which an encoder says nothing
    learned = glass("glass learning book-bert")
    assert "snapshots after steps 0, 1, " in learned
    assert "with a prompt" not in learned
    assert "dark and stormy" in glass(find("fill-mask"))
    assert glass(find("--arch t5 --out book-t5"), *small).endswith("or glass learning book-t5 'Once'\n")
    assert "book-t5" in glass("glass learning book-t5 'Once'")


def test_task_heads(command_folder: Path, minilm: Path) -> None:
    pairs = [(f"a {word} thing, number {number}", label) for number in range(12) for word, label in MOODS.items()]
    lines = ["text,label", *(f'"{text}",{label}' for text, label in pairs)]
    (command_folder / "reviews.csv").write_text("\n".join(lines))
    tags = {"Ada": "B-PER", "lived": "O", "in": "O", "London": "B-LOC"}
    rows = [
        {"tokens": [*tags], "tags": [*tags.values()]},
        {"text": "Ada", "spans": [{"start": 0, "end": 3, "label": "PER"}]},
    ]
    (command_folder / "names.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [{"source": word, "target": word[::-1]} for word in ("ab", "ba", "abc", "cab")]
    (command_folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in words))
    few = ["--steps", "2", "--batch-size", "2"]
    assert "held-out" in glass(find("--task classify --data reviews.csv --init minilm"), *few)
    assert any(label in glass(find("text-classification -m mood")) for label in MOODS.values())
    assert "confusion matrix" in glass(find("eval mood"))
    glass(find("--task tag"), *few, "--length", "24")
    glass(find("task ner"))
    glass(find("--task seq2seq --data words.jsonl --arch t5"), *few, "--length", "24")
    glass(find("eval backwards"))
    assert "exact match" in (command_folder / "backwards.html").read_text("utf-8")


def test_a_model_learns_to_answer_and_what_to_prefer(command_folder: Path) -> None:
    write_chat_model(command_folder / "base")
    rows = re.findall(r"^\{.*\}$", PAGE.read_text("utf-8"), re.M)
    assert len(rows) == 3
    (command_folder / "chats.jsonl").write_text("\n".join(rows[:2] * 4))
    (command_folder / "pairs.jsonl").write_text("\n".join(rows[2:] * 4))
    shown = glass(find("--chat").replace("smollm2", "base"), "--steps", "2")
    assert "'What is 1 + 1? → " in shown
    assert "the model is in mine. Let it write: glass run -m mine 'Hello'" in shown
    for command in (find("--adapter mine"), find("glass run -m mine")):
        assert glass(command.replace("smollm2", "base"), "-n", "2")
    assert "mine-q4_k.gguf" in glass(find("quantize mine"), "--no-perplexity")
    assert "the model is in kinder" in glass(find("--preferences").replace("smollm2", "base"), "--steps", "2")


def test_two_processes(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK)
    words = shlex.split(find("torchrun"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:], *SMALL, "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "book2" / "model.safetensors").exists()


def test_python(command_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(PAGE, "python")
    exec(compile(block, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert "StepDone(step=20," in printed
    assert "Evaluated(step=20," in printed
