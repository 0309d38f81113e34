"""The tokenizer: everything that the reference does with Qwen3's, and with small ones made here to be difficult."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from pprint import pprint
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from glassformer import AutoTokenizer
from glassformer.ground.errors import CheckpointError, InputError, InputTypeError
from glassformer.text import BatchEncoding, Tokenizer
from glassformer.text.tokenizer_files.tokenizer_classes import class_for_config
from tests.parity.reference import transformers
from tests.text.texts import encodable_bytes, moderate, texts

BATCH = ["Hi!", "How are you today?", "", "👩‍👩‍👧 naïve 2024"]


# The vocabulary ---------------------------------------------------------------------------------------------------


def test_vocabulary_sizes_of_qwen3(qwen: Tokenizer, reference: Any) -> None:
    assert (qwen.vocab_size, len(qwen)) == (151643, 151669) == (reference.vocab_size, len(reference))
    assert qwen.vocab == qwen.get_vocab() == reference.get_vocab()
    assert qwen.get_added_vocab() == reference.get_added_vocab()
    assert qwen.get_added_vocab()["<|im_start|>"] == 151644
    assert "trained 151,643 · with added tokens 151,669" in repr(qwen)


@pytest.mark.parametrize("name", ["bos", "eos", "unk", "sep", "pad", "cls", "mask"])
def test_special_tokens_match_the_reference(qwen: Tokenizer, reference: Any, name: str) -> None:
    for attribute in (f"{name}_token", f"{name}_token_id"):
        assert getattr(qwen, attribute) == getattr(reference, attribute)


def test_special_tokens_of_qwen3(qwen: Tokenizer, reference: Any) -> None:
    assert (qwen.eos_token, qwen.eos_token_id) == ("<|im_end|>", 151645)
    assert (qwen.pad_token, qwen.pad_token_id) == ("<|endoftext|>", 151643)
    assert qwen.bos_token is None
    assert qwen.bos_token_id is None
    assert qwen.all_special_tokens == reference.all_special_tokens
    assert qwen.all_special_ids == reference.all_special_ids
    assert qwen.additional_special_tokens == reference.extra_special_tokens
    assert qwen.special_tokens_map["eos_token"] == "<|im_end|>"
    assert (qwen.padding_side, qwen.model_max_length) == (reference.padding_side, reference.model_max_length)


# Text to ids ------------------------------------------------------------------------------------------------------


@moderate
@given(text=texts)
def test_any_text_encodes_like_the_reference(qwen: Tokenizer, reference: Any, text: str) -> None:
    assert dict(qwen(text)) == dict(reference(text))
    assert qwen.encode(text) == reference.encode(text)
    assert qwen.tokenize(text) == reference.tokenize(text)


@moderate
@given(batch=st.lists(texts, min_size=1, max_size=4), side=st.sampled_from(["left", "right"]), limit=st.integers(0, 12))
def test_any_batch_pads_and_truncates_like_the_reference(
    qwen: Tokenizer, reference: Any, batch: list[str], side: str, limit: int
) -> None:
    for options in (
        {"padding": True},
        {"padding": "longest", "truncation": True, "max_length": limit},
        {"padding": "max_length", "truncation": True, "max_length": limit},
        {"padding": "max_length", "max_length": limit},
        {"truncation": True, "max_length": limit},
    ):
        ours, theirs = (which(batch, padding_side=side, **options) for which in (qwen, reference))
        assert dict(ours) == dict(theirs)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_padding_side_can_be_set(qwen: Tokenizer, reference: Any, side: str) -> None:
    ours = copy.copy(qwen)
    ours.padding_side = side
    found, expected = (
        ours(BATCH, padding=True, return_tensors="pt"),
        reference(BATCH, padding=True, padding_side=side, return_tensors="pt"),
    )
    assert torch.equal(found.input_ids, expected.input_ids)
    assert torch.equal(found.attention_mask, expected.attention_mask)


def test_truncation_defaults_to_model_max_length(qwen: Tokenizer) -> None:
    short = copy.copy(qwen)
    short.model_max_length = 3
    assert short("one two three four", truncation=True)["input_ids"] == qwen("one two three")["input_ids"]
    assert short("one", padding="max_length")["attention_mask"] == [1, 0, 0]


@pytest.mark.parametrize("text", ["Hi!", ["Hi!"], ("Hi!", "Hi!"), [], ""])
def test_return_tensors_types_and_shapes(qwen: Tokenizer, text: Any) -> None:
    plain = qwen(text)["input_ids"]
    rows = [plain] if isinstance(text, str) else plain
    assert isinstance(plain, list)
    for kind, make, dtype in (("pt", torch.tensor, torch.int64), ("np", np.array, np.int64)):
        for name in ("input_ids", "attention_mask"):
            array = qwen(text, return_tensors=kind)[name]
            assert type(array) is type(make(0))
            assert array.dtype == dtype
            assert tuple(array.shape) == (len(rows), len(rows[0]) if rows else 0)
        assert qwen(text, return_tensors=kind).input_ids.tolist() == rows
    assert list(qwen(text, return_attention_mask=False)) == ["input_ids"]


def test_known_encoding_of_qwen3_as_printed(qwen: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    assert qwen("Hi!")["input_ids"] == [13048, 0]
    pprint(qwen("Hi!", return_tensors="pt"))
    assert capsys.readouterr().out == ("{'input_ids': tensor([[13048,     0]]), 'attention_mask': tensor([[1, 1]])}\n")


def test_encode_gives_tensors_too(qwen: Tokenizer) -> None:
    assert torch.equal(qwen.encode("Hi!", return_tensors="pt"), torch.tensor([[13048, 0]]))


def test_an_encoding_is_a_mapping_with_attributes(qwen: Tokenizer) -> None:
    tokens = qwen("Hi!", return_tensors="pt")
    assert (lambda **given: sorted(given))(**tokens) == ["attention_mask", "input_ids"]
    assert tokens.input_ids is tokens["input_ids"]
    moved = tokens.to("meta")
    assert isinstance(moved, BatchEncoding)
    assert {value.device.type for value in moved.values()} == {"meta"}
    assert qwen("Hi!").to("meta")["input_ids"] == [13048, 0]  # lists have no device
    for again in (copy.deepcopy(tokens), pickle.loads(pickle.dumps(tokens))):
        assert torch.equal(again.input_ids, tokens.input_ids)


# Ids to text ------------------------------------------------------------------------------------------------------


@moderate
@given(ids=st.lists(st.integers(0, 151935) | st.integers(151640, 151670), max_size=20), skip=st.booleans())
def test_any_ids_decode_like_the_reference(qwen: Tokenizer, reference: Any, ids: list[int], skip: bool) -> None:
    assert qwen.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)


@moderate
@given(text=texts)
def test_decode_inverts_encode(qwen: Tokenizer, text: str) -> None:
    assert qwen.decode(qwen.encode(text)) == encodable_bytes(qwen, text).decode()


@pytest.mark.parametrize("shape", [list, tuple, np.array, torch.tensor])
def test_decode_takes_every_shape(qwen: Tokenizer, reference: Any, shape: Callable[[Any], Any]) -> None:
    row, rows = [13048, 0, 151645], [[13048, 0], [151645, 0]]
    assert qwen.decode(shape(row)) == reference.decode(shape(row)) == "Hi!<|im_end|>"
    assert qwen.decode(shape(row), skip_special_tokens=True) == "Hi!"
    assert qwen.decode(shape(rows)) == reference.decode(shape(rows)) == ["Hi!", "<|im_end|>!"]
    assert qwen.batch_decode(shape(rows), skip_special_tokens=True) == ["Hi!", "!"]
    assert qwen.batch_decode(shape(row)) == reference.batch_decode(shape(row)) == ["Hi!<|im_end|>"]


@pytest.mark.parametrize("one", [13048, np.int64(13048), np.array(13048), torch.tensor(13048)])
def test_decode_takes_one_id(qwen: Tokenizer, one: Any) -> None:
    assert qwen.decode(one) == "Hi"
    assert qwen.decode([one, one]) == "HiHi"
    assert qwen.convert_ids_to_tokens(one) == "Hi"


def test_no_ids_and_padding_ids_decode_to_nothing(qwen: Tokenizer) -> None:
    assert qwen.decode([]) == ""
    assert qwen.decode([[], []]) == ["", ""]
    assert qwen.decode([151669, 151935]) == ""  # scores are padded beyond the vocabulary


def test_convert_ids_and_tokens_are_inverse(qwen: Tokenizer, reference: Any) -> None:
    ids = [13048, 0, 220, 151644, 151667, 151642]
    tokens = qwen.convert_ids_to_tokens(ids)
    assert tokens == reference.convert_ids_to_tokens(ids)
    assert qwen.convert_ids_to_tokens(torch.tensor(ids)) == tokens
    assert qwen.convert_tokens_to_ids(tokens) == ids
    assert qwen.convert_tokens_to_ids("Ġ") == 220
    assert qwen.convert_ids_to_tokens(ids, skip_special_tokens=True) == reference.convert_ids_to_tokens(ids, True)
    assert qwen.convert_tokens_to_ids("no such token") is None


# Small tokenizers, in every layout ---------------------------------------------------------------------------------

Files = dict[str, Any]


def framed() -> tokenizers.Tokenizer:
    """Byte-level BPE that puts <s> and </s> around each text."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 4, trainer)
    around = [("<s>", 0), ("</s>", 1)]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    return backend


def wordwise() -> tokenizers.Tokenizer:
    """Whole words, joined by spaces again."""
    words = ["[UNK]", "it", "is", "n't", "so", ",", ".", "!", "'", "we", "'ve", "[PAD]"]
    backend = tokenizers.Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def write(folder: Path, files: Files, backend: tokenizers.Tokenizer | None = None) -> Path:
    """A tokenizer's folder: tokenizer.json and these; what is no text is written as JSON."""
    folder.mkdir(exist_ok=True)
    (backend or framed()).save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return folder


def configured(**config: Any) -> Files:
    return {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **config}}


def assert_same(ours: Tokenizer, theirs: Any) -> None:
    """Ours and the reference's agree on everything that a file can set."""
    assert (ours.vocab_size, len(ours), ours.vocab) == (theirs.vocab_size, len(theirs), theirs.get_vocab())
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert (ours.all_special_tokens, ours.all_special_ids) == (theirs.all_special_tokens, theirs.all_special_ids)
    for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        assert getattr(ours, f"{name}_token") == getattr(theirs, f"{name}_token")
    assert ours.padding_side == theirs.padding_side
    assert ours.chat_template == theirs.chat_template
    for text in ("the fox is so , so lazy .", "<s>the</s> <extra>  fox <late>x", "it is n't so ! we 've"):
        for special in (True, False):
            assert dict(ours(text, add_special_tokens=special)) == {
                name: theirs(text, add_special_tokens=special)[name] for name in ("input_ids", "attention_mask")
            }
            ids = theirs.encode(text)
            assert ours.decode(ids, special) == theirs.decode(ids, special)


LAYOUTS: dict[str, Files] = {
    "tokenizer.json alone": {},
    "a config": configured(bos_token="<s>", eos_token="</s>", pad_token="</s>", padding_side="left", model_max_length=1e30),
    "tokens as objects": configured(eos_token={"__type": "AddedToken", "content": "</s>", "lstrip": False}, bos_token=None),
    "a special token that is in the vocabulary only": configured(unk_token="the"),
    "special tokens that tokenizer.json lacks": configured(pad_token="<pad>", additional_special_tokens=["<extra>"]),
    "the newer name for additional ones": configured(eos_token="</s>", extra_special_tokens=["<extra>"]),
    "named special tokens, as Gemma 3 has them": configured(
        eos_token="</s>",
        boi_token="<start_of_image>",
        extra_special_tokens={"boi_token": "<start_of_image>", "image_token": "<image>", "eoi_token": "</s>"},
    ),
    "named special tokens beside additional ones": configured(
        extra_special_tokens={"image_token": "<image>"}, additional_special_tokens=["<extra>"]
    ),
    "named special tokens at the top": configured(
        image_token="<image>", video_token={"content": "<v>", "__type": "AddedToken"}
    ),
    "named special tokens under the newest field": configured(model_specific_special_tokens={"image_token": "<image>"}),
    "named special tokens in a map": {
        **configured(eos_token="</s>", additional_special_tokens=["<extra>"]),
        "special_tokens_map.json": {
            "extra_special_tokens": ["<more>", "<extra>"],
            "additional_special_tokens": ["<ignored>"],
            "image_token": {"content": "<image>"},
        },
    },
    "a map, which has the last word": {
        **configured(eos_token="</s>", bos_token="<s>"),
        "special_tokens_map.json": {"eos_token": {"content": "<s>", "rstrip": False}, "pad_token": "<pad>"},
    },
    "a map beside listed tokens, which is ignored": {
        **configured(eos_token="</s>", added_tokens_decoder={}),
        "special_tokens_map.json": {"eos_token": "<s>", "pad_token": "<pad>"},
    },
    "added tokens that tokenizer.json lacks": configured(
        eos_token="<extra>",
        added_tokens_decoder={
            "1000": {"content": "<late>", "lstrip": True, "rstrip": True, "special": False},
            "300": {"content": "<extra>", "special": True, "normalized": False, "single_word": False},
            "0": {"content": "<s>", "special": True},
        },
    ),
    "clean-up, which byte-level BPE does not need": configured(clean_up_tokenization_spaces=True),
    "a template in the config": configured(chat_template="{{ messages }}"),
    "a template of its own": {**configured(chat_template="old"), "chat_template.jinja": "{{ messages }}\n"},
    "several templates": configured(
        chat_template=[{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_folder_layout_loads_like_the_reference(tmp_path: Path, layout: str) -> None:
    folder = write(tmp_path, LAYOUTS[layout])
    assert_same(AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder))


def test_every_class_pads_on_the_references_side() -> None:
    """Where tokenizer_config.json names no side: by its class, or by the model's type where it names no class either."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    checked = 0
    for model_type, name in TOKENIZER_MAPPING_NAMES.items():
        reference = getattr(transformers, name or "", None)
        if not hasattr(reference, "padding_side"):
            continue
        argument = inspect.signature(reference).parameters.get("padding_side")
        theirs = reference.padding_side if argument is None else argument.default
        by_class, by_model_type = {"tokenizer_class": name}, {"model_type": model_type}
        for config, model in ((by_class, {}), ({"tokenizer_class": f"{name}Fast"}, {}), ({}, by_model_type)):
            assert class_for_config(config, model).padding_side == theirs, (model_type, name)
        checked += theirs == "left"
    assert checked > 15


def test_cohere_pads_on_the_left(tmp_path: Path) -> None:
    config = {"tokenizer_config.json": {"tokenizer_class": "CohereTokenizerFast"}}
    backend = framed()
    backend.normalizer = normalizers.NFC()
    backend.add_special_tokens(["<PAD>", "<UNK>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"])
    ours = AutoTokenizer.from_pretrained(write(tmp_path, config, backend))
    assert ours.padding_side == "left"
    assert ours(["the", "the fox"], padding=True)["attention_mask"][0][0] == 0
    assert (ours.bos_token, ours.eos_token, ours.mask_token) == ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", None)


@pytest.mark.parametrize("clean", [True, False])
def test_clean_up_of_wordpiece_decoding(tmp_path: Path, clean: bool) -> None:
    folder = write(tmp_path, configured(unk_token="[UNK]", clean_up_tokenization_spaces=clean), wordwise())
    ours = AutoTokenizer.from_pretrained(folder)
    assert_same(ours, transformers.AutoTokenizer.from_pretrained(folder))
    assert ours.decode(ours.encode("it is n't so !")) == ("it isn't so!" if clean else "it is n't so !")
    assert ours.convert_tokens_to_ids(["it", "banana"]) == [1, 0]  # the unknown token's id


def test_chat_template_json(tmp_path: Path) -> None:
    files = {**configured(chat_template="from the config"), "chat_template.json": {"chat_template": "from the file"}}
    ours = AutoTokenizer.from_pretrained(write(tmp_path, files))
    assert ours.chat_template == "from the file"
    (tmp_path / "chat_template.jinja").write_text("from the newer file")
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == "from the newer file"


@pytest.mark.parametrize("limit", [2, 3, 4, 5, 99])
def test_truncation_keeps_special_tokens(tmp_path: Path, limit: int) -> None:
    folder = write(tmp_path, configured(bos_token="<s>", eos_token="</s>", pad_token="</s>"))
    ours, theirs = AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for options in ({}, {"padding": "max_length"}, {"add_special_tokens": False}):
        found, expected = (
            which(["the fox", "dog"], truncation=True, max_length=limit, **options) for which in (ours, theirs)
        )
        assert found["input_ids"] == expected["input_ids"]
    assert ours("the fox", truncation=True, max_length=1)["input_ids"] == [0]  # never more than was asked for


def test_chat_template_adds_no_special_tokens(tmp_path: Path) -> None:
    folder = write(tmp_path, configured(bos_token="<s>", eos_token="</s>", chat_template="{{ bos_token }}the fox"))
    ours, theirs = AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    conversation = [{"role": "user", "content": ""}]
    found = ours.apply_chat_template(conversation)["input_ids"]
    assert found == theirs.apply_chat_template(conversation)["input_ids"] == ours.encode("the fox")[:-1]


def test_set_special_tokens(tmp_path: Path) -> None:
    ours = AutoTokenizer.from_pretrained(write(tmp_path, configured(eos_token="</s>")))
    assert ours.pad_token_id is None
    ours.pad_token = ours.eos_token
    assert (ours.pad_token_id, ours(["the", "a"], padding="max_length", max_length=4)["input_ids"][1][-1]) == (1, 1)
    ours.bos_token_id = 0
    assert (ours.bos_token, ours.all_special_tokens) == ("<s>", ["<s>", "</s>"])
    ours.pad_token = None
    assert ours.pad_token_id is None
    for name, value in (("pad_token", "<nowhere>"), ("pad_token", 5)):
        with pytest.raises(InputError, match="in the vocabulary"):
            setattr(ours, name, value)
    with pytest.raises(InputError, match="id 100000"):
        ours.pad_token_id = 100000


def test_named_special_tokens_are_attributes(tmp_path: Path) -> None:
    named = {"image_token": "<image>", "decode": "<d>", "_special": "<s>"}  # two of them would hide what there is already
    ours = AutoTokenizer.from_pretrained(write(tmp_path, configured(eos_token="</s>", extra_special_tokens=named)))
    assert ours.image_token == "<image>"
    assert ours.image_token_id == ours.convert_tokens_to_ids("<image>") in ours.all_special_ids
    assert ours.decode(ours.encode("the<image>"), skip_special_tokens=True) == "the"
    assert ours.special_tokens_map["decode"] == "<d>"
    ours.image_token = "</s>"
    assert ours.image_token_id == ours.eos_token_id
    ours.add_special_tokens({"image_token": "<picture>"})
    assert ours.image_token == "<picture>"
    with pytest.raises(AttributeError, match="has no attribute 'video_token'"):
        _ = ours.video_token
    assert copy.copy(ours).image_token == "<picture>"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_save_pretrained_round_trip(tmp_path: Path, layout: str) -> None:
    ours = AutoTokenizer.from_pretrained(write(tmp_path / "first", LAYOUTS[layout]))
    ours.save_pretrained(tmp_path / "second")
    again, theirs = (auto.from_pretrained(tmp_path / "second") for auto in (AutoTokenizer, transformers.AutoTokenizer))
    assert_same(again, theirs)
    assert (again.vocab, again.special_tokens_map) == (ours.vocab, ours.special_tokens_map)
    assert (again.model_max_length, again.chat_template) == (ours.model_max_length, ours.chat_template)


def test_save_pretrained_of_the_default_model(tmp_path: Path, smol: Tokenizer) -> None:
    smol.save_pretrained(tmp_path)
    assert_same(smol, transformers.AutoTokenizer.from_pretrained(tmp_path))
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == smol.model_max_length


# Two texts --------------------------------------------------------------------------------------------------------


@moderate
@given(first=texts, second=texts, limit=st.integers(1, 12), side=st.sampled_from(["left", "right"]))
def test_any_text_pair_encodes_like_the_reference(
    qwen: Tokenizer, reference: Any, first: str, second: str, limit: int, side: str
) -> None:
    assert dict(qwen(first, second)) == dict(reference(first, second))
    ours, theirs = copy.copy(qwen), copy.copy(reference)
    ours.truncation_side = theirs.truncation_side = side
    options = {"truncation": True, "max_length": limit, "return_token_type_ids": True, "return_offsets_mapping": True}
    for given_ in ((first,), (first, second), ([first, second], [second, first])):
        assert dict(ours(*given_, **options)) == dict(theirs(*given_, **options))
    assert ours.encode(first, second, truncation=True, max_length=limit) == theirs.encode(
        first, second, truncation=True, max_length=limit
    )


def test_offset_mapping_as_a_tensor(qwen: Tokenizer) -> None:
    for kind in ("pt", "np"):
        found = qwen(["Hi!", "How are you?"], padding=True, return_offsets_mapping=True, return_tensors=kind)
        assert found.offset_mapping.shape == (2, 4, 2)
        assert found.offset_mapping[0].tolist() == [[0, 2], [2, 3], [0, 0], [0, 0]]


def test_truncation_side_is_read_from_the_file(tmp_path: Path) -> None:
    folder = write(tmp_path, configured(truncation_side="left"))
    ours, theirs = AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    options = {"truncation": True, "max_length": 4}
    assert ours("the quick fox", **options)["input_ids"] == theirs("the quick fox", **options)["input_ids"]
    ours.save_pretrained(tmp_path / "again")
    assert AutoTokenizer.from_pretrained(tmp_path / "again").truncation_side == "left"


@pytest.mark.parametrize(
    ("given_", "error", "message"),
    [
        (("a", ["b"]), InputTypeError, "one text takes one second text, not list"),
        ((["a"], "b"), InputTypeError, "a list of texts takes a list of second texts, not str"),
        ((["a"], 7), InputTypeError, "a list of texts takes a list of second texts, not int"),
        ((["a", "b"], ["c"]), InputError, "there are 2 texts but 1 second texts. Give each text one"),
        (([("a", 7)],), InputTypeError, "the tokenizer takes text, not int"),
        (([("a", "b", "c")],), InputTypeError, "the tokenizer takes text, not tuple"),
        ((["a"], [b"b"]), InputTypeError, "the tokenizer takes text, not bytes"),
        (("a", "\ud83d"), InputError, "lone surrogate"),
    ],
)
def test_text_pair_of_the_wrong_type_or_length(qwen: Tokenizer, given_: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        qwen(*given_)
    assert message in str(caught.value)


def test_only_second_that_cannot_reach_the_limit(qwen: Tokenizer) -> None:
    with pytest.raises(InputError, match="by cutting 0"):
        qwen("one two three four", truncation="only_second", max_length=3)


# What cannot be done -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, 7, b"bytes", bytearray(b"b"), {"a": 1}, {"a"}, torch.tensor([1])])
def test_encoding_refuses_what_is_no_text(qwen: Tokenizer, text: Any) -> None:
    with pytest.raises(InputTypeError, match=type(text).__name__):
        qwen(text)


@pytest.mark.parametrize("inside", [None, 7, b"x", ["nested"]])
def test_encoding_names_the_entry_that_is_no_text(qwen: Tokenizer, inside: Any) -> None:
    with pytest.raises(InputTypeError, match=f"takes text, not {type(inside).__name__}"):
        qwen(["fine", inside])
    with pytest.raises(InputTypeError, match="takes text, not"):
        qwen.tokenize(inside)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"return_tensors": "tf"}, "return_tensors='tf' is not known. Use 'pt', 'np' or None"),
        ({"padding": "longst"}, "padding='longst' is not known. Use True, 'longest', 'max_length' or False"),
        ({"padding": True, "padding_side": "middle"}, "padding_side='middle' is not known. Use 'left' or 'right'"),
        (
            {"truncation": "longest"},
            "truncation='longest' is not known. Use True, 'longest_first', 'only_first', 'only_second' or False",
        ),
        ({"truncation": True, "max_length": -1}, "max_length=-1 is no length"),
        ({"padding": "max_length", "max_length": "9"}, "max_length='9' is no length"),
    ],
)
def test_invalid_tokenizer_options_are_refused(qwen: Tokenizer, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        qwen("Hi!", **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_rows_of_different_lengths_are_no_tensor(qwen: Tokenizer, kind: Any) -> None:
    with pytest.raises(InputError, match="1 to 3 tokens"):
        qwen(["a", "b c d"], return_tensors=kind)


@pytest.mark.parametrize("number", [-1, 2**32, 2**70])
def test_decode_refuses_numbers_that_are_no_ids(qwen: Tokenizer, number: int) -> None:
    for ids in (number, [0, number], [[0], [number]]):
        with pytest.raises(InputError, match=f"{number} is no token id"):
            qwen.decode(ids)
    for ids in (number, [0, number]):
        with pytest.raises(InputError, match=f"id {number}"):
            qwen.convert_ids_to_tokens(ids)
    assert qwen.token_bytes(number) == b""


@pytest.mark.parametrize("ids", ["Hi!", b"Hi!", None, 1.5, [1.5], ["Hi!"], [None], {"input_ids": [1]}, torch.tensor([0.5])])
def test_decode_refuses_what_is_no_id(qwen: Tokenizer, ids: Any) -> None:
    for turn in (qwen.decode, qwen.batch_decode, qwen.convert_ids_to_tokens):
        with pytest.raises(InputTypeError, match="token ids"):
            turn(ids)


@pytest.mark.parametrize(
    "content",
    ["", "{", "null", "[]", "7", "{}", '{"model": {}}', '{"model": {"type": "BPE", "vocab": [], "merges": {}}}',
     '{"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}', "\x00" * 9, '{"a":' * 5000],
)  # fmt: skip
def test_invalid_tokenizer_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="tokenizer.json"):
        AutoTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_while_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def interrupted(path: str) -> None:
        raise kind

    write(tmp_path, {})
    monkeypatch.setattr("glassformer.text.tokenizer.tokenizers.Tokenizer", type("Stub", (), {"from_buffer": interrupted}))
    with pytest.raises(kind):
        Tokenizer.from_folder(tmp_path)


NOT_A_TOKEN = "which is no token. Fetch it again"
BROKEN: list[tuple[Files, str]] = [
    ({"tokenizer_config.json": "{"}, "tokenizer_config.json: not valid JSON"),
    ({"tokenizer_config.json": "[" * 100_000}, "tokenizer_config.json: not valid JSON"),
    ({"tokenizer_config.json": []}, "tokenizer_config.json: holds a list where an object belongs"),
    ({"special_tokens_map.json": "null"}, "special_tokens_map.json: holds a NoneType where an object belongs"),
    ({"chat_template.json": "{]"}, "chat_template.json: not valid JSON"),
    (configured(eos_token=5), f"tokenizer_config.json: 'eos_token' holds 5, {NOT_A_TOKEN}"),
    (configured(eos_token={"lstrip": True}), NOT_A_TOKEN),
    (configured(additional_special_tokens=[None]), f"'additional_special_tokens' holds None, {NOT_A_TOKEN}"),
    (configured(additional_special_tokens="<x>"), "'additional_special_tokens' is '<x>', which is no list. Fetch it again"),
    (configured(extra_special_tokens={"image_token": 5}), f"'image_token' holds 5, {NOT_A_TOKEN}"),
    (configured(model_specific_special_tokens=["<x>"]), "'model_specific_special_tokens' is ['<x>'], which is no object"),
    (configured(added_tokens_decoder=[]), "'added_tokens_decoder' is [], which is no object"),
    (configured(added_tokens_decoder={"one": {"content": "x"}}), "'added_tokens_decoder' does not map ids to tokens"),
    (configured(added_tokens_decoder={"9": {}}), f"tokenizer_config.json: 'added_tokens_decoder' holds {{}}, {NOT_A_TOKEN}"),
    (configured(model_max_length="long"), "'model_max_length' is 'long', which is no number"),
    (configured(chat_template=5), "chat template is neither a text nor a list of named ones"),
    (configured(chat_template=[{"name": "x"}]), "chat template is neither a text nor a list of named ones"),
    (configured(chat_template=["x"]), "chat template is neither a text nor a list of named ones"),
    ({"chat_template.json": {"chat_template": {"default": None}}}, "chat template is neither a text nor a list"),
]


HALF = "\ud83d"
HALVES: dict[str, Files] = {
    "a role": configured(eos_token=HALF),
    "an additional token": configured(additional_special_tokens=[f"<{HALF}>"]),
    "a listed token": configured(added_tokens_decoder={"300": {"content": HALF}}),
    "a named token": configured(extra_special_tokens={"image_token": HALF}),
    "a token's name": configured(extra_special_tokens={HALF: "<image>"}),
    "a template": configured(chat_template=HALF),
    "an added token": {"added_tokens.json": {HALF: 300}},
    "a map": {"special_tokens_map.json": {"pad_token": HALF}},
}


@pytest.mark.parametrize("where", HALVES)
def test_files_with_a_lone_surrogate_are_refused(tmp_path: Path, where: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        CheckpointError, match=r"\.json: holds a lone surrogate, '\\ud83d', which is no character\. Fetch it"
    ):
        AutoTokenizer.from_pretrained(write(tmp_path, HALVES[where]))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "call",
    [
        lambda tokenizer: tokenizer(HALF),
        lambda tokenizer: tokenizer([HALF, "the"], ["the", "fox"]),
        lambda tokenizer: tokenizer([["the", HALF]], is_split_into_words=True),
        lambda tokenizer: tokenizer.tokenize(HALF),
        lambda tokenizer: tokenizer.convert_tokens_to_string(["the", HALF]),
        lambda tokenizer: tokenizer.add_tokens([HALF]),
        lambda tokenizer: tokenizer.add_special_tokens({"pad_token": HALF}),
        lambda tokenizer: tokenizer.apply_chat_template(
            [{"role": "user", "content": HALF}], chat_template="{{ messages }}" + HALF
        ),
        lambda tokenizer: tokenizer.apply_chat_template(
            [{"role": "user", "content": HALF}], chat_template="{{ messages[0].content }}", sanitize_control_tokens=True
        ),
        lambda tokenizer: tokenizer.encode_message_with_chat_template(
            {"role": "user", "content": HALF}, chat_template="{{ messages[0].content }}"
        ),
    ],
)
def test_texts_with_a_lone_surrogate_are_refused(
    tmp_path: Path, call: Callable[[Tokenizer], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write(tmp_path, {}))
    with pytest.raises(InputError, match="lone surrogate"):
        call(tokenizer)
    assert capfd.readouterr() == ("", "")


def test_a_lone_surrogate_is_no_token_and_is_not_saved(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write(tmp_path, {}))
    assert tokenizer.convert_tokens_to_ids([HALF]) == [None]
    tokenizer.chat_template = HALF
    with pytest.raises(InputError, match="the chat template"):
        tokenizer.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize(("files", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_broken_tokenizer_config_files_are_refused(tmp_path: Path, files: Files, words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        AutoTokenizer.from_pretrained(write(tmp_path, files))
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_chat_template_file_that_is_no_text(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: not UTF-8 text"):
        AutoTokenizer.from_pretrained(tmp_path)


def test_auto_tokenizer_from_pretrained_options(gpt2_tokenizer: Path, tmp_path: Path) -> None:
    found = AutoTokenizer.from_pretrained(
        gpt2_tokenizer, pad_token="!", model_max_length=5, truncation_side="left", padding_side="left", use_fast=True
    )
    assert found.is_fast
    assert (found.pad_token, found.model_max_length, found.truncation_side, found.padding_side) == ("!", 5, "left", "left")
    assert (
        found("one two three four five six seven", truncation=True)["input_ids"]
        == found(" three four five six seven")["input_ids"]
    )
    assert len(AutoTokenizer.from_pretrained(gpt2_tokenizer, trust_remote_code=True)) == len(found)
    written = found.save_pretrained(tmp_path)
    assert [Path(name).name for name in written] == ["tokenizer.json", "tokenizer_config.json"]
    assert all(Path(name).exists() for name in written)
