"""`glass learning`, and what `glass train` leaves for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from glassformer.cli import training_display
from glassformer.see.training_curves import read_training
from glassformer.training.events import Evaluated, StepDone
from tests.cli.test_cli import failed, glass
from tests.see.models import folder
from tests.training.folders import evaluation_line, step_line, training_folder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return training_folder(
        tmp_path / "book", [step_line(1, 5.5), step_line(2, 4.5), evaluation_line(2, 4.75)], ("gpt2",) * 2, 9
    )


def test_a_training_leaves_its_curves_and_snapshots(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one two three four five six seven eight nine ten\n" * 60)
    out = tmp_path / "words"
    settings = ("--steps", "4", "--batch-size", "2", "--length", "8", "--vocabulary", "280", "--evaluate-every", "2")
    done = glass("train", "--text", str(tmp_path / "words.txt"), "--out", str(out), *settings, "--snapshots", "3")
    assert done.returncode == 0, done.stderr
    assert f"see how it learned: {out / 'curves.html'}, or glass learning {out} 'Once'" in done.stderr
    curves = read_training(out)
    assert (curves.steps, curves.snapshots) == (4, (0, 2, 4))
    page = (out / "curves.html").read_text("utf-8")
    assert f"{curves.held_out[-1].loss:.4f}" in page
    assert "<polyline" in page
    assert "<script" not in page
    shown = json.loads(glass("learning", str(out), "one two", "--json").stdout)
    assert [at["step"] for at in shown["snapshots"]] == [0, 2, 4]
    (out / "metrics.jsonl").unlink()
    assert glass("train", "--out", str(out), "--resume").returncode == 0  # nothing to draw, but a model
    assert glass("run", "-m", str(out / "snapshots" / "step-00000002"), "--raw", "one", "-n", "2").returncode == 0


@pytest.mark.parametrize("name", ["nothere.txt", "books/nothere.txt", "/nothere.txt", "sot", "smollm2", "", "x" * 5000])
def test_a_text_that_is_not_there(name: str, command_folder: Path) -> None:
    told = failed(glass("train", "--text", name, "--out", "out"))
    assert f"there is no text {name!r}." in told
    assert "Give a text file, a folder of them, or a name: " in told
    assert ("Did you mean 'sotu'?" in told) == (name == "sot")


@pytest.mark.parametrize("rate", ["1e9", "nan", "-1"])
@pytest.mark.parametrize(
    "what", [("--text", "words.txt"), ("--task", "classify", "--data", "rows.csv"), ("--recipe", "g2p")]
)
def test_a_refused_setting_is_told_before_all_else(what: tuple[str, ...], rate: str, command_folder: Path) -> None:
    """Before files that are not there either."""
    told = failed(glass("train", *what, "--out", "made/out", "--lr", rate))
    assert "is not from 0 to 10." in told
    assert list(command_folder.iterdir()) == []


def test_a_refused_training_leaves_nothing(command_folder: Path) -> None:
    (command_folder / "words.txt").write_text("one two three")
    (command_folder / "kept").mkdir()
    (command_folder / "kept" / "note").write_text("mine")
    for out in ("made/out", "kept"):
        told = failed(glass("train", "--text", "words.txt", "--out", out, "--vocabulary", "280"))
        assert "fewer than one window" in told  # known when the tokenizer is made
    assert sorted(str(path.relative_to(command_folder)) for path in command_folder.rglob("*")) == [
        "kept", "kept/note", "words.txt",
    ]  # fmt: skip


def test_an_unfinished_training_is_no_model(book: Path, tmp_path: Path) -> None:
    newest = book / "snapshots" / "step-00000010"
    told = f"{book}: a training that has not ended, and so no model yet. Resume it with glass train --out {book} --resume"
    assert f"{told}, or use {newest}." in failed(glass("run", "-m", str(book), "--raw", "the"))
    assert f"{told}, or use {newest}." in failed(glass("tokens", "-m", str(book), "the"))
    assert f"{told}, or use {newest}." in failed(glass("models", "params", str(book)))
    assert f"{told}, or use {newest}." in failed(glass("models", "quantize", str(book), "--to", "q8_0"))
    assert f"{told}, or use {newest}." in failed(glass("run", "-m", str(newest), "--adapter", str(book), "--raw", "the"))
    assert glass("run", "-m", str(newest), "--raw", "the", "-n", "1").returncode == 0
    shutil.rmtree(book / "snapshots")
    assert f"{told}." in failed(glass("run", "-m", str(book), "--raw", "the"))


def test_a_log_is_never_silent_for_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of ten seconds, by a clock that is set: every third is printed, but after an evaluation it takes three more."""
    now = 0.0
    monkeypatch.setattr(training_display.time, "perf_counter", lambda: now)
    with training_display.reports(8, 0, as_json=False) as report:
        for step in range(1, 9):
            now += 10
            report(StepDone(step, 2.0, 0.1, 1.0, 500, 10.0, 0.0))
            if step == 4:
                report(Evaluated(step, 1.5, 0.0, {}, 7))
    assert capsys.readouterr().err.splitlines() == [
        "step 3 of 8 · loss 2.000 · 50 tokens/s · 0:50 left",
        "step 4 of 8 · loss 2.000 · held-out 1.500 on 7 examples · 50 tokens/s · 0:40 left",
        "step 7 of 8 · loss 2.000 · held-out 1.500 on 7 examples · 50 tokens/s · 0:10 left",
        "step 8 of 8 · loss 2.000 · held-out 1.500 on 7 examples · 50 tokens/s · 0:00 left",  # the last one in any case
    ]


def test_curves_in_the_terminal_and_as_a_page(book: Path, tmp_path: Path) -> None:
    shown = glass("learning", str(book)).stdout
    assert "step 2 of 9 · 200 tokens read" in shown
    assert "○" in shown
    assert "4.7500" in shown
    file = tmp_path / "curves.html"
    assert glass("learning", str(book), "--save", str(file)).stdout == f"{file}\n"
    assert "aria-label=&quot;" not in file.read_text("utf-8")
    assert 'aria-label="loss, in nats per token: loss from 5.5 to 4.5; held-out loss from 4.75 to 4.75"' in file.read_text(
        "utf-8"
    )


def test_a_text_under_each_snapshot(book: Path) -> None:
    shown = glass("learning", str(book), "the cat", "--token", "c", "--layer", "0", "--head", "1").stdout
    assert "expected after c (position 4)" in shown
    assert "what c attends to, in layer 0, head 1" in shown


def test_what_cannot_be_shown_is_said_in_a_sentence(book: Path, tmp_path: Path) -> None:
    assert "--layer goes with PROMPT" in failed(glass("learning", str(book), "--layer", "0"))
    assert "holds no training (metrics.jsonl)" in failed(glass("learning", str(tmp_path)))
    assert "holds no snapshots of a training" in failed(glass("learning", str(tmp_path), "the cat"))
    bert = folder("bert", "masked")[0]
    shutil.copytree(bert, tmp_path / "bert" / "snapshots" / "step-00000001")
    told = failed(glass("learning", str(tmp_path / "bert"), "the cat"))
    assert "writes no text, so it cannot be asked what comes next. Leave the text out to see its curves." in told
    (book / "metrics.jsonl").write_text("")
    assert "no step of a training stands in it" in failed(glass("learning", str(book)))
