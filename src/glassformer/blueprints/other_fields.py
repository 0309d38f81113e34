"""Fields of real `config.json` files that no family's config has: those that change nothing here, and those that would.

A field that a family's `Config` declares is honoured. What is `HARMLESS` is kept and written back on saving. What is
`REFUSED` raises, unless it has a value that changes nothing. Fields in neither table are kept too: nobody knows them.
docs/config-fields.md shows all three; a test keeps it and the configs of real checkpoints in step with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief

PACKED = (
    "weights that are packed this way cannot be read. GPTQ, AWQ, bitsandbytes, FP8 and compressed-tensors can, from a "
    "folder: take the model so, unpacked, or as a .gguf file."
)
VARIANT = "this variant is not supported. Is this the config of these weights?"


class ConfigRefusal(NamedTuple):
    neutral: tuple[Any, ...]  # the values that change nothing
    advice: str
    families: tuple[str, ...] = ()  # in which it means something; none: in all


ENCODERS = (
    "bert", "roberta", "distilbert", "xlm-roberta", "electra", "albert", "modernbert", "deberta-v2", "camembert", "mpnet",
    "megatron-bert", "xlm-roberta-xl", "roformer", "nomic_bert", "gte", "deberta", "eurobert",
)  # fmt: skip
BART = ("bart",)

REFUSED: Mapping[str, ConfigRefusal] = {
    "quantization_config": ConfigRefusal((None,), PACKED),  # those that can be read leave the config with their weights
    "quantization": ConfigRefusal((None,), PACKED),  # MLX
    "compression_config": ConfigRefusal((None,), PACKED),
    **dict.fromkeys(
        ("attn_logit_softcapping", "final_logit_softcapping"),
        ConfigRefusal((None,), "this family has no soft caps, as Gemma 2 has them: set it to null."),
    ),
    "use_bidirectional_attention": ConfigRefusal(
        (None, False), "a decoder that looks ahead is not supported. For vectors of texts take an encoder, such as minilm."
    ),
    "is_decoder": ConfigRefusal(
        (None, False), "an encoder's blocks as a decoder are not supported. To write texts take a decoder, such as gpt2.",
        ENCODERS,
    ),
    "add_cross_attention": ConfigRefusal(
        (None, False), "cross-attention is supported in encoder-decoders alone. Take one, such as T5, or set it to false."
    ),
    "position_embedding_type": ConfigRefusal(
        (None, "absolute"), "only positions of the kind 'absolute' are supported. Take a model that has these.",
        ENCODERS,
    ),
    "pruned_heads": ConfigRefusal((None, {}), "pruned heads are not supported. Take the model before it was pruned."),
    "router_jitter_noise": ConfigRefusal((None, 0, 0.0), "noise on a router's input is not supported. Set it to 0."),
    "use_mrope": ConfigRefusal(
        (None, False), "positions of several axes are for models of images; this one reads text alone."
    ),
    "normalize_before": ConfigRefusal((None, False), VARIANT, BART),  # mBART and others have been saved as BART
    "add_final_layer_norm": ConfigRefusal((None, False), VARIANT, BART),
    "static_position_embeddings": ConfigRefusal((None, False), VARIANT, BART),
    "normalize_embedding": ConfigRefusal((None, True), VARIANT, BART),
    "conv_kernel_size": ConfigRefusal(
        (None, 0), "a convolution is not supported. Take DeBERTa v3, such as microsoft/deberta-v3-base.",
        ("deberta-v2",),
    ),
    "add_bias_logits": ConfigRefusal((None, False), VARIANT, BART),
}  # fmt: skip

TRAINING = "for training only"
OUTPUTS = "what comes back is said in each call"
HEAD = "of a head that is not here"
DERIVED = "follows from other fields"
FILES = "about the file"
TOKENIZER = "for the tokenizer"
DRAFTS = "of heads for further tokens, which are no part of the model itself"
MEMORY = "memory and speed alone"

HARMLESS: Mapping[str, str] = {
    **dict.fromkeys(("_name_or_path", "name_or_path", "transformers_version", "finetuning_task", "_commit_hash"), FILES),
    "auto_map": "code of a checkpoint is never run; the family is what model_type says",
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_past", "return_dict", "use_return_dict"), OUTPUTS),
    **dict.fromkeys(
        (
            "chunk_size_feed_forward", "pretraining_tp", "torchscript", "use_bfloat16", "reorder_and_upcast_attn",
            "_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "cache_implementation",
            "tf_legacy_loss", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "slow_but_exact",
            "init_device", "dual_chunk_attention_config", "deterministic_flash_attn", "reference_compile", "chunk_size",
            "mamba_chunk_size", "num_logits_to_keep", "use_mamba_kernels", "mamba_ssm_cache_dtype",
            "moe_shared_expert_overlap",
        ),
        MEMORY,
    ),
    **dict.fromkeys(
        (
            "encoder_layerdrop", "decoder_layerdrop", "layerdrop", "gradient_checkpointing", "classif_dropout",
            "classifier_dropout", "hidden_dropout", "embd_pdrop", "neftune_noise_alpha", "output_router_logits",
            "unsloth_fixed", "unsloth_version", "initializer_cutoff_factor", "sparse_prediction", "sparse_pred_ignore_index",
            "repad_logits_with_grad", "emb_pdrop", "embedding_fraction", "rescale_prenorm_residual", "time_step_min",
            "time_step_max", "time_step_floor", "z_loss_coefficient", "linear_a_log_min", "linear_a_log_max",
            "linear_dt_min", "linear_dt_max", "linear_dt_init_floor", "classifier_dropout_rate",
            "altup_coef_clip",
            "router_z_loss_coef", "router_aux_loss_coef", "add_router_probs",
        ),
        TRAINING,
    ),
    **dict.fromkeys(
        (
            "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
            "summary_last_dropout",
        ),
        HEAD,
    ),
    **dict.fromkeys(
        ("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"), HEAD
    ),
    **dict.fromkeys(
        (
            "is_encoder_decoder", "dense_act_fn", "is_gated_act", "n_ctx", "_sliding_window_pattern", "directionality",
            "extra_pos_embeddings", "tie_weights_", "tie_encoder_decoder", "cross_attention_hidden_size",
            "scale_decoder_outputs", "max_sequence_length", "seq_length", "gap_size", "net_structure_type",
            "num_memory_blocks", "down_scale_factor", "learned_pos_emb", "experts_per_token",
            "initial_context_length", "attention_layers", "time_step_rank", "expand",
        ),
        DERIVED,
    ),
    **dict.fromkeys(
        ("tokenizer_class", "sep_token_id", "cls_token_id", "unk_token_id", "eod_token_id", "model_max_length"), TOKENIZER
    ),
    **dict.fromkeys((
            "num_nextn_predict_layers", "num_mtp_layers", "mtp_layers_block_type", "mtp_num_hidden_layers",
            "mtp_use_dedicated_embeddings",
        ), DRAFTS),
    "residual_in_fp32": "how a stream of half precision is rounded",
    "prefix": "for pipelines of other libraries",
    "task_specific_params": "read by the tasks that generate",
    "gguf": FILES,
}  # fmt: skip


def check_other_fields(
    values: Mapping[str, Any], neutral: Mapping[str, Any], family_fields: frozenset[str], family: str
) -> None:
    """Refuse the first field that would change what the model computes and that its config has no place for.

    `neutral`: the family's own fields that may have one value alone. `own`: the fields that its config has.
    """
    for name, value in values.items():
        refusal = REFUSED.get(name)
        if name in neutral:
            allowed: tuple[Any, ...] = (neutral[name], None)
        elif refusal is not None and name not in family_fields and family in (refusal.families or (family,)):
            allowed = refusal.neutral
        else:
            continue
        if value not in allowed:
            article = "an" if family[0] in "aeiou" else "a"
            if refusal is None or (name in neutral and neutral[name] not in refusal.neutral):
                advice = f"in {article} {family} model it is {neutral[name]!r}."
            else:
                advice = refusal.advice
            raise ConfigError(f"config field {name!r} is {brief(value)}; {advice}")
