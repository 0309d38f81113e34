"""The kinds of a vocabulary's entries, as SentencePiece numbers them, and GGUF after it."""

from __future__ import annotations

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
