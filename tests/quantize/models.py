"""Tiny models of every family that GGUF knows, each with a tokenizer of its kind: folders to write GGUF files from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import PRE_TOKENIZER_TYPES
from tests.parity import reference
from tests.text.models import GEMMA, LLAMA, PROSE, trained

WIDE: dict[str, Any] = {  # whose rows divide into blocks of 256
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": 128, "vocab_size": 448, "tie_word_embeddings": False,
}  # fmt: skip
TEMPLATE = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"


def byte_level(folder: Path, pre: str, composed: bool) -> None:
    """Byte-level BPE: its 256 bytes and some merges, an end, a control token and one that a user defined."""
    backend = Backend(BPE(ignore_merges=pre == "llama-bpe"))
    backend.normalizer = normalizers.NFC() if composed else None
    backend.pre_tokenizer = PRE_TOKENIZER_TYPES[pre].pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    backend.train_from_iterator(PROSE, trainer)
    backend.add_special_tokens(["<|end|>", "<|start|>"])
    backend.add_tokens(["<think>"])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def pieces(folder: Path, name: str, options: dict[str, Any]) -> None:
    """SentencePiece's BPE."""
    (folder / "tokenizer.model").write_bytes(trained(**options))
    config = {"tokenizer_class": name, "add_bos_token": True, "bos_token": "<bos>" if name[0] == "G" else "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


TOKENIZERS: dict[str, Callable[[Path], None]] = {
    "llama": lambda folder: pieces(folder, "LlamaTokenizer", LLAMA),
    "mistral": lambda folder: byte_level(folder, "llama-bpe", False),
    "qwen2": lambda folder: byte_level(folder, "qwen2", True),
    "qwen3": lambda folder: byte_level(folder, "qwen2", True),
    "lfm2": lambda folder: byte_level(folder, "llama-bpe", False),
    "mamba2": lambda folder: byte_level(folder, "llama-bpe", False),
    "qwen3_5_text": lambda folder: byte_level(folder, "qwen2", True),
    "gemma3_text": lambda folder: pieces(folder, "GemmaTokenizer", GEMMA),
    "gpt2": lambda folder: byte_level(folder, "gpt-2", False),
    "phi3": lambda folder: pieces(folder, "LlamaTokenizer", LLAMA),
    "olmo3": lambda folder: byte_level(folder, "llama-bpe", False),
    "granite": lambda folder: byte_level(folder, "llama-bpe", False),
    "gemma4_text": lambda folder: pieces(folder, "GemmaTokenizer", GEMMA),
    "gemma2": lambda folder: pieces(folder, "GemmaTokenizer", GEMMA),
    "gpt_neox": lambda folder: byte_level(folder, "gpt-2", False),
    "starcoder2": lambda folder: byte_level(folder, "gpt-2", False),
    **dict.fromkeys(("gpt_bigcode", "phi", "bloom", "mpt"), lambda folder: byte_level(folder, "gpt-2", False)),
    "gpt_oss": lambda folder: byte_level(folder, "gpt-4o", False),
    **dict.fromkeys(
        ("exaone4", "glm4", "cohere", "seed_oss", "ernie4_5", "hunyuan_v1_dense", "arcee", "stablelm", "nemotron", "olmo"),
        lambda folder: byte_level(folder, "llama-bpe", False),
    ),
}
OWN: dict[str, dict[str, Any]] = {  # what makes a family a family
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 96},
    "gemma3_text": {
        "num_hidden_layers": 7, "query_pre_attn_scalar": 64, "sliding_window": 5, "layer_types": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        },
    },
    "phi3": {"sliding_window": 20, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.75}},
    "olmo3": {
        "num_hidden_layers": 4, "sliding_window": 20, "layer_types": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e4},
            "full_attention": {"rope_type": "default", "rope_theta": 5e4},
        },
    },
    "granite": {"embedding_multiplier": 6.0, "attention_multiplier": 0.1, "residual_multiplier": 0.4, "logits_scaling": 3.0},
    "gemma2": {
        "query_pre_attn_scalar": 64, "sliding_window": 20, "layer_types": None, "attn_logit_softcapping": 5.0,
        "tie_word_embeddings": True,
    },
    "gemma4_text": {
        "num_hidden_layers": 5, "head_dim": 64, "global_head_dim": 128, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 448,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "sliding_window": 20, "final_logit_softcapping": 30.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 5e5, "partial_rotary_factor": 0.25},
        },
    },
    "qwen3_5_text": {
        "num_hidden_layers": 4, "layer_types": None, "full_attention_interval": 2, "linear_key_head_dim": 32,
        "linear_value_head_dim": 32, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    },
    "mamba2": {"num_heads": 8, "n_groups": 2, "state_size": 32},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "gpt_neox": {"rope_parameters": {"rope_theta": 5e3, "partial_rotary_factor": 0.25}},
    "starcoder2": {"sliding_window": None},
    "exaone4": {"num_hidden_layers": 4, "sliding_window": 20, "layer_types": None},
    "cohere": {"tie_word_embeddings": True},
    "glm4": {"rope_parameters": {"rope_theta": 5e3, "partial_rotary_factor": 0.5}},
    "stablelm": {"rope_parameters": {"rope_theta": 5e3, "partial_rotary_factor": 0.5}, "qk_layernorm": True},
    "nemotron": {"rope_parameters": {"rope_theta": 5e3, "partial_rotary_factor": 0.5}},
    "phi": {"rope_parameters": {"rope_theta": 5e3, "partial_rotary_factor": 0.5}, "qk_layernorm": False},
    "bloom": {"hidden_size": 256, "n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 256, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
    "gpt_bigcode": {"n_embd": 256, "n_inner": 512, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "gpt_oss": {"sliding_window": 20, "swiglu_limit": 7.0, "layer_types": None},
    "gpt2": {"n_embd": 256, "n_inner": 512, "n_layer": 2, "n_head": 4, "n_positions": 128},
}  # fmt: skip


def write(folder: Path, family: str, **changes: Any) -> Any:
    """A folder with random weights and a tokenizer; the reference's model."""
    folder.mkdir(parents=True, exist_ok=True)
    wide = {"vocab_size": 448} if family in ("gpt2", "gpt_bigcode", "bloom", "mpt") else WIDE
    ends = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": None}
    model = reference.write(folder, family, **{**wide, **ends, **OWN.get(family, {}), **changes})
    TOKENIZERS[family](folder)
    return model
