"""What the numbers of a config may be: bounds that are checked before anything loops over them or allocates by them.

A number out of a file is no better than the file. Every whole number fits 32 bits, as native code has them; what is built
layer by layer or row by row has a limit of its own; and once the weights are there, no size may be larger than they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief, is_finite

INT32 = 2**31 - 1
MAX_LAYERS = 4096
MAX_LABELS = 1 << 20
MAX_DISTANCE = 1 << 15  # of T5's relative positions; the CPU engine has a number for each
MAX_KERNEL = 64  # tokens that a convolution reads, in the CPU engine
MAX_SINUSOIDS = 1 << 14  # positions of the model from scratch; the CPU engine has a row for each

HeldBy = Literal["tensors", "dimension"]


class Bounds(NamedTuple):
    least: float = 0
    most: float = INT32
    above: float | None = None  # instead of `least`, where that itself is too small
    held_by: HeldBy | None = None  # what of the weights it cannot exceed: how many tensors, or the longest dimension

    def refusal(self, value: float) -> str | None:
        """What a number must be instead, or None where it is within bounds."""
        if not is_finite(value):
            return "a finite number"
        if self.above is not None and value <= self.above:
            return f"above {self.above:g}"
        if self.above is None and value < self.least:
            return f"at least {self.least:g}"
        return f"at most {self.most:.10g}" if value > self.most else None


LAYERS = Bounds(1, MAX_LAYERS, held_by="tensors")
EXPERTS = Bounds(1, MAX_LAYERS, held_by="tensors")
SIZE = Bounds(1, held_by="dimension")
SIZE_OR_DEFAULT = Bounds(0, held_by="dimension")  # 0: follows from others
LENGTH = Bounds(1)
TOKEN = Bounds(-1)  # -1: none, as some files have it
EPSILON = Bounds(0, 1)
SHARE = Bounds(0, 1)
SPREAD = Bounds(0, 1e6)

BOUNDS: Mapping[str, Bounds] = {  # of every number in any family's config
    **dict.fromkeys(("num_hidden_layers", "num_encoder_layers", "num_hidden_groups"), LAYERS),
    **dict.fromkeys(
        (
            "vocab_size", "hidden_size", "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "num_attention_heads",
            "encoder_attention_heads", "type_vocab_size", "embedding_size", "moe_intermediate_size",
            "intermediate_size_mlp", "shared_expert_intermediate_size", "linear_key_head_dim", "linear_value_head_dim",
            "linear_num_key_heads", "linear_num_value_heads", "linear_head_dim", "linear_num_heads",
        ),
        SIZE,
    ),
    **dict.fromkeys(("num_key_value_heads", "head_dim", "output_size"), SIZE_OR_DEFAULT),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), SIZE),
    **dict.fromkeys(("max_position_embeddings", "sliding_window"), LENGTH),
    "local_attention": Bounds(),
    **dict.fromkeys(("linear_conv_kernel_dim", "conv_L_cache"), Bounds(1, MAX_KERNEL)),
    "block_multiple_of": LENGTH,
    "block_ffn_dim_multiplier": Bounds(0, 1e6),
    **dict.fromkeys(("max_relative_positions", "position_buckets"), Bounds(-1, MAX_DISTANCE)),  # -1: follows from others
    **dict.fromkeys(("sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval"), LENGTH),
    "full_attention_interval": LENGTH,
    "max_window_layers": Bounds(),
    **dict.fromkeys(("num_experts", "num_experts_per_tok"), EXPERTS),
    **dict.fromkeys(("decoder_sparse_step", "interleave_moe_layer_step", "attention_chunk_size", "floor_scale"), LENGTH),
    "moe_layers": Bounds(),
    "attn_scale": SPREAD,
    **dict.fromkeys(("n_group", "topk_group"), EXPERTS),
    **dict.fromkeys(("n_shared_experts", "first_k_dense_replace", "num_dense_layers"), Bounds()),
    "routed_scaling_factor": SPREAD,
    "mlp_only_layers": Bounds(),
    "relative_attention_num_buckets": Bounds(4, held_by="dimension"),
    "relative_attention_max_distance": Bounds(1, MAX_DISTANCE),
    "num_labels": Bounds(0, MAX_LABELS),  # 0: the family's default
    **dict.fromkeys(
        (
            "bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id", "decoder_start_token_id", "forced_bos_token_id",
            "forced_eos_token_id",
        ),
        TOKEN,
    ),
    "num_ln_in_parallel_attn": Bounds(1),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), EPSILON),
    **dict.fromkeys(("initializer_range", "initializer_factor", "router_aux_loss_coef"), SPREAD),
    **dict.fromkeys(
        ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"), Bounds(above=0)
    ),
    **dict.fromkeys(
        (
            "attention_dropout", "activation_dropout", "attention_probs_dropout_prob", "attn_pdrop", "classifier_dropout",
            "classifier_dropout_prob", "classifier_dropout_rate", "dropout", "dropout_rate", "embd_pdrop",
            "embedding_dropout", "hidden_dropout", "hidden_dropout_prob", "mlp_dropout", "pooler_dropout", "qa_dropout",
            "resid_pdrop", "residual_dropout",
            "seq_classif_dropout",
        ),
        SHARE,
    ),
}  # fmt: skip


def check_numbers(values: Mapping[str, Any], bounds: Mapping[str, Bounds], own_name: Any) -> None:
    """Refuse the first number that is out of bounds; what is no number at all is left to the check of types."""
    for name in values.keys() & bounds.keys():
        value = values[name]
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, bool) or not isinstance(item, int | float):
                continue
            if (expected := bounds[name].refusal(item)) is not None:
                raise ConfigError(f"config field {own_name(name)!r} is {brief(item)}; it must be {expected}.")


def check_held(
    values: Mapping[str, Any], bounds: Mapping[str, Bounds], own_name: Any, shapes: Iterable[tuple[int, ...]]
) -> None:
    """Refuse a size that is larger than the weights, which have these shapes."""
    shapes = tuple(shapes)
    longest = max((size for shape in shapes for size in shape), default=0)
    limits: Mapping[HeldBy, tuple[int, str]] = {
        "tensors": (len(shapes), f"the weights are {len(shapes)} tensors"),
        "dimension": (longest, f"no dimension of the weights is above {longest}"),
    }
    for name in values.keys() & bounds.keys():
        held_by, value = bounds[name].held_by, values[name]
        limit, reason = limits[held_by] if held_by is not None else (INT32, "")
        if isinstance(value, int) and value > limit:
            raise ConfigError(
                f"config field {own_name(name)!r} is {value}, but {reason}. Is this the config of these weights?"
            )
