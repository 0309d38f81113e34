"""`bert`: WordPiece. The file marks the pieces that begin a word with `▁`, and those that go on with nothing.

BERT itself does the opposite, `word` and `##piece`; its spelling is restored here. Only newer files say whether the
model tells capitals from small letters; of the others the vocabulary does.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from glassformer.ground.errors import CheckpointError
from glassformer.text.token_bytes import SPACE_MARKER
from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizer_files.piece_kinds import NORMAL
from glassformer.text.tokenizer_files.tokenizer_classes import BERT


def build(fields: TokenizerFields) -> Tokenizer:
    words = [number for number, kind in enumerate(fields.kinds) if kind == NORMAL]
    for number in words:
        fields.tokens[number] = _bert_spelling(fields.tokens[number])
    vocabulary = fields.vocabulary()
    for name, token in BERT.special.items():  # not every file names them all
        if name not in fields.special_ids and token in vocabulary:
            fields.special_ids[name] = vocabulary[token]
    missing = [name for name in ("unk_token", "cls_token", "sep_token") if name not in fields.special_ids]
    if missing:
        raise CheckpointError(f"GGUF's vocabulary has no {BERT.special[missing[0]]!r}. Fetch the file again.")
    lowercase = fields.get("normalizer.lowercase", not any(_has_capitals(fields.tokens[number]) for number in words))
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
