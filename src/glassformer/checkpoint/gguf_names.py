"""GGUF's names as data: what its metadata and its tensors are called in the families' own words.

One `ArchitectureTable` per architecture. A new one is a few rows here; the reader and the families know nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from glassformer.checkpoint.stored_tensors import InterleavedPairs, Layout, OffsetByOne, StoredTensor, Transposed
from glassformer.errors import CheckpointError, did_you_mean

DECODER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
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
HEAD_NORMS = {
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
}
GEMMA3 = {
    **DECODER,
    **HEAD_NORMS,
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}
BERT = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.{}.attn_q": "encoder.layer.{}.attention.self.query",
    "blk.{}.attn_k": "encoder.layer.{}.attention.self.key",
    "blk.{}.attn_v": "encoder.layer.{}.attention.self.value",
    "blk.{}.attn_output": "encoder.layer.{}.attention.output.dense",
    "blk.{}.attn_output_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "blk.{}.ffn_up": "encoder.layer.{}.intermediate.dense",
    "blk.{}.ffn_down": "encoder.layer.{}.output.dense",
    "blk.{}.layer_output_norm": "encoder.layer.{}.output.LayerNorm",
}
T5 = {
    "token_embd": "shared",
    "output": "lm_head",
    "enc.output_norm": "encoder.final_layer_norm",
    "dec.output_norm": "decoder.final_layer_norm",
    **{
        f"{short}.blk.{{}}.{theirs}": f"{stack}.block.{{}}.layer.{ours}"
        for short, stack, last in (("enc", "encoder", 1), ("dec", "decoder", 2))
        for theirs, ours in {
            "attn_norm": "0.layer_norm",
            **{f"attn_{name}": f"0.SelfAttention.{name}" for name in "qkvo"},
            "attn_rel_b": "0.SelfAttention.relative_attention_bias",
            **({"cross_attn_norm": "1.layer_norm"} if short == "dec" else {}),
            **({f"cross_attn_{name}": f"1.EncDecAttention.{name}" for name in "qkvo"} if short == "dec" else {}),
            "ffn_norm": f"{last}.layer_norm",
            "ffn_gate": f"{last}.DenseReluDense.wi_0",
            "ffn_up": f"{last}.DenseReluDense.wi_1",
            "ffn_down": f"{last}.DenseReluDense.wo",
        }.items()
    },
}
T5_PLAIN = {theirs: ours.replace("wi_1", "wi") for theirs, ours in T5.items() if not theirs.endswith("ffn_gate")}

SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
DECODER_SIZES = {
    **SIZES,
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
GEMMA3_SIZES = {
    **DECODER_SIZES,
    "attention.sliding_window": "sliding_window",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
}
REQUIRED = ("embedding_length", "block_count", "attention.head_count")
T5_SIZES = {
    "context_length": "n_positions",
    "embedding_length": "d_model",
    "block_count": "num_layers",
    "decoder_block_count": "num_decoder_layers",
    "feed_forward_length": "d_ff",
    "attention.head_count": "num_heads",
    "attention.key_length": "d_kv",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "attention.relative_buckets_count": "relative_attention_num_buckets",
    "decoder_start_token_id": "decoder_start_token_id",
}

Metadata: TypeAlias = Mapping[str, Any]  # without the architecture's name in front
Raw: TypeAlias = Mapping[str, StoredTensor]


def _decoder(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    biases = {"attention_bias": "blk.0.attn_q.bias" in raw, "mlp_bias": "blk.0.ffn_up.bias" in raw}
    return {**biases, "rope_scaling": _rope_scaling(metadata, raw)}


def _gemma3(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """What Gemma's files leave unsaid: its largest model scales by the width of a head as others have it."""
    scalar = metadata.get("attention.key_length")
    width, heads = metadata.get("embedding_length"), metadata.get("attention.head_count")
    if metadata.get("block_count") == 62 and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        scalar = width // heads
    pattern = metadata.get("attention.sliding_window_pattern", 6) if metadata.get("attention.sliding_window") else 1
    return {
        **_decoder(metadata, raw),
        **({} if scalar is None else {"query_pre_attn_scalar": scalar}),
        "rope_local_base_freq": metadata.get("rope.freq_base_swa", 10_000.0),
        "sliding_window_pattern": pattern,  # 1: every layer sees everything
    }


def _bert(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    types = raw.get("token_types.weight")
    return {} if types is None else {"type_vocab_size": types.shape[0]}


def _t5(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {"feed_forward_proj": "gated-gelu" if "enc.blk.0.ffn_gate.weight" in raw else "relu"}


ROPE_FACTORS = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}  # of longrope


@dataclass(frozen=True)
class ArchitectureTable:
    names: Mapping[str, str]
    sizes: Mapping[str, str]
    model_type: str
    extra: Callable[[Metadata, Raw], dict[str, Any]] = _decoder  # what the tensors show, or no field says
    interleaved: bool = False  # query and key rows have their rotary pairs side by side
    layouts: Mapping[str, Layout] = field(default_factory=dict)  # by a pattern of GGUF's names
    ignored: frozenset[str] = frozenset({"rope_freqs.weight", *ROPE_FACTORS.values()})  # in the config instead


TABLES: Mapping[str, ArchitectureTable] = {
    "llama": ArchitectureTable(DECODER, DECODER_SIZES, "llama", interleaved=True),
    "qwen2": ArchitectureTable(DECODER, DECODER_SIZES, "qwen2"),
    "qwen3": ArchitectureTable({**DECODER, **HEAD_NORMS}, DECODER_SIZES, "qwen3"),
    "gemma3": ArchitectureTable(
        GEMMA3, GEMMA3_SIZES, "gemma3_text", _gemma3, layouts={r".*norm\.weight": OffsetByOne()},
    ),
    "gpt2": ArchitectureTable(
        GPT2, {**SIZES, "attention.layer_norm_epsilon": "layer_norm_epsilon"}, "gpt2", lambda *_: {},
        layouts={r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight": Transposed()},
    ),
    "bert": ArchitectureTable(BERT, {**SIZES, "attention.layer_norm_epsilon": "layer_norm_eps"}, "bert", _bert),
    "t5": ArchitectureTable(T5, T5_SIZES, "t5", _t5, ignored=frozenset({"dec.blk.0.cross_attn_rel_b.weight"})),
}  # fmt: skip


def config_from_gguf(metadata: Mapping[str, Any], raw: Mapping[str, StoredTensor], path: Path) -> dict[str, Any]:
    """The configuration that `config.json` would hold."""
    architecture, table = _table(metadata, path)
    fields = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    for key in REQUIRED:
        if fields.get(key) is None:
            raise CheckpointError(f"{path}: GGUF field '{architecture}.{key}' is missing. Fetch the file again.")
    config: dict[str, Any] = {"model_type": table.model_type}
    for key, name in table.sizes.items():
        if (value := fields.get(key)) is not None:
            config[name] = _shortest_float(value)
    embedding = raw.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{path}: GGUF tensor 'token_embd.weight' is missing. Fetch the file again.")
    config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in raw or raw["output.weight"].same_bytes(embedding)
    for name in ("bos", "eos", "padding"):
        if (token := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{name.removesuffix('ding')}_token_id"] = token
    return config | table.extra(fields, raw)


def _table(metadata: Mapping[str, Any], path: Path) -> tuple[str, ArchitectureTable]:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in TABLES:
        raise CheckpointError(
            f"{path}: GGUF field 'general.architecture' is {architecture!r}, which is not known."
            f"{did_you_mean(str(architecture), TABLES)} Known: {', '.join(TABLES)}."
        )
    return architecture, TABLES[architecture]


def _rope_scaling(metadata: Metadata, raw: Raw) -> dict[str, Any] | None:
    """How RoPE is stretched. Llama 3 files hold only the resulting divisors; the blueprint finds the rule again."""
    if "rope_freqs.weight" in raw:
        return {"rope_type": "divisors", "divisors": raw["rope_freqs.weight"].to_float32().ravel().tolist()}
    trained = metadata.get("rope.scaling.original_context_length")
    if all(name in raw for name in ROPE_FACTORS.values()):
        return {
            "rope_type": "longrope",
            "attention_factor": _shortest_float(metadata.get("rope.scaling.attn_factor", 1.0)),
            "original_max_position_embeddings": trained,
            **{name: raw[tensor].to_float32().ravel().tolist() for name, tensor in ROPE_FACTORS.items()},
        }
    kind = metadata.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    return {
        "rope_type": kind,
        "factor": _shortest_float(metadata.get("rope.scaling.factor")),
        "original_max_position_embeddings": trained,
    }


def _shortest_float(value: Any) -> Any:
    """A number as it was before it became a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def tensors_from_gguf(
    metadata: Mapping[str, Any], config: Mapping[str, Any], raw: Raw, path: Path
) -> dict[str, StoredTensor]:
    """The tensors under the family's names, with the layout that leads from the file's to the family's order."""
    architecture, table = _table(metadata, path)
    names = T5_PLAIN if config.get("feed_forward_proj") == "relu" else table.names
    tensors = {}
    for name, stored in raw.items():
        if name in table.ignored:
            continue
        stem, _, ending = name.rpartition(".")
        number = re.search(r"(?:^|\.)blk\.(\d+)\.", stem)
        pattern = stem.replace(f"blk.{number.group(1)}.", "blk.{}.") if number else stem
        if pattern not in names:
            raise CheckpointError(
                f"{path}: GGUF tensor {name!r} has no place in a {architecture} model."
                f"{did_you_mean(pattern, names)} This variant is not supported; choose another file."
            )
        family_name = f"{names[pattern].format(number.group(1) if number else '')}.{ending}"
        layout = _layout(table, name, stored.shape, config, path)
        shape = stored.shape if layout is None else layout.stored_shape(stored.shape)  # each layout is its own inverse there
        tensors[family_name] = replace(stored, name=family_name, shape=shape, layout=layout)
    return tensors


def gguf_name_and_layout(
    table: ArchitectureTable, config: Mapping[str, Any], name: str, shape: tuple[int, ...]
) -> tuple[str, Layout | None]:
    """GGUF's name and layout for a tensor of the family: the inverse of `tensors_from_gguf`."""
    stem, _, ending = name.rpartition(".")
    number = re.search(r"\.(\d+)\.", stem)
    pattern = stem.replace(f".{number.group(1)}.", ".{}.", 1) if number else stem
    gguf_name = next(gguf_pattern for gguf_pattern, family_pattern in table.names.items() if family_pattern == pattern)
    gguf_name = f"{gguf_name.format(number.group(1) if number else '')}.{ending}"
    return gguf_name, _layout(table, gguf_name, shape, config, Path(name))


def _layout(
    table: ArchitectureTable, name: str, shape: tuple[int, ...], config: Mapping[str, Any], path: Path
) -> Layout | None:
    """How a tensor of GGUF's name lies, where that is not how the family has it."""
    projection = re.fullmatch(r"blk\.\d+\.attn_([qk])\.\w+", name) if table.interleaved else None
    if projection is None:
        return next((layout for pattern, layout in table.layouts.items() if re.fullmatch(pattern, name)), None)
    queries = config.get("num_attention_heads")
    heads = queries if projection.group(1) == "q" else config.get("num_key_value_heads") or queries
    return _interleaved_pairs(heads, name, shape[0], path)


def _interleaved_pairs(heads: Any, name: str, rows: int, path: Path) -> InterleavedPairs:
    """The order of a query's or key's rows, refused where its rows are no heads full of pairs."""
    if type(heads) is not int or heads < 1 or rows % (2 * heads):
        raise CheckpointError(
            f"{path}: GGUF tensor {name!r} has {rows} rows, which do not make pairs in {heads} heads "
            "(fields 'attention.head_count' and 'attention.head_count_kv'). Fetch the file again."
        )
    return InterleavedPairs(heads)
