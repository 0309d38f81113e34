"""A corpus for a language model: its tokenizer, its token file, and which part of it is held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from glassformer.progress import Progress
from glassformer.text import Tokenizer
from glassformer.training.corpus import Corpus
from glassformer.training.objectives.language_model import LanguageModel
from glassformer.training.token_file import read_token_file, write_token_file

END = "<|endoftext|>"


def train_tokenizer(corpus: Corpus, vocabulary: int, progress: Progress | None = None) -> Tokenizer:
    """A byte-level BPE of the corpus: any text can be written with it, and what is frequent here is short."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_counted(corpus, progress), trainer)
    return Tokenizer(backend, special={"bos_token": END, "eos_token": END, "pad_token": END})


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
    ids, info = read_token_file(tokens)
    kept = len(ids) - int(len(ids) * held_out_share)
    held_out = ids[kept:]
    sizes = token_sizes(tokenizer)
    return LanguageModel(ids[:kept], length, held_out, int(sizes[held_out].sum()) if len(held_out) else 0, info.source)


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
    end = tokenizer.eos_token_id
    for document in corpus.documents():
        for piece in document:
            yield tokenizer(piece, add_special_tokens=False)["input_ids"]
            done += len(piece.encode())
            if progress is not None:
                progress(done, corpus.bytes)
        if end is not None:
            yield [end]
