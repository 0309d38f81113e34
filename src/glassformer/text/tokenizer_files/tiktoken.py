"""A tokenizer from tiktoken's ranks: one line per token, its bytes in base64 and its rank, which is also its id.

The split pattern and the special tokens are not in the file; those of `cl100k_base` are given here as its authors
publish them, with two signs put into the words of the regex library at hand: `\\z` for the end of the text, and an
atomic group for the possessive `{1,3}+`.

Llama 3's `tokenizer.model` is such a file too, under the name that SentencePiece's had: its content tells them apart. Its
pattern is known; which special tokens follow the ranks, the files beside it say.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import read_regular
from glassformer.text.token_bytes import byte_level
from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import LLAMA3
from glassformer.text.tokenizer_files.scored_pieces import merges
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


LLAMA3_FILES = ("tokenizer.model", "tiktoken.model")
LLAMA3_SPECIAL = 256  # special tokens that follow the ranks, most of them reserved
LLAMA3_BOS, LLAMA3_EOS = "<|begin_of_text|>", "<|end_of_text|>"
FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d{1,10}\r?\n")


def ranks_file(folder: Path) -> Path | None:
    """The file in a folder that holds ranks, going by its first line."""
    for path in (folder / name for name in LLAMA3_FILES):
        try:
            with path.open("rb") as file:
                if FIRST_LINE.fullmatch(file.readline(1000)):
                    return path
        except OSError:  # missing, or unreadable, which the reader of pieces will say
            continue
    return None


def special_tokens_beside(
    path: Path, ranks: Mapping[bytes, int], added: Mapping[int, str], model: Mapping[str, Any]
) -> list[str]:
    """The special tokens that follow a file's ranks, in the order of their ids.

    They are those that tokenizer_config.json lists (`added`), or Llama 3's where config.json is that of a Llama with as
    many more rows; Llama 3.1 named some that Llama 3 had reserved, and came with another RoPE.
    """
    size = len(ranks)
    listed = {token_id: token for token_id, token in added.items() if token_id >= size}
    if listed:
        return [listed.get(token_id, f"<|reserved_token_{token_id}|>") for token_id in range(size, max(listed) + 1)]
    if model.get("model_type") != "llama" or model.get("vocab_size") != size + LLAMA3_SPECIAL:
        raise CheckpointError(
            f"{path}: holds tiktoken's ranks, and no tokenizer_config.json or config.json beside it says which special "
            "tokens belong to them. Fetch those, or its tokenizer.json."
        )
    rope = model.get("rope_parameters") or model.get("rope_scaling")
    return _llama3_special(isinstance(rope, dict) and "llama3" in (rope.get("rope_type"), rope.get("type")))


def _llama3_special(newer: bool) -> list[str]:
    named = {0: LLAMA3_BOS, 1: LLAMA3_EOS, 6: "<|start_header_id|>", 7: "<|end_header_id|>", 9: "<|eot_id|>"}
    if newer:
        named |= {4: "<|finetune_right_pad_id|>", 8: "<|eom_id|>", 10: "<|python_tag|>"}
    reserved = (f"<|reserved_special_token_{index}|>" for index in range(LLAMA3_SPECIAL))
    return [named[index] if index in named else next(reserved) for index in range(LLAMA3_SPECIAL)]


def build_llama3(path: Path, ranks: Mapping[bytes, int], special: Sequence[str]) -> tokenizers.Tokenizer:
    """The library's tokenizer of Llama 3's kind, with the special tokens behind the ranks."""
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise CheckpointError(f"{path}: its ranks are not 0 to {len(ranks) - 1}. Fetch it again, or its tokenizer.json.")
    backend = build(ranks, LLAMA3, {})
    with LibraryErrors(f"{path}: its special tokens cannot be added ({{}}). Fetch its tokenizer.json."):
        backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    for index, token in enumerate(special, len(ranks)):
        if backend.token_to_id(token) != index:
            raise CheckpointError(f"{path}: the special token {token!r} beside it stands twice. Fetch its tokenizer.json.")
    return backend


def read_ranks(path: Path) -> dict[bytes, int]:
    """The ranks in a `.tiktoken` file."""
    lines = read_regular(path).split(b"\n")
    ranks: dict[bytes, int] = {}
    for index, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            encoded, digits = line.split()
            token, rank = base64.b64decode(encoded, validate=True), int(digits)
        except (ValueError, binascii.Error):
            token, rank = b"", -1
        if not token or not 0 <= rank < 2**32:
            raise CheckpointError(f"{path}: line {index} is no token in base64 and its rank. Fetch it again.")
        if token in ranks:
            raise CheckpointError(f"{path}: line {index} repeats the token {token!r}. Fetch it again.")
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
    taken = {token_id: word for word, token_id in words.items()}
    for token, token_id in special.items():
        if token in words or token_id in taken:
            raise CheckpointError(f"the special token {token!r} or its id {token_id} is already in the ranks. Give another.")
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
