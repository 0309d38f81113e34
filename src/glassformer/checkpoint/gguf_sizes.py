"""Fields of a config that only have another name in GGUF's metadata: by architecture, theirs and ours."""

from __future__ import annotations

COMMON = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
DECODER = {
    **COMMON,
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
EXPERT = {
    **DECODER,
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
SHARED_EXPERT = {**EXPERT, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
GATED_DELTA = {
    "full_attention_interval": "full_attention_interval",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
GROUPED_EXPERT = {
    **EXPERT,
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
LATENT = {
    **{key: name for key, name in GROUPED_EXPERT.items() if name not in ("head_dim", "num_key_value_heads")},
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
}
KIMI_LINEAR = {
    **{key: name for key, name in LATENT.items() if name not in ("rope_theta", "norm_topk_prob")},
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "kda.head_dim": "linear_head_dim",
}
WHOLE_EXPERT = {**EXPERT, "expert_feed_forward_length": "intermediate_size"}
ERNIE_MOE = {
    **EXPERT,
    "expert_shared_count": "moe_num_shared_experts",
    "leading_dense_block_count": "moe_layer_start_index",
    "interleave_moe_layer_step": "moe_layer_interval",
}
GPT_OSS = {
    **EXPERT,
    "expert_feed_forward_length": "intermediate_size",
    "attention.sliding_window": "sliding_window",
}
GEMMA = {
    **DECODER,
    "attention.sliding_window": "sliding_window",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
}
GEMMA4 = {
    **{key: name for key, name in GEMMA.items() if name not in ("num_key_value_heads", "intermediate_size", "head_dim")},
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
GEMMA3N = {
    **{key: name for key, name in GEMMA.items() if name not in ("intermediate_size", "attn_logit_softcapping")},
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "altup.active_idx": "altup_active_idx",
    "altup.num_inputs": "altup_num_inputs",
}
WINDOW = {**DECODER, "attention.sliding_window": "sliding_window"}
LFM2 = {
    **{key: name for key, name in DECODER.items() if name != "num_key_value_heads"},
    "shortconv.l_cache": "conv_L_cache",
}
LFM2_MOE = {
    **{key: name for key, name in EXPERT.items() if name != "num_key_value_heads"}, **LFM2,
    "leading_dense_block_count": "num_dense_layers",
}  # fmt: skip
GRANITE = {
    **DECODER,
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
GRANITE_MOE = {
    **GRANITE,
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
}
MAMBA2 = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "num_heads",
}
STATES_BESIDE_ATTENTION = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
BAMBA = {**{key: name for key, name in DECODER.items() if name != "num_key_value_heads"}, **STATES_BESIDE_ATTENTION}
GRANITE_HYBRID_MOE = {
    **{key: name for key, name in GRANITE_MOE.items() if name != "num_key_value_heads"},
    **STATES_BESIDE_ATTENTION,
    "expert_shared_feed_forward_length": "shared_intermediate_size",
}
GRANITE_SHARED_MOE = {**GRANITE_MOE, "expert_shared_feed_forward_length": "shared_intermediate_size"}
GRANITE_HYBRID = {  # without experts
    **{key: name for key, name in GRANITE_HYBRID_MOE.items() if not key.startswith("expert_")},
    "feed_forward_length": "shared_intermediate_size",
}
FALCON_H1 = {**DECODER, **STATES_BESIDE_ATTENTION}
NEMOTRON_H = {
    **{key: name for key, name in MAMBA2.items() if not key.startswith("ssm.")},
    "attention.head_count": "num_attention_heads",
    "attention.key_length": "head_dim",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "mamba_num_heads",
}
NEMOTRON_H_MOE = {
    **NEMOTRON_H,
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "moe_latent_size": "moe_latent_size",
}
STARCODER2 = {
    **{key: name for key, name in DECODER.items() if name != "rms_norm_eps"},
    "attention.layer_norm_epsilon": "norm_epsilon",
}
COHERE = {
    **{key: name for key, name in DECODER.items() if name != "rms_norm_eps"},
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "logit_scale": "logit_scale",
}
COHERE2 = {**COHERE, "attention.sliding_window": "sliding_window"}
LLAMA4 = {
    **EXPERT,
    "expert_feed_forward_length": "intermediate_size",
    "feed_forward_length": "intermediate_size_mlp",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
}
LAYER_NORM = {
    **{key: name for key, name in DECODER.items() if name != "rms_norm_eps"},
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
STABLELM = {**LAYER_NORM, "use_parallel_residual": "use_parallel_residual"}
NEMOTRON = {**LAYER_NORM, "attention.layer_norm_epsilon": "norm_eps"}
OLMO = {
    **{key: name for key, name in DECODER.items() if name != "rms_norm_eps"}, "attention.clamp_kqv": "clip_qkv",
}  # fmt: skip
STARCODER = {
    **COMMON, "attention.head_count_kv": "num_key_value_heads", "attention.layer_norm_epsilon": "layer_norm_epsilon",
}  # fmt: skip
BLOOM = {
    "context_length": "seq_length",
    "embedding_length": "hidden_size",
    "block_count": "n_layer",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
FALCON = {
    **{key: name for key, name in COMMON.items() if name != "max_position_embeddings"},
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "rope.freq_base": "rope_theta",
}
MPT = {
    "context_length": "max_seq_len",
    "embedding_length": "d_model",
    "block_count": "n_layers",
    "attention.head_count": "n_heads",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
GPTNEOX = {
    **COMMON,
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "use_parallel_residual": "use_parallel_residual",
    "rope.freq_base": "rope_theta",
}
BERT = {**COMMON, "attention.layer_norm_epsilon": "layer_norm_eps"}
NOMIC_BERT = {**BERT, "rope.freq_base": "rope_theta"}
MODERN_BERT = {
    **COMMON,
    "attention.layer_norm_epsilon": "norm_eps",
    "attention.sliding_window": "local_attention",
    "attention.sliding_window_pattern": "global_attn_every_n_layers",
    "rope.freq_base": "global_rope_theta",
    "rope.freq_base_swa": "local_rope_theta",
}
T5 = {
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
