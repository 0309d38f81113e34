"""Texts for hypothesis: any Unicode at all, salted with what tokenizers are known to get wrong."""

from __future__ import annotations

from functools import cache

from hypothesis import settings
from hypothesis import strategies as st

from glassformer.text import Tokenizer
from tests.sweeps import examples

moderate = settings(max_examples=examples(50, 150), deadline=None)

WORDS = ["Hello", " world", "don't", "WE'LL", "x=1;", "def f(x):\n    return x\n"]
SCRIPTS = ["naïve", "שלום", "مرحبا", "\u202eabc\u202c", "日本語", "한국어", "ไทย", "हिन्दी", "𝔘𝔫𝔦"]
MARKS = ["é", "e\u0301", "q\u0323\u0307", "ﬁ", "Å", "\u212b", "\u1112\u1161\u11ab"]  # composed, apart, and unlike
EMOJI = ["👍", "👋🏽", "🇩🇪", "🫠", "👩\u200d👩\u200d👧"]
NUMBERS = ["0", "7", "2024", "3.14159", "1,000,000", "٤٢", "Ⅻ", "½", "①"]
SPACES = [" ", "  ", "   x", "\t", "\t\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u200b"]
CONTROL = ["\x00", "\x1b[0m", "\x7f", "\ufeff", "\ufffd"]
TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<|im_", "Ġ", "Ċ"]
SALT = [*WORDS, *SCRIPTS, *MARKS, *EMOJI, *NUMBERS, *SPACES, *CONTROL, *TOKENS]

texts = st.lists(st.sampled_from(SALT) | st.text(max_size=6), max_size=10).map("".join)


@cache
def single_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    """The tokens of one byte, which stand first in every vocabulary here."""
    return {raw: number for number in range(300) if len(raw := tokenizer.token_bytes(number)) == 1}


def encodable_bytes(tokenizer: Tokenizer, text: str) -> bytes:
    """What a tokenizer makes of a text: some compose its characters, and SmolLM2 has no token for a few rare bytes."""
    normalizer = tokenizer.backend.normalizer
    raw = (text if normalizer is None else normalizer.normalize_str(text)).encode()
    return b"".join(one for byte in raw if (one := bytes([byte])) in single_bytes(tokenizer))
