"""A tokenizer as GGUF's `tokenizer.…` fields: the inverse of this package's readers, for the two kinds that decoders have.

`gpt2` is byte-level BPE: vocabulary, merges, and the name of how text is split. `llama` is SentencePiece's BPE: pieces with
scores in place of merges; a piece scores by the first merge that makes it. What the fields cannot say is refused: they are
read back, and must give the same tokens for texts that bring out the differences. (One is let pass: before a text that
begins with a space, GGUF's readers put a second one, and some of Llama's own tokenizers do not.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, decoders

from glassformer.errors import CheckpointError
from glassformer.text.sources import gguf
from glassformer.text.sources.gguf.byte_level import COMPOSED, LLAMA3_KIN, PRE_TOKENIZERS
from glassformer.text.sources.gguf.fields import SPECIAL
from glassformer.text.sources.scored_pieces import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER
from glassformer.text.token_bytes import SPACE

PROBES = (
    "The quick brown fox", "jumps  over\n\n the\tlazy dog, isn't it?  ", "In 2024, 31415926 and 2.718 – naïve café",
    "日本語のテキスト и русский", "🙂👍🏽 e\u0301 ﬁ", "def f(x):\n    return x**2  # squared\n", "WE'LL DON'T I'm 'tis",
)  # fmt: skip
SPELT_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
NEVER = -1e9  # the score of a piece that no merge makes
MEND = "Keep the checkpoint as it is; load(…, weights=…) packs its weights all the same."


def fields(backend: Tokenizer, special: Mapping[str, str], template: str | None, size: int) -> dict[str, Any]:
    """The fields of a tokenizer, for a model that scores so many tokens; `special`: the tokens with a role, by name."""
    tokens, kinds = _listed(backend, size)
    whole = json.loads(backend.to_str())
    numbers = {SPECIAL[name]: backend.token_to_id(token) for name, token in special.items() if name in SPECIAL}
    if whole["model"]["type"] == "BPE" and isinstance(backend.decoder, decoders.ByteLevel):
        own = _byte_level(whole)
    elif whole["model"]["type"] == "BPE" and whole["model"]["byte_fallback"]:
        own = _scored(backend, whole, tokens, kinds)
    else:
        raise CheckpointError(f"the tokenizer is neither byte-level BPE nor SentencePiece's, as GGUF has them. {MEND}")
    named = {f"{name}_token_id": number for name, number in numbers.items() if number is not None}
    all_of_it = {"tokens": tokens, "token_type": kinds, **named, **own, **_around(backend, named)}
    found = {f"tokenizer.ggml.{name}": value for name, value in all_of_it.items()}
    _check(backend, found)
    return found if template is None else {**found, "tokenizer.chat_template": template}


def _listed(backend: Tokenizer, size: int) -> tuple[list[str], list[int]]:
    """Each id's token and kind; ids that stand for no text get a name all the same."""
    tokens, kinds = [f"[PAD{number}]" for number in range(size)], [UNUSED] * size
    for token, number in backend.get_vocab(with_added_tokens=True).items():
        if number >= size:
            raise CheckpointError(
                f"the tokenizer's token {token!r} has the id {number}, but the model scores only {size} tokens. "
                "Is this the tokenizer of this model?"
            )
        tokens[number], kinds[number] = token, NORMAL
    for number, added in backend.get_added_tokens_decoder().items():
        kinds[number] = CONTROL if added.special else USER
    return tokens, kinds


def _byte_level(whole: Mapping[str, Any]) -> dict[str, Any]:
    model = whole["model"]
    said = (_steps(whole["pre_tokenizer"]), whole["normalizer"], model["ignore_merges"])
    for name, build in PRE_TOKENIZERS.items():
        normalizer = {"type": "NFC"} if name in COMPOSED else None
        if said == (_steps(json.loads(build().__getstate__())), normalizer, name in LLAMA3_KIN):
            return {"model": "gpt2", "pre": name, "merges": [" ".join(pair) for pair in model["merges"]]}
    raise CheckpointError(f"the tokenizer splits a text in a way that GGUF has no name for. {MEND}")


def _steps(raw: Any) -> list[Any]:
    """What a pre-tokenizer does, step by step; where a token's letters are said to lie is no part of it."""
    if raw is None:
        return []
    if raw["type"] == "Sequence":
        return [step for one in raw["pretokenizers"] for step in _steps(one)]
    return [{key: value for key, value in raw.items() if key != "trim_offsets"}]


def _scored(backend: Tokenizer, whole: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> dict[str, Any]:
    """The fields of SentencePiece's kind; what its pieces are is written into `kinds`, and into some of `tokens`."""
    made: dict[str, float] = {}
    for rank, (left, right) in enumerate(whole["model"]["merges"]):
        made.setdefault(left + right, -float(rank))
    scores = [made.get(token, NEVER) for token in tokens]
    prefixed = backend.encode("x", add_special_tokens=False).tokens[0].startswith(SPACE)
    unknown = whole["model"]["unk_token"]
    for number, token in enumerate(tokens):
        if token == unknown:
            kinds[number] = UNKNOWN
        elif kinds[number] == NORMAL and SPELT_BYTE.fullmatch(token):
            kinds[number] = BYTE
        elif kinds[number] == USER and not prefixed:  # where they are no pieces, the field spells them as in a text
            tokens[number] = token.replace(SPACE, " ")
    more = {} if unknown is None else {"unknown_token_id": backend.token_to_id(unknown)}
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": prefixed, **more}


def _around(backend: Tokenizer, special: Mapping[str, int]) -> dict[str, bool]:
    """Whether each text begins and ends with the tokens for that."""
    bare, framed = (backend.encode("x", add_special_tokens=added).ids for added in (False, True))
    more = len(framed) > len(bare)
    return {
        "add_bos_token": more and framed[0] == special.get("bos_token_id"),
        "add_eos_token": more and framed[-1] == special.get("eos_token_id"),
    }


def _check(backend: Tokenizer, found: Mapping[str, Any]) -> None:
    """Read the fields back, and see that texts become the same tokens."""
    again, _, _ = gguf.build(found)
    for text in PROBES:
        if again.encode(text).ids != backend.encode(text).ids:
            raise CheckpointError(f"the tokenizer does something to {text!r} that GGUF's fields cannot say. {MEND}")
