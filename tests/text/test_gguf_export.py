"""Tokenizers as GGUF's fields: what is written reads as the same tokenizer, and what cannot be said is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from glassformer.ground.errors import CheckpointError
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.gguf.export import tokenizer_fields
from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import GPT2, PRE_TOKENIZER_TYPES
from tests.text.models import GEMMA, LLAMA, byte_level, folder, trained
from tests.text.texts import moderate, texts

Metadata = Mapping[str, Any]


def fields_of(tokenizer: Tokenizer, size: int | None = None) -> dict[str, Any]:
    template = tokenizer.chat_template
    assert not isinstance(template, Mapping)
    special = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return tokenizer_fields(tokenizer.backend, special, template, size or len(tokenizer))


def reloaded(tokenizer: Tokenizer, size: int | None = None) -> Tokenizer:
    return Tokenizer.from_gguf(fields_of(tokenizer, size))


def test_smollm2_tokenizer_fields_round_trip(smol_metadata: Metadata) -> None:
    found = fields_of(Tokenizer.from_gguf(smol_metadata))
    theirs = {key: value for key, value in smol_metadata.items() if key.startswith("tokenizer.")}
    assert found.pop("tokenizer.ggml.add_eos_token") is False  # which their converter leaves unsaid
    assert theirs.pop("tokenizer.ggml.add_space_prefix") is False  # which is of no use to byte-level BPE
    assert found == theirs


@pytest.mark.parametrize(("name", "size", "pre"), [("qwen3", 151936, "qwen2"), ("gpt2", 50257, "gpt-2")])
def test_real_tokenizers_round_trip(name: str, size: int, pre: str, request: pytest.FixtureRequest) -> None:
    tokenizer = Tokenizer.from_folder(request.getfixturevalue(f"{name}_tokenizer"))
    fields = fields_of(tokenizer, size)
    assert fields["tokenizer.ggml.pre"] == pre
    assert len(fields["tokenizer.ggml.tokens"]) == len(fields["tokenizer.ggml.token_type"]) == size
    other = Tokenizer.from_gguf(fields)
    assert other.special_tokens_map == {k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
    assert other.chat_template == tokenizer.chat_template
    assert other.get_added_vocab() == tokenizer.get_added_vocab()
    for text in ("don't <|im_end|> stop", "  naïve\n\n\tcafé 1234 ✓ e\u0301", "<think>x</think>"):
        assert other(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert other.decode(other(text)["input_ids"]) == tokenizer.decode(tokenizer(text)["input_ids"])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
    path = tmp_path_factory.mktemp("llama")
    return Tokenizer.from_folder(folder(path, "tokenizer.model", trained(**LLAMA), {"tokenizer_config.json": config}))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "bos_token": "<bos>"}
    path = tmp_path_factory.mktemp("gemma")
    return Tokenizer.from_folder(folder(path, "tokenizer.model", trained(**GEMMA), {"tokenizer_config.json": config}))


class TestSentencePieceExport:
    def test_llama_fields_round_trip(self, llama: Tokenizer) -> None:
        fields = fields_of(llama)
        assert fields["tokenizer.ggml.model"] == "llama"
        assert fields["tokenizer.ggml.add_space_prefix"] is True
        assert fields["tokenizer.ggml.add_bos_token"] is True
        assert fields["tokenizer.ggml.bos_token_id"] == 1
        kinds = dict(zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True))
        assert (kinds["<unk>"], kinds["<s>"], kinds["<0x0A>"], kinds["▁the"]) == (2, 3, 6, 1)

    def test_gemma_fields_round_trip(self, gemma: Tokenizer) -> None:
        fields = fields_of(gemma)
        assert fields["tokenizer.ggml.add_space_prefix"] is False
        kinds = dict(zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True))
        assert kinds["<turn>"] == 4

    def test_user_defined_tokens_with_spaces(self, gemma: Tokenizer) -> None:
        """Where pieces take no space in front, GGUF spells the spaces of a user's tokens as they are in a text."""
        backend = Backend.from_str(gemma.backend.to_str())
        backend.add_tokens([AddedToken("▁▁▁", normalized=True)])
        fields = tokenizer_fields(backend, {"bos_token": "<bos>"}, None, backend.get_vocab_size())
        assert fields["tokenizer.ggml.tokens"][-1] == "   "
        assert Tokenizer.from_gguf(fields)("a   b")["input_ids"] == backend.encode("a   b").ids

    @moderate
    @given(text=texts)
    def test_any_text_encodes_the_same_after_export(self, llama: Tokenizer, gemma: Tokenizer, text: str) -> None:
        for tokenizer in (llama, gemma):
            mine = tokenizer(text)["input_ids"]
            if not text.startswith((" ", "▁")):  # a second space is put before one there, by some
                assert _read(tokenizer)(text)["input_ids"] == mine


_READ: dict[int, Tokenizer] = {}


def _read(tokenizer: Tokenizer) -> Tokenizer:
    if id(tokenizer) not in _READ:
        _READ[id(tokenizer)] = reloaded(tokenizer)
    return _READ[id(tokenizer)]


@pytest.mark.parametrize("name", [name for name, split in PRE_TOKENIZER_TYPES.items() if split.byte_level])
def test_every_pre_tokenizer_is_named(name: str) -> None:
    """Each has a name, if not the only one; with it the same is read."""
    split = PRE_TOKENIZER_TYPES[name]
    backend = byte_level(ignore_merges=split.ignore_merges)
    backend.pre_tokenizer = split.pre_tokenizer()
    backend.normalizer = normalizers.NFC() if split.nfc else None
    exported = PRE_TOKENIZER_TYPES[tokenizer_fields(backend, {}, None, 300)["tokenizer.ggml.pre"]]
    assert replace(exported, add_bos=False, add_sep=False) == replace(split, add_bos=False, add_sep=False)


def test_other_forms_of_the_same_split_are_named() -> None:
    """As tokenizer.json files spell them: GPT-2's pattern apart from its bytes, digits as a pattern, pieces in sequences."""
    backend = byte_level()
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    words = pre_tokenizers.Split(Regex(GPT2), "isolated")
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.Sequence([words, spelling])])
    assert tokenizer_fields(backend, {}, None, 300)["tokenizer.ggml.pre"] == "smollm"


def test_vocabulary_without_merges() -> None:
    backend = byte_level()
    backend.model = models.BPE({token: number for token, number in backend.get_vocab().items() if number < 256}, [])
    fields = tokenizer_fields(backend, {}, None, 300)
    assert fields["tokenizer.ggml.merges"] == []
    assert Tokenizer.from_gguf(fields).encode("the") == backend.encode("the").ids


@pytest.mark.parametrize(
    ("around", "bos", "eos"),
    [("$A", False, False), ("<s> $A", True, False), ("<s> $A </s>", True, True), ("$A </s>", False, True)],
)
def test_add_bos_and_add_eos_fields(around: str, bos: bool, eos: bool) -> None:
    backend = byte_level()
    numbers = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=around, special_tokens=numbers)
    found = tokenizer_fields(backend, {"bos_token": "<s>", "eos_token": "</s>"}, None, 300)
    assert (found["tokenizer.ggml.add_bos_token"], found["tokenizer.ggml.add_eos_token"]) == (bos, eos)


def test_ids_without_a_token_are_padding() -> None:
    found = tokenizer_fields(byte_level(), {}, None, 262)
    assert found["tokenizer.ggml.tokens"][-3:] == ["</s>", "[PAD260]", "[PAD261]"]
    assert found["tokenizer.ggml.token_type"][-4:] == [3, 3, 5, 5]


class TestExportRefused:
    @pytest.mark.parametrize("what", ["split", "normalizer", "merges"])
    def test_unnamed_pre_tokenizer(self, what: str) -> None:
        backend = byte_level(ignore_merges=what == "merges")
        if what == "split":
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Punctuation(), PRE_TOKENIZER_TYPES["gpt-2"].pre_tokenizer()]
            )
        if what == "normalizer":
            backend.normalizer = normalizers.Lowercase()
        with pytest.raises(CheckpointError, match="no name for"):
            tokenizer_fields(backend, {}, None, 300)
