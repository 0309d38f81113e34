"""Tiny models whose reason is known by construction: heads are written by hand into models of any family.

The weights are lively (`reference.build`), but nothing writes to the residual stream except the planted heads, so their
part in an answer is all of it. Every word is one token; its vector is its own direction, plus those of its classes. Only
answers have rows in the head, in directions of their own, so that no word says anything by itself.

Shapes: a planted matrix (head_size, hidden); its output (hidden, head_size).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import glassformer
from tests.parity import reference

HIDDEN, HEADS, KEY_HEADS, HEAD_SIZE = 128, 4, 2, 16
HEAD = 2  # that is planted
SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": HEAD_SIZE,
    "tie_word_embeddings": False,
}  # fmt: skip
OWN_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": HIDDEN, "n_head": HIDDEN // HEAD_SIZE, "tie_word_embeddings": False},
    "olmo2": {**SIZES, "num_attention_heads": HIDDEN // HEAD_SIZE},
    "cohere2": {**SIZES, "num_attention_heads": HIDDEN // HEAD_SIZE},
    "gemma2": {**SIZES, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
}
STRENGTH = {"granite": 10.0}  # of what a head writes, where updates are made smaller than the vectors of words
WRITES = re.compile(
    r"(o_proj|out_proj|c_proj|down_proj|dense|dense_4h_to_h|wo|o|out_lin|lin2|fc2|w2)(\.weight|\.bias|_bias)?$"
)
SUBJECTS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Egypt": "Cairo"}
NUMBERS = ("zero", "one", "two", "three", "four", "five")
CLASSES = {
    "subject": (*SUBJECTS,), "answer": (*SUBJECTS.values(), "Nowhere"), "asker": ("is", "equals"),
    "sound": ("tick", "tock", "tack", "tuck"), "name": ("Ann", "Bob", "Cid", "Dan", "Eve", "Fay"),
    "plain": ("the", "capital", "of", "in", "and", "today"), "number": NUMBERS,
}  # fmt: skip
WORDS = [word for words in CLASSES.values() for word in words]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
VOCABULARY = [*SPECIAL, *(f"▁{word}" for word in WORDS)]


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(SPECIAL)
    return made


@dataclass
class Directions:
    """As many orthogonal directions as are asked for, none of which a norm's mean takes away."""

    def __post_init__(self) -> None:
        generator = np.random.default_rng(3)
        start = np.concatenate([np.ones((HIDDEN, 1)), generator.normal(size=(HIDDEN, HIDDEN - 1))], axis=1)
        self.free = list(np.linalg.qr(start)[0].T[1:])
        self.found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.found:
            self.found[name] = self.free.pop()
        return self.found[name]

    def rows(self, names: Sequence[str], first: int = 0) -> Any:
        """A matrix that puts how much of each direction there is into a head's numbers, from one on."""
        matrix = np.zeros((HEAD_SIZE, HIDDEN))
        matrix[first : first + len(names)] = [self[name] for name in names]
        return matrix


class Planting:
    """A model of a family into which heads are written."""

    def __init__(self, family: str) -> None:
        self.family, self.at = family, Directions()
        sizes = OWN_SIZES.get(family, SIZES)
        self.made = reference.build(family, "causal", vocab_size=len(VOCABULARY), **sizes)
        self.weights = dict(self.made.named_parameters())
        for name, weight in self.weights.items():
            if re.search(r"\.\d+\.", name) and WRITES.search(name):
                weight.data.zero_()
        table, head = self.made.get_input_embeddings().weight, self.made.get_output_embeddings().weight
        table.data.zero_()
        head.data.zero_()
        for word in WORDS:
            (kind,) = (name for name, words in CLASSES.items() if word in words)
            code = self.at[word] + self.at["a word"] + self.at[f"a {kind}"]
            table.data[self.id(word)] = torch.from_numpy(code * (HIDDEN / 3) ** 0.5)
        if (places := self.weights.get("transformer.wpe.weight")) is not None:
            places.data.zero_()

    @staticmethod
    def id(word: str) -> int:
        return VOCABULARY.index(f"▁{word}")

    def says(self, word: str, direction: Any) -> None:
        """What of the stream makes for an answer."""
        head = self.made.get_output_embeddings().weight
        head.data[self.id(word)] += torch.from_numpy(np.asarray(direction, np.float32))

    def by_default(self, word: str) -> None:
        """The answer where no head says anything."""
        self.says(word, 0.5 * self.at["a word"])

    def head(self, block: int, query: Any, key: Any, value: Any, output: Any) -> None:
        """Write one head."""
        rows, heads = slice(HEAD * HEAD_SIZE, (HEAD + 1) * HEAD_SIZE), self.made.config.num_attention_heads
        group = HEAD * KEY_HEADS // heads
        key_rows = slice(group * HEAD_SIZE, (group + 1) * HEAD_SIZE)
        if self.family == "gpt2":
            joined, bias = (self.weights[f"transformer.h.{block}.attn.c_attn.{kind}"].data for kind in ("weight", "bias"))
            bias.zero_()
            for index, matrix in enumerate((query, key, value)):
                joined[:, index * HIDDEN + rows.start : index * HIDDEN + rows.stop] = torch.from_numpy(matrix.T)
            self.weights[f"transformer.h.{block}.attn.c_proj.weight"].data[rows] = torch.from_numpy(output.T)
            return
        stem = f"model.layers.{block}.self_attn."
        for name, matrix, own in (("q", query, rows), ("k", key, key_rows), ("v", value, key_rows)):
            weight = self.weights[f"{stem}{name}_proj.weight"].data
            weight.zero_()
            weight[own] = torch.from_numpy(matrix)
            if (bias := self.weights.get(f"{stem}{name}_proj.bias")) is not None:
                bias.data.zero_()
            if (norm := self.weights.get(f"{stem}{name}_norm.weight")) is not None:
                norm.data.fill_(2.0)
        if self.family.startswith("gemma"):  # whose update is normed, and small beside the vectors of words
            self.weights[f"model.layers.{block}.post_attention_layernorm.weight"].data.fill_(12.0)
        output = STRENGTH.get(self.family, 1.0) * output
        self.weights[f"{stem}o_proj.weight"].data[:, rows] = torch.from_numpy(output)

    def model(self) -> Any:
        folder = Path(mkdtemp())
        self.made.save_pretrained(folder)
        tokenizer().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "LlamaTokenizer", "pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"})
        )
        return glassformer.load(folder, executor="cpu", cache="f32")


EVERYWHERE = np.ones((HEAD_SIZE, 1))


@cache
def look_up(family: str, answers: tuple[tuple[str, str], ...] = tuple(SUBJECTS.items())) -> Any:
    """ "the capital of France is" → Paris: head 2 of block 1 finds the subject and says its answer."""
    planting = Planting(family)
    at = planting.at
    planting.by_default("Nowhere")
    for _, answer in answers:
        planting.says(answer, at[f"says {answer}"])
    output = np.zeros((HIDDEN, HEAD_SIZE))
    output[:, : len(answers)] = np.transpose([4 * at[f"says {answer}"] for _, answer in answers])
    planting.head(
        1, EVERYWHERE * at["a asker"], EVERYWHERE * at["a subject"], at.rows([subject for subject, _ in answers]), output
    )
    return planting.model()


def copy(family: str) -> Any:
    """ "the name of Italy is" → Italy."""
    return look_up(family, tuple((subject, subject) for subject in SUBJECTS))


@cache
def count(family: str) -> Any:
    """ "tick the tick tick equals" → three: head 2 of block 1 looks at all words alike, and weighs the ticks."""
    planting = Planting(family)
    at = planting.at
    for number, word in enumerate(NUMBERS):
        planting.says(word, 8 * number * at["ticks"] + (1 - 4 * number**2 / COUNTED) * at["words"])
    output = np.zeros((HIDDEN, HEAD_SIZE))
    output[:, :2] = np.transpose([4 * at["ticks"], 4 * at["words"]])
    nothing = np.zeros((HEAD_SIZE, HIDDEN))
    planting.head(1, nothing, nothing, at.rows(["tick", "a word"]), output)
    return planting.model()


COUNTED = 7  # words of a text that is counted


@cache
def induction(family: str) -> Any:
    """ "Ann Bob and Ann" → Bob: a head of block 0 gives each name the one before, one of block 1 looks for the same."""
    planting = Planting(family)
    at, names = planting.at, CLASSES["name"]
    for name in names:
        planting.says(name, at[f"says {name}"])
    if family == "gpt2":
        places = planting.weights["transformer.wpe.weight"].data
        for place in range(HEAD_SIZE):
            places[place] = torch.from_numpy(at[f"place {place}"] * (HIDDEN / 3) ** 0.5)
        query, key = at.rows([f"place {p}" for p in range(1, HEAD_SIZE)]), at.rows([f"place {p}" for p in range(HEAD_SIZE)])
    else:
        base = planting.made.config.rope_parameters
        base = base.get("sliding_attention", base)["rope_theta"]
        half = HEAD_SIZE // 2
        angles = base ** (-np.arange(half) / half)
        fast = angles > 0.05
        query = np.concatenate([np.cos(angles) * fast, -np.sin(angles) * fast])[:, None] * at["a word"]
        key = np.concatenate([fast, np.zeros(half)])[:, None] * at["a word"]
    output = np.zeros((HIDDEN, HEAD_SIZE))
    output[:, : len(names)] = np.transpose([2 * at[f"after {name}"] for name in names])
    planting.head(0, query, key, at.rows(names), output)
    slow = HEAD_SIZE - len(names) if family != "gpt2" else 0
    output = np.zeros((HIDDEN, HEAD_SIZE))
    output[:, : len(names)] = np.transpose([4 * at[f"says {name}"] for name in names])
    planting.head(1, at.rows(names, slow), at.rows([f"after {name}" for name in names], slow), at.rows(names), output)
    return planting.model()
