"""A tokenizer from tiktoken's ranks: one line per token, its bytes in base64 and its rank, which is also its id.

The split pattern and the special tokens are not in the file; those of `cl100k_base` are given here as its authors
publish them, with two signs put into the words of the regex library at hand: `\\z` for the end of the text, and an
atomic group for the possessive `{1,3}+`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from glassformer.errors import CheckpointError
from glassformer.text.token_bytes import byte_level
from glassformer.text.tokenizer_files.merges import merges
from glassformer.text.tokenizers_errors import LibraryErrors

CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|(?>\p{N}{1,3})"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\z|\s*[\r\n]|\s+(?!\S)|\s"
)
CL100K_SPECIAL: Mapping[str, int] = {
    "<|endoftext|>": 100257,
    "<|fim_prefix|>": 100258,
    "<|fim_middle|>": 100259,
    "<|fim_suffix|>": 100260,
    "<|endofprompt|>": 100276,
}


def read_ranks(path: Path) -> dict[bytes, int]:
    """The ranks in a `.tiktoken` file."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}). Fetch it again.") from error
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            encoded, digits = line.split()
            token, rank = base64.b64decode(encoded, validate=True), int(digits)
        except (ValueError, binascii.Error):
            token, rank = b"", -1
        if not token or not 0 <= rank < 2**32:
            raise CheckpointError(f"{path}: line {number} is no token in base64 and its rank. Fetch it again.")
        if token in ranks:
            raise CheckpointError(f"{path}: line {number} repeats the token {token!r}. Fetch it again.")
        ranks[token] = rank
    if not ranks:
        raise CheckpointError(f"{path}: holds no tokens. Fetch it again.")
    if len(set(ranks.values())) < len(ranks):
        raise CheckpointError(f"{path}: gives one rank to several tokens. Fetch it again.")
    return ranks


def build(
    ranks: Mapping[bytes, int], pattern: str = CL100K, special: Mapping[str, int] = CL100K_SPECIAL
) -> tokenizers.Tokenizer:
    """The library's tokenizer: a word that is a token is that token, any other is merged from its bytes."""
    words = {byte_level(token): rank for token, rank in ranks.items()}
    taken = {number: word for word, number in words.items()}
    for token, number in special.items():
        if token in words or number in taken:
            raise CheckpointError(f"the special token {token!r} or its id {number} is already in the ranks. Give another.")
    pairs = [(byte_level(left), byte_level(right)) for left, right in merges(ranks)]
    with LibraryErrors("the ranks and the pattern do not make a tokenizer ({}). Give others."):
        backend = tokenizers.Tokenizer(BPE({**words, **special}, pairs, ignore_merges=True))
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return backend
