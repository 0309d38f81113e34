"""Names of GGUF's tensors, by architecture: theirs and ours. {} stands for a block, * for an expert."""

from __future__ import annotations

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
COHERE = {theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("ffn_norm")}
ARCEE = {theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("ffn_gate")}
SEED_OSS = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("ffn_norm")},
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
}
GLM4 = {
    **ARCEE,
    "blk.{}.post_attention_norm": "model.layers.{}.post_self_attn_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_mlp_layernorm",
    "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
}
HUNYUAN = {
    **DECODER,
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.query_layernorm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.key_layernorm",
}
PHI2 = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith(("ffn_norm", "ffn_gate"))},
    "output_norm": "model.final_layernorm",
    "blk.{}.attn_output": "model.layers.{}.self_attn.dense",
    "blk.{}.ffn_up": "model.layers.{}.mlp.fc1",
    "blk.{}.ffn_down": "model.layers.{}.mlp.fc2",
}
OLMO = {theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("_norm")}
LLAMA4 = {
    **{theirs: ours.replace(".mlp.", ".feed_forward.") for theirs, ours in DECODER.items()},
    "blk.{}.ffn_gate_inp": "model.layers.{}.feed_forward.router",
    **{
        f"blk.{{}}.ffn_{name}_{theirs}": f"model.layers.{{}}.feed_forward.{ours}.{name}_proj"
        for theirs, ours in (("exps", "experts.*"), ("shexp", "shared_expert"))
        for name in ("gate", "up", "down")
    },
}
HEAD_NORMS = {
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
}
APERTUS = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("ffn_gate")},
    **HEAD_NORMS,
    "blk.{}.attn_norm": "model.layers.{}.attention_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.feedforward_layernorm",
}
STABLELM = {  # norms of heads stacked: * stands for the index of each
    **DECODER,
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_layernorm.norms.*",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_layernorm.norms.*",
}
EXPERTS = {  # stacked: * stands for the index of each
    "blk.{}.ffn_gate_inp": "model.layers.{}.mlp.gate",
    "blk.{}.ffn_gate_exps": "model.layers.{}.mlp.experts.*.gate_proj",
    "blk.{}.ffn_up_exps": "model.layers.{}.mlp.experts.*.up_proj",
    "blk.{}.ffn_down_exps": "model.layers.{}.mlp.experts.*.down_proj",
}
SHARED_EXPERT = {  # one that all tokens go to
    "blk.{}.ffn_gate_shexp": "model.layers.{}.mlp.shared_expert.gate_proj",
    "blk.{}.ffn_up_shexp": "model.layers.{}.mlp.shared_expert.up_proj",
    "blk.{}.ffn_down_shexp": "model.layers.{}.mlp.shared_expert.down_proj",
}
QWEN2_MOE = {
    **DECODER, **EXPERTS, **SHARED_EXPERT, "blk.{}.ffn_gate_inp_shexp": "model.layers.{}.mlp.shared_expert_gate",
}  # fmt: skip
MIXTRAL = {
    **{theirs: ours for theirs, ours in DECODER.items() if ".mlp." not in ours},
    "blk.{}.ffn_gate_inp": "model.layers.{}.block_sparse_moe.gate",
    "blk.{}.ffn_gate_exps": "model.layers.{}.block_sparse_moe.experts.*.w1",
    "blk.{}.ffn_up_exps": "model.layers.{}.block_sparse_moe.experts.*.w3",
    "blk.{}.ffn_down_exps": "model.layers.{}.block_sparse_moe.experts.*.w2",
}
GPT_OSS = {
    **{theirs: ours for theirs, ours in DECODER.items() if "ffn" not in theirs},
    **EXPERTS,
    "blk.{}.ffn_gate_inp": "model.layers.{}.mlp.router",
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.attn_sinks": "model.layers.{}.self_attn.sinks",
}
LATENT_ATTENTION = {
    "blk.{}.attn_q_a": "model.layers.{}.self_attn.q_a_proj",
    "blk.{}.attn_q_a_norm": "model.layers.{}.self_attn.q_a_layernorm",
    "blk.{}.attn_q_b": "model.layers.{}.self_attn.q_b_proj",
    "blk.{}.attn_kv_a_mqa": "model.layers.{}.self_attn.kv_a_proj_with_mqa",
    "blk.{}.attn_kv_a_norm": "model.layers.{}.self_attn.kv_a_layernorm",
    "blk.{}.attn_kv_b": "model.layers.{}.self_attn.kv_b_proj",
}
ENDINGS = {  # names that are whole without the ending that GGUF has, which may be none
    ".self_attn.sinks": ".weight", ".layer_scalar": ".weight", ".e_score_correction_bias": ".bias",
    ".linear_attn.dt_bias": ".bias", ".linear_attn.A_log": "", ".expert_bias": ".bias",
    ".self_attn.dt_bias": ".bias", ".self_attn.A_log": "",
    **{f".mamba.{name}": ending for name, ending in (("dt_bias", ".bias"), ("A_log", ""), ("D", ""))},
    ".router.scale": "", ".router.per_expert_scale": "", ".altup.correct_output_scale": ".weight",
    ".pre_ff_layernorm.weight": "", ".mixer.dt_bias": ".bias", ".mixer.A_log": "", ".mixer.D": "",
}  # fmt: skip
GROUPED_EXPERTS = {
    **EXPERTS,
    "blk.{}.exp_probs_b": "model.layers.{}.mlp.gate.e_score_correction_bias",
    **{theirs: ours.replace("shared_expert", "shared_experts") for theirs, ours in SHARED_EXPERT.items()},
}
LATENT = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith(("attn_k", "attn_v"))},
    **LATENT_ATTENTION, **GROUPED_EXPERTS,
}  # fmt: skip
KIMI_LINEAR = {
    **DECODER, **MIXTRAL, **LATENT_ATTENTION,
    "blk.{}.exp_probs_b": "model.layers.{}.block_sparse_moe.gate.e_score_correction_bias",
    **{
        f"blk.{{}}.ffn_{name}_shexp": f"model.layers.{{}}.block_sparse_moe.shared_experts.{name}_proj"
        for name in ("gate", "up", "down")
    },
    **{f"blk.{{}}.ssm_conv1d_{name}": f"model.layers.{{}}.self_attn.{name}_conv1d" for name in "qkv"},
    **{f"blk.{{}}.ssm_{name}": f"model.layers.{{}}.self_attn.{name}_proj" for name in ("f_a", "f_b", "g_a", "g_b")},
    "blk.{}.ssm_beta": "model.layers.{}.self_attn.b_proj",
    "blk.{}.ssm_dt": "model.layers.{}.self_attn.dt_bias",
    "blk.{}.ssm_a": "model.layers.{}.self_attn.A_log",
    "blk.{}.ssm_norm": "model.layers.{}.self_attn.o_norm",
}  # fmt: skip
MINIMAX = {
    **{theirs: ours.replace(".mlp.", ".block_sparse_moe.") for theirs, ours in MIXTRAL.items()}, **HEAD_NORMS,
    "blk.{}.exp_probs_b": "model.layers.{}.block_sparse_moe.e_score_correction_bias",
}  # fmt: skip
ERNIE_MOE = {
    **DECODER, **GROUPED_EXPERTS, "blk.{}.exp_probs_b": "model.layers.{}.mlp.moe_statics.e_score_correction_bias",
}  # fmt: skip
NEXTN = {  # of a head for further tokens, whose block is the layer behind the last one
    **{f"blk.{{}}.nextn.{name}": f"model.layers.{{}}.{name}" for name in ("eh_proj", "embed_tokens", "enorm", "hnorm")},
    "blk.{}.nextn.shared_head_head": "model.layers.{}.shared_head.head",
    "blk.{}.nextn.shared_head_norm": "model.layers.{}.shared_head.norm",
}
GLM4_MOE = {**SEED_OSS, **HEAD_NORMS, **GROUPED_EXPERTS, **NEXTN}
GRANITE_MOE = {
    **{theirs: ours for theirs, ours in DECODER.items() if ".mlp." not in ours},
    "blk.{}.ffn_gate_inp": "model.layers.{}.block_sparse_moe.router.layer",
    **{
        f"blk.{{}}.ffn_{name}_exps": f"model.layers.{{}}.block_sparse_moe.experts.*.{name}_proj"
        for name in ("gate", "up", "down")
    },
}
MAMBA2 = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "backbone.layers.{}.norm",
    "blk.{}.ssm_in": "backbone.layers.{}.mixer.in_proj",
    "blk.{}.ssm_conv1d": "backbone.layers.{}.mixer.conv1d",
    "blk.{}.ssm_dt": "backbone.layers.{}.mixer.dt_bias",
    "blk.{}.ssm_a": "backbone.layers.{}.mixer.A_log",
    "blk.{}.ssm_d": "backbone.layers.{}.mixer.D",
    "blk.{}.ssm_norm": "backbone.layers.{}.mixer.norm",
    "blk.{}.ssm_out": "backbone.layers.{}.mixer.out_proj",
}
FALCON_H1 = {
    **{
        theirs: ours.replace(".mlp.", ".feed_forward.").replace("model.norm", "model.final_layernorm")
        for theirs, ours in DECODER.items()
    },
    "blk.{}.ffn_norm": "model.layers.{}.pre_ff_layernorm.weight",  # which has no ending in files
    **{
        theirs: ours.replace("backbone.layers.{}.mixer", "model.layers.{}.mamba")
        for theirs, ours in MAMBA2.items() if ".mixer." in ours
    },
}  # fmt: skip
BAMBA = {**FALCON_H1, "blk.{}.ffn_norm": "model.layers.{}.pre_ff_layernorm"}
GRANITE_HYBRID = {
    **{theirs: ours for theirs, ours in DECODER.items() if ".mlp." not in ours},
    **{theirs: ours for theirs, ours in FALCON_H1.items() if ".mamba." in ours},
    "blk.{}.ffn_gate_up": "model.layers.{}.shared_mlp.input_linear",
    "blk.{}.ffn_down": "model.layers.{}.shared_mlp.output_linear",
}
GRANITE_HYBRID_MOE = {
    **{theirs: ours for theirs, ours in GRANITE_HYBRID.items() if ".shared_mlp." not in ours},
    **{theirs: ours for theirs, ours in GRANITE_MOE.items() if ".block_sparse_moe." in ours},
    "blk.{}.ffn_gate_up_shexp": "model.layers.{}.shared_mlp.input_linear",
    "blk.{}.ffn_down_shexp": "model.layers.{}.shared_mlp.output_linear",
}
NEMOTRON_H = {
    **MAMBA2,
    **{f"blk.{{}}.attn_{name}": f"backbone.layers.{{}}.mixer.{name}_proj" for name in "qkv"},
    "blk.{}.attn_output": "backbone.layers.{}.mixer.o_proj",
    "blk.{}.ffn_up": "backbone.layers.{}.mixer.up_proj",
    "blk.{}.ffn_down": "backbone.layers.{}.mixer.down_proj",
}
NEMOTRON_H_MOE = {
    **{theirs: ours for theirs, ours in NEMOTRON_H.items() if "ffn" not in theirs},
    "blk.{}.ffn_gate_inp": "backbone.layers.{}.mixer.gate",
    "blk.{}.exp_probs_b": "backbone.layers.{}.mixer.gate.e_score_correction_bias",
    "blk.{}.ffn_latent_down": "backbone.layers.{}.mixer.fc1_latent_proj",
    "blk.{}.ffn_latent_up": "backbone.layers.{}.mixer.fc2_latent_proj",
    "blk.{}.ffn_up_exps": "backbone.layers.{}.mixer.experts.*.up_proj",
    "blk.{}.ffn_down_exps": "backbone.layers.{}.mixer.experts.*.down_proj",
    "blk.{}.ffn_up_shexp": "backbone.layers.{}.mixer.shared_experts.up_proj",
    "blk.{}.ffn_down_shexp": "backbone.layers.{}.mixer.shared_experts.down_proj",
}
QWEN35 = {
    **SEED_OSS,
    **HEAD_NORMS,
    **NEXTN,
    "blk.{}.attn_qkv": "model.layers.{}.linear_attn.in_proj_qkv",
    "blk.{}.attn_gate": "model.layers.{}.linear_attn.in_proj_z",
    "blk.{}.ssm_beta": "model.layers.{}.linear_attn.in_proj_b",
    "blk.{}.ssm_alpha": "model.layers.{}.linear_attn.in_proj_a",
    "blk.{}.ssm_conv1d": "model.layers.{}.linear_attn.conv1d",
    "blk.{}.ssm_dt": "model.layers.{}.linear_attn.dt_bias",
    "blk.{}.ssm_a": "model.layers.{}.linear_attn.A_log",
    "blk.{}.ssm_norm": "model.layers.{}.linear_attn.norm",
    "blk.{}.ssm_out": "model.layers.{}.linear_attn.out_proj",
}
LFM2 = {
    **{
        theirs: ours.replace(".mlp.gate_proj", ".feed_forward.w1").replace(".mlp.up_proj", ".feed_forward.w3")
        .replace(".mlp.down_proj", ".feed_forward.w2").replace(".o_proj", ".out_proj")
        .replace(".input_layernorm", ".operator_norm").replace(".post_attention_layernorm", ".ffn_norm")
        for theirs, ours in DECODER.items() if theirs != "output_norm"
    },
    "token_embd_norm": "model.embedding_norm",  # the last norm
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_layernorm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_layernorm",
    "blk.{}.shortconv.conv": "model.layers.{}.conv.conv",
    "blk.{}.shortconv.in_proj": "model.layers.{}.conv.in_proj",
    "blk.{}.shortconv.out_proj": "model.layers.{}.conv.out_proj",
}  # fmt: skip
LFM2_MOE = {
    **LFM2,
    "blk.{}.ffn_gate_inp": "model.layers.{}.feed_forward.gate",
    "blk.{}.ffn_gate_exps": "model.layers.{}.feed_forward.experts.*.w1",
    "blk.{}.ffn_up_exps": "model.layers.{}.feed_forward.experts.*.w3",
    "blk.{}.ffn_down_exps": "model.layers.{}.feed_forward.experts.*.w2",
    "blk.{}.exp_probs_b": "model.layers.{}.feed_forward.expert_bias",
}
QWEN35_MOE = {
    **{theirs: ours for theirs, ours in QWEN35.items() if ".mlp." not in ours},
    **{theirs: ours for theirs, ours in QWEN2_MOE.items() if ".mlp." in ours and theirs not in DECODER},
}
QWEN3_NEXT = {
    **{theirs: ours for theirs, ours in QWEN35_MOE.items() if ".in_proj_" not in ours},
    "blk.{}.ssm_in": "model.layers.{}.linear_attn.in_proj_qkvz",
    "blk.{}.ssm_ba": "model.layers.{}.linear_attn.in_proj_ba",
}
GEMMA2 = {
    **DECODER,
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
GEMMA3 = {**GEMMA2, **HEAD_NORMS}
PER_LAYER_INPUTS = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "blk.{}.inp_gate": "model.layers.{}.per_layer_input_gate",
    "blk.{}.proj": "model.layers.{}.per_layer_projection",
    "blk.{}.post_norm": "model.layers.{}.post_per_layer_input_norm",
}
GEMMA4 = {
    **GEMMA3,
    **PER_LAYER_INPUTS,
    "blk.{}.layer_output_scale": "model.layers.{}.layer_scalar",
    "blk.{}.ffn_gate_inp": "model.layers.{}.router.proj",
    "blk.{}.ffn_gate_inp.scale": "model.layers.{}.router.scale",
    "blk.{}.ffn_gate_exps": "model.layers.{}.experts.*.gate_proj",
    "blk.{}.ffn_up_exps": "model.layers.{}.experts.*.up_proj",
    "blk.{}.ffn_down_exps": "model.layers.{}.experts.*.down_proj",
    "blk.{}.ffn_down_exps.scale": "model.layers.{}.router.per_expert_scale",
    "blk.{}.pre_ffw_norm_2": "model.layers.{}.pre_feedforward_layernorm_2",
    "blk.{}.post_ffw_norm_1": "model.layers.{}.post_feedforward_layernorm_1",
    "blk.{}.post_ffw_norm_2": "model.layers.{}.post_feedforward_layernorm_2",
}
GEMMA3N = {
    **GEMMA3,
    **PER_LAYER_INPUTS,
    "altup_proj": "model.altup_projections.*",
    "altup_unembd_proj": "model.altup_unembed_projections.*",
    "blk.{}.altup_correct_coef": "model.layers.{}.altup.correction_coefs",
    "blk.{}.altup_correct_scale": "model.layers.{}.altup.correct_output_scale",
    "blk.{}.altup_predict_coef": "model.layers.{}.altup.prediction_coefs",
    "blk.{}.altup_router": "model.layers.{}.altup.modality_router",
    "blk.{}.altup_router_norm": "model.layers.{}.altup.router_norm",
    "blk.{}.laurel_l": "model.layers.{}.laurel.linear_left",
    "blk.{}.laurel_r": "model.layers.{}.laurel.linear_right",
    "blk.{}.laurel_post_norm": "model.layers.{}.laurel.post_laurel_norm",
}
OLMO2 = {theirs: ours for theirs, ours in GEMMA3.items() if theirs not in ("blk.{}.attn_norm", "blk.{}.ffn_norm")}
PHI3 = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith(("attn_q", "attn_k", "attn_v", "ffn_gate"))},
    "blk.{}.attn_qkv": "model.layers.{}.self_attn.qkv_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
}
STARCODER2 = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("ffn_gate")},
    "blk.{}.ffn_up": "model.layers.{}.mlp.c_fc",
    "blk.{}.ffn_down": "model.layers.{}.mlp.c_proj",
}
GPTNEOX = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "gpt_neox.layers.{}.input_layernorm",
    "blk.{}.attn_qkv": "gpt_neox.layers.{}.attention.query_key_value",
    "blk.{}.attn_output": "gpt_neox.layers.{}.attention.dense",
    "blk.{}.ffn_norm": "gpt_neox.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
    "blk.{}.ffn_down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
}
BLOOM = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.input_layernorm",
    "blk.{}.attn_qkv": "transformer.h.{}.self_attention.query_key_value",
    "blk.{}.attn_output": "transformer.h.{}.self_attention.dense",
    "blk.{}.ffn_norm": "transformer.h.{}.post_attention_layernorm",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.dense_h_to_4h",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.dense_4h_to_h",
}
FALCON = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.input_layernorm",
    "blk.{}.attn_qkv": "transformer.h.{}.self_attention.query_key_value",
    "blk.{}.attn_output": "transformer.h.{}.self_attention.dense",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.dense_h_to_4h",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.dense_4h_to_h",
}
FALCON_OF_TWO_NORMS = {
    **FALCON, "blk.{}.attn_norm": "transformer.h.{}.ln_mlp", "blk.{}.attn_norm_2": "transformer.h.{}.ln_attn",
}  # fmt: skip
MPT = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.blocks.{}.norm_1",
    "blk.{}.attn_qkv": "transformer.blocks.{}.attn.Wqkv",
    "blk.{}.attn_output": "transformer.blocks.{}.attn.out_proj",
    "blk.{}.ffn_norm": "transformer.blocks.{}.norm_2",
    "blk.{}.ffn_up": "transformer.blocks.{}.ffn.up_proj",
    "blk.{}.ffn_down": "transformer.blocks.{}.ffn.down_proj",
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
NOMIC_BERT = {
    **{theirs: ours for theirs, ours in BERT.items() if "position" not in theirs and "blk" not in theirs},
    **{f"blk.{{}}.attn_{name}": f"layers.{{}}.self_attn.{name}_proj" for name in "qkv"},
    "blk.{}.attn_output": "layers.{}.self_attn.o_proj",
    "blk.{}.attn_output_norm": "layers.{}.post_attention_layernorm",
    **{f"blk.{{}}.ffn_{name}": f"layers.{{}}.mlp.{name}_proj" for name in ("gate", "up", "down")},
    "blk.{}.layer_output_norm": "layers.{}.post_mlp_layernorm",
}
MODERN_BERT = {
    "token_embd": "embeddings.tok_embeddings",
    "token_embd_norm": "embeddings.norm",
    "output_norm": "final_norm",
    "blk.{}.attn_norm": "layers.{}.attn_norm",
    "blk.{}.attn_qkv": "layers.{}.attn.Wqkv",
    "blk.{}.attn_output": "layers.{}.attn.Wo",
    "blk.{}.ffn_norm": "layers.{}.mlp_norm",
    "blk.{}.ffn_up": "layers.{}.mlp.Wi",
    "blk.{}.ffn_down": "layers.{}.mlp.Wo",
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
