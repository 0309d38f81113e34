"""The options of calling a tokenizer, and what its result can be asked: the reference's answers, or a sentence."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from glassformer import AutoTokenizer
from glassformer.ground.errors import GlassError, InputError, InputTypeError
from glassformer.text import BatchEncoding, Tokenizer
from tests.parity.reference import transformers
from tests.sweeps import examples
from tests.text.test_legacy_vocabulary import config_files, write
from tests.text.texts import texts

KINDS = ("bert", "gpt2", "roberta", "t5-like")
some = settings(max_examples=examples(8, 20), deadline=None)
few = settings(max_examples=examples(5, 12), deadline=None)
QUESTION = "Who was the first?"
CONTEXT = "The first was long ago. Nobody remembers who it was, but the naïve say that it was a fox – or a dog."


@pytest.fixture(params=KINDS, scope="session")
def duo(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, words: list[str], pairs: tuple[Any, Any]
) -> tuple[Tokenizer, Any]:
    """Ours and the reference's: with tokens around each text, without, and with two between two."""
    folder = tmp_path_factory.mktemp("duo")
    vocabulary, merges = pairs
    level = {"vocab.json": vocabulary, "merges.txt": ["#version: 0.2", *merges]}
    files = {
        "bert": {"vocab.txt": words, **config_files("BertTokenizer")},
        "gpt2": {**level, **config_files("GPT2Tokenizer", pad_token="<|endoftext|>")},
        "roberta": {**level, **config_files("RobertaTokenizer")},
        "t5-like": {
            **level,
            **config_files("GPT2Tokenizer", add_eos_token=True, pad_token="<|endoftext|>", padding_side="left"),
        },
    }[request.param]
    write(folder, files)
    return AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


def outcome(tokenizer: Any, *given_: Any, **options: Any) -> Any:
    """What comes back, or that there is no such thing; the reference panics where ours raises."""
    try:
        return dict(tokenizer(*given_, **options))
    except BaseException as error:
        return "refused" if "PanicException" in repr(type(error)) or isinstance(error, Exception) else error


EVERYTHING = {
    "return_overflowing_tokens": True, "return_length": True, "return_offsets_mapping": True,
    "return_special_tokens_mask": True, "return_token_type_ids": True,
}  # fmt: skip


@few
@given(
    batch=st.lists(st.tuples(texts, texts), min_size=1, max_size=2),
    limit=st.integers(6, 16),  # room for both texts
    stride=st.integers(0, 4),
    way=st.sampled_from([True, "only_first", "only_second"]),
    side=st.sampled_from(["left", "right"]),
    padding=st.sampled_from([False, True, "max_length"]),
)
def test_any_overflow_windows_match_the_reference(
    duo: tuple[Tokenizer, Any], batch: list[Any], limit: int, stride: int, way: Any, side: str, padding: Any
) -> None:
    ours, theirs = (copy.copy(one) for one in duo)
    ours.truncation_side = theirs.truncation_side = side
    options = {"truncation": way, "max_length": limit, "stride": stride, "padding": padding, **EVERYTHING}
    firsts = [one for one, _ in batch]
    for given_ in ((batch,), (firsts,), (firsts[0],), batch[0]):
        expected = outcome(theirs, *given_, **options)
        found = outcome(ours, *given_, **options)
        if expected == "refused" and found != "refused":  # theirs looks at the stride even where nothing is cut
            assert len(found["overflow_to_sample_mapping"]) == len(firsts if isinstance(given_[0], list) else [0])
            continue
        assert found == expected


def test_overflow_windows_over_a_long_context(duo: tuple[Tokenizer, Any]) -> None:
    ours, _ = duo
    options = {"truncation": "only_second", "max_length": 20, "stride": 5, "padding": "max_length", **EVERYTHING}
    found, expected = (one([QUESTION] * 2, [CONTEXT, "Short."], **options) for one in duo)
    assert dict(found) == dict(expected)
    assert found["overflow_to_sample_mapping"][-1] == 1
    assert found["overflow_to_sample_mapping"].count(0) > 2
    for at in range(len(found["input_ids"])):
        for name in ("tokens", "word_ids", "sequence_ids"):
            assert getattr(found, name)(at) == getattr(expected, name)(at)
    for kind in ("np", "pt"):
        again = ours([QUESTION], [CONTEXT], return_tensors=kind, **options)
        assert again["input_ids"].shape == (len(again["overflow_to_sample_mapping"]), 20)
        assert again["overflow_to_sample_mapping"].tolist() == [0] * len(again["input_ids"])


word = st.sampled_from(["Hello", "naïve", "don't", "", " ", "👍🏽", "unaffable", "日本", "a b"]) | st.text(max_size=5)


@some
@given(batch=st.lists(st.tuples(st.lists(word, max_size=5), st.lists(word, max_size=5)), min_size=1, max_size=3))
def test_any_pretokenized_words_match_the_reference(
    duo: tuple[Tokenizer, Any], batch: list[tuple[list[str], list[str]]]
) -> None:
    firsts, seconds = [one for one, _ in batch], [two for _, two in batch]
    options = {"is_split_into_words": True, "padding": True, "return_offsets_mapping": True}
    for given_ in ((firsts,), (firsts, seconds), (firsts[0],), (firsts[0], seconds[0]), (batch,)):
        found, expected = (one(*given_, **options) for one in duo)
        assert dict(found) == dict(expected)
        for at in range(len(found.encodings or [])):
            assert found.word_ids(at) == expected.word_ids(at)
            assert found.tokens(at) == expected.tokens(at)


@some
@given(first=texts, second=texts, limit=st.sampled_from([None, 9]), side=st.sampled_from(["left", "right"]))
def test_any_token_char_word_lookup_matches_the_reference(
    duo: tuple[Tokenizer, Any], first: str, second: str, limit: int | None, side: str
) -> None:
    options = {"padding": "max_length", "max_length": limit or 60, "truncation": limit is not None, "padding_side": side}
    for given_ in ((first,), (first, second), ([first, second],)):
        found, expected = (one(*given_, **options) for one in duo)
        assert (found.n_sequences, found.is_fast) == (expected.n_sequences, True)
        for at, row in enumerate(expected.encodings):
            assert found.encodings[at].ids == row.ids == found[at].ids
            assert (found.tokens(at), found.sequence_ids(at)) == (expected.tokens(at), expected.sequence_ids(at))
            assert found.word_ids(at) == expected.word_ids(at)
            for token in range(len(row.ids)):
                for name in ("token_to_chars", "token_to_word", "token_to_sequence"):
                    assert getattr(found, name)(at, token) == getattr(expected, name)(at, token)
            for which in range(row.n_sequences):
                for place in range(12):
                    for name in ("char_to_token", "char_to_word", "word_to_tokens"):
                        assert getattr(found, name)(at, place, which) == getattr(expected, name)(at, place, which)
                    span = row.word_to_chars(place, which)
                    assert found.word_to_chars(at, place, which) == (None if span is None else tuple(span))


def test_lookups_out_of_range_are_refused(duo: tuple[Tokenizer, Any]) -> None:
    ours, _ = duo
    found = ours("Hello there")
    last = len(found["input_ids"]) - 1
    assert found.token_to_word(-1) == found.token_to_word(last) == found.token_to_word(0, last)
    span = found.word_to_chars(1)
    assert span is not None
    assert "Hello there"[span.start : span.end].strip() == "there"
    assert found.word_to_tokens(99) is None
    assert found.char_to_token(7) is not None


def test_batch_encoding_copy_pickle_and_to(duo: tuple[Tokenizer, Any]) -> None:
    found = duo[0](["Hello there", "you"], padding=True)
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found)), found.to("cpu")):
        assert dict(again) == dict(found)
        assert again.tokens(1) == found.tokens(1)
    assert BatchEncoding({"input_ids": [[1], [2]]})[:1] == {"input_ids": [[1]]}
    with pytest.raises(KeyError):
        BatchEncoding({"input_ids": [[1], [2]]})[0]


@some
@given(
    batch=st.lists(texts, min_size=1, max_size=3),
    multiple=st.sampled_from([None, 1, 4, 8]),
    padding=st.sampled_from([False, True, "longest", "max_length"]),
    limit=st.sampled_from([None, 8, 12]),
    truncation=st.sampled_from([None, True, False]),
)
@pytest.mark.filterwarnings("ignore:`max_length` is ignored")
def test_any_padding_and_truncation_lengths_match_the_reference(
    duo: tuple[Tokenizer, Any], batch: list[str], multiple: Any, padding: Any, limit: Any, truncation: Any
) -> None:
    if padding == "max_length" and limit is None:
        return
    options = {"pad_to_multiple_of": multiple, "padding": padding, "max_length": limit, "truncation": truncation}
    options |= {"return_length": True, "verbose": False}
    for given_ in (batch, batch[0]):
        assert outcome(duo[0], given_, **options) == outcome(duo[1], given_, **options)


def test_text_target_gives_labels(duo: tuple[Tokenizer, Any]) -> None:
    for options in ({}, {"padding": True}, {"truncation": True, "max_length": 6}, {"return_offsets_mapping": True}):
        for given_ in (
            {"text": "translate this", "text_target": "dies"},
            {"text": ["one", "one two"], "text_target": ["eins", "eins zwei drei"]},
            {"text_target": "only this"},
            {"text": "a", "text_target": "b", "text_pair_target": "c"},
        ):
            found, expected = (one(**given_, **options) for one in duo)
            assert dict(found) == dict(expected)
    tensors = duo[0]("a", text_target="b c", return_tensors="pt")
    assert tensors["labels"].shape[0] == 1


def test_encode_takes_the_options(duo: tuple[Tokenizer, Any]) -> None:
    for options in (
        {"truncation": True, "max_length": 5}, {"max_length": 5}, {"padding": "max_length", "max_length": 12},
        {"add_special_tokens": False}, {"padding": "max_length", "max_length": 9, "padding_side": "left"},
        {"stride": 1, "truncation": True, "max_length": 6},
    ):  # fmt: skip
        ours, theirs = (one.encode("Hello there, how are you?", **options) for one in duo)
        assert ours == theirs
    assert duo[0].encode(["Hello", "there"], is_split_into_words=True) == duo[1].encode(
        ["Hello", "there"], is_split_into_words=True
    )
    assert duo[0].tokenize("Hello there", "you", add_special_tokens=True) == duo[1].tokenize(
        "Hello there", "you", add_special_tokens=True
    )


# Filling up afterwards -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {}, {"padding": "max_length", "max_length": 12}, {"pad_to_multiple_of": 8}, {"padding": False},
        {"padding_side": "left"}, {"return_attention_mask": False}, {"return_tensors": "np"}, {"return_tensors": "pt"},
    ],
    ids=str,
)  # fmt: skip
def test_pad_matches_the_reference(duo: tuple[Tokenizer, Any], options: dict[str, Any]) -> None:
    ours, _ = duo
    rows = [dict(ours(text, return_special_tokens_mask=True)) for text in ("Hello there, you", "Hi", "")]
    if options.get("padding") is False or ours.num_special_tokens_to_add() == 0:
        rows = rows[:2]
    if options.get("return_attention_mask") is False:  # a mask that is there is left ragged by theirs, and filled by ours
        rows = [{name: value for name, value in row.items() if name != "attention_mask"} for row in rows]
    together = {name: [row[name] for row in rows] for name in rows[0]}
    for given_ in (rows, together, rows[0], [{"input_ids": [5, 6]}, {"input_ids": [7]}], {"input_ids": [[5], [6, 7]]}):
        found, expected = (one.pad(copy.deepcopy(given_), **options) for one in duo)
        assert list(found) == list(expected)
        for name in found:
            one, two = (value[name] for value in (found, expected))
            assert type(one) is type(two)
            assert (one if isinstance(one, list) else one.tolist()) == (two if isinstance(two, list) else two.tolist())


def test_pad_keeps_the_tensor_type_and_the_labels(duo: tuple[Tokenizer, Any]) -> None:
    ours, theirs = duo
    for make in (np.array, torch.tensor):
        rows = [{"input_ids": make([5, 6, 7]), "labels": make([1, 2])}, {"input_ids": make([8]), "labels": make([3, 4])}]
        found, expected = (one.pad(copy.deepcopy(rows)) for one in duo)
        assert type(found["input_ids"]) is type(make([1]))
        assert found["input_ids"].tolist() == expected["input_ids"].tolist()
        assert found["labels"].tolist() == expected["labels"].tolist() == [[1, 2], [3, 4]]
    ragged = [{"input_ids": [5, 6], "labels": [1]}, {"input_ids": [7], "labels": [2, 3]}]
    assert ours.pad(ragged)["labels"] == theirs.pad(copy.deepcopy(ragged))["labels"] == [[1], [2, 3]]
    assert dict(ours.pad({"input_ids": []})) == dict(theirs.pad({"input_ids": []}, return_attention_mask=True))


@pytest.mark.parametrize(
    ("given_", "options", "error", "message"),
    [
        ("text", {}, InputTypeError, "pad takes what the tokenizer gave, or a list of such, not str"),
        ([1, 2], {}, InputTypeError, "pad takes what the tokenizer gave"),
        ({"labels": [1]}, {}, InputError, "pad needs 'input_ids', but there are only 'labels'"),
        ([{"input_ids": [1], "labels": [1]}, {"input_ids": [1]}], {}, InputError, "row 1 lacks 'labels', which the first"),
        ({"input_ids": [1, 2, 3]}, {"padding": "max_length", "max_length": 2}, InputError, "a row of 3 tokens cannot be"),
        ({"input_ids": [1]}, {"padding": "most"}, InputError, "padding='most' is not known"),
        ({"input_ids": [1]}, {"pad_to_multiple_of": 0}, InputError, "pad_to_multiple_of=0 is no length"),
        ({"input_ids": [[[1], [1, 2]]]}, {"return_tensors": "np", "padding": False, "return_attention_mask": False},
         InputError, "'input_ids' is nested too deeply or unevenly"),
    ],
)  # fmt: skip
def test_inputs_that_pad_refuses(
    duo: tuple[Tokenizer, Any], given_: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        duo[0].pad(given_, **options)
    assert message in str(caught.value)


# New tokens ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(words: list[str], tmp_path: Path) -> tuple[Tokenizer, Any]:
    write(tmp_path, {"vocab.txt": words, **config_files("BertTokenizer")})
    return AutoTokenizer.from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)


def test_add_tokens(fresh: tuple[Tokenizer, Any], tmp_path: Path) -> None:
    ours, theirs = fresh
    ours.token_bytes(5)  # which remembers the added ones
    for new in ("glassy", ["glassy", "formy"], AddedToken("<x>", lstrip=True), [], ["hello"]):
        assert ours.add_tokens(new) == theirs.add_tokens(new)
    assert ours.add_tokens(["<hid>"], special_tokens=True) == theirs.add_tokens(["<hid>"], special_tokens=True) == 1
    assert (len(ours), ours.get_added_vocab()) == (len(theirs), theirs.get_added_vocab())
    text = "a glassy  <x> formyish <hid> HELLO"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text), True) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
    assert ours.token_bytes(ours.convert_tokens_to_ids("<x>")) == b"<x>"
    ours.save_pretrained(tmp_path / "again")
    assert AutoTokenizer.from_pretrained(tmp_path / "again").encode(text) == ours.encode(text)


def test_add_special_tokens(fresh: tuple[Tokenizer, Any]) -> None:
    for new in (
        {"bos_token": "<start>", "pad_token": AddedToken("<fill>")}, {}, {"extra_special_tokens": ["<a>", "<b>"]},
        {"additional_special_tokens": ["<c>"]},
    ):  # fmt: skip
        ours, theirs = (one.add_special_tokens(new) for one in fresh)
        assert ours == theirs
        assert fresh[0].all_special_tokens == fresh[1].all_special_tokens
    ours, theirs = (one.add_special_tokens({"extra_special_tokens": ["<c>", "<d>"]}, False) for one in fresh)
    assert ours == theirs == 1
    assert fresh[0].extra_special_tokens == fresh[1].extra_special_tokens == ["<c>", "<d>"]
    assert fresh[0].pad_token_id == fresh[1].pad_token_id == fresh[0].convert_tokens_to_ids("<fill>")
    assert fresh[0]("<start>x<a>")["input_ids"] == fresh[1]("<start>x<a>")["input_ids"]


@pytest.mark.parametrize(
    ("new", "error", "message"),
    [
        ({"pad_tokn": "x"}, InputError, "'pad_tokn' is no role of a token. Did you mean 'pad_token'? Use one of: bos_token"),
        ({"extra_special_tokens": "x"}, InputTypeError, "extra_special_tokens is a list of tokens, not str"),
        ({"pad_token": 5}, InputTypeError, "a token is a text or an AddedToken, not int"),
        ({"pad_token": "\ud83d"}, InputError, "holds a lone surrogate"),
    ],
)
def test_add_special_tokens_refuses_what_is_no_token(
    fresh: tuple[Tokenizer, Any], new: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        fresh[0].add_special_tokens(new)
    assert message in str(caught.value)


# What cannot be done -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "options", "error", "message"),
    [
        ((["fine", "\ud83d"],), {}, InputError, "lone surrogate, which is no character, in entry 1 of the batch"),
        ((["fine", ("a", "b\udc00")],), {}, InputError, "in entry 1 of the batch"),
        ((["fine", None],), {}, InputTypeError, "the tokenizer takes text, not NoneType, in entry 1 of the batch"),
        (([b"raw"],), {}, InputTypeError, "the tokenizer takes text, not bytes, in entry 0"),
        (("a\ud83d",), {}, InputError, "the text holds a lone surrogate, which is no character. Repair"),
        ((None,), {}, InputTypeError, "a string or a list of strings, not NoneType"),
        (("one",), {"is_split_into_words": True}, InputTypeError, "takes a list of words, not str"),
        ((7,), {"is_split_into_words": True}, InputTypeError, "takes a list of words, not int"),
        ((["a", 7],), {"is_split_into_words": True}, InputTypeError, "the tokenizer takes text, not int."),
        (([["a"], ["b", None]],), {"is_split_into_words": True}, InputTypeError, "not NoneType, in entry 1"),
        (([["a"], "b"],), {"is_split_into_words": True}, InputTypeError, "takes lists of words here, not str, in entry 1"),
        ((["a"], "b"), {"is_split_into_words": True}, InputTypeError, "takes a list of words beside it, not str"),
        (([["a"]], [["b"], ["c"]]), {"is_split_into_words": True}, InputError, "there are 1 texts but 2 second texts"),
        (("a",), {"stride": -1}, InputError, "stride=-1 is no length"),
        (("a",), {"stride": "2"}, InputError, "stride='2' is no length"),
        (("a",), {"pad_to_multiple_of": 0, "padding": True}, InputError, "pad_to_multiple_of=0 is no length"),
        (
            ("a b c d e f g h i j k",), {"truncation": True, "max_length": 7, "stride": 9}, InputError,
            "leaves no step between windows of",
        ),
        (
            ("a",), {"truncation": True, "padding": True, "max_length": 7, "pad_to_multiple_of": 4}, InputError,
            "max_length=7 is no multiple of pad_to_multiple_of=4. Change one of them",
        ),
    ],
)  # fmt: skip
def test_inputs_that_encoding_refuses(
    duo: tuple[Tokenizer, Any], given_: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        duo[0](*given_, **options)
    assert message in str(caught.value)
    assert isinstance(caught.value, GlassError)


def test_add_tokens_refuses_a_lone_surrogate(duo: tuple[Tokenizer, Any]) -> None:
    ours, _ = duo
    assert ours.convert_tokens_to_ids("\ud83d") == ours.unk_token_id
    with pytest.raises(InputError, match="in the vocabulary"):
        ours.pad_token = "\ud83d"


def test_empty_batches_and_empty_texts(duo: tuple[Tokenizer, Any]) -> None:
    ours, theirs = duo
    assert dict(ours([])) == {name: [] for name in ours.model_input_names}
    for given_ in ("", [""], ["", "a"]):
        assert dict(ours(given_)) == dict(theirs(given_))
    assert dict(ours([], is_split_into_words=True)) == dict(theirs([], is_split_into_words=True))
    assert ours([], return_tensors="np", return_length=True)["input_ids"].shape == (0, 0)


def test_clean_up_tokenization_spaces_option(words: list[str], tmp_path: Path) -> None:
    write(tmp_path, {"vocab.txt": words, **config_files("BertTokenizer")})
    ours, theirs = AutoTokenizer.from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = ours.encode("isn't it so, friend?", add_special_tokens=False)
    for clean in (None, True, False):
        options = {"clean_up_tokenization_spaces": clean}
        assert ours.decode(ids, **options) == theirs.decode(ids, **options)
        assert ours.batch_decode([ids, ids[:3]], **options) == theirs.batch_decode([ids, ids[:3]], **options)
        assert ours.decode(ids[0], **options) == theirs.decode(ids[0], **options)
        assert ours.decode((*ids,), **options) == theirs.decode(ids, **options)
