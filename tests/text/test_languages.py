"""Tokens of languages, as mBART, mBART-50, M2M-100 and NLLB have them, beside the reference's classes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer import AutoTokenizer
from glassformer.ground.errors import CheckpointError, InputError
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.tokenizer_classes import M2M_CODES, WMT21_CODES
from tests.parity.reference import transformers  # type: ignore[attr-defined]  # quiet, and offline
from tests.text.models import LLAMA, XLM_ROBERTA, processor, trained
from tests.text.test_legacy_vocabulary import config_files, write
from tests.text.test_sentencepiece import prose, some

Both = tuple[Tokenizer, Any]
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def m2m(folder: Path, options: dict[str, Any], codes: tuple[str, ...] = M2M_CODES, **config: Any) -> Path:
    """A folder as M2M-100's are: SentencePiece's pieces, and ids of their own."""
    raw = trained(**options)
    pieces = [processor(raw).id_to_piece(n) for n in range(3, processor(raw).vocab_size())]
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *pieces))}
    content = {"sentencepiece.bpe.model": raw, "vocab.json": vocabulary, **config_files("M2M100Tokenizer", **config)}
    more = {"special_tokens_map.json": {"additional_special_tokens": [f"__{code}__" for code in codes]}}
    return write(folder, {**content, **more})


def nllb(folder: Path, **config: Any) -> Path:
    """A folder as NLLB's are: BPE in a tokenizer.json."""
    letters = sorted(set("▁thedogwruqick"))
    tokens = [*SPECIAL, *letters, "▁t", "he", "▁the"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges: Any = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    codes = ["eng_Latn", "fra_Latn", "zho_Hans"]
    made = transformers.NllbTokenizer(vocabulary, merges, extra_special_tokens=codes, **config)
    made.save_pretrained(folder)
    return folder


def pieces(folder: Path, name: str, **config: Any) -> Path:
    return write(folder, {"sentencepiece.bpe.model": trained(**XLM_ROBERTA), **config_files(name, **config)})


def from_json(folder: Path, name: str) -> Path:
    """The same folder with a tokenizer.json, as the reference saves it."""
    transformers.AutoTokenizer.from_pretrained(pieces(folder / "pieces", name)).save_pretrained(folder)
    return folder


FOLDERS: dict[str, Any] = {
    "mbart": lambda folder: pieces(folder, "MBartTokenizer", src_lang="de_DE", tgt_lang="ro_RO"),
    "mbart, of any language": lambda folder: from_json(folder, "MBartTokenizer"),
    "mbart-50": lambda folder: pieces(folder, "MBart50Tokenizer", src_lang="fr_XX"),
    "mbart-50 with tokenizer.json": lambda folder: from_json(folder, "MBart50TokenizerFast"),
    "m2m-100": lambda folder: m2m(folder, XLM_ROBERTA, src_lang="fr", tgt_lang="de"),
    "m2m-100 by BPE": lambda folder: m2m(folder, {**LLAMA, "byte_fallback": False, "vocab_size": 140}),
    "wmt21": lambda folder: m2m(folder, XLM_ROBERTA, WMT21_CODES, language_codes="wmt21", tgt_lang="is"),
    "nllb": lambda folder: nllb(folder, src_lang="zho_Hans", tgt_lang="fra_Latn"),
    "nllb of old": lambda folder: nllb(folder, legacy_behaviour=True),
}


@pytest.fixture(params=FOLDERS, scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = FOLDERS[request.param](tmp_path_factory.mktemp("languages"))
    theirs = transformers.M2M100Tokenizer if request.param.startswith(("m2m", "wmt")) else transformers.AutoTokenizer
    with warnings.catch_warnings(action="ignore"):
        return AutoTokenizer.from_pretrained(folder), theirs.from_pretrained(folder)


@some
@given(
    text=prose | st.lists(st.sampled_from(["the", " dog", "</s>", "  ", "?", "fra_Latn", "de_DE"]), max_size=6).map("".join)
)
def test_any_text_is_encoded_as_the_references_classes_do(both: Both, text: str) -> None:
    ours, theirs = both
    assert ours.encode(text) == theirs.encode(text)
    assert ours(text, "the dog")["input_ids"] == theirs(text, "the dog")["input_ids"]
    ids = ours.encode(text)
    if ours.unk_token_id not in ids:
        assert ours.decode(ids, skip_special_tokens=True).strip() == theirs.decode(ids, skip_special_tokens=True).strip()


def test_languages_are_those_of_the_reference(both: Both) -> None:
    ours, theirs = both
    assert (ours.src_lang, ours.tgt_lang) == (theirs.src_lang, theirs.tgt_lang)
    assert len(ours) == len(theirs)
    for code, number in ours.lang_code_to_id.items():
        token = f"__{code}__" if ours.languages is not None and f"__{code}__" in ours.languages.tokens.values() else code
        assert number == theirs.convert_tokens_to_ids(token) == ours.get_lang_id(code)
    if hasattr(theirs, "lang_code_to_id"):
        assert ours.lang_code_to_id == dict(theirs.lang_code_to_id)


def test_sources_and_targets_have_their_languages_tokens(both: Both, tmp_path: Path) -> None:
    ours = both[0]
    before = ours.src_lang
    codes = list(ours.lang_code_to_id)
    try:
        for one in both:
            one.src_lang, one.tgt_lang = codes[1], codes[2]
        found, expected = (one("the dog", text_target="the quick dog") for one in both)
        assert dict(found) == dict(expected)
        assert found["input_ids"] != found["labels"]
        assert ours.encode("the dog") == found["input_ids"]
        ours.save_pretrained(tmp_path)
        again = AutoTokenizer.from_pretrained(tmp_path)
        assert (again.src_lang, again.tgt_lang) == (codes[1], codes[2])
        assert again("the dog", text_target="the quick dog") == found
    finally:
        for one in both:
            one.src_lang = before


def test_unknown_languages_are_refused(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(nllb(tmp_path))
    message = (
        r"'fra_Latin' is no language of this tokenizer\. Did you mean 'fra_Latn'\? It knows eng_Latn, fra_Latn, zho_Hans\."
    )
    for change in ("src_lang", "tgt_lang"):
        with pytest.raises(InputError, match=message):
            setattr(tokenizer, change, "fra_Latin")
    with pytest.raises(InputError, match="'fr'"):
        tokenizer.get_lang_id("fr")
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), "src_lang": "xx_Latn"}), "utf-8")
    with pytest.raises(CheckpointError, match="'xx_Latn'"):
        Tokenizer.from_folder(tmp_path)


def test_other_tokenizers_have_no_languages() -> None:
    tokenizer = AutoTokenizer.from_pretrained("smollm2")
    assert tokenizer.languages is None
    assert not hasattr(tokenizer, "src_lang")
    assert not hasattr(tokenizer, "tgt_lang")
    with pytest.raises(AttributeError, match="tokens of languages"):
        tokenizer.src_lang = "en"
