"""`llama`: SentencePiece's BPE, as the files of Llama 2, Mistral and Gemma carry it.

Pieces have scores in place of merges: the pair whose union scores highest joins first. `▁` is a space, one is put
before each text unless the file says otherwise, and a character that no piece covers is encoded as bytes, `<0xE2>`.
"""

from __future__ import annotations

from tokenizers import Tokenizer

from glassformer.text.token_bytes import SPACE_MARKER
from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizer_files.scored_pieces import USER_DEFINED, ScoredPieces


def build(fields: TokenizerFields) -> Tokenizer:
    add_prefix_space = bool(fields.get("add_space_prefix", True))
    # the field's converter writes the spaces of user-defined tokens as they are; in Gemma's vocabulary they are pieces
    user = [] if add_prefix_space else [n for n, kind in enumerate(fields.kinds) if kind == USER_DEFINED]
    spaced = [number for number in user if " " in fields.tokens[number]]
    for number in spaced:
        fields.tokens[number] = fields.tokens[number].replace(" ", SPACE_MARKER)
    pieces = ScoredPieces(
        fields.tokens, fields.scores, fields.kinds, "GGUF", fields.special_ids.get("unk_token"),
        add_prefix_space=add_prefix_space, byte_fallback=True,
    )  # fmt: skip
    backend = pieces.bpe()
    pieces.set_pipeline(backend)
    fields.add_tokens_to(backend, normalized=spaced)
    backend.post_processor = fields.bos_eos_processor(add_bos=True, add_eos=False)
    return backend
