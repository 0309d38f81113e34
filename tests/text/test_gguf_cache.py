"""A GGUF's tokenizer is kept once it was built, and built again where what is kept cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files import gguf
from glassformer.text.tokenizer_files.gguf import cache
from tests.text.test_gguf_tokenizers import PROSE, pieces

TEXTS = (*PROSE, "  two spaces, é, 漢字 and \U0001f600", "<turn>\n\n<s>")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that a tokenizer is built."""
    times: list[int] = []
    build = gguf._build

    def counted(metadata: Any) -> Any:
        times.append(len(times))
        return build(metadata)

    monkeypatch.setattr(gguf, "LARGE", 0)
    monkeypatch.setattr(gguf, "_build", counted)
    return times


def same(first: Tokenizer, second: Tokenizer) -> bool:
    encoded = [[tokenizer(text)["input_ids"] for text in TEXTS] for tokenizer in (first, second)]
    return encoded[0] == encoded[1] and first.special_tokens_map == second.special_tokens_map


@pytest.mark.parametrize("prefixed", [True, False])
def test_what_was_kept_is_what_was_built(tmp_path: Path, built: list[int], prefixed: bool) -> None:
    metadata = pieces(add_space_prefix=prefixed)
    plain = Tokenizer.from_gguf(metadata)
    first, second = (Tokenizer.from_gguf(metadata, tmp_path / "kept") for _ in range(2))
    assert len(built) == 2
    assert same(plain, first)
    assert same(plain, second)
    assert first.backend.to_str() == second.backend.to_str()


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "folder"])
def test_what_is_damaged_is_built_again(tmp_path: Path, built: list[int], damage: str) -> None:
    plain = Tokenizer.from_gguf(pieces(), tmp_path)
    (entry,) = tmp_path.iterdir()
    content = entry.read_bytes()
    if damage == "folder":
        entry.unlink()
        entry.mkdir()
    else:
        at = len(content) // 2
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        entry.write_bytes({"cut": content[:at], "flipped": flipped, "empty": b""}[damage])
    assert same(plain, Tokenizer.from_gguf(pieces(), tmp_path))
    assert len(built) == 2
    if damage != "folder":
        assert entry.read_bytes() == content


def test_another_vocabulary_library_or_code_has_an_entry_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = pieces()
    entry = cache.entry_path(tmp_path, metadata)
    assert cache.entry_path(tmp_path, {**metadata, "tokenizer.chat_template": "x", "general.name": "y"}) == entry
    tokens = metadata["tokenizer.ggml.tokens"]
    others = [
        {**metadata, "tokenizer.ggml.tokens": [*tokens[:-1], tokens[-1] + "x"]},
        {**metadata, "tokenizer.ggml.scores": [score + 1 for score in metadata["tokenizer.ggml.scores"]]},
        {**metadata, "tokenizer.ggml.add_bos_token": False},
    ]
    paths = {cache.entry_path(tmp_path, other) for other in others} | {entry}
    monkeypatch.setattr(cache, "_code", lambda: "other")
    assert len(paths | {cache.entry_path(tmp_path, metadata)}) == 5


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, built: list[int]) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        Tokenizer.from_gguf(pieces(), tmp_path / "file" / "folder")
    assert len(built) == 2


def test_the_least_recently_used_entries_go(tmp_path: Path, built: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 2)
    for number in range(4):
        Tokenizer.from_gguf({**pieces(), "tokenizer.ggml.extra": number}, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
