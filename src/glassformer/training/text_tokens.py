"""A corpus for a language model: its tokenizer, its token file, and which part of it is held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Config
from glassformer.ground.progress import Progress
from glassformer.text import Tokenizer
from glassformer.training.corpus import Corpus
from glassformer.training.new_tokenizer import new_tokenizer
from glassformer.training.objectives.language_model import LanguageModel
from glassformer.training.objectives.masked_language_model import MaskedLanguageModel
from glassformer.training.objectives.span_corruption import SpanCorruption
from glassformer.training.token_file import Ids, read_token_file, write_token_file


def train_tokenizer(corpus: Corpus, vocabulary: int, progress: Progress | None = None, **options: Any) -> Tokenizer:
    """A tokenizer of the corpus; options: those of `new_tokenizer`."""
    return new_tokenizer(_counted(corpus, progress), vocabulary, **options)


def tokenized(corpus: Corpus, tokenizer: Tokenizer, folder: Path, progress: Progress | None = None) -> tuple[Path, str]:
    """The corpus's token file inside a folder, and what it was made from; one that is there already is used again."""
    tokenizer_digest = hashlib.sha256(tokenizer.backend.to_str().encode()).hexdigest()
    source = hashlib.sha256(f"{corpus.digest} {tokenizer_digest}".encode()).hexdigest()[:32]
    target = folder / source
    if not target.exists():
        write_token_file(target, _token_chunks(corpus, tokenizer, progress), len(tokenizer), source)
    return target, source


def language_model_objective(
    corpus: Corpus, tokenizer: Tokenizer, tokens: Path, length: int, held_out_share: float
) -> LanguageModel:
    """Windows of a token file; its end is held out."""
    ids, held_out, source = _split(tokens, held_out_share)
    return LanguageModel(ids, length, held_out, token_sizes(tokenizer), source)


def gap_objective(
    tokenizer: Tokenizer, config: Config, tokens: Path, length: int, held_out_share: float
) -> MaskedLanguageModel | SpanCorruption:
    """The same for models that see all of a text, with gaps: encoders, and encoder-decoders."""
    ids, held_out, source = _split(tokens, held_out_share)
    if config.is_encoder_decoder:
        return SpanCorruption(tokenizer, config, ids, length, held_out, source)
    return MaskedLanguageModel(tokenizer, ids, length, held_out, source)


def _split(tokens: Path, held_out_share: float) -> tuple[Ids, Ids, str]:
    """The ids of a token file to train on, those that are held out, and what it was made from."""
    ids, info = read_token_file(tokens)
    kept = len(ids) - int(len(ids) * held_out_share)
    return ids[:kept], ids[kept:], info.source


def token_sizes(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """How many bytes of text each token is; special tokens are none."""
    special = set(tokenizer.all_special_ids)
    return np.array([0 if n in special else len(tokenizer.token_bytes(n)) for n in range(len(tokenizer))], np.int64)


def _counted(corpus: Corpus, progress: Progress | None) -> Iterator[str]:
    """All pieces of a corpus, telling how many bytes of it were given."""
    done = 0
    for document in corpus.documents():
        for piece in document:
            yield piece
            done += len(piece.encode())
            if progress is not None:
                progress(done, corpus.bytes)


def _token_chunks(corpus: Corpus, tokenizer: Tokenizer, progress: Progress | None) -> Iterator[list[int]]:
    """Each document's ids, and the end token behind it."""
    done = 0
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    for document in corpus.documents():
        for piece in document:
            yield tokenizer(piece, add_special_tokens=False)["input_ids"]
            done += len(piece.encode())
            if progress is not None:
                progress(done, corpus.bytes)
        if end is not None:
            yield [end]
