"""GGUF's names of tensors, and the families' own: `{}` stands for the number of a block, `*` for that of an expert."""

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
HEAD_NORMS = {
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
}
EXPERTS = {  # stacked: * stands for the number of each
    "blk.{}.ffn_gate_inp": "model.layers.{}.mlp.gate",
    "blk.{}.ffn_gate_exps": "model.layers.{}.mlp.experts.*.gate_proj",
    "blk.{}.ffn_up_exps": "model.layers.{}.mlp.experts.*.up_proj",
    "blk.{}.ffn_down_exps": "model.layers.{}.mlp.experts.*.down_proj",
}
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
ENDLESS = (".self_attn.sinks",)  # names that are whole without .weight
GEMMA2 = {
    **DECODER,
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
GEMMA3 = {**GEMMA2, **HEAD_NORMS}
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
