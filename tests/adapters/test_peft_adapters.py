"""Adapters of peft: both executors give what peft gives, merged and beside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, Change
from glassformer.ground.errors import InputError
from tests.adapters.conftest import IDS, MakeAdapter, model_scores, reference_scores, scores
from tests.adapters.test_adapter_errors import change_config, change_weights
from tests.fuzz.targets import write_tokenizer

CLOSE = 2e-4
FIELDS: dict[str, dict[str, Any]] = {
    "a list of names": {"target_modules": ["q_proj", "v_proj"]},
    "every product": {"target_modules": "all-linear"},
    "a pattern": {"target_modules": r".*\.1\.(self_attn\.o_proj|mlp\.(gate|up)_proj)"},
    "one layer": {"target_modules": ["k_proj", "up_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    "rank-stabilized": {"target_modules": ["q_proj", "down_proj"], "use_rslora": True},
    "patterns of ranks": {
        "target_modules": ["q_proj", "gate_proj"], "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {r"layers.0.*gate_proj": 3},
    },
    "excluded modules": {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["layers.0.self_attn.q_proj"]},
    "DoRA": {"target_modules": ["q_proj", "up_proj"], "use_dora": True},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "whole modules": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]},
}  # fmt: skip


def agrees(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, atol=CLOSE * np.abs(theirs).max())


@pytest.mark.parametrize("fields", FIELDS.values(), ids=list(FIELDS))
@pytest.mark.parametrize("mode", ["merged", "beside"])
def test_both_executors_equal_peft(make_adapter: MakeAdapter, mode: str, fields: dict[str, Any]) -> None:
    base, adapter, theirs = make_adapter("llama", **fields)
    expected = reference_scores(theirs)
    for executor in ("plain", "cpu"):
        agrees(scores(base, adapter=adapter, adapter_mode=mode, executor=executor), expected)
    assert np.abs(scores(base, executor="plain") - expected).max() > 20 * CLOSE * np.abs(expected).max()


@pytest.mark.parametrize("mode", ["merged", "beside"])
def test_matrices_stored_as_columns(make_adapter: MakeAdapter, mode: str) -> None:
    fields = {"target_modules": ["c_attn", "c_proj", "c_fc", "wte"], "fan_in_fan_out": True}
    base, adapter, theirs = make_adapter("gpt2", **fields)
    for executor in ("plain", "cpu"):
        agrees(scores(base, adapter=adapter, adapter_mode=mode, executor=executor), reference_scores(theirs))


@pytest.mark.parametrize("mode", ["merged", "beside"])
def test_experts(make_adapter: MakeAdapter, mode: str) -> None:
    """One expert's update, as peft wrote it when experts were modules; it cannot stand beside, so it is merged."""
    base, adapter, theirs = make_adapter("mixtral", target_modules=["q_proj"])
    stacked = theirs.get_submodule("base_model.model.model.layers.0.mlp.experts").gate_up_proj
    inner = stacked.shape[1] // 2
    generator = torch.Generator().manual_seed(5)
    a, b = (0.2 * torch.randn(shape, generator=generator) for shape in ((4, stacked.shape[2]), (inner, 4)))
    with torch.no_grad():
        stacked[1, :inner] += 6 / 4 * b @ a
    module = "base_model.model.model.layers.0.block_sparse_moe.experts.1.w1"
    change_weights(adapter, lambda tensors: tensors.update({f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}))
    change_config(adapter, target_modules=["q_proj", "w1"])
    for executor in ("plain", "cpu"):
        agrees(scores(base, adapter=adapter, adapter_mode=mode, executor=executor), reference_scores(theirs))


@pytest.mark.parametrize("mode", ["merged", "beside"])
def test_biases_that_were_trained_with_an_adapter(make_adapter: MakeAdapter, mode: str) -> None:
    base, adapter, theirs = make_adapter("qwen2", target_modules=["q_proj", "o_proj"], bias="all")
    for executor in ("plain", "cpu"):
        agrees(scores(base, adapter=adapter, adapter_mode=mode, executor=executor), reference_scores(theirs))


@pytest.mark.parametrize("targets", [["lm_head"], ["wte"]])
def test_a_head_that_is_the_embedding_parts_from_it(make_adapter: MakeAdapter, targets: list[str]) -> None:
    """In peft's own model an update of the one leaves the other as it is."""
    base, adapter, theirs = make_adapter("gpt2", target_modules=[*targets, "c_fc"], fan_in_fan_out=True)
    for executor in ("plain", "cpu"):
        agrees(scores(base, adapter=adapter, executor=executor), reference_scores(theirs))


@pytest.mark.parametrize("mode", ["merged", "beside"])
def test_an_encoder_decoder(make_adapter: MakeAdapter, mode: str) -> None:
    base, adapter, theirs = make_adapter("t5", "Seq2SeqLM", target_modules=["q", "k", "v", "o", "wi", "wo"])
    source, target = torch.tensor([[5, 9, 3, 1]]), torch.tensor([[0, 7, 4]])
    expected = reference_scores(theirs, input_ids=source, decoder_input_ids=target)
    model = glassformer.load(base, adapter=adapter, adapter_mode=mode, executor="plain")
    agrees(model.module(source, decoder_input_ids=target).logits[0].numpy(), expected)
    from glassformer.engine.protocol import Feed, Want

    executor = glassformer.load(base, adapter=adapter, adapter_mode=mode, executor="cpu").executor
    result = executor.run([Feed(executor.open(source=source[0].tolist()), target[0].tolist(), Want.ALL)])[0]
    agrees(np.stack([result.host(position) for position in range(3)]), expected)


def test_a_classifier_whose_head_is_the_adapters(make_adapter: MakeAdapter) -> None:
    base, adapter, theirs = make_adapter("bert", "SequenceClassification", target_modules=["query", "dense"])
    ids = torch.tensor([IDS])
    own = AutoModelForSequenceClassification.from_pretrained(base, adapter=adapter)
    agrees(own(ids).logits[0].detach().numpy(), reference_scores(theirs, input_ids=ids))
    model = glassformer.load(base, adapter=adapter)
    assert model.head == "sequence"


@pytest.mark.parametrize("mode", ["merged", "beside"])
def test_an_encoder_reads_with_an_adapter(make_adapter: MakeAdapter, mode: str) -> None:
    base, adapter, theirs = make_adapter("bert", "MaskedLM", target_modules=["query", "value", "intermediate.dense"])
    with torch.no_grad():
        expected = theirs(torch.tensor([IDS]), output_hidden_states=True).hidden_states[-1][0].numpy()
    model = glassformer.load(base, adapter=adapter, adapter_mode=mode)
    agrees(model.reader.read([IDS])[0], expected)
    agrees(model.module.base_model(torch.tensor([IDS])).last_hidden_state[0].detach().numpy(), expected)


def test_several_adapters_with_weights(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    base, adapter, theirs = make_adapter("llama", target_modules=["q_proj", "up_proj"])
    theirs.add_weighted_adapter(["default"], [0.5], "halved", combination_type="cat")
    theirs.set_adapter("halved")
    for mode in ("merged", "beside"):
        agrees(scores(base, adapter={str(adapter): 0.5}, adapter_mode=mode, executor="plain"), reference_scores(theirs))
    (tmp_path / "again").symlink_to(adapter)
    for mode in ("merged", "beside"):  # minus a half, beside the one that the name means
        own = scores(adapter, adapter={str(tmp_path / "again"): -0.5}, adapter_mode=mode, executor="cpu")
        agrees(own, reference_scores(theirs))
    twice = {str(adapter): 0.2, str(tmp_path / "again"): 0.3}
    for mode in ("merged", "beside"):
        agrees(scores(base, adapter=twice, adapter_mode=mode, executor="cpu"), reference_scores(theirs))


def test_the_folder_of_an_adapter_opens_on_its_base(make_adapter: MakeAdapter) -> None:
    base, adapter, theirs = make_adapter("llama", target_modules=["q_proj"])
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    own = AutoModelForCausalLM.from_pretrained(adapter)
    agrees(own(torch.tensor([IDS])).logits[0].detach().numpy(), reference_scores(theirs))
    agrees(scores(adapter, executor="cpu"), reference_scores(theirs))
    agrees(scores(adapter, executor="cpu", adapter_mode="beside"), reference_scores(theirs))


def test_an_adapters_own_tokenizer_wins_where_it_is_the_model(make_adapter: MakeAdapter) -> None:
    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    assert AutoTokenizer.from_pretrained(adapter).encode("the dog") == AutoTokenizer.from_pretrained(base).encode("the dog")
    write_tokenizer(adapter, "words")
    assert glassformer.load(adapter).tokenizer.encode("the dog") == AutoTokenizer.from_pretrained(adapter).encode("the dog")
    assert AutoTokenizer.from_pretrained(adapter).encode("the dog") != AutoTokenizer.from_pretrained(base).encode("the dog")


def test_weights_of_an_adapter_in_the_older_file(make_adapter: MakeAdapter) -> None:
    from safetensors.torch import load_file

    base, adapter, theirs = make_adapter("llama", target_modules=["q_proj"])
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    agrees(scores(base, adapter=adapter, executor="plain"), reference_scores(theirs))


def test_each_rank_of_a_split_model_merges_the_adapter(make_adapter: MakeAdapter) -> None:
    from glassformer.model_files import open_model
    from glassformer.runtime.executors import SplitModel

    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    opened = open_model(base, adapter={str(adapter): 0.5})
    part = SplitModel(str(opened.path), adapters=opened.adapters)
    name = "model.layers.1.self_attn.q_proj.weight"
    np.testing.assert_array_equal(part._open().tensors[name].to_float32(), opened.tensors[name].to_float32())


def test_a_merged_model_saves_as_a_model_of_its_own(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    base, adapter, theirs = make_adapter("llama", target_modules="all-linear")
    AutoModelForCausalLM.from_pretrained(base, adapter=adapter).save_pretrained(tmp_path / "merged")
    agrees(scores(tmp_path / "merged", executor="cpu"), reference_scores(theirs))


def test_a_model_beside_an_adapter_is_not_saved_as_one(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    model = glassformer.load(base, adapter=adapter, adapter_mode="beside", executor="plain").module
    with pytest.raises(InputError, match="an adapter stands beside the weights"):
        model.save_pretrained(tmp_path / "merged")


def test_packed_weights_stay_packed_beside_an_adapter(
    make_adapter: MakeAdapter, empty_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from glassformer.model_files import open_model, with_adapters
    from glassformer.quantize import requantized

    sizes = {"hidden_size": 64, "intermediate_size": 96}
    base, adapter, _ = make_adapter("llama", sizes=sizes, target_modules=["q_proj", "down_proj"])
    packed = requantized(open_model(base), "q8_0")
    beside, merged = (with_adapters(packed, adapter, mode) for mode in ("beside", "merged"))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (beside.tensors[name].kind, merged.tensors[name].kind) == ("Q8_0", "F32")
    assert "adapter_mode='beside'" in caplog.text
    expected = scores(base, adapter=adapter, executor="plain")
    for mode in ("beside", "merged"):
        own = scores(base, adapter=adapter, adapter_mode=mode, weights="q8_0", executor="cpu")
        np.testing.assert_allclose(own, expected, atol=0.05 * np.abs(expected).max())


def test_sites_are_read_and_changed_beside_an_adapter(make_adapter: MakeAdapter) -> None:
    base, adapter, _ = make_adapter("llama", target_modules="all-linear")
    models = [
        glassformer.load(base, adapter=adapter, adapter_mode=mode, executor=executor)
        for mode, executor in (("merged", "plain"), ("beside", "plain"), ("beside", "cpu"))
    ]
    sites = list(models[0].blueprint.sites)
    assert sites == list(models[1].blueprint.sites)
    watched = [site for site in sites if site != "scores"]
    change = {"blocks.0.attention.heads": Change(scale=0, heads=[1]), "blocks.1.mlp.hidden": Change(scale=0.5)}
    readings = [model.read(IDS).values(*watched) for model in models]
    changed = [model_scores(model.changed(change)) for model in models]
    for reading, own in zip(readings[1:], changed[1:], strict=True):
        for site in watched:
            agrees(reading[site], readings[0][site])
        agrees(own, changed[0])


def test_watching_beside_an_adapter_changes_no_score(make_adapter: MakeAdapter) -> None:
    from glassformer.engine.protocol import Feed, Want
    from glassformer.ground.sites import Watch

    base, adapter, _ = make_adapter("llama", target_modules="all-linear")
    model = glassformer.load(base, adapter=adapter, adapter_mode="beside", executor="cpu")
    watch = Watch(frozenset(site for site in model.blueprint.sites if site != "scores"))
    watched = model.executor.run([Feed(model.executor.open(), IDS, Want.ALL, watch=watch)])[0]
    np.testing.assert_array_equal(np.stack([watched.host(at) for at in range(len(IDS))]), model_scores(model))


def test_every_number_beside_an_adapter_is_explained(make_adapter: MakeAdapter) -> None:
    from glassformer.see.attribution import attribution
    from glassformer.see.inside.compute import OpValues
    from glassformer.see.inside.paths import LevelPaths

    base, adapter, _ = make_adapter("llama", target_modules="all-linear")
    merged, beside = (glassformer.load(base, adapter=adapter, adapter_mode=mode) for mode in ("merged", "beside"))
    reading = beside.read(IDS)
    values = OpValues(reading, 3)
    for number, op in enumerate(beside.blueprint.ops):
        if op.kind in ("add", "gate", "linear", "heads"):
            assert np.isfinite(values.value(number)).all()
    paths = LevelPaths(beside.blueprint)
    inside = [path for path, place in paths.places.items() if path.startswith("blocks.1") and paths.openable(place)]
    texts = {path: str(reading.inside(path, 3)) for path in [*inside, *(f"{path}.0" for path in inside)]}
    assert "adapter's update + product" in texts["blocks.1.attention"]
    shares = [attribution(model.read(IDS)) for model in (merged, beside)]
    for one, other in zip(shares[0].heads, shares[1].heads, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-3)
