"""How many tokens a text has at least, without encoding it: never more than it has."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from glassformer import AutoTokenizer
from glassformer.text import Tokenizer
from glassformer.text.token_bytes import BYTES, TokenSizes
from tests.sweeps import examples

DIFFICULT = [
    "가" * 50,
    "e\u0301" * 50,
    "\U0001d41a" * 50,
    " " * 5000,
    "\n" * 5000,
    "\x04" * 500,
    "\U000f0000" * 50,
    "\ud800",
]


@pytest.fixture(scope="session", params=["qwen3_tokenizer", "gpt2_tokenizer", "smollm2", "minilm"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    path: Path = request.getfixturevalue(request.param)
    loaded: Tokenizer = AutoTokenizer.from_pretrained(path.parent if path.name == "tokenizer.json" else path)
    return loaded


@given(st.one_of(st.text(), st.sampled_from(DIFFICULT), st.text(" \n=-a", min_size=20).map(lambda text: text * 40)))
@settings(max_examples=examples(30, 1000), deadline=None)
def test_a_text_has_no_fewer(tokenizer: Tokenizer, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert tokenizer.least_tokens(text) <= len(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_long_texts_of_vocabularies_with_all_bytes_have_many(qwen3_tokenizer: Path, minilm: Path) -> None:
    text = "a quick brown fox " * 100_000
    assert AutoTokenizer.from_pretrained(qwen3_tokenizer).least_tokens(text) > 1000
    assert AutoTokenizer.from_pretrained(minilm.parent).least_tokens(text) == 0  # a word of any length may be unknown


def byte_level(**parts: object) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE({character: number for number, character in enumerate(BYTES)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def split(behavior: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(" ", behavior), pre_tokenizers.ByteLevel(add_prefix_space=False)])


@pytest.mark.parametrize(
    ("backend", "least"),
    [
        (byte_level(), 8),
        (byte_level(normalizer=normalizers.NFC()), 2),
        (byte_level(normalizer=normalizers.Replace(" ", "_")), 8),
        (byte_level(normalizer=normalizers.Replace(" ", "")), 0),
        (byte_level(normalizer=normalizers.Strip()), 0),
        (byte_level(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.StripAccents()])), 0),
        (byte_level(pre_tokenizer=split("isolated")), 8),
        (byte_level(pre_tokenizer=split("removed")), 0),
        (byte_level(pre_tokenizer=pre_tokenizers.Whitespace()), 0),
        (byte_level(model=models.WordLevel({"a": 0}, unk_token="a")), 0),
        (byte_level(model=models.BPE({"a": 0}, [])), 4),  # all bytes but one are left out
    ],
)
def test_there_is_a_bound_where_nothing_is_cut_out(backend: tokenizers.Tokenizer, least: int) -> None:
    assert TokenSizes.of(backend).least_tokens("abababab") == least


def test_a_token_that_takes_the_spaces_around_it_has_no_bound() -> None:
    backend = byte_level()
    backend.add_special_tokens([tokenizers.AddedToken("<end>", rstrip=True)])
    assert TokenSizes.of(backend).least_tokens("a" * 100) == 0
