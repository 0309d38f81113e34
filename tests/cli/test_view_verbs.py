"""The seeing verbs, run as people run them: trace, attention, lens, compare, and runs that are kept and replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from glassformer.cli.app import app
from glassformer.ground.errors import ExecutorError
from glassformer.see import attention, recording
from glassformer.see.attention import AttentionMap, AttentionRow, Heads
from glassformer.see.attribution import Attribution
from glassformer.see.attribution_graph import AttributionGraph
from glassformer.see.caching import CacheComparison
from glassformer.see.circuits import Composition, HeadCircuit
from glassformer.see.compare import RunComparison, TextComparison
from glassformer.see.compare_models import ModelComparison
from glassformer.see.lens import Lens
from glassformer.see.model_description import SiteNames
from glassformer.see.patching.view import Patching
from glassformer.see.schema import schema
from glassformer.see.sweep import Strategies, Sweep
from glassformer.see.trace import Trace
from glassformer.see.why import Whys
from tests.cli.test_cli import failed, glass
from tests.patience import patience
from tests.see.models import TEXT, folder

pytestmark = pytest.mark.usefixtures("one_thread")


def ran(*words: str, width: int = 80, code: int = 0) -> str:
    """A verb, in this process; every line fits."""
    done = CliRunner().invoke(app, [*words], env={"COLUMNS": str(width), "GLASS_MODEL": ""})
    assert done.exit_code == code, (done.output, done.exception)
    assert max(map(len, done.stdout.splitlines()), default=0) <= width or "--json" in words
    return done.stdout


@pytest.fixture(scope="module")
def gpt2() -> str:
    return str(folder("gpt2", "causal")[0])


@pytest.fixture(scope="module")
def t5() -> str:
    return str(folder("t5", "seq2seq")[0])


VIEWS: list[tuple[type[Any], tuple[str, ...]]] = [
    (Trace, ("trace", TEXT, "-n", "3")),
    (Trace, ("trace", TEXT, "-n", "3", "--prompt", "--temperature", "0.8", "--seed", "1")),
    (Trace, ("trace", TEXT, "--given")),
    (Whys, ("trace", TEXT, "-n", "2", "--waterfall", "-o", "repetition_penalty=1.2")),
    (Sweep, ("trace", TEXT, "--sweep", "temperature=0.2,0.7,1.2")),
    (Sweep, ("trace", TEXT, "--sweep", "top_p=0.5,0.9", "--step", "2")),
    (Strategies, ("trace", TEXT, "--strategies", "-n", "3")),
    (CacheComparison, ("trace", TEXT, "--no-cache", "-n", "3")),
    (Heads, ("attention", TEXT)),
    (AttentionMap, ("attention", TEXT, "--layer", "1", "--head", "0")),
    (AttentionMap, ("attention", TEXT, "--layer", "-1")),
    (AttentionMap, ("attention", TEXT, "--mean", "-n", "2")),
    (AttentionMap, ("attention", TEXT, "--rollout")),
    (AttentionRow, ("attention", TEXT, "--layer", "0", "--token", "-1")),
    (Lens, ("lens", TEXT)),
    (Lens, ("lens", TEXT, "--token", "2", "--token", "-1")),
    (Attribution, ("lens", TEXT, "--wrote", "best")),
    (Attribution, ("lens", TEXT, "--wrote", "#3", "--against", "#4")),
    (Attribution, ("lens", TEXT, "--wrote", "#3", "--centred")),
    (AttributionGraph, ("graph", TEXT, "--wrote", "#3", "--token", "2", "--threshold", "0.1")),
    (HeadCircuit, ("circuit", TEXT, "--layer", "1", "--head", "0")),
    (HeadCircuit, ("circuit", "--layer", "1", "--head", "0", "--token", "#3", "--best", "2")),
    (Composition, ("circuit", "--composition", "--layer", "1", "--baseline")),
    (Patching, ("patch", "the cat", "the bat", "--answer", "4", "--against", "5")),
    (Patching, ("patch", "the cat", "the bat", "--part", "heads", "-t", "-1", "--answer", "4", "--against", "5")),
    (TextComparison, ("compare", "the cat", "the bat", "--token", "t")),
    (RunComparison, ("compare", TEXT, "--with", "temperature=2.0", "-n", "3")),
    (
        RunComparison,
        ("compare", TEXT, "--change", "blocks.1.attention.heads:0,1=0", "--change", "blocks.*.mlp.update=0.5", "-n", "3"),
    ),
    (ModelComparison, ("compare", TEXT, "--other-executor", "plain")),
    (ModelComparison, ("compare", TEXT, "--other-weights", "q8_0")),
]


@pytest.mark.parametrize(
    ("view", "words"), VIEWS, ids=lambda one: one.__name__ if isinstance(one, type) else " ".join(one[:4])
)
def test_every_view_as_text_json_and_html(view: type[Any], words: tuple[str, ...], gpt2: str, tmp_path: Path) -> None:
    shown = ran(*words, "-m", gpt2)
    assert len(shown.splitlines()) > 3
    told = json.loads(ran(*words, "-m", gpt2, "--json"))
    jsonschema.validate(told, schema(view))
    assert told["schema"] == view.SCHEMA
    for form in ("html",) if view is not Trace else ("html", "json", "txt"):
        path = tmp_path / f"view.{form}"
        assert ran(*words, "-m", gpt2, "--save", str(path), width=1000).strip() == str(path)
        assert path.stat().st_size > 100
    assert "<script" not in (tmp_path / "view.html").read_text("utf-8")


def test_replay_uses_the_saved_executor_options(gpt2: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = glass("run", TEXT, "-m", gpt2, "-n", "3", "--cache", "q8", "--save", str(path))
    assert "F32, cache in q8 ·" in done.stderr
    again = json.loads(glass("run", "--replay", str(path), "--json").stdout)
    assert (again["identical"], again["differences"]) == (True, [])
    for options in ({"cache": "f16"}, [], None):
        told = json.loads(path.read_text("utf-8"))
        told["executor"]["options"] = options
        path.write_text(json.dumps(told), "utf-8")
        other = json.loads(glass("run", "--replay", str(path), "--cache", "q8", "--json").stdout)
        assert f"options: {'cache in f16' if options else 'none'} then, cache in q8 now" in other["differences"]


def test_replay_takes_the_saved_executor(gpt2: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    glass("run", TEXT, "-m", gpt2, "-n", "3", "--executor", "plain", "--dtype", "bfloat16", "--save", str(path))
    again = json.loads(glass("run", "--replay", str(path), "--json").stdout)
    assert (again["identical"], again["differences"]) == (True, [])
    elsewhere = json.loads(glass("run", "--replay", str(path), "--executor", "cpu", "--json").stdout)
    assert "executor: plain then, cpu now" in elsewhere["differences"]


def test_replay_notes_an_executor_that_cannot_run_here(gpt2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    glass("run", TEXT, "-m", gpt2, "-n", "3", "--executor", "cpu", "--save", str(path))

    def missing(*args: Any) -> Any:
        raise ExecutorError("there is no compiler.")

    monkeypatch.setattr("glassformer.runtime.executors.Executors._cpu_executor", missing)
    done = glass("run", "--replay", str(path), "--json")
    assert "the run's own executor, cpu, cannot be used here: there is no compiler." in done.stderr
    assert "executor: cpu then, plain now" in json.loads(done.stdout)["differences"]


def test_compare_caches_and_activations(gpt2: str) -> None:
    assert "(cpu, F32, cache in q8)" in ran("compare", TEXT, "--other-cache", "q8", "-m", gpt2, width=1000)
    both = ran("compare", TEXT, "--cache", "f16", "--other-cache", "q8", "-m", gpt2, width=1000)
    assert "(cpu, F32, cache in f16)" in both
    assert "(cpu, F32, cache in q8)" in both
    assert ", again" in ran("compare", TEXT, "--other-activations", "q8", "-m", gpt2, width=1000)  # floats are not rounded
    written = ran("compare", TEXT, "--other-cache", "q8", "-n", "3", "-m", gpt2, "--json")
    assert json.loads(written)["schema"] == RunComparison.SCHEMA
    drawn = ("compare", TEXT, "--other-executor", "cpu", "-n", "6", "-o", "temperature=3.0", "-m", gpt2, "--json")
    assert len({text for _ in range(2) for text in json.loads(ran(*drawn))["texts"]}) == 1  # both sides draw alike
    assert json.loads(written)["names"] == [f"{gpt2} (cpu, F32)", f"{gpt2} (cpu, F32, cache in q8)"]
    assert "plain, float32" in ran("compare", TEXT, "--cache", "q8", "--other-executor", "plain", "-m", gpt2, width=1000)


def test_views_of_an_encoder_decoder(t5: str) -> None:
    assert "perplexity" in ran("trace", TEXT, "--given", "--target", "a dog", "-m", t5)
    assert "→" in ran("trace", TEXT, "-n", "2", "-m", t5)
    assert "cross-attention" in ran("attention", TEXT, "--target", "a dog", "--kind", "cross", "--layer", "0", "-m", t5)
    assert "the encoder's" in ran("attention", TEXT, "--kind", "encoder", "--layer", "0", "-m", t5)
    assert "what each layer would predict" in ran("lens", TEXT, "--target", "a dog", "-m", t5)
    answers = ("--answer", "4", "--against", "5")
    assert "which places move" in ran("patch", "the cat sat", "the dog sat", "--target", "a", *answers, "-m", t5)


def test_views_of_an_encoder() -> None:
    bert = str(folder("bert", "masked")[0])
    assert "perplexity" in ran("trace", TEXT, "-m", bert)
    assert "layers × " in ran("attention", TEXT, "-m", bert)
    assert "what each layer would predict" in ran("lens", "the [MASK] sat", "--token", "[MASK]", "-m", bert)


def test_why_two_texts_are_similar_and_where_an_answer_stands() -> None:
    words = (TEXT, "--pair", "the mat sat on a cat", "-m", str(folder("bert", "base")[0]))
    shown = ran("why", *words)
    assert "The texts are similar by" in shown
    assert "the second" in shown
    data = json.loads(ran("why", *words, "--json"))
    assert (data["schema"], data["answer"]) == ("glassformer.explanation/1", None)
    context = " ".join([TEXT] * 4)
    found = json.loads(ran("why", "the cat", "--context", context, "-m", str(folder("bert", "question")[0]), "--json"))
    assert found["answer"]["text"] in context


def test_record_prints_its_cost_first(gpt2: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["attention", TEXT, "--record", str(tmp_path / "maps"), "-m", gpt2])
    assert done.exit_code == 0
    assert "3 sites of 22 tokens: 0.0 MB" in done.stderr
    files = done.stdout.split()
    assert [Path(file).name for file in files] == [f"blocks.{layer}.attention.pattern.npy" for layer in range(3)]
    assert np.allclose(np.load(files[0]).sum(-1), 1, atol=1e-4)


def test_save_and_replay_a_run(gpt2: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = ("run", TEXT, "-m", gpt2, "-n", "5", "--temperature", "0.9", "--seed", "3")
    done = glass(*run, "--save", str(path))
    assert f"saved as {path}" in done.stderr
    again = glass("run", "--replay", str(path))
    assert (again.returncode, again.stdout) == (0, "identical: every token is the same\n")
    assert "takes all settings from the file" in failed(glass("run", "--replay", str(path), "--temperature", "2"))
    told = json.loads(path.read_text("utf-8"))
    told["settings"]["temperature"]["value"] = 30.0
    path.write_text(json.dumps(told), "utf-8")
    changed = glass("run", "--replay", str(path), "--json")
    assert changed.returncode == 1
    assert json.loads(changed.stdout)["identical"] is False
    told["weights"] = "0" * 64
    path.write_text(json.dumps(told), "utf-8")
    assert "was written with other weights" in failed(glass("run", "--replay", str(path)))
    html = tmp_path / "run.html"
    assert glass(*run, "--save", str(html)).returncode == 0
    assert "why each token" in html.read_text("utf-8")


def test_a_run_is_saved_as_a_page_to_explore(gpt2: str, tmp_path: Path) -> None:
    page, data = tmp_path / "run.html", tmp_path / "run.json"
    for path in (page, data):
        done = glass("run", TEXT, "-m", gpt2, "-n", "3", "--greedy", "--studio", str(path))
        assert f"saved as {path}" in done.stderr
    told = json.loads(data.read_text("utf-8"))
    assert told["schema"] == "glassformer.recording/1"
    assert len(told["steps"]) == 3
    assert told["text"] == done.stdout.removesuffix("\n")
    assert '"schema":"glassformer.recording/1"' in page.read_text("utf-8")


def test_a_page_is_saved_without_what_an_interrupt_stopped(
    gpt2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recording, "record_pages", interrupted)
    page = tmp_path / "run.html"
    done = glass("run", TEXT, "-m", gpt2, "-n", "3", "--greedy", "--studio", str(page))
    assert done.returncode == 130
    assert f"stopped: the page has the answer's lens, and no attention, why, patch or tree.\nsaved as {page}" in done.stderr
    assert '"schema":"glassformer.recording/1"' in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trace", "x", "--given", "--waterfall"), "--given has no use with --waterfall. Leave one of them out."),
        (("trace", "x", "--target", "y"), "--target goes with --given. Give --given too, or leave --target out."),
        (("trace", "x", "--sweep", "temperature"), "is not NAME=A,B,…"),
        (("trace", "x", "--sweep", "nothing=1"), "there is no setting 'nothing'"),
        (("trace", "x", "--save", "x.pdf"), "does not say in which form"),
        (("trace", "x", "--save", "nowhere/x.json"), "there is no folder"),
        (("trace", "x", "--step", "2"), "--step goes with --sweep"),
        (("trace", "x", "--given", "-n", "3"), "--given generates nothing, so max_new_tokens would change nothing"),
        (("lens", "x", "--change", "blocks.0.attention.heads:9=0"), "there is no head 9 to change: there are 4"),
        (("attention", "x", "--mean", "--rollout"), "--mean has no use with --rollout"),
        (("attention", "x", "--mean", "--layer", "1"), "--mean has no use with --layer"),
        (("attention", "x", "--layer", "99"), "there is no layer 99: this model has 3, 0 to 2"),
        (("attention", "x", "--layer", "0", "--head", "99"), "there is no head 99"),
        (
            ("attention", "x", "--kind", "nothing"),
            "--kind is 'nothing'; it must be 'self', 'recurrent', 'cross' or 'encoder'",
        ),
        (("attention", "x", "--record", "maps", "--kind", "cross"), "it has self-attention only"),
        (("attention", "x", "-n", "2", "--target", "y"), "Leave one out"),
        (
            ("attention", "x", "--record", "maps", "--layer", "0"),
            "--layer has no use with --record",
        ),
        (("run", "x", "-o", "top_k=3"), "--top-k 3 has no effect without sampling. Pass --sample too."),
        (
            ("run", "x", "--temperature", "-1"),
            "--temperature is -1.0; it must be above 0.",
        ),
        (("run", "x", "-o", "num_beams=0"), "-o num_beams is 0; it must be a whole number of at least 1"),
        (("run", "x", "-o", "num_return_sequences=2", "-o", "num_beams=1"), "Pass --sample or -o num_beams too."),
        (("run", "x", "-o", "dtype=float32"), "A model is loaded with it: --dtype."),
        (("run", "x", "--raw", "--template", "a=1"), "a raw prompt has no place for variables of the chat template"),
        (("lens", "x", "--token", "77"), "there is no token 77 in a text of 1"),
        (("lens", "x", "--wrote", "best", "--token", "0", "--token", "1"), "Give --token once"),
        (("lens", "x", "--wrote", "ab"), "is 2 tokens, not one"),
        (("lens", "x", "--against", "a"), "--against goes with --wrote"),
        (("lens", "x", "--centred"), "--centred goes with --wrote"),
        (("graph", "x", "--threshold", "7"), "threshold is 7.0; it is a share of the score, from 0 to 1"),
        (("circuit", "x"), "--layer and --head are missing. Give them."),
        (("circuit",), "--layer and --head are missing. Give them, or --composition."),
        (("circuit", "x", "--composition"), "PROMPT has no use with --composition. Leave one of them out."),
        (("circuit", "--layer", "0", "--head", "0", "--baseline"), "--baseline goes with --composition. Give"),
        (("circuit", "x", "--layer", "0", "--head", "0", "--token", "a"), "--token has no use with PROMPT. Leave one"),
        (("patch", "the cat", "the ox"), "(glass tokens shows them), or use --pairs FILE, which aligns them"),
        (("patch", "the cat", "the ox", "--to", "final"), "one of as many tokens (glass tokens shows them)."),
        (("attribution-patch", "the cat", "the ox"), "one of as many tokens (glass tokens shows them)."),
        (("patch", "the cat", "the bat", "--part", "hads"), "there is no part 'hads' to patch. Did you mean 'heads'"),
        (
            ("run", "x", "--tensor-parallel", "2", "--executor", "cpu"),
            "--executor cpu is not for PyTorch. Use --executor plain",
        ),
        (("compare", "x"), "compare with what? This asks for nothing"),
        (("compare", "x", "y", "--with", "top_k=1"), "This asks for a second text and another setting"),
        (("compare", "x", "--change", "blocks.0.residual"), "is not SITE[:HEADS]=FACTOR"),
        (("compare", "x", "--change", "blocks.0.residual=nan"), "is not SITE[:HEADS]=FACTOR with a finite number, such as"),
        (("attention", "x", "--change", "blocks.0.residual=-inf"), "'blocks.0.residual=-inf' is not SITE[:HEADS]=FACTOR"),
        (("graph", "x", "--change", "blocks.0.residual=1e39"), "'blocks.0.residual=1e39' is not SITE[:HEADS]=FACTOR"),
        (("compare", "x", "--change", "blocks.0.residul=0"), "Did you mean 'blocks.0.residual'"),
        (("compare", "x", "--file", "y", "--other-cache", "q8"), "give one of them"),
        (("compare", "--file", "missing.txt", "--other-cache", "q8"), "cannot be read as text"),
        (("compare", TEXT, "--other-cache", "q8", "--seed", "3"), "--seed is for generated texts; two models score"),
        (("run", "x", "--replay", "y.json"), "takes its prompt from the file"),
        (("run", "--replay", "missing.json"), "is no receipt that can be read"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_refused_options(words: tuple[str, ...], message: str, gpt2: str) -> None:
    from glassformer.ground.errors import GlassError

    done = CliRunner().invoke(app, [*words, "-m", gpt2])
    assert isinstance(done.exception, GlassError), done.output
    assert message in str(done.exception)
    assert done.stdout == ""


@pytest.mark.parametrize("verb", ["trace", "attention", "lens", "patch", "compare", "tree", "chat", "look", "tokens", "run"])
def test_every_verbs_help_has_an_example(verb: str) -> None:
    shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "80"}).output
    assert "Examples:\n  " in shown


@pytest.mark.processes
def test_shell_completion_of_verbs() -> None:
    done = glass(_GLASS_COMPLETE="bash_complete", COMP_WORDS="glass trac", COMP_CWORD="1")
    assert done.stdout.split() == ["plain,trace"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_show_completion(shell: str) -> None:
    assert f"_GLASS_COMPLETE={shell}_complete" in glass("--show-completion", shell).stdout


def test_change_in_every_verb(gpt2: str) -> None:
    change = ("--change", "blocks.*.mlp.update=0")
    parts = json.loads(ran("lens", TEXT, "--wrote", "best", *change, "-m", gpt2, "--json"))["contributions"]
    assert all(part["value"] == 0 for part in parts if part["name"] == "mlp")
    plain, changed = (json.loads(ran("tree", TEXT, "-m", gpt2, "--json", *more)) for more in ((), change))
    assert plain["root"]["children"] != changed["root"]["children"]
    said = glass("run", TEXT, "-n", "1", *change, "-m", gpt2).stderr
    assert said.rstrip().split(" · ")[4] == "changed: blocks.0.mlp.update, blocks.1.mlp.update, blocks.2.mlp.update"


def test_input_that_is_no_text_is_refused(gpt2: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from glassformer.cli import main; main()", "trace", "-m", gpt2],
        input=b"caf\xe9", capture_output=True, env={**os.environ, "LC_ALL": "C.UTF-8"}, timeout=patience(240),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"the input is not utf-8 text" in done.stderr


def test_long_attention_maps(gpt2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where heads rest; and all of it is a picture, not a hundred thousand cells."""
    shown = ran("attention", "x" * 60, "--layer", "1", "-m", gpt2)
    assert "48 of 60 tokens" in shown
    assert "the first and the last" in shown
    ran("attention", "x" * 60 + "y" * 60, "--layer", "1", "-m", gpt2, "--save", str(tmp_path / "map.html"), width=1000)
    assert (tmp_path / "map.html").read_text("utf-8").count('class="source"') == 120
    monkeypatch.setattr(attention, "MAX_HOVER_TOKENS", 100)
    ran("attention", "x" * 60 + "y" * 60, "--layer", "1", "-m", gpt2, "--save", str(tmp_path / "map.html"), width=1000)
    assert (tmp_path / "map.html").stat().st_size < 40_000


@pytest.mark.processes
def test_no_escape_sequences_off_a_terminal(gpt2: str) -> None:
    """Off a terminal there are no escape sequences and no bars."""
    done = glass("lens", TEXT, "-m", gpt2, TERM="xterm-256color")
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    assert os.environ.get("FORCE_COLOR") is None


def test_look_lists_sites_with_their_other_names(gpt2: str) -> None:
    shown = ran("look", "--sites", "-m", gpt2)
    assert "blocks.0.attn.hook_z" in shown
    assert "transformer.h.0.mlp.output" in shown
    data = json.loads(ran("look", "--sites", "-m", gpt2, "--json"))
    jsonschema.validate(data, schema(SiteNames))
    assert len(data["sites"]) == 39
    refused = CliRunner().invoke(app, ["look", "hi", "--sites", "-m", gpt2])
    assert refused.exit_code != 0
    assert "--sites has no use with PROMPT" in str(refused.output) + str(refused.exception)
