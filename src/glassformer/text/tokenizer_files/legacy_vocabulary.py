"""Tokenizers of older checkpoints, which have no tokenizer.json: vocab.txt, vocab.json with merges.txt, or pieces.

vocab.txt     BERT's WordPiece: one token per line, its id the number of the line
vocab.json    GPT-2's byte-level BPE: tokens to ids; merges.txt beside it lists the pairs in the order they join
spiece.model  SentencePiece's, also called tokenizer.model: see `sentencepiece`
source.spm    Marian's: SentencePiece's for the language that is read; a vocab.json beside it has the ids of both languages
tokenizer.model  of Llama 3: tiktoken's ranks under the same name, see `tiktoken`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors
from tokenizers.models import BPE, WordPiece

from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import read_regular
from glassformer.text.tokenizer_files import sentencepiece, tiktoken, tokenizer_classes
from glassformer.text.tokenizer_files.class_pipelines import flag, set_bert_pipeline, set_gpt2_pipeline
from glassformer.text.tokenizer_files.config_fields import read_object
from glassformer.text.tokenizer_files.tokenizer_classes import (
    BERT,
    CLS_SEP_SEP,
    GPT2,
    M2M100,
    MARIAN,
    SENTENCEPIECE,
    TIKTOKEN,
    TokenizerClass,
)
from glassformer.text.tokenizers_errors import LibraryErrors

BOTH = "vocab.json and pieces"
OWN_FILES = ("source.spm", "vocab.txt", "vocab.json")  # each of one class; a vocab.json may stand beside a source.spm


def class_for_files(folder: Path, config: Mapping[str, Any], model: Mapping[str, Any]) -> TokenizerClass:
    """The tokenizer class of a folder without tokenizer.json: by its files, the class it names, then the model's type."""
    if tiktoken.ranks_file(folder) is not None:
        return TIKTOKEN
    file = next((name for name in (*OWN_FILES, *sentencepiece.FILES) if (folder / name).exists()), None)
    if file is None:
        raise CheckpointError(f"{folder}: holds no tokenizer.json. Fetch the tokenizer's files into it.")
    if file == "vocab.json" and (folder / sentencepiece.BESIDE_IDS).exists():
        file = BOTH
    if file == "vocab.json" and not (folder / "merges.txt").exists():
        raise CheckpointError(f"{folder}: holds a vocab.json but no merges.txt. Fetch that, or its tokenizer.json.")
    name, model_type = tokenizer_classes.class_name(config, model), model.get("model_type")
    kind: TokenizerClass | None
    if name is not None and name not in tokenizer_classes.GENERIC_CLASSES:
        reason = f"its tokenizer_class is {name!r}"
        kind = tokenizer_classes.CLASS_BY_NAME.get(name.removesuffix("Fast").removesuffix("Tokenizer"))
    elif model_type is not None:
        reason = f"its model_type is {model_type!r}"
        kind = tokenizer_classes.CLASS_BY_MODEL_TYPE.get(str(model_type))
    else:
        reason, kind = (
            "",
            {"source.spm": MARIAN, "vocab.txt": BERT, "vocab.json": GPT2, BOTH: M2M100}.get(file, SENTENCEPIECE),
        )
    if kind is None or kind.files != (file if file in (*OWN_FILES, BOTH) else "pieces"):
        raise CheckpointError(f"{folder / file}: {reason}, for which this file is not enough. Fetch its tokenizer.json.")
    return kind


def build(folder: Path, kind: TokenizerClass, config: Mapping[str, Any], unknown: str | None) -> tokenizers.Tokenizer:
    """The library's tokenizer, still without the tokens around each text."""
    with LibraryErrors(f"{folder}: its vocabulary does not make a tokenizer ({{}}). Fetch it again, or its tokenizer.json."):
        return _wordpiece(folder, config, unknown) if kind.files == "vocab.txt" else _byte_level(folder, config)


def read_pieces(folder: Path, kind: TokenizerClass, unknown: str | None) -> sentencepiece.SentencePieceModel:
    """The SentencePiece model of a folder that has one; `unknown`: the token for unknown text."""
    if kind in (MARIAN, M2M100):
        file = "source.spm" if kind is MARIAN else sentencepiece.BESIDE_IDS
        model, path = sentencepiece.read(folder / file), folder / "vocab.json"
        vocabulary = _read_ids(path)
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise CheckpointError(f"{path}: its ids do not count from 0 without a gap. Fetch it again.")
        if unknown not in vocabulary:
            raise CheckpointError(f"{path}: lacks the token for unknown text, {unknown!r}. Fetch it again.")
        model.pieces.renumber(vocabulary, unknown)
        return model
    return sentencepiece.read(next(folder / name for name in sentencepiece.FILES if (folder / name).exists()))


def set_post_processor(
    backend: tokenizers.Tokenizer, kind: TokenizerClass, config: Mapping[str, Any], special: Mapping[str, str]
) -> None:
    """Put the class's special tokens around each text, and between two."""
    token_ids = {token: backend.token_to_id(token) or 0 for token in special.values()}  # all were added: none is missing
    around = kind.around
    first, last = (special.get(role) for role in (around.first, around.last)) if around else (None, None)
    if around is CLS_SEP_SEP and kind.files == "vocab.json" and first and last:
        backend.post_processor = processors.RobertaProcessing(
            (last, token_ids[last]),
            (first, token_ids[first]),
            flag(config, "trim_offsets", True),
            flag(config, "add_prefix_space", False),
        )
        return
    if kind is TIKTOKEN:
        backend.post_processor = _llama3_processor(config, special, token_ids)
        return
    if around and last and (first or not around.first):
        single, pair = around.single, around.pair
    elif around and not around.first:
        single, pair = "$A:0", "$A:0 $B:0"
    else:
        first, last = special.get("bos_token"), special.get("eos_token")
        prefix = "first:{0} " if first and flag(config, "add_bos_token", False) else ""
        suffix = " last:{0}" if last and flag(config, "add_eos_token", False) else ""
        first_text, second_text = f"{prefix}$A:0{suffix}".format(0), f"{prefix}$B:1{suffix}".format(1)
        single, pair = first_text, f"{first_text} {second_text}"
    places = {"first": first, "last": last}
    backend.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[
            {"id": place, "ids": [token_ids[token]], "tokens": [token]} for place, token in places.items() if token
        ],
    )


def _llama3_processor(config: Mapping[str, Any], special: Mapping[str, str], token_ids: Mapping[str, int]) -> Any:
    """Byte offsets, and the begin-of-text token before each text, as Llama 3's tokenizer.json has them."""
    offsets = processors.ByteLevel(trim_offsets=False)
    bos = special.get("bos_token")
    if bos is None or not flag(config, "add_bos_token", bos == tiktoken.LLAMA3_BOS):
        return offsets
    first = [{"id": "first", "ids": [token_ids[bos]], "tokens": [bos]}]
    template = processors.TemplateProcessing(single="first:0 $A:0", pair="first:0 $A:0 first:1 $B:1", special_tokens=first)
    return processors.Sequence([offsets, template])


def _wordpiece(folder: Path, config: Mapping[str, Any], unknown: str | None) -> tokenizers.Tokenizer:
    path = folder / "vocab.txt"
    lines = _read_text(path).split("\n")
    tokens = lines[:-1] if lines[-1] == "" else lines  # the last line may end or not
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if vocabulary.setdefault(token, index) != index:
            raise CheckpointError(f"{path}: line {index + 1} repeats the token {token!r}. Fetch it again.")
    if not vocabulary:
        raise CheckpointError(f"{path}: holds no tokens. Fetch it again.")
    if unknown not in vocabulary:
        raise CheckpointError(f"{path}: lacks the token for unknown words, {unknown!r}. Fetch it again.")
    backend = tokenizers.Tokenizer(WordPiece(vocabulary, unk_token=str(unknown)))
    set_bert_pipeline(backend, config)
    return backend


def _byte_level(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    vocabulary = _read_ids(folder / "vocab.json")
    backend = tokenizers.Tokenizer(BPE(vocabulary, _read_merges(folder / "merges.txt", vocabulary)))
    set_gpt2_pipeline(backend, config)
    return backend


def _read_ids(path: Path) -> dict[str, int]:
    """A vocab.json: tokens to ids."""
    vocabulary = read_object(path)
    if not vocabulary:
        raise CheckpointError(f"{path}: holds no tokens. Fetch it again.")
    tokens: dict[int, str] = {}
    for token, token_id in vocabulary.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < 2**32:
            raise CheckpointError(f"{path}: the id of {token!r} is {token_id!r}, which is no id. Fetch it again.")
        if token_id in tokens:
            raise CheckpointError(f"{path}: {tokens[token_id]!r} and {token!r} have one id, {token_id}. Fetch it again.")
        tokens[token_id] = token
    return vocabulary


def _read_merges(path: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs = []
    for index, line in enumerate(_read_text(path).split("\n"), 1):
        if not line or (index == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise CheckpointError(f"{path}: line {index} is {line!r}, which is no pair of pieces. Fetch it again.")
        for piece in (left, right, left + right):
            if piece not in vocabulary:
                raise CheckpointError(
                    f"{path}: line {index} is {line!r}, but vocab.json has no {piece!r}. Fetch both files again."
                )
        pairs.append((left, right))
    return pairs


def _read_text(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 text ({error}). Fetch it again.") from error
