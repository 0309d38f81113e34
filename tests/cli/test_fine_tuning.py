"""`glass train` on conversations and preferences: the options, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from glassformer.cli.app import app
from glassformer.ground.errors import SettingError
from tests.cli.test_view_verbs import ran
from tests.training.chat_models import CHATS, write_chat_model, write_rows

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chat", "a.jsonl"], "--chat trains a model that exists: name it with --init MODEL, such as --init smollm2."),
        (["--chat", "a.jsonl", "--preferences", "b.jsonl"], "--chat and --preferences are different things to learn from."),
        (["--text", "a.txt", "--chat", "b.jsonl"], "--chat and --text are different things to learn from."),
        (["--init", "x", "--dpo-beta", "0.2"], "--dpo-beta is for pairs of answers: give them with --preferences FILE."),
        (["--lora-alpha", "8"], "--lora-alpha is for a LoRA: add its rank, --lora 8."),
        (["--lora", "8"], "--lora trains beside a model that exists: name it with --init MODEL."),
        (["--epochs", "2"], "--epochs is for rows: give --chat FILE."),
        (["--no-pack"], "--no-pack is for rows: give --chat FILE."),
        (["--chat", "a.jsonl", "--init", "x", "--merge"], "--merge is for a LoRA, and the whole model is trained"),
        (["--resume", "--chat", "a.jsonl"], "--resume goes on with what the training was begun with"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "out"), *arguments])
    assert isinstance(done.exception, SettingError)
    assert message in str(done.exception)
    assert not (tmp_path / "out" / "training.json").exists()


def test_a_lora_is_trained_gone_on_with_and_run(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "base")
    data = write_rows(tmp_path / "chats.jsonl", CHATS)
    base, out = str(tmp_path / "base"), str(tmp_path / "out")
    printed = ran(
        "train", "--init", base, "--chat", data, "--lora", "4", "--lora-targets", "q_proj,v_proj", "--lora-dropout", "0.1",
        "--epochs", "1", "--batch-size", "8", "--learning-rate", "0.01", "--out", out, "--json",
    )  # fmt: skip
    events = [json.loads(line) for line in printed.splitlines()]
    assert {event["kind"] for event in events} == {"step", "evaluation", "checkpoint", "snapshot"}
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["target_modules"] == ["q_proj", "v_proj"]
    assert ran("train", "--out", out, "--resume", "--json") == ""  # nothing is left to do
    question = ["What is 1 + 1?", "-n", "3", "--executor", "plain"]
    assert ran("run", *question, "-m", base, "--adapter", out) == ran("run", *question, "-m", out)
