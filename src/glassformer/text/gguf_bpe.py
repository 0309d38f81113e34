"""A tokenizer from GGUF metadata: `gpt2` byte-level BPE with its named pre-tokenizers.

GGUF stores the vocabulary, the merges and the name of the pre-tokenizer; the names' meanings are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from glassformer.errors import CheckpointError, nearest

NORMAL, CONTROL, USER, UNUSED = 1, 3, 4, 5

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
COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen", "megrez"})  # normalise to NFC first
WHOLE_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3"})  # a word that is a token needs no merges


def build(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, str]]:
    """The library's tokenizer, and the special tokens by name (`bos_token`, …)."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(f"GGUF field 'tokenizer.ggml.model' is {model!r}; only 'gpt2' can be read.")
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if pre not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"GGUF field 'tokenizer.ggml.pre' is {pre!r}, which is not known.{nearest(str(pre), PRE_TOKENIZERS)}"
        )
    tokens, kinds, merges = (_list(metadata, name) for name in ("tokens", "token_type", "merges"))
    if len(kinds) != len(tokens):
        raise CheckpointError(f"GGUF lists {len(tokens)} tokens but {len(kinds)} token types. Fetch the file again.")

    words = len(tokens)  # the trained vocabulary; what was added or padded behind it is no part of it
    while words and kinds[words - 1] != NORMAL:
        words -= 1
    try:
        backend = Tokenizer(
            BPE(
                vocab={token: number for number, token in enumerate(tokens[:words])},
                merges=[tuple(pair.split(" ", 1)) for pair in merges],
                ignore_merges=pre in WHOLE_FIRST,
            )
        )
    except Exception as error:  # the library raises bare Exceptions
        raise CheckpointError(f"GGUF's vocabulary and merges do not fit together: {error}. Fetch the file again.") from error
    if pre in COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (CONTROL, USER)
        ]
    )
    special = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            if not isinstance(number, int) or not 0 <= number < len(tokens):
                raise CheckpointError(f"GGUF field 'tokenizer.ggml.{key}_token_id' is {number!r}, outside the vocabulary.")
            special[f"{name}_token"] = tokens[number]
    backend.post_processor = _frame(metadata, backend, special)
    return backend, special


def _frame(metadata: Mapping[str, Any], backend: Tokenizer, special: Mapping[str, str]) -> Any:
    """Begin- and end-of-text tokens around each text, where the file asks for them."""
    first = special.get("bos_token") if metadata.get("tokenizer.ggml.add_bos_token") else None
    last = special.get("eos_token") if metadata.get("tokenizer.ggml.add_eos_token") else None
    if first is None and last is None:
        return processors.ByteLevel(trim_offsets=False)
    around = [(token, backend.token_to_id(token)) for token in (first, last) if token]
    text = [*([first] if first else []), "$A", *([last] if last else [])]
    return processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=" ".join(text), special_tokens=around),
        ]
    )


def _list(metadata: Mapping[str, Any], name: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list):
        raise CheckpointError(f"GGUF field 'tokenizer.ggml.{name}' is missing. Fetch the file again.")
    return value
