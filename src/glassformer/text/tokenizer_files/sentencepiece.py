"""SentencePiece's own file: spiece.model or tokenizer.model, the vocabulary of T5, PEGASUS, Llama, Gemma and XLM-RoBERTa.

It is a protobuf message (of whose wire format `fields` reads what such files need, every length checked against the bytes
that are there): the pieces, what they were trained with, and how a text is normalised first. Where the
tokenizer's class is one that the field knows (`LlamaTokenizer`, …), a text is prepared as that class does it, which
for a few texts is not what SentencePiece does: Llama's puts no space before a text that begins with one, and T5's takes
every kind of white space for a space. Without a class, the file has its way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import AddedToken, Tokenizer

from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import read_regular
from glassformer.ground.typecheck import brief
from glassformer.text.tokenizer_files.class_pipelines import (
    albert_normalizers,
    flag,
    set_class_pipeline,
    set_deberta_pipeline,
)
from glassformer.text.tokenizer_files.scored_pieces import NORMAL, UNKNOWN, USER_DEFINED, ScoredPieces
from glassformer.text.tokenizer_files.tokenizer_classes import (
    ALBERT,
    DEBERTA_V2,
    GEMMA,
    LLAMA,
    M2M100,
    M2M_CODES,
    MARIAN,
    MBART,
    MBART50,
    PEGASUS,
    PEGASUS_OFFSET,
    SENTINELS,
    T5,
    WMT21_CODES,
    XLM_ROBERTA,
    TokenizerClass,
)
from glassformer.text.tokenizers_errors import LibraryErrors

Value: TypeAlias = int | float | bytes

# Protobuf's wire format: a message is a run of fields, each a number, a kind and a value -----------------------

VARINT, WIDE, BLOCK, NARROW = 0, 1, 2, 5  # the kinds; 3 and 4 are groups, long out of use


class Malformed(ValueError):
    """What is wrong with the bytes; the caller knows which file they are from."""


def fields(raw: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message, in the order of the file; one may come several times. A value comes as an int (varint), a
    float (four bytes) or bytes (a text, a message or a table, which the caller knows).

    >>> list(fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02]) + b"hi"))
    [(1, 150), (2, b'hi')]
    """
    offset, end = 0, len(raw)
    while offset < end:
        key, offset = _varint(raw, offset, end)
        field, kind = key >> 3, key & 7
        if field == 0:
            raise Malformed(f"byte {offset} begins a field without a number")
        if kind == VARINT:
            value, offset = _varint(raw, offset, end)
            yield field, value - (1 << 64) if value >> 63 else value  # negative numbers are written as very large ones
            continue
        if kind == BLOCK:
            size, offset = _varint(raw, offset, end)
        elif kind in (WIDE, NARROW):
            size = 4 if kind == NARROW else 8
        else:
            raise Malformed(f"byte {offset} begins a field of the unknown kind {kind}")
        if size > end - offset:
            raise Malformed(f"field {field} at byte {offset} claims {size} bytes where {end - offset} are left")
        block = raw[offset : offset + size]
        offset += size
        yield field, block if kind == BLOCK else struct.unpack("<f" if kind == NARROW else "<d", block)[0]


def _varint(raw: bytes, offset: int, end: int) -> tuple[int, int]:
    """A whole number, seven bits to a byte, the lowest first; and where the next thing begins."""
    value = shift = 0
    while offset < end and shift < 70:
        byte = raw[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, offset
        shift += 7
    raise Malformed(f"a number ends nowhere at byte {offset}")


# The model ------------------------------------------------------------------------------------------------------

BESIDE_IDS = "sentencepiece.bpe.model"  # M2M-100's, beside a vocab.json
FILES = ("spiece.model", "tokenizer.model", BESIDE_IDS, "spm.model")
UNIGRAM, BPE = 1, 2  # the two of its four algorithms that models use
ROLE_FIELDS = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}
# the field with the id of each, and the id where there is no such field; -1 is none


@dataclass(frozen=True)
class SentencePieceModel:
    pieces: ScoredPieces
    algorithm: int
    special: Mapping[str, str]  # the tokens with a role, by name


def read(path: Path) -> SentencePieceModel:
    """The file's content, checked; whatever it is that is wrong, the error names the file."""
    try:
        message = list(fields(read_regular(path)))
        tokens, scores, kinds = _pieces([value for field, value in message if field == 1])
        trainer, normalizer = (dict(_message(message, field)) for field in (2, 3))
    except (Malformed, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path}: is no SentencePiece model ({error}). Fetch it again, or its tokenizer.json."
        ) from error
    if not tokens:
        raise CheckpointError(f"{path}: holds no pieces. Fetch it again, or its tokenizer.json.")
    algorithm = trainer.get(3, UNIGRAM)
    if algorithm not in (UNIGRAM, BPE):
        raise CheckpointError(
            f"{path}: was trained with algorithm {algorithm}, which is neither Unigram nor BPE. Fetch its tokenizer.json."
        )
    charsmap = normalizer.get(2, b"")
    pieces = ScoredPieces(
        tokens,
        scores,
        kinds,
        str(path),
        unknown=next((token_id for token_id, kind in enumerate(kinds) if kind == UNKNOWN), None),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        add_prefix_space=bool(normalizer.get(3, True)),
        remove_extra_whitespaces=bool(normalizer.get(4, True)),
        byte_fallback=bool(trainer.get(35, False)),
    )
    return SentencePieceModel(pieces, algorithm, _special(trainer, tokens))


def _message(message: list[tuple[int, Any]], field: int) -> list[tuple[int, Any]]:
    """The fields of a message inside the message, or none."""
    value = next((value for index, value in message if index == field), b"")
    if not isinstance(value, bytes):
        raise Malformed(f"field {field} is a number where a message belongs")
    return list(fields(value))


def _pieces(messages: list[Any]) -> tuple[list[str], list[float], list[int]]:
    tokens: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    for raw in messages:
        if not isinstance(raw, bytes):
            raise Malformed("a piece is a number where a message belongs")
        piece = dict(fields(raw))
        token, score, kind = piece.get(1, b""), piece.get(2, 0.0), piece.get(3, NORMAL)
        if not isinstance(token, bytes) or not isinstance(score, float) or not isinstance(kind, int) or not 1 <= kind <= 6:
            raise Malformed(f"piece {len(tokens)} is no text with a score and a kind")
        if not token or score != score:
            raise Malformed(f"piece {len(tokens)} has no text or no score")
        tokens.append(token.decode())
        scores.append(score)
        kinds.append(kind)
    return tokens, scores, kinds


def _special(trainer: Mapping[int, Any], tokens: list[str]) -> dict[str, str]:
    role_ids = {name: trainer.get(field, default) for name, (field, default) in ROLE_FIELDS.items()}
    return {name: tokens[n] for name, n in role_ids.items() if isinstance(n, int) and 0 <= n < len(tokens)}


def build(
    model: SentencePieceModel, kind: TokenizerClass, config: Mapping[str, Any], special: Mapping[str, str]
) -> tuple[Tokenizer, list[AddedToken]]:
    """The library's tokenizer, and the tokens that are matched whole in a text; `special`: the tokens with a role."""
    pieces = model.pieces
    sentinels = _sentinels(config) if kind is T5 else []
    count = len(pieces.tokens)
    pieces.tokens += reversed(sentinels)
    pieces.scores = [*pieces.scores, *[0.0] * len(sentinels)]
    pieces.kinds = [*pieces.kinds, *[USER_DEFINED] * len(sentinels)]
    if kind in (LLAMA, GEMMA):  # whose classes spell in bytes and know no table, whatever the file says
        pieces.byte_fallback, pieces.charsmap, pieces.remove_extra_whitespaces = True, b"", False
        pieces.add_prefix_space = kind is LLAMA and flag(config, "add_prefix_space", True)
    has_pipeline = kind in (XLM_ROBERTA, ALBERT, DEBERTA_V2, PEGASUS, MBART, MBART50)  # of its own, whatever the file says
    normalized = range(count) if pieces.remove_extra_whitespaces and kind is not T5 and not has_pipeline else ()
    added = pieces.added_tokens(normalized)
    if kind.piece_order is not None:
        if kind is PEGASUS and (offset := config.get("offset", PEGASUS_OFFSET)) != PEGASUS_OFFSET:
            raise CheckpointError(
                f"{pieces.source}: its tokenizer_config.json has offset {brief(offset)}, and {PEGASUS_OFFSET} alone is "
                "supported. Fetch its tokenizer.json."
            )
        pieces.reorder(kind.piece_order, special)
        added += [AddedToken(token, special=True) for token in (*kind.piece_order.reserved, *kind.piece_order.languages)]
    problem = f"{pieces.source}: its pieces do not make a tokenizer ({{}}). Fetch it again, or its tokenizer.json."
    with LibraryErrors(problem):
        backend = pieces.unigram() if model.algorithm == UNIGRAM else pieces.bpe()
        if kind is DEBERTA_V2:
            set_deberta_pipeline(backend, config)
        elif kind is MBART50:
            pieces.set_spaced_pipeline(backend, "")
            backend.add_tokens(
                [AddedToken(special[role], lstrip=True, special=True) for role in ("mask_token",) if role in special]
            )
        elif kind is PEGASUS:
            pieces.set_spaced_pipeline(backend)
        elif has_pipeline or (kind is T5 and pieces.add_prefix_space and pieces.remove_extra_whitespaces):
            before = albert_normalizers(config) if kind is ALBERT else []
            pieces.set_word_pipeline(backend, before, kind is T5 or flag(config, "add_prefix_space", True))
        elif kind is M2M100:
            pieces.set_pipeline(backend, "always")
            languages = WMT21_CODES if config.get("language_codes") == "wmt21" else M2M_CODES
            added = [AddedToken(f"__{code}__", special=True) for code in languages]
        elif kind is MARIAN:
            pieces.set_pipeline(backend, "always")
            codes = [token for token in pieces.tokens if token.startswith(">>") and token.endswith("<<")]  # of languages
            backend.add_tokens([AddedToken(code, normalized=False) for code in codes])
        else:
            pieces.set_pipeline(backend)
        set_class_pipeline(backend, kind, config)
    return backend, [*added[: len(added) - len(sentinels)], *(AddedToken(sentinel, special=True) for sentinel in sentinels)]


def _sentinels(config: Mapping[str, Any]) -> list[str]:
    """T5's `<extra_id_0>`, `<extra_id_1>`, …; the vocabulary lists them backwards, the special tokens do not."""
    return [f"<extra_id_{index}>" for index in range(config.get("extra_ids", SENTINELS))]
