"""GGUF's architectures, a table for each: the names of its tensors and fields, and how its tensors lie.

A new one is a row of `TABLES`; the reader and the families know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.checkpoint.gguf_config_fields import (
    DECODER_SIZES,
    EXPERT_SIZES,
    GEMMA_SIZES,
    GPT_OSS_SIZES,
    GPTNEOX_SIZES,
    GRANITE_SIZES,
    MODERN_BERT_SIZES,
    ROPE_FACTORS,
    SIZES,
    STARCODER2_SIZES,
    T5_SIZES,
    WINDOW_SIZES,
    Metadata,
    Raw,
    bert_fields,
    decoder_fields,
    gemma2_fields,
    gemma3_fields,
    gpt_oss_fields,
    gptneox_fields,
    mixtral_fields,
    modern_bert_fields,
    olmo2_fields,
    partly_rotated_fields,
    qwen3_moe_fields,
    starcoder2_fields,
    t5_fields,
)
from glassformer.checkpoint.gguf_tensor_names import (
    BERT,
    DECODER,
    EXPERTS,
    GEMMA2,
    GEMMA3,
    GPT2,
    GPT_OSS,
    GPTNEOX,
    HEAD_NORMS,
    MIXTRAL,
    MODERN_BERT,
    OLMO2,
    PHI3,
    STARCODER2,
    T5,
)
from glassformer.checkpoint.stored_tensors import Layout, OffsetByOne, Transposed
from glassformer.ground.errors import CheckpointError, did_you_misspell


@dataclass(frozen=True)
class ArchitectureTable:
    names: Mapping[str, str]
    sizes: Mapping[str, str]
    model_type: str
    extra: Callable[[Metadata, Raw], dict[str, Any]] = decoder_fields  # what the tensors show, or no field says
    interleaved: bool = False  # query and key rows have their rotary pairs side by side
    part_after_part: bool = False  # of a fused projection: all queries, then all keys, then all values
    layouts: Mapping[str, Layout] = field(default_factory=dict)  # by a pattern of GGUF's names
    ignored: frozenset[str] = frozenset({"rope_freqs.weight", *ROPE_FACTORS.values()})  # in the config instead
    routed: ArchitectureTable | None = None  # of the models that have experts, where others are of the same architecture


TABLES: Mapping[str, ArchitectureTable] = {
    "llama": ArchitectureTable(
        DECODER, DECODER_SIZES, "llama", interleaved=True,
        routed=ArchitectureTable(MIXTRAL, EXPERT_SIZES, "mixtral", mixtral_fields, interleaved=True),
    ),
    "qwen2": ArchitectureTable(DECODER, DECODER_SIZES, "qwen2"),
    "qwen3": ArchitectureTable({**DECODER, **HEAD_NORMS}, DECODER_SIZES, "qwen3"),
    "qwen3moe": ArchitectureTable({**DECODER, **HEAD_NORMS, **EXPERTS}, EXPERT_SIZES, "qwen3_moe", qwen3_moe_fields),
    "olmoe": ArchitectureTable({**DECODER, **HEAD_NORMS, **EXPERTS}, EXPERT_SIZES, "olmoe"),
    "gpt-oss": ArchitectureTable(GPT_OSS, GPT_OSS_SIZES, "gpt_oss", gpt_oss_fields),
    "phi3": ArchitectureTable(PHI3, WINDOW_SIZES, "phi3", partly_rotated_fields),
    "olmo2": ArchitectureTable(OLMO2, WINDOW_SIZES, "olmo2", olmo2_fields),
    "granite": ArchitectureTable(DECODER, GRANITE_SIZES, "granite", interleaved=True),
    "smollm3": ArchitectureTable(DECODER, DECODER_SIZES, "smollm3", interleaved=True),
    "starcoder2": ArchitectureTable(STARCODER2, STARCODER2_SIZES, "starcoder2", starcoder2_fields),
    "gptneox": ArchitectureTable(GPTNEOX, GPTNEOX_SIZES, "gpt_neox", gptneox_fields, part_after_part=True),
    "gemma": ArchitectureTable(DECODER, DECODER_SIZES, "gemma", layouts={r".*norm\.weight": OffsetByOne()}),
    "gemma2": ArchitectureTable(
        GEMMA2, GEMMA_SIZES, "gemma2", gemma2_fields, layouts={r".*norm\.weight": OffsetByOne()},
    ),
    "gemma3": ArchitectureTable(
        GEMMA3, GEMMA_SIZES, "gemma3_text", gemma3_fields, layouts={r".*norm\.weight": OffsetByOne()},
    ),
    "gpt2": ArchitectureTable(
        GPT2, {**SIZES, "attention.layer_norm_epsilon": "layer_norm_epsilon"}, "gpt2", lambda *_: {},
        layouts={r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight": Transposed()},
    ),
    "bert": ArchitectureTable(BERT, {**SIZES, "attention.layer_norm_epsilon": "layer_norm_eps"}, "bert", bert_fields),
    "modern-bert": ArchitectureTable(
        MODERN_BERT, MODERN_BERT_SIZES, "modernbert", modern_bert_fields,
        ignored=frozenset(f"cls{part}.{kind}" for part in ("", ".norm", ".output") for kind in ("weight", "bias")),  # a head
    ),
    "t5": ArchitectureTable(T5, T5_SIZES, "t5", t5_fields, ignored=frozenset({"dec.blk.0.cross_attn_rel_b.weight"})),
}  # fmt: skip


def model_type_of(metadata: Mapping[str, Any], path: Path) -> str:
    """The family that a file's architecture is."""
    return table_of(metadata, path)[1].model_type


def table_of(metadata: Mapping[str, Any], path: Path) -> tuple[str, ArchitectureTable]:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in TABLES:
        raise CheckpointError(
            f"{path}: GGUF field 'general.architecture' is {architecture!r}, which is not known."
            f"{did_you_misspell(str(architecture), TABLES)} Known: {', '.join(TABLES)}."
        )
    table = TABLES[architecture]
    return architecture, table.routed if table.routed and metadata.get(f"{architecture}.expert_count") else table


def table_for(architecture: str, model_type: str) -> ArchitectureTable:
    """The table of an architecture's models of a type."""
    table = TABLES[architecture]
    return table.routed if table.routed is not None and table.routed.model_type == model_type else table
