"""`glass activations`, `glass probe` and a lens that is trained: what is written where, and calls that are refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from glassformer.see import activation_files, fit_features, fit_lens
from glassformer.see.recorded_activations import RecordedActivations
from tests.cli.test_cli import failed, glass
from tests.cli.test_view_verbs import ran
from tests.see.models import folder

pytestmark = pytest.mark.usefixtures("one_thread", "command_folder")
LINES = ["the cat sat", "a dog", "on the mat"]


@pytest.fixture(scope="module")
def gpt2() -> str:
    return str(folder("gpt2", "causal")[0])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "lines.txt").write_text("\n\n".join(LINES))
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps({'text': line, 'other': 'x'})}\n" for line in LINES))
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    (tmp_path / "rows.csv").write_text("id,body\n" + "".join(f"{number},{line}\n" for number, line in enumerate(LINES)))
    labelled = [f"{'the' if number % 2 else 'a'} cat {number}" for number in range(12)]
    (tmp_path / "labelled.csv").write_text("text,label\n" + "".join(f"{text},{text.split()[0]}\n" for text in labelled))
    return tmp_path


def test_texts_of_every_kind_of_file(gpt2: str, files: Path) -> None:
    for name, more in (("lines.txt", ()), ("rows.jsonl", ()), ("texts.jsonl", ()), ("rows.csv", ("--column", "body"))):
        told = json.loads(ran(
            "activations", "-m", gpt2, "--texts", name, *more, "--site", "embedding", "--out", f"{name}.acts", "--json"
        ))  # fmt: skip
        assert (told["texts"], told["complete"]) == (3, True)
        assert [text.text for text in RecordedActivations(files / f"{name}.acts")] == LINES


def test_a_recording_goes_on(gpt2: str, files: Path) -> None:
    words = ("activations", "-m", gpt2, "--texts", "lines.txt", "--site", "blocks.*.residual", "--out", "acts")
    last = ("--positions", "last", "--stored-dtype", "float16")
    assert "of the last token of each text a row in float16: 3 rows" in " ".join(ran(*words, *last).split())
    assert "3 rows" in " ".join(ran(*words, *last, "--resume").split())
    shard = files / "acts" / "shard-00000.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:1000])
    ran(*words, *last, "--resume")
    assert shard.read_bytes() == whole
    assert "Go on with --resume, or choose another folder" in failed(glass(*words, *last))
    assert "dtype was" in failed(glass(*words, "--resume"))


def test_statistics_and_their_arrays(gpt2: str, files: Path) -> None:
    words = ("activations", "-m", gpt2, "--texts", "lines.txt", "--site", "blocks.0.mlp.hidden")
    shown = ran(*words, "--neuron", "5", "--arrays", "all.safetensors", "--covariance")
    assert "the neurons' strongest tokens" in shown
    arrays = load_file(files / "all.safetensors")
    width = len(arrays["blocks.0.mlp.hidden.mean"])
    assert arrays["blocks.0.mlp.hidden.covariance"].shape == (width, width)
    assert "more sites (--all)" not in shown


def test_probes_and_their_file(gpt2: str, files: Path) -> None:
    words = ("probe", "-m", gpt2, "--data", "labelled.csv", "--position", "mean", "--held-out", "50")
    told = json.loads(ran(*words, "--out", "probes.safetensors", "--json"))
    assert (told["train"], told["held_out"]) == (6, 6)
    assert len(told["sites"]) == 3
    assert (files / "probes.safetensors").exists()
    assert "held-out accuracy" in ran(*words)
    assert "blocks.0.mlp.update" in ran(*words, "--site", "blocks.0.mlp.update", "--text-column", "text")


def test_a_lens_is_trained_and_used(gpt2: str, files: Path) -> None:
    train = ("lens", "-m", gpt2, "--train", "lines.txt", "--steps", "2")
    assert "2 steps in" in ran(*train, "--out", "lens.safetensors")
    assert "tuned lens, what" in ran("lens", "-m", gpt2, "the cat", "--tuned", "lens.safetensors")
    ran(*train, "--out", "low.safetensors", "--rank", "2")
    assert (files / "low.safetensors").stat().st_size < (files / "lens.safetensors").stat().st_size
    assert "tuned lens, what" in ran("lens", "-m", gpt2, "the cat", "--tuned", "low.safetensors")


def test_features_are_trained_on_recorded_activations(gpt2: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a model; and on a text, as far as it is read."""
    ran("activations", "-m", gpt2, "--texts", "labelled.csv", "--site", "blocks.*.residual", "--out", "acts")
    how = ("--site", "blocks.0.residual", "--features", "16", "-k", "2", "--steps", "3", "--batch-size", "8")
    with monkeypatch.context() as patch:
        patch.setenv("GLASS_MODEL", "no-such-model")
        told = json.loads(ran("train-features", "--recorded", "acts", *how, "--out", "sae", "--json"))
    assert (told["model"], told["site"]) == (RecordedActivations("acts").index.model, "blocks.0.residual")
    ran("features", "-m", gpt2, "the cat", "--sae", "sae")
    transcoder = ("train-features", "--recorded", "acts", *how, "--site-out", "blocks.1.residual")
    ran(*transcoder, "--out", "transcoder")
    told = json.loads(ran("features", "-m", gpt2, "the cat", "--sae", "transcoder", "--json"))
    assert (told["site"], told["site_out"]) == ("blocks.0.residual", "blocks.1.residual")
    same = ("--site-out", "blocks.0.residual", "--out", "x")
    for source in (("--recorded", "acts"), ("--text", "lines.txt")):
        assert "predicts another site than blocks.0.residual" in failed(
            glass("train-features", "-m", gpt2, *source, *how, *same)
        )
    assert "has no 'embedding'" in failed(glass("train-features", "--recorded", "acts", "--site", "embedding", "--out", "x"))
    (files / "long.txt").write_bytes(b"the cat sat on the mat\n" * 20_000 + b"\xff\xff\n")  # whose end is never read
    ran("train-features", "-m", gpt2, "--text", "long.txt", *how, "--out", "long")
    (files / "none.txt").write_text("")
    (files / "latin.txt").write_bytes(b"caf\xe9\n")
    for name, message in (
        ("absent.txt", "absent.txt: cannot be read"),
        ("latin.txt", "latin.txt, line 1: not UTF-8"),
        ("none.txt", "is empty"),
    ):
        assert message in failed(glass("train-features", "-m", gpt2, "--text", name, *how, "--out", "x"))


WRITING = [
    ("lens", "--train", "lines.txt", "--steps", "1", "--out", "{}.safetensors"),
    ("probe", "--data", "labelled.csv", "--position", "mean", "--out", "{}.safetensors"),
    ("activations", "-f", "lines.txt", "--site", "embedding", "--arrays", "{}.safetensors"),
    ("train-features", "--text", "lines.txt", "--site", "embedding", "--length", "4", "--steps", "1", "--out", "{}"),
]


@pytest.mark.parametrize("words", WRITING, ids=lambda words: words[0])
def test_where_results_go_is_seen_to_before_anything_is_computed(words: tuple[str, ...], gpt2: str, files: Path) -> None:
    def call(place: str, model: str) -> subprocess.CompletedProcess[str]:
        return glass(*(word.format(place) for word in words), "-m", model)

    assert "cannot be written (" in failed(call("lines.txt/result", "no-such-model"))
    assert "cannot be written" not in failed(call("new/folder/result", "no-such-model"))
    done = call("new/folder/result", gpt2)
    assert done.returncode == 0, done.stderr
    assert len(list((files / "new/folder").iterdir())) == 1


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_says_what_became_of_the_work(gpt2: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("activations", "-m", gpt2, "--texts", "lines.txt", "--site", "embedding", "--out", "acts")
    with monkeypatch.context() as patch:
        patch.setattr(activation_files, "save_tensors", interrupt)
        stopped = failed(glass(*words), 130)
    assert "glass: stopped. To go on after the last whole shard, run the same command with --resume." in stopped
    ran(*words, "--resume")
    assert len(RecordedActivations("acts")) == 3
    monkeypatch.setattr(fit_lens, "train_lens", interrupt)
    lens = ("lens", "-m", gpt2, "--train", "lines.txt", "--out", "lens.safetensors")
    assert "glass: stopped. No lens was kept." in failed(glass(*lens), 130)
    monkeypatch.setattr(fit_features, "train_features", interrupt)
    features = ("train-features", "-m", gpt2, "--text", "lines.txt", "--site", "blocks.0.residual", "--length", "4")
    assert "glass: stopped. No features were kept." in failed(glass(*features, "--out", "features"), 130)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("activations",), "--texts and --site are missing. Give them."),
        (("activations", "-f", "lines.txt", "--site", "embedding", "--out", "x", "--neuron", "1"), "no use with --out"),
        (("activations", "-f", "lines.txt", "--site", "embedding", "--resume"), "--resume goes with --out"),
        (("activations", "-f", "lines.txt", "--site", "embedding", "--covariance"), "--covariance goes with --arrays"),
        (("activations", "-f", "lines.txt", "--site", "embedding", "--arrays", "x.npz"), "must end in .safetensors"),
        (("activations", "-f", "lines.txt", "--site", "embedding", "--column", "x"), "Leave --column out"),
        (("activations", "-f", "absent.txt", "--site", "embedding"), "absent.txt: cannot be read"),
        (("activations", "-f", ".", "--site", "embedding"), ". is a folder, and a file is needed"),
        (("lens", "--train", ".", "--out", "lens.safetensors"), ". is a folder, and a file is needed"),
        (("activations", "-f", "rows.csv", "--site", "embedding"), "names no column 'text'"),
        (("activations", "-f", "rows.jsonl", "--site", "embedding", "--column", "no"), "rows.jsonl, row 1: lacks 'no'"),
        (("activations", "-f", "lines.txt", "--site", "embeding"), "Did you mean 'embedding'?"),
        (("activations", "-f", "lines.txt", "--site", "embedding", "--out", "x", "--positions", "some"), "positions"),
        (("probe",), "Give --data FILE"),
        (("probe", "--data", "labelled.csv", "--position", "first"), "--position is 'first'; it must be"),
        (("probe", "--data", "labelled.csv", "--out", "x.bin"), "must end in .safetensors"),
        (("train-features", "--site", "embedding", "--out", "x"), "Give --text FILE or --recorded DIR"),
        (("train-features", "--site", "embedding", "--out", "x", "--text", "lines.txt", "--recorded", "y"), "one of them"),
        (("train-features", "--site", "embedding", "--out", "x", "--recorded", "y", "--length", "4"), "goes with --text"),
        (("train-features", "--site", "embedding", "--out", "x", "--recorded", "."), "holds no activations"),
        (("lens", "--train", "lines.txt"), "--out is missing. Give it."),
        (("lens", "--train", "lines.txt", "--out", "lens.bin"), "--out lens.bin must end in .safetensors."),
        (("lens", "hi", "--train", "lines.txt"), "PROMPT has no use with --train"),
        (("lens", "hi", "--out", "lens.safetensors"), "--out goes with --train"),
        (("lens", "hi", "--tuned", "x.safetensors", "--wrote", "best"), "--tuned has no use with --wrote"),
        (("lens", "hi", "--tuned", "x.safetensors"), "there is no tuned lens 'x.safetensors'. Give its path."),
    ],
)
def test_bad_calls_are_refused(words: tuple[str, ...], message: str, gpt2: str, files: Path) -> None:
    assert message in failed(glass(*words, "-m", gpt2))
