"""GGUF's other kinds of tokenizer: `llama` (scored pieces), `bert` (WordPiece) and `t5` (Unigram)."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from glassformer import AutoTokenizer
from glassformer.ground.errors import CheckpointError
from glassformer.text import Tokenizer
from tests.parity.reference import transformers
from tests.text.test_gguf_byte_level import write
from tests.text.texts import SALT, moderate, texts

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
PROSE = [
    "the quick brown fox jumps over the lazy dog, and the dog does not mind at all",
    "how are you today? I am well, thank you; and how is the weather over there?",
    "don't panic: the answer is forty two, says the guide to the galaxy.",
]


def gguf_fields(**fields: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}


def broken(metadata: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    fields = {**metadata, **{f"tokenizer.ggml.{name}": value for name, value in changes.items()}}
    return {name: value for name, value in fields.items() if value is not None}


def refused(metadata: Mapping[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_gguf(metadata)
    return str(caught.value)


# llama --------------------------------------------------------------------------------------------------------------

OPENING = ["<unk>", "<s>", "</s>"]
SPELT = [f"<0x{byte:02X}>" for byte in range(256)]
WHOLE = ["<turn>", "  ", "   ", "\n\n"]


def learnt() -> list[str]:
    """Pieces in the order in which SentencePiece's way of training finds them; letters last."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(PROSE * 4, trainers.BpeTrainer(vocab_size=220, show_progress=False))
    found = sorted(backend.get_vocab().items(), key=lambda one: one[1])
    return [token for token, _ in found if len(token) > 1] + [token for token, _ in found if len(token) == 1]


LEARNT = [*learnt(), "aa", "aaa", "aaaa", "=", "==", "===", "=====", "===="]


def pieces(**changes: Any) -> dict[str, Any]:
    tokens = [*OPENING, *SPELT, *WHOLE, *LEARNT]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, CONTROL, USER, USER, USER, *[NORMAL] * len(LEARNT)]
    scores = [0.0] * (len(tokens) - len(LEARNT)) + [-float(rank) for rank in range(len(LEARNT))]
    fields = {"tokens": tokens, "token_type": kinds, "scores": scores}
    special = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return gguf_fields(**{"model": "llama", **fields, **special, **changes})


def slow(text: str, prefixed: bool) -> list[str]:
    """SentencePiece's algorithm in words: cut out what was defined whole, the longest first; then join by score."""
    text = ("▁" if prefixed and text else "") + text.replace(" ", "▁")
    frozen = sorted((token.replace(" ", "▁") for token in WHOLE), key=len, reverse=True)
    parts: list[tuple[str, bool]] = []
    while text:
        whole = next((token for token in frozen if text.startswith(token)), None)
        parts.append((whole or text[0], whole is not None))
        text = text[len(whole or text[0]) :]
    while True:
        joined = [
            (LEARNT.index(left + right), at)
            for at, ((left, stiff), (right, stiffer)) in enumerate(pairwise(parts))
            if not stiff and not stiffer and left + right in LEARNT
        ]
        if not joined:
            break
        _, at = min(joined)
        parts[at : at + 2] = [(parts[at][0] + parts[at + 1][0], False)]
    spelt = [[part] if part in LEARNT or stiff else [f"<0x{b:02X}>" for b in part.encode()] for part, stiff in parts]
    return [token for tokens in spelt for token in tokens]


repeated = st.tuples(st.sampled_from(["a", "=", " ", "the ", "\n", "é", "ow", "<turn>"]), st.integers(1, 8))
patterned = st.lists(repeated.map(lambda one: one[0] * one[1]), max_size=6).map("".join)
prose = st.lists(st.sampled_from(" ".join(PROSE).split()), max_size=8).map(" ".join)


@pytest.fixture(scope="session")
def gemma() -> Tokenizer:
    return Tokenizer.from_gguf(pieces(add_space_prefix=False))


@pytest.fixture(scope="session")
def llama() -> Tokenizer:
    return Tokenizer.from_gguf(pieces())


def test_special_tokens_that_a_file_does_not_name() -> None:
    """llama.cpp's own ids stand in, where they are no ordinary tokens."""
    unnamed = {"bos_token_id": None, "eos_token_id": None, "unknown_token_id": None}
    ours = Tokenizer.from_gguf(pieces(**unnamed))
    assert (ours.bos_token, ours.eos_token, ours.unk_token) == ("<s>", "</s>", "<unk>")
    assert ours.encode("")[:1] == [1]
    kinds = [NORMAL] * 3 + pieces()["tokenizer.ggml.token_type"][3:]
    assert Tokenizer.from_gguf(pieces(**unnamed, token_type=kinds)).special_tokens_map == {}


@moderate
@given(text=texts | patterned | prose)
def test_sentencepiece_bpe_merges_by_score(gemma: Tokenizer, text: str) -> None:
    assert gemma.tokenize(text) == slow(text, prefixed=False)
    assert gemma.decode(gemma.encode(text), skip_special_tokens=True) == text.replace("<turn>", "").replace("▁", " ")


@moderate
@given(text=texts | patterned | prose)
def test_sentencepiece_bpe_adds_a_space_prefix(llama: Tokenizer, text: str) -> None:
    if any(token in f" {text}" for token in WHOLE):  # what follows a whole token gets a space of its own
        return
    assert llama.tokenize(text) == slow(text, prefixed=True)
    assert llama.decode(llama.encode(text), skip_special_tokens=True) == text.replace("▁", " ")


@pytest.fixture(params=["GemmaTokenizer", "LlamaTokenizer"], scope="session")
def with_reference(request: pytest.FixtureRequest, gemma: Tokenizer, llama: Tokenizer) -> tuple[Tokenizer, Any]:
    """Ours, and the reference's class over the same vocabulary and the merges that it implies."""
    merges = [tuple(pair) for pair in json.loads(gemma.backend.to_str())["model"]["merges"]]
    theirs = getattr(transformers, request.param)(vocab=gemma.vocab, merges=merges, bos_token="<s>", eos_token="</s>")
    return (gemma if request.param == "GemmaTokenizer" else llama), theirs


@moderate
@given(text=prose)
def test_sentencepiece_bpe_encodes_like_the_reference(with_reference: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = with_reference
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids) == text


def test_control_and_user_defined_tokens_match_whole(gemma: Tokenizer, llama: Tokenizer) -> None:
    assert gemma.tokenize("a   b\n\n<turn>") == ["a", "▁▁▁", "b", "\n\n", "<turn>"]
    assert gemma.tokenize("<turn>he") == ["<turn>", "he"]
    assert llama.tokenize("<turn>the") == ["<turn>", "▁the"]
    assert llama.tokenize("the  fox") == ["▁the", "  ", "▁fox"]
    assert llama.decode(llama.encode("<turn> the"), skip_special_tokens=True) == " the"
    assert (gemma.unk_token, gemma.bos_token_id, gemma.pad_token) == ("<unk>", 1, None)


@pytest.mark.parametrize(
    ("fields", "around"),
    [
        ({}, ([1], [])),
        ({"add_bos_token": False}, ([], [])),
        ({"add_eos_token": True}, ([1], [2])),
        ({"bos_token_id": None}, ([1], [])),  # llama.cpp's own id stands in
    ],
)
def test_sentencepiece_bpe_adds_bos_and_eos(fields: dict[str, Any], around: tuple[list[int], list[int]]) -> None:
    ours = Tokenizer.from_gguf(pieces(**fields))
    inside, (before, after) = ours.encode("the", add_special_tokens=False), around
    assert ours.encode("the") == [*before, *inside, *after]
    assert ours.encode("the", "the") == [*before, *inside, *after] * 2
    assert list(ours("the", "the")) == ["input_ids", "attention_mask"]


def test_metadata_is_not_changed() -> None:
    metadata = pieces()
    Tokenizer.from_gguf(metadata)
    assert metadata == pieces()


def test_token_bytes_of_sentencepiece_bpe(gemma: Tokenizer, llama: Tokenizer) -> None:
    text = "the  é 🫠 fox\n\n"
    assert b"".join(map(gemma.token_bytes, gemma.encode(text, add_special_tokens=False))) == text.encode()
    assert b"".join(map(llama.token_bytes, llama.encode(" é fox", add_special_tokens=False))) == "  é fox".encode()
    assert gemma.token_bytes(3 + 0x0A) == b"\n"
    assert gemma.token_bytes(1) == b"<s>"


@moderate
@given(text=texts | patterned | prose, skip=st.booleans())
def test_detokenizer_of_sentencepiece_bpe_gives_whole_characters(
    gemma: Tokenizer, llama: Tokenizer, text: str, skip: bool
) -> None:
    for tokenizer in (gemma, llama):
        ids = tokenizer.encode(text)
        incremental = tokenizer.detokenizer(skip)
        found = [*(incremental.feed(number) for number in ids), incremental.finish()]
        assert "".join(found) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_sentencepiece_bpe_survives_save_pretrained(gemma: Tokenizer, tmp_path: Path) -> None:
    gemma.save_pretrained(tmp_path)
    again, text = AutoTokenizer.from_pretrained(tmp_path), "the  fox\n\n<turn>é"
    assert again.encode(text) == gemma.encode(text)
    assert again.token_bytes(5) == gemma.token_bytes(5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "'tokenizer.ggml.scores' is missing"),
        ({"scores": [0.0]}, "tokens but 1 scores"),
        ({"scores": ["high"] * len(pieces()["tokenizer.ggml.tokens"])}, "'tokenizer.ggml.scores' holds more than numbers"),
        ({"token_type": None}, "'tokenizer.ggml.token_type' is missing"),
        ({"tokens": [*OPENING, *SPELT, *WHOLE, *LEARNT[:-1], "aa"]}, "'aa', stands twice"),
        ({"unknown_token_id": 10**6}, "'tokenizer.ggml.unknown_token_id' is 1000000, outside the vocabulary"),
    ],
)
def test_broken_sentencepiece_bpe_metadata_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refused(broken(pieces(), changes))


# bert ---------------------------------------------------------------------------------------------------------------


def phantom(token: str) -> str:
    """As the field's converter respells BERT's tokens."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else f"▁{token}"


def bert(words: list[str], **changes: Any) -> dict[str, Any]:
    ends = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    fields = {
        "tokens": [phantom(word) for word in words],
        "token_type": [CONTROL if word in ends else NORMAL for word in words],
        "unknown_token_id": words.index("[UNK]"),
        "seperator_token_id": words.index("[SEP]"),
        "padding_token_id": words.index("[PAD]"),
        "cls_token_id": words.index("[CLS]"),
        "mask_token_id": words.index("[MASK]"),
    }
    return gguf_fields(**{"model": "bert", **fields, **changes})


@pytest.fixture(scope="session")
def ours_and_theirs(words: list[str], minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    folder = tmp_path_factory.mktemp("minilm")
    (folder / "tokenizer.json").write_bytes(minilm.read_bytes())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return Tokenizer.from_gguf(bert(words)), transformers.AutoTokenizer.from_pretrained(folder)


@moderate
@given(first=texts | prose, second=texts | prose)
def test_wordpiece_encodes_like_the_reference(ours_and_theirs: tuple[Tokenizer, Any], first: str, second: str) -> None:
    ours, theirs = ours_and_theirs
    for given_ in ((first,), (first, second)):
        found, expected = ours(*given_), theirs(*given_)
        assert (list(found), dict(found)) == (list(expected), dict(expected))
    ids = ours.encode(first, second)
    assert ours.decode(ids) == theirs.decode(ids)


def test_wordpiece_vocabulary_of_minilm(ours_and_theirs: tuple[Tokenizer, Any], words: list[str]) -> None:
    ours, theirs = ours_and_theirs
    assert ours.convert_ids_to_tokens(range(len(words))) == words
    for name in ("unk", "sep", "pad", "cls", "mask"):
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id") is not None
    assert ours.tokenize("unaffable [MASK]") == ["una", "##ffa", "##ble", "[MASK]"]


def test_token_bytes_of_wordpiece(ours_and_theirs: tuple[Tokenizer, Any]) -> None:
    ours, _ = ours_and_theirs
    ids = ours.encode("Hello unaffable naïve world")
    assert b"".join(map(ours.token_bytes, ids)) == b"[CLS] hello unaffable naive world[SEP]"


@moderate
@given(text=texts | prose)
def test_detokenizer_of_wordpiece(ours_and_theirs: tuple[Tokenizer, Any], text: str) -> None:
    ours, _ = ours_and_theirs
    ids = ours.encode(text)
    incremental = ours.detokenizer(skip_special_tokens=False)
    assert "".join([*map(incremental.feed, ids), incremental.finish()]) == ours.decode(ids)


FEW = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[", "]", "▁", "##▁", "a", "##a", "b", "##b", "É", "e"]


def test_wordpiece_is_cased_where_its_vocabulary_is() -> None:
    cased, uncased = (Tokenizer.from_gguf(bert(few)) for few in (FEW, [*FEW[:-2], "é", "e"]))
    assert cased.convert_ids_to_tokens(range(len(FEW))) == FEW
    assert cased.tokenize("É [ab]") == ["É", "[", "a", "##b", "]"]
    assert uncased.tokenize("É E") == ["e", "e"]


def test_wordpiece_special_tokens_that_the_file_does_not_name() -> None:
    silent = dict.fromkeys(f"{name}_token_id" for name in ("unknown", "seperator", "padding", "cls", "mask"))
    ours = Tokenizer.from_gguf(bert(FEW, **silent))
    assert ours.special_tokens_map == {
        "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
    }  # fmt: skip
    assert ours("a", "b", padding="max_length", max_length=7)["token_type_ids"] == [0, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": [phantom(token) for token in [*FEW[:-1], "a"]]}, "GGUF's token 15, 'a', stands twice"),
        ({"tokens": ["[X]", *map(phantom, FEW[1:])]} | {"padding_token_id": 99}, "'tokenizer.ggml.padding_token_id' is 99"),
        (
            {"tokens": ["[PAD]", "[UNK]", "[X]", *map(phantom, FEW[3:])], "cls_token_id": None},
            "GGUF's vocabulary has no '[CLS]'",
        ),
    ],
)
def test_broken_wordpiece_metadata_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refused(broken(bert(FEW), changes))


# t5 -----------------------------------------------------------------------------------------------------------------

# SentencePiece's table for one rule, that ſ becomes s: made by its own trainer, packed with zlib
CHARSMAP = (
    "eNod0mMUFgYUBuDvLNu27Vq2ba1atlu2bds211at1pbttlrGsu3n657znPec++P+eW8gZCAQiBoisP/ZD4E9oQLBGRiM4DoMoQlHWCIQnkhEJA"
    "qRiRY8QQyiE4uYxCE28YhLAuKTiIQkITHJSEoKkpOKlKQhNelISwbSk4mMZCEz2chKDrKTi5zk5kfykof85KMgBShMIYpShOIUoyQlKE0pylKG"
    "8pSjIhWoTCWqUoXqVKMmNahNLepSh3r8RAPq05CfaUwjmtKE5jSjJS1oTSva0ob2tKMjHehMJ36hC93oSg+604ue9KE3/ejLAPozKFg6QxjMMI"
    "YyguGMYiRjGM04xjKB8UxiIlOYzDSmMoPpzGImc5jNPOaygPksYiFLWMwylrKC5axiJWtYzTrWsoH1bGIjW9jMNraynV/5nd/YyQ7+YBd72M1e"
    "/uRv/mI/+zjIAQ5ziKMc4TjHOMkJTnOKs5zhPOe4yAX+5R8uc4kr/Mc1rnKD69ziJne4zf/c5T73eMgDHvOIpzzhOc94yQte84q3vOE97/jIBz"
    "7zia98+f433wDbboMA"
)


def scored() -> list[tuple[str, float]]:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, show_progress=False, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"
    )
    backend.train_from_iterator(PROSE * 8, trainer)
    return [(token, score) for token, score in json.loads(backend.to_str())["model"]["vocab"]]


SCORED = [*scored(), ("<extra_id_0>", 0.0)]


def t5(**changes: Any) -> dict[str, Any]:
    kinds = [CONTROL, CONTROL, UNKNOWN, *[NORMAL] * (len(SCORED) - 4), USER]
    fields = {"tokens": [token for token, _ in SCORED], "scores": [score for _, score in SCORED], "token_type": kinds}
    special = {"padding_token_id": 0, "eos_token_id": 1, "unknown_token_id": 2}
    return gguf_fields(**{"model": "t5", **fields, **special, **changes})


@pytest.fixture(scope="session")
def unigram() -> tuple[Tokenizer, Any]:
    theirs = transformers.T5Tokenizer(vocab=SCORED, extra_ids=1)
    return Tokenizer.from_gguf(t5()), theirs


plain = st.lists(st.sampled_from([one for one in SALT if not one.strip(" ") or one.isprintable()]), max_size=8).map("".join)


@moderate
@given(first=prose | plain, second=prose)
def test_unigram_encodes_like_the_reference(unigram: tuple[Tokenizer, Any], first: str, second: str) -> None:
    ours, theirs = unigram
    for given_ in ((first,), (first, second)):
        assert dict(ours(*given_)) == dict(theirs(*given_))
    ids = ours.encode(first)
    for skip in (True, False):
        assert ours.decode(ids, skip) == theirs.decode(ids, skip)


def test_unigram_special_tokens(unigram: tuple[Tokenizer, Any]) -> None:
    ours, theirs = unigram
    assert ours.vocab == theirs.get_vocab()
    for name in ("pad", "eos", "unk"):
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")
    assert ours.tokenize("the <extra_id_0> fox") == theirs.tokenize("the <extra_id_0> fox")
    assert ours.encode("the")[-1] == ours.eos_token_id


def test_unigram_whitespace_options() -> None:
    for prefix, remove, expected in (
        (True, True, "▁the▁fox"),
        (True, False, "▁▁the▁▁fox▁"),
        (False, True, "the▁fox"),
        (False, False, "▁the▁▁fox▁"),
    ):
        ours = Tokenizer.from_gguf(t5(add_space_prefix=prefix, remove_extra_whitespaces=remove))
        assert "".join(ours.tokenize(" the  fox ")) == expected
        assert ours.decode(ours.encode("the fox"), skip_special_tokens=True) == "the fox"


def test_unigram_normalizes_by_precompiled_charsmap() -> None:
    table = zlib.decompress(base64.b64decode(CHARSMAP))
    for numbers in (list(table), [byte - 256 if byte > 127 else byte for byte in table]):  # some store signed bytes
        ours = Tokenizer.from_gguf(t5(precompiled_charsmap=numbers))
        assert ours.encode("ſays the ſun") == ours.encode("says the sun")
    assert 2 in Tokenizer.from_gguf(t5()).encode("ſ")


def test_token_bytes_and_detokenizer_of_unigram(unigram: tuple[Tokenizer, Any]) -> None:
    ours, _ = unigram
    ids = ours.encode("the quick  fox")
    assert b"".join(map(ours.token_bytes, ids)) == b" the quick fox</s>"
    incremental = ours.detokenizer()
    assert "".join([*map(incremental.feed, ids), incremental.finish()]) == "the quick fox"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unknown_token_id": None, "token_type": [NORMAL] * len(SCORED)}, "'tokenizer.ggml.unknown_token_id' is missing"),
        ({"scores": None}, "'tokenizer.ggml.scores' is missing"),
        ({"precompiled_charsmap": "NFKC"}, "'tokenizer.ggml.precompiled_charsmap' is no list of bytes"),
        ({"precompiled_charsmap": 7}, "'tokenizer.ggml.precompiled_charsmap' is no list of bytes"),
        ({"precompiled_charsmap": [1, 2, 3]}, "GGUF's vocabulary does not fit together"),
        ({"tokens": [*(token for token, _ in SCORED[:-1]), ""]}, "is empty or stands twice"),
    ],
)
def test_broken_unigram_metadata_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refused(broken(t5(), changes))


# Files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", [pieces(), bert(FEW), t5()], ids=["llama", "bert", "t5"])
def test_gguf_file_of_each_tokenizer_kind(metadata: dict[str, Any], tmp_path: Path) -> None:
    ours = AutoTokenizer.from_pretrained(write(tmp_path / "tiny.gguf", metadata))
    assert ours.encode("a b") == Tokenizer.from_gguf(metadata).encode("a b")
