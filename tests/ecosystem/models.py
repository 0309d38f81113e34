"""Tiny models and tokenizers, each once as transformers' own and once as ours, from the same files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

import glassformer
from tests.parity import reference

WORDS = (
    "the", "a", "cat", "dog", "bird", "sat", "ran", "sang", "on", "in", "under", "mat", "house", "tree", "and", "it", "was",
    "big", "small", "red", "blue", "not", "very",
)  # fmt: skip
PIECES = ("##s", "##ing", "##ed", "##er", "play", "walk", "talk", ".", ",", "?")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXTS = ("the cat sat on the mat.", "a dog ran", "the big red bird was not very small, and it sang", "it was in the house")


class Pair(NamedTuple):
    theirs: Any
    ours: Any


def without_dropout(family: str) -> dict[str, float]:
    """The changes to a config that make training deterministic."""
    fields = reference.config(family).to_dict()
    return {name: 0.0 for name, value in fields.items() if re.search("dropout|pdrop", name) and isinstance(value, float)}


def write_model(folder: Path, family: str, head: str, **changes: Any) -> Path:
    reference.build(family, head, **{**without_dropout(family), **changes}).save_pretrained(folder)
    return folder


def load_pair(folder: Path, head: str) -> Pair:
    name = reference.auto(head).__name__
    theirs = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").eval()
    return Pair(theirs, getattr(glassformer, name).from_pretrained(folder))


def write_tokenizer(folder: Path) -> Path:
    """A WordPiece tokenizer of some words, with all the special tokens of an encoder."""
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *WORDS, *PIECES))}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    roles = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "eos": "[SEP]"}
    named = {f"{role}_token": token for role, token in roles.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **named, model_max_length=64).save_pretrained(folder)
    return folder


def load_tokenizers(folder: Path) -> Pair:
    return Pair(transformers.AutoTokenizer.from_pretrained(folder), glassformer.AutoTokenizer.from_pretrained(folder))


def make_batches(head: str, count: int = 4) -> list[dict[str, torch.Tensor]]:
    """Batches of ids with padding and labels, for a head of two labels or of the vocabulary."""
    generator = torch.Generator().manual_seed(3)
    batches = []
    for _ in range(count):
        ids = torch.randint(5, 130, (3, 9), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, 6:] = ids[1, 6:] = 0
        labels = torch.randint(0, 2, (3,), generator=generator)
        if head == "seq2seq":
            labels = torch.randint(5, 130, (3, 7), generator=generator)
        elif head == "causal":
            labels = ids.masked_fill(mask == 0, -100)
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return batches


def train(model: Any, batches: list[dict[str, torch.Tensor]], rate: float = 1e-2) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
    model.train()
    losses = []
    for batch in batches:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return losses
