"""SentencePiece's files, read as the library that wrote them reads them, and as the reference does."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer import AutoTokenizer
from glassformer.ground.errors import CheckpointError
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.sentencepiece import Malformed, fields
from tests.parity.reference import transformers
from tests.sweeps import examples
from tests.text import models
from tests.text.models import ALBERT, DEBERTA, GEMMA, LLAMA, PLAIN, T5, XLM_ROBERTA, processor, trained
from tests.text.test_legacy_vocabulary import NAMES, Files, config_files, write
from tests.text.texts import EMOJI, MARKS, NUMBERS, SCRIPTS, WORDS, texts

some = settings(max_examples=examples(15, 40), deadline=None)
prose = st.lists(st.sampled_from(" ".join(models.PROSE).split()), max_size=8).map(" ".join)
# without tokens in the text, which SentencePiece does not know, and without the last of the marks: the library at hand
# composes no letters of six bytes and more
spaced = st.lists(st.sampled_from([*WORDS[:4], *SCRIPTS, *MARKS[:-1], *EMOJI, *NUMBERS, " ", "  "]) | prose, max_size=8).map(
    "".join
)

KEPT = {"remove_extra_whitespaces": False}
OPTIONS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "spelt in bytes": {"byte_fallback": True, "vocab_size": 420},
    "no space before": {"add_dummy_prefix": False},
    "spaces kept": KEPT,
    "spaces kept, none before": {**KEPT, "add_dummy_prefix": False},
    "characters as they are": PLAIN,
    "folded": {"normalization_rule_name": "nfkc_cf"},
    "whole symbols": {"user_defined_symbols": ["<sym>", "(x)"]},
    "whole symbols, spaces kept, bytes": {
        **KEPT, "user_defined_symbols": ["<sym>"], "byte_fallback": True, "vocab_size": 420, "add_dummy_prefix": False,
    },
}  # fmt: skip


@pytest.fixture(params=[(kind, name) for kind in ("unigram", "bpe") for name in OPTIONS], ids=" ".join, scope="session")
def with_the_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    kind, name = request.param
    raw = trained(model_type=kind, **OPTIONS[name])
    folder = write(tmp_path_factory.mktemp("pieces"), {"tokenizer.model": raw})
    return AutoTokenizer.from_pretrained(folder), processor(raw)


@some
@given(text=spaced)
def test_any_text_encodes_like_the_sentencepiece_library(with_the_library: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = with_the_library
    assert ours.encode(text) == theirs.encode(text)
    ids = ours.encode(text)
    if theirs.unk_id() not in ids:
        assert ours.decode(ids) == theirs.decode(ids)


def test_control_and_user_defined_symbols_match_the_sentencepiece_library(with_the_library: tuple[Tokenizer, Any]) -> None:
    ours, theirs = with_the_library
    for text in ("the <sym> fox", "a<sym>fox<sym>", "the  (x) fox <sym>"):
        if "<sym>" in ours.vocab:
            assert ours.encode(text) == theirs.encode(text)
    assert ours.convert_ids_to_tokens(range(len(ours))) == [theirs.id_to_piece(n) for n in range(theirs.vocab_size())]
    assert (ours.bos_token_id, ours.eos_token_id, ours.unk_token_id) == (theirs.bos_id(), theirs.eos_id(), theirs.unk_id())
    assert ours.pad_token is None


LAYOUTS: dict[str, tuple[str, dict[str, Any], Files]] = {
    "t5": ("spiece.model", T5, config_files("T5Tokenizer")),
    "t5 by its model": ("spiece.model", T5, config_files(model_type="t5", model_max_length=20)),
    "t5 with few sentinels": (
        "spiece.model", T5,
        config_files("T5TokenizerFast", extra_ids=2, additional_special_tokens=["<extra_id_0>", "<extra_id_1>"]),
    ),
    "t5 without sentinels": ("spiece.model", T5, config_files("T5Tokenizer", extra_ids=0)),
    "t5 with whole symbols": ("spiece.model", {**T5, "user_defined_symbols": ["<sym>"]}, config_files("T5Tokenizer")),
    "t5, folded": ("spiece.model", {**T5, "normalization_rule_name": "nfkc_cf"}, config_files("T5Tokenizer")),
    "t5, identity": ("spiece.model", {**T5, "normalization_rule_name": "identity"}, config_files("T5Tokenizer")),
    "pegasus": ("spiece.model", T5, config_files("PegasusTokenizer")),
    "pegasus by its model": ("spiece.model", T5, config_files(model_type="pegasus", model_max_length=20)),
    "pegasus, identity": ("spiece.model", {**T5, "normalization_rule_name": "identity"}, config_files("PegasusTokenizer")),
    "llama": ("tokenizer.model", LLAMA, config_files("LlamaTokenizer", add_bos_token=True)),
    "llama with an end": ("tokenizer.model", LLAMA, config_files("LlamaTokenizer", model_type="llama", add_eos_token=True)),
    "llama of old": ("tokenizer.model", LLAMA, config_files("LlamaTokenizerFast", legacy=True, pad_token="</s>")),
    "llama without a space": ("tokenizer.model", LLAMA, config_files("LlamaTokenizer", add_prefix_space=False)),
    "llama with more tokens": (
        "tokenizer.model", LLAMA,
        {**config_files("LlamaTokenizer", pad_token="<pad>"), "added_tokens.json": {"<pad>": 420, "<late>": 421}},
    ),
    "gemma": ("tokenizer.model", GEMMA, config_files("GemmaTokenizer", add_bos_token=True)),
    "gemma by its model": ("tokenizer.model", GEMMA, config_files(model_type="gemma3_text")),
    "xlm-roberta": ("sentencepiece.bpe.model", XLM_ROBERTA, config_files("XLMRobertaTokenizer")),
    "xlm-roberta by its model": (
        "sentencepiece.bpe.model", XLM_ROBERTA, config_files(model_type="xlm-roberta", model_max_length=20),
    ),
    "xlm-roberta without a space": (
        "sentencepiece.bpe.model", XLM_ROBERTA, config_files("XLMRobertaTokenizerFast", add_prefix_space=False),
    ),
    "albert": ("spiece.model", ALBERT, config_files("AlbertTokenizer")),
    "albert by its model": ("spiece.model", ALBERT, config_files(model_type="albert")),
    "albert, letters as they are": (
        "spiece.model", ALBERT, config_files("AlbertTokenizerFast", do_lower_case=False, keep_accents=True),
    ),
    "deberta": ("spm.model", DEBERTA, config_files("DebertaV2Tokenizer")),
    "deberta by its model": ("spm.model", DEBERTA, config_files(model_type="deberta-v2")),
    "deberta, split at punctuation": (
        "spm.model", DEBERTA, config_files("DebertaV2TokenizerFast", split_by_punct=True, do_lower_case=True),
    ),
    "mistral without a space": ("tokenizer.model", {**LLAMA, "add_dummy_prefix": False}, config_files(model_type="mistral")),
}  # fmt: skip
TOKENS = [
    "[CLS]",
    "[MASK]",
    "``x''",
    "<extra_id_0>",
    "<extra_id_7>",
    "<mask_1>",
    "<unk_7>",
    "<s>",
    "</s>",
    "<turn>",
    "<mask>",
    "<sym>",
    "<pad>",
    "<late>",
    "\n",
    "\t",
    "▁",
]
salted = st.lists(st.sampled_from(TOKENS) | texts | prose, max_size=5).map("".join)


@pytest.fixture(params=LAYOUTS, scope="session")
def with_the_reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    name, options, files = LAYOUTS[request.param]
    folder = write(tmp_path_factory.mktemp("pieces"), {name: trained(**options), **files})
    return AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


@some
@given(first=salted, second=salted)
def test_any_text_encodes_like_the_reference_class(
    with_the_reference: tuple[Tokenizer, Any], first: str, second: str
) -> None:
    ours, theirs = with_the_reference
    for given_ in ((first,), (first, second)):
        options = {"return_offsets_mapping": True, "return_token_type_ids": True, "return_special_tokens_mask": True}
        found, expected = (one(*given_, **options) for one in with_the_reference)
        assert dict(found) == dict(expected)
    ids = ours.encode(first)
    for skip in (True, False):
        assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_special_tokens_and_ids_match_the_reference_class(with_the_reference: tuple[Tokenizer, Any], tmp_path: Path) -> None:
    ours, theirs = with_the_reference
    assert (ours.vocab_size, len(ours), ours.vocab) == (theirs.vocab_size, len(theirs), theirs.get_vocab())
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert (ours.all_special_tokens, ours.all_special_ids) == (theirs.all_special_tokens, theirs.all_special_ids)
    assert (ours.padding_side, {*ours.model_input_names}) == (theirs.padding_side, {*theirs.model_input_names})
    for name in NAMES:
        assert getattr(ours, f"{name}_token") == getattr(theirs, f"{name}_token")
    ours.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.encode("the <extra_id_0> fox") == ours.encode("the <extra_id_0> fox")


def test_another_offset_than_pegasus_has_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, {"spiece.model": trained(**T5), **config_files("PegasusTokenizer", offset=0)})
    with pytest.raises(CheckpointError, match=r"has offset 0, and 103 alone is supported\. Fetch its tokenizer\.json"):
        Tokenizer.from_folder(folder)


SPM: dict[str, Any] = {"model_type": "unigram", "unk_id": 0, "bos_id": -1, "eos_id": 1, "pad_id": -1}


def marian(folder: Path, **files: Any) -> Path:
    """A folder as the OPUS models have it: a model for each language, and one vocabulary for both."""
    source, target = (trained(**SPM, vocab_size=size) for size in (120, 150))
    pieces = [processor(raw).id_to_piece(n) for raw in (target, source) for n in range(2, processor(raw).vocab_size())]
    tokens = list(dict.fromkeys(["</s>", "<unk>", *pieces, ">>fra<<", "<pad>"]))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    content = {"source.spm": source, "target.spm": target, "vocab.json": vocabulary, **config_files("MarianTokenizer")}
    return write(folder, {**content, **files})


@pytest.fixture(scope="session")
def both_marians(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    folder = marian(tmp_path_factory.mktemp("marian"))
    with warnings.catch_warnings(action="ignore"):  # it recommends another package
        return AutoTokenizer.from_pretrained(folder), transformers.MarianTokenizer.from_pretrained(folder)


@some
@given(text=prose | st.lists(st.sampled_from(["the", " dog", ">>fra<<", "</s>", "  ", "?", "🫠"]), max_size=6).map("".join))
def test_marian_reads_with_its_source_and_counts_with_its_vocabulary(both_marians: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = both_marians
    if ">>fra<<" in text[1:]:  # a language is named at the beginning
        return
    assert ours.encode(text) == theirs.encode(text)
    ids = ours.encode(text)
    if ours.unk_token_id not in ids:
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)


def test_marians_pairs_and_special_tokens(both_marians: tuple[Tokenizer, Any], tmp_path: Path) -> None:
    ours, theirs = both_marians
    assert ours("the dog", "how are you")["input_ids"] == theirs("the dog", "how are you")["input_ids"]
    assert (len(ours), ours.vocab) == (len(theirs), theirs.get_vocab())
    for name in ("eos", "unk", "pad"):
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")
    by_its_model = marian(tmp_path, **{"tokenizer_config.json": {}, "config.json": {"model_type": "marian"}})
    assert AutoTokenizer.from_pretrained(by_its_model).encode("the dog") == ours.encode("the dog")


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"</s>": 0, "<unk>": 2}, "its ids do not count from 0 without a gap"),
        ({"</s>": 0, "a": 1}, "lacks the token for unknown text, '<unk>'"),
        ({}, "holds no tokens"),
    ],
)
def test_broken_vocabularies_of_marian_are_refused(vocabulary: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_folder(marian(tmp_path, **{"vocab.json": vocabulary}))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "vocab.json"))


def test_t5_sentinels(tmp_path: Path) -> None:
    ours = AutoTokenizer.from_pretrained(write(tmp_path, {"spiece.model": trained(**T5), **config_files("T5Tokenizer")}))
    count = processor(trained(**T5)).vocab_size()
    assert (ours.convert_tokens_to_ids("<extra_id_99>"), ours.convert_tokens_to_ids("<extra_id_0>")) == (count, count + 99)
    assert ours.tokenize("the <extra_id_0> fox")[1] == "<extra_id_0>"


def test_sentencepiece_options_that_the_class_does_not_set(tmp_path: Path) -> None:
    """The reference's T5 knows neither of these options; what was trained with them is read with them."""
    raw = trained(**{**T5, "byte_fallback": True, "vocab_size": 420})
    ours = AutoTokenizer.from_pretrained(write(tmp_path / "bytes", {"spiece.model": raw, **config_files("T5Tokenizer")}))
    assert ours.encode("the 🫠")[:-1] == processor(raw).encode("the 🫠")
    assert ours.decode(ours.encode("the 🫠"), skip_special_tokens=True) == "the 🫠"
    raw = trained(**{**T5, "add_dummy_prefix": False})
    ours = AutoTokenizer.from_pretrained(write(tmp_path / "bare", {"spiece.model": raw, **config_files("T5Tokenizer")}))
    assert ours.encode("the fox")[:-1] == processor(raw).encode("the fox")
    raw = trained(**LLAMA)
    ours = AutoTokenizer.from_pretrained(
        write(tmp_path / "mistral", {"tokenizer.model": raw, **config_files(model_type="mistral")})
    )
    assert ours.encode("  the fox") == processor(raw).encode("  the fox")


# added_tokens.json beside older vocabularies -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens.json": {"<one>": 30522, "<two>": 30523}},
        {"added_tokens.json": {"<two>": 30523, "<One>": 30522}, **config_files("BertTokenizer", mask_token="<two>")},
        {"added_tokens.json": {"<One>": 30522}, "special_tokens_map.json": {"pad_token": "<One>"}},
        {"added_tokens.json": {"<one>": 30522}, **config_files("BertTokenizer", added_tokens_decoder={})},
        {"added_tokens.json": {"<far>": 40000}, **config_files("BertTokenizer", additional_special_tokens=["<more>"])},
    ],
    ids=str,
)
def test_added_tokens_json(files: Files, words: list[str], tmp_path: Path) -> None:
    write(tmp_path, {"vocab.txt": words, **config_files("BertTokenizer"), **files})
    ours, theirs = AutoTokenizer.from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (ours.vocab, ours.get_added_vocab()) == (theirs.get_vocab(), theirs.get_added_vocab())
    for text in ("a <one>b<two> <One> x", "<far><more> MASK [MASK]"):
        assert dict(ours(text)) == dict(theirs(text))
        assert ours.decode(ours.encode(text), True) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


@pytest.mark.parametrize("content", [{"<x>": "7"}, {"<x>": None}])
def test_broken_added_tokens_json_is_refused(content: Any, words: list[str], tmp_path: Path) -> None:
    write(tmp_path, {"vocab.txt": words, "added_tokens.json": content})
    with pytest.raises(CheckpointError, match=r"added_tokens\.json"):
        AutoTokenizer.from_pretrained(tmp_path)


# What cannot be read -------------------------------------------------------------------------------------------------


def block(number: int, raw: bytes) -> bytes:
    assert len(raw) < 128
    return bytes([number << 3 | 2, len(raw)]) + raw


def piece(token: bytes, score: float = -1.0, kind: int | None = None) -> bytes:
    return block(1, block(1, token) + b"\x15" + struct.pack("<f", score) + (b"" if kind is None else bytes([0x18, kind])))


UNKNOWN = piece(b"<unk>", 0.0, 2)
NONE = "is no SentencePiece model ("
BROKEN: list[tuple[bytes, str]] = [
    (b"", "holds no pieces"),
    (b"\x00", NONE + "byte 1 begins a field without a number"),
    (b"\xff" * 20, NONE + "a number ends nowhere"),
    (b"\x80", NONE + "a number ends nowhere"),
    (b"\x0a\x7fab", NONE + "field 1 at byte 2 claims 127 bytes where 2 are left"),
    (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7fab", "bytes where 2 are left"),
    (b"\x0d\x00", "claims 4 bytes where 1 are left"),
    (b"\x0b", NONE + "byte 1 begins a field of the unknown kind 3"),
    (b"\x08\x05", NONE + "a piece is a number where a message belongs"),
    (UNKNOWN + b"\x10\x05", NONE + "field 2 is a number where a message belongs"),
    (UNKNOWN + block(1, b"\x08\x05"), NONE + "piece 1 is no text with a score and a kind"),
    (UNKNOWN + piece(b"a", kind=9), NONE + "piece 1 is no text with a score and a kind"),
    (UNKNOWN + piece(b""), NONE + "piece 1 has no text or no score"),
    (UNKNOWN + piece(b"a", float("nan")), NONE + "piece 1 has no text or no score"),
    (UNKNOWN + piece(b"\xff\xfe"), NONE + "'utf-8' codec can't decode"),
    (UNKNOWN + block(2, b"\x18\x04"), "was trained with algorithm 4, which is neither Unigram nor BPE"),
    (piece(b"a"), "names no token for unknown text"),
    (UNKNOWN + piece(b"a") + piece(b"a") + block(2, b"\x18\x02"), "'s token 1, 'a', stands twice"),
    (UNKNOWN + piece(b"a") + block(3, block(2, b"\x01\x02")), "its pieces do not make a tokenizer ("),
]


@pytest.mark.parametrize(("raw", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_broken_sentencepiece_files_are_refused(raw: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_folder(write(tmp_path, {"tokenizer.model": raw}))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "tokenizer.model"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            config_files("CamembertTokenizer"),
            "its tokenizer_class is 'CamembertTokenizer', for which this file is not enough",
        ),
        (config_files(model_type="camembert"), "its model_type is 'camembert', for which this file is not enough"),
        (config_files("BertTokenizer"), "its tokenizer_class is 'BertTokenizer', for which this file is not enough"),
        (config_files("T5Tokenizer", extra_ids="many"), "'extra_ids' is 'many', which is no number of tokens"),
        (config_files("T5Tokenizer", extra_ids=10**9), "'extra_ids' is 1000000000, which is no number of tokens"),
    ],
)
def test_broken_sentencepiece_folders_are_refused(files: Files, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_folder(write(tmp_path, {"spiece.model": trained(**T5), **files}))
    assert message in str(caught.value)


@settings(max_examples=examples(50, 150), deadline=None)
@given(data=st.data())
def test_any_damage_to_a_sentencepiece_file_is_refused_or_harmless(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = bytearray(trained(**T5))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    for at in data.draw(st.lists(st.integers(0, max(0, len(raw) - 1)), max_size=4)):
        if raw:
            raw[at] = data.draw(st.integers(0, 255))
    folder = write(tmp_path_factory.mktemp("damaged"), {"spiece.model": bytes(raw)})
    message = f"{folder}"
    try:
        Tokenizer.from_folder(folder).encode("the quick fox 🫠 ½")
    except CheckpointError as error:
        message = str(error)
    assert message.startswith((str(folder), "the tokenizer's files do not let this text be encoded"))


@given(raw=st.binary(max_size=60))
def test_any_bytes_are_protobuf_fields_or_malformed(raw: bytes) -> None:
    try:
        numbers = [number for number, _ in fields(raw)]
    except Malformed:
        numbers = []
    assert all(number > 0 for number in numbers)


def test_protobuf_fields_of_every_wire_type() -> None:
    raw = b"\x08\x96\x01" + block(2, b"hi") + b"\x1d" + struct.pack("<f", 0.5) + b"\x21" + struct.pack("<d", 0.25)
    negative = b"\x28" + b"\xff" * 9 + b"\x01"
    assert list(fields(raw + negative)) == [(1, 150), (2, b"hi"), (3, 0.5), (4, 0.25), (5, -1)]
