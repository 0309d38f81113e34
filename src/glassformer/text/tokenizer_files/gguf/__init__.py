"""A tokenizer from GGUF metadata, by the kind that the file names. The fields' meanings are llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Tokenizer

from glassformer.errors import CheckpointError
from glassformer.text.tokenizer_files.gguf import byte_level, sentencepiece_bpe, unigram, wordpiece
from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizers_errors import LibraryErrors

BUILDERS: Mapping[str, Callable[[TokenizerFields], Tokenizer]] = {
    "gpt2": byte_level.build,
    "llama": sentencepiece_bpe.build,
    "bert": wordpiece.build,
    "t5": unigram.build,
}


def build(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, str], bool]:
    """The library's tokenizer, the special tokens by name (`bos_token`, …), and whether it gives token types."""
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in BUILDERS:
        known = ", ".join(repr(name) for name in BUILDERS)
        raise CheckpointError(
            f"GGUF field 'tokenizer.ggml.model' is {kind!r}; only {known} can be read. Use a file with one of those."
        )
    fields = TokenizerFields(metadata)
    with LibraryErrors("GGUF's vocabulary does not fit together: {}. Fetch the file again."):
        backend = BUILDERS[kind](fields)
    return backend, {name: fields.tokens[number] for name, number in fields.special_ids.items()}, kind == "bert"
