"""Every family at the true size of its best-known model, with random weights, beside the reference. Heavy: a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.parity.compare import close, load
from tests.parity.reference import AUTO

SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert-base-uncased": ("bert", "masked", {}),
    "roberta-base": ("roberta", "masked", {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "distilbert-base-uncased": ("distilbert", "masked", {}),
    "gpt2": ("gpt2", "causal", {}),
    "gemma-3-270m": (
        "gemma3_text", "causal",
        {"vocab_size": 262144, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "head_dim": 256,
         "num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512},
    ),
    "t5-small": ("t5", "seq2seq", {"decoder_start_token_id": 0}),
    "bart-base": (
        "bart", "seq2seq",
        {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
         "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
    ),
}  # fmt: skip


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
    assert ours.num_parameters() == theirs.num_parameters()
    ids = torch.randint(10, 20000, (1, 24), generator=torch.Generator().manual_seed(1))
    more = {"decoder_input_ids": ids[:, :7]} if head == "seq2seq" else {}
    close(ours(ids, **more).logits, theirs(ids, **more).logits)
    if head != "masked":
        said = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        assert ours.generate(ids, **said).tolist() == theirs.generate(ids, **said).tolist()
