"""Tokenizers from GGUF metadata, held against pipelines built in another way from the same vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from glassformer import AutoTokenizer
from glassformer.ground.errors import CheckpointError
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.gguf import build
from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import PRE_TOKENIZER_TYPES
from tests.text.texts import encodable_bytes, moderate, texts

NORMAL, UNKNOWN, CONTROL, USER, UNUSED = 1, 2, 3, 4, 5
Metadata = Mapping[str, Any]


def gguf_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def tiny(**changes: Any) -> dict[str, Any]:
    """Three letters, two of which merge, and two special tokens."""
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab", "c", "<s>", "</s>"],
        "token_type": [NORMAL, NORMAL, NORMAL, NORMAL, CONTROL, CONTROL],
        "merges": ["a b"],
        "bos_token_id": 4,
        "eos_token_id": 5,
    }
    return gguf_fields({name: value for name, value in (fields | changes).items() if value is not None})


# SmolLM2 -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def pipeline(smol_metadata: Metadata) -> tokenizers.Tokenizer:
    """SmolLM2's tokenizer, built as its authors describe it: single digits, then GPT-2."""
    tokens, kinds, merges = (smol_metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges"))
    found = tokenizers.Tokenizer(
        models.BPE({token: n for n, token in enumerate(tokens)}, [tuple(pair.split(" ")) for pair in merges])
    )
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL])
    return found


@moderate
@given(text=texts, skip=st.booleans())
def test_smollm2_is_digits_then_gpt2(smol: Tokenizer, pipeline: tokenizers.Tokenizer, text: str, skip: bool) -> None:
    ids = smol.encode(text)
    assert ids == pipeline.encode(text).ids
    assert smol.decode(ids) == encodable_bytes(smol, text).decode(errors="replace")
    assert smol.decode(ids, skip_special_tokens=skip) == pipeline.decode(ids, skip_special_tokens=skip)


def test_vocabulary_and_special_ids_of_smollm2(smol: Tokenizer, smol_metadata: Metadata) -> None:
    assert smol.vocab_size == len(smol) == 49152
    assert smol.convert_ids_to_tokens(range(49152)) == smol_metadata["tokenizer.ggml.tokens"]
    assert smol.model_max_length == 8192
    assert (smol.bos_token_id, smol.eos_token_id, smol.unk_token_id, smol.pad_token_id) == (1, 2, 0, 2)
    assert smol.all_special_tokens == ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    assert len(smol.get_added_vocab()) == 17
    assert smol.chat_template == smol_metadata["tokenizer.chat_template"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("2024", ["2", "0", "2", "4"]),
        ("x² 10", ["x", "Â²", "Ġ", "1", "0"]),
        ("a   b", ["a", "ĠĠ", "Ġb"]),
        ("a\n\nb", ["a", "Ċ", "Ċ", "b"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "Ċ"]),
        ("a<|im_end|>b", ["a", "<|im_end|>", "b"]),
        ("<|im_end |>", ["<", "|", "im", "_", "end", "Ġ|", ">"]),
        ("", []),
    ],
)
def test_known_encodings_of_smollm2(smol: Tokenizer, text: str, tokens: list[str]) -> None:
    assert smol.tokenize(text) == tokens


# Qwen3, from the metadata that a GGUF of it holds -------------------------------------------------------------------


@pytest.fixture(scope="session")
def qwen_metadata(qwen3_tokenizer: Path) -> Metadata:
    """Qwen3's tokenizer.json as the field's converter writes it, with the padding behind."""
    fields = json.loads((qwen3_tokenizer / "tokenizer.json").read_text("utf-8"))
    words = sorted(fields["model"]["vocab"], key=fields["model"]["vocab"].__getitem__)
    added = sorted(fields["added_tokens"], key=lambda token: token["id"])
    padding = [f"[PAD{number}]" for number in range(len(words) + len(added), 151936)]
    pairs = fields["model"]["merges"]
    fields = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": [*words, *(token["content"] for token in added), *padding],
        "token_type": [NORMAL] * len(words)
        + [CONTROL if token["special"] else USER for token in added]
        + [UNUSED] * len(padding),
        "merges": [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs],
        "eos_token_id": 151645,
        "padding_token_id": 151643,
        "add_bos_token": False,
    }
    return gguf_fields(fields) | {"general.architecture": "qwen3", "qwen3.context_length": 40960}


@pytest.fixture(scope="session")
def qwen_gguf(qwen_metadata: Metadata) -> Tokenizer:
    return Tokenizer.from_gguf(qwen_metadata)


def test_qwen3_is_the_same_from_either_format(qwen_gguf: Tokenizer, qwen: Tokenizer) -> None:
    assert (qwen_gguf.vocab_size, len(qwen_gguf)) == (151643, 151669)
    assert qwen_gguf.vocab == qwen.vocab
    assert qwen_gguf.get_added_vocab() == qwen.get_added_vocab()
    assert (qwen_gguf.eos_token, qwen_gguf.pad_token, qwen_gguf.bos_token) == ("<|im_end|>", "<|endoftext|>", None)
    assert qwen_gguf.model_max_length == 40960
    assert qwen_gguf.chat_template is None
    assert qwen_gguf.decode([151669, 151935]) == ""


@moderate
@given(text=texts, skip=st.booleans())
def test_qwen3_gives_the_same_ids_from_either_format(qwen_gguf: Tokenizer, qwen: Tokenizer, text: str, skip: bool) -> None:
    ids = qwen_gguf.encode(text)
    assert ids == qwen.encode(text)
    assert qwen_gguf.decode(ids, skip_special_tokens=skip) == qwen.decode(ids, skip_special_tokens=skip)


# How text is split, by name (the splits themselves: test_gguf_pre_tokenizers.py) ---------------------------------------


@pytest.mark.parametrize("pre", [*PRE_TOKENIZER_TYPES, None])
def test_every_pre_tokenizer_name_can_be_built(pre: str | None) -> None:
    backend, special, _ = build(tiny(pre=pre))
    assert backend.encode("ab ab<s>c", add_special_tokens=False).ids[-2:] == [4, 3]
    assert special == {"bos_token": "<s>", "eos_token": "</s>"}


def test_llama3_takes_whole_words_first() -> None:
    """A word that is a token is that token, even where no merges lead to it."""
    fields = {
        "tokens": ["a", "b", "c", "abc"],
        "token_type": [NORMAL] * 4,
        "merges": [],
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    assert build(tiny(pre="llama-bpe", add_bos_token=False, **fields))[0].encode("abc").ids == [3]
    assert build(tiny(pre="gpt-2", **fields))[0].encode("abc").ids == [0, 1, 2]


# Tokens around and behind -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "around"),
    [
        ({}, ([], [])),
        ({"add_bos_token": True}, ([4], [])),
        ({"add_eos_token": True}, ([], [5])),
        ({"add_bos_token": True, "add_eos_token": True}, ([4], [5])),
        ({"add_bos_token": True, "add_eos_token": True, "eos_token_id": 4}, ([4], [4])),
        ({"add_bos_token": True, "bos_token_id": None}, ([], [])),
        ({"pre": "llama-bpe"}, ([4], [])),  # whose files leave it unsaid
        ({"pre": "llama-bpe", "add_bos_token": False}, ([], [])),
        ({"add_bos_token": True, "tokens": ["a", "b", "ab", "c", "$A: x", "</s>"]}, ([4], [])),  # a hostile spelling
    ],
    ids=repr,
)
def test_bos_and_eos_around_each_text(fields: dict[str, Any], around: tuple[list[int], list[int]]) -> None:
    ours = Tokenizer.from_gguf(tiny(**fields))
    before, after = around
    assert ours.encode("abc") == [*before, 2, 3, *after]
    assert ours.encode("") == [*before, *after]
    assert ours.encode("abc", add_special_tokens=False) == [2, 3]
    assert ours.decode(ours.encode("abc"), skip_special_tokens=True) == "abc"
    assert ours("abcabc", truncation=True, max_length=4)["input_ids"][:1] == (before or [2])


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        ([CONTROL, USER], (4, 6)),
        ([CONTROL, CONTROL, UNUSED, UNUSED], (4, 6)),
        ([UNUSED, UNUSED], (4, 4)),
        ([CONTROL, UNUSED, CONTROL], (6, 7)),  # a gap is kept, or all that follow would move
        ([CONTROL, NORMAL], (6, 6)),
        ([], (4, 4)),
    ],
    ids=repr,
)
def test_added_tokens_keep_their_ids(kinds: list[int], sizes: tuple[int, int]) -> None:
    names = [f"<{number}>" for number in range(len(kinds))]
    metadata = tiny(
        tokens=["a", "b", "ab", "c", *names], token_type=[NORMAL] * 4 + kinds, bos_token_id=None, eos_token_id=None
    )
    ours = Tokenizer.from_gguf(metadata)
    assert (ours.vocab_size, len(ours)) == sizes
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True), 4):
        if kind in (CONTROL, USER):
            assert ours.encode(f"ab{name}c") == [2, number, 3]
            assert ours.decode([number], skip_special_tokens=True) == ("" if kind == CONTROL else name)


@pytest.mark.parametrize("kind", [UNKNOWN, UNUSED])
def test_a_special_token_is_added_whatever_its_token_type(kind: int) -> None:
    tokens, kinds = ["a", "b", "ab", "c", "<s>", "</s>", "<pad>"], [NORMAL] * 4 + [CONTROL] * 2 + [kind]
    ours = Tokenizer.from_gguf(tiny(tokens=tokens, token_type=kinds, padding_token_id=6))
    assert (ours.pad_token, ours.pad_token_id, ours.decode([6, 2], True)) == ("<pad>", 6, "ab")


def test_a_special_token_of_normal_type_stays_a_word() -> None:
    ours = Tokenizer.from_gguf(tiny(unknown_token_id=0))
    assert (ours.unk_token_id, ours.encode("aab"), ours.decode([0, 2], skip_special_tokens=True)) == (0, [0, 2], "aab")


@pytest.mark.parametrize("template", [None, 7])
def test_gguf_without_template_and_context_length(template: Any) -> None:
    ours = Tokenizer.from_gguf(tiny() | {"tokenizer.chat_template": template, "llama.context_length": 9})
    assert (ours.chat_template, ours.model_max_length) == (None, 10**30)


# Files --------------------------------------------------------------------------------------------------------------


def write(path: Path, metadata: Metadata) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in metadata.items():
        add = {str: writer.add_string, int: writer.add_uint32, bool: writer.add_bool, list: writer.add_array}
        add[type(value)](name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_with_nothing_but_a_tokenizer(tmp_path: Path) -> None:
    ours = AutoTokenizer.from_pretrained(write(tmp_path / "tiny.gguf", tiny(add_bos_token=True)))
    assert ours.encode("abc") == [4, 2, 3]


def test_a_tokenizer_error_names_the_gguf_file(tmp_path: Path) -> None:
    path = write(tmp_path / "other.gguf", tiny(model="rwkv"))
    with pytest.raises(CheckpointError, match=r"other\.gguf: .*'rwkv'"):
        AutoTokenizer.from_pretrained(path)


MISFIT = "GGUF's vocabulary and merges do not fit together"
BROKEN: list[tuple[dict[str, Any], str]] = [
    (
        {"model": "rwkv"},
        "tokenizer is of the kind 'rwkv' (RWKV's greedy match of the longest byte string), which is not supported",
    ),
    ({"model": "plamo2"}, "tokenizer is of the kind 'plamo2' (PLaMo 2's own Unigram over suffixes), which is not supported"),
    ({"model": "hybriddna"}, "tokenizer is of the kind 'hybriddna'"),
    ({"model": "none"}, "tokenizer is of the kind 'none' (no vocabulary at all), which is not supported"),
    ({"model": "gpt5"}, "'tokenizer.ggml.model' is 'gpt5'; only 'gpt2', 'llama', 'bert', 't5', 'gemma4', 'whitespace' can"),
    (
        {"model": None},
        "'tokenizer.ggml.model' is None; only 'gpt2', 'llama', 'bert', 't5', 'gemma4', 'whitespace' can be read",
    ),
    ({"model": ["gpt2"]}, "'tokenizer.ggml.model' is ['gpt2']; only"),
    (
        {"pre": "qwen-2"},
        "'qwen-2', which is no pre-tokenizer that llama.cpp or this program knows. Did you mean 'qwen",
    ),
    ({"pre": ["qwen2"]}, "'tokenizer.ggml.pre' is ['qwen2'], which is no pre-tokenizer"),
    ({"tokens": None}, "'tokenizer.ggml.tokens' is missing"),
    ({"token_type": None}, "'tokenizer.ggml.token_type' is missing"),
    ({"merges": None}, "'tokenizer.ggml.merges' is missing"),
    ({"merges": "a b"}, "'tokenizer.ggml.merges' is missing"),
    ({"token_type": [NORMAL]}, "GGUF lists 6 tokens but 1 token types"),
    ({"merges": ["a x"]}, MISFIT),
    ({"merges": ["a c"]}, MISFIT),
    ({"merges": ["ab"]}, MISFIT),
    ({"merges": [7]}, MISFIT),
    ({"tokens": [1, 2, 3, 4, 5, 6]}, "'tokenizer.ggml.tokens' holds more than texts"),
    ({"bos_token_id": 6}, "'tokenizer.ggml.bos_token_id' is 6, outside the vocabulary"),
    ({"eos_token_id": -1}, "'tokenizer.ggml.eos_token_id' is -1, outside the vocabulary"),
    ({"padding_token_id": "</s>"}, "'tokenizer.ggml.padding_token_id' is '</s>', outside the vocabulary"),
    ({"unknown_token_id": 2**32}, "'tokenizer.ggml.unknown_token_id' is 4294967296, outside the vocabulary"),
    ({"tokens": ["a", "b", "ab", "c", "<s>", "<s>"]}, "GGUF's token 5, '<s>', is empty or stands twice"),
    ({"tokens": ["a", "b", "ab", "c", "", "</s>"]}, "GGUF's token 4, '', is empty or stands twice"),
    ({"tokens": ["a", "b", "ab", "a", "<s>", "</s>"]}, "is empty or stands twice"),
]


@pytest.mark.parametrize(("changes", "words"), BROKEN, ids=[repr(changes) for changes, _ in BROKEN])
def test_broken_tokenizer_metadata_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_gguf(tiny(**changes))
    assert words in str(caught.value)
