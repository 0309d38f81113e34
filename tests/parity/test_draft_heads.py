"""Heads for further tokens: their logits are those of an independent reference, and files keep them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer
from glassformer.blueprints import drafts
from glassformer.compat.auto import model_class_for_head
from glassformer.compat.pretrained import load
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.changes import Change
from glassformer.ground.errors import SettingError
from glassformer.ground.sites import HEAD_INPUT, Watch
from glassformer.model_files import DraftHead, ModelFiles, open_model
from glassformer.quantize import quantize, requantized
from glassformer.quantize.gguf_metadata import ARCHITECTURES
from glassformer.runtime.executors import ExecutorOptions, Executors
from glassformer.see.parameters import parameters
from tests.parity import draft_heads, reference
from tests.see.test_views import TOKENIZERS
from tests.sweeps import mostly_swept


def executor_of(head: DraftHead, which: str) -> Any:
    if which == "cpu":
        return CpuExecutor(head.config, head.blueprint(), head.tensors)
    return PlainExecutor(load(model_class_for_head(head.config.model_type, "causal"), head))


def guesses(executor: Any, ids: list[int], states: np.ndarray[Any, Any], cuts: list[int]) -> np.ndarray[Any, Any]:
    """A head's logits all along a text that is read in parts."""
    row, logits = executor.open(), []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        given = Change(scale=0.0, shift=states[start:end])
        (scored,) = executor.run([Feed(row, ids[start:end], Want.ALL, watch=Watch(changes={HEAD_INPUT: given}))])
        logits += [scored.host(index).copy() for index in range(end - start)]
    return np.stack(logits)


@pytest.mark.every_family
@pytest.mark.parametrize("family", draft_heads.FAMILIES)
@pytest.mark.parametrize("seed", [None, *mostly_swept(range(20), 1)])
def test_a_heads_logits_are_the_references(family: str, seed: int | None, tmp_path: Path) -> None:
    """Whatever the model is like, and however the text is cut."""
    changes = {} if seed is None else reference.random_changes(family, seed)
    theirs = draft_heads.write(tmp_path, family, **changes)
    head = open_model(tmp_path).draft_head
    assert head is not None
    assert head.config.num_hidden_layers == 1
    ids = torch.randint(0, theirs.model.config.vocab_size, (1, 23), generator=torch.Generator().manual_seed(seed or 0))
    expected = theirs.logits(ids)[0].numpy()
    states = theirs.model.model(ids, use_cache=False).last_hidden_state[0, :-1].detach().numpy()
    for which in ("plain", "cpu"):
        ours = guesses(executor_of(head, which), ids[0, 1:].tolist(), states, [10, 11])
        assert np.allclose(ours, expected, rtol=0, atol=2e-4 * np.abs(expected).max()), which


@pytest.mark.every_family
@pytest.mark.parametrize("family", draft_heads.FAMILIES)
def test_a_head_is_saved_as_it_was_read(family: str, tmp_path: Path) -> None:
    """In its own dtype, whatever the model is in; and it is no parameter."""
    draft_heads.write(tmp_path / "before", family)
    path = tmp_path / "before/model.safetensors"
    stored = {
        name: value.bfloat16() if "fc" in name or "eh_proj" in name else value for name, value in load_file(path).items()
    }
    save_file(stored, path, {"format": "pt"})
    model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path / "before")
    without = reference.build(family)
    assert model.num_parameters() == without.num_parameters()
    model.save_pretrained(tmp_path / "after")
    saved = load_file(tmp_path / "after/model.safetensors")
    assert saved.keys() == stored.keys()
    assert all(torch.equal(saved[name], value) and saved[name].dtype == value.dtype for name, value in stored.items())


def test_a_wrapper_of_texts_and_images_has_its_text_parts_head(tmp_path: Path) -> None:
    theirs = draft_heads.write(tmp_path, "qwen3_5_text")
    path, config = tmp_path / "model.safetensors", json.loads((tmp_path / "config.json").read_text())
    stored = {name.replace("model.", "model.language_model.", 1): value for name, value in load_file(path).items()}
    save_file({**stored, "model.visual.x": torch.zeros(2)}, path, {"format": "pt"})
    whole = {"model_type": "qwen3_5", "text_config": config, "tie_word_embeddings": config["tie_word_embeddings"]}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    head = open_model(tmp_path).draft_head
    assert head is not None
    assert np.array_equal(head.tensors["model.fc.weight"].to_float32(), theirs.matrix.numpy())


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_next", "glm4_moe"])
def test_experts_may_be_stacked_and_are_kept_so(family: str, tmp_path: Path) -> None:
    theirs = draft_heads.write(tmp_path, family)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    beginning = "mtp.layers.0.mlp.experts." if family in draft_heads.MTP else "model.layers.3.mlp.experts."
    count = sum(name.startswith(beginning) and "down_proj" in name for name in stored)
    if count:
        parts = {
            name: torch.stack([stored.pop(f"{beginning}{index}.{name}.weight") for index in range(count)])
            for name in ("gate_proj", "up_proj", "down_proj")
        }
        stored[f"{beginning}gate_up_proj"] = torch.cat((parts["gate_proj"], parts["up_proj"]), 1)
        stored[f"{beginning}down_proj"] = parts["down_proj"]
        save_file(stored, path, {"format": "pt"})
    opened = open_model(tmp_path)
    assert set(opened.kept_tensors) == {name for name in stored if drafts.part_name(opened.config, name) is not None}
    assert opened.draft_head is not None
    ids = torch.arange(20)[None]
    states = theirs.model.model(ids, use_cache=False).last_hidden_state[0, :-1].detach().numpy()
    ours = guesses(executor_of(opened.draft_head, "cpu"), ids[0, 1:].tolist(), states, [])
    assert np.allclose(ours, theirs.logits(ids)[0].numpy(), rtol=0, atol=1e-4)


def packed(opened: ModelFiles, kind: str) -> ModelFiles:
    return requantized(opened, kind)


@pytest.mark.parametrize("family", ["qwen3_5_text", "deepseek_v3"])
def test_a_head_is_packed_with_its_model(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASS_HOME", str(tmp_path / "home"))
    draft_heads.write(tmp_path / "model", family, hidden_size=64)
    opened = packed(open_model(tmp_path / "model"), "q8_0")
    head = opened.draft_head
    assert head is not None
    assert head.tensors["model.fc.weight"].kind == "Q8_0"
    assert head.tensors["model.pre_fc_norm_hidden.weight"].kind == "F32"
    assert head.tensors["model.embed_tokens.weight"] is opened.tensors["model.embed_tokens.weight"]


def test_a_family_or_a_file_may_be_without(tmp_path: Path) -> None:
    for family in ("llama", "qwen3_5_text"):
        reference.write(tmp_path / family, family)
        opened = open_model(tmp_path / family)
        assert opened.draft_head is None
        assert not opened.kept_tensors


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("llama", "has none. Leave"),
        ("qwen3_5_text", "its files leave it out"),
        ("ernie4_5_moe", "those of ernie4_5_moe models"),
    ],
)
def test_why_a_model_has_no_head_is_said(family: str, said: str, tmp_path: Path) -> None:
    """Where a config speaks of one, whether its files leave it out, or nobody here computes it."""
    reference.write(tmp_path, family)
    path = tmp_path / "config.json"
    promise = {} if family == "llama" else {"num_nextn_predict_layers": 1}
    path.write_text(json.dumps({**json.loads(path.read_text()), **promise}))
    with pytest.raises(SettingError, match="means a model") as caught:
        _ = Executors(open_model(tmp_path), ExecutorOptions(executor="cpu")).draft_head
    assert said in str(caught.value)


@pytest.mark.every_family
@pytest.mark.parametrize("family", [family for family in draft_heads.FAMILIES if family in ARCHITECTURES])
@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_gguf_has_a_place_for_heads(family: str, kind: str, tmp_path: Path) -> None:
    """They are written, read, and draft with the same numbers; and the model has as many layers as before."""
    tokenizer, named = TOKENIZERS["gpt2"]()
    own = {"deepseek_v3": {"rope_parameters": {"rope_theta": 10000.0}}, "qwen3_next": {"mlp_only_layers": []}}
    changes: dict[str, Any] = own.get(family, {})
    theirs = draft_heads.write(tmp_path, family, vocab_size=tokenizer.get_vocab_size(), hidden_size=64, **changes)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    quantize(open_model(tmp_path), tmp_path / "model.gguf", kind)
    opened = open_model(tmp_path / "model.gguf")
    assert opened.config.num_hidden_layers == theirs.model.config.num_hidden_layers
    head = opened.draft_head
    assert head is not None
    assert head.tensors["model.fc.weight"].kind == kind.upper()
    ids = torch.arange(20)[None]
    states = theirs.model.model(ids, use_cache=False).last_hidden_state[0, :-1].detach().numpy()
    ours, expected = guesses(executor_of(head, "cpu"), ids[0, 1:].tolist(), states, []), theirs.logits(ids)[0].numpy()
    assert np.allclose(ours, expected, rtol=0, atol=(1e-4 if kind == "f32" else 0.05) * np.abs(expected).max())
    again = tmp_path / "again.gguf"
    quantize(opened, again, "q8_0", allow_requantize=True)
    assert open_model(again).draft_head is not None


@pytest.mark.parametrize("family", ["qwen3_5_moe_text", "glm4_moe"])
def test_a_folder_made_of_gguf_has_the_familys_own_names_of_heads(family: str, tmp_path: Path) -> None:
    """And its numbers, which the file keeps in layouts of its own."""
    tokenizer, named = TOKENIZERS["gpt2"]()
    draft_heads.write(tmp_path, family, vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    stored = load_file(tmp_path / "model.safetensors")
    quantize(open_model(tmp_path), tmp_path / "model.gguf", "f32")
    glassformer.AutoModelForCausalLM.from_pretrained(tmp_path / "model.gguf").save_pretrained(tmp_path / "folder")
    saved = load_file(tmp_path / "folder/model.safetensors")
    kept = drafts.kept_names(open_model(tmp_path).config, stored)
    assert len(kept) > 10
    for name in kept:
        assert torch.allclose(saved[name], stored[name], rtol=0, atol=1e-6), name


def test_a_heads_tensors_are_listed_and_not_counted(tmp_path: Path) -> None:
    draft_heads.write(tmp_path / "with", "qwen3_5_text")
    reference.write(tmp_path / "without", "qwen3_5_text")
    view, without = (parameters(open_model(tmp_path / name)) for name in ("with", "without"))
    assert (view.elements, view.tensors, view.bytes) == (without.elements, without.tensors, without.bytes)
    assert {tensor.name for tensor in view.unused} == set(open_model(tmp_path / "with").kept_tensors)
    assert "no part of the model, and not counted: mtp." in str(view.page())
