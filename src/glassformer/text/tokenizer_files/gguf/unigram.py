"""`t5`: SentencePiece's Unigram, which takes the split of a text whose scores add up highest.

`precompiled_charsmap` is SentencePiece's own table of what to normalise (NFKC and a little more), as bytes.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer

from glassformer.ground.errors import CheckpointError
from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizer_files.piece_kinds import CONTROL
from glassformer.text.tokenizer_files.scored_pieces import ScoredPieces
from glassformer.text.tokenizer_files.tokenizer_classes import SENTINELS

FILLER_TOKEN = re.compile(r"\[PAD\d+\]")


def build(fields: TokenizerFields) -> Tokenizer:
    unknown = fields.special_ids.get("unk_token")
    if unknown is None:
        raise CheckpointError("GGUF field 'tokenizer.ggml.unknown_token_id' is missing. Fetch the file again.")
    if not any(token.startswith("<extra_id_") for token in fields.tokens):
        _name_sentinels(fields)
    pieces = ScoredPieces(
        fields.tokens, fields.scores, fields.kinds, "GGUF", unknown, _charsmap(fields),
        remove_extra_whitespaces=bool(fields.get("remove_extra_whitespaces", True)),
        add_prefix_space=bool(fields.get("add_space_prefix", True)),
    )  # fmt: skip
    backend = pieces.unigram()
    if pieces.remove_extra_whitespaces and pieces.add_prefix_space:
        pieces.set_word_pipeline(backend)
    else:
        pieces.set_pipeline(backend)
    fields.add_tokens_to(backend)
    backend.post_processor = fields.bos_eos_processor(add_bos=False, add_eos=True)
    return backend


def _name_sentinels(fields: TokenizerFields) -> None:
    """Give T5's sentinels their names back, `<extra_id_99>` down to `<extra_id_0>`.

    They follow SentencePiece's pieces and are not among them, so the field's converter, which reads those, fills the
    model's 32,128 rows with `[PAD32000]`, `[PAD32001]`, … The first hundred are the sentinels, as T5's own tokenizer
    numbers them; what follows only rounds the table up. Fewer than a hundred cannot be T5's, and stay as they are.
    """
    filler_ids = [number for number, token in enumerate(fields.tokens) if FILLER_TOKEN.fullmatch(token)]
    if len(filler_ids) >= SENTINELS:
        for number, sentinel in zip(filler_ids, reversed(range(SENTINELS)), strict=False):
            fields.tokens[number] = f"<extra_id_{sentinel}>"
            fields.kinds[number] = CONTROL


def _charsmap(fields: TokenizerFields) -> bytes:
    table = fields.get("precompiled_charsmap", [])
    try:
        return bytes(byte % 256 for byte in table)  # some writers store signed bytes
    except TypeError:
        raise CheckpointError(
            "GGUF field 'tokenizer.ggml.precompiled_charsmap' is no list of bytes. Fetch the file again."
        ) from None
