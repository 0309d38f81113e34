"""Texts for hypothesis: any Unicode at all, salted with what tokenizers are known to get wrong."""

from __future__ import annotations

from hypothesis import settings, strategies as st

moderate = settings(max_examples=60, deadline=None)

SALT = [
    "Hello", " world", "don't", "WE'LL", "x=1;", "naïve", "é", "e\u0301", "q\u0323\u0307", "ﬁ", "Å", "\u212b", "한국어", "\u1112\u1161\u11ab",
    "👍", "👩‍👩‍👧", "🇩🇪", "👋🏽", "🫠", "𝔘𝔫𝔦", "שלום", "مرحبا", "\u202eabc\u202c", "日本語", "ไทย", "हिन्दी",
    "0", "7", "2024", "3.14159", "1,000,000", "٤٢", "Ⅻ", "½", "①",
    " ", "  ", "   x", "\t", "\t\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u200b", "\x00", "\x1b[0m", "\x7f", "\ufeff", "\ufffd",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<|im_", "Ġ", "Ċ", "def f(x):\n    return x\n",
]  # fmt: skip

texts = st.lists(st.sampled_from(SALT) | st.text(max_size=6), max_size=10).map("".join)
