"""Folders as a family's authors publish them, whose names and fused matrices are older than the family in transformers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from glassformer.blueprints import read_config
from glassformer.engine.cpu.executor import CpuReader
from glassformer.ground.errors import CheckpointError, ConfigError
from glassformer.model_files import open_model
from tests.parity import reference
from tests.parity.compare import close, ids_for, load

pytestmark = pytest.mark.usefixtures("one_thread")

NOMIC = {
    "model_type": "nomic_bert", "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
    "bos_token_id": None, "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "fused_bias_fc": True,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-12, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "n_embd": 48,
    "n_head": 4, "n_inner": 80, "n_layer": 3, "n_positions": 64, "pad_vocab_size_multiple": 64, "parallel_block": False,
    "prenorm": False, "qkv_proj_bias": False, "resid_pdrop": 0.0, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "type_vocab_size": 2,
    "use_cache": True, "use_flash_attn": True, "use_rms_norm": False, "vocab_size": 150, "max_trained_positions": 2048,
}  # fmt: skip
GTE = {
    "model_type": "new", "architectures": ["NewModel"], "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 80,
    "layer_norm_eps": 1e-12, "layer_norm_type": "layer_norm", "logn_attention_clip1": False, "logn_attention_scale": False,
    "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "pack_qkv": True, "pad_token_id": 1,
    "position_embedding_type": "rope", "rope_scaling": {"factor": 8.0, "type": "ntk"}, "rope_theta": 20000,
    "type_vocab_size": 1, "unpad_inputs": False, "use_memory_efficient_attention": False, "vocab_size": 150,
}  # fmt: skip
SLOWER = 8.0 ** (2 / 12)  # of GTE's scaling, with heads of 12 numbers
CHANGES: dict[str, dict[str, Any]] = {
    "nomic_bert": {"layer_norm_eps": 1e-12},
    "gte": {
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 1,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 160_000.0, "factor": SLOWER},
    },
}


def nomic(name: str) -> str:
    name = re.sub(r"^nomic_bert\.", "bert.", name)
    name = re.sub(r"\blayers\.", "encoder.layers.", name).replace("embeddings.LayerNorm", "emb_ln")
    for ours, theirs in {
        "self_attn.o_proj": "attn.out_proj", "self_attn.qkv": "attn.Wqkv", "mlp.up_proj": "mlp.fc11",
        "mlp.gate_proj": "mlp.fc12", "mlp.down_proj": "mlp.fc2", "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }.items():  # fmt: skip
        name = name.replace(ours, theirs)
    return name


def gte(name: str) -> str:
    name = re.sub(r"^gte\.", "new.", name)
    name = re.sub(r"\blayers\.", "encoder.layer.", name)
    for ours, theirs in {
        "self_attn.o_proj": "attention.o_proj", "self_attn.qkv": "attention.qkv_proj", "post_mlp_layernorm": "mlp_ln",
        "post_attention_layernorm": "attn_ln", "lm_head.layer_norm": "lm_head.norm",
    }.items():  # fmt: skip
        name = name.replace(ours, theirs)
    return name


def fused(tensors: dict[str, Tensor], parts: tuple[str, ...], whole: str) -> dict[str, Tensor]:
    joined = {name.replace(parts[0], whole): torch.cat([tensors[name.replace(parts[0], part)] for part in parts])
              for name in tensors if parts[0] in name}  # fmt: skip
    return {name: tensor for name, tensor in tensors.items() if not any(part in name for part in parts)} | joined


def published(folder: Path, family: str, head: str) -> Any:
    """The reference's model, and its numbers as its authors would have written them."""
    theirs = reference.build(family, head, **CHANGES[family])
    tensors = dict(theirs.state_dict())
    tensors = fused(tensors, tuple(f"self_attn.{name}_proj" for name in "qkv"), "self_attn.qkv")
    if family == "gte":
        tensors = fused(tensors, ("mlp.up_proj", "mlp.gate_proj"), "mlp.up_gate_proj")
    rename, config = (nomic, NOMIC) if family == "nomic_bert" else (gte, GTE)
    renamed = {rename(name): value.clone() for name, value in tensors.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return theirs


@torch.no_grad()
@pytest.mark.parametrize("head", ["base", "masked", "sequence"])
@pytest.mark.parametrize("family", CHANGES)
def test_an_authors_folder_equals_the_reference(family: str, head: str, tmp_path: Path, caplog: Any) -> None:
    theirs = published(tmp_path, family, head)
    ids, ours = ids_for(theirs, 2, 40), load(tmp_path, head)
    close(ours(ids)[0], theirs(ids)[0])
    assert not caplog.text
    ours.save_pretrained(tmp_path / "again")
    again = reference.auto(head).from_pretrained(tmp_path / "again", attn_implementation="eager").eval()
    close(again(ids)[0], theirs(ids)[0])


@torch.no_grad()
@pytest.mark.parametrize("family", CHANGES)
def test_the_engine_reads_it_too(family: str, tmp_path: Path) -> None:
    theirs = published(tmp_path, family, "base")
    opened, ids = open_model(tmp_path), ids_for(theirs, 11)
    (states,) = CpuReader(opened.config, opened.blueprint(), opened.tensors).read([ids.tolist()])
    close(torch.from_numpy(states)[None], theirs(ids[None]).last_hidden_state)


@pytest.mark.parametrize(
    ("config", "field"), [(NOMIC, "prenorm"), (NOMIC, "rotary_scaling_factor"), (GTE, "logn_attention_scale")]
)
def test_what_is_not_supported_is_refused(config: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"'{field}'"):
        read_config({**config, field: 2.0})


def test_parts_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    published(tmp_path, "nomic_bert", "base")
    save_file({"encoder.layers.0.attn.Wqkv.weight": torch.zeros(100, 48)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="Wqkv.*no 3 parts"):
        open_model(tmp_path).tensors  # noqa: B018
