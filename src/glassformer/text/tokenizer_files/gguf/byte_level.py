"""`gpt2`: byte-level BPE. The file stores the vocabulary, the merges and the name of how text is split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from glassformer.errors import CheckpointError, did_you_mean
from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizer_files.scored_pieces import NORMAL
from glassformer.text.tokenizers_errors import LibraryErrors

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _words() -> Any:
    """GPT-2's own splitting."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _words()])


def _split(pattern: str) -> Callable[[], Any]:
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE_TOKENIZERS: Mapping[str, Callable[[], Any]] = {
    **dict.fromkeys(("gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "jina-es", "jina-de", "roberta-bpe"), _words),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _digits),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), _split(QWEN2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "falcon3", "dbrx"), _split(LLAMA3)),
}
NFC_NORMALIZED = frozenset({"qwen2", "deepseek-r1-qwen", "megrez"})  # normalise to NFC first
LLAMA3_LIKE = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3"})  # a word that is a token needs no merges,
# and each text begins with the begin-of-text token unless the file says otherwise


def build(fields: TokenizerFields) -> Tokenizer:
    pre = fields.get("pre", "gpt-2")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"GGUF field 'tokenizer.ggml.pre' is {pre!r}, which is not known.{did_you_mean(str(pre), PRE_TOKENIZERS)}"
        )
    tokens, kinds, merges = fields.tokens, fields.kinds, fields.required_list("merges")
    added = set(fields.added_ids)
    words = len(tokens)  # the trained vocabulary, without the added and padding tokens after it
    while words and kinds[words - 1] != NORMAL and words - 1 not in added:
        words -= 1
    while words and words - 1 in added:
        words -= 1
    with LibraryErrors("GGUF's vocabulary and merges do not fit together: {}. Fetch the file again."):
        backend = Tokenizer(
            BPE(
                vocab={token: number for number, token in enumerate(tokens[:words])},
                merges=[tuple(pair.split(" ", 1)) for pair in merges],
                ignore_merges=pre in LLAMA3_LIKE,
            )
        )
    if pre in NFC_NORMALIZED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    fields.add_tokens_to(backend)
    spelling = processors.ByteLevel(trim_offsets=False)
    backend.post_processor = processors.Sequence(
        [spelling, fields.bos_eos_processor(add_bos=pre in LLAMA3_LIKE, add_eos=False)]
    )
    return backend
