"""GGUF's names as data: what its metadata and its tensors are called in the families' own words.

One `Table` per architecture. A new one is a few rows here; the reader and the families know nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.checkpoint.stored import Pairs, Stored
from glassformer.errors import CheckpointError, nearest

ATTENTION_AND_MLP = {
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
DECODER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    **ATTENTION_AND_MLP,
}
SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}


@dataclass(frozen=True)
class Table:
    names: Mapping[str, str]
    sizes: Mapping[str, str]
    interleaved: bool = False  # query and key rows have their rotary pairs side by side
    ignored: frozenset[str] = frozenset({"rope_freqs.weight"})  # said by the config instead


TABLES: Mapping[str, Table] = {
    "llama": Table(DECODER, SIZES, interleaved=True),
    "qwen2": Table(DECODER, SIZES),
    "qwen3": Table(
        {
            **DECODER,
            "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
            "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
        },
        SIZES,
    ),
}


def config(metadata: Mapping[str, Any], raw: Mapping[str, Stored], path: Path) -> dict[str, Any]:
    """The configuration that `config.json` would hold."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in TABLES:
        raise CheckpointError(
            f"{path}: GGUF field 'general.architecture' is {architecture!r}, which is not known."
            f"{nearest(str(architecture), TABLES)} Known: {', '.join(TABLES)}."
        )
    found: dict[str, Any] = {"model_type": architecture}
    for key, name in TABLES[architecture].sizes.items():
        if (value := metadata.get(f"{architecture}.{key}")) is not None:
            found[name] = float(str(np.float32(value))) if isinstance(value, float) else value  # 1e-05 as it was written
    embedding = raw.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{path}: GGUF tensor 'token_embd.weight' is missing. Fetch the file again.")
    found["vocab_size"] = embedding.shape[0]
    found["tie_word_embeddings"] = "output.weight" not in raw
    found["attention_bias"] = "blk.0.attn_q.bias" in raw
    for name in ("bos", "eos", "padding"):
        if (token := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            found[f"{name.removesuffix('ding')}_token_id"] = token
    found["rope_scaling"] = _scaling(architecture, metadata, raw)
    return found


def _scaling(architecture: str, metadata: Mapping[str, Any], raw: Mapping[str, Stored]) -> dict[str, Any] | None:
    """How RoPE is stretched. Llama 3 files hold only the resulting divisors; the blueprint finds the rule again."""
    if "rope_freqs.weight" in raw:
        return {"rope_type": "divisors", "divisors": raw["rope_freqs.weight"].expand().ravel().tolist()}
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind == "none":
        return None
    trained = metadata.get(f"{architecture}.rope.scaling.original_context_length")
    factor = metadata.get(f"{architecture}.rope.scaling.factor")
    return {"rope_type": kind, "factor": factor, "original_max_position_embeddings": trained}


def tensors(config: Mapping[str, Any], raw: Mapping[str, Stored], path: Path) -> dict[str, Stored]:
    """The tensors under the family's names."""
    table = TABLES[config["model_type"]]
    queries = config.get("num_attention_heads")
    heads = {"q": queries, "k": config.get("num_key_value_heads") or queries}
    found = {}
    for name, stored in raw.items():
        if name in table.ignored:
            continue
        stem, _, ending = name.rpartition(".")
        pattern = re.sub(r"^blk\.\d+\.", "blk.{}.", stem)
        if pattern not in table.names:
            raise CheckpointError(
                f"{path}: GGUF tensor {name!r} has no place in a {config['model_type']} model."
                f"{nearest(pattern, table.names)} This variant is not supported; choose another file."
            )
        number = re.match(r"blk\.(\d+)\.", stem)
        theirs = table.names[pattern].format(number.group(1) if number else "")
        turned = re.fullmatch(r"blk\.\d+\.attn_([qk])", stem) if table.interleaved else None
        layout = _pairs(heads[turned.group(1)], stored, path) if turned else None
        found[f"{theirs}.{ending}"] = replace(stored, name=f"{theirs}.{ending}", layout=layout)
    return found


def _pairs(heads: Any, stored: Stored, path: Path) -> Pairs:
    """The order of a query's or key's rows, refused where its rows are no heads full of pairs."""
    if type(heads) is not int or heads < 1 or stored.shape[0] % (2 * heads):
        raise CheckpointError(
            f"{path}: GGUF tensor {stored.name!r} has {stored.shape[0]} rows, which do not make pairs in {heads} heads "
            "(fields 'attention.head_count' and 'attention.head_count_kv'). Fetch the file again."
        )
    return Pairs(heads)
