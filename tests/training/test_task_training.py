"""Task heads out of rows: each learns a handful by heart, and its folder opens everywhere."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner

import glassformer
from glassformer.cli.app import app
from glassformer.ground.errors import SettingError
from glassformer.model_files import AutoTokenizer
from glassformer.see.training_curves import read_training
from glassformer.tasks import pipeline
from glassformer.training.events import Sampled, StepDone
from glassformer.training.labels import Labels, read_tagged_text
from glassformer.training.objectives.classification import TextClassification, TokenLabelling, token_targets
from glassformer.training.requests import read_request
from glassformer.training.rows import DataRow
from glassformer.training.sharding import Ranks
from glassformer.training.task_training import TaskTraining
from glassformer.training.trained_model import write_model
from glassformer.training.training_folder import TrainingFolder
from tests.training.small_presets import last_evaluation, losses, small_preset
from tests.training.task_data import NAMES, REVIEWS, ROWS, WORDS, write_rows

pytestmark = pytest.mark.usefixtures("one_thread")
__all__ = ["small_preset"]


def request(folder: Path, task: str, **changes: Any) -> TaskTraining:
    """Trained and evaluated on the same rows: what is learned by heart."""
    path = write_rows(folder / f"{task}.jsonl", ROWS[task])
    return TaskTraining(**{"task": task, "data": path, "test_data": path, **changes})


def trained(folder: Path, task: str, **changes: Any) -> tuple[Any, list[Any]]:
    training = request(folder, task, **changes).prepare(TrainingFolder(folder / "training"), Ranks())
    events = list(training.trainer.run())
    write_model(folder / "model", training.trainer.model, training.parts.tokenizer)
    return training, events


# Learned by heart -----------------------------------------------------------------------------------------------------


def test_labels_of_texts_are_learned_by_heart(small_preset: Any, tmp_path: Path) -> None:
    training, events = trained(tmp_path, "classify")
    assert losses(events)[-1] < 0.01
    assert last_evaluation(events).measures == {"accuracy": 1.0, "macro_f1": 1.0}
    assert training.trainer.model.config.id2label == {0: "bad", 1: "good"}
    texts = [row["text"] for row in REVIEWS]
    ours = pipeline("text-classification", str(tmp_path / "model"))(texts)
    assert [answer["label"] for answer in ours] == [row["label"] for row in REVIEWS]
    theirs = transformers.pipeline("text-classification", str(tmp_path / "model"))(texts)
    assert [answer["label"] for answer in theirs] == [answer["label"] for answer in ours]
    assert [answer["score"] for answer in theirs] == pytest.approx([answer["score"] for answer in ours], abs=1e-4)


def test_tags_of_words_are_learned_by_heart(small_preset: Any, tmp_path: Path) -> None:
    training, events = trained(tmp_path, "tag")
    assert losses(events)[-1] < 0.02
    assert last_evaluation(events).measures == {"accuracy": 1.0, "macro_f1": 1.0, "entity_f1": 1.0}
    assert training.trainer.model.config.label2id == {"B-LOC": 0, "B-PER": 1, "I-LOC": 2, "I-PER": 3, "O": 4}
    text = "Alan Turing lived in New York"
    ours = pipeline("token-classification", str(tmp_path / "model"), aggregation_strategy="first")(text)
    assert [(entity["entity_group"], text[entity["start"] : entity["end"]]) for entity in ours] == [
        ("PER", "Alan Turing"), ("LOC", "New York"),
    ]  # fmt: skip
    model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "model")
    assert model.config.id2label == training.trainer.model.config.id2label
    ids = training.parts.tokenizer(text, return_tensors="pt")["input_ids"]
    torch.testing.assert_close(model(ids).logits, training.trainer.model.eval()(ids).logits, atol=1e-4, rtol=1e-4)


def test_texts_for_texts_are_learned_by_heart(small_preset: Any, tmp_path: Path) -> None:
    _, events = trained(tmp_path, "seq2seq", settings={"steps": 150, "learning_rate": 1e-2})
    assert losses(events)[-1] < 0.05
    assert last_evaluation(events).measures == {"error_rate": 0.0, "token_error_rate": 0.0}
    assert [event.text for event in events if isinstance(event, Sampled)][-1] == "abc → cba\ndef → fed\nghi → ihg"
    ours = pipeline("text2text-generation", str(tmp_path / "model"))([row["source"] for row in WORDS])
    assert [answer["generated_text"] for (answer,) in ours] == [row["target"] for row in WORDS]
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    answer = theirs.generate(**tokenizer("jkl", return_tensors="pt"), max_new_tokens=8)
    assert tokenizer.decode(answer[0], skip_special_tokens=True) == "lkj"


@pytest.mark.parametrize("architecture", ["llama", "roberta", "modernbert", "bart"])
def test_other_families_have_heads_too(architecture: str, small_preset: Any, tmp_path: Path) -> None:
    _, events = trained(tmp_path, "classify", architecture=architecture, settings={"steps": 12, "warmup_steps": 1})
    assert losses(events)[-1] < losses(events)[0]
    assert glassformer.load(str(tmp_path / "model")).head == "sequence"


def test_a_resumed_training_ends_with_the_same_weights(small_preset: Any, tmp_path: Path) -> None:
    begun = request(tmp_path, "tag", settings={"steps": 5, "batch_size": 3, "save_every": 2})
    unbroken = begun.prepare(TrainingFolder(tmp_path / "unbroken"), Ranks()).trainer
    list(unbroken.run())
    folder = TrainingFolder(tmp_path / "broken")
    for event in begun.prepare(folder, Ranks()).trainer.run():
        if isinstance(event, StepDone) and event.step == 3:
            break  # killed after the checkpoint of step 2
    again = read_request(folder.read_about())
    assert again == begun
    resumed = again.prepare(folder, Ranks(), resume=True).trainer
    assert resumed.step == 2
    list(resumed.run())
    mine, theirs = dict(resumed.model.named_parameters()), dict(unbroken.model.named_parameters())
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    write_rows(Path(begun.data), NAMES[:2])
    with pytest.raises(SettingError, match="with data"):
        again.prepare(folder, Ranks(), resume=True)


# A model that is trained further --------------------------------------------------------------------------------------


def test_a_model_that_knows_all_labels_keeps_its_head(small_preset: Any, tmp_path: Path) -> None:
    first, _ = trained(tmp_path, "classify")
    further = request(tmp_path, "classify", init=str(tmp_path / "model"))
    training = further.prepare(TrainingFolder(tmp_path / "further"), Ranks())
    before = first.trainer.model.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in training.trainer.model.state_dict().items())
    settings = training.trainer.settings
    assert (settings.steps, settings.learning_rate, settings.warmup_steps) == (24, 5e-5, 3)  # three passes over 8 rows


def test_a_model_that_does_not_gets_another(small_preset: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, _ = trained(tmp_path, "classify", settings={"steps": 1})
    path = write_rows(tmp_path / "stars.jsonl", [{"text": f"text {n}", "label": n % 5 + 1} for n in range(20)])
    stars = TaskTraining(task="classify", data=path, init=str(tmp_path / "model"), held_out=0.2, settings={"steps": 1})
    with caplog.at_level(logging.WARNING, "glassformer"):
        training = stars.prepare(TrainingFolder(tmp_path / "stars"), Ranks())
    assert "new, untrained: classifier" in caplog.text
    model = training.trainer.model
    assert model.config.id2label == {0: "1", 1: "2", 2: "3", 3: "4", 4: "5"}
    same = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(model.state_dict()[same], first.trainer.model.state_dict()[same])
    assert training.trainer.objective.held_out + training.trainer.objective.examples == 20
    assert 0 < training.trainer.objective.held_out < 10


# How rows become batches ----------------------------------------------------------------------------------------------


def test_only_the_first_token_of_a_word_has_its_tag(minilm: Path) -> None:
    """As transformers' recipe has it: by `word_ids` of texts that are split into words."""
    tokenizer, theirs = AutoTokenizer.from_pretrained(minilm), transformers.AutoTokenizer.from_pretrained(minilm)
    words = ["Internationalization", "in", "Bielefeld", ",", "naïve", "U.S.", "x"]
    tags = ["A", "B", "C", "D", "E", "F", "G"]
    objective = TokenLabelling(tokenizer, Labels(tuple(tags)), [DataRow({"tokens": words, "tags": tags}, "row 1")], [], 99)
    expected, before = [], None
    for word in theirs(words, is_split_into_words=True).word_ids():
        expected.append(-100 if word is None or word == before else word)
        before = word
    batch = objective.batch([0])
    assert batch.targets[0].tolist() == expected
    assert batch.inputs["input_ids"][0].tolist() == theirs(words, is_split_into_words=True)["input_ids"]


def test_the_places_of_entities_become_tags() -> None:
    row = DataRow({"text": "Ada's in New York.", "spans": [
        {"start": 9, "end": 17, "label": "LOC"}, {"start": 0, "end": 3, "label": "PER"},
    ]}, "row 1")  # fmt: skip
    tagged = read_tagged_text(row)
    words = [tagged.text[start:end] for start, end in tagged.words]
    assert dict(zip(words, tagged.tags, strict=True)) == {
        "Ada": "B-PER", "'": "O", "s": "O", "in": "O", "New": "B-LOC", "York": "I-LOC", ".": "O",
    }  # fmt: skip


def test_words_that_were_cut_off_have_no_target() -> None:
    row = DataRow({"tokens": ["a", "bc", "d"], "tags": ["X", "Y", "Z"]}, "row 1")
    tagged = read_tagged_text(row)
    whole = [(0, 0), (0, 1), (1, 3), (3, 4), (4, 6), (0, 0)]  # spaces belong to the tokens behind them
    assert token_targets(tagged, [0, 1, 2], whole) == [-100, 0, 1, -100, 2, -100]
    assert token_targets(tagged, [0, 1, 2], [*whole[:3], (0, 0)]) == [-100, 0, 1, -100]
    assert token_targets(tagged, [0, 1, 2], [(0, 4), (4, 6)]) == [0, 2]  # one token for two words


def test_second_texts_are_read_with_their_types(minilm: Path) -> None:
    tokenizer, theirs = AutoTokenizer.from_pretrained(minilm), transformers.AutoTokenizer.from_pretrained(minilm)
    rows = [DataRow({"premise": "It rains.", "hypothesis": "It is wet.", "label": "yes"}, "row 1")]
    objective = TextClassification(tokenizer, Labels(("no", "yes")), rows, [], 99)
    batch, expected = objective.batch([0]), theirs("It rains.", "It is wet.")
    assert {name: value[0].tolist() for name, value in batch.inputs.items()} == dict(expected)
    assert batch.targets.tolist() == [[1]]


def test_a_new_model_is_noted(small_preset: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_rows(tmp_path / "rows.jsonl", REVIEWS)
    new = "a new bert is trained, from random weights; init='MODEL' starts from a pretrained one."
    for architecture in (None, "bert"):  # what was asked for needs no note
        caplog.clear()
        with caplog.at_level(logging.WARNING, "glassformer"):
            TaskTraining(task="classify", data=path, architecture=architecture).prepare(
                TrainingFolder(tmp_path / f"{architecture}"), Ranks()
            )
        assert (new in caplog.messages) is (architecture is None), caplog.messages


def test_texts_that_are_too_long_are_cut_with_a_note(
    small_preset: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*REVIEWS, {"text": "long " * 100, "label": "bad"}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    with caplog.at_level(logging.WARNING, "glassformer"):
        training = TaskTraining(task="classify", data=path, held_out=0.0).prepare(TrainingFolder(tmp_path / "out"), Ranks())
    assert "1 of 9 texts have more than 24 tokens, and are cut there (the first: rows.jsonl, row 9)" in caplog.text
    assert training.trainer.objective.batch([8]).inputs["input_ids"].shape == (1, 24)


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_trains_and_says_how_to_use_it(small_preset: Any, command_folder: Path) -> None:
    write_rows(command_folder / "rows.jsonl", REVIEWS)
    words = ["train", "--task", "classify", "--data", "rows.jsonl", "--out", "mood", "--steps", "2", "--device", "cpu"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "the model is in mood. Use it: glass task text-classification -m mood 'a text'" in done.stderr
    about = json.loads((command_folder / "mood" / "training.json").read_text())
    assert about["kind"] == "task"
    assert about["request"]["task"] == "classify"


def test_the_command_says_on_how_many_rows_it_measures(small_preset: Any, command_folder: Path) -> None:
    write_rows(command_folder / "rows.jsonl", REVIEWS)
    write_rows(command_folder / "one.jsonl", REVIEWS[:1])
    write_rows(command_folder / "many.jsonl", [*REVIEWS] * 3)
    words = ["train", "--task", "classify", "--data", "rows.jsonl", "--steps", "1", "--device", "cpu"]
    done = CliRunner().invoke(app, [*words, "--test-data", "one.jsonl", "--out", "one"])
    assert re.search(r"held-out [\d.]+ · [01]\.000 accuracy · [\d.]+ macro f1 on 1 example · ", done.stderr), done.stderr
    (evaluation,) = read_training(Path("one")).held_out
    assert set(evaluation.measures) == {"accuracy", "macro_f1"}  # a count is no measure
    done = CliRunner().invoke(app, [*words, "--test-data", "many.jsonl", "--out", "many"])
    assert "macro f1 on 24 examples" in done.stderr


@pytest.mark.parametrize(("copies", "few"), [(1, True), (3, False)])
def test_measures_of_few_rows_are_noted(
    small_preset: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, copies: int, few: bool
) -> None:
    rows, measured = write_rows(tmp_path / "rows.jsonl", REVIEWS), write_rows(tmp_path / "test.jsonl", [*REVIEWS] * copies)
    with caplog.at_level(logging.WARNING, "glassformer"):
        TaskTraining(task="classify", data=rows, test_data=measured).prepare(TrainingFolder(tmp_path / "out"), Ranks())
    assert ("rows to evaluate on: 8, and measures of fewer than 20 say little. Give more rows" in caplog.text) is few


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "classify"], "--task and --data go together"),
        (["--data", "rows.jsonl"], "--task and --data go together"),
        (
            ["--data", "x.jsonl", "--init", "smollm2", "--lora", "8"],
            "for fine-tuning, give --chat FILE or --preferences FILE",
        ),
        (["--task", "clasify", "--data", "x.jsonl"], "--task clasify is not known. Did you mean 'classify'?"),
        (["--task", "tag", "--data", "x.jsonl", "--text", "y.txt"], "leave --text, --tokenizer, --sample and fine"),
        (["--task", "tag", "--data", "x.jsonl", "--arch", "t5"], "a t5 model has no head for --task tag. Families that"),
        (["--task", "tag", "--data", "x.jsonl", "--arch", "brt"], "--arch brt is no family. Did you mean 'bert'?"),
        (
            ["--task", "tag", "--data", "x.jsonl", "--arch", "bert", "--init", "a"],
            "keeps family and tokenizer: leave --arch",
        ),
        (["--task", "tag", "--data", "x.jsonl", "--held-out", "2"], "--held-out 2.0 is no share"),
        (["--resume", "--data", "x.jsonl"], "leave everything but --out away"),
    ],
)
def test_commands_that_say_too_much_or_too_little(words: list[str], message: str, command_folder: Path) -> None:
    done = CliRunner().invoke(app, ["train", "--out", "out", *words])
    assert done.exit_code != 0
    assert message in " ".join((done.stderr + str(done.exception)).split())
