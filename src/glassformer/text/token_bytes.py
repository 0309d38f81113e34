"""How vocabularies spell bytes, so that a token can be shown as what it adds to a text.

byte-level   every byte is one printable character: `Ġ` is a space, `Ċ` a line break, `Ã©` an é
pieces       SentencePiece: `▁` is a space, and `<0x0A>` a byte that no piece covers
WordPiece    `##ing` continues a word; anything else follows a space
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import tokenizers

SPACE_MARKER = "▁"  # SentencePiece's, U+2581
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]  # of Latin-1, which stand for themselves
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
CHARACTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + at) for at, byte in enumerate(_UNPRINTABLE)}
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
