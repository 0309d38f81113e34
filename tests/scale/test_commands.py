"""The commands that run on a cluster, and calls of them that are refused."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from glassformer.cli.app import app
from glassformer.ground.errors import SettingError
from tests.cli.test_serve import served
from tests.jobs.models import GREEDY, chat_folder, write_rows
from tests.patience import patience
from tests.see.models import folder as model_folder

pytestmark = pytest.mark.usefixtures("command_folder")


def glass(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.mark.sweep
def test_run_and_task_write_on_a_cluster_what_they_write_here(cluster: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", GREEDY)
    write_rows(tmp_path / "texts.jsonl", ["the cat", "the dog"])
    commands = (
        ("run", "-m", chat_folder(), "--executor", "cpu", "--seed", 3, "--file", "in.jsonl"),
        ("task", "embed", "-m", model_folder("bert", "base")[0], "--file", "texts.jsonl"),
    )
    for number, command in enumerate(commands):
        here = glass(*command, "--out", f"here-{number}.jsonl")
        there = glass(*command, "--out", f"there-{number}.jsonl", "--ray", cluster, "--workers", 1)
        assert (here.exit_code, there.exit_code, there.stdout) == (0, 0, ""), (here.output, there.output, there.exception)
        assert " rows in " in there.stderr
        assert (tmp_path / f"there-{number}.jsonl").read_bytes() == (tmp_path / f"here-{number}.jsonl").read_bytes()


@pytest.mark.sweep
def test_errors_name_what_was_typed(cluster: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", GREEDY)
    settings = ("-o", "num_beams=2", "-o", "num_return_sequences=5")
    command = ("run", "-m", chat_folder(), "--executor", "cpu", *settings, "--file", "in.jsonl", "--out", "out.jsonl")
    here, there = glass(*command), glass(*command, "--ray", cluster, "--workers", 1)
    assert isinstance(there.exception, SettingError)
    assert str(there.exception) == str(here.exception)
    assert str(there.exception) == "-o num_return_sequences=5 is more than -o num_beams=2. Pass more beams."


@pytest.mark.sweep
def test_serve_answers_from_a_cluster_until_it_is_told_to_stop(cluster: str) -> None:
    words = ("-m", f"tiny={chat_folder()}", "--executor", "cpu", "--ray", cluster, "--replicas", "1")
    with served(*words) as (process, address):
        body = {"model": "tiny", "prompt": "hi", "max_tokens": 5, "temperature": 0}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=patience(60)).json()
        assert answer["usage"]["completion_tokens"] == 5
        stream = {**body, "max_tokens": 200, "stream": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=stream, timeout=patience(60)) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: {")
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"  # what runs may end
        out, errors = process.communicate(timeout=patience(60))
        assert (process.returncode, out, errors) == (0, "", "stopped.\n")
    from ray import serve

    assert serve.status().applications == {}
    serve.shutdown()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("run", "--file", "in", "--out", "out.jsonl", "--workers", 2),
            "--workers is for a cluster. Pass --ray ADDRESS, or",
        ),
        (("task", "embed", "a", "--workers", 2), "--workers is for a cluster. Pass --ray ADDRESS, or --ray local."),
        (("task", "embed", "a", "--ray", "local"), "--ray is for batch jobs. Pass one --file with the texts, and --out for"),
        (("serve", "--replicas", 2), "--replicas is for a cluster. Pass --ray ADDRESS, or --ray local."),
        (("run", "--ray", "local"), "a batch job needs both: --file with its rows, and --out for the answers."),
    ],
)
def test_calls_that_cannot_be_meant_are_refused(words: tuple[object, ...], message: str) -> None:
    done = glass(*words)
    assert isinstance(done.exception, SettingError)
    assert str(done.exception).startswith(message)
