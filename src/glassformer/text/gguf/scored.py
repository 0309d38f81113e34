"""`llama`: SentencePiece's BPE, as the files of Llama 2, Mistral and Gemma carry it.

Pieces have scores in place of merges: the pair whose union scores highest joins first. `▁` is a space, one is put
before each text unless the file says otherwise, and a character that no piece covers is spelt in bytes, `<0xE2>`.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from glassformer.errors import CheckpointError
from glassformer.text.gguf.fields import NORMAL, UNUSED, USER, Fields
from glassformer.text.merges import merges
from glassformer.text.spelling import SPACE


def build(fields: Fields) -> Tokenizer:
    prefixed = bool(fields.get("add_space_prefix", True))
    # the field's converter writes the spaces of user-defined tokens as they are; in Gemma's vocabulary they are pieces
    spaced = [n for n, token in enumerate(fields.tokens) if fields.kinds[n] == USER and " " in token and not prefixed]
    for number in spaced:
        fields.tokens[number] = fields.tokens[number].replace(" ", SPACE)
    vocabulary = {token: number for number, token in enumerate(fields.tokens)}
    if len(vocabulary) < len(fields.tokens):
        twice = next(n for n, token in enumerate(fields.tokens) if vocabulary[token] != n)
        raise CheckpointError(f"GGUF's token {twice}, {fields.tokens[twice]!r}, stands twice. Fetch the file again.")
    unknown = fields.named.get("unk_token")
    backend = Tokenizer(
        BPE(
            vocabulary,
            merges(_ranks(fields)),
            unk_token=None if unknown is None else fields.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefixed else spaces
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefixed else back)
    fields.add(backend, normalized=spaced)
    backend.post_processor = fields.frame(first=True, last=False)
    return backend


def _ranks(fields: Fields) -> dict[str, int]:
    """The pieces that text can be made of, by score; of equal ones the first in the file goes first."""
    numbers = [n for n, kind in enumerate(fields.kinds) if kind in (NORMAL, USER, UNUSED)]
    numbers.sort(key=lambda n: -fields.scores[n])
    return {fields.tokens[number]: rank for rank, number in enumerate(numbers)}
