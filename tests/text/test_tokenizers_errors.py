"""Files and texts over which the tokenizers library panics: each a sentence of ours, and never a dead process."""

from __future__ import annotations

import base64
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from glassformer import AutoTokenizer
from glassformer.ground.errors import CheckpointError
from glassformer.text.tokenizers_errors import LibraryErrors

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
ENCODED = r"the tokenizer's files do not let this text be encoded \(.*\)\. Fetch them again"
DECODED = r"the tokenizer's files do not let these ids be decoded \(.*\)\. Fetch them again"


def write(folder: Path, **parts: Any) -> Path:
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    whole = {"version": "1.0", "added_tokens": [], **empty, "model": WORDS, **parts}
    (folder / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    return folder


def charsmap(raw: bytes) -> dict[str, str]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


def bpe(prefix: str, merges: list[Any], **vocabulary: int) -> dict[str, Any]:
    return {"type": "BPE", "vocab": vocabulary, "merges": merges, "continuing_subword_prefix": prefix}


LOADING = {
    "a table that is none": {"normalizer": charsmap(b"\x01\x02")},
    "a pattern that is none": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}},
    "an unknown piece beyond the others": {"model": {"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}},
    "an empty sign for spaces": {"pre_tokenizer": {"type": "Metaspace", "replacement": "", "prepend_scheme": "always"}},
}


@pytest.mark.parametrize("parts", LOADING.values(), ids=LOADING)
def test_library_errors_on_loading_name_the_file(parts: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="tokenizer file"):
        AutoTokenizer.from_pretrained(write(tmp_path, **parts))


@pytest.mark.parametrize(
    "model",
    [bpe("####", [["a", "b"]], a=0, b=1, ab=2), bpe("x", [["a", "é"]], a=0, é=1, aé=2), bpe("x", ["a é"], a=0, é=1, aé=2)],
    ids=str,
)
def test_merges_that_lack_their_prefix_are_refused(model: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="lacks the prefix"):
        AutoTokenizer.from_pretrained(write(tmp_path, model=model))
    hidden = (tmp_path / "tokenizer.json").read_text("utf-8").replace('"continuing', '"c\\u006fntinuing')
    (tmp_path / "tokenizer.json").write_text(hidden, "utf-8")
    with pytest.raises(CheckpointError, match="lacks the prefix"):
        AutoTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("piece", "what"),
    [
        ({"Sequence": {"id": "B", "type_id": 0}}, "sequence B"),
        ({"SpecialToken": {"id": "<x>", "type_id": 0}}, "the token '<x>'"),
    ],
)
def test_templates_that_name_what_is_missing_are_refused(
    piece: dict[str, Any], what: str, nested: bool, tmp_path: Path
) -> None:
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
    template: dict[str, Any] = {"type": "TemplateProcessing", "single": [piece], "pair": pair, "special_tokens": {}}
    processor = {"type": "Sequence", "processors": [template]} if nested else template
    with pytest.raises(CheckpointError, match=f"its template for single texts names {what}, which is not there"):
        AutoTokenizer.from_pretrained(write(tmp_path, post_processor=processor))


def test_merges_beyond_the_vocabulary_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError, match="'abab'"):
        AutoTokenizer.from_pretrained(write(tmp_path, model=bpe("", [["ab", "ab"]], ab=0)))
    assert capfd.readouterr().err == ""


def test_merges_with_their_prefix_load(tmp_path: Path) -> None:
    model = bpe("##", [["a", "##b"]], **{"a": 0, "##b": 1, "ab": 2})
    assert AutoTokenizer.from_pretrained(write(tmp_path, model=model)).encode("ab") == [2]


ENCODE_ERRORS = {
    "a table that points outside": {"normalizer": charsmap(b"\x08\0\0\0" + b"\xff" * 8 + b"abc\0")},
    "an empty table": {"normalizer": charsmap(b"\0\0\0\0")},
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "no pieces at all": {"model": {"type": "Unigram", "unk_id": None, "vocab": []}},
    "no unknown piece": {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]}},
    "no unknown word": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "x"}},
    "no unknown word piece": {
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
            "vocab": {"a": 0},
        }
    },
    "an unknown token that is unknown": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "zz"}},
}  # fmt: skip


@pytest.mark.parametrize("parts", ENCODE_ERRORS.values(), ids=ENCODE_ERRORS)
def test_library_panics_while_encoding_become_checkpoint_errors(parts: dict[str, Any], tmp_path: Path) -> None:
    ours = AutoTokenizer.from_pretrained(write(tmp_path, **parts))
    whole = partial(ours.tokenize, add_special_tokens=True)
    for turn in (ours, ours.encode, whole, lambda text: ours([text, text]), lambda text: ours([text])):
        with pytest.raises(CheckpointError, match=ENCODED):
            turn("bé a")


@pytest.mark.parametrize("ends", [(0, 9), (9, 9)])
def test_library_panics_while_decoding_become_checkpoint_errors(ends: tuple[int, int], tmp_path: Path) -> None:
    strip = {"type": "Strip", "content": "a", "start": ends[0], "stop": ends[1]}
    ours = AutoTokenizer.from_pretrained(write(tmp_path, decoder=strip))
    for ids in (0, [0], [[0], [0]], (0,), [(0,)]):
        with pytest.raises(CheckpointError, match=DECODED):
            ours.decode(ids)
        with pytest.raises(CheckpointError, match=DECODED):
            ours.batch_decode(ids)
    with pytest.raises(CheckpointError, match=DECODED):
        ours.detokenizer().feed(0)


def test_padding_and_truncation_in_the_file_are_not_applied(tmp_path: Path) -> None:
    """A window that never moves on, and padding to a multiple of nothing: the library's state is not used."""
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}
    padding = {
        "strategy": {"Fixed": 3}, "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "a",
    }  # fmt: skip
    ours = AutoTokenizer.from_pretrained(write(tmp_path, truncation=truncation, padding=padding))
    assert ours.encode("a") == [0]
    assert (ours.padding_side, ours.pad_token) == ("left", "a")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_passes_through(kind: type[BaseException]) -> None:
    with pytest.raises(kind), LibraryErrors("never said: {}"):
        raise kind
    with pytest.raises(CheckpointError, match="it said: no"), LibraryErrors("it said: {}"):
        raise BaseException("no")
