"""What tokenizers and the files that they are read from have in common: the names of special tokens, and "no limit"."""

from __future__ import annotations

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
NAMED_TOKEN_FIELDS = ("extra_special_tokens", "model_specific_special_tokens")  # names to tokens, as Gemma 3 has them
NO_LIMIT = 10**30  # what the field writes for "no limit"
