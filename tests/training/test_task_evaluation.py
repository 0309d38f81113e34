"""The measures of task heads, beside slow ones that are written another way; their views, and `glass eval --task`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from glassformer.cli.app import app
from glassformer.compat.auto import model_class_for_head
from glassformer.see.schema import schema
from glassformer.see.task_evaluation import ClassificationEvaluation, LabelScores, TaggingEvaluation, TextToTextEvaluation
from glassformer.training.measures import (
    accuracy,
    confusion,
    edit_distance,
    entity_counts,
    entity_spans,
    f1_scores,
    macro_f1,
    precision_recall_f1,
    total_scores,
)  # fmt: skip
from glassformer.training.new_tokenizer import new_tokenizer
from glassformer.training.presets import PRESETS, config_of, find_family
from glassformer.training.task_evaluation import evaluate_task
from glassformer.training.trained_model import write_model
from tests.see.models import folder as model_folder
from tests.training.task_data import ROWS, write_rows

pytestmark = pytest.mark.usefixtures("one_thread")
HEADS = {"classify": ("bert", "sequence"), "tag": ("bert", "token"), "seq2seq": ("t5", "seq2seq")}
LABELS = {"classify": ["bad", "good"], "tag": ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"], "seq2seq": []}


def untrained(folder: Path, task: str) -> tuple[Any, Any]:
    """A model with a task's head and random weights, in a folder."""
    family, head = HEADS[task]
    texts = ["Ada Alan Turing lived in London New York a great lovely dull awful film book"]
    tokenizer = new_tokenizer(texts, 500, find_family(family).default_head, 32, token_types=family == "bert")
    preset = replace(PRESETS["tiny"], hidden_size=32, layers=1, heads=2, length=32)
    named = {"id2label": dict(enumerate(LABELS[task]))} if LABELS[task] else {}
    torch.manual_seed(1)
    model = model_class_for_head(family, head)(config_of(preset, family, tokenizer).with_changes(named)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that its answers differ
    write_model(folder, model, tokenizer)
    return model, tokenizer


# Numbers --------------------------------------------------------------------------------------------------------------


def test_precision_recall_and_f1_are_those_of_counting() -> None:
    draw = np.random.default_rng(0)
    for _ in range(30):
        classes = int(draw.integers(2, 6))
        pairs = draw.integers(0, classes, (int(draw.integers(1, 40)), 2)).tolist()
        expected, answered = ([pair[side] for pair in pairs] for side in (0, 1))
        table = confusion(expected, answered, classes)
        precision, recall, f1 = zip(*f1_scores(table), strict=True)
        seen = []
        for label in range(classes):
            right = sum(e == a == label for e, a in pairs)
            said, there = sum(a == label for _, a in pairs), sum(e == label for e, _ in pairs)
            assert precision[label] == pytest.approx(right / said if said else 0)
            assert recall[label] == pytest.approx(right / there if there else 0)
            assert f1[label] == pytest.approx(2 * right / (said + there) if said + there else 0)
            seen += [2 * right / (said + there)] if said + there else []
        assert macro_f1(table) == pytest.approx(sum(seen) / len(seen))
        assert accuracy(table) == pytest.approx(sum(e == a for e, a in pairs) / len(pairs))
        assert table.sum() == len(pairs)


def slow_spans(tags: list[str]) -> set[tuple[int, int, str]]:
    """Every stretch of words that is an entity by its definition."""

    def begins(at: int) -> bool:
        return tags[at][0] == "B" or tags[at - 1] not in (f"B{tags[at][1:]}", f"I{tags[at][1:]}")

    found = set()
    for start in range(len(tags)):
        if tags[start] == "O" or not (start == 0 or begins(start)):
            continue
        end = start + 1
        while end < len(tags) and tags[end] == f"I{tags[start][1:]}":
            end += 1
        found.add((start, end, tags[start][2:]))
    return found


def test_entities_are_those_of_their_definition() -> None:
    draw = np.random.default_rng(1)
    tags = ["O", "B-A", "I-A", "B-B", "I-B"]
    texts = [[tags[number] for number in draw.integers(0, 5, draw.integers(1, 12))] for _ in range(200)]
    for text in texts:
        assert entity_spans(text) == slow_spans(text)
    guesses = [[tag if draw.random() < 0.7 else "O" for tag in text] for text in texts]
    counts = entity_counts(texts, guesses)
    for kind, (found, answered, expected) in counts.items():
        truth = Counter((row, span) for row, text in enumerate(texts) for span in slow_spans(text) if span[2] == kind)
        guess = Counter((row, span) for row, text in enumerate(guesses) for span in slow_spans(text) if span[2] == kind)
        assert (found, answered, expected) == (sum((truth & guess).values()), guess.total(), truth.total())
    found, answered, expected = np.array(list(counts.values())).sum(0).tolist()
    assert total_scores(counts) == pytest.approx((found / answered, found / expected, 2 * found / (answered + expected)))
    assert precision_recall_f1(0, 0, 3) == (0.0, 0.0, 0.0)
    assert total_scores({}) == (0.0, 0.0, 0.0)


def test_edit_distances_are_those_of_the_recursion() -> None:
    @cache
    def slow(first: str, second: str) -> int:
        if not first or not second:
            return len(first) + len(second)
        replaced = slow(first[1:], second[1:]) + (first[0] != second[0])
        return min(replaced, slow(first[1:], second) + 1, slow(first, second[1:]) + 1)

    draw = np.random.default_rng(2)
    for _ in range(100):
        first, second = ("".join(draw.choice([*"abc"], draw.integers(0, 9))) for _ in range(2))
        assert edit_distance(first, second) == slow(first, second)


# Evaluations ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_labels_are_measured_one_by_one(tmp_path: Path) -> None:
    model, tokenizer = untrained(tmp_path / "model", "classify")
    rows, told = ROWS["classify"], []
    path = Path(write_rows(tmp_path / "rows.jsonl", rows))
    view = evaluate_task(
        "classify", model, tokenizer, path, name="m", progress=lambda done, total: told.append((done, total))
    )
    assert isinstance(view, ClassificationEvaluation)
    scores = torch.cat([model(**tokenizer(row["text"], return_tensors="pt")).logits for row in rows])
    targets = torch.tensor([LABELS["classify"].index(row["label"]) for row in rows])
    assert view.loss == pytest.approx(float(F.cross_entropy(scores, targets)), rel=1e-4)
    right = (scores.argmax(-1) == targets).sum()
    assert view.accuracy == pytest.approx(float(right) / len(rows))
    assert [sum(row) for row in view.confusion] == [4, 4]
    assert sum(view.confusion[at][at] for at in range(2)) == right
    assert len(view.mistakes) == len(rows) - right > 0
    chances = [mistake.probability for mistake in view.mistakes]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == pytest.approx(
        float(scores.softmax(-1).max(-1).values[scores.argmax(-1) != targets].max()), rel=1e-4
    )
    assert told[-1] == (8, 8)


@torch.no_grad()
def test_tags_are_measured_word_by_word(tmp_path: Path) -> None:
    model, tokenizer = untrained(tmp_path / "model", "tag")
    rows = ROWS["tag"]
    path = Path(write_rows(tmp_path / "rows.jsonl", rows))
    view = evaluate_task("tag", model, tokenizer, path)
    assert isinstance(view, TaggingEvaluation)
    right = words = 0
    for row in rows:
        text = " ".join(row["tokens"])
        encoded = tokenizer(text, return_tensors="pt")
        best = model(**encoded).logits[0].argmax(-1)
        for number, tag in enumerate(row["tags"]):
            start = len(" ".join(row["tokens"][:number])) + (number > 0)
            words, right = words + 1, right + (LABELS["tag"][best[encoded.char_to_token(start)]] == tag)
    assert (view.words, view.texts) == (words, len(rows))
    assert view.accuracy == pytest.approx(right / words)
    assert {score.label: score.support for score in view.entities}.items() >= {"LOC": 4, "PER": 4}.items()
    assert view.entity_f1 is not None
    cut = evaluate_task("tag", model, tokenizer, path, length=5)
    assert isinstance(cut, TaggingEvaluation)
    assert cut.truncated == len(rows)
    assert cut.words < words


def test_written_texts_are_measured_by_the_nearest_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.training.objectives.text_to_text import TextToText

    model, tokenizer = untrained(tmp_path / "model", "seq2seq")
    rows = [
        {"source": "a", "target": "xyz"}, {"source": "a", "target": "xy"}, {"source": "b", "target": "book"},
        {"source": "c", "target": ["f", "i"]},
    ]  # fmt: skip
    written = {"a": "xyy", "b": "book", "c": "fil"}
    sources = {tuple(tokenizer(source)["input_ids"]): text for source, text in written.items()}

    def answer(self: Any, model: Any, rows: Any) -> Any:
        return [tokenizer(sources[row], add_special_tokens=False)["input_ids"] for row in rows]

    monkeypatch.setattr(TextToText, "answer", answer)
    view = evaluate_task("seq2seq", model, tokenizer, Path(write_rows(tmp_path / "rows.jsonl", rows)))
    assert isinstance(view, TextToTextEvaluation)
    assert (view.sources, view.exact_match) == (3, pytest.approx(1 / 3))
    assert view.edit_distance == pytest.approx((1 + 0 + 1) / 3)
    assert view.character_error_rate == pytest.approx(2 / (2 + 4 + 2))  # xy is as near as xyz, and the first of the two
    assert [(answer.expected, answer.answered, answer.edits) for answer in view.answers] == [
        ("xy", "xyy", 1),
        ("fi", "fil", 1),
    ]


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "kind", "words"),
    [
        ("classify", ClassificationEvaluation, ["accuracy", "macro F1", "confusion matrix", "most confident mistakes"]),
        ("tag", TaggingEvaluation, ["entity F1", "entities", "confusion matrix"]),
        ("seq2seq", TextToTextEvaluation, ["exact match", "edit distance", "farthest off"]),
    ],
)
def test_the_command_shows_measures(task: str, kind: Any, words: list[str], command_folder: Path) -> None:
    untrained(command_folder / "model", task)
    write_rows(command_folder / "rows.jsonl", ROWS[task])
    command = ["eval", "model", "--task", task, "--data", "rows.jsonl"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, (done.output, done.exception)
    for word in words:
        assert word in done.stdout
    data = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    jsonschema.validate(data, schema(kind))
    assert CliRunner().invoke(app, [*command, "--save", "page.html"]).exit_code == 0
    page = (command_folder / "page.html").read_text("utf-8")
    assert ('class="grid texts"' in page) == (task != "seq2seq")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "what is measured? Give --text FILE, or --task and --data FILE"),
        (["--task", "tag"], "--task and --data go together"),
        (["--data", "rows.jsonl"], "--task and --data go together"),
        (["--task", "tag", "--data", "rows.jsonl", "--text", "x.txt"], "what is measured?"),
        (["--task", "tag", "--data", "rows.jsonl", "--stride", "9"], "--window and --stride with --text"),
        (["--task", "tag", "--data", "rows.jsonl", "--window", "9"], "--window and --stride with --text"),
        (["--text", "x.txt", "--length", "9"], "--length goes with --task, and --window and"),
        (["--task", "label", "--data", "rows.jsonl"], "--task label is not known"),
        (["--task", "tag", "--data", "rows.jsonl", "--change", "blocks.0.residual=0"], "--change goes with --text"),
        (["--task", "tag", "--data", "rows.jsonl"], "--task tag needs a model with a token classification head, and"),
    ],
)
def test_the_command_says_what_is_missing(words: list[str], message: str, command_folder: Path) -> None:
    done = CliRunner().invoke(app, ["eval", str(model_folder("gpt2", "causal")[0]), *words])
    assert done.exit_code != 0
    assert message in " ".join((done.stderr + str(done.exception)).split())


def test_many_labels_are_shown_as_the_pairs_that_are_confused() -> None:
    scores = tuple(LabelScores(f"label {number}", 1.0, 1.0, 1.0, 2) for number in range(40))
    table = np.diag([2] * 40)
    table[3, 5] = 7
    view = ClassificationEvaluation(
        "m", "rows.csv", 87, 0, 0.1, 0.9, 0.9, scores, tuple(map(tuple, table.tolist())), (), 1.0
    )
    assert "confusion matrix" not in str(view)
    assert "7  label 3  label 5" in str(view)
    assert "confusion matrix" in {getattr(part, "text", "") for part in view.page(everything=True).parts}
    assert repr(view) == "ClassificationEvaluation(90.0% of 87 texts right, macro F1 0.900)"
