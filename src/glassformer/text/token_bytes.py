"""How vocabularies spell bytes, so that a token can be shown as what it adds to a text.

byte-level   every byte is one printable character: `Ġ` is a space, `Ċ` a line break, `Ã©` an é
pieces       SentencePiece: `▁` is a space, and `<0x0A>` a byte that no piece covers
WordPiece    `##ing` continues a word; anything else follows a space
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import tokenizers

SPACE_MARKER = "▁"  # SentencePiece's, U+2581
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
KEEPING = {"ByteLevel", "Digits", "Metaspace", "Prepend", "NFD"}  # steps before encoding that take nothing away
COMPOSING = {"NFC", "NFKC", "NFKD", "Lowercase"}
COMPOSED = 4  # how many times shorter a composed character is at most: 𝐚 as a, three letters as 각

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]  # of Latin-1, which stand for themselves
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
CHARACTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + index) for index, byte in enumerate(_UNPRINTABLE)}
BYTES = {character: byte for byte, character in CHARACTERS.items()}
_ESCAPES = {byte: character for byte, character in CHARACTERS.items() if byte in _UNPRINTABLE}


def byte_level(raw: bytes) -> str:
    """Bytes as byte-level vocabularies spell them.

    >>> byte_level(b" hi\\n")
    'ĠhiĊ'
    """
    return raw.decode("latin-1").translate(_ESCAPES)


def bytes_decoder(backend: tokenizers.Tokenizer) -> Callable[[str, bool], bytes]:
    """A function from a token's spelling, and whether it was added later, to its bytes."""
    parts = _decoder_steps(json.loads(backend.decoder.__getstate__()) if backend.decoder else {})
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return _byte_level_bytes
    if "WordPiece" in kinds:
        return _wordpiece_bytes
    if "Metaspace" in kinds or any((part.get("pattern") or {}).get("String") == SPACE_MARKER for part in parts):
        return _sentencepiece_bytes if "ByteFallback" in kinds else lambda token, added: _without_space_marker(token)
    return lambda token, added: token.encode()


@dataclass(frozen=True)
class TokenSizes:
    """What a vocabulary says of how many tokens a text has, before it is encoded."""

    longest: float  # the most bytes of a text that one token can stand for; infinite where there is no such number
    dropped: bytes  # bytes that have no token, and are left out

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> Self:
        """There is a longest token where no bytes are unknown, and nothing else is cut out of a text on its way."""
        vocabulary, added = backend.get_vocab(), backend.get_added_tokens_decoder()
        steps = [step for part in (backend.normalizer, backend.pre_tokenizer) if part for step in _steps(part)]
        kinds = {step["type"] for step in steps}
        strips = any(token.lstrip or token.rstrip for token in added.values())  # any number of spaces around it
        fallback = getattr(backend.model, "byte_fallback", False) and all(
            f"<0x{byte:02X}>" in vocabulary for byte in range(256)
        )
        whole = "ByteLevel" in kinds or fallback
        if not whole or not isinstance(backend.model, tokenizers.models.BPE) or strips or not all(map(_keeps_text, steps)):
            return cls(math.inf, b"")
        bytes_of = bytes_decoder(backend)
        longest = max(len(bytes_of(token, token_id in added)) for token, token_id in vocabulary.items())
        dropped = () if fallback else (byte for character, byte in BYTES.items() if character not in vocabulary)
        return cls(longest * COMPOSED if kinds & COMPOSING else longest, bytes(dropped))

    def least_tokens(self, text: str) -> int:
        """The fewest tokens that a text can have."""
        return math.ceil(len(text.encode("utf-8", "surrogatepass").translate(None, self.dropped)) / self.longest)


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """What a normalizer or a pre-tokenizer does, one after the other."""
    state = json.loads(part.__getstate__())
    yield from state.get("normalizers", state.get("pretokenizers", [state]))


def _keeps_text(step: dict[str, Any]) -> bool:
    """Whether what a step makes of a text is no shorter, but for characters that it composes."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
            return len(content.encode()) >= len(pattern.encode())
        case {"type": "Split" | "Punctuation", "behavior": str(behavior)}:
            return behavior != "Removed"
    return step["type"] in KEEPING or step["type"] in COMPOSING


def _decoder_steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    return [decoder, *decoder.get("decoders", [])]


def _byte_level_bytes(token: str, added: bool) -> bytes:
    if added or not BYTES.keys() >= set(token):
        return token.encode()
    return bytes(BYTES[character] for character in token)


def _wordpiece_bytes(token: str, added: bool) -> bytes:
    if added:
        return token.encode()
    return (token[2:] if token.startswith("##") else f" {token}").encode()


def _sentencepiece_bytes(token: str, added: bool) -> bytes:
    match = BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(match[1]) if match else _without_space_marker(token)


def _without_space_marker(token: str) -> bytes:
    return token.replace(SPACE_MARKER, " ").encode()
