"""A GGUF file's metadata of a model: the inverse of how its config is read from one.

GGUF has a fixed set of fields per architecture, and leaves much to its readers: which activation, which scale, which layers
look through a window. So what would be written is read back first, and must be the same model, step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.blueprints import Blueprint, Config, Op, Rope, blueprint, read_config
from glassformer.blueprints.state_space import STATE
from glassformer.checkpoint import gguf_fields, gguf_names
from glassformer.checkpoint.gguf_names import table_for
from glassformer.checkpoint.gguf_writer import OutputTensor
from glassformer.checkpoint.sentence_pooling import GGUF_DENSE, GGUF_POOLINGS, SentenceSettings
from glassformer.checkpoint.stored_tensors import BufferedFile, StoredTensor
from glassformer.ground.errors import ConfigError, InputError
from glassformer.ops.attend import Attend
from glassformer.ops.experts import Route

ARCHITECTURES: Mapping[str, str] = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "smollm3": "smollm3", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "olmo2": "olmo2", "olmo3": "olmo2", "granite": "granite",
    "starcoder2": "starcoder2", "gpt2": "gpt2", "gpt_neox": "gptneox", "mixtral": "llama", "qwen3_moe": "qwen3moe",
    "olmoe": "olmoe", "gpt_oss": "gpt-oss", "exaone4": "exaone4", "glm4": "glm4", "cohere": "command-r",
    "seed_oss": "seed_oss", "ernie4_5": "ernie4_5", "hunyuan_v1_dense": "hunyuan-dense", "arcee": "arcee",
    "qwen2_moe": "qwen2moe", "glm4_moe": "glm4moe", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2", "minimax_m2": "minimax-m2", "ernie4_5_moe": "ernie4_5-moe",
    "stablelm": "stablelm", "phi": "phi2", "nemotron": "nemotron", "olmo": "olmo",
    "gpt_bigcode": "starcoder", "lfm2": "lfm2", "lfm2_moe": "lfm2moe",
    "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "bloom": "bloom", "mpt": "mpt", "gemma4_text": "gemma4",
    "mamba2": "mamba2", "nemotron_h": "nemotron_h", "falcon_h1": "falcon-h1", "granitemoe": "granitemoe",
    "embedding_gemma": "gemma-embedding", "eurobert": "eurobert", "granitemoehybrid": "granitehybrid",
    "bamba": "granitehybrid", "cohere2": "cohere2", "ministral3": "mistral3", "llama4_text": "llama4", "apertus": "apertus",
    "gemma3n_text": "gemma3n", "falcon": "falcon", "bert": "bert",
    "nomic_bert": "nomic-bert", "qwen3_next": "qwen3next", "kimi_linear": "kimi-linear",
}  # fmt: skip
WITHOUT_BIASES = (  # whose attention has none with GGUF's other readers
    "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text", "olmo2", "olmo3", "qwen3_moe", "olmoe", "hunyuan_v1_dense",
    "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "kimi_linear",
    "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "embedding_gemma", "eurobert", "cohere2", "llama4_text", "gemma3n_text",
)  # fmt: skip
GATING = {"softmax": 1, "sigmoid": gguf_fields.SIGMOID}  # what shares are made of a router's scores by
UNTURNED = 1e30
ADVICE = "Keep the checkpoint as it is; load(…, weights=…) packs its weights all the same."


def architecture_of(config: Config, name: str) -> str:
    if config.model_type not in ARCHITECTURES:
        raise InputError(
            f"{name}: a {config.model_type} model cannot be written as GGUF, only {', '.join(ARCHITECTURES)}. {ADVICE}"
        )
    for part in ("attention", "mlp"):
        if config.model_type in WITHOUT_BIASES and getattr(config, f"{part}_bias", False):
            raise InputError(f"{name}: GGUF has no place for the {part} biases of a {config.model_type} model. {ADVICE}")
    architecture = _architecture(config)
    if (reason := table_for(architecture, config).refuse(config)) is not None:
        raise InputError(f"{name}: {reason} {ADVICE}")
    if architecture not in ("llama", "gemma4", "llama4", "apertus") and rope_divisors(config) is not None:
        raise InputError(f"{name}: GGUF has a place for Llama 3's RoPE in Llama's own models only. {ADVICE}")
    return architecture


def _architecture(config: Config) -> str:
    """What files call a model: some have another name where there are experts."""
    name, routed = ARCHITECTURES[config.model_type], bool(getattr(config, "routed_layers", None))
    kinds = getattr(config, "layer_types", None) or ()
    if config.model_type == "granitemoehybrid" and routed and STATE not in kinds:
        return "granitemoe"
    return "nemotron_h_moe" if name == "nemotron_h" and routed else name


def written_plan(config: Config) -> Blueprint:
    """What a file has of a model: all of a decoder, and of an encoder all but its head."""
    plan = blueprint(config)
    if config.default_head != "masked":
        return plan
    last = next(index for index, op in enumerate(plan.ops) if op.site == "final")
    return replace(plan, ops=plan.ops[: last + 1])


def sentence_metadata(config: Config, sentence: SentenceSettings, name: str) -> dict[str, Any]:
    """How states become a vector, without the architecture's name in front."""
    if not sentence.stated:
        return {}
    codes = [code for code, pooling in GGUF_POOLINGS.items() if sentence.pooling == (pooling,)]
    if not codes:
        raise InputError(f"{name}: GGUF has no number for the pooling {' + '.join(sentence.pooling)}. {ADVICE}")
    plain = all(layer.bias is None and layer.activation == "Identity" for layer in sentence.dense)
    places = len(GGUF_DENSE) if config.model_type == "embedding_gemma" and plain else 0
    if len(sentence.dense) > places:
        raise InputError(
            f"{name}: GGUF has a place for two layers behind the pooling of EmbeddingGemma, without biases and activations, "
            f"and for no others. {ADVICE}"
        )
    sizes: dict[str, Any] = {}
    for tensor, layer in zip(GGUF_DENSE, sentence.dense, strict=False):
        stem = tensor.removesuffix(".weight")
        sizes |= {f"{stem}_feat_out": layer.weight.shape[0], f"{stem}_feat_in": layer.weight.shape[1]}
    return {"pooling_type": codes[0], **sizes}


def config_metadata(config: Any, plan: Blueprint) -> dict[str, Any]:
    """The fields of a config, without the architecture's name in front."""
    table = table_for(_architecture(config), config)
    metadata = {key: value for key, name in table.sizes.items() if (value := _config_value(config, name)) is not None}
    metadata |= {"vocab_size": config.vocab_size}
    windows = [op.options["window"] for op in plan.ops_of(Attend) if op.options["window"]]
    if "attention.sliding_window" not in table.sizes:  # within its window a model sees everything
        metadata["context_length"] = min([config.context, *windows])
    elif not windows:
        metadata.pop("attention.sliding_window", None)
    if (rope := getattr(config, "rope", None)) is not None:
        size = config.head_dim
        lengths = {"attention.value_length": size, "rope.dimension_count": rope.rotary_size(size)}
        metadata |= {**lengths, **_rope_scaling(rope)}
    if config.default_head == "masked":
        metadata["attention.causal"] = False
    if "attention.kv_lora_rank" in metadata:  # as older files have it, with keys and values of heads
        heads = {"attention.head_count_kv": config.num_attention_heads, "attention.key_length": config.qk_head_dim}
        metadata |= {**heads, "attention.value_length": config.v_head_dim}
    metadata |= table.write(config)
    how = next((op.options["how"] for op in plan.ops_of(Route)), None)
    if how == "sigmoid" or "n_group" in table.sizes.values():
        metadata["expert_gating_func"] = GATING[how or "sigmoid"]
    return metadata


def _config_value(config: Config, name: str) -> Any:
    name = config.aliases.get(name, name)
    if name == "rope_theta":
        return float(config.rope.theta)
    if name == "intermediate_size":
        return getattr(config, "inner", None) or getattr(config, name)
    value = getattr(config, name, None)
    return float(value) if name == "clip_qkv" and value is not None else value


def _rope_scaling(rope: Rope) -> dict[str, Any]:
    """How RoPE is stretched, where a field says it; Llama 3's way is a tensor, `rope_freqs.weight`."""
    if rope.kind not in ("linear", "yarn"):
        return {}
    more = {"rope.scaling.original_context_length": int(rope.original_max_position_embeddings)}
    return {
        "rope.scaling.type": rope.kind,
        "rope.scaling.factor": float(rope.factor),
        **(more if rope.kind == "yarn" else {}),
        **({"rope.scaling.yarn_log_multiplier": 0.1 * rope.mscale_all_dim} if rope.mscale_all_dim else {}),
    }


def unread_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Tensors that a file must have although nothing reads them: keys and values of Gemma 3n's blocks that share others'."""
    if config.model_type != "gemma3n_text":
        return {}
    size = config.head_dim
    matrix = (config.num_key_value_heads * size, config.hidden_size)
    shapes = {"attn_k": matrix, "attn_v": matrix, "attn_k_norm": (size,)}
    layers = range(config.first_shared, config.num_hidden_layers)
    return {f"blk.{layer}.{name}.weight": shape for layer in layers for name, shape in shapes.items()}


def rope_divisors(config: Config) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """By what Llama 3 slows each of RoPE's frequencies, and Gemma 4 some to nothing; None for every other way."""
    rope = getattr(config, "rope", None)
    if rope is None or rope.kind not in ("llama3", "proportional"):
        return None
    size = config.rotary_head_size("rotary_emb")
    if rope.kind == "proportional":  # those that are not turned are divided by what no file's reader tells from infinity
        return np.where(rope.frequencies(size) > 0, 1, UNTURNED).astype(np.float32)
    divisors: np.ndarray[Any, np.dtype[np.float32]] = replace(rope, kind="default").frequencies(size) / rope.frequencies(
        size
    )
    return divisors


def check_reads_back(name: str, plan: Blueprint, fields: Mapping[str, Any], tensors: Iterable[OutputTensor]) -> None:
    """Read the fields back as any reader would, and refuse where that is another model."""
    path = Path(name)
    raw = {tensor.name: _placeholder(tensor) for tensor in tensors}
    try:
        reread = written_plan(read_config(gguf_names.config_from_gguf(fields, raw, path)))
    except ConfigError as error:
        raise InputError(f"{name}: GGUF cannot say what its config says ({error}) {ADVICE}") from error
    context = fields[f"{fields['general.architecture']}.context_length"]
    for op, reread_op in zip(plan.ops, reread.ops, strict=True):
        for what, value, reread_value in _differences(op, reread_op, context):
            raise InputError(
                f"{name}: GGUF has no field for {what}={value!r} of {op.module or op.kind!r}; "
                f"its readers would take {reread_value!r}. {ADVICE}"
            )


def _differences(op: Op, reread: Op, context: int) -> Iterator[tuple[str, Any, Any]]:
    """What two steps do not have in common: (what, here, there)."""
    for what in ("kind", "shape"):
        if getattr(op, what) != getattr(reread, what):
            yield what, getattr(op, what), getattr(reread, what)
    here, there = ([f"{weight.name} {weight.shape}" for weight in step.weights] for step in (op, reread))
    if here != there:
        yield "weights", sorted({*here} - {*there}), sorted({*there} - {*here})
    for what in sorted({*op.options, *reread.options}):
        values: list[Any] = [op.options.get(what), reread.options.get(what)]
        if what == "window":  # one that is as wide as the context hides nothing
            values = [None if window is None or window >= context else window for window in values]
        if all(isinstance(value, Rope) for value in values):  # only a kind that GGUF lacks uses the trained length
            values = [replace(rope, max_position_embeddings=0) for rope in values]
        if values[0] != values[1]:
            yield what, values[0], values[1]


def _placeholder(tensor: OutputTensor) -> StoredTensor:
    """What the reader of a config asks of a tensor: its shape, and of RoPE's divisors the numbers."""
    is_divisors = tensor.name == "rope_freqs.weight"
    numbers = tensor.open()(0, 1) if is_divisors else np.zeros(0, np.float32)
    kind = "F16" if tensor.name == "output.weight" else "F32"  # it is written only where it is not the table once more
    file = BufferedFile(Path(tensor.name), numbers.view(np.uint8).reshape(-1))
    return StoredTensor(tensor.name, kind, tensor.shape, file, 0, numbers.nbytes)
