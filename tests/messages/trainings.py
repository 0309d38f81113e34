"""What is trained: objectives, rows, adapters, and the folder of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import glassformer
from glassformer.adapters.peft import compile_pattern
from glassformer.blueprints import read_config
from glassformer.ground.errors import CheckpointError, InputError, NotNumbers, SettingError
from glassformer.see.fit_features import FeatureTrainingSettings, train_features
from glassformer.see.training_curves import read_training
from glassformer.training import g2p
from glassformer.training.corpus import read_corpus
from glassformer.training.fine_tuning import PreferenceRequest
from glassformer.training.labels import collect_labels
from glassformer.training.objectives.language_model import MaskedLanguageModel, SpanCorruption
from glassformer.training.objectives.text_to_text import TextToText
from glassformer.training.rows import DataRow
from glassformer.training.task_evaluation import evaluate_task
from glassformer.training.text_tokens import read_token_file, text_objective, tokenized, train_tokenizer
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder
from tests.messages.calls import Entry, classifier, limited, pair, path, place, tokenizer, write
from tests.training.models import SETTINGS, language_model, tiny_model

IDS = np.arange(100, dtype=np.uint16)
BART = {"model_type": "bart", "vocab_size": 71, "d_model": 16, "max_position_embeddings": 128}


def window_beyond_the_text() -> Any:
    corpus = read_corpus(write("short/text.txt", "the cat sat. " * 50).parent)
    tokenizer = train_tokenizer(corpus, 300)
    tokens, _ = tokenized(corpus, tokenizer, place() / "short-tokens")
    return text_objective(tokenizer, tiny_model().config, tokens, 100_000, 0.1)


def training(name: str, **about: Any) -> TrainingFolder:
    folder = TrainingFolder(place() / name)
    if not folder.path.exists():
        folder.begin({"request": {"text": "a", "steps": 3}, "data": "x", **about})
    return folder


def unreadable(name: str) -> Path:
    """A folder in which a folder stands in a file's place."""
    (place() / "unreadable" / name).mkdir(parents=True, exist_ok=True)
    return place() / "unreadable"


def changed_by_hand() -> Any:
    folder = training("by-hand", request={"learning_rate": 0.0002})
    file = folder.path / "training.json"
    file.write_text(file.read_text().replace("0.0002", "0.0006"))
    return folder.read_about()


def not_numbers() -> Any:
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    return Trainer(model, language_model(), SETTINGS).train_step()


def exploding() -> Any:
    rows = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    spoiled = np.concatenate([rows, np.full((400, 16), 3e18, np.float32)])
    settings = FeatureTrainingSettings(features=8, k=2, steps=2000, learning_rate=10.0)
    return train_features([rows * np.float32(1e-18), spoiled], settings)


MESSAGES: dict[str, list[Entry]] = {
    "objectives": [
        (InputError, window_beyond_the_text,
         "the text has 182 tokens to train on, fewer than one window of 100001. Give more text, or a shorter length."),
        (InputError, lambda: MaskedLanguageModel(tokenizer(), IDS, 10, IDS, "test"),
         "the tokenizer has no mask token, which guessing hidden tokens needs. Take another model."),
        (InputError, lambda: SpanCorruption(tokenizer(), pair().config, IDS, 10, IDS, "test"),
         "the tokenizer has no sentinels (<extra_id_0>, …), which stand for the spans that are taken out of a text. "
         "Take a model that has them, such as a T5."),
        (InputError, lambda: TextToText(
            g2p.tokenizer(), read_config(BART), [DataRow({"source": "a" * 200, "target": ["A"]}, "words.jsonl, row 3")], []),
         "words.jsonl, row 3: its source has 201 tokens; the model's context is 128. Shorten it, or leave the row out."),
        (SettingError, lambda: PreferenceRequest(data="a.jsonl", init="base", beta=0),
         "dpo_beta=0 is not above 0: 0.1 is usual."),
        (InputError, limited("training.labels.MAX_LABELS", 3,
                             lambda: collect_labels(((name, f"row {row}") for row, name in enumerate("abcd")), "rows")),
         "row 3: is the first with more than 3 different labels before it. Is it a label at all?"),
        (InputError, lambda: evaluate_task("classify", classifier(), tokenizer(),
                                           write("labels.jsonl", '{"text": "a", "label": "so-so"}')),
         "labels.jsonl, row 1: the label 'so-so' is not known. Known: LABEL_0, LABEL_1."),
        (NotNumbers, not_numbers,
         "step 1: the loss is no number, for examples …; the first site that is none is "
         "blocks.1.mlp.update. Lower the learning rate, warm up longer, or take the batch out of the data."),
        (SettingError, exploding,
         "the loss is no number after step 1. Take a smaller learning rate."),
    ],
    "the folder of a training": [
        (SettingError, lambda: training("begun").check_same({"request": {"text": "a", "steps": 4}, "data": "x"}),
         "…/begun: the training was begun with request: steps 3, and now it is 4. Give what it was begun with, or "
         "choose another folder."),
        (SettingError, lambda: training("begun").check_same({"request": {"text": "a", "steps": 3}, "data": "y"}),
         "…/begun: the training was begun with data 'x', and now it is 'y'. Give what it was begun with, or choose "
         "another folder."),
        (CheckpointError, changed_by_hand,
         "…/by-hand/training.json: damaged, or changed since the training was begun: its checksum does not fit. Put it "
         'back as it was; or remove its "crc32", and it is taken as it is.'),
    ],
    "files of a training": [
        (InputError, lambda: read_training(unreadable("metrics.jsonl")),
         "unreadable/metrics.jsonl: cannot be read (…). Check its permissions."),
        (CheckpointError, lambda: read_token_file(write("tokens/tokens.json", "[]").parent),
         "…/tokens: holds no readable token file (…). Delete it, and it is made anew."),
    ],
    "adapters": [
        (InputError, lambda: glassformer.load(path("llama"), adapter=path("llama"), adapter_mode="besides"),
         "there is no adapter_mode 'besides'. Did you mean 'beside'? Known: merged, beside."),
        (CheckpointError, lambda: compile_pattern("(a*)*b", Path("x")),
         "x: '(a*)*b' is no pattern that can be used: it has repetitions inside repetitions, or too many of them. Write "
         "the modules' names out."),
    ],
}  # fmt: skip
