"""`glass steer`, `--steer`, `--clamp`, `/steer` and `glass train-features`, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from glassformer.cli.app import app
from glassformer.ground.errors import GlassError
from tests.see.models import both, folder

PLAIN = ("--executor", "plain")  # in a new home the native library would be built anew
PAIRS = [{"positive": "the cat sat", "negative": "a dog ran"}, {"with": "the mat", "without": "a mat"}]


@pytest.fixture
def model() -> str:
    return str(folder("gpt2", "causal")[0])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    return tmp_path / "home"


def glass(*words: str, text: str | None = None) -> Result:
    done = CliRunner().invoke(app, words, text)
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done


def refused(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, GlassError), done.output
    return str(done.exception)


def test_a_vector_is_made_listed_and_applied_by_name(model: str, home: Path) -> None:
    made = glass(
        "steer", "make", "--pairs", "pairs.jsonl", "--site", "blocks.0.residual", "--out", "formal", "-m", model, *PLAIN
    )
    assert (home / "steering" / "formal.safetensors").is_file()
    assert "from 2 pairs" in made.stdout
    assert f"try: glass run --steer formal=1 -m {model} …" in made.stderr
    listed = json.loads(glass("steer", "list", "-m", model, *PLAIN, "--json").stdout)
    assert [vector["name"] for vector in listed["vectors"]] == ["formal"]
    run: Any = json.loads(glass("run", "the cat", "-n", "5", "--steer", "formal=9", "-m", model, *PLAIN, "--json").stdout)
    expected = both("gpt2").model.steered({str(home / "steering" / "formal.safetensors"): 9.0})
    assert run["ids"] == list(expected.watch("the cat", max_new_tokens=5).ids)
    footer = glass("run", "the cat", "-n", "1", "--steer", "formal=0.5", "-m", model, *PLAIN).stderr
    assert " · steered by formal × 0.5 · changed: blocks.0.residual · " in footer
    said = "/steer formal 9\nthe cat\n/steer\n/steer formal 0\n/steer\n"
    chatted = glass("chat", "-n", "5", "-m", model, *PLAIN, text=said)
    assert "answers are steered by formal × 9." in chatted.output
    assert "answers are not steered." in chatted.output


def test_a_vector_in_a_file_is_named_by_its_path(model: str, home: Path) -> None:
    words = ("steer", "make", "--pairs", "pairs.jsonl", "--site", "blocks.0.residual", "--out", "my warm.safetensors")
    made = glass(*words, "-m", model, *PLAIN)
    assert f"saved as my warm.safetensors; try: glass run --steer 'my warm.safetensors=1' -m {model} …" in made.stderr
    glass("run", "the cat", "-n", "1", "--steer", "my warm.safetensors=1", "-m", model, *PLAIN)
    for words, folder_name in ((("steer", "list"), "steering"), (("features",), "features")):
        listed = glass(*words, "-m", model, *PLAIN)
        assert "There are none." in listed.stdout
        assert f"Looked in {home / folder_name}; " in listed.stderr


def test_features_are_trained_shown_and_clamped(model: str) -> None:
    Path("text.txt").write_text("the cat sat on the mat, and a dog ran. " * 4)
    words = (
        "--text",
        "text.txt",
        "--site",
        "blocks.0.residual",
        "--features",
        "16",
        "-k",
        "2",
        "--steps",
        "5",
        "--out",
        "sae",
    )
    glass("train-features", *words, "-m", model, *PLAIN)
    assert {path.name for path in Path("sae").iterdir()} == {
        "cfg.json", "sae_weights.safetensors", "training.html", "training.json",
    }  # fmt: skip
    assert "is there already" in refused("train-features", *words, "-m", model, *PLAIN)
    view = json.loads(glass("features", "the cat", "--sae", "sae", "-m", model, *PLAIN, "--json").stdout)
    assert (view["dictionary"], view["size"]) == ("sae", 16)
    run = glass("run", "the cat", "-n", "3", "--clamp", "sae/3=2", "--steer", "sae/4=1", "-m", model, *PLAIN)
    assert "steered by sae/4 × 1, sae/3 held at 2 · changed: blocks.0.residual" in run.stderr


def test_an_interrupted_training_of_features_leaves_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        assert Path("new/sae").is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr("glassformer.see.fit_features.train_features", interrupted)
    Path("text.txt").write_text("the cat sat on the mat. " * 8)
    words = ("train-features", "--text", "text.txt", "--site", "blocks.0.residual", "--out", "new/sae")
    done = CliRunner().invoke(app, [*words, "-m", model, *PLAIN])
    assert (done.exit_code, "No features were kept." in done.stderr) == (130, True)
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "x", "--steer", "formal"), "--steer 'formal' is not NAME=STRENGTH, such as formal=1."),
        (("run", "x", "--steer", "warm.safetensors"), "is not NAME=STRENGTH, such as warm.safetensors=1."),
        (("run", "x", "--steer", "warm=much"), "is not NAME=STRENGTH, such as warm=1."),
        (("run", "x", "--steer", "=4"), "is not NAME=STRENGTH, such as formal=1."),
        (("run", "x", "--clamp", "sae/3=much"), "--clamp 'sae/3=much' is not SAE/NUMBER=VALUE"),
        (("run", "x", "--steer", "nowhere=4"), "there is no steering vector 'nowhere'"),
        (("features", "x", "--site", "blocks.0.residual"), "--site goes with --sae. Give --sae too, or leave --site out."),
        (("features", "x"), "no dictionary of features comes with the package for"),
        (("features", "x", "--sae", "nowhere"), "there is no dictionary of features 'nowhere'"),
        (("steer", "make", "--pairs", "pairs.jsonl", "--site", "blocks.0.residual", "--out", "a/b"), "neither a name nor"),
        (("serve", "--steering", "nowhere"), "--steering 'nowhere' is no folder"),
        (("eval", "--task", "classify", "--data", "pairs.jsonl", "--clamp", "sae/3=0"), "--clamp goes with --text"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_refused_options(words: tuple[str, ...], message: str, model: str) -> None:
    assert message in refused(*words, "-m", model, *PLAIN)
