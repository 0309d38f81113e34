"""Older checkpoints: vocab.txt, or vocab.json with merges.txt, read as the reference reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer import AutoTokenizer
from glassformer.ground.errors import CheckpointError
from glassformer.text import Tokenizer
from tests.parity.reference import transformers
from tests.sweeps import examples
from tests.text.texts import texts

Files = dict[str, Any]
FIRST_WORDS, FIRST_MERGES = 6000, 2000
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
ENDS = ["[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<mask>", "ÀÉ", "play", "##ing", "unaffable"]
salted = st.lists(st.sampled_from(ENDS) | texts, max_size=4).map(" ".join)


def write(folder: Path, files: Files) -> Path:
    """Text is written as it is, bytes too, a list as lines, anything else as JSON."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        elif isinstance(content, list):
            (folder / name).write_text("".join(f"{line}\n" for line in content), "utf-8", newline="\n")
        else:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return folder


def ours_and_reference(folder: Path) -> tuple[Tokenizer, Any]:
    return AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


def config_files(tokenizer_class: str | None = None, model_type: str | None = None, **config: Any) -> Files:
    """The small files beside a vocabulary."""
    named = {} if tokenizer_class is None else {"tokenizer_class": tokenizer_class}
    model = {} if model_type is None else {"config.json": {"model_type": model_type}}
    return {**model, "tokenizer_config.json": {**named, **config}} if named or config else model


WORDPIECE: dict[str, Files] = {
    "bert by its class": config_files("BertTokenizer"),
    "bert by its fast class": config_files("BertTokenizerFast", model_max_length=12),
    "bert by its model": config_files(model_type="bert"),
    "cased": config_files("BertTokenizer", do_lower_case=False),
    "lower case, accents kept": config_files("BertTokenizer", strip_accents=False),
    "Chinese unsplit": config_files("BertTokenizer", tokenize_chinese_chars=False),
    "electra": config_files("ElectraTokenizer"),
    "mpnet by its class": config_files("MPNetTokenizer"),
    "mpnet by its model": config_files(model_type="mpnet"),
    "distilbert": config_files("DistilBertTokenizer", model_type="distilbert"),
    "names that say otherwise": config_files("BertTokenizer", model_input_names=["input_ids", "attention_mask"]),
    "other special tokens": config_files("BertTokenizer", mask_token="[unused7]", pad_token="<new>"),
}
BYTE_LEVEL: dict[str, Files] = {
    "gpt2 by its class": config_files("GPT2Tokenizer"),
    "gpt2 by its model": config_files(model_type="gpt2"),
    "gpt2 with a space before": config_files("GPT2Tokenizer", add_prefix_space=True),
    "gpt2 with a beginning": config_files("GPT2Tokenizer", add_bos_token=True, pad_token="<|endoftext|>"),
    "roberta by its class": config_files("RobertaTokenizer"),
    "roberta by its model": config_files(model_type="roberta"),
    "roberta with a space before": config_files("RobertaTokenizerFast", add_prefix_space=True),
    "deberta by its class": config_files("DebertaTokenizer", model_type="deberta"),
    "bart by its class": config_files("BartTokenizer", model_type="bart"),
    "bart by its model": config_files(model_type="bart", model_max_length=20),
    "gpt2 with types": config_files("GPT2Tokenizer", model_input_names=["input_ids", "token_type_ids", "attention_mask"]),
}


@pytest.fixture(params=[*WORDPIECE, *BYTE_LEVEL], scope="session")
def layout(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, words: list[str], pairs: tuple[Any, Any]
) -> tuple[Tokenizer, Any]:
    """Over the beginning of a real vocabulary, which is one too."""
    folder = tmp_path_factory.mktemp("layout")
    if request.param in WORDPIECE:
        return ours_and_reference(write(folder, {"vocab.txt": words[:FIRST_WORDS], **WORDPIECE[request.param]}))
    vocabulary, merges = pairs
    first = merges[:FIRST_MERGES]
    made = {pair.replace(" ", "") for pair in first}
    kept = [token for token in vocabulary if len(token) == 1 or token in made or token == "<|endoftext|>"]
    files = {"vocab.json": {token: number for number, token in enumerate(kept)}, "merges.txt": ["#version: 0.2", *first]}
    return ours_and_reference(write(folder, {**files, **BYTE_LEVEL[request.param]}))


def test_special_tokens_and_ids_match_the_reference(layout: tuple[Tokenizer, Any]) -> None:
    ours, theirs = layout
    assert (ours.vocab_size, len(ours), ours.vocab) == (theirs.vocab_size, len(theirs), theirs.get_vocab())
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    for name in NAMES:
        assert getattr(ours, f"{name}_token") == getattr(theirs, f"{name}_token")
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")
    assert ours.all_special_ids == theirs.all_special_ids
    assert sorted(ours.model_input_names) == sorted(theirs.model_input_names)
    assert ours.model_max_length == min(theirs.model_max_length, 10**30)
    assert [ours.num_special_tokens_to_add(pair) for pair in (False, True)] == [
        theirs.num_special_tokens_to_add(pair) for pair in (False, True)
    ]


some = settings(max_examples=examples(10, 30), deadline=None)  # of each layout
everything = {"return_special_tokens_mask": True, "return_offsets_mapping": True, "return_token_type_ids": True}


@some
@given(first=salted, second=salted, around=st.booleans())
def test_any_text_and_pair_encode_like_the_reference(
    layout: tuple[Tokenizer, Any], first: str, second: str, around: bool
) -> None:
    ours, theirs = layout
    for texts_ in ((first,), (first, second)):
        for options in ({}, everything):
            found, expected = (which(*texts_, add_special_tokens=around, **options) for which in layout)
            assert (list(found), dict(found)) == (list(expected), dict(expected))
        assert ours.encode(*texts_) == theirs.encode(*texts_)
    ids = ours.encode(first, second)
    for skip in (True, False):
        assert ours.decode(ids, skip) == theirs.decode(ids, skip)


@pytest.mark.filterwarnings("ignore:`max_length` is ignored")
@some
@given(
    batch=st.lists(st.tuples(salted, salted), min_size=1, max_size=3),
    limit=st.integers(5, 16),
    way=st.sampled_from([True, "longest_first", "only_first", "only_second", False, "do_not_truncate"]),
    padding=st.sampled_from([False, True, "max_length"]),
    side=st.sampled_from(["left", "right"]),
)
def test_any_pairs_pad_and_truncate_like_the_reference(
    layout: tuple[Tokenizer, Any], batch: list[tuple[str, str]], limit: int, way: Any, padding: Any, side: str
) -> None:
    ours, theirs = layout
    if padding and ours.pad_token is None:
        padding = False
    options = {"truncation": way, "max_length": limit, "padding": padding, "padding_side": side, **everything}
    firsts, seconds = [one for one, _ in batch], [two for _, two in batch]
    for given_ in ((batch,), (firsts, seconds), ([list(pair) for pair in batch],), (firsts,)):
        found = outcome(ours, *given_, **options)
        expected = outcome(theirs, *given_, **options)
        assert found == expected


def outcome(tokenizer: Any, *given_: Any, **options: Any) -> Any:
    """What comes back; or that it cannot be cut so, which the reference says in the library's words."""
    try:
        return dict(tokenizer(*given_, **options))
    except Exception as error:
        return "cannot be cut so" if "truncation" in str(error).lower() else error


def test_known_encoding_of_bert(words: list[str], tmp_path: Path) -> None:
    ours = AutoTokenizer.from_pretrained(write(tmp_path, {"vocab.txt": words}))
    assert dict(ours("Hello there", "General Kenobi!")) == {
        "input_ids": [101, 7592, 2045, 102, 2236, 6358, 16429, 2072, 999, 102],
        "token_type_ids": [0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
        "attention_mask": [1] * 10,
    }
    assert ours.mask_token_id == words.index("[MASK]") == 103
    assert ours.tokenize("unaffable [MASK]") == ["una", "##ffa", "##ble", "[MASK]"]
    assert list(ours("Hello", return_token_type_ids=False)) == ["input_ids", "attention_mask"]


def test_distilbert_model_type_gives_no_token_types(words: list[str], tmp_path: Path) -> None:
    """Here the reference gives them, and its model drops them unread."""
    ours, theirs = ours_and_reference(write(tmp_path, {"vocab.txt": words, **config_files(model_type="distilbert")}))
    assert list(ours("Hello")) == ["input_ids", "attention_mask"]
    assert ours("Hello", "there")["input_ids"] == theirs("Hello", "there")["input_ids"]
    assert ours.special_tokens_map == theirs.special_tokens_map


def test_class_guessed_from_the_vocabulary_file(pairs: tuple[dict[str, int], list[str]], tmp_path: Path) -> None:
    vocabulary, merges = pairs
    ours = AutoTokenizer.from_pretrained(write(tmp_path, {"vocab.json": vocabulary, "merges.txt": merges}))
    assert ours.encode("Hello world") == [15496, 995]
    assert (ours.eos_token, ours.eos_token_id, ours.pad_token) == ("<|endoftext|>", 50256, None)
    assert list(ours("Hello", "world")) == ["input_ids", "attention_mask"]


@some
@given(text=texts)
def test_byte_level_vocabulary_is_lossless(layout: tuple[Tokenizer, Any], text: str) -> None:
    ours, _ = layout
    if ours._special.get("unk_token") == "[UNK]" or ours._source.get("add_prefix_space"):
        return
    assert ours.decode(ours.encode(text, add_special_tokens=False)) == text


def test_legacy_vocabulary_survives_save_pretrained(layout: tuple[Tokenizer, Any], tmp_path: Path) -> None:
    ours, _ = layout
    ours.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert (again.vocab, again.special_tokens_map) == (ours.vocab, ours.special_tokens_map)
    assert again.model_input_names == ours.model_input_names
    assert dict(again("Hello there", "naïve [MASK]")) == dict(ours("Hello there", "naïve [MASK]"))


@pytest.mark.parametrize(
    "files",
    [
        {},
        config_files("BertTokenizer"),
        config_files("BertTokenizerFast", model_type="bert"),
        config_files("DistilBertTokenizer", model_type="distilbert"),
        config_files("PreTrainedTokenizerFast"),
        config_files("TokenizersBackend", model_type="bert"),
        config_files(model_type="bert"),
        config_files("BertTokenizer", model_input_names=["input_ids", "attention_mask"]),
        {"config.json": {"model_type": "bert", "tokenizer_class": "DistilBertTokenizer"}},
    ],
    ids=repr,
)
def test_token_types_beside_a_tokenizer_json(files: Files, minilm: Path, tmp_path: Path) -> None:
    """The class or the model's type decides where tokenizer_config.json names no inputs."""
    ours, theirs = ours_and_reference(write(tmp_path, {"tokenizer.json": minilm.read_bytes(), **files}))
    for given_ in (("Hello",), ("Hello there", "you")):
        assert list(ours(*given_)) == list(theirs(*given_))
        assert dict(ours(*given_)) == dict(theirs(*given_))
    for name in NAMES:
        assert getattr(ours, f"{name}_token") == getattr(theirs, f"{name}_token")


# What cannot be read -------------------------------------------------------------------------------------------------

FEW = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"]
SMALL = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}
BROKEN: list[tuple[Files, str]] = [
    ({}, "holds no tokenizer.json. Fetch the tokenizer's files into it"),
    ({"vocab.txt": ""}, "vocab.txt: holds no tokens"),
    ({"vocab.txt": [*FEW, "a"]}, "vocab.txt: line 8 repeats the token 'a'"),
    ({"vocab.txt": FEW[2:]}, "vocab.txt: lacks the token for unknown words, '[UNK]'"),
    (
        {"vocab.txt": FEW, **config_files("BertTokenizer", unk_token=None)},
        "vocab.txt: lacks the token for unknown words, None",
    ),
    ({"vocab.txt": b"\xff\xfe"}, "vocab.txt: not UTF-8 text"),
    (
        {"vocab.txt": FEW, **config_files("EsmTokenizer")},
        "its tokenizer_class is 'EsmTokenizer', for which this file is not enough",
    ),
    ({"vocab.txt": FEW, **config_files(model_type="esm")}, "its model_type is 'esm', for which this file is not enough"),
    ({"vocab.txt": FEW, **config_files("GPT2Tokenizer")}, "its tokenizer_class is 'GPT2Tokenizer', for which this file"),
    ({"vocab.json": SMALL}, "holds a vocab.json but no merges.txt"),
    ({"vocab.json": "{", "merges.txt": ""}, "vocab.json: not valid JSON"),
    ({"vocab.json": "[" * 100_000, "merges.txt": ""}, "vocab.json: not valid JSON"),
    ({"vocab.json": "[]", "merges.txt": ""}, "vocab.json: holds a list where an object belongs"),
    ({"vocab.json": {}, "merges.txt": ""}, "vocab.json: holds no tokens"),
    ({"vocab.json": {"a": "0"}, "merges.txt": ""}, "vocab.json: the id of 'a' is '0', which is no id"),
    ({"vocab.json": {"a": True}, "merges.txt": ""}, "vocab.json: the id of 'a' is True, which is no id"),
    ({"vocab.json": {"a": -1}, "merges.txt": ""}, "vocab.json: the id of 'a' is -1, which is no id"),
    ({"vocab.json": {"a": 1, "b": 1}, "merges.txt": ""}, "vocab.json: 'a' and 'b' have one id, 1"),
    ({"vocab.json": SMALL, "merges.txt": ["#version: 0.2", "ab"]}, "merges.txt: line 2 is 'ab', which is no pair of pieces"),
    ({"vocab.json": SMALL, "merges.txt": ["a b b"]}, "merges.txt: line 1 is 'a b b', which is no pair of pieces"),
    ({"vocab.json": SMALL, "merges.txt": ["a x"]}, "merges.txt: line 1 is 'a x', but vocab.json has no 'x'"),
    ({"vocab.json": SMALL, "merges.txt": ["a b", "b a"]}, "merges.txt: line 2 is 'b a', but vocab.json has no 'ba'"),
    ({"vocab.json": SMALL, "merges.txt": b"\xff"}, "merges.txt: not UTF-8 text"),
    (
        {"vocab.json": SMALL, "merges.txt": "", **config_files("CLIPTokenizer")},
        "its tokenizer_class is 'CLIPTokenizer', for which",
    ),
    (
        {"vocab.txt": FEW, **config_files("BertTokenizer", model_input_names="ids")},
        "'model_input_names' is 'ids', which is no list",
    ),
    ({"vocab.txt": FEW, "config.json": "{"}, "config.json: not valid JSON"),
]


@pytest.mark.parametrize(("files", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_broken_vocabulary_files_are_refused(files: Files, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_folder(write(tmp_path, files))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_vocabulary_with_windows_line_ends(tmp_path: Path) -> None:
    ours = Tokenizer.from_folder(write(tmp_path, {"vocab.txt": "\r\n".join(FEW).encode()}))
    assert ours.encode("ab") == [2, 5, 6, 3]
