"""`glass models quantize`: a GGUF file, what it saves, and what it costs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.model_files import open_model
from tests.cli.test_cli import failed, glass, spawned
from tests.quantize import models

TEXT = "the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-0.1B"
    models.write(folder, "qwen3")
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


def test_quantize_reports_sizes_and_perplexity(model: Path, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    done = glass("models", "quantize", str(model), "--to", "q8_0", "--out", str(path), "--text", str(text), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == {
        "path", "kind", "from", "bytes_before", "bytes_after", "bits", "kinds", "tokens",
        "perplexity_before", "perplexity_after",
    }  # fmt: skip
    assert (found["path"], found["kind"], found["from"]) == (str(path), "Q8_0", "F32")
    assert found["bytes_before"] == (model / "model.safetensors").stat().st_size
    assert found["bytes_after"] == path.stat().st_size < found["bytes_before"] / 3
    assert 8.5 < found["bits"] < 9
    assert found["perplexity_after"] == pytest.approx(found["perplexity_before"], rel=0.05)
    assert found["perplexity_after"] != found["perplexity_before"]
    assert found["tokens"] > 50
    sizes, cost = (line for line in done.stderr.splitlines() if not line.startswith("glass:"))
    assert sizes.startswith(f"F32 {found['bytes_before'] / 1e6:.1f} MB")
    assert f"→ Q8_0 {path.stat().st_size / 1e6:.1f} MB, 8.5" in sizes
    assert f"over {found['tokens']} tokens of text.txt" in cost
    assert f"perplexity {found['perplexity_before']:,.2f} → {found['perplexity_after']:,.2f} (" in cost
    assert {one.kind for one in GgufCheckpoint(path).raw.values()} == {"Q8_0", "F32"}
    assert list(found["kinds"]) == ["Q8_0"]


@pytest.mark.parametrize("word", ["--output", "-o"])
def test_where_to_write_has_other_names_that_no_help_shows(word: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    assert glass("models", "quantize", str(model), "--to", "q8_0", word, str(path), "--no-perplexity").returncode == 0
    assert path.is_file()
    assert f" {word}" not in glass("models", "quantize", "--help").stdout


def test_rows_that_do_not_fit_the_kind_are_named(tiny_qwen3: Path, tmp_path: Path) -> None:
    words = ("models", "quantize", str(tiny_qwen3), "--to", "q4_k", "--no-perplexity", "--out", str(tmp_path / "x.gguf"))
    done = glass(*words)
    assert re.search(r"→ Q4_K \(mostly Q4_1: rows of \d+ do not fit blocks of 256\) [\d.]+ MB", done.stderr)


def test_loading_with_other_weights_says_what_most_became(tiny_qwen3: Path) -> None:
    def notes(kind: str) -> str:
        return spawned("run", "Hi", "-m", str(tiny_qwen3), "-n", "1", "--weights", kind).stderr

    assert re.search(r": its weights are Q4_K \(mostly Q4_1: rows of \d+ do not fit blocks of 256\)\.", notes("q4_k"))
    assert "its weights are" not in notes("q8_0")


def test_no_perplexity_and_default_file_name(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = glass("models", "quantize", str(model), "--to", "Q4_K", "--no-perplexity")
    assert done.stdout == "tiny-0.1B-q4_k.gguf\n"
    assert "perplexity" not in done.stderr
    assert "rows that do not fit Q4_K, the nearest kind" in done.stderr
    assert "packing" not in done.stderr  # no bars off a terminal
    assert "torch" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-0.1B-q4_k.gguf"]
    error = failed(glass("models", "quantize", str(model), "--to", "q4_k", "--no-perplexity"))
    assert "is there already. Choose another name, or write over it with --force" in error
    again = glass("models", "quantize", str(model), "--to", "q4_k", "--no-perplexity", "--force", "--json")
    assert json.loads(again.stdout)["path"] == "tiny-0.1B-q4_k.gguf"


def test_default_perplexity_text(model: Path, tmp_path: Path) -> None:
    done = glass("models", "quantize", str(model), "--to", "f16", "--out", str(tmp_path / "x.gguf"), "--json")
    assert json.loads(done.stdout)["tokens"] > 5000  # of few letters each
    assert "tokens of Moby-Dick, chapter 86" in done.stderr


def test_packed_weights_are_packed_again_where_that_is_allowed(model: Path, tmp_path: Path) -> None:
    packed, again = str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf")
    assert glass("models", "quantize", str(model), "--to", "q8_0", "--out", packed, "--no-perplexity").returncode == 0
    words = ("models", "quantize", packed, "--to", "q4_0", "--out", again, "--no-perplexity")
    refused = failed(glass(*words))
    assert "packed already, as Q8_0" in refused
    assert "--allow-requantize" in refused
    done = glass(*words, "--allow-requantize", "--json")
    report = json.loads(done.stdout)
    assert (report["from"], report["kind"]) == ("Q8_0", "Q4_0")
    assert report["bytes_after"] < report["bytes_before"]
    assert glass("run", "--raw", "the", "-m", again, "-n", "2").returncode == 0


def test_a_file_of_mixed_kinds_is_called_by_its_own_name(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    assert glass("models", "quantize", str(model), "--to", "q4_0", "--out", str(path), "--no-perplexity").returncode == 0
    assert open_model(path).kind_text == open_model(path).kind == "Q4_0"
    other = open_model(path)
    fields: Any = other.checkpoint.metadata  # type: ignore[attr-defined]
    fields["general.file_type"] = 15
    assert other.kind_text == "Q4_K_M (mixed)"
    packed = replace(open_model(path), replacement_tensors=other.tensors, replacement_kind="q6_k")
    assert packed.kind_text == "Q6_K (mixed)"
    assert open_model(model).kind_text == "F32"


def test_quantize_errors(model: Path, smollm2: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "x.gguf")
    assert "Did you mean 'Q4_K'?" in failed(glass("models", "quantize", str(model), "--to", "q4k", "--out", out))
    assert "packed already, as Q4_1" in failed(glass("models", "quantize", "smollm2", "--to", "q8_0", "--out", out))
    missing = failed(glass("models", "quantize", str(model), "--to", "q8_0", "--out", out, "--text", str(tmp_path / "no")))
    assert "cannot be read as text" in missing
    (tmp_path / "empty").write_text("")
    short = failed(glass("models", "quantize", str(model), "--to", "q8_0", "--out", out, "--text", str(tmp_path / "empty")))
    assert "has 0 tokens; a perplexity needs at least 32" in short
    wrong = str(tmp_path / "x.bin")
    assert "End it in .gguf" in failed(glass("models", "quantize", str(model), "--to", "q8_0", "-o", wrong))
    (tmp_path / "empty").unlink()
    assert "there is no file or folder './nowhere'" in failed(glass("models", "quantize", "./nowhere", "--to", "q8_0"))
    assert "Missing option '--to'" in failed(glass("models", "quantize", str(model)), code=2)
    assert not list(tmp_path.iterdir())
