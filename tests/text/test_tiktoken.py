"""tiktoken's ranks give tiktoken's ids."""

from __future__ import annotations

import base64
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer import AutoTokenizer
from glassformer.ground.errors import CheckpointError
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.scored_pieces import merges
from glassformer.text.tokenizer_files.tiktoken import CL100K_SPECIAL, build, read_ranks
from tests.text.texts import moderate, texts


@pytest.fixture(scope="session")
def ours(cl100k: Path) -> Tokenizer:
    return Tokenizer.from_tiktoken(cl100k)


repeated = st.tuples(st.sampled_from(["a", "ab", "ha", "-", "=", " ", "\n", "0", "12", "'S"]), st.integers(1, 20))
patterned = st.lists(repeated.map(lambda one: one[0] * one[1]), max_size=6).map("".join)
marked = st.lists(st.sampled_from([*CL100K_SPECIAL, "<|endof", " x", "text|>"]), max_size=4).map("".join)


@moderate
@given(text=texts | patterned | marked | st.text())
def test_any_text_gives_tiktokens_ids(ours: Tokenizer, tiktoken_cl100k: Any, text: str) -> None:
    ids = ours.encode(text)
    assert ids == tiktoken_cl100k.encode(text, allowed_special="all")
    assert ours.decode(ids) == tiktoken_cl100k.decode(ids) == text
    assert b"".join(ours.token_bytes(number) for number in ids) == text.encode()


def test_every_token_has_tiktokens_bytes(ours: Tokenizer, tiktoken_cl100k: Any) -> None:
    assert tiktoken_cl100k.n_vocab == 100277
    ranks = [number for number in range(tiktoken_cl100k.n_vocab) if ours.token_bytes(number)]
    assert len(ranks) == len(ours) == 100261
    assert all(ours.token_bytes(number) == tiktoken_cl100k.decode_single_token_bytes(number) for number in ranks)


def test_cl100k_special_tokens(ours: Tokenizer) -> None:
    assert (ours.eos_token, ours.eos_token_id) == ("<|endoftext|>", 100257)
    assert ours.convert_tokens_to_ids("<|endofprompt|>") == 100276
    assert ours.decode([100257, 15339], skip_special_tokens=True) == "hello"


def line(token: bytes, rank: Any) -> str:
    return f"{base64.b64encode(token).decode()} {rank}\n"


def ranked(*tokens: str) -> dict[bytes, int]:
    return {token.encode(): rank for rank, token in enumerate(tokens)}


def merge_slowly(text: str, ranks: dict[bytes, int]) -> list[int]:
    """Join the neighbours whose union ranks first, and of equals the leftmost, until none are left."""
    parts = [bytes([byte]) for byte in text.encode()]
    while joined := [(ranks[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]:
        _, at = min(joined)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [ranks[part] for part in parts]


@moderate
@given(
    more=st.lists(st.text("ab", min_size=2, max_size=5), unique=True, max_size=8),
    text=st.text("ab", max_size=12),
)
def test_any_ranks_merge_lowest_rank_first(more: list[str], text: str) -> None:
    ranks = ranked("a", "b", *more)
    backend = build(ranks, r"[\s\S]", {})
    assert backend.encode("ab").ids == [0, 1]  # the pattern splits all
    whole = build(ranks, r"\A[\s\S]+\z", {})
    whole.model.ignore_merges = False
    assert whole.encode(text).ids == merge_slowly(text, ranks)


def test_merges_order_of_overlapping_pairs() -> None:
    assert merges({"a": 0, "aa": 1, "aaa": 2}) == [("a", "a"), ("aa", "a")]
    assert merges({"a": 0, "b": 1, "aba": 2, "ab": 3, "ba": 4}) == [("ab", "a"), ("a", "b"), ("b", "a")]
    assert merges({"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}) == [
        ("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c"),
    ]  # fmt: skip
    assert merges({"a": 0, "aaaa": 1, "aaa": 2}) == []  # no two letters join, so nothing ever does


def test_from_tiktoken_with_another_pattern_and_special_tokens(tmp_path: Path) -> None:
    path = tmp_path / "small.tiktoken"
    path.write_text(line(b"a", 0) + line(b"b", 1) + "\n" + line(b"ab", 2))
    ours = Tokenizer.from_tiktoken(path, r"\S+|\s+", {"<end>": 9})
    assert ours.encode("abb<end>a") == [2, 1, 9, 0]
    assert (ours.eos_token, ours.additional_special_tokens) == (None, ["<end>"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no tokens"),
        ("\n\n", "holds no tokens"),
        (line(b"a", 0) + "YQ==", "line 2 is no token in base64 and its rank"),
        (line(b"a", "zero"), "line 1 is no token in base64 and its rank"),
        (line(b"a", -1), "line 1 is no token in base64 and its rank"),
        (line(b"a", 2**32), "line 1 is no token in base64 and its rank"),
        (line(b"", 0), "line 1 is no token in base64 and its rank"),
        ("Y?== 0", "line 1 is no token in base64 and its rank"),
        ("YQ=== 0", "line 1 is no token in base64 and its rank"),
        ("a b c", "line 1 is no token in base64 and its rank"),
        (line(b"a", 0) + line(b"a", 1), "line 2 repeats the token b'a'"),
        (line(b"a", 0) + line(b"b", 0), "gives one rank to several tokens"),
    ],
)
def test_broken_tiktoken_file_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.tiktoken"
    path.write_text(content)
    with pytest.raises(CheckpointError) as caught:
        read_ranks(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("special", [{"<x>": 1}, {"b": 7}])
def test_special_tokens_that_are_already_in_the_ranks(special: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match="special token"):
        build(ranked("a", "b"), r"\S+", special)


def test_cl100k_vocab_size_and_length(cl100k: Path) -> None:
    """The ranks were trained, the special tokens put in later."""
    found = Tokenizer.from_tiktoken(cl100k)
    assert (found.vocab_size, len(found)) == (100_256, 100_261)


# Llama 3's tokenizer.model -----------------------------------------------------------------------------------------


def llama3(folder: Path, files: dict[str, Any], ranks: str | None = None, name: str = "tokenizer.model") -> Path:
    """A folder with ranks under SentencePiece's name, as Llama 3 has them, and these files beside it."""
    words = ["th", "the", " the", "in", "ing", "  ", "12", "123", "'s"]
    tokens = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in words)]
    lines = "".join(line(token, rank) for rank, token in enumerate(tokens))
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(lines if ranks is None else ranks)
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    return folder


CONFIG = {"model_type": "llama", "vocab_size": 265 + 256}
NEWER = {**CONFIG, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
LISTED = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|begin_of_text|>",
    "added_tokens_decoder": {
        "265": {"content": "<|begin_of_text|>", "special": True, "normalized": False},
        "268": {"content": "<|eot_id|>", "special": True, "normalized": False},
    },
}
SENTENCES = ("the thing's in  there", "12345 <|eot_id|>the", "naïve 漢字", "")


@pytest.mark.parametrize("newer", [False, True])
def test_llama3_special_tokens_follow_its_ranks(tmp_path: Path, newer: bool) -> None:
    ours = AutoTokenizer.from_pretrained(llama3(tmp_path, {"config.json": NEWER if newer else CONFIG}))
    names = ours.convert_ids_to_tokens(range(265, 265 + 256))
    assert (ours.vocab_size, len(ours), len(set(names))) == (265, 521, 256)
    assert (names[0], names[1]) == ("<|begin_of_text|>", "<|end_of_text|>")
    assert names[6:8] == ["<|start_header_id|>", "<|end_header_id|>"]
    assert names[9] == "<|eot_id|>"
    assert names[4] == ("<|finetune_right_pad_id|>" if newer else "<|reserved_special_token_2|>")
    assert names[10] == ("<|python_tag|>" if newer else "<|reserved_special_token_5|>")
    assert names[255] == ("<|reserved_special_token_247|>" if newer else "<|reserved_special_token_250|>")
    assert (ours.bos_token, ours.eos_token) == ("<|begin_of_text|>", "<|end_of_text|>")
    assert ours.encode("the<|eot_id|>") == [265, 257, 274]


@pytest.mark.parametrize("text", SENTENCES)
def test_llama3_ranks_encode_like_the_references_converter(tmp_path: Path, text: str) -> None:
    from transformers.convert_slow_tokenizer import TikTokenConverter

    folder = llama3(tmp_path, {"config.json": CONFIG})
    ours = AutoTokenizer.from_pretrained(folder)
    special = ours.convert_ids_to_tokens(range(265, 521))
    theirs = TikTokenConverter(str(folder / "tokenizer.model"), extra_special_tokens=special).converted()
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text).ids
    assert ours.encode(text) == [265, *theirs.encode(text).ids]
    assert ours.decode(ours.encode(text), skip_special_tokens=True) == text.replace("<|eot_id|>", "")


@pytest.mark.parametrize("name", ["tokenizer.model", "tiktoken.model"])
def test_special_tokens_that_the_config_lists(tmp_path: Path, name: str) -> None:
    ours = AutoTokenizer.from_pretrained(llama3(tmp_path, {"tokenizer_config.json": LISTED}, name=name))
    assert ours.convert_ids_to_tokens(range(265, len(ours))) == [
        "<|begin_of_text|>", "<|reserved_token_266|>", "<|reserved_token_267|>", "<|eot_id|>",
    ]  # fmt: skip
    assert ours.encode("the<|eot_id|>", "the") == [265, 257, 268, 265, 257]
    ours.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").encode("the<|eot_id|>") == [265, 257, 268]


@pytest.mark.parametrize(
    ("files", "ranks", "words"),
    [
        (
            {},
            None,
            "tokenizer.model: holds tiktoken's ranks, and no tokenizer_config.json or config.json beside it says which",
        ),
        ({"config.json": {"model_type": "llama", "vocab_size": 300}}, None, "Fetch those, or its tokenizer.json."),
        ({"config.json": {"model_type": "qwen3", "vocab_size": 521}}, None, "says which special tokens belong to them"),
        ({"config.json": CONFIG}, "YQ== 0\nYg== 7\n", "tokenizer.model: its ranks are not 0 to 1"),
        ({"config.json": CONFIG}, "YQ== 0\nYg==\n", "tokenizer.model: line 2 is no token in base64 and its rank"),
        (
            {"tokenizer_config.json": {"added_tokens_decoder": {"265": {"content": "<x>"}, "266": {"content": "<x>"}}}},
            None,
            "the special token '<x>' beside it stands twice",
        ),
    ],
)
def test_ranks_that_are_not_enough(tmp_path: Path, files: dict[str, Any], ranks: str | None, words: str) -> None:
    if ranks is not None:
        files = {"config.json": {"model_type": "llama", "vocab_size": 2 + 256}}
    with pytest.raises(CheckpointError) as caught:
        AutoTokenizer.from_pretrained(llama3(tmp_path, files, ranks))
    assert words in str(caught.value)


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Any, *arguments: Any) -> int:
        if str(path).endswith("tokenizer.model"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments)

    folder, opened = llama3(tmp_path, {}), os.open
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: cannot be read: Permission denied"):
        Tokenizer.from_folder(folder)
