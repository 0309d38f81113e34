"""A tokenizer from GGUF metadata, by the kind that the file names. The fields' meanings are llama.cpp's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from glassformer.ground.errors import CheckpointError
from glassformer.ground.garbage_collection import collection_paused
from glassformer.text.tokenizer_files.gguf import cache
from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizer_files.gguf.vocabularies import BUILDERS
from glassformer.text.tokenizers_errors import LibraryErrors

SLOW = ("llama",)  # kinds whose merges are not in the file, but have to be found
LARGE = 30_000  # tokens of a vocabulary for which that takes long
UNSUPPORTED = {
    "rwkv": "RWKV's greedy match of the longest byte string",
    "plamo2": "PLaMo 2's own Unigram over suffixes",
    "hybriddna": "BPE with DNA cut into groups of letters",
    "no_vocab": "no vocabulary at all",
    "none": "no vocabulary at all",
}


def build(metadata: Mapping[str, Any], kept_in: Path | None = None) -> tuple[Tokenizer, dict[str, str], bool]:
    """The library's tokenizer, the special tokens by name (`bos_token`, …), and whether it gives token types.

    `kept_in`: a folder where one that takes long to build is kept for the next time.
    """
    tokens = metadata.get("tokenizer.ggml.tokens")
    slow = metadata.get("tokenizer.ggml.model") in SLOW and isinstance(tokens, list) and len(tokens) >= LARGE
    path = cache.entry_path(kept_in, metadata) if kept_in is not None and slow else None
    if path is not None and (kept := cache.read(path)) is not None:
        return *kept, False
    with collection_paused():  # there are as many tuples as merges
        backend, special, token_types = _build(metadata)
    if path is not None:
        cache.write(path, backend, special)
    return backend, special, token_types


def _build(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, str], bool]:
    kind = metadata.get("tokenizer.ggml.model")
    if isinstance(kind, str) and kind in UNSUPPORTED:
        raise CheckpointError(
            f"GGUF's tokenizer is of the kind {kind!r} ({UNSUPPORTED[kind]}), which is not supported. Use another model."
        )
    if not isinstance(kind, str) or kind not in BUILDERS:
        known = ", ".join(repr(name) for name in BUILDERS)
        raise CheckpointError(
            f"GGUF field 'tokenizer.ggml.model' is {kind!r}; only {known} can be read. Use a file with one of those."
        )
    fields = TokenizerFields(metadata)
    with LibraryErrors("GGUF's vocabulary does not fit together: {}. Fetch the file again."):
        backend = BUILDERS[kind](fields)
    return backend, {name: fields.tokens[token_id] for name, token_id in fields.special_ids.items()}, kind == "bert"
