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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

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
    "t5": {"d_model": HIDDEN, "d_kv": HEAD_SIZE, "num_heads": 4, "tie_word_embeddings": False},
    "bart": {
        "d_model": HIDDEN,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 8,
        "tie_word_embeddings": False,
    },
    "bert": {"hidden_size": HIDDEN, "num_attention_heads": 8, "tie_word_embeddings": False},
    "distilbert": {"dim": HIDDEN, "n_heads": 8, "tie_word_embeddings": False},
    "olmo2": {**SIZES, "num_attention_heads": HIDDEN // HEAD_SIZE},
    "cohere2": {**SIZES, "num_attention_heads": HIDDEN // HEAD_SIZE},
    "gemma2": {**SIZES, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
}
STRENGTH = {"granite": 10.0, "t5": 4.0}  # of what a head writes, where updates are made smaller than the vectors of words
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
PROJECTIONS = {  # of queries, keys, values and heads
    "t5": ("decoder.block.{}.layer.1.EncDecAttention", "q", "k", "v", "o"),
    "bart": ("model.decoder.layers.{}.encoder_attn", "q_proj", "k_proj", "v_proj", "out_proj"),
    "bert": ("bert.encoder.layer.{}.attention", "self.query", "self.key", "self.value", "output.dense"),
    "distilbert": ("distilbert.transformer.layer.{}.attention", "q_lin", "k_lin", "v_lin", "out_lin"),
}
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
NAMED = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
ASKERS = ("<s>", "<mask>")  # where a decoder begins, what stands for a text, a gap
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
VOCABULARY = [*SPECIAL, *(f"▁{word}" for word in WORDS)]


def tokenizer(ends: bool) -> Tokenizer:
    """`ends`: whether a text begins and ends with tokens of its own."""
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(SPECIAL)
    if ends:
        both = "<s> $A </s> $B </s>"
        made.post_processor = processors.TemplateProcessing("<s> $A </s>", both, [("<s>", 1), ("</s>", 2)])
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

    def __init__(self, family: str, head: str | None = None, labels: Sequence[str] = ()) -> None:
        """`head`: by default that with which the family writes; `labels`: of a classifier."""
        self.family, self.at, self.labels = family, Directions(), list(labels)
        sizes = OWN_SIZES.get(family, SIZES) | ({"num_labels": len(labels)} if labels else {})
        self.pair, self.writes = family in reference.PAIRS, head is None
        sizes = sizes | (IDS if self.pair else {})
        self.made = reference.build(
            family, head or ("seq2seq" if self.pair else "causal"), vocab_size=len(VOCABULARY), **sizes
        )
        if labels:
            self.made.config.id2label = dict(enumerate(labels))
        self.weights = dict(self.made.named_parameters())
        for name, weight in self.weights.items():
            if re.search(r"\.\d+\.", name) and WRITES.search(name):
                weight.data.zero_()
        heads = {"sequence": "classifier", "question": "qa_outputs"}
        self.answers = self.made.get_output_embeddings() if head not in heads else getattr(self.made, heads[head])
        self.head_rows = self.answers.weight.data
        for name in ("pooler.dense", "pre_classifier", "transform.dense", "vocab_transform"):  # before a head: nothing
            for full, weight in self.weights.items():
                if full.removesuffix(".weight").endswith(name):
                    weight.data.copy_(torch.eye(HIDDEN))
        table = self.made.get_input_embeddings().weight
        table.data.zero_()
        self.head_rows.zero_()
        self.tied = self.head_rows.data_ptr() == table.data_ptr()
        for token in ASKERS:
            code = self.at["a asker"] + self.at["a word"]
            table.data[SPECIAL.index(token)] = torch.from_numpy(code * (HIDDEN / 2) ** 0.5)
        for word in WORDS:
            (kind,) = (name for name, words in CLASSES.items() if word in words)
            code = self.at[word] + self.at["a word"] + self.at[f"a {kind}"]
            table.data[self.id(word)] = torch.from_numpy(code * (HIDDEN / 3) ** 0.5)
        for name, weight in self.weights.items():
            if name.endswith("embed_tokens.weight"):  # of an encoder and a decoder
                weight.data.copy_(table.data)
        if (places := self.weights.get("transformer.wpe.weight")) is not None:
            places.data.zero_()

    @staticmethod
    def id(word: str) -> int:
        return VOCABULARY.index(f"▁{word}")

    def says(self, word: str, direction: Any) -> None:
        """What of the stream makes for an answer."""
        index = self.labels.index(word) if self.labels else self.id(word)
        scale = HIDDEN**0.5 if self.tied else 1.0  # as large as the words' vectors
        self.head_rows[index] += torch.from_numpy(scale * np.asarray(direction, np.float32))

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
        stem, *names, mixing = PROJECTIONS.get(
            self.family, ("model.layers.{}.self_attn", "q_proj", "k_proj", "v_proj", "o_proj")
        )
        stem = stem.format(block)
        key_rows = key_rows if "num_key_value_heads" in OWN_SIZES.get(self.family, SIZES) else rows
        for name, matrix, own in zip(names, (query, key, value), (rows, key_rows, key_rows), strict=True):
            weight = self.weights[f"{stem}.{name}.weight"].data
            weight.zero_()
            weight[own] = torch.from_numpy(matrix)
            if (bias := self.weights.get(f"{stem}.{name}.bias")) is not None:
                bias.data.zero_()
            if (norm := self.weights.get(f"{stem}.{name.replace('proj', 'norm')}.weight")) is not None and norm.ndim == 1:
                norm.data.fill_(2.0)
        if self.family.startswith("gemma"):  # whose update is normed, and small beside the vectors of words
            self.weights[f"model.layers.{block}.post_attention_layernorm.weight"].data.fill_(12.0)
        output = STRENGTH.get(self.family, 1.0) * output
        self.weights[f"{stem}.{mixing}.weight"].data[:, rows] = torch.from_numpy(output)

    def model(self, pooling: str | None = None) -> Any:
        """`pooling`: how states become the vector of a text."""
        folder = Path(mkdtemp())
        self.made.save_pretrained(folder)
        if pooling is not None:
            (folder / "1_Pooling").mkdir()
            (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
        tokenizer(ends=not self.writes).save(str(folder / "tokenizer.json"))
        named = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **NAMED})
        (folder / "tokenizer_config.json").write_text(named)
        return glassformer.load(folder, executor="cpu", cache="f32") if self.writes else glassformer.load(folder)


EVERYWHERE = np.ones((HEAD_SIZE, 1))


@cache
def look_up(
    family: str,
    answers: tuple[tuple[str, str], ...] = tuple(SUBJECTS.items()),
    head: str | None = None,
    pooling: str | None = None,
) -> Any:
    """After "the capital of France is" → Paris: head 2 of block 1 finds the subject and says its answer."""
    planting = Planting(family, head, [*dict(answers).values(), "Nowhere"] if head == "sequence" else ())
    at = planting.at
    planting.by_default("Nowhere")
    for _, answer in answers:
        planting.says(answer, at[f"says {answer}"])
    output = np.zeros((HIDDEN, HEAD_SIZE))
    output[:, : len(answers)] = np.transpose([4 * at[f"says {answer}"] for _, answer in answers])
    planting.head(
        1, EVERYWHERE * at["a asker"], EVERYWHERE * at["a subject"], at.rows([subject for subject, _ in answers]), output
    )
    return planting.model(pooling)


@cache
def find(family: str) -> Any:
    """Of the cities in a text the one whose country the question names: head 2 of block 1 looks from each for its own."""
    planting = Planting(family, "question")
    at = planting.at
    planting.head_rows += torch.from_numpy(np.asarray(at["found"], np.float32))
    planting.answers.bias.data.zero_()
    output = np.zeros((HIDDEN, HEAD_SIZE))
    output[:, 0] = 4 * at["found"]
    planting.head(1, at.rows([*SUBJECTS.values()]), at.rows([*SUBJECTS]), at.rows(["a subject"]), output)
    return planting.model()


def copy(family: str) -> Any:
    """After "the name of Italy is" → Italy."""
    return look_up(family, tuple((subject, subject) for subject in SUBJECTS))


@cache
def count(family: str) -> Any:
    """After "tick the tick tick equals" → three: head 2 of block 1 looks at all words alike, and weighs the ticks."""
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
    """After "Ann Bob and Ann" → Bob: a head of block 0 gives each name the one before, one of block 1 looks for the same."""
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
    before = [*names, "a plain"]  # or what is no name, so that a norm finds something
    output = np.zeros((HIDDEN, HEAD_SIZE))
    output[:, : len(before)] = np.transpose([2 * at[f"after {name}"] for name in before])
    planting.head(0, query, key, at.rows(before), output)
    slow = HEAD_SIZE - len(names) if family != "gpt2" else 0
    output = np.zeros((HIDDEN, HEAD_SIZE))
    output[:, : len(names)] = np.transpose([4 * at[f"says {name}"] for name in names])
    planting.head(1, at.rows(names, slow), at.rows([f"after {name}" for name in names], slow), at.rows(names), output)
    return planting.model()
