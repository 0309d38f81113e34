"""`gpt2`: BPE from merges, nearly always byte-level. The file stores the vocabulary, the merges and how text is split."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

from glassformer.ground.errors import CheckpointError, did_you_mean
from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import PRE_TOKENIZER_TYPES
from glassformer.text.tokenizer_files.piece_kinds import NORMAL
from glassformer.text.tokenizers_errors import LibraryErrors, unknown_merge


def build(fields: TokenizerFields) -> Tokenizer:
    pre = fields.get("pre", "default")  # as llama.cpp has it for files from before there were names
    if not isinstance(pre, str) or pre not in PRE_TOKENIZER_TYPES:
        hint = did_you_mean(str(pre), PRE_TOKENIZER_TYPES)
        raise CheckpointError(
            f"GGUF field 'tokenizer.ggml.pre' is {pre!r}, which is no pre-tokenizer that llama.cpp or this program knows."
            f"{hint or ' Use a file from a newer converter, or the model in its original format.'}"
        )
    if not PRE_TOKENIZER_TYPES[pre].byte_level:
        from glassformer.text.tokenizer_files.gguf import plain_bpe

        return plain_bpe.build(fields, pre)
    split = PRE_TOKENIZER_TYPES[pre]
    tokens, kinds, merges = fields.tokens, fields.kinds, fields.merges
    added = set(fields.added_ids)
    words = len(tokens)  # the trained vocabulary, without the added and padding tokens after it
    while words and kinds[words - 1] != NORMAL and words - 1 not in added:
        words -= 1
    while words and words - 1 in added:
        words -= 1
    vocabulary = {token: number for number, token in enumerate(tokens[:words])}
    with LibraryErrors("GGUF's vocabulary and merges do not fit together: {}. Fetch the file again."):
        if (missing := unknown_merge(merges, vocabulary)) is not None:
            raise ValueError(f"{missing!r} is no token")
        backend = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=split.ignore_merges))
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    fields.add_tokens_to(backend)
    spelling = processors.ByteLevel(trim_offsets=False)
    backend.post_processor = processors.Sequence(
        [spelling, fields.bos_eos_processor(add_bos=split.add_bos, add_eos=False, add_sep=split.add_sep)]
    )
    return backend
