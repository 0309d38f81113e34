"""The vocabularies of GGUF files: one function per kind of tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from glassformer.ground.errors import CheckpointError, did_you_mean
from glassformer.text.token_bytes import BYTE_TOKEN, SPACE_MARKER
from glassformer.text.tokenizer_files.class_pipelines import set_gemma_pipeline
from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import PRE_TOKENIZER_TYPES
from glassformer.text.tokenizer_files.scored_pieces import CONTROL, NORMAL, ScoredPieces
from glassformer.text.tokenizer_files.tokenizer_classes import BERT, SENTINELS
from glassformer.text.tokenizers_errors import LibraryErrors, unknown_merge


def byte_level_bpe(fields: TokenizerFields) -> Tokenizer:
    """`gpt2`: BPE from merges, nearly always byte-level. The file stores vocabulary, merges and how text is split."""
    pre = fields.get("pre", "default")  # as llama.cpp has it for files from before there were names
    if not isinstance(pre, str) or pre not in PRE_TOKENIZER_TYPES:
        hint = did_you_mean(str(pre), PRE_TOKENIZER_TYPES)
        raise CheckpointError(
            f"GGUF field 'tokenizer.ggml.pre' is {pre!r}, which is no pre-tokenizer that llama.cpp or this program knows."
            f"{hint or ' Use a file from a newer converter, or the model in its original format.'}"
        )
    if not PRE_TOKENIZER_TYPES[pre].byte_level:
        return plain_bpe(fields, pre)
    split = PRE_TOKENIZER_TYPES[pre]
    tokens, kinds, merges = fields.tokens, fields.kinds, fields.merges
    added = set(fields.added_ids)
    words = len(tokens)  # the trained vocabulary, without the added and padding tokens after it
    while words and kinds[words - 1] != NORMAL and words - 1 not in added:
        words -= 1
    while words and words - 1 in added:
        words -= 1
    vocabulary = {token: index for index, token in enumerate(tokens[:words])}
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


def sentencepiece_bpe(fields: TokenizerFields) -> Tokenizer:
    """`llama`: SentencePiece's BPE, as the files of Llama 2, Mistral and Gemma carry it.

    Pieces have scores in place of merges: the pair whose union scores highest joins first. `▁` is a space, one is put
    before each text unless the file says otherwise, and a character that no piece covers is encoded as bytes, `<0xE2>`.
    """
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


def plain_bpe(fields: TokenizerFields, pre: str | None = None) -> Tokenizer:
    """`gemma4`, `whitespace`, and a few under `gpt2`: BPE from merges over plain characters, without bytes' alphabet.

    `gemma4` is SentencePiece's spelling (`▁` is a space, `<0xE2>` a byte that no token covers) with merges in place of
    scores; text is split only at line breaks. `whitespace` merges inside words, and keeps nothing of what lies between.
    `pre`: the type of the pre-tokenizer, where the model's kind is not its name.
    """
    pre = pre or str(fields.get("model"))
    split = PRE_TOKENIZER_TYPES[pre]
    in_words = pre == "whitespace"
    spaced = [] if in_words else fields.respell_user_spaces()
    unknown = None if in_words else fields.special_ids.get("unk_token")
    with LibraryErrors("GGUF's vocabulary and merges do not fit together: {}. Fetch the file again."):
        backend = Tokenizer(
            BPE(
                fields.vocabulary(),
                [*fields.merges, *_line_break_merges(fields)],
                unk_token=None if unknown is None else fields.tokens[unknown],
                fuse_unk=True,
                byte_fallback=any(BYTE_TOKEN.fullmatch(token) for token in fields.tokens),
            )
        )
    if in_words:
        if fields.get("normalizer.lowercase", False):
            backend.normalizer = normalizers.Lowercase()
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.decoder = decoders.Fuse()
    else:
        set_gemma_pipeline(backend)
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(split.patterns[0]), "isolated")
    fields.add_tokens_to(backend, normalized=spaced)
    # llama.cpp puts the begin-of-text token before these even where a file says not to
    backend.post_processor = fields.bos_eos_processor(add_bos=split.add_bos, add_eos=False, always_bos=split.add_bos)
    return backend


def _line_break_merges(fields: TokenizerFields) -> list[tuple[str, str]]:
    """What makes the tokens for several line breaks that the file's own merges do not make."""
    runs = {token for token in fields.tokens if len(token) > 1 and not token.strip("\n")}
    unmade = runs - {left + right for left, right in fields.merges}
    known = {*runs, "\n"} & set(fields.tokens)
    return [(token[:-1], "\n") for token in sorted(unmade, key=len) if token[:-1] in known]


FILLER_TOKEN = re.compile(r"\[PAD\d+\]")


def unigram(fields: TokenizerFields) -> Tokenizer:
    """`t5`: SentencePiece's Unigram, which takes the split of a text whose scores add up highest.

    `precompiled_charsmap` is SentencePiece's own table of what to normalise (NFKC and a little more), as bytes.
    """
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
    filler_ids = [token_id for token_id, token in enumerate(fields.tokens) if FILLER_TOKEN.fullmatch(token)]
    if len(filler_ids) >= SENTINELS:
        for token_id, sentinel in zip(filler_ids, reversed(range(SENTINELS)), strict=False):
            fields.tokens[token_id] = f"<extra_id_{sentinel}>"
            fields.kinds[token_id] = CONTROL


def _charsmap(fields: TokenizerFields) -> bytes:
    table = fields.get("precompiled_charsmap", [])
    try:
        return bytes(byte % 256 for byte in table)  # some writers store signed bytes
    except TypeError:
        raise CheckpointError(
            "GGUF field 'tokenizer.ggml.precompiled_charsmap' is no list of bytes. Fetch the file again."
        ) from None


def wordpiece(fields: TokenizerFields) -> Tokenizer:
    """`bert`: WordPiece. The file marks the pieces that begin a word with `▁`, and those that go on with nothing.

    BERT itself does the opposite, `word` and `##piece`; its spelling is restored here. Only newer files say whether the
    model tells capitals from small letters; of the others the vocabulary does.
    """
    words = [token_id for token_id, kind in enumerate(fields.kinds) if kind == NORMAL]
    for token_id in words:
        fields.tokens[token_id] = _bert_spelling(fields.tokens[token_id])
    vocabulary = fields.vocabulary()
    for name, token in BERT.special.items():  # not every file names them all
        if name not in fields.special_ids and token in vocabulary:
            fields.special_ids[name] = vocabulary[token]
    missing = [name for name in ("unk_token", "cls_token", "sep_token") if name not in fields.special_ids]
    if missing:
        raise CheckpointError(f"GGUF's vocabulary has no {BERT.special[missing[0]]!r}. Fetch the file again.")
    lowercase = fields.get("normalizer.lowercase", not any(_has_capitals(fields.tokens[token_id]) for token_id in words))
    accents = fields.get("normalizer.strip_accents")
    backend = Tokenizer(WordPiece(vocabulary, unk_token=fields.tokens[fields.special_ids["unk_token"]]))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=bool(lowercase), strip_accents=None if accents is None else bool(accents)
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    fields.add_tokens_to(backend)
    cls, sep = fields.special_ids["cls_token"], fields.special_ids["sep_token"]
    backend.post_processor = fields.template(
        ["first", "$A", "last"], ["first", "$A", "last", "$B:1", "last:1"], {"first": cls, "last": sep}
    )
    return backend


def _bert_spelling(token: str) -> str:
    """A word as BERT spells it; the converter leaves what stands in brackets as it is."""
    if token.startswith("[") and token.endswith("]") and len(token) > 2:
        return token
    return token[1:] if token.startswith(SPACE_MARKER) and len(token) > 1 else f"##{token}"


def _has_capitals(token: str) -> bool:
    return not token.startswith("[") and token != token.lower()


BUILDERS: Mapping[str, Callable[[TokenizerFields], Tokenizer]] = {
    "gpt2": byte_level_bpe,
    "llama": sentencepiece_bpe,
    "bert": wordpiece,
    "t5": unigram,
    "gemma4": plain_bpe,
    "whitespace": plain_bpe,
}
