"""GGUF files of every family, as llama.cpp's converter lays them out, against the reference's model they were made from.

Names come from the gguf package's own table, not from ours; what the converter does to the numbers is stated here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType
from gguf import GGUFValueType as Value
from gguf.quants import dequantize, quantize
from gguf.tensor_mapping import get_tensor_name_map

import glassformer
from glassformer.blueprints.falcon_h1 import MULTIPLIERS
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.locate import local_path
from glassformer.ground.errors import ConfigError
from tests.checkpoint.files import Typed, refused, write_gguf
from tests.parity import reference
from tests.parity.compare import close, ids_for, load, share_of_rounding

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS, HIDDEN, INNER, HEADS, VOCABULARY, CONTEXT = 2, 64, 128, 4, 96, 48
Arrays = dict[str, np.ndarray]

GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_inner": None, "n_head": HEADS, "n_layer": LAYERS, "n_positions": CONTEXT,
    "layer_norm_epsilon": 1e-3,
}  # fmt: skip
GEMMA3: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 7,
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 32,
    "sliding_window": 5, "layer_types": None, "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5e5},
    },
}  # fmt: skip
BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "max_position_embeddings": CONTEXT, "type_vocab_size": 2, "layer_norm_eps": 1e-4,
}  # fmt: skip
MODERN_BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 5,
    "num_attention_heads": HEADS, "max_position_embeddings": CONTEXT, "local_attention": 6, "norm_eps": 1e-4,
    "layer_types": ["full_attention", *["sliding_attention", "full_attention"] * 2],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5e5},
    },
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": HIDDEN, "d_kv": 32, "d_ff": INNER, "num_layers": LAYERS, "num_decoder_layers": 3,
    "num_heads": HEADS, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-4,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": HIDDEN // HEADS, "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
}  # fmt: skip
GEMMA: dict[str, Any] = {**LLAMA, "head_dim": 32}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 5e4, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 12,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
}  # fmt: skip
NEOX: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "max_position_embeddings": CONTEXT, "layer_norm_eps": 1e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.5},
}  # fmt: skip
LAYER_NORMS: dict[str, Any] = {
    **{name: value for name, value in LLAMA.items() if name not in ("head_dim", "rms_norm_eps")}, "layer_norm_eps": 1e-4,
}  # fmt: skip
KEYS, SHARING = 2, 3  # heads of keys of a state, and heads of values for each
NEAR, GEMMA4_LOCAL = "sliding_attention", (True, False, True, True, False)  # Gemma 4's layers
NEMOTRON_H: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": CONTEXT, "layer_norm_epsilon": 1e-4,
    "layers_block_type": ["full_attention", "linear_attention", "mlp"], "ssm_state_size": 12, "mamba_num_heads": 8,
    "mamba_head_dim": 16, "n_groups": 2, "conv_kernel": 4,
}  # fmt: skip
HALF = {**LLAMA["rope_parameters"], "partial_rotary_factor": 0.5}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {  # by architecture: the family, and what its config has of its own
    "phi3": ("phi3", {**LLAMA, "sliding_window": 9}),
    "phi3 longrope": ("phi3", {**LLAMA, "rope_parameters": LONGROPE, "original_max_position_embeddings": 12}),
    "olmo2": ("olmo2", LLAMA),
    "olmo2 windows": (
        "olmo3",
        {**LLAMA, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"],
         "rope_parameters": dict.fromkeys(("sliding_attention", "full_attention"), LLAMA["rope_parameters"])},
    ),
    "exaone4": (
        "exaone4",
        {**LLAMA, "num_hidden_layers": 3, "sliding_window": 5,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "exaone4 everything": ("exaone4", {**LLAMA, "sliding_window": None, "layer_types": ["full_attention"] * LAYERS}),
    "glm4": ("glm4", {**LLAMA, "rope_parameters": {**LLAMA["rope_parameters"], "partial_rotary_factor": 0.5}}),
    "command-r": (
        "cohere",
        {name: value for name, value in LLAMA.items() if name not in ("head_dim", "rms_norm_eps")}
        | {"layer_norm_eps": 1e-4, "logit_scale": 0.25},
    ),
    "seed_oss": ("seed_oss", {**LLAMA, "head_dim": 32}),
    "ernie4_5": ("ernie4_5", {**LLAMA, "head_dim": 32, "use_bias": True}),
    "hunyuan-dense": ("hunyuan_v1_dense", LLAMA),
    "arcee": ("arcee", LLAMA),
    "granite": (
        "granite",
        {**LLAMA, "embedding_multiplier": 6.0, "attention_multiplier": 0.25, "residual_multiplier": 0.5,
         "logits_scaling": 3.0},
    ),
    "smollm3": ("smollm3", {**LLAMA, "num_hidden_layers": 5, "tie_word_embeddings": False, "no_rope_layer_interval": 4}),
    "gemma": ("gemma", GEMMA),
    "gemma4": (
        "gemma4_text",
        {**LLAMA, "num_hidden_layers": 5, "head_dim": 16, "global_head_dim": 32, "num_kv_shared_layers": 2,
         "use_double_wide_mlp": True, "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": VOCABULARY,
         "attention_k_eq_v": True, "num_global_key_value_heads": 1, "sliding_window": 5, "final_logit_softcapping": 30.0,
         "layer_types": [NEAR if local else "full_attention" for local in GEMMA4_LOCAL],
         "rope_parameters": {
             NEAR: {"rope_type": "default", "rope_theta": 1e3},
             "full_attention": {"rope_type": "proportional", "rope_theta": 5e4, "partial_rotary_factor": 0.25}}},
    ),
    "gemma2": (
        "gemma2",
        {**GEMMA, "query_pre_attn_scalar": 32, "sliding_window": 5, "attn_logit_softcapping": 1.5,
         "final_logit_softcapping": 30.0},
    ),
    "qwen35": (
        "qwen3_5_text",
        {**LLAMA, "num_hidden_layers": 4, "head_dim": 32, "layer_types": None, "full_attention_interval": 2,
         "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": KEYS,
         "linear_num_value_heads": KEYS * SHARING,
         "rope_parameters": {**LLAMA["rope_parameters"], "partial_rotary_factor": 0.25}},
    ),
    **{
        name: (
            "lfm2",
            {**{key: value for key, value in LLAMA.items() if key not in ("head_dim", "rms_norm_eps")}, "norm_eps": 1e-4,
             "num_hidden_layers": 3, "block_auto_adjust_ff_dim": False, "conv_bias": biased,
             "layer_types": ["conv", "full_attention", "conv"]},
        )
        for name, biased in (("lfm2", False), ("lfm2 biased", True))
    },
    "mamba2": ("mamba2", {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 3, "num_heads": 8, "head_dim": 16,
        "state_size": 12, "n_groups": 2, "expand": 2, "layer_norm_epsilon": 1e-4, "use_bias": True}),
    "falcon-h1": ("falcon_h1", {
        **LLAMA, "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_rms_norm": True,
        "mamba_norm_before_gate": False, **dict.fromkeys(MULTIPLIERS, 1.0), "ssm_multipliers": None,
        "mlp_multipliers": None}),  # all one: parts of a file's matrices
    "nemotron_h": ("nemotron_h", NEMOTRON_H),
    "nemotron_h_moe": ("nemotron_h", {
        **NEMOTRON_H, "layers_block_type": ["full_attention", "linear_attention", "moe"], "n_routed_experts": 6,
        "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 32, "moe_latent_size": 48,
        "moe_shared_expert_intermediate_size": 64, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
        "experts_implementation": "eager"}),
    "gptneox": ("gpt_neox", NEOX),
    "gptneox serial": ("gpt_neox", {**NEOX, "use_parallel_residual": False, "attention_bias": False}),
    "stablelm": ("stablelm", {**LAYER_NORMS, "use_qkv_bias": True, "rope_parameters": HALF, "qk_layernorm": False}),
    "stablelm parallel": (
        "stablelm", {**LAYER_NORMS, "use_parallel_residual": True, "rope_parameters": HALF, "qk_layernorm": True}
    ),
    "phi2": ("phi", {**LAYER_NORMS, "rope_parameters": HALF, "qk_layernorm": False}),
    "nemotron": (
        "nemotron",
        {**{name: value for name, value in LAYER_NORMS.items() if name != "layer_norm_eps"}, "norm_eps": 1e-4,
         "head_dim": HIDDEN // HEADS, "rope_parameters": HALF},
    ),
    **{
        name: ("olmo", {**{key: value for key, value in LAYER_NORMS.items() if key != "layer_norm_eps"}, "clip_qkv": clip})
        for name, clip in (("olmo", None), ("olmo clipped", 0.25))
    },
    "bloom": ("bloom", {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "layer_norm_epsilon": 1e-4}),
    **{
        name: ("mpt", {
            "vocab_size": VOCABULARY, "d_model": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "max_seq_len": CONTEXT,
            "layer_norm_epsilon": 1e-4, "attn_config": {"clip_qkv": clip}})
        for name, clip in (("mpt", None), ("mpt clipped", 0.25))
    },
    "starcoder": ("gpt_bigcode", GPT2),
    "starcoder2": (
        "starcoder2",
        {name: value for name, value in LLAMA.items() if name not in ("head_dim", "rms_norm_eps")}
        | {"norm_epsilon": 1e-4, "sliding_window": None},
    ),
}  # fmt: skip
HALVES = ("glm4", "stablelm", "stablelm parallel", "phi2", "nemotron")  # which rotate half of each head
EIGHT = (*HALVES, "qwen35")  # which rotate eight numbers of it
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # architecture, head, config
    **{name: (family, "causal", config) for name, (family, config) in DECODERS.items()},
    "gpt2": ("gpt2", "causal", GPT2),
    "gemma3": ("gemma3_text", "causal", GEMMA3),
    "gemma-embedding": ("embedding_gemma", "base", GEMMA3),
    "eurobert": ("eurobert", "base", LLAMA),
    "bert": ("bert", "base", BERT),
    "modern-bert": ("modernbert", "base", MODERN_BERT),
    "t5": ("t5", "seq2seq", T5),
    "t5 of many biases": ("umt5", "seq2seq", {**T5, "feed_forward_proj": "gated-gelu"}),
    "t5 gated": ("t5", "seq2seq", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
}


@cache
def theirs(name: str) -> Any:
    family, head, config = MODELS[name]
    model = reference.build(family, head, **config)
    if name == "t5 gated":  # as T5 1.1 has it: a head of its own, whose scores are not scaled
        model.lm_head.weight = torch.nn.Parameter(model.shared.weight.detach().flip(0) * 1.5)
    return model


def metadata(name: str) -> dict[str, Typed]:
    """What the converter writes about a model, and what it leaves unsaid."""
    c, short = theirs(name).config, name.split()[0]
    whole: dict[str, int] = {
        "context_length": CONTEXT, "embedding_length": HIDDEN, "block_count": LAYERS, "attention.head_count": HEADS,
        "feed_forward_length": INNER,
    }  # fmt: skip
    real: dict[str, float] = {}
    if short == "gpt2":
        whole["feed_forward_length"] = 4 * HIDDEN
        real["attention.layer_norm_epsilon"] = c.layer_norm_epsilon
    elif short == "bert":
        real["attention.layer_norm_epsilon"] = c.layer_norm_eps
    elif short == "modern-bert":
        whole |= {"block_count": 5, "attention.sliding_window": 6, "attention.sliding_window_pattern": 2}
        real |= {"attention.layer_norm_epsilon": c.norm_eps, "rope.freq_base": 5e5, "rope.freq_base_swa": 100.0}
    elif short == "t5":
        whole |= {
            "decoder_block_count": 3, "attention.key_length": 32, "attention.value_length": 32,
            "attention.relative_buckets_count": 8, "decoder_start_token_id": 0,
        }  # fmt: skip
        real |= dict.fromkeys(("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"), c.layer_norm_epsilon)
    elif name in DECODERS or name == "eurobert":
        return decoder_metadata(name)
    else:
        whole |= {
            "block_count": 7, "attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 5,
            "attention.head_count_kv": 2,
        }  # fmt: skip
        real |= {"attention.layer_norm_rms_epsilon": c.rms_norm_eps, "rope.freq_base": 5e5}
    sizes: dict[str, Typed] = {f"{short}.{key}": (value, Value.UINT32) for key, value in whole.items()}
    sizes |= {f"{short}.{key}": (value, Value.FLOAT32) for key, value in real.items()}
    marks = {"eos": c.eos_token_id, "padding": c.pad_token_id}
    sizes |= {f"tokenizer.ggml.{key}_token_id": (v, Value.UINT32) for key, v in marks.items() if v is not None}
    return sizes


QUADRUPLE = ("starcoder", "bloom", "mpt")  # whose MLPs have four times the width
LAYER_NORMED = ("gptneox", "starcoder2", "command-r", "stablelm", "phi2", "nemotron", "olmo", "starcoder", "bloom", "mpt")


OF_STATES: dict[str, Typed] = {
    "ssm.conv_kernel": (4, Value.UINT32), "ssm.inner_size": (128, Value.UINT32), "ssm.state_size": (12, Value.UINT32),
    "ssm.time_step_rank": (8, Value.UINT32), "ssm.group_count": (2, Value.UINT32),
    "attention.head_count_kv": ([2, 0, 0], Value.ARRAY, Value.UINT32),
}  # fmt: skip


def decoder_metadata(name: str) -> dict[str, Typed]:
    c, short = theirs(name).config, name.split()[0]
    whole: dict[str, Typed] = {
        key: (value, Value.UINT32)
        for key, value in {
            "context_length": CONTEXT, "embedding_length": HIDDEN, "block_count": c.num_hidden_layers,
            "attention.head_count": HEADS, "feed_forward_length": 4 * HIDDEN if short in QUADRUPLE else INNER,
            "tokenizer.ggml.eos_token_id": c.eos_token_id,
            "tokenizer.ggml.padding_token_id": c.pad_token_id,
            "attention.head_count_kv": None if short == "gemma4" else getattr(c, "num_key_value_heads", None),
            "attention.key_length": 32 if short.startswith(("gemma", "seed", "ernie", "qwen35", "nemotron_h")) else None,
            "attention.sliding_window": getattr(c, "sliding_window", None),
            "rope.dimension_count": {"phi3 longrope": 12, "gptneox": 8, "gptneox serial": 8, **dict.fromkeys(EIGHT, 8)}.get(
                name, 32 if short == "gemma4" else getattr(c, "head_dim", HIDDEN // HEADS)
            ),
        }.items()
        if value is not None
    }  # fmt: skip
    own: dict[str, Typed] = {
        "phi3 longrope": {
            "rope.scaling.original_context_length": (12, Value.UINT32),
            "rope.scaling.attn_factor": (float(np.sqrt(1 + np.log(CONTEXT / 12) / np.log(12))), Value.FLOAT32),
        },
        "exaone4": {"attention.sliding_window_pattern": ([True, False, True], Value.ARRAY, Value.BOOL)},
        "command-r": {"logit_scale": (0.25, Value.FLOAT32)},
        "olmo2 windows": {"attention.sliding_window_pattern": ([True, False], Value.ARRAY, Value.BOOL)},
        "granite": {
            "attention.scale": (0.25, Value.FLOAT32), "embedding_scale": (6.0, Value.FLOAT32),
            "residual_scale": (0.5, Value.FLOAT32), "logit_scale": (3.0, Value.FLOAT32),
        },
        "gemma2": {
            "attn_logit_softcapping": (1.5, Value.FLOAT32), "final_logit_softcapping": (30.0, Value.FLOAT32),
        },
        "qwen35": {
            "full_attention_interval": (2, Value.UINT32), "ssm.conv_kernel": (4, Value.UINT32),
            "ssm.state_size": (32, Value.UINT32), "ssm.group_count": (KEYS, Value.UINT32),
            "ssm.time_step_rank": (KEYS * SHARING, Value.UINT32), "ssm.inner_size": (32 * KEYS * SHARING, Value.UINT32),
        },
        **{
            key: {
                "shortconv.l_cache": (3, Value.UINT32), "attention.head_count_kv": ([0, 2, 0], Value.ARRAY, Value.UINT32),
            }
            for key in ("lfm2", "lfm2 biased")
        },
        "mamba2": {
            "ssm.conv_kernel": (4, Value.UINT32), "ssm.inner_size": (2 * HIDDEN, Value.UINT32),
            "ssm.state_size": (12, Value.UINT32), "ssm.time_step_rank": (8, Value.UINT32),
            "ssm.group_count": (2, Value.UINT32), "attention.head_count": (0, Value.UINT32),
            "feed_forward_length": (0, Value.UINT32),
        },
        "falcon-h1": {key: value for key, value in OF_STATES.items() if key.startswith("ssm.")},
        "nemotron_h": {**OF_STATES, "feed_forward_length": ([0, 0, INNER], Value.ARRAY, Value.UINT32)},
        "nemotron_h_moe": {
            **OF_STATES, "feed_forward_length": ([0, 0, 32], Value.ARRAY, Value.UINT32), "expert_count": (6, Value.UINT32),
            "expert_used_count": (2, Value.UINT32), "expert_group_count": (2, Value.UINT32),
            "expert_group_used_count": (1, Value.UINT32), "expert_feed_forward_length": (32, Value.UINT32),
            "expert_shared_feed_forward_length": (64, Value.UINT32), "expert_weights_norm": (True, Value.BOOL),
            "expert_weights_scale": (1.5, Value.FLOAT32), "moe_latent_size": (48, Value.UINT32),
        },
        **{f"{name} clipped": {"attention.clamp_kqv": (0.25, Value.FLOAT32)} for name in ("olmo", "mpt")},
        "stablelm": {"use_parallel_residual": (False, Value.BOOL)},
        "stablelm parallel": {"use_parallel_residual": (True, Value.BOOL)},
        "gemma4": {
            "attention.key_length_swa": (16, Value.UINT32), "attention.shared_kv_layers": (2, Value.UINT32),
            "embedding_length_per_layer_input": (32, Value.UINT32), "rope.freq_base_swa": (1e3, Value.FLOAT32),
            "attention.head_count_kv": ([2, 1, 2, 2, 1], Value.ARRAY, Value.UINT32),
            "feed_forward_length": ([INNER, INNER, INNER, 2 * INNER, 2 * INNER], Value.ARRAY, Value.UINT32),
            "attention.sliding_window_pattern": ([*GEMMA4_LOCAL], Value.ARRAY, Value.BOOL),
            "final_logit_softcapping": (30.0, Value.FLOAT32),
        },
        "gptneox": {"use_parallel_residual": (True, Value.BOOL)},
        "gptneox serial": {"use_parallel_residual": (False, Value.BOOL)},
    }.get(name, {})  # type: ignore[assignment]  # fmt: skip
    norm = "layer_norm_epsilon" if short in LAYER_NORMED else "layer_norm_rms_epsilon"
    eps = {"olmo": 1e-5, "starcoder": 1e-3}.get(short, 1e-4)
    own |= {f"attention.{norm}": (eps, Value.FLOAT32), "rope.freq_base": (5e4, Value.FLOAT32)}
    return {key if "." in key and key.startswith("tok") else f"{short}.{key}": typed for key, typed in (whole | own).items()}


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rotary pairs side by side, as the converter has them for Llama and those that it takes for one."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def in_turns(values: np.ndarray, size: int, first: int = 0) -> np.ndarray:
    """Heads of `size` rows, after some that stay: one for each head of keys, and then the next for each."""
    heads = values[first:].reshape(KEYS, SHARING, size, *values.shape[1:]).swapaxes(0, 1)
    return np.concatenate((values[:first], heads.reshape(values[first:].shape)))


def state_as_converted(key: str, value: np.ndarray) -> np.ndarray:
    """What the converter does to a tensor of a layer that keeps a state."""
    part = key.split(".linear_attn.")[1].removesuffix(".weight")
    if part == "A_log":
        return -np.exp(in_turns(value, 1))
    if part == "out_proj":
        return in_turns(value.T, 32).T
    if part in ("in_proj_a", "in_proj_b", "dt_bias"):
        return in_turns(value, 1)
    if part in ("in_proj_qkv", "conv1d"):
        return in_turns(value.squeeze(), 32, first=2 * KEYS * 32)
    return in_turns(value, 32) if part == "in_proj_z" else value


RAISED = ("gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron", "qwen35")  # norms stored as what they differ from one


def as_converted(name: str, key: str, value: np.ndarray) -> np.ndarray:
    """What the converter does to a tensor of a decoder."""
    short = name.split()[0]
    if short.startswith(("mamba2", "nemotron_h", "falcon-h1")) and re.search(r"\.(mixer|mamba)\.", key):
        part = re.split(r"\.mixer\.|\.mamba\.", key)[1]
        columns = {"A_log": -np.exp(value), "D": value}
        if part in columns:
            return columns[part][:, None]
        return value.reshape(2, -1) if part == "norm.weight" else value.squeeze() if part == "conv1d.weight" else value
    if ".linear_attn." in key:
        return state_as_converted(key, value)
    if short in ("granite", "smollm3", "arcee", "olmo") and (projection := re.search(r"self_attn\.([qk])_proj", key)):
        return permuted(value, HEADS if projection[1] == "q" else 2)
    if key.endswith("conv.conv.weight"):
        return value.squeeze(1)
    if "query_key_value" in key:
        return value.reshape(HEADS, 3, -1, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)
    return value + np.float32(1) if short in RAISED and key.endswith("norm.weight") else value


def rope_factors(name: str) -> Arrays:
    """The tensors that a file of longrope has."""
    factors = {f"rope_factors_{kind}.weight": np.float32(LONGROPE[f"{kind}_factor"]) for kind in ("short", "long")}
    if name == "gemma4":  # a quarter of 16 pairs is turned
        return {"rope_freqs.weight": np.float32([1.0] * 4 + [1e30] * 12)}
    return factors if name == "phi3 longrope" else {}


def gguf_names(name: str) -> dict[str, str]:
    """The reference's names to GGUF's, for what the converter writes: no pooler, and a shared table once."""
    short, model = name.split()[0], theirs(name)
    architecture = next(arch for arch, known in MODEL_ARCH_NAMES.items() if known == short)
    names, seen = get_tensor_name_map(architecture, 7), set()
    found: dict[str, str] = {}
    for key, tensor in model.state_dict(keep_vars=True).items():
        if "pooler" not in key and id(tensor) not in seen:
            seen.add(id(tensor))
            whole = f"{key}.weight" if key.endswith("layer_scalar") else key.replace("dt_bias", "dt_proj.bias")
            whole = re.sub(r"layernorm\.norms\.\d+", "layernorm", whole)  # which the converter stacks
            if short.startswith("nemotron_h"):  # as files have it; and the table has experts by another name
                whole = whole.replace("model.", "backbone.", 1).replace("score_correction_bias", "score_correction.bias")
                whole = re.sub(r"backbone(.*)\.mixer(\.experts\.\w+)$", r"model\1.mlp\2.weight", whole)
            other = names.get_name(whole, (".weight", ".bias"))
            other = other or names.get_name(key.removeprefix("transformer."), (".weight", ".bias"))  # as for BLOOM
            other = other or names.get_name(f"model.{key}", (".weight", ".bias"))  # of a base alone
            assert other is not None, key
            found[key] = other
    return found


def is_transposed(name: str, key: str) -> bool:
    """Whether a weight has rows in the file where the reference has columns."""
    return name == "gpt2" and re.search(r"c_(attn|proj|fc)\.weight$", key) is not None


def converted(name: str) -> Arrays:
    """The reference's tensors under GGUF's names: GPT-2's products turned round, Gemma's norms raised by one."""
    state, found = theirs(name).state_dict(), {}
    for key, other in gguf_names(name).items():
        value = state[key].numpy()
        value = np.ascontiguousarray(value.T) if is_transposed(name, key) else value
        value = np.ascontiguousarray(as_converted(name, key, value))
        found[other] = np.stack([*found.get(other, ()), value]) if ".norms." in key else value
    return found | rope_factors(name)


def inputs(name: str) -> dict[str, torch.Tensor]:
    ids = ids_for(theirs(name), 2, 23)
    if name.startswith("t5"):
        return {"input_ids": ids, "decoder_input_ids": ids_for(theirs(name), 2, 17, seed=3)}
    return {"input_ids": ids, **({"token_type_ids": ids % 2} if name == "bert" else {})}


@cache
def share(name: str) -> float:
    """What "equal" means for a model."""
    return max(1e-5, share_of_rounding(theirs(name), **inputs(name)))


def ours(path: Path, name: str) -> Any:
    return load(path, MODELS[name][1])


@pytest.mark.parametrize("name", MODELS)
class TestConvertedFamilies:
    @torch.no_grad()
    def test_float32_gives_the_same_outputs(self, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = write_gguf(tmp_path / "x.gguf", name.split()[0], metadata(name), converted(name))
        mine, model = ours(path, name), theirs(name)
        state = reference.in_checkpoint(model, model.state_dict())
        for key, value in mine.state_dict().items():
            if "pooler" not in key:
                assert torch.allclose(value, state[key], atol=1e-6), key
        wanted, found = (one(**inputs(name), output_hidden_states=True) for one in (model, mine))
        wanted = reference.as_usual(model, inputs(name)["input_ids"], wanted)
        close(found[0], wanted[0], share(name))
        pattern = "decoder_hidden_states" if name.startswith("t5") else "hidden_states"
        for one, other in zip(found[pattern], wanted[pattern], strict=True):
            close(one, other, 10 * share(name))
        lines = ["x.gguf: new, untrained: pooler.dense.weight, pooler.dense.bias."] if name == "bert" else []
        assert caplog.messages == lines

    @torch.no_grad()
    def test_quantized_matches_the_dequantized_reference(self, name: str, tmp_path: Path) -> None:
        """Matrices in Q8_0; the reference is given the numbers that they expand to."""
        kind, model, tensors = GGMLQuantizationType.Q8_0, copy.deepcopy(theirs(name)), dict[str, Any](converted(name))
        state, packed = model.state_dict(), 0
        for key, other in gguf_names(name).items():
            if (value := tensors[other]).ndim == 2 and value.shape[1] % 32 == 0:
                tensors[other] = (quantize(value, kind), kind)
                family_rows = quantize(state[key].numpy().T.copy() if is_transposed(name, key) else state[key].numpy(), kind)
                expanded = torch.from_numpy(dequantize(family_rows, kind))  # blocks run along rows, whatever their order
                state[key].copy_(expanded.T if is_transposed(name, key) else expanded)
                packed += 1
        assert packed > 8
        mine = ours(write_gguf(tmp_path / "x.gguf", name.split()[0], metadata(name), tensors), name)
        assert mine.dtype == torch.float32
        close(mine(**inputs(name))[0], model(**inputs(name))[0], share(name))
        assert not torch.allclose(mine(**inputs(name))[0], theirs(name)(**inputs(name))[0], atol=1e-4)

    @torch.no_grad()
    def test_saved_as_a_folder(self, name: str, tmp_path: Path) -> None:
        """What came from GGUF goes to the reference."""
        path = write_gguf(tmp_path / "x.gguf", name.split()[0], metadata(name), converted(name))
        mine = ours(path, name)
        mine.save_pretrained(tmp_path / "folder")
        again = reference.auto(MODELS[name][1]).from_pretrained(tmp_path / "folder", attn_implementation="eager").eval()
        close(mine(**inputs(name))[0], again(**inputs(name))[0], share(name))

    def test_a_missing_tensor_is_refused(self, name: str, tmp_path: Path) -> None:
        dropped = ("blk.1.ffn_down.weight", "blk.1.ssm_out.weight")
        kept = {key: value for key, value in converted(name).items() if not key.endswith(dropped)}
        path = write_gguf(tmp_path / "x.gguf", name.split()[0], metadata(name), kept)
        refused(lambda: ours(path, name), path, "the weights lack", ".1.", "Is this the config of these weights?")

    def test_an_unknown_tensor_is_refused(self, name: str, tmp_path: Path) -> None:
        more = {**converted(name), "blk.0.odd.weight": np.zeros(4, np.float32)}
        path = write_gguf(tmp_path / "x.gguf", name.split()[0], metadata(name), more)
        words = ("'blk.0.odd.weight' has no place in a", name.split()[0], "choose another file")
        refused(lambda: ours(path, name), path, *words)

    @pytest.mark.parametrize("key", ["embedding_length", "block_count", "attention.head_count"])
    def test_missing_size_fields_are_refused(self, name: str, key: str, tmp_path: Path) -> None:
        short = name.split()[0]
        kept = {one: typed for one, typed in metadata(name).items() if one != f"{short}.{key}"}
        path = write_gguf(tmp_path / "x.gguf", short, kept, converted(name))
        refused(lambda: ours(path, name), path, f"GGUF field '{short}.{key}' is missing. Fetch the file again.")

    @pytest.mark.parametrize(
        ("key", "typed", "word"),
        [
            ("block_count", ("two", Value.STRING), "'two'; it must be int"),
            ("attention.head_count", (0, Value.UINT32), "it must be at least 1"),
            ("embedding_length", ([64, 64], Value.ARRAY, Value.INT32), "[64, 64]; it must be int"),
        ],
    )
    def test_invalid_size_fields_are_refused(self, name: str, key: str, typed: Typed, word: str, tmp_path: Path) -> None:
        short = name.split()[0]
        key = "ssm.time_step_rank" if (short, key) == ("mamba2", "attention.head_count") else key  # the number of its heads
        path = write_gguf(tmp_path / "x.gguf", short, metadata(name) | {f"{short}.{key}": typed}, converted(name))
        refused(lambda: ours(path, name), path, "config field", word, kind=ConfigError)


def load_changed(
    tmp_path: Path, name: str, sizes: Mapping[str, Typed], edit: Callable[[Arrays], Arrays] = lambda tensors: tensors
) -> Any:
    path = write_gguf(tmp_path / "x.gguf", name.split()[0], metadata(name) | dict(sizes), edit(converted(name)))
    return ours(path, name)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_a_tied_head_that_is_stored_too(name: str, tmp_path: Path) -> None:
    """Older converters write GPT-2's table twice, and T5's scores are scaled only where it is tied."""
    mine = load_changed(tmp_path, name, {}, lambda tensors: {**tensors, "output.weight": tensors["token_embd.weight"]})
    assert mine.lm_head.weight is mine.base_model.token_embedding.weight
    close(mine(**inputs(name)).logits, theirs(name)(**inputs(name)).logits, share(name))


@torch.no_grad()
def test_t5_cross_attention_bias_is_ignored(tmp_path: Path) -> None:
    """The first T5 files have a bias for the cross-attention that nothing reads; the converter keeps it."""
    stray = {"dec.blk.0.cross_attn_rel_b.weight": np.ones((8, HEADS), np.float32)}
    mine = load_changed(tmp_path, "t5", {}, lambda tensors: tensors | stray)
    close(mine(**inputs("t5")).logits, theirs("t5")(**inputs("t5")).logits, share("t5"))


def test_t5_relative_bias_is_in_the_first_block_only() -> None:
    assert [key for key in converted("t5") if "rel_b" in key] == [
        "enc.blk.0.attn_rel_b.weight", "dec.blk.0.attn_rel_b.weight",
    ]  # fmt: skip


def test_t5_with_an_untied_head(tmp_path: Path) -> None:
    mine = load_changed(tmp_path, "t5 gated", {})
    assert mine.lm_head.weight is not mine.shared.weight
    assert not mine.config.scale_decoder_outputs
    assert load_changed(tmp_path, "t5", {}).config.scale_decoder_outputs


GEMMA3_KINDS: dict[str, tuple[dict[str, Typed], dict[str, Any]]] = {  # what the file says, and the reference's config
    "windows of another pattern": (
        {"gemma3.attention.sliding_window_pattern": (3, Value.UINT32)}, {"sliding_window_pattern": 3},
    ),
    "stretched far layers": (
        {"gemma3.rope.scaling.type": ("linear", Value.STRING), "gemma3.rope.scaling.factor": (8.0, Value.FLOAT32)},
        {"rope_parameters": {
            **GEMMA3["rope_parameters"], "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        }},
    ),
    "near layers of their own base": (
        {"gemma3.rope.freq_base_swa": (700.0, Value.FLOAT32)},
        {"rope_parameters": {
            **GEMMA3["rope_parameters"], "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        }},
    ),
}  # fmt: skip


class TestGemma3:
    @torch.no_grad()
    @pytest.mark.parametrize("what", GEMMA3_KINDS)
    def test_config_variants_match_the_reference(self, what: str, tmp_path: Path) -> None:
        fields, changes = GEMMA3_KINDS[what]
        mine = load_changed(tmp_path, "gemma3", fields)
        model = reference.build("gemma3_text", "causal", **{**GEMMA3, **changes})
        wanted = model(**inputs("gemma3")).logits
        close(mine(**inputs("gemma3")).logits, wanted, 1e-5)
        plain = theirs("gemma3")(**inputs("gemma3")).logits
        assert float((wanted - plain).abs().max()) > 1e-3 * float(plain.max() - plain.min())

    @torch.no_grad()
    def test_without_windows(self, tmp_path: Path) -> None:
        sizes = {key: typed for key, typed in metadata("gemma3").items() if "sliding" not in key}
        mine = ours(write_gguf(tmp_path / "x.gguf", "gemma3", sizes, converted("gemma3")), "gemma3")
        model = reference.build("gemma3_text", "causal", **{**GEMMA3, "layer_types": ["full_attention"] * 7})
        close(mine(**inputs("gemma3")).logits, model(**inputs("gemma3")).logits, 1e-5)

    @torch.no_grad()
    def test_capped_scores(self, tmp_path: Path) -> None:
        mine = load_changed(tmp_path, "gemma3", {"gemma3.final_logit_softcapping": (2.0, Value.FLOAT32)})
        model = reference.build("gemma3_text", "causal", **{**GEMMA3, "final_logit_softcapping": 2.0})
        close(mine(**inputs("gemma3")).logits, model(**inputs("gemma3")).logits, 1e-5)

    def test_capped_attention_scores_are_refused(self, tmp_path: Path) -> None:
        refused(
            lambda: load_changed(tmp_path, "gemma3", {"gemma3.attn_logit_softcapping": (50.0, Value.FLOAT32)}),
            "'attn_logit_softcapping' is 50.0; this family has no soft caps, as Gemma 2 has them: set it to null",
            kind=ConfigError,
        )

    def test_the_largest_model_scales_queries_by_its_width(self, tmp_path: Path) -> None:
        """27B: 62 blocks, 5376 wide, 32 heads of 128."""
        large = {"gemma3.block_count": 62, "gemma3.embedding_length": 5376, "gemma3.attention.head_count": 32}
        sizes = metadata("gemma3") | {key: (value, Value.UINT32) for key, value in large.items()}
        found = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", "gemma3", sizes, converted("gemma3"))).config
        assert found["query_pre_attn_scalar"] == 168
        odd = sizes | {"gemma3.attention.head_count": ("many", Value.STRING)}
        path = write_gguf(tmp_path / "odd.gguf", "gemma3", odd, converted("gemma3"))
        refused(lambda: ours(path, "gemma3"), path, "'num_attention_heads' is 'many'; it must be int", kind=ConfigError)

    @torch.no_grad()
    def test_real_gemma3_270m(self) -> None:
        path = local_path("gemma3-270m")
        if path is None:
            pytest.skip("Gemma 3 270M is optional and not here: glass models pull gemma3-270m")
        model = glassformer.AutoModelForCausalLM.from_pretrained(path)
        tokenizer = glassformer.AutoTokenizer.from_pretrained(path)
        tokens = tokenizer("The capital of France is the city of", return_tensors="pt")
        written = model.generate(**tokens, max_new_tokens=3, do_sample=False)
        assert "Paris" in tokenizer.decode(written[0])
