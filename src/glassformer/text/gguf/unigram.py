"""`t5`: SentencePiece's Unigram, which takes the split of a text whose scores add up highest.

`precompiled_charsmap` is SentencePiece's own table of what to normalise (NFKC and a little more), as bytes.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram

from glassformer.errors import CheckpointError
from glassformer.text.gguf.fields import Fields
from glassformer.text.spelling import SPACE


def build(fields: Fields) -> Tokenizer:
    unknown = fields.named.get("unk_token")
    if unknown is None:
        raise CheckpointError("GGUF field 'tokenizer.ggml.unknown_token_id' is missing. Fetch the file again.")
    pieces = list(zip(fields.tokens, fields.scores, strict=True))
    backend = Tokenizer(Unigram(pieces, unk_id=unknown, byte_fallback=False))
    backend.normalizer = normalizers.Sequence(_normalizers(fields))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never")
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always" if _prefixed(fields) else "never")
    fields.add(backend)
    backend.post_processor = fields.frame(first=False, last=True)
    return backend


def _normalizers(fields: Fields) -> list[Any]:
    found: list[Any] = []
    table = fields.get("precompiled_charsmap", [])
    try:
        raw = bytes(byte % 256 for byte in table)  # some writers store signed bytes
    except TypeError:
        raise CheckpointError(
            "GGUF field 'tokenizer.ggml.precompiled_charsmap' is no list of bytes. Fetch the file again."
        ) from None
    if raw:
        found.append(normalizers.Precompiled(raw))
    if fields.get("remove_extra_whitespaces", True):
        found += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    return [*found, normalizers.Prepend(" ")] if _prefixed(fields) else found


def _prefixed(fields: Fields) -> bool:
    return bool(fields.get("add_space_prefix", True))
