"""Incremental decode: whatever the tokens, the pieces joined are the whole, and no piece ends inside a character."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from glassformer.text import Detokenizer, Tokenizer
from glassformer.text.streaming import INCOMPLETE, StopBuffer, ends_inside_character, shown_bytes
from glassformer.text.token_bytes import BYTES, byte_level
from tests.sweeps import examples
from tests.text.texts import encodable_bytes, moderate, single_bytes, texts


@pytest.fixture(params=["qwen", "smol"], scope="session")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


def fed(tokenizer: Tokenizer, ids: list[int], skip: bool) -> list[str]:
    pieces = tokenizer.detokenizer(skip)
    found = [pieces.feed(token) for token in ids]
    return [*found, pieces.finish()]


# Fractions of a vocabulary, so that one strategy serves vocabularies of every size; most ids are single bytes, whose
# sequences are mostly no characters at all, and some are special.
anywhere = st.floats(0, 1).map(lambda part: ("anywhere", part))
single = st.floats(0, 1).map(lambda part: ("a byte", part))
special = st.floats(0, 1).map(lambda part: ("special", part))
beyond = st.just(("beyond", 0.0))
recipes = st.lists(single | anywhere | special | beyond, max_size=16)


def cooked(tokenizer: Tokenizer, recipe: list[tuple[str, float]]) -> list[int]:
    ranges = {
        "anywhere": range(len(tokenizer)),
        "a byte": list(single_bytes(tokenizer).values()),
        "special": tokenizer.all_special_ids,
        "beyond": range(len(tokenizer) + 5, len(tokenizer) + 6),
    }
    return [ranges[kind][int(part * (len(ranges[kind]) - 1))] for kind, part in recipe]


@moderate
@given(text=texts, skip=st.booleans())
def test_any_text_streams_in_whole_characters(tokenizer: Tokenizer, text: str, skip: bool) -> None:
    ids = tokenizer.encode(text)
    found, whole = fed(tokenizer, ids, skip), tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(found) == whole
    assert INCOMPLETE in whole or not any(INCOMPLETE in piece for piece in found)


@settings(max_examples=examples(250, 1000), deadline=None)  # for each of the two tokenizers
@given(text=st.text(max_size=40) | texts, stops=st.lists(st.text(min_size=1, max_size=3), max_size=2))
def test_streamed_text_is_the_decoded_text_up_to_a_stop_string(tokenizer: Tokenizer, text: str, stops: list[str]) -> None:
    ids, held = tokenizer.encode(text), StopBuffer(stops)
    streamed = "".join(held.feed(piece) for piece in fed(tokenizer, ids, skip=True)) + held.finish()
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    ends = [whole.index(stop) for stop in stops if stop in whole]
    assert whole.startswith(streamed)
    assert len(streamed) == min(ends, default=len(whole)) or held.stopped in stops
    assert ends or streamed == whole


@moderate
@given(recipe=recipes, skip=st.booleans())
def test_any_ids_streamed_and_joined_are_their_decode(
    tokenizer: Tokenizer, recipe: list[tuple[str, float]], skip: bool
) -> None:
    ids = cooked(tokenizer, recipe)
    found, whole = fed(tokenizer, ids, skip), tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(found) == whole
    assert INCOMPLETE in whole or not any(INCOMPLETE in piece for piece in found)
    assert not any(piece.endswith(INCOMPLETE) for piece in found[:-1])  # what may yet become a character waits


def test_a_character_waits_for_its_last_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ok 🫠!")
    found = fed(tokenizer, ids, skip=True)
    assert len(tokenizer.encode("🫠")) > 1
    assert [piece for piece in found if piece] in (["ok", " 🫠", "!"], ["ok", " ", "🫠", "!"])


def test_plain_words_do_not_wait(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The quick brown fox.")
    *pieces, last = fed(tokenizer, ids, skip=True)
    assert pieces == [tokenizer.decode(number) for number in ids]
    assert last == ""


def test_finish_gives_an_incomplete_character(qwen: Tokenizer) -> None:
    pieces = qwen.detokenizer()
    half = qwen.encode("🫠")[:-1]
    assert [pieces.feed(token) for token in half] == [""] * len(half)
    assert pieces.finish() == qwen.decode(half)
    assert pieces.finish() == ""


def test_detokenizer_skips_special_tokens_or_not(qwen: Tokenizer) -> None:
    ids = qwen.encode("a<|im_end|>b")
    assert fed(qwen, ids, skip=True) == ["a", "", "b", ""]
    assert fed(qwen, ids, skip=False) == ["a", "<|im_end|>", "b", ""]


def test_detokenizer_shows_the_special_tokens_that_are_to_be_visible(qwen: Tokenizer) -> None:
    ids = qwen.encode("<|im_start|>a <|im_end|>🫠")
    pieces = qwen.detokenizer(visible_tokens=["<|im_end|>", "<no token>"])
    assert "".join([*map(pieces.feed, ids), pieces.finish()]) == "a <|im_end|>🫠"


def test_a_token_may_decode_differently_after_another() -> None:
    """As with the tokenizers that put a space between words, and none before the first."""
    words = ["one", "two", "three"]
    pieces = Detokenizer(lambda ids: " ".join(words[number] for number in ids))
    assert [pieces.feed(number) for number in (0, 1, 2, 0)] == ["one", " two", " three", " one"]


@moderate
@given(text=texts)
def test_token_bytes_joined_are_the_bytes_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    found = b"".join(tokenizer.token_bytes(number) for number in tokenizer.encode(text))
    assert found == encodable_bytes(tokenizer, text)


@moderate
@given(recipe=recipes)
def test_token_bytes_of_any_ids_are_the_bytes_of_their_decode(tokenizer: Tokenizer, recipe: list[Any]) -> None:
    ids = cooked(tokenizer, recipe)
    found = b"".join(tokenizer.token_bytes(number) for number in ids)
    assert found.decode(errors="replace") == tokenizer.decode(ids)


def test_token_bytes_of_space_special_and_padding_ids(qwen: Tokenizer) -> None:
    assert qwen.token_bytes(220) == b" "
    assert qwen.token_bytes(151644) == b"<|im_start|>"
    assert qwen.token_bytes(151935) == b""
    assert b"\xf0\x9f" in {qwen.token_bytes(number)[-2:] for number in qwen.encode("🫠")}


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (None, ["Ġa", "▁b", "é"]),
        (decoders.ByteLevel(), [" a", "▁b", "\\xe9"]),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]), [" a", "▁b", "\\xe9"]),
        (decoders.Metaspace(), ["Ġa", " b", "é"]),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]), ["Ġa", " b", "é"]),
        (decoders.WordPiece(), [" Ġa", " ▁b", " é"]),
    ],
)
def test_token_bytes_depend_on_the_decoder(decoder: Any, expected: list[str]) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"Ġa": 0, "▁b": 1, "é": 2}, unk_token="é"))
    if decoder is not None:
        backend.decoder = decoder
    ours = Tokenizer(backend)
    assert [shown_bytes(ours.token_bytes(number)) for number in range(3)] == expected


@moderate
@given(raw=st.binary(max_size=8))
def test_byte_level_spelling_of_every_byte(raw: bytes) -> None:
    spelling = byte_level(raw)
    assert len(spelling) == len(raw)
    assert all(character.isprintable() and not character.isspace() for character in spelling)
    assert bytes(BYTES[character] for character in spelling) == raw


def test_token_bytes_of_an_added_token() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(["<é>"])
    assert Tokenizer(backend).token_bytes(1) == "<é>".encode()


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("hé".encode(), "hé"),
        (b" \xf0\x9f", r" \xf0\x9f"),
        (b"\x9fa", r"\x9fa"),
        (b"\xff\xfe", r"\xff\xfe"),
        (b"", ""),
    ],
)
def test_shown_bytes_are_text_where_they_are_characters(raw: bytes, shown: str) -> None:
    assert shown_bytes(raw) == shown


@given(
    raw=st.binary(max_size=6), character=st.characters(min_codepoint=128, exclude_categories=["Cs"]), cut=st.integers(1, 3)
)
def test_ends_inside_character(raw: bytes, character: str, cut: int) -> None:
    part = character.encode()[:-cut]
    text = raw.decode("utf-8", "ignore").encode()
    assert ends_inside_character(text + part) == bool(part)
    assert not ends_inside_character(text + character.encode())
