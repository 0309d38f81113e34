"""What the benchmarks share: reports, texts, and models of a true shape with random weights.

Timings are noisy, so contestants take turns within one run and only ratios are to be believed.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

QWEN3_06B: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
    "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "eos_token_id": 151645, "dtype": "bfloat16",
}  # fmt: skip

QWEN35_08B: dict[str, Any] = {
    "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 1024, "intermediate_size": 3584,
    "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
    "max_position_embeddings": 262144, "rope_theta": 1e7, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip

LFM2_350M: dict[str, Any] = {
    "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 1024, "intermediate_size": 4608, "num_hidden_layers": 16,
    "block_auto_adjust_ff_dim": False, "num_attention_heads": 16, "num_key_value_heads": 8, "conv_L_cache": 3,
    "max_position_embeddings": 128000, "rope_theta": 1e6, "norm_eps": 1e-5, "tie_word_embeddings": True,
    "layer_types": ["full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)],
}  # fmt: skip

QWEN3_MOE_SMALL: dict[str, Any] = {
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
    "max_position_embeddings": 40960, "rope_theta": 1e6, "num_experts": 64, "num_experts_per_tok": 8,
    "moe_intermediate_size": 512, "norm_topk_prob": True, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
}  # fmt: skip

GPT_OSS_SMALL: dict[str, Any] = {
    "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 12,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 131072,
    "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "tie_word_embeddings": False,
}  # fmt: skip

SMOLLM2: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "rope_theta": 1e5,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip

MINILM: dict[str, Any] = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6,
    "num_attention_heads": 12, "max_position_embeddings": 512, "dtype": "float32",
}  # fmt: skip

GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 50257, "dtype": "float32"}
T5_SMALL: dict[str, Any] = {"model_type": "t5", "vocab_size": 32128, "dtype": "float32"}
BART_BASE: dict[str, Any] = {
    "model_type": "bart", "vocab_size": 50265, "d_model": 768, "encoder_layers": 6, "decoder_layers": 6,
    "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
    "dtype": "float32",
}  # fmt: skip

WORDS = ["the", "a", "model", "reads", "every", "word", "and", "gives", "one", "vector", "of", "glass", "light", "people"]


def texts(count: int) -> list[str]:
    """Texts of 3 to 200 words, most of them short, as real ones are."""
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=min(200, 3 + int(draw.expovariate(1 / 25))))) for _ in range(count)]


def random_checkpoint(shape: Mapping[str, Any] = QWEN3_06B) -> Path:
    """A folder with random weights of a true shape, made once and kept beside the fetched models."""
    import torch

    from glassformer import blueprints
    from glassformer.compat.auto import model_class_for_head
    from glassformer.compat.pretrained import DTYPES_BY_NAME
    from glassformer.ground.files import home

    config = blueprints.read_config(shape)
    folder = home() / "bench" / f"{config.model_type}-{config.hidden_size}x{config.num_hidden_layers}-{shape['dtype']}"
    if not (folder / "model.safetensors").exists():
        before = torch.get_default_dtype()
        torch.set_default_dtype(DTYPES_BY_NAME[shape["dtype"]])
        try:
            torch.manual_seed(0)
            with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # billions of weights take minutes on a CPU
                model = model_class_for_head(config.model_type, config.default_head)(config)
        finally:
            torch.set_default_dtype(before)
        model.to("cpu").save_pretrained(folder)
    return folder


def race(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Median seconds of both, taking turns; the first turn warms up."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for run, found in zip((ours, theirs), times, strict=True):
            began = time.perf_counter()
            run()
            if turn:
                found.append(time.perf_counter() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def report(name: str, rows: list[dict[str, Any]], quiet: bool = False) -> None:
    """Rows for people on stderr, unless `quiet`, and the same as JSON on stdout."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    if not quiet:
        print(f"\n{name} ({machine})", file=sys.stderr)
        for row in rows:
            print("  " + "  ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr)
    print(json.dumps({"bench": name, "machine": machine, "rows": rows}))
