"""A space at a text's beginning: every route to the same tokenizer keeps it or drops it as the reference does.

The routes are a folder's vocabulary files, its tokenizer.json, what is saved from either, and a GGUF file. For GGUF the
reference is llama.cpp, which puts a space before every text and after every special token, as SentencePiece does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from glassformer import AutoTokenizer
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.gguf.export import tokenizer_fields
from tests.parity.reference import transformers
from tests.text.models import GEMMA, LLAMA, T5, processor, trained
from tests.text.texts import moderate

pytestmark = pytest.mark.every_combination  # of flags in several files, of which one overrules another
TEXTS = ["hello", " hello", "  hello", "<s>hello", "<s> hello", "the</s> the", "the <turn> the", " ", "", "\nhello", "a  b "]


def write(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        if isinstance(content, tokenizers.Tokenizer):
            content.save(str(folder / name))
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def assert_same(ours: Tokenizer, theirs: Any, texts: list[str] = TEXTS) -> None:
    for text in texts:
        assert ours.tokenize(text) == theirs.tokenize(text), text
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, add_special_tokens=False) == ids
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip), text
            stream = ours.detokenizer(skip)
            assert "".join(stream.feed(number) for number in ids) + stream.finish() == ours.decode(ids, skip), text


def legacy_json(folder: Path) -> tokenizers.Tokenizer:
    """Llama 2's tokenizer.json as it was converted years ago: a space before every text, by a normalizer."""
    backend = AutoTokenizer.from_pretrained(folder).backend
    backend = tokenizers.Tokenizer.from_str(backend.to_str())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = None
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return backend


FLAGS: list[dict[str, Any]] = [
    {},
    {"legacy": True},
    {"legacy": False},
    {"add_prefix_space": False},
    {"add_prefix_space": None},
]


@pytest.mark.parametrize("flags", FLAGS, ids=repr)
@pytest.mark.parametrize("name", ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "PreTrainedTokenizerFast"])
def test_llama_from_tokenizer_json_and_from_pieces(name: str, flags: dict[str, Any], tmp_path: Path) -> None:
    config = {"tokenizer_class": name, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **flags}
    pieces = {"tokenizer.model": trained(**LLAMA), "tokenizer_config.json": {**config, "tokenizer_class": "LlamaTokenizer"}}
    first = write(tmp_path / "pieces", pieces)
    second = write(tmp_path / "json", {"tokenizer.json": legacy_json(first), "tokenizer_config.json": config})
    from_pieces, from_json = AutoTokenizer.from_pretrained(first), AutoTokenizer.from_pretrained(second)
    assert_same(from_json, transformers.AutoTokenizer.from_pretrained(second))
    if name.startswith("Llama"):
        assert [from_json.tokenize(text) for text in TEXTS] == [from_pieces.tokenize(text) for text in TEXTS]
    from_json.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [from_json.tokenize(text) for text in TEXTS] == [again.tokenize(text) for text in TEXTS]


@pytest.mark.parametrize(("name", "file", "options"), [
    ("LlamaTokenizer", "tokenizer.model", LLAMA), ("GemmaTokenizer", "tokenizer.model", GEMMA),
    ("T5Tokenizer", "spiece.model", T5),
])  # fmt: skip
def test_pieces_and_what_is_saved_from_them(name: str, file: str, options: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path / "pieces", {file: trained(**options), "tokenizer_config.json": {"tokenizer_class": name}})
    ours, theirs = AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert_same(ours, theirs)
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    for saved in ("ours", "theirs"):
        assert_same(AutoTokenizer.from_pretrained(tmp_path / saved), theirs)


def byte_level(add_prefix_space: bool, roberta: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["hello the quick fox"] * 4, trainer)
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    if roberta:
        backend.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), True, add_prefix_space)
    return backend


@pytest.mark.parametrize("in_json", [False, True])
@pytest.mark.parametrize("in_config", [None, False, True])
@pytest.mark.parametrize(
    "name", ["GPT2Tokenizer", "RobertaTokenizer", "BartTokenizerFast", "GPTNeoXTokenizer", "PreTrainedTokenizerFast"]
)
def test_add_prefix_space_of_byte_level_classes(name: str, in_config: bool | None, in_json: bool, tmp_path: Path) -> None:
    config = {"tokenizer_class": name, **({} if in_config is None else {"add_prefix_space": in_config})}
    backend = byte_level(in_json, roberta=name.startswith(("Roberta", "Bart")))
    folder = write(tmp_path, {"tokenizer.json": backend, "tokenizer_config.json": config})
    assert_same(AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder))


@pytest.mark.parametrize("in_json", [False, True])
@pytest.mark.parametrize(
    "flags",
    [{}, {"do_lower_case": True}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}],
    ids=repr,
)
@pytest.mark.parametrize("name", ["BertTokenizer", "DistilBertTokenizerFast", "PreTrainedTokenizerFast", None])
def test_flags_of_bert_classes(name: str | None, flags: dict[str, bool], in_json: bool, tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "caf", "##e", "##é", "漢", "字", "漢字"]
    backend = tokenizers.Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=in_json)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(words[:5])
    config = flags if name is None else {"tokenizer_class": name, **flags}
    files = {"tokenizer.json": backend, "tokenizer_config.json": config, "config.json": {"model_type": "bert"}}
    folder = write(tmp_path, files)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert_same(AutoTokenizer.from_pretrained(folder), theirs, ["The café", " the", "漢字", "[MASK] the"])


@pytest.fixture(scope="module")
def llama_gguf(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = {"tokenizer_class": "LlamaTokenizer"}
    files = {"tokenizer.model": trained(**LLAMA), "tokenizer_config.json": config}
    tokenizer = AutoTokenizer.from_pretrained(write(tmp_path_factory.mktemp("llama"), files))
    special = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return Tokenizer.from_gguf(tokenizer_fields(tokenizer.backend, special, None, len(tokenizer)))


@moderate
@given(text=st.lists(st.sampled_from([" ", "  ", "hello", "the", "\n", "é"]), max_size=6).map("".join))
def test_gguf_puts_a_space_before_every_text_as_sentencepiece_does(llama_gguf: Tokenizer, text: str) -> None:
    ids = llama_gguf.encode(text, add_special_tokens=False)
    assert ids == processor(trained(**LLAMA)).encode(text)
    assert llama_gguf.decode(ids) == text
    stream = llama_gguf.detokenizer()
    assert "".join(stream.feed(number) for number in ids) + stream.finish() == text


def test_gguf_puts_a_space_after_special_tokens(llama_gguf: Tokenizer) -> None:
    assert llama_gguf.tokenize("the</s>the") == ["▁the", "</s>", "▁the"]
