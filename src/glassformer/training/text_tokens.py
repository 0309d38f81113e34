"""A corpus for a language model: its tokenizer, its token file, and which part of it is held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Config
from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import atomic_file, file_crc32, write_text
from glassformer.ground.progress import Progress
from glassformer.text import Tokenizer
from glassformer.training.corpus import Corpus
from glassformer.training.new_tokenizer import new_tokenizer
from glassformer.training.objectives.language_model import LanguageModel, MaskedLanguageModel, SpanCorruption
from glassformer.training.objectives.objective import Ids

TOKENS, DESCRIPTION = "tokens.bin", "tokens.json"


@dataclass(frozen=True)
class TokenFileInfo:
    tokens: int
    dtype: str
    vocabulary: int  # every id is below
    source: str  # a fingerprint of the texts and the tokenizer
    crc32: str | None = None  # of the file of ids; older ones have none


def write_token_file(folder: Path, chunks: Iterable[Iterable[int]], vocabulary: int, source: str) -> None:
    """Ids as they come, into a folder."""
    dtype = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with atomic_file(folder / TOKENS) as path, path.open("r+b") as file:
        for chunk in chunks:
            ids = np.fromiter(chunk, dtype)
            ids.tofile(file)
            count += len(ids)
        file.flush()
        checksum = file_crc32(path)
    info = TokenFileInfo(count, dtype.name, vocabulary, source, checksum)
    write_text(folder / DESCRIPTION, json.dumps(asdict(info), indent=1))


def read_token_file(folder: Path) -> tuple[Ids, TokenFileInfo]:
    """The ids of a folder, mapped."""
    try:
        info = TokenFileInfo(**json.loads((folder / DESCRIPTION).read_text("utf-8")))
        ids: Ids = np.memmap(folder / TOKENS, np.dtype(info.dtype), mode="r") if info.tokens else np.zeros(0, info.dtype)
        damaged = info.crc32 is not None and file_crc32(folder / TOKENS) != info.crc32
    except (OSError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder}: holds no readable token file ({error}). Delete it, and it is made anew."
        ) from error
    if damaged or len(ids) != info.tokens or info.dtype not in ("uint16", "uint32"):
        raise CheckpointError(f"{folder}: its token file is damaged or not whole. Delete the folder, and it is made anew.")
    return ids, info


def train_tokenizer(corpus: Corpus, vocabulary: int, progress: Progress | None = None, **options: Any) -> Tokenizer:
    """A tokenizer of the corpus; options: those of `new_tokenizer`."""
    return new_tokenizer(chain.from_iterable(corpus.documents(progress)), vocabulary, **options)


def tokenized(corpus: Corpus, tokenizer: Tokenizer, folder: Path, progress: Progress | None = None) -> tuple[Path, str]:
    """The corpus's token file inside a folder, and what it was made from; one that is there already is used again."""
    tokenizer_digest = hashlib.sha256(tokenizer.backend.to_str().encode()).hexdigest()
    source = hashlib.sha256(f"{corpus.digest} {tokenizer_digest}".encode()).hexdigest()[:32]
    target = folder / source
    if not target.exists():
        write_token_file(target, _token_chunks(corpus, tokenizer, progress), len(tokenizer), source)
    return target, source


def text_objective(
    tokenizer: Tokenizer, config: Config, tokens: Path, length: int, held_out_share: float
) -> LanguageModel | MaskedLanguageModel | SpanCorruption:
    """What a model learns from windows of a token file, whose end is held out: its family decides (`default_head`)."""
    ids, info = read_token_file(tokens)
    kept = len(ids) - int(len(ids) * held_out_share)
    learned, held_out, source = ids[:kept], ids[kept:], info.source
    if config.default_head == "causal":
        return LanguageModel(learned, length, held_out, token_sizes(tokenizer), source)
    if config.is_encoder_decoder:
        return SpanCorruption(tokenizer, config, learned, length, held_out, source)
    return MaskedLanguageModel(tokenizer, learned, length, held_out, source)


def token_sizes(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """How many bytes of text each token is; special tokens are none."""
    special = set(tokenizer.all_special_ids)
    sizes = [0 if token in special else len(tokenizer.token_bytes(token)) for token in range(len(tokenizer))]
    return np.array(sizes, np.int64)


def _token_chunks(corpus: Corpus, tokenizer: Tokenizer, progress: Progress | None) -> Iterator[list[int]]:
    """Each document's ids, and the end token behind it."""
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    for document in corpus.documents(progress):
        for piece in document:
            yield tokenizer(piece, add_special_tokens=False)["input_ids"]
        if end is not None:
            yield [end]
