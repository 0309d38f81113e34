"""A tokenizer from GGUF metadata, by the kind that the file names. The fields' meanings are llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Tokenizer

from glassformer.errors import CheckpointError
from glassformer.text.tokenizer_files.gguf import byte_level, plain_bpe, sentencepiece_bpe, unigram, wordpiece
from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizers_errors import LibraryErrors

BUILDERS: Mapping[str, Callable[[TokenizerFields], Tokenizer]] = {
    "gpt2": byte_level.build,
    "llama": sentencepiece_bpe.build,
    "bert": wordpiece.build,
    "t5": unigram.build,
    "gemma4": lambda fields: plain_bpe.build(fields, "gemma4"),
    "whitespace": lambda fields: plain_bpe.build(fields, "whitespace"),
}
UNSUPPORTED = {
    "rwkv": "RWKV's greedy match of the longest byte string",
    "plamo2": "PLaMo 2's own Unigram over suffixes",
    "hybriddna": "BPE with DNA cut into groups of letters",
    "no_vocab": "no vocabulary at all",
    "none": "no vocabulary at all",
}


def build(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, str], bool]:
    """The library's tokenizer, the special tokens by name (`bos_token`, …), and whether it gives token types."""
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
    return backend, {name: fields.tokens[number] for name, number in fields.special_ids.items()}, kind == "bert"
