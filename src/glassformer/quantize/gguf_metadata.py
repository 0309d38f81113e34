"""A GGUF file's metadata of a model: the inverse of how its config is read from one.

GGUF has a fixed set of fields per architecture, and leaves much to its readers: which activation, which scale, which layers
look through a window. So what would be written is read back first, and must be the same model, step by step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from glassformer.blueprints import Blueprint, Config, Op, Rope, blueprint, read_config
from glassformer.blueprints.state_space import ATTENTION, STATE
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
    if config.model_type == "gemma3n_text":
        _check_gemma3n(config, name)
    if config.model_type == "falcon" and (config.alibi or config.bias or not config.parallel_attn):
        raise InputError(
            f"{name}: GGUF has a place for falcon models with RoPE, without biases, with attention and MLP side by side, "
            f"and for no others. {ADVICE}"
        )
    if config.model_type == "olmoe" and config.clip_qkv is not None:
        raise InputError(
            f"{name}: GGUF has no place for the limit of queries, keys and values of an {config.model_type} model. {ADVICE}"
        )
    if config.model_type == "qwen3_next" and len(config.routed_layers) < config.num_hidden_layers:
        raise InputError(f"{name}: GGUF has no place for layers without experts in a {config.model_type} model. {ADVICE}")
    if config.model_type == "phi" and config.qk_layernorm:
        raise InputError(
            f"{name}: GGUF has no place for the norms of queries and keys of a {config.model_type} model. {ADVICE}"
        )
    if config.model_type in ("granitemoehybrid", "bamba"):
        _check_states_beside_attention(config, name)
    architecture = _architecture(config)
    kinds = {*(getattr(config, "layer_types", None) or ())}
    if architecture == "nemotron_h_moe" and ("mlp" in kinds or getattr(config, "mlp_bias", False)):
        raise InputError(f"{name}: GGUF has no place for MLPs or their biases in a Nemotron-H model with experts. {ADVICE}")
    if architecture not in ("llama", "gemma4", "llama4", "apertus") and rope_divisors(config) is not None:
        raise InputError(f"{name}: GGUF has a place for Llama 3's RoPE in Llama's own models only. {ADVICE}")
    return architecture


def _check_states_beside_attention(config: Any, name: str) -> None:
    if config.mamba_proj_bias:
        raise InputError(f"{name}: GGUF has no place for the projection biases of a {config.model_type} model. {ADVICE}")
    if config.model_type == "bamba" and config.rope.rotary_size(config.head_dim) < config.head_dim:
        raise InputError(
            f"{name}: GGUF's readers take other pairs of a bamba model's heads that are partly rotated. {ADVICE}"
        )
    if not config.ropes and STATE not in (config.layer_types or ()):
        raise InputError(f"{name}: GGUF has no place for a {config.model_type} model without states and positions. {ADVICE}")
    if config.mamba_n_groups > 1:
        raise InputError(
            f"{name}: GGUF's readers norm each group of a state's heads by itself, and a {config.model_type} model all "
            f"{config.mamba_n_groups} groups together. {ADVICE}"
        )


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
    if config.model_type == "mpt":
        metadata["attention.max_alibi_bias"] = float(config.attn_config["alibi_bias_max"])
        metadata |= {} if config.clip is None else {"attention.clamp_kqv": float(config.clip)}
    if "attention.kv_lora_rank" in metadata:  # as older files have it, with keys and values of heads
        heads = {"attention.head_count_kv": config.num_attention_heads, "attention.key_length": config.qk_head_dim}
        metadata |= {**heads, "attention.value_length": config.v_head_dim}
    if config.model_type == "kimi_linear":
        metadata |= _kimi_linear(config)
    if config.model_type == "gemma4_text":
        metadata |= _gemma4(config)
    if config.model_type == "gemma3n_text":
        metadata |= _gemma3n(config)
    if config.model_type == "falcon":
        metadata |= {"attention.head_count_kv": config.groups, "context_length": config.context}
    if config.model_type == "mamba2":  # which has neither an MLP nor heads that attend
        metadata |= {"ssm.inner_size": config.state_space.inner, "feed_forward_length": 0, "attention.head_count": 0}
    if config.model_type == "falcon_h1":
        metadata["ssm.inner_size"] = config.state_space.inner
    if config.model_type == "nemotron_h":
        metadata |= _nemotron_h(config)
    if "ssm.state_size" in table.sizes and config.model_type in ("granitemoehybrid", "bamba"):
        metadata |= _states_beside_attention(config)
    if "full_attention_interval" in table.sizes:
        metadata |= _gated_delta(config)
    if "shortconv.l_cache" in table.sizes:
        groups = config.num_key_value_heads
        counts = [groups if config.is_full(layer) else 0 for layer in range(config.num_hidden_layers)]
        metadata["attention.head_count_kv"] = counts
    if config.model_type == "cohere2":
        metadata |= _period(config, usual=4)
    if config.model_type == "ministral3":
        metadata |= _mistral3(config)
    if config.model_type in ("gemma3_text", "embedding_gemma"):
        metadata |= _gemma3(config)
    how = next((op.options["how"] for op in plan.ops_of(Route)), None)
    if how == "sigmoid" or "n_group" in table.sizes.values():
        metadata["expert_gating_func"] = GATING[how or "sigmoid"]
    if config.model_type in ("olmo3", "exaone4") and windows:
        metadata["attention.sliding_window_pattern"] = [config.is_local(layer) for layer in range(config.num_hidden_layers)]
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


def _gemma3(config: Any) -> dict[str, Any]:
    return {"rope.freq_base_swa": float(config.local_rope.theta), **_period(config, usual=6)}


def _period(config: Any, usual: int) -> dict[str, Any]:
    """Every how many layers one sees everything, where that is not as usual."""
    kinds = config.layer_types
    period = next((n for n in (usual, *range(1, len(kinds) + 2)) if kinds == _every(n, len(kinds))), usual)
    return {} if period == usual else {"attention.sliding_window_pattern": period}


def _mistral3(config: Any) -> dict[str, Any]:
    rope, scale = config.rope, config.position_scale
    grows = {} if scale is None else {"attention.temperature_scale": float(scale.beta)}
    sharper = {} if not rope.mscale_all_dim else {"rope.scaling.yarn_log_multiplier": float(rope.mscale_all_dim)}
    betas = {f"rope.scaling.yarn_{name}": float(getattr(rope, name)) for name in ("beta_fast", "beta_slow")}
    return {**grows, **sharper, **(betas if rope.kind == "yarn" else {})}


def _gemma4(config: Any) -> dict[str, Any]:
    """What may differ from layer to layer, listed where it does."""
    layers, size = range(config.num_hidden_layers), config.head_dim
    several: dict[str, list[int]] = {
        "feed_forward_length": [config.inner(layer) for layer in layers],
        "attention.head_count_kv": [config.key_heads(layer) for layer in layers],
    }
    return {
        "attention.value_length": config.global_head_dim,
        "attention.value_length_swa": size,
        "rope.dimension_count": config.global_head_dim,
        "rope.dimension_count_swa": size,
        "rope.freq_base_swa": float(config.local_rope.theta),
        "attention.sliding_window_pattern": [config.is_local(layer) for layer in layers],
        **{name: counts if len(set(counts)) > 1 else counts[0] for name, counts in several.items()},
    }


def _check_gemma3n(config: Any, name: str) -> None:
    """What its readers do not ask a file for."""
    layers = config.num_hidden_layers
    taken = {
        "altup_active_idx": (config.altup_active_idx, 0),
        "altup_num_inputs": (config.altup_num_inputs, 4),
        "num_kv_shared_layers": (config.num_kv_shared_layers, max(layers - 20, 0)),
        "activation_sparsity_pattern": ([*config.activation_sparsity_pattern], ([0.95] * 10 + [0.0] * layers)[:layers]),
        "final_logit_softcapping": (config.final_logit_softcapping, 30.0),
    }
    for field, (value, read) in taken.items():
        if value != read:
            raise InputError(
                f"{name}: GGUF's readers take {field}={read} of a gemma3n_text model of {layers} layers, not {value}. "
                f"{ADVICE}"
            )


def unread_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Tensors that a file must have although nothing reads them: keys and values of Gemma 3n's blocks that share others'."""
    if config.model_type != "gemma3n_text":
        return {}
    size = config.head_dim
    matrix = (config.num_key_value_heads * size, config.hidden_size)
    shapes = {"attn_k": matrix, "attn_v": matrix, "attn_k_norm": (size,)}
    layers = range(config.first_shared, config.num_hidden_layers)
    return {f"blk.{layer}.{name}.weight": shape for layer in layers for name, shape in shapes.items()}


def _gemma3n(config: Any) -> dict[str, Any]:
    layers, normal = range(config.num_hidden_layers), NormalDist()
    inner = [config.inner(layer) for layer in layers]
    shut = [config.sparsity(layer) for layer in layers]
    return {
        "feed_forward_length": inner if len(set(inner)) > 1 else inner[0],
        "rope.freq_base_swa": float(config.local_rope.theta),
        "attention.sliding_window_pattern": [config.is_local(layer) for layer in layers],
        "activation_sparsity_scale": [normal.inv_cdf(share) if share else -math.inf for share in shut],
    }


def _nemotron_h(config: Any) -> dict[str, Any]:
    """What a block is, by numbers that are 0 where it has no such part."""
    inner = {"mlp": config.intermediate_size, "moe": config.moe_intermediate_size}
    groups = {"full_attention": config.num_key_value_heads}
    return {
        "attention.value_length": config.head_dim,
        "attention.head_count_kv": [groups.get(kind, 0) for kind in config.layer_types],
        "feed_forward_length": [inner.get(kind, 0) for kind in config.layer_types],
        "ssm.inner_size": config.state_space.inner,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
    }


def _states_beside_attention(config: Any) -> dict[str, Any]:
    """Heads of keys are 0 where a layer keeps a state; a file says whether attention knows positions."""
    layers = range(config.num_hidden_layers)
    granite = config.model_type == "granitemoehybrid"
    attends = [config.layer_types[n] == ATTENTION if granite else n in (config.attn_layer_indices or ()) for n in layers]
    return {
        "attention.head_count_kv": [config.num_key_value_heads if full else 0 for full in attends],
        "ssm.inner_size": config.state_space.inner,
        "rope.scaling.finetuned": bool(config.ropes),
    }


def _kimi_linear(config: Any) -> dict[str, Any]:
    """The sizes of what heads see, and of what is remembered, as if it were one head's key and value; no head of keys where
    a layer keeps a state."""
    return {
        "attention.head_count_kv": [int(config.is_full(layer)) for layer in range(config.num_hidden_layers)],
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "leading_dense_block_count": min(config.routed_layers, default=config.num_hidden_layers),
    }


def _gated_delta(config: Any) -> dict[str, Any]:
    full = [config.is_full(layer) for layer in range(config.num_hidden_layers)]
    period = next((n for n in range(1, len(full) + 2) if full == [(layer + 1) % n == 0 for layer in range(len(full))]), 4)
    metadata = {"full_attention_interval": period, "ssm.inner_size": config.value_columns}
    if config.model_type == "qwen3_next":
        return metadata
    pairs = config.rope.rotary_size(config.head_dim) // 2
    sections = [11, 11, 10, 0] if pairs == 32 else [pairs, 0, 0, 0]  # of axes, which are one in a text
    return {**metadata, "rope.dimension_sections": sections}


def _every(period: int, layers: int) -> list[str]:
    return ["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)]


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
