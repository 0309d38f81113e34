"""The table of tokenizer_config.json's fields: what it says of each is what the loader does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from glassformer import AutoTokenizer
from glassformer.ground.errors import CheckpointError
from glassformer.text.tokenizer_files.config_fields import ALLOWED, FIELDS, SPECIAL_TOKEN_NAMES, TokenizerConfig
from tests.parity.reference import transformers
from tests.text.models import ALBERT, DEBERTA, GEMMA, LLAMA, T5, XLM_ROBERTA, trained
from tests.text.test_languages import m2m, nllb
from tests.text.test_leading_space import byte_level
from tests.text.test_leading_space import write as write_files
from tests.text.test_tokenizer import assert_same, configured, framed, wordwise, write

ODD: dict[str, list[Any]] = {  # values of the wrong type, for each type
    "token": [5, [], {}, {"content": 5}, True],
    "list": [5, "<x>", {"a": "<x>"}],
    "list of texts": [5, "x", [5], {}],
    "list or object": [5, "<x>", True],
    "object": [5, "<x>", []],
    "flag": ["yes", 1, []],
    "number": ["long", [], True],
    "count": ["many", -1, 1.5, True, 10**9],
    "side": ["middle", 5, ["left"]],
    "text": [5, [], {}],
    "anything": [],
}
WRONG = [(name, value) for name, field in FIELDS.items() for value in ODD[field.value]]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_of_the_wrong_type_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"tokenizer_config\.json: '{name}' (is|holds) .*\. Fetch it again"):
        AutoTokenizer.from_pretrained(write(tmp_path, {"tokenizer_config.json": {name: value}}))


@pytest.mark.parametrize("name", FIELDS)
def test_null_is_as_no_field_at_all(name: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write(tmp_path, {"tokenizer_config.json": {name: None}}))
    assert tokenizer.encode("the") == AutoTokenizer.from_pretrained(write(tmp_path, {"tokenizer_config.json": {}})).encode(
        "the"
    )


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.use == "refused"])
def test_what_is_refused_says_why_and_what_to_do(name: str, tmp_path: Path) -> None:
    value = True if FIELDS[name].value == "flag" else "mecab"
    with pytest.raises(CheckpointError, match=rf"'{name}' is {value!r}, which asks for .*\. (Fetch|Use) .*\."):
        AutoTokenizer.from_pretrained(write(tmp_path, configured(**{name: value})))
    for value in ALLOWED.get(name, (False,)):
        AutoTokenizer.from_pretrained(write(tmp_path, configured(**{name: value})))


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.use == "harmless"])
def test_what_is_harmless_changes_no_id_and_no_text(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, configured(**{name: "something"}))
    plain = AutoTokenizer.from_pretrained(write(tmp_path / "plain", configured()))
    ours = AutoTokenizer.from_pretrained(folder)
    ids = plain.encode("the fox <s> .")
    assert (ours.encode("the fox <s> ."), ours.decode(ids), ours.padding_side) == (
        ids,
        plain.decode(ids),
        plain.padding_side,
    )


def test_the_loader_asks_for_every_field_that_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roles are read all together; every other field by its name."""
    asked: set[str] = set()
    get = TokenizerConfig.get

    def recording(self: TokenizerConfig, name: str, default: Any = None) -> Any:
        asked.add(name)
        return get(self, name, default)

    monkeypatch.setattr(TokenizerConfig, "get", recording)
    words = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]).encode()
    folders: list[dict[str, Any]] = [
        {"tokenizer.json": framed()},
        {"vocab.txt": words},
        {"vocab.json": {"a": 0, "<|endoftext|>": 1}, "merges.txt": b""},
        {"vocab.json": {"a": 0, "<s>": 1, "</s>": 2}, "merges.txt": b"", "config.json": {"model_type": "roberta"}},
        {"tokenizer.model": trained(**LLAMA), "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"}},
        {"tokenizer.model": trained(**GEMMA), "tokenizer_config.json": {"tokenizer_class": "GemmaTokenizer"}},
        {"spiece.model": trained(**T5), "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer"}},
        {"spiece.model": trained(**ALBERT), "tokenizer_config.json": {"tokenizer_class": "AlbertTokenizer"}},
        {"spm.model": trained(**DEBERTA), "tokenizer_config.json": {"tokenizer_class": "DebertaV2Tokenizer"}},
        {"spiece.model": trained(**T5), "tokenizer_config.json": {"tokenizer_class": "PegasusTokenizer"}},
    ]
    for number, files in enumerate(folders):
        AutoTokenizer.from_pretrained(write_files(tmp_path / str(number), files))
    AutoTokenizer.from_pretrained(nllb(tmp_path / "nllb"))
    AutoTokenizer.from_pretrained(m2m(tmp_path / "m2m", XLM_ROBERTA))
    honoured = {name for name, field in FIELDS.items() if field.use in ("honoured", "superseded")}
    assert honoured - asked == set(SPECIAL_TOKEN_NAMES) - {"unk_token"}  # which WordPiece or SentencePiece needs by name
    assert asked <= honoured


def test_fields_of_the_references_classes_are_in_the_table() -> None:
    """The arguments of the classes that the field's most common families use, but for what is no field of a file."""
    names = ["Llama", "Qwen2", "Gemma", "Cohere", "Bert", "DistilBert", "Roberta", "T5", "GPT2", "GPTNeoX"]
    files = {"self", "args", "kwargs", "vocab", "merges"} | {"_spm_precompiled_charsmap"}
    for name in names:
        arguments = getattr(transformers, f"{name}Tokenizer").__init__.__code__
        for argument in arguments.co_varnames[: arguments.co_argcount]:
            assert argument in FIELDS or argument in files, (name, argument)


@pytest.mark.parametrize("split", [False, True])
def test_split_special_tokens(split: bool, tmp_path: Path) -> None:
    folder = write(tmp_path, configured(eos_token="</s>", split_special_tokens=split))
    ours, theirs = AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert_same(ours, theirs)
    ours.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").encode("the</s>") == theirs.encode("the</s>")


def test_clean_up_even_where_the_vocabulary_spells_its_spaces(tmp_path: Path) -> None:
    config = {"clean_up_tokenization_spaces": True}
    corrupting = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    for flag in (False, True):
        folder = write(tmp_path, configured(**config, **{corrupting: flag}))
        ours, theirs = AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
        ids = ours.encode("the fox .", add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids) == ("the fox." if flag else "the fox .")


def test_chat_control_tokens_of_the_model_itself(tmp_path: Path) -> None:
    """Listed tokens are kept out of messages, and those that only the template names are not."""
    backend = framed()
    backend.add_tokens(["<a>", "<b>"])
    messages = [{"role": "user", "content": "<a><b>"}]
    for listed, letters in ((None, "<b>"), (["<a>"], "<a>")):
        config = configured(chat_template="<b>{{ messages[0].content }}", chat_control_tokens=listed)
        folder = write(tmp_path, config, backend)
        ours, theirs = AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
        ids = ours.apply_chat_template(messages, sanitize_control_tokens=True, return_dict=False)
        assert ids == theirs.apply_chat_template(messages, sanitize_control_tokens=True, return_dict=False)
        assert ids.count(ours.convert_tokens_to_ids(letters)) == (letters == "<b>")


@pytest.mark.parametrize("field", ["model_max_length", "max_len"])
def test_model_max_length_under_both_names(field: str, tmp_path: Path) -> None:
    assert AutoTokenizer.from_pretrained(write(tmp_path, configured(**{field: 7}))).model_max_length == 7


def test_flags_are_kept_when_saved(tmp_path: Path) -> None:
    config = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}
    folder = write_files(tmp_path / "a", {"tokenizer.json": byte_level(False, True), "tokenizer_config.json": config})
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "b")
    assert AutoTokenizer.from_pretrained(tmp_path / "b").tokenize("hello")[0].startswith("Ġ")


def test_words_are_joined_and_cleaned(tmp_path: Path) -> None:
    ours = AutoTokenizer.from_pretrained(write(tmp_path, configured(clean_up_tokenization_spaces=True), wordwise()))
    assert ours.decode(ours.encode("it is n't so .")) == "it isn't so."


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("where", ["tokenizer.json", "added_tokens_decoder"])
@pytest.mark.parametrize("name", ["GemmaTokenizer", "TokenizersBackend", "LlamaTokenizer"])
def test_a_token_with_a_role_is_special_whatever_the_file_says(
    name: str, where: str, normalized: bool, tmp_path: Path
) -> None:
    """As `<mask>` in Gemma's files, which only its class knows to be the mask."""
    contents = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<image>"]
    vocab = {token: number for number, token in enumerate([*contents, "▁", "a", "b", "▁a"])}
    backend = Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in contents[:4]])
    plain = [AddedToken(content, special=False, normalized=normalized, lstrip=True) for content in contents[4:]]
    backend.add_tokens(plain)
    config: dict[str, Any] = {"tokenizer_class": name, "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    config["additional_special_tokens"] = ["<image>"]
    if name != "GemmaTokenizer":
        config["mask_token"] = "<mask>"
    if where == "added_tokens_decoder":
        flags = {"special": False, "lstrip": True, "rstrip": False, "normalized": normalized, "single_word": False}
        config[where] = {str(vocab[token.content]): {"content": token.content, **flags} for token in plain}
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = AutoTokenizer.from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("a <mask>b", "b <image>a", "a▁<mask>"):
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert "<mask>" not in ours.decode([vocab["a"], vocab["<mask>"]], skip_special_tokens=True)


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize(
    ("name", "model_type"),
    [("Qwen3_5Tokenizer", None), ("Qwen2Tokenizer", "qwen3_5"), ("Qwen2Tokenizer", "qwen3"), ("TokenizersBackend", None)],
)
def test_qwens_classes_compose_accents_and_split_in_their_own_way(
    name: str, model_type: str | None, composed: bool, tmp_path: Path
) -> None:
    """Whatever a tokenizer.json says; and Qwen 3.5's model type is read by its own class, whatever is named."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocab = {token: number for number, token in enumerate(["<|endoftext|>", *sorted(alphabet), "Ã©", "eÌ"])}
    backend = Tokenizer(models.BPE(vocab, [("Ã", "©"), ("e", "Ì")]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\s+"), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    if composed:
        backend.normalizer = normalizers.NFC()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "eos_token": "<|endoftext|>"}))
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    ours, theirs = AutoTokenizer.from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("cafe\u0301 café", "re\u0301sume\u0301's 12", "\u0301 e\u0300"):
        assert ours.tokenize(text) == theirs.tokenize(text)
