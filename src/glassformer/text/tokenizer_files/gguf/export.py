"""A tokenizer as GGUF's `tokenizer.…` fields: the inverse of this package's readers, for three kinds.

`gpt2` is byte-level BPE: vocabulary, merges, and the name of how text is split. `llama` is SentencePiece's BPE: pieces with
scores in place of merges; a piece scores by the first merge that makes it. `bert` is WordPiece. What
the fields cannot say is refused: they are read back, and must give the same tokens for texts that bring out the differences.
(One is let pass: before a text that begins with a space, GGUF's readers put a second one, and some of Llama's own tokenizers
do not.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, decoders

from glassformer.ground.errors import CheckpointError
from glassformer.text.token_bytes import SPACE_MARKER
from glassformer.text.tokenizer_files import gguf
from glassformer.text.tokenizer_files.gguf.fields import GGUF_ROLES
from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import DIGIT, DIGITS, GPT2, PRE_TOKENIZER_TYPES
from glassformer.text.tokenizer_files.scored_pieces import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

PROBES = (
    "The quick brown fox", "jumps  over\n\n the\tlazy dog, isn't it?  ", "In 2024, 31415926 and 2.718 – naïve café",
    "日本語のテキスト и русский", "🙂👍🏽 e\u0301 ﬁ", "def f(x):\n    return x**2  # squared\n", "WE'LL DON'T I'm 'tis",
)  # fmt: skip
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
UNREACHABLE = -1e9  # the score of a piece that no merge makes
BYTES = "bytes"  # the step that spells bytes as printable characters, which comes last
ADVICE = "Keep the checkpoint as it is; load(…, weights=…) packs its weights all the same."


def tokenizer_fields(backend: Tokenizer, special: Mapping[str, str], template: str | None, size: int) -> dict[str, Any]:
    """The fields of a tokenizer, for a model that scores `size` tokens; `special`: the tokens with a role, by name."""
    tokens, kinds = _tokens_and_kinds(backend, size)
    settings = json.loads(backend.to_str())
    role_ids = {GGUF_ROLES[name]: backend.token_to_id(token) for name, token in special.items() if name in GGUF_ROLES}
    if settings["model"]["type"] == "BPE" and isinstance(backend.decoder, decoders.ByteLevel):
        kind_fields = _byte_level(settings)
    elif settings["model"]["type"] == "BPE" and settings["model"]["byte_fallback"]:
        kind_fields = _scored(backend, settings, tokens, kinds)
    elif settings["model"]["type"] == "WordPiece" and (settings["normalizer"] or {}).get("type") == "BertNormalizer":
        kind_fields = _wordpiece(settings, tokens, kinds)
    else:
        raise CheckpointError(
            f"the tokenizer is neither byte-level BPE nor SentencePiece's nor BERT's, as GGUF has them. {ADVICE}"
        )
    special_ids = {f"{name}_token_id": token_id for name, token_id in role_ids.items() if token_id is not None}
    values = {"tokens": tokens, "token_type": kinds, **special_ids, **kind_fields, **_adds_bos_and_eos(backend, special_ids)}
    fields = {f"tokenizer.ggml.{name}": value for name, value in values.items()}
    _check_reads_back(backend, fields)
    return fields if template is None else {**fields, "tokenizer.chat_template": template}


def _tokens_and_kinds(backend: Tokenizer, size: int) -> tuple[list[str], list[int]]:
    """Each id's token and kind; ids that stand for no text get a name all the same."""
    tokens, kinds = [f"[PAD{token_id}]" for token_id in range(size)], [UNUSED] * size
    for token, token_id in backend.get_vocab(with_added_tokens=True).items():
        if token_id >= size:
            raise CheckpointError(
                f"the tokenizer's token {token!r} has the id {token_id}, but the model scores only {size} tokens. "
                "Is this the tokenizer of this model?"
            )
        tokens[token_id], kinds[token_id] = token, NORMAL
    for token_id, added in backend.get_added_tokens_decoder().items():
        kinds[token_id] = CONTROL if added.special else USER_DEFINED
    return tokens, kinds


def _byte_level(settings: Mapping[str, Any]) -> dict[str, Any]:
    model = settings["model"]
    behaviour = (_patterns(settings["pre_tokenizer"]), settings["normalizer"], model["ignore_merges"])
    for name, split in PRE_TOKENIZER_TYPES.items():
        if split.byte_level and behaviour == (split.patterns, {"type": "NFC"} if split.nfc else None, split.ignore_merges):
            return {"model": "gpt2", "pre": name, "merges": [" ".join(pair) for pair in model["merges"]]}
    raise CheckpointError(f"the tokenizer splits a text in a way that GGUF has no name for. {ADVICE}")


def _patterns(raw: Any) -> tuple[Any, ...]:
    """The patterns by which a byte-level pre-tokenizer splits; what is no pattern stands as it is, and equals none."""
    steps = [] if raw is None else _steps(raw)
    if not steps or steps.pop() != BYTES:
        return (None,)
    return tuple(steps)


def _steps(raw: Mapping[str, Any]) -> list[Any]:
    """What a pre-tokenizer does, step by step, each in one form where it has several; offsets do not count."""
    match raw:
        case {"type": "Sequence", "pretokenizers": steps}:
            return [step for inner in steps for step in _steps(inner)]
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
            return [pattern]
        case {"type": "Split", "pattern": {"String": str(text)}, "behavior": "Isolated", "invert": False}:
            return [re.escape(text)]
        case {"type": "Digits", "individual_digits": individual}:
            return [DIGIT if individual else DIGITS]
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": split}:
            return [GPT2, BYTES] if split else [BYTES]
    return [raw]


def _scored(backend: Tokenizer, settings: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> dict[str, Any]:
    """The fields of SentencePiece's kind; what its pieces are is written into `kinds`, and into some of `tokens`."""
    score_of: dict[str, float] = {}
    for rank, (left, right) in enumerate(settings["model"]["merges"]):
        score_of.setdefault(left + right, -float(rank))
    scores = [score_of.get(token, UNREACHABLE) for token in tokens]
    add_prefix_space = backend.encode("x", add_special_tokens=False).tokens[0].startswith(SPACE_MARKER)
    unknown = settings["model"]["unk_token"]
    for index, token in enumerate(tokens):
        if token == unknown:
            kinds[index] = UNKNOWN
        elif kinds[index] == NORMAL and BYTE_TOKEN.fullmatch(token):
            kinds[index] = BYTE
        elif kinds[index] == USER_DEFINED and not add_prefix_space:  # no pieces then, and the field has their plain text
            tokens[index] = token.replace(SPACE_MARKER, " ")
    unknown_field = {} if unknown is None else {"unknown_token_id": backend.token_to_id(unknown)}
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": add_prefix_space, **unknown_field}


def _wordpiece(settings: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> dict[str, Any]:
    """The fields of BERT's kind: pieces that begin a word are marked, and those that go on are not."""
    prefix = settings["model"]["continuing_subword_prefix"]
    for index, token in enumerate(tokens):
        if kinds[index] == NORMAL and not (token.startswith("[") and token.endswith("]") and len(token) > 2):
            tokens[index] = token.removeprefix(prefix) if token.startswith(prefix) else f"{SPACE_MARKER}{token}"
    normalizer = settings["normalizer"]
    accents = {} if (value := normalizer["strip_accents"]) is None else {"normalizer.strip_accents": value}
    return {"model": "bert", "pre": "default", "normalizer.lowercase": normalizer["lowercase"], **accents}


def _adds_bos_and_eos(backend: Tokenizer, special: Mapping[str, int]) -> dict[str, bool]:
    """Whether each text begins and ends with the tokens for that."""
    bare, with_special = (backend.encode("x", add_special_tokens=added).ids for added in (False, True))
    differs = len(with_special) > len(bare)
    return {
        "add_bos_token": differs and with_special[0] == special.get("bos_token_id"),
        "add_eos_token": differs and with_special[-1] == special.get("eos_token_id"),
    }


def _check_reads_back(backend: Tokenizer, fields: Mapping[str, Any]) -> None:
    """Read the fields back, and see that texts become the same tokens."""
    rebuilt, _, _ = gguf.build(fields)
    for text in PROBES:
        if rebuilt.encode(text).ids != backend.encode(text).ids:
            raise CheckpointError(f"the tokenizer does something to {text!r} that GGUF's fields cannot say. {ADVICE}")
