"""The command, as people run it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import click
import pytest
from huggingface_hub import constants

from glassformer.cli import main
from glassformer.cli.app import VERBS, app, operation_verbs
from tests.patience import patience
from tests.sweeps import swept


def glass(*words: str, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command: in this process, which has its modules already; in one of its own where the surroundings are others."""
    ours = environment.keys() <= {"COLUMNS", "GLASS_HOME", "HF_HOME", "HF_HUB_OFFLINE"}
    return (called if ours else spawned)(*words, stdin=stdin, **environment)


def spawned(*words: str, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from glassformer.cli import main; main()", *words],
        capture_output=True,
        text=True,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        env={**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **environment},
        timeout=patience(240),
    )


def called(*words: str, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    streams = [io.TextIOWrapper(io.BytesIO((stdin or "").encode()), "utf-8")]
    streams += [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    notes = logging.getLogger("glassformer")
    handlers, code = list(notes.handlers), 0
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"COLUMNS": "100", **environment}.items():
            patch.setenv(name, value)
        if hub := environment.get("HF_HOME"):  # which the library reads when it is imported
            patch.setattr(constants, "HF_HUB_CACHE", str(Path(hub) / "hub"))
            patch.setattr(constants, "HF_HUB_OFFLINE", "HF_HUB_OFFLINE" in environment)
        patch.setattr(sys, "argv", ["glass", *words])
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        try:
            main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
        finally:
            notes.handlers = handlers
            for number, handler in heard.items():
                signal.signal(number, handler)
    said = [cast(io.BytesIO, stream.buffer).getvalue().decode() for stream in streams[1:]]
    return subprocess.CompletedProcess(words, code, *said)


def failed(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """One sentence on stderr, nothing on stdout, no traceback."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("verb", [*VERBS, *operation_verbs()])
def test_help_of_each_verb(verb: str) -> None:
    assert f"\n  {verb} " in glass("--help").stdout
    shown = glass(verb, "--help")
    assert shown.returncode == 0
    first, *_ = re.split(r"\n\n", shown.stdout.partition("\n\n")[2])
    # said in the table too, or read off a file, so that the list needs no verb's module
    stated = VERBS.get(verb) or next(view.verb_help for view in operation_verbs()[verb] if view.section is not None)
    assert " ".join(first.split()) == stated
    if verb not in ("models", "steer"):  # whose own verbs have them
        assert re.search(rf"^Examples:\n  (.* )?glass {verb}\b", shown.stdout, re.M)
    assert "list[" not in shown.stdout


def test_help_imports_no_verb() -> None:
    code = "import sys; sys.argv = ['glass', '--help']\nfrom glassformer.cli import main\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "assert not {'rich', 'numpy', 'glassformer.cli.run'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_version() -> None:
    from glassformer import __version__

    assert glass("--version").stdout == f"glass {__version__}\n"


@pytest.mark.parametrize(
    "words", [("--help",), ("run", "--help"), ("models", "list", "--json"), ("run", "--raw", "Hi", "-n", "2")]
)
def test_torch_is_not_imported(words: tuple[str, ...], smollm2: Path) -> None:
    """Not even to write a text: the native engine does."""
    arguments = ", ".join(repr(word) for word in ("glass", *words))
    code = f"import sys; sys.argv = [{arguments}]\nfrom glassformer.cli import main\n"
    code += "try: main()\nexcept SystemExit as left: assert not left.code\n"
    code += "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_run_imports_nothing_that_other_formats_and_strategies_need(smollm2: Path) -> None:
    code = "import sys; sys.argv = ['glass', 'run', '--raw', 'Hi', '-n', '2']\nfrom glassformer.cli import main\n"
    code += "try: main()\nexcept SystemExit as left: assert not left.code\n"
    code += "unneeded = {'rich', 'glassformer.decoding.beams', 'glassformer.decoding.speculative', "
    code += "'glassformer.text.tokenizer_files.tokenizer_folder'}\n"
    code += "assert not unneeded & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_run_streams_and_sums_up(tiny_qwen3: Path) -> None:
    done = glass("run", "how are you?", "-m", str(tiny_qwen3), "-n", "5")
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    (line,) = done.stderr.splitlines()
    assert re.search(r"chat template · greedy · cpu \(\w+, \d+ threads?\), F32 · 16 → 5 tokens, cut at the limit", line)


def test_run_takes_a_model_before_the_prompt(tiny_qwen3: Path) -> None:
    named = glass("run", "how are you?", "-m", str(tiny_qwen3), "-n", "5")
    first = glass("run", str(tiny_qwen3), "how are you?", "-n", "5")
    unquoted = glass("run", str(tiny_qwen3), "how", "are", "you?", "-n", "5")
    assert first.stdout == unquoted.stdout == named.stdout != ""
    twice = failed(glass("run", str(tiny_qwen3), "how are you?", "-m", "other"))
    assert "the model is named twice" in twice
    two = failed(glass("run", "how are", "you?", "-m", str(tiny_qwen3)), code=2)
    assert "'you?' follows the prompt. Put quotes around a prompt of several words" in two


@pytest.mark.parametrize(("word", "is_one"), [("smollm2", True), ("Qwen/Qwen3-0.6B", True), (".", True), ("hello", False)])
def test_a_models_name_is_known_from_a_prompt(word: str, is_one: bool) -> None:
    from glassformer.cli.run import is_model_name

    assert is_model_name(word) is is_one
    assert not is_model_name("x" * 5000)


def test_a_prompt_that_is_a_models_name_says_how_to_chat_with_it(tiny_qwen3: Path) -> None:
    done = glass("run", "smollm2", "-m", str(tiny_qwen3), "-n", "1")
    assert "'smollm2' is taken for the prompt. To chat with the model: glass chat -m smollm2." in done.stderr


def test_verbose_tells_how_long_each_part_took(tiny_qwen3: Path) -> None:
    done = glass("run", "how are you?", "-m", str(tiny_qwen3), "-n", "5", "--verbose")
    rows = dict(re.findall(r"^([a-z ]+): +(.+)$", done.stderr, re.M))
    assert (rows["prompt eval count"], rows["eval count"]) == ("16 tokens", "5 tokens")
    assert rows.keys() >= {"total duration", "load duration", "prompt eval rate", "eval rate"}


def test_a_seed_that_changes_nothing_is_said(tiny_qwen3: Path) -> None:
    words = ("-m", str(tiny_qwen3), "-n", "1", "--seed", "7")
    said = "glass: the seed 7 changes nothing: decoding is greedy. --temperature 0.8 samples."
    assert said in glass("run", "Hi", *words).stderr
    assert said in glass("chat", *words, stdin="Hi\n").stderr
    assert said not in glass("run", "Hi", *words, "--temperature", "0.8").stderr


@pytest.mark.parametrize(
    ("executor", "said"), [("cpu", r"cpu \(\w+, \d+ threads?\), Q4_1"), ("plain", "plain on cpu, Q4_1 expanded to float32")]
)
def test_status_line_names_the_weights_format(smollm2: Path, executor: str, said: str) -> None:
    done = glass("run", "--raw", "The capital of France is", "-n", "1", "--executor", executor)
    assert done.stdout == " Paris\n"
    assert re.search(rf"raw text · greedy · {said} · 5 → 1 token, cut at the limit", done.stderr)


@pytest.mark.processes
def test_run_as_json_from_stdin(tiny_qwen3: Path) -> None:
    done = glass(
        "run",
        "--raw",
        "--json",
        "-n",
        "3",
        "--seed",
        "7",
        "--temperature",
        "0.8",
        stdin="Hi!\n",
        GLASS_MODEL=str(tiny_qwen3),
    )
    found = json.loads(done.stdout)
    assert found["prompt"] == "Hi!"
    assert found["prompt_ids"] == [13048, 0]
    assert len(found["ids"]) == 3
    assert found["finish"] == "length"
    assert found["seed"] == 7
    assert "sampled (temperature 0.8, top-k 50, seed 7)" in done.stderr
    again = glass("run", "--raw", "--json", "-n", "3", "--seed", "7", "--temperature", "0.8", "Hi!", "-m", str(tiny_qwen3))
    assert json.loads(again.stdout)["ids"] == found["ids"]


def test_look_shows_the_journey(tiny_qwen3: Path) -> None:
    done = glass("look", "how are you?", "-m", str(tiny_qwen3), "--template", "enable_thinking=true")
    assert done.returncode == 0
    assert "<|im_start|>assistant" in done.stdout
    assert "<think>" not in done.stdout
    assert "\x1b[" not in done.stdout
    found = json.loads(glass("look", "how are you?", "-m", str(tiny_qwen3), "--json").stdout)
    assert len(found["tokens"]) == 16
    assert found["stages"][1]["shape"] == [1, 16]


def test_models_list() -> None:
    found = json.loads(glass("models", "list", "--json").stdout)
    assert "smollm2" in {row["name"] for row in found}
    shown = glass("models", "list")
    assert "smollm2" in shown.stdout
    assert "hub id" in shown.stderr


def test_models_pull(smollm2: Path) -> None:
    assert glass("models", "pull", "smollm2").stdout.strip() == str(smollm2)


def test_doctor_reports_the_machine() -> None:
    done = glass("doctor")
    assert done.returncode == 0
    assert "plain: runs on cpu" in done.stdout
    found = json.loads(glass("doctor", "--json").stdout)
    assert "qwen3" in found["families"]
    assert found["libraries"]["torch"].startswith("2.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "Hi", "-m", "smolm2"), "Did you mean 'smollm2'"),
        (("run", "Hi", "-m", "./nowhere"), "there is no file or folder './nowhere'"),
        (
            ("run", "Hi", "-m", "some/model"),
            "not in the local cache, and the hub could not be reached (HF_HUB_OFFLINE is set)",
        ),
        (("models", "pull", "qwen"), "there is no model 'qwen'"),
        (("run", ""), "the prompt is empty"),
        (("run", "Hi", "--template", "x"), "is not NAME=VALUE"),
    ],
)
def test_errors_are_one_sentence(words: tuple[str, ...], message: str) -> None:
    assert message in failed(glass(*words))


def test_errors_of_files_and_models(tiny_qwen3: Path, tmp_path: Path) -> None:
    here = ("-m", str(tiny_qwen3))
    assert "temperature is -1.0" in failed(glass("run", "Hi", *here, "--temperature", "-1"))
    assert "-n is 0" in failed(glass("run", "Hi", *here, "-n", "0"))
    assert "Did you mean 'enable_thinking'" in failed(glass("run", "Hi", *here, "--template", "enable_thinkin=false"))
    assert "float32" in failed(glass("run", "Hi", *here, "--dtype", "float33"))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x03\0\0\0" + b"\xff" * 30)
    assert "broken.gguf: GGUF field 'tensor count' is unusable" in failed(glass("run", "Hi", "-m", str(broken)))


def test_temperature_0_means_greedy(tiny_qwen3: Path) -> None:
    here = ("-m", str(tiny_qwen3), "-n", "2")
    assert "· greedy ·" in glass("run", "Hi", *here, "--temperature", "0").stderr
    assert "--greedy takes the best token each time, so --top-p would change nothing" in failed(
        glass("run", "Hi", *here, "--greedy", "--top-p", "0.5")
    )


@pytest.mark.processes
def test_a_damaged_model_is_fetched_again(smollm2: Path, tmp_path: Path) -> None:
    """`pull` checks what is there by its hash; without an index it cannot fix it, and says so."""
    copy = tmp_path / smollm2.relative_to(smollm2.parents[2])
    copy.parent.mkdir(parents=True)
    shutil.copy(smollm2, copy)
    here = {"GLASS_HOME": str(tmp_path), "PIP_NO_INDEX": "1", "HF_HOME": str(tmp_path / "hf")}
    assert json.loads(glass("models", "pull", "smollm2", "--json", **here).stdout) == {"name": "smollm2", "path": str(copy)}
    with copy.open("r+b") as file:
        file.seek(50_000_000)
        file.write(b"damage")
    assert "could not be fetched" in failed(glass("models", "pull", "smollm2", **here))
    assert not copy.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_closed_stdout_and_full_disks(tiny_qwen3: Path) -> None:
    command = f"{sys.executable} -m glassformer look Hi -m {tiny_qwen3}"
    full = subprocess.run(f"{command} > /dev/full", shell=True, capture_output=True, text=True)
    assert full.returncode == 1
    assert full.stderr.strip() == "glass: No space left on device."
    closed = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True)
    assert "Traceback" not in closed.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals work otherwise there")
@pytest.mark.parametrize("after", [1.0, *swept((0.3, 1.8))])
def test_interrupted_while_loading(tiny_qwen3: Path, after: float) -> None:
    words = [sys.executable, "-m", "glassformer", "run", "Hi", "-m", str(tiny_qwen3), "-n", "30000", "--executor", "plain"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=patience(60))
    assert process.returncode in (130, -signal.SIGINT)  # the latter before Python has begun to listen
    assert b"AttributeError" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="signals work otherwise there")
def test_an_interrupt_waits_for_the_end_of_an_import(tmp_path: Path) -> None:
    """A native library broken off in the middle of its import aborts the whole process, or loses the interrupt."""
    (tmp_path / "interrupted.py").write_text(
        "import os, signal, sys\nos.kill(os.getpid(), signal.SIGINT)\nprint('whole', file=sys.stderr)\n"
    )
    code = (
        "import glassformer.cli.app, time\n"
        "from glassformer.cli import main\n"
        "def interrupted(**_):\n    import interrupted\n    time.sleep(30)\n"
        "glassformer.cli.app.app.main = interrupted\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=patience(20))
    assert (done.returncode, done.stderr) == (130, "whole\n\nglass: stopped.\n")


def test_an_interrupt_is_said_by_every_verb(tiny_qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "x.gguf"
    monkeypatch.setattr("glassformer.quantize.quantize", interrupted)
    quantize = glass("models", "quantize", str(tiny_qwen3), "--to", "q8_0", "--out", str(path), "--no-perplexity")
    assert failed(quantize, 130).endswith("\nglass: stopped. No file was written.\n")
    monkeypatch.setattr("glassformer.runtime.model.load", interrupted)
    for words in (("patch", "the cat", "the dog"), ("look", "Hi"), ("doctor", "--verify")):
        assert failed(glass(*words, "-m", str(tiny_qwen3)), 130).endswith("\nglass: stopped.\n")


def test_wrong_calls_exit_with_2() -> None:
    assert "No such option" in failed(glass("run", "Hi", "--temprature", "1"), 2)
    assert "No such command" in failed(glass("rum", "Hi"), 2)


@pytest.mark.processes
def test_no_network_for_the_default_model(tmp_path: Path) -> None:
    done = glass("run", "Hi", GLASS_HOME=str(tmp_path / "home"), HF_HOME=str(tmp_path / "hf"), PIP_NO_INDEX="1")
    said = failed(done)
    assert "'smollm2' could not be fetched" in said
    assert "Check the network and pip's index settings" in said
    left = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert not left


@pytest.mark.skipif(sys.platform == "win32", reason="signals work otherwise there")
def test_ctrl_c_exits_with_130(tiny_qwen3: Path) -> None:
    """Ctrl-C stops the answer: what came so far stays, one line says so, and the exit code is 130."""
    code = "from glassformer.cli import main; main()"
    words = ["run", "Hi", "-m", str(tiny_qwen3), "-n", "30000"]
    process: Any = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = process.stdout.read1(1)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=patience(60))
    assert process.returncode == 130
    assert first + rest
    assert b"stopped by you" in said
    assert b"Traceback" not in said


def test_a_closed_pipe_is_no_error(tiny_qwen3: Path) -> None:
    code = f"{sys.executable} -c 'from glassformer.cli import main; main()' look 'Hi' -m {tiny_qwen3} | head -n 1"
    done = subprocess.run(code, shell=True, capture_output=True, text=True)
    assert "1 · the prompt" in done.stdout
    assert "Traceback" not in done.stderr


class TestRunSettings:
    def test_schema_regex_and_choice(self, tmp_path: Path) -> None:
        done = glass("run", "Is Paris in France?", "--choice", "yes", "--choice", "no")
        assert done.stdout in ("yes\n", "no\n")
        assert "greedy, choices" in done.stderr
        assert "complete" in done.stderr
        schema = tmp_path / "schema.json"
        schema.write_text('{"type": "object", "properties": {"age": {"type": "integer", "maximum": 99, "minimum": 0}}, '
                          '"required": ["age"], "additionalProperties": false}')  # fmt: skip
        found = json.loads(glass("run", "How old?", "--schema", str(schema), "--json").stdout)
        assert 0 <= json.loads(found["text"])["age"] <= 99
        assert found["finish"] == "complete"
        assert found["settings"]["json_schema"]["origin"] == "this call"
        assert re.fullmatch(r"[0-9]{2}-[0-9]\n", glass("run", "A number?", "--regex", r"\d{2}-\d").stdout)

    def test_stop_strings_and_other_settings(self) -> None:
        done = glass("run", "--raw", "The capital of France is", "-n", "8", "--stop", "Par", "-o", "num_beams=2", "--json")
        found = json.loads(done.stdout)
        assert found["stop"] in ("Par", None)
        assert found["settings"]["num_beams"] == {"value": 2, "origin": "this call"}
        assert "2 beams" in done.stderr

    def test_logprobs_and_why_as_json(self) -> None:
        done = glass("run", "Hi", "-n", "2", "-o", "logprobs=2", "-o", "prompt_logprobs=0", "--json", "--why")
        found = json.loads(done.stdout)
        assert [one["id"] for one in found["logprobs"]] == found["ids"]
        assert len(found["logprobs"][0]["best"]) == 10
        assert found["prompt_logprobs"][0]["logprob"] is None
        assert found["why"][1]["candidates"][0]["chosen"]
        shown = glass("run", "Hi", "-n", "2", "--temperature", "0.5", "--seed", "1", "--why").stdout
        assert "the settings in force" in shown
        assert "token 1: " in shown

    def test_a_remedy_is_printed_on_its_own_line(self) -> None:
        done = glass("run", "The fox. The fox. The fox. The fox.", "--raw", "-n", "24")
        assert done.stderr.splitlines()[0].startswith("glass: the text repeats itself")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--schema", "nowhere.json"], "--schema 'nowhere.json' is neither JSON nor a file that can be read"),
            (["--choice", "a", "-o", 'choices=["b"]'], "choices is set twice, once with -o. Leave one out"),
            (["-o", "num_beams=2", "-o", "num_beams=3"], "--option has num_beams twice. Leave one out"),
            (["-o", "logprobs=2"], "logprobs is printed as JSON only. Pass --json too"),
            (["--temperature", "0", "--top-p", "0.9"], "--temperature 0 takes the best token each time, so --top-p"),
            (["--schema", "{bad"], "--schema: the text is not JSON"),
            (["--regex", "("], "regex cannot be followed: unclosed group"),
            (["-o", "num_beam=2"], "there is no setting 'num_beam'. Did you mean 'num_beams'?"),
            (["-o", "num_beams=2", "-o", "num_return_sequences=2"], "num_return_sequences=2 gives several texts"),
        ],
    )
    def test_refused_settings(self, arguments: list[str], message: str) -> None:
        done = glass("run", "Hi", *arguments)
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", *swept(["cp1252"])])
def test_characters_that_the_terminal_lacks_are_replaced(encoding: str, tiny_qwen3: Path) -> None:
    def encoded(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "from glassformer.cli import main; main()", *words, "-m", str(tiny_qwen3)],
            capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        )  # fmt: skip
        assert b"Traceback" not in done.stderr
        return done.stdout.decode(encoding)

    assert "?" in encoded("tokens", "a 猫")
    encoded("run", "a 猫", "-n", "3")
    assert json.loads(encoded("tokens", "a 猫", "--json"))["text"] == "a 猫"


def test_an_unexpected_error_is_one_line_unless_it_is_debugged(tiny_qwen3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **named: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr("glassformer.cli.common.load_model", broken)
    message = failed(glass("run", "x", "-m", str(tiny_qwen3)))
    assert message.startswith("glass: an error that should not happen, KeyError: 'a bug'. GLASS_DEBUG=1 shows where")
    monkeypatch.setenv("GLASS_DEBUG", "1")
    with pytest.raises(KeyError, match="a bug"):
        glass("run", "x", "-m", str(tiny_qwen3))


@pytest.mark.processes
def test_threads_can_be_chosen(tiny_qwen3: Path) -> None:
    done = spawned("run", "Hi", "-m", str(tiny_qwen3), "-n", "1", "--threads", "2", GLASS_THREADS="1")
    assert "2 threads)" in done.stderr


def test_every_verb_that_runs_a_model_takes_threads() -> None:
    context = click.Context(app)
    names = app.list_commands(context)
    verbs = [app.get_command(context, verb) for verb in names if verb not in ("tokens", "models", "steer")]
    models, steer = (cast("click.Group", app.get_command(context, group)) for group in ("models", "steer"))
    for command in (*verbs, models.get_command(context, "quantize"), steer.get_command(context, "make")):
        assert command is not None
        assert "threads" in {parameter.name for parameter in command.params}, command.name


@pytest.mark.parametrize(
    "words", [("task", "embed", "a text"), ("models", "quantize", "smollm2", "--to", "q8_0"), ("doctor", "--verify")]
)
def test_threads_are_set_before_a_model_is_loaded(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    class Set(Exception):
        pass

    def use_threads(threads: int | None) -> None:
        raise Set(threads)

    monkeypatch.setattr("glassformer.cli.common.use_threads", use_threads)
    monkeypatch.setenv("GLASS_DEBUG", "1")
    with pytest.raises(Set, match="^2$"):
        glass(*words, "--threads", "2")
