"""Tiny models of families that have no file here, as transformers makes them: of every kind that it knows.

They are as different as can be: attention of all sorts, state spaces and other recurrences, convolutions, Fourier
transforms; norms before and after; sequential and parallel; decoders, encoders and both.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
transformers.utils.logging.set_verbosity(logging.ERROR)

SIZES = {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
LENGTH = {"max_position_embeddings": 64}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT = {"vocab_size": 120, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, **IDS}
BART = {
    "vocab_size": 120, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, **LENGTH, **IDS, "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}  # fmt: skip

DECODERS: Mapping[str, dict[str, Any]] = {
    "mamba": {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 5, "time_step_rank": 3, **IDS},
    "falcon_mamba": {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 4, "time_step_rank": 3,
                     **IDS},
    "rwkv": {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 3, "attention_hidden_size": 32,
             "intermediate_size": 48, "context_length": 64, **IDS},
    "recurrent_gemma": {**SIZES, **IDS, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 6,
                        "num_key_value_heads": 1, "head_dim": 8},
    "jamba": {**SIZES, **IDS, **LENGTH, "num_hidden_layers": 4, "num_key_value_heads": 2, "attn_layer_period": 2,
              "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 3,
              "mamba_d_state": 4, "mamba_dt_rank": 3, "use_mamba_kernels": False},
    "codegen": {**GPT, "rotary_dim": 4},
    "gpt_neox_japanese": {**{name: size for name, size in SIZES.items() if name != "intermediate_size"}, **LENGTH, **IDS,
                          "intermediate_multiple_size": 2},
    "persimmon": {**SIZES, **LENGTH, **IDS},
    "xglm": {"vocab_size": 120, "d_model": 32, "num_layers": 3, "attention_heads": 4, "ffn_dim": 48, **LENGTH, **IDS,
             "decoder_start_token_id": 2},
    "diffllama": {**SIZES, **LENGTH, **IDS, "num_key_value_heads": 2},
    "jetmoe": {**SIZES, **LENGTH, **IDS, "num_key_value_heads": 2, "kv_channels": 8, "num_local_experts": 3,
               "num_experts_per_tok": 2},
    "dbrx": {"vocab_size": 120, "d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64, **IDS,
             "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
             "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 3, "moe_top_k": 2}},
    "ctrl": {"vocab_size": 120, "n_embd": 32, "n_layer": 3, "n_head": 4, "dff": 48, "n_positions": 64, **IDS},
    "nanochat": {**SIZES, **LENGTH, **IDS, "num_key_value_heads": 2},
}  # fmt: skip
ENCODERS: Mapping[str, dict[str, Any]] = {
    "fnet": {**SIZES, **LENGTH, **IDS},
    "funnel": {"vocab_size": 120, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "block_sizes": [2, 1],
               "num_decoder_layers": 1, **IDS},
    "longformer": {**SIZES, **LENGTH, **IDS, "attention_window": 8},
    "big_bird": {**SIZES, **LENGTH, **IDS, "attention_type": "original_full"},
    "convbert": {**SIZES, **LENGTH, **IDS, "embedding_size": 32, "conv_kernel_size": 3},
    "mobilebert": {**SIZES, **LENGTH, **IDS, "embedding_size": 24, "intra_bottleneck_size": 16,
                   "true_hidden_size": 16, "num_feedforward_networks": 2},
    "layoutlm": {**SIZES, **LENGTH, **IDS},
    "rembert": {**SIZES, **LENGTH, **IDS, "input_embedding_size": 24, "output_embedding_size": 24},
    "nystromformer": {**SIZES, **LENGTH, **IDS, "num_landmarks": 64, "segment_means_seq_len": 64, "conv_kernel_size": 3},
}  # fmt: skip
PAIRS: Mapping[str, dict[str, Any]] = {
    "plbart": BART,
    "pegasus_x": {**BART, "block_size": 8, "num_global_tokens": 2},
    "bigbird_pegasus": {**BART, "attention_type": "original_full"},
    "longt5": {"vocab_size": 120, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2,
               "num_heads": 4, "local_radius": 3, "decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0},
    "prophetnet": {"vocab_size": 120, "hidden_size": 32, "num_encoder_layers": 2, "num_decoder_layers": 2,
                   "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "encoder_ffn_dim": 48,
                   "decoder_ffn_dim": 48, "ngram": 2, **LENGTH, **IDS, "decoder_start_token_id": 1},
}  # fmt: skip
WITHOUT_STREAM: Mapping[str, dict[str, Any]] = {  # whose modules do not show the stream between layers
    "flaubert": {"vocab_size": 120, "emb_dim": 32, "n_layers": 3, "n_heads": 4, **LENGTH, "pad_index": 0, "pad_token_id": 0},
    "squeezebert": {**SIZES, **LENGTH, **IDS, "embedding_size": 32},
}  # fmt: skip
PAIRS_WITHOUT_STREAM: Mapping[str, dict[str, Any]] = {
    "fsmt": {**BART, "langs": ["en", "de"], "src_vocab_size": 120, "tgt_vocab_size": 120}
}
REFUSED: Mapping[str, dict[str, Any]] = {
    "xlnet": {"vocab_size": 120, "d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48, **IDS}
}
ALL = {**DECODERS, **ENCODERS, **PAIRS, **WITHOUT_STREAM, **PAIRS_WITHOUT_STREAM, **REFUSED}


def head_class(kind: str) -> str:
    is_pair = kind in PAIRS or kind in PAIRS_WITHOUT_STREAM
    return "CausalLM" if kind in (*DECODERS, *REFUSED) else "Seq2SeqLM" if is_pair else "MaskedLM"


def build(kind: str, seed: int = 7, **changes: Any) -> Any:
    """A model of transformers with random weights, large enough for differences to show."""
    config = transformers.AutoConfig.for_model(kind, **{**ALL[kind], **changes})
    torch.manual_seed(seed)
    model = getattr(transformers, f"AutoModelFor{head_class(kind)}").from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_table = any(part in name for part in ("A_log", "dt_proj.bias", "time_decay", "recurrent_param"))
            if weight.ndim > 1 and not is_table:
                weight.copy_(torch.randn(weight.shape) * 0.15)
    return model


def write(folder: Path, kind: str, **changes: Any) -> Any:
    """The same, saved as a folder with a tokenizer, and opened again by transformers."""
    model = build(kind, **changes)
    model.generation_config = transformers.GenerationConfig(  # type: ignore[no-untyped-call]
        **{name: getattr(model.config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
        decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
    )  # fmt: skip
    model.save_pretrained(folder)
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, **{f"w{index}": index for index in range(5, 120)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>", "<mask>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return getattr(transformers, f"AutoModelFor{head_class(kind)}").from_pretrained(folder).eval()


def text(ids: Sequence[int]) -> str:
    """Words that these ids stand for."""
    return " ".join(f"w{index}" for index in ids)
