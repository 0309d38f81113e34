"""Several processes, and processes that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from glassformer.training.events import Evaluated, StepDone
from glassformer.training.trainer import Trainer
from tests.patience import patience
from tests.training.models import SETTINGS, language_model, tiny_model

pytestmark = pytest.mark.processes

GLASS = [sys.executable, "-c", "from glassformer.cli import main; main()", "train"]
TRAINING = ["--steps", "40", "--batch-size", "2", "--length", "8", "--vocabulary", "280", "--save-every", "3",
            "--evaluate-every", "20", "--arch", "llama", "--preset", "tiny", "--device", "cpu"]  # fmt: skip
TEXT = "".join(f"{number} bottles of beer on the wall, {number} bottles of beer.\n" for number in range(99, 0, -1))


@pytest.fixture(scope="module")
def trained_by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left of a training with copies of the model, and of one with shards."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "tests.training.distributed", str(folder)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("mode", ["copies", "shards"])
def test_two_processes_have_the_losses_of_one(mode: str, trained_by_two: Path) -> None:
    """Each with a copy of the model; or each with a half of every weight, and taken up again on the way."""
    folder = trained_by_two / mode
    ranks, losses, own_numbers = json.loads((folder / "losses.json").read_text())
    alone = Trainer(tiny_model(), language_model(), SETTINGS)
    expected = [event.loss for event in alone.run() if isinstance(event, StepDone | Evaluated)]
    assert ranks == 2
    assert losses == pytest.approx(expected, rel=1e-4)
    if mode == "shards":
        parameters = dict(alone.model.named_parameters())
        assert own_numbers < 0.6 * sum(parameter.numel() for parameter in parameters.values())
        weights = load_file(folder / "weights.safetensors")
        assert weights.keys() == parameters.keys()
        for name, value in weights.items():
            assert value == pytest.approx(parameters[name].detach().numpy(), abs=1e-4)


def glass_train(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLASS_THREADS": "1"}
    return subprocess.Popen([*GLASS, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def final_weights(folder: Path) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in load_file(folder / "model.safetensors").items()}


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.sweep)])
def test_a_killed_training_ends_with_the_weights_of_an_unbroken_one(kills: int, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    begin = ["--text", str(tmp_path / "text.txt"), *TRAINING]
    whole = glass_train(*begin, "--out", str(tmp_path / "whole"))
    broken, draw, killed = tmp_path / "broken", random.Random(7), 0
    assert whole.wait() == 0, whole.communicate()[1]
    while killed < kills:
        arguments = ["--resume"] if (broken / "training.json").exists() else begin
        process = glass_train(*arguments, "--out", str(broken))
        enough = lines(broken) + draw.randint(1, 8)  # of the log, so that it has begun to train
        while process.poll() is None and lines(broken) < enough:
            time.sleep(0.001)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += 1
    last = glass_train("--resume", "--out", str(broken))
    assert last.wait() == 0, last.communicate()[1]
    assert killed
    assert final_weights(broken) == final_weights(tmp_path / "whole")
    steps = [
        json.loads(line)["step"] for line in (broken / "metrics.jsonl").read_text().splitlines() if '"kind": "step"' in line
    ]
    assert steps == list(range(1, 41))


def lines(folder: Path) -> int:
    try:
        return len((folder / "metrics.jsonl").read_text().splitlines())
    except FileNotFoundError:
        return 0


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    out = tmp_path / "out"
    process = glass_train("--text", str(tmp_path / "text.txt"), "--out", str(out), *TRAINING, "--steps", "100000")
    while process.poll() is None and lines(out) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=patience(60))
    assert process.returncode == 130
    step = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert step["kind"] == "checkpoint"
    assert f"glass: stopped after step {step['step']}. Go on: glass train --out {out} --resume" in errors
