"""Adapters at the command line, in receipts and in fingerprints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import glassformer
from glassformer.cli.app import app
from glassformer.cli.common import adapter_weights
from glassformer.ground.errors import SettingError
from glassformer.see.tensor_files import model_fingerprint
from tests.adapters.conftest import MakeAdapter

pytestmark = pytest.mark.usefixtures("one_thread")
RAW = ("--raw", "-n", "4")


def ran(*words: object, fails: bool = False) -> str:
    """What a command prints, or what it is refused with."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80", "GLASS_MODEL": ""})
    assert (done.exit_code != 0) is fails, (done.output, done.exception)
    return str(done.exception) if fails else done.stdout


def test_run_look_and_trace_take_an_adapter(make_adapter: MakeAdapter) -> None:
    base, adapter, _ = make_adapter("llama", sizes={"vocab_size": 300}, target_modules="all-linear")
    plain = json.loads(ran("run", "the dog", "-m", base, *RAW, "--json"))
    adapted = [
        json.loads(ran("run", "the dog", "-m", base, "--adapter", adapter, "--adapter-mode", mode, *RAW, "--json"))
        for mode in ("merged", "beside")
    ]
    assert adapted[0]["ids"] == adapted[1]["ids"] != plain["ids"]
    assert json.loads(ran("run", "the dog", "-m", adapter, *RAW, "--json"))["ids"] == adapted[0]["ids"]
    assert json.loads(ran("run", "the dog", "-m", base, "--adapter", f"{adapter}:0", *RAW, "--json"))["ids"] == plain["ids"]
    for words in (("look", "the dog"), ("trace", "the dog", "-n", "2"), ("lens", "the dog")):
        assert ran(*words, "-m", base, "--adapter", adapter, "--raw")


def test_tokens_and_parameters_of_an_adapters_folder(make_adapter: MakeAdapter) -> None:
    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    rows = [json.loads(ran("tokens", "the dog", "-m", folder, "--json"))["tokens"] for folder in (base, adapter)]
    assert rows[0] == rows[1]
    counts = [json.loads(ran("models", "params", folder, "--json"))["elements"] for folder in (base, adapter)]
    assert counts[0] == counts[1] > 0


def test_weights_of_adapters_at_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert adapter_weights(None) is None
    assert adapter_weights(["a:0.5", "b", "C:\\lora"]) == {"a": 0.5, "b": 1.0, "C:\\lora": 1.0}
    (tmp_path / "v:2").mkdir()
    assert adapter_weights(["v:2"]) == {"v:2": 1.0}
    with pytest.raises(SettingError, match="twice"):
        adapter_weights(["a", "a:2"])


def test_a_server_takes_an_adapter_for_one_model(make_adapter: MakeAdapter) -> None:
    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    output = ran("serve", "-m", base, "-m", "x=smollm2", "--adapter", adapter, fails=True)
    assert "--adapter is for one model" in output


def test_receipts_hold_the_adapter_and_replay_with_it(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    base, adapter, _ = make_adapter("llama", sizes={"vocab_size": 300}, target_modules=["q_proj", "up_proj"])
    ran("run", "the dog", "-m", base, "--adapter", f"{adapter}:0.5", *RAW, "--save", tmp_path / "run.json")
    receipt = json.loads((tmp_path / "run.json").read_text())
    assert receipt["adapters"] == {str(adapter): 0.5}
    assert "identical" in ran("run", "--replay", tmp_path / "run.json")
    other = ran("run", "--replay", tmp_path / "run.json", "--adapter", adapter, fails=True)
    assert "written with other weights" in other
    del receipt["adapters"]  # as runs were saved before there were any
    (tmp_path / "old.json").write_text(json.dumps(receipt))
    assert "written with other weights" in ran("run", "--replay", tmp_path / "old.json", fails=True)


def test_fingerprints_tell_adapters_and_their_weights_apart(make_adapter: MakeAdapter) -> None:
    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    adapters: list[dict[str, float] | None] = [None, {str(adapter): 1.0}, {str(adapter): 0.5}]
    prints = [model_fingerprint(glassformer.load(base, adapter=choice))["weights"] for choice in adapters]
    prints.append(model_fingerprint(glassformer.load(base, adapter=adapter, adapter_mode="beside"))["weights"])
    assert len(set(prints)) == 4
    assert prints[1] == model_fingerprint(glassformer.load(base, adapter=adapter))["weights"]


def test_a_task_takes_an_adapter(make_adapter: MakeAdapter) -> None:
    base, adapter, _ = make_adapter("llama", sizes={"vocab_size": 300}, target_modules="all-linear")
    plain, adapted = (
        glassformer.pipeline("text-generation", base, adapter=choice, max_new_tokens=4)("the dog")
        for choice in (None, adapter)
    )
    assert plain != adapted
    with pytest.raises(glassformer.ground.errors.InputError, match="loaded already"):
        glassformer.pipeline("text-generation", glassformer.load(base), adapter=adapter)
