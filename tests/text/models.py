"""Tiny SentencePiece models, trained here, and their folders; and a byte-level tokenizer."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import PRE_TOKENIZER_TYPES
from tests.text.test_legacy_vocabulary import Files, write

PROSE = [
    "the quick brown fox jumps over the lazy dog, and the dog does not mind at all",
    "how are you today? I am well, thank you; and how is the weather over there?",
    "don't panic: the answer is forty two, says the guide to the galaxy.",
]
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
T5 = {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
XLM_ROBERTA = {"model_type": "unigram", "unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
ALBERT = {
    "model_type": "unigram", "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}  # fmt: skip
DEBERTA = {
    "model_type": "unigram", "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
    "eos_piece": "[SEP]", "unk_piece": "[UNK]",
}  # fmt: skip
LLAMA = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 420, "allow_whitespace_only_pieces": True, **PLAIN}
GEMMA = {
    **LLAMA, "add_dummy_prefix": False, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "eos_piece": "<eos>",
    "bos_piece": "<bos>", "user_defined_symbols": ["<mask>", "<turn>"],
}  # fmt: skip


_HELD: dict[str, bytes] = {}


def trained(**options: Any) -> bytes:
    """The model file that SentencePiece's own trainer makes with these options; each made once."""
    key = repr(sorted(options.items()))
    if key not in _HELD:
        made = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(PROSE * 6), model_writer=made, minloglevel=2, hard_vocab_limit=False,
            **{"vocab_size": 150, **options},
        )  # fmt: skip
        _HELD[key] = made.getvalue()
    return _HELD[key]


@cache
def processor(raw: bytes) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=raw)


def folder(path: Path, name: str, raw: bytes, files: Files) -> Path:
    return write(path, {name: raw, **files})


def byte_level(**changes: Any) -> Backend:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "th", "the"])}
    backend = Backend(models.BPE(vocabulary, [("t", "h"), ("th", "e")], **changes))
    backend.pre_tokenizer = PRE_TOKENIZER_TYPES["gpt-2"].pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend
