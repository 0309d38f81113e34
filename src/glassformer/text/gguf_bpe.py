"""A tokenizer from GGUF metadata: `gpt2` byte-level BPE with its named pre-tokenizers.

GGUF stores the vocabulary, the merges and the name of the pre-tokenizer; the names' meanings are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from glassformer.errors import CheckpointError, nearest

NORMAL, CONTROL, USER = 1, 3, 4

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
LLAMA3_KIN = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3"})  # a word that is a token needs no merges,
# and each text begins with the begin-of-text token unless the file says otherwise


def build(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, str]]:
    """The library's tokenizer, and the special tokens by name (`bos_token`, …)."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(f"GGUF field 'tokenizer.ggml.model' is {model!r}; only 'gpt2' can be read.")
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"GGUF field 'tokenizer.ggml.pre' is {pre!r}, which is not known.{nearest(str(pre), PRE_TOKENIZERS)}"
        )
    tokens, kinds, merges = (_list(metadata, name) for name in ("tokens", "token_type", "merges"))
    if len(kinds) != len(tokens):
        raise CheckpointError(f"GGUF lists {len(tokens)} tokens but {len(kinds)} token types. Fetch the file again.")

    named = _named(metadata, len(tokens))
    added = {number for number, kind in enumerate(kinds) if kind in (CONTROL, USER)}
    added |= {number for number in named.values() if kinds[number] != NORMAL}
    words = len(tokens)  # the trained vocabulary; what was added or padded behind it is no part of it
    while words and kinds[words - 1] != NORMAL and words - 1 not in added:
        words -= 1
    while words and words - 1 in added:
        words -= 1
    try:
        backend = Tokenizer(
            BPE(
                vocab={token: number for number, token in enumerate(tokens[:words])},
                merges=[tuple(pair.split(" ", 1)) for pair in merges],
                ignore_merges=pre in LLAMA3_KIN,
            )
        )
    except Exception as error:  # the library raises bare Exceptions
        raise CheckpointError(f"GGUF's vocabulary and merges do not fit together: {error}. Fetch the file again.") from error
    if pre in COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(
        [AddedToken(tokens[number], special=kinds[number] != USER, normalized=False) for number in sorted(added)]
    )
    for number in added:
        if backend.token_to_id(tokens[number]) != number:
            raise CheckpointError(
                f"GGUF's token {number}, {tokens[number]!r}, is empty or stands twice. Fetch the file again."
            )
    bos = metadata.get("tokenizer.ggml.add_bos_token", pre in LLAMA3_KIN)
    around = {
        "first": named.get("bos_token") if bos else None,
        "last": named.get("eos_token") if metadata.get("tokenizer.ggml.add_eos_token") else None,
    }
    backend.post_processor = _frame(
        {place: (number, tokens[number]) for place, number in around.items() if number is not None}
    )
    return backend, {name: tokens[number] for name, number in named.items()}


def _named(metadata: Mapping[str, Any], count: int) -> dict[str, int]:
    """The ids of the special tokens that have a name."""
    found = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            if not isinstance(number, int) or not 0 <= number < count:
                raise CheckpointError(f"GGUF field 'tokenizer.ggml.{key}_token_id' is {number!r}, outside the vocabulary.")
            found[f"{name}_token"] = number
    return found


def _frame(around: Mapping[str, tuple[int, str]]) -> Any:
    """Tokens around each text: the id and spelling of the `first`, the `last`, both or neither."""
    spelling = processors.ByteLevel(trim_offsets=False)
    if not around:
        return spelling
    places = [place for place in ("first", "$A", "last") if place == "$A" or place in around]
    special = [{"id": place, "ids": [number], "tokens": [token]} for place, (number, token) in around.items()]
    return processors.Sequence([spelling, processors.TemplateProcessing(single=places, special_tokens=special)])


def _list(metadata: Mapping[str, Any], name: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list):
        raise CheckpointError(f"GGUF field 'tokenizer.ggml.{name}' is missing. Fetch the file again.")
    return value
