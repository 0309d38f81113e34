"""Letters to phonemes: a small T5 that says how English words are pronounced, trained on the CMU pronouncing dictionary.

The dictionary has 126,000 words and 39 phonemes (stress is left out, as is usual); a word may have several
pronunciations. Every tenth word is held out, by a digest of its letters; an answer is right if it is one of the word's
pronunciations. A letter is a token, and so is a phoneme.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors

from glassformer.blueprints import Config, read_config
from glassformer.checkpoint.locate import locate
from glassformer.compat.auto import model_class_for_head
from glassformer.ground.errors import InputError
from glassformer.ground.progress import NamedProgress
from glassformer.text import Tokenizer
from glassformer.training.objectives.text_to_text import TextToText
from glassformer.training.rows import DataRow, split_rows
from glassformer.training.settings import TrainingSettings
from glassformer.training.sharding import Ranks
from glassformer.training.training_folder import TrainingFolder
from glassformer.training.training_request import TrainingParts, TrainingRequest

HELD_OUT = 0.1
WORD = re.compile(r"[a-z'.-]+")
LINE = re.compile(r"(\S+?)(?:\(\d+\))?((?: [A-Z]+\d?)+)(?:\s*#.*)?")
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
PHONEMES = (
    "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH", "IH", "IY", "JH", "K", "L",
    "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH",
)  # fmt: skip
USAGE = "Let it pronounce a word: glass task text2text-generation -m {folder} glass"
SAMPLES = ("transformer", "colonel", "worcester")
LETTERS = "abcdefghijklmnopqrstuvwxyz'.-"
SETTINGS = TrainingSettings(
    steps=13_600, batch_size=1024, learning_rate=8e-4, warmup_steps=1500, final_learning_rate=0.01, weight_decay=0.05,
    beta2=0.99, label_smoothing=0.1, evaluate_every=1000, save_every=1000,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class G2pRequest(TrainingRequest):
    """The recipe; `settings` are changes to its own."""

    KIND: ClassVar[str] = "g2p"

    dictionary: str = "cmudict"  # of the catalogue, or a path

    def parts(self, folder: TrainingFolder, ranks: Ranks, progress: NamedProgress | None) -> TrainingParts:
        letters, sizes = tokenizer(), config()
        trained, held_out = rows(locate(self.dictionary, progress=progress))
        settings = replace(SETTINGS, **self.settings)
        torch.manual_seed(settings.seed)
        model = model_class_for_head("t5", "seq2seq")(sizes)
        objective = TextToText(letters, sizes, trained, held_out)

        def pronounce(model: Any) -> str:
            answers = objective.answer_texts(model, SAMPLES)
            return ", ".join(f"{word} {phonemes}" for word, phonemes in zip(SAMPLES, answers, strict=True))

        return TrainingParts(model, letters, objective, settings, pronounce, USAGE)


def config() -> Config:
    return read_config({
        "model_type": "t5", "vocab_size": len(_vocabulary()), "d_model": 256, "d_ff": 768, "d_kv": 64, "num_heads": 4,
        "num_layers": 4, "num_decoder_layers": 3, "relative_attention_num_buckets": 16,
        "relative_attention_max_distance": 32, "dropout_rate": 0.1, "feed_forward_proj": "relu", "n_positions": 128,
        "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
    })  # fmt: skip


def tokenizer() -> Tokenizer:
    """Letters by themselves, whatever their case. Phonemes stand for no text: they only come out."""
    backend = tokenizers.Tokenizer(models.WordLevel(_vocabulary(), UNKNOWN))
    backend.add_special_tokens([PAD, END, UNKNOWN])
    backend.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(tokenizers.Regex("."), "isolated")]
    )
    backend.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    return Tokenizer(backend, special={"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN}, model_max_length=128)


def rows(dictionary: Path) -> tuple[list[DataRow], list[DataRow]]:
    """The dictionary's words and pronunciations: to train on, and held out."""
    with dictionary.open(encoding="utf-8") as file:
        entries = list(read_entries(file))
    if not entries:
        raise InputError(f"{dictionary}: holds no pronunciations. Give the dictionary's own file, cmudict.dict.")
    return split_rows(entries, HELD_OUT, key=lambda row: str(row.fields["source"]))


def read_entries(lines: Iterable[str]) -> Iterator[DataRow]:
    """`abate AH0 B EY1 T` as a word and its phonemes; words with digits and other signs are left out."""
    seen: set[Any] = set()
    for index, line in enumerate(lines, 1):
        match = LINE.fullmatch(line.rstrip())
        if match is None or not WORD.fullmatch(match[1]):
            continue
        phonemes = re.sub(r"\d", "", match[2]).split()
        if (key := (match[1], *phonemes)) not in seen:
            seen.add(key)
            yield DataRow({"source": match[1], "target": phonemes}, f"line {index}")


def _vocabulary() -> dict[str, int]:
    return {token: index for index, token in enumerate((PAD, END, UNKNOWN, *LETTERS, *PHONEMES))}
