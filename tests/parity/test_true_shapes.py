"""Every family at the true size of its best-known model, with random weights, beside the reference. Heavy: a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from glassformer.blueprints import blueprint, read_config
from tests.parity.compare import close, load
from tests.parity.reference import AUTO

SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert-base-uncased": ("bert", "masked", {}),
    "roberta-base": ("roberta", "masked", {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "distilbert-base-uncased": ("distilbert", "masked", {}),
    "xlm-roberta-base": (
        "xlm-roberta", "masked",
        {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ),
    "electra-small-discriminator": ("electra", "masked", {}),
    "albert-base-v2": (
        "albert", "masked", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "ModernBERT-base": ("modernbert", "masked", {}),
    "deberta-v3-base": (
        "deberta-v2", "masked",
        {"vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
         "intermediate_size": 3072, "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
         "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False},
    ),
    "gpt2": ("gpt2", "causal", {}),
    "gemma-3-270m": (
        "gemma3_text", "causal",
        {"vocab_size": 262144, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "head_dim": 256,
         "num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512},
    ),
    "pythia-70m": (
        "gpt_neox", "causal",
        {"vocab_size": 50304, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
         "num_attention_heads": 8},
    ),
    "t5-small": ("t5", "seq2seq", {"decoder_start_token_id": 0}),
    "opus-mt-en-de": (
        "marian", "seq2seq",
        {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
         "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "max_position_embeddings": 512,
         "activation_function": "swish", "scale_embedding": True},
    ),
    "pegasus, of six layers": (
        "pegasus", "seq2seq",
        {"vocab_size": 96103, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
         "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "max_position_embeddings": 512,
         "activation_function": "relu", "scale_embedding": True},
    ),
    "mt5-small": ("mt5", "seq2seq", {"decoder_start_token_id": 0}),
    "bart-base": (
        "bart", "seq2seq",
        {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
         "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
    ),
}  # fmt: skip
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {  # too large to be made here
    "Mixtral-8x7B-v0.1": ("mixtral", {}),
    "Qwen3-30B-A3B": (
        "qwen3_moe",
        {"num_hidden_layers": 48, "head_dim": 128, "norm_topk_prob": True, "max_position_embeddings": 40960},
    ),
    "OLMoE-1B-7B-0924": ("olmoe", {"intermediate_size": 1024}),
    "gpt-oss-20b": ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}),
}
PARAMETERS = {"Mixtral-8x7B-v0.1": 46.7, "Qwen3-30B-A3B": 30.5, "OLMoE-1B-7B-0924": 6.9, "gpt-oss-20b": 20.9}  # 10⁹


@pytest.mark.sweep
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_have_as_many_parameters_as_published(name: str) -> None:
    model_type, changes = MIXTURES[name]
    config = transformers.AutoConfig.for_model(model_type, **changes)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    plan = blueprint(read_config(config.to_dict()))
    assert plan.parameters == theirs.num_parameters()
    assert round(plan.parameters / 1e9, 1) == PARAMETERS[name]


LARGE: dict[str, tuple[str, dict[str, Any], int]] = {  # too large to be run here: the family, its sizes, all parameters
    "Phi-3-mini-4k-instruct": ("phi3", {}, 3_821_079_552),
    "phi-4": (
        "phi3",
        {"vocab_size": 100352, "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
         "num_attention_heads": 40, "num_key_value_heads": 10, "pad_token_id": 100349},
        14_659_507_200,
    ),
    "OLMo-2-1124-7B": ("olmo2", {"vocab_size": 100352, "pad_token_id": 100277}, 7_298_617_344),
    "Olmo-3-1025-7B": ("olmo3", {"vocab_size": 100278, "pad_token_id": 100277}, 7_298_011_136),
    "SmolLM3-3B": ("smollm3", {}, 3_075_098_624),
    "gemma-2b": (
        "gemma",
        {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8,
         "num_key_value_heads": 1},
        2_506_172_416,
    ),
    "gemma-2-2b": ("gemma2", {}, 2_614_341_888),
    "gpt-j-6b": ("gptj", {}, 6_050_882_784),
    "gpt-neo-1.3B": ("gpt_neo", {}, 1_315_575_808),
    "starcoder2-3b": ("starcoder2", {}, 3_030_371_328),
    "granite-3.1-2b-base": (
        "granite",
        {"vocab_size": 49155, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40,
         "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True},
        2_533_531_648,
    ),
    "c4ai-command-r7b-12-2024": (
        "cohere2",
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8},
        8_028_033_024,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_published_shapes_have_the_published_parameters(name: str) -> None:
    model_type, changes, parameters = LARGE[name]
    config = transformers.AutoConfig.for_model(model_type, **changes)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    assert theirs.num_parameters() == parameters
    assert blueprint(read_config(config.to_dict())).parameters == parameters


@pytest.mark.sweep
@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_published_shapes_with_random_weights(name: str, tmp_path: Path) -> None:
    model_type, head, changes = SHAPES[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **changes)
    theirs = getattr(transformers, f"AutoModelFor{AUTO[head]}").from_config(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path, head)
    assert ours.num_parameters() == theirs.num_parameters(only_trainable=True)
    ids = torch.randint(10, 20000, (1, 24), generator=torch.Generator().manual_seed(1))
    more = {"decoder_input_ids": ids[:, :7]} if head == "seq2seq" else {}
    close(ours(ids, **more).logits, theirs(ids, **more).logits)
    if head != "masked":
        said = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        assert ours.generate(ids, **said).tolist() == theirs.generate(ids, **said).tolist()
