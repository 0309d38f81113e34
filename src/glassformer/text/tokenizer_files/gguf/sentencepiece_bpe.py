"""`llama`: SentencePiece's BPE, as the files of Llama 2, Mistral and Gemma carry it.

Pieces have scores in place of merges: the pair whose union scores highest joins first. `▁` is a space, one is put
before each text unless the file says otherwise, and a character that no piece covers is encoded as bytes, `<0xE2>`.
"""

from __future__ import annotations

from tokenizers import Tokenizer

from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizer_files.scored_pieces import ScoredPieces


def build(fields: TokenizerFields) -> Tokenizer:
    add_prefix_space = bool(fields.get("add_space_prefix", True))
    spaced = [] if add_prefix_space else fields.respell_user_spaces()  # in Gemma's vocabulary they are pieces
    pieces = ScoredPieces(
        fields.tokens, fields.scores, fields.kinds, "GGUF", fields.special_ids.get("unk_token"),
        add_prefix_space=add_prefix_space, byte_fallback=True,
    )  # fmt: skip
    backend = pieces.bpe()
    pieces.set_pipeline(backend)
    fields.add_tokens_to(backend, normalized=spaced)
    backend.post_processor = fields.bos_eos_processor(add_bos=True, add_eos=False)
    return backend
