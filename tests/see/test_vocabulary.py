"""The sizes of a vocabulary, wherever they are told: the same numbers, and why they differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

import glassformer
from glassformer.blueprints import blueprint, read_config
from glassformer.see.tokens import VocabularySizes, vocabulary
from glassformer.text import Tokenizer

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def tokenizer(trained: int = 10, added: int = 2) -> Tokenizer:
    made = Backend(models.WordLevel({f"w{number}": number for number in range(trained)}, unk_token="w0"))
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([f"<{number}>" for number in range(added)])
    return Tokenizer(made)


@pytest.mark.parametrize(
    ("rows", "beyond", "unused", "why"),
    [
        (12, 0, 0, ""),
        (16, 0, 4, "4 ids stand for no text: the scores are padded to a size that hardware likes."),
        (11, 1, 0, "The model's table ends before 1 of the tokens: it can neither read nor write those."),
        (8, 4, 0, "The model's table ends before 4 of the tokens: it can neither read nor write those."),
    ],
)
def test_vocabulary_sizes_of_a_decoder(rows: int, beyond: int, unused: int, why: str) -> None:
    config = read_config({"model_type": "llama", "vocab_size": rows, **SMALL})
    found = vocabulary(tokenizer(), blueprint(config))
    assert found == VocabularySizes(10, 12, rows, rows, beyond)
    assert (found.unused, found.why()) == (unused, why)
    assert found.summary() == f"trained 10 · with added tokens 12 · scores {rows}"
    assert str(found) == f"{found.summary()}\n{why}".strip()


def test_a_model_that_scores_no_tokens() -> None:
    config = read_config({"model_type": "bert", "vocab_size": 16, **SMALL})
    for head in ("base", "sequence"):
        found = vocabulary(tokenizer(), blueprint(config, head))  # type: ignore[arg-type]
        assert found == VocabularySizes(10, 12, 16, None)
        assert found.summary() == "trained 10 · with added tokens 12 · embedded 16"
        assert found.why() == "4 ids stand for no text: the table is padded to a size that hardware likes."
    assert vocabulary(tokenizer(), blueprint(config, "masked")).scored == 16


def test_vocabulary_sizes_of_an_encoder_decoder() -> None:
    config = read_config({"model_type": "t5", "vocab_size": 16, "d_model": 8, "num_layers": 1, "num_heads": 2, "d_kv": 4})
    assert vocabulary(tokenizer(), blueprint(config)) == VocabularySizes(10, 12, 16, 16)


def test_vocabulary_sizes_of_a_tokenizer_alone() -> None:
    found = vocabulary(tokenizer())
    assert found.summary() == "trained 10 · with added tokens 12"
    assert (found.unused, found.why()) == (0, "")


def test_vocabulary_sizes_in_a_journey(tiny_qwen3: Path) -> None:
    model = glassformer.load(tiny_qwen3)
    journey = model.look("how are you?")
    assert journey.vocabulary == model.vocabulary == VocabularySizes(151_643, 151_669, 151_936, 151_936)
    picture = str(journey)
    assert "2 · 16 tokens, out of 151,669 ─" in picture
    assert f"\nvocabulary: {model.vocabulary.summary()}" in picture
    assert f"\n{model.vocabulary.why()}" in picture
    told = json.loads(json.dumps(journey.to_dict()))["vocabulary"]
    assert (told["trained"], told["listed"], told["scored"]) == (151_643, 151_669, 151_936)
