"""Families that together have every mechanism: for what holds of each by its ops, whatever the family."""

from __future__ import annotations

EACH_MECHANISM = (
    "modernbert-decoder", "hunyuan_v1_dense", "glm4", "apertus", "olmo", "stablelm", "gemma4_text", "gemma3n_text", "gemma2",
    "gpt_bigcode", "openai-gpt", "opt", "bloom", "mpt", "falcon", "olmo_hybrid", "lfm2", "falcon_h1", "gpt_oss",
    "deepseek_v3", "llama4_text", "granitemoe", "qwen3_next", "nemotron_h", "kimi_linear",
    "mt5", "marian", "mbart", "blenderbot-small", "m2m_100", "switch_transformers", "led", "t5gemma",
    "xlm-roberta-xl", "mpnet", "roformer", "nomic_bert", "albert", "eurobert", "embedding_gemma", "modernbert", "deberta",
)  # fmt: skip
