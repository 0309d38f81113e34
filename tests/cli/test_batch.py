"""Batch jobs at the command line: what is printed where, exit codes, and calls that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from glassformer.cli import bars
from glassformer.cli.app import app
from glassformer.ground.errors import GlassError
from tests.jobs.models import chat_folder, read_rows, write_rows

pytestmark = pytest.mark.usefixtures("one_thread", "command_folder")


def glass(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def run(*words: object) -> Result:
    return glass("run", "-m", chat_folder(), "--executor", "cpu", "--file", "in.jsonl", "--out", "out.jsonl", *words)


def test_notes_go_to_stderr_and_stdout_is_untouched(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"prompt": "hi"}, "ho"])
    done = run("-n", 3, "--temperature", 0.5, "--stop", "x", "-o", "logprobs=1")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "2 rows in " in done.stderr
    assert " → " in done.stderr
    assert [len(row["logprobs"]) for row in read_rows(tmp_path / "out.jsonl")] == [3, 3]
    assert ": all were finished before" in run("-n", 3, "--temperature", 0.5, "--stop", "x", "-o", "logprobs=1").stderr
    changed = run("-n", 4, "--temperature", 0.5, "--stop", "x", "-o", "logprobs=1")
    assert isinstance(changed.exception, GlassError)
    assert "max_new_tokens was 3 and is 4" in str(changed.exception)


def test_failed_rows_give_exit_code_1(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"prompt": "hi"}, {}, {"prompt": ""}])
    done = run("-n", 2, "--json")
    assert done.exit_code == 1
    assert "glass: 2 of 3 rows failed; their error says why." in done.stderr
    summary = json.loads(done.stdout)
    assert summary == {
        "output": str(tmp_path / "out.jsonl"), "rows": 3, "failed": 2, "resumed": 0,
        "prompt_tokens": summary["prompt_tokens"], "completion_tokens": 2, "seconds": summary["seconds"],
    }  # fmt: skip


def test_prompt_options_are_for_every_row(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", ["hi", {"prompt": "hi", "system": "B"}])
    assert run("-n", 1, "--system", "Be brief.").exit_code == 0
    first, second = read_rows(tmp_path / "out.jsonl")
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"] + len("e brief.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--file", "in.jsonl"], "a batch job needs both: --file with its rows, and --out for the answers."),
        (["--out", "out.jsonl"], "a batch job needs both: --file with its rows, and --out for the answers."),
        (["hi", "--file", "in.jsonl", "--out", "o.jsonl"], "--file has the prompts. Leave the prompt out."),
        (["--file", "in.jsonl", "--out", "o.jsonl", "--why"], "--why is for a single prompt. Leave it out."),
        (["--file", "in.jsonl", "--out", "o.jsonl", "--save", "a.json"], "--save is for a single prompt. Leave it out."),
        (["--file", "in.jsonl", "--out", "o.jsonl", "--studio", "a.html"], "--studio is for a single prompt. Leave it out."),
        (["--file", "in.jsonl", "--out", "o.jsonl", "--replay", "a.json"], "--replay takes all settings"),
    ],
)
def test_wrong_calls_of_run(words: list[str], message: str) -> None:
    done = glass("run", *words)
    assert isinstance(done.exception, GlassError)
    assert str(done.exception).startswith(message)


def test_answers_go_to_stdout_where_that_is_the_output(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"prompt": "hi"}, {"prompt": "ho\n"}, {}])
    words = ("run", "-m", chat_folder(), "--executor", "cpu", "--file", "in.jsonl", "-n", 2)
    done = glass(*words, "--out", "-")
    assert done.exit_code == 1
    assert "3 rows in stdout" in done.stderr
    assert "1 of 3 rows failed" in done.stderr
    assert glass(*words, "--out", "out.jsonl").exit_code == 1
    assert [json.loads(line) for line in done.stdout.splitlines()] == read_rows(tmp_path / "out.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl", "out.jsonl.ledger"]
    both = glass(*words, "--out", "-", "--json")
    assert "--json prints a summary, and --out - the answers" in str(both.exception)


def test_a_task_writes_its_answers_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the cat\nthe dog\n")
    words = ("task", "text-generation", "-m", chat_folder(), "-n", 3, "-f", "lines.txt", "--out", "out.jsonl")
    done = glass(*words)
    assert (done.exit_code, done.stdout) == (0, "")
    outputs = [row["output"][0]["generated_text"] for row in read_rows(tmp_path / "out.jsonl")]
    assert [text[:7] for text in outputs] == ["the cat", "the dog"]
    for more in (["a text"], ["--whole"], ["--jsonl"], ["-f", "other.txt"]):
        refused = glass(*words, *more)
        assert isinstance(refused.exception, GlassError)
        assert "--out takes the texts from one --file alone" in str(refused.exception)


def test_the_bar_shows_rows_and_tokens(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with bars.job_bar("out.jsonl") as show:
        show(0, 20, 0, 0)
        show(7, 20, 2, 1000)
    shown = capsys.readouterr().err
    assert "out.jsonl" in shown
    assert "7/20" in shown
    assert "2 failed" in shown
    assert "tokens/s" in shown


def test_an_interrupt_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("glassformer.jobs.run_job", interrupted)
    write_rows(tmp_path / "in.jsonl", ["hi"])
    done = run()
    assert done.exit_code == 130
    assert "glass: stopped. Run the same command again to go on." in done.stderr
