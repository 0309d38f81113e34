"""Every kind of tokenizer beside its reference: any text gives the same ids at the same places, and comes back.

The quick test tries a hundred texts of each kind and one line of 100 kB; the sweep, 5,000.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer import AutoTokenizer
from glassformer.text import Tokenizer
from tests.parity.reference import transformers
from tests.sweeps import examples
from tests.text.models import GEMMA, LLAMA, PROSE, T5, trained
from tests.text.test_gguf_tokenizers import bert, gguf_fields
from tests.text.test_legacy_vocabulary import config_files, write
from tests.text.texts import SALT, encodable_bytes, texts

MORE = [
    "[MASK]",
    "<extra_id_0>",
    "<turn>",
    "\u0300",
    "\u20dd",
    "\u202e",
    "\x0b",
    "\x85",
    "\u2028",
    "▁",
    "##ing",
    "ß",
    "İ",
    "ǅ",
]
SPECIAL = ("<unk>", "<s>", "</s>")
any_text = st.lists(st.sampled_from([*MORE, *PROSE]) | texts, max_size=5).map("".join)
LINE = "".join([*SALT, *MORE, *PROSE, " "]).replace("\n", " ").replace("\r", " ")
LINE = (LINE * (100_000 // len(LINE) + 1))[:100_000]


@dataclass
class Pair:
    ours: Tokenizer
    theirs: Any
    lossless: str = ""  # "bytes" where every text comes back, "pieces" where a space stands for ▁ too
    comparable: Callable[[str], bool] = lambda text: True


def _reloaded(ours: Tokenizer, folder: Path) -> Any:
    ours.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def _both(folder: Path, files: dict[str, Any], **more: Any) -> Pair:
    write(folder, files)
    return Pair(AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder), **more)


def _scored(raw: bytes, kind: str, **more: Any) -> dict[str, Any]:
    """The fields that the field's converter makes of a SentencePiece model."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(raw)
    trainer, normal = model.trainer_spec, model.normalizer_spec
    named = {"bos": trainer.bos_id, "eos": trainer.eos_id, "unknown": trainer.unk_id, "padding": trainer.pad_id}
    return gguf_fields(
        model=kind,
        tokens=[piece.piece for piece in model.pieces] + [f"[PAD{n}]" for n in range(128 if kind == "t5" else 0)],
        scores=[piece.score for piece in model.pieces] + [-10000.0] * (128 if kind == "t5" else 0),
        token_type=[piece.type for piece in model.pieces] + [5] * (128 if kind == "t5" else 0),
        precompiled_charsmap=list(normal.precompiled_charsmap) or None,
        add_space_prefix=normal.add_dummy_prefix,
        remove_extra_whitespaces=normal.remove_extra_whitespaces,
        **{f"{name}_token_id": number for name, number in named.items() if number >= 0},
        **more,
    )


def tokenizer_pair(kind: str, folder: Path, want: Callable[[str], Any]) -> Pair:
    """Ours and the reference's; `want` is where the real tokenizers come from."""
    if kind == "qwen3":
        path = want("qwen3_tokenizer")
        return Pair(AutoTokenizer.from_pretrained(path), transformers.AutoTokenizer.from_pretrained(path), lossless="bytes")
    if kind == "gpt2":
        path = want("gpt2_tokenizer")
        return Pair(AutoTokenizer.from_pretrained(path), transformers.AutoTokenizer.from_pretrained(path), lossless="bytes")
    if kind == "smollm2 GGUF":  # the reference does not know how its digits are split; what ours saves, it does
        ours = AutoTokenizer.from_pretrained(want("smollm2"))
        return Pair(ours, _reloaded(ours, folder), lossless="bytes")
    if kind in ("uncased words", "cased words", "GGUF words"):
        small = kind != "cased words"
        pair = _both(folder, {"vocab.txt": want("words"), **config_files("BertTokenizer", do_lower_case=small)})
        return Pair(Tokenizer.from_gguf(bert(want("words"))), pair.theirs) if kind == "GGUF words" else pair
    if kind in ("merges", "framed merges"):
        vocabulary, lines = want("pairs")
        files = {"vocab.json": vocabulary, "merges.txt": ["#version: 0.2", *lines]}
        return _both(
            folder, {**files, **config_files("GPT2Tokenizer" if kind == "merges" else "RobertaTokenizer")}, lossless="bytes"
        )
    options, name, files = {
        "t5 pieces": (T5, "spiece.model", config_files("T5Tokenizer")),
        "llama pieces": (LLAMA, "tokenizer.model", config_files("LlamaTokenizer", add_bos_token=True)),
        "gemma pieces": (GEMMA, "tokenizer.model", config_files("GemmaTokenizer", add_bos_token=True)),
    }[kind.removeprefix("GGUF ")]
    pair = _both(folder, {name: trained(**options), **files}, lossless="pieces" if "gemma" in kind else "")
    if kind.startswith("GGUF"):
        pair.ours = Tokenizer.from_gguf(_scored(trained(**options), "t5" if "t5" in kind else "llama"))
    if kind == "GGUF llama pieces":
        # llama.cpp puts a space before every text and after every token in it; the reference before a text alone, and
        # not where one stands already
        pair.comparable = lambda text: not text.startswith((" ", "▁")) and not any(one in text for one in SPECIAL)
    if kind == "GGUF t5 pieces":  # the rows behind the blanks have a spelling here, which text could have too
        pair.comparable = lambda text: "[PAD" not in text
    return pair


KINDS = [
    "qwen3", "gpt2", "smollm2 GGUF", "uncased words", "cased words", "GGUF words", "merges", "framed merges",
    "t5 pieces", "llama pieces", "gemma pieces", "GGUF t5 pieces", "GGUF llama pieces", "GGUF gemma pieces",
]  # fmt: skip


@pytest.fixture(params=KINDS, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return tokenizer_pair(request.param, tmp_path_factory.mktemp("kind"), request.getfixturevalue)


def assert_same_encoding(pair: Pair, text: str) -> None:
    if not pair.comparable(text):
        return
    found, expected = (one(text, return_offsets_mapping=True) for one in (pair.ours, pair.theirs))
    assert found["input_ids"] == expected["input_ids"]
    assert found["offset_mapping"] == expected["offset_mapping"]
    assert pair.ours.decode(found["input_ids"]) == pair.theirs.decode(expected["input_ids"])
    if pair.lossless:
        back = pair.ours.decode(pair.ours.encode(text, add_special_tokens=False))
        assert back == (
            text.replace("▁", " ")
            if pair.lossless == "pieces"
            else encodable_bytes(pair.ours, text).decode(errors="replace")
        )


@settings(max_examples=examples(25, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=any_text)
def test_any_text_encodes_like_the_reference(pair: Pair, text: str) -> None:
    assert_same_encoding(pair, text)


@pytest.mark.sweep
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=any_text)
def test_very_many_texts_encode_like_the_reference(pair: Pair, text: str) -> None:
    assert_same_encoding(pair, text)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(LINE, id="salted"),
        pytest.param("the " * 25_000, id="the", marks=pytest.mark.sweep),
        pytest.param("x" * 5_000, id="x"),
        pytest.param("x" * 20_000, id="many x", marks=pytest.mark.sweep),
        pytest.param("🫠" * 10_000, id="emoji", marks=pytest.mark.sweep),
    ],
)
def test_a_very_long_line_encodes_like_the_reference(pair: Pair, line: str) -> None:
    assert_same_encoding(pair, line)


@pytest.fixture(scope="module")
def tiktoken_pair(cl100k: Path, tiktoken_cl100k: Any) -> tuple[Tokenizer, Any]:
    return Tokenizer.from_tiktoken(cl100k), tiktoken_cl100k


def assert_same_ids_as_tiktoken(tiktoken_pair: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = tiktoken_pair
    ids = ours.encode(text)
    assert ids == theirs.encode(text, allowed_special="all")
    assert ours.decode(ids) == text


@settings(max_examples=examples(25, 100), deadline=None)
@given(text=any_text)
def test_any_text_encodes_like_tiktoken(tiktoken_pair: tuple[Tokenizer, Any], text: str) -> None:
    assert_same_ids_as_tiktoken(tiktoken_pair, text)


@pytest.mark.sweep
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=any_text)
def test_very_many_texts_encode_like_tiktoken(tiktoken_pair: tuple[Tokenizer, Any], text: str) -> None:
    assert_same_ids_as_tiktoken(tiktoken_pair, text)


def test_a_very_long_line_encodes_like_tiktoken(tiktoken_pair: tuple[Tokenizer, Any]) -> None:
    assert_same_ids_as_tiktoken(tiktoken_pair, LINE)


def test_t5_sentinels_of_a_gguf_file(tmp_path: Path) -> None:
    """The converter calls them [PAD0], [PAD1], … behind the pieces; the rows that only round up keep that name."""
    fields = _scored(trained(**T5), "t5")
    count = fields["tokenizer.ggml.tokens"].index("[PAD0]")
    ours = Tokenizer.from_gguf(fields)
    assert ours.convert_ids_to_tokens([count, count + 99, count + 100]) == ["<extra_id_99>", "<extra_id_0>", "[PAD100]"]
    assert ours.decode(ours.encode("the <extra_id_0> fox"), skip_special_tokens=True) == "the fox"
    assert fields["tokenizer.ggml.tokens"][count] == "[PAD0]"  # the metadata is as it was
    few = {name: value[: count + 20] if isinstance(value, list) else value for name, value in fields.items()}
    few["tokenizer.ggml.precompiled_charsmap"] = fields["tokenizer.ggml.precompiled_charsmap"]
    assert Tokenizer.from_gguf(few).convert_ids_to_tokens(count) == "[PAD0]"  # too few to be T5's blanks
