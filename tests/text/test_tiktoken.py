"""tiktoken's ranks give tiktoken's ids."""

from __future__ import annotations

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.errors import CheckpointError
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.merges import merges
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


def test_missing_tiktoken_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.tiktoken: cannot be read \(No such file"):
        Tokenizer.from_tiktoken(tmp_path / "none.tiktoken")


@pytest.mark.parametrize("special", [{"<x>": 1}, {"b": 7}])
def test_special_tokens_that_are_already_in_the_ranks(special: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match=r"the special token .* is already in the ranks\. Give another"):
        build(ranked("a", "b"), r"\S+", special)


def test_cl100k_vocab_size_and_length(cl100k: Path) -> None:
    """The ranks were trained, the special tokens put in later."""
    found = Tokenizer.from_tiktoken(cl100k)
    assert (found.vocab_size, len(found)) == (100_256, 100_261)
