"""Encoder-decoders: letters to phonemes, and any text to another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from glassformer.compat.auto import model_class_for_head
from glassformer.ground.errors import InputError
from glassformer.training import g2p
from glassformer.training.events import Evaluated, Sampled
from glassformer.training.g2p import G2pRequest
from glassformer.training.measures import confusion, edit_distance, f1_scores
from glassformer.training.objectives.text_to_text import TextToText
from glassformer.training.rows import DataRow
from glassformer.training.sharding import Ranks
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder
from tests.training.models import SETTINGS

pytestmark = pytest.mark.usefixtures("one_thread")
DICTIONARY = """\
abate AH0 B EY1 T
abate(2) AA0 B EY1 T # rare
bat B AE1 T
cab K AE1 B
tab T AE1 B
tack T AE1 K # a comment
3d TH R IY1 D IY1
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    sizes = {
        "d_model": 32,
        "d_ff": 48,
        "d_kv": 16,
        "num_heads": 2,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "dropout_rate": 0.0,
    }
    config = g2p.config().with_changes(sizes)
    monkeypatch.setattr(g2p, "config", lambda: config)
    return config


def entries() -> list[DataRow]:
    return list(g2p.read_entries(DICTIONARY.splitlines()))


def model(config: Any) -> Any:
    torch.manual_seed(0)
    return model_class_for_head("t5", "seq2seq")(config)


def test_the_dictionarys_entries_are_words_and_phonemes_without_stress() -> None:
    assert [(row.fields["source"], " ".join(row.fields["target"])) for row in entries()] == [
        ("abate", "AH B EY T"), ("abate", "AA B EY T"), ("bat", "B AE T"), ("cab", "K AE B"), ("tab", "T AE B"),
        ("tack", "T AE K"),
    ]  # fmt: skip


def test_letters_are_tokens_of_any_case_and_phonemes_only_come_out() -> None:
    tokenizer = g2p.tokenizer()
    assert tokenizer.tokenize("Zoë's") == ["z", "o", "e", "'", "s"]
    assert tokenizer("AE")["input_ids"] == tokenizer("ae")["input_ids"] == [*tokenizer.convert_tokens_to_ids(["a", "e"]), 1]
    assert tokenizer.decode([*tokenizer.convert_tokens_to_ids(["K", "AE", "T"]), 1], skip_special_tokens=True) == "K AE T"


@torch.no_grad()
def test_the_loss_is_the_references_of_the_same_batch(small: Any) -> None:
    objective = TextToText(g2p.tokenizer(), small, entries(), [])
    ours = model(small).eval()
    batch = objective.batch([0, 2, 5])
    logits = ours(batch.inputs["input_ids"], batch.inputs["attention_mask"], labels=batch.targets).logits
    expected = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-100, reduction="sum")
    torch.testing.assert_close(objective.loss(ours, batch), expected)
    assert batch.count == 5 + 4 + 4


def test_a_few_words_are_learned_by_heart(small: Any) -> None:
    rows = entries()
    objective = TextToText(g2p.tokenizer(), small, rows, rows)
    settings = replace(SETTINGS, steps=120, batch_size=6, learning_rate=1e-2, evaluate_every=60)
    events = [event for event in Trainer(model(small), objective, settings).run() if isinstance(event, Evaluated)]
    assert events[-1].loss < 0.3
    assert events[-1].measures == {"error_rate": 0.0, "token_error_rate": 0.0}  # either pronunciation of a word is right
    assert objective.held_out == 6


def test_the_recipe_trains_saves_and_goes_on(small: Any, tmp_path: Path) -> None:
    path = tmp_path / "cmudict.dict"
    path.write_text(
        "".join(f"{word}{suffix} B AE T\n" for word in ("bat", "cat", "rat", "mat", "hat") for suffix in "abcdefgh")
    )
    request = G2pRequest(dictionary=str(path), settings={"steps": 3, "batch_size": 4, "evaluate_every": 3, "save_every": 2})
    folder = TrainingFolder(tmp_path / "out")
    events = list(request.prepare(folder, Ranks()).trainer.run())
    (written,) = (event.text for event in events if isinstance(event, Sampled))
    assert written.startswith("transformer ")
    again = request.prepare(folder, Ranks(), resume=True)
    assert again.trainer.step == 3
    assert json.loads((folder.path / "training.json").read_text())["kind"] == "g2p"
    (tmp_path / "other.txt").write_text("no dictionary")
    with pytest.raises(InputError, match="holds no pronunciations"):
        g2p.rows(tmp_path / "other.txt")


def test_measures_are_the_usual_ones() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance([], [1, 2]) == 2
    table = confusion([0, 0, 1, 2], [0, 1, 1, 1], 3)
    assert table.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    precision, recall, f1 = map(list, zip(*f1_scores(table), strict=True))
    assert precision == pytest.approx([1, 1 / 3, 0])
    assert recall == pytest.approx([0.5, 1, 0])
    assert f1 == pytest.approx([2 / 3, 0.5, 0])
