"""Rows of tasks, and every way in which they can be bad: each is refused by its place, before any training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glassformer.ground.errors import InputError
from glassformer.jobs import input_rows
from glassformer.training import rows as row_file
from glassformer.training.labels import Labels, collect_labels
from glassformer.training.rows import TEXT, read_rows
from glassformer.training.sharding import Ranks
from glassformer.training.task_training import TaskTraining
from glassformer.training.training_folder import TrainingFolder
from tests.training.small_presets import small_preset
from tests.training.task_data import REVIEWS, write_rows

pytestmark = pytest.mark.usefixtures("one_thread")
__all__ = ["small_preset"]
GOOD = {
    "classify": {"text": "fine", "label": "good"},
    "tag": {"tokens": ["Ada"], "tags": ["B-PER"]},
    "seq2seq": {"source": "a", "target": "b"},
}


def prepare(folder: Path, task: str, data: str, **changes: Any) -> Any:
    return TaskTraining(task=task, data=data, **changes).prepare(TrainingFolder(folder / "out"), Ranks())


def span(start: Any, end: Any, label: Any = "PER") -> dict[str, Any]:
    return {"text": "Ada  there", "spans": [{"start": start, "end": end, "label": label}]}


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("classify", {"text": "x"}, r"lacks 'label' \(also: labels, class, .*\); it has 'text'"),
        ("classify", {"label": "good"}, "lacks 'text'"),
        ("classify", {"text": "", "label": "good"}, "'text' is ''; it must be a text that is not empty"),
        ("classify", {"text": 3, "label": "good"}, "'text' is 3; it must be a text"),
        ("classify", {"text": "x\ud800", "label": "good"}, "'text' holds a lone surrogate"),
        ("classify", {"text": "x", "label": "a\ud800"}, "the label holds a lone surrogate"),
        ("classify", {"text": "x", "label": None}, "the label is None; it must be a text or a whole number"),
        ("classify", {"text": "x", "label": 0.5}, "the label is 0.5; it must be a text or a whole number"),
        ("classify", {"text": "x", "label": " "}, "the label is ' '; it must be"),
        ("classify", {"text": "x", "text_pair": "y", "label": "bad"}, "has a second text, and the first row none"),
        ("tag", {"tokens": ["a", "b"], "tags": ["O"]}, "has 2 tokens and 1 tags. Give each token one"),
        ("tag", {"tokens": [], "tags": []}, r"'tokens' is \[\]; it must be a list that is not empty"),
        ("tag", {"tokens": {"a": 1}, "tags": ["O"]}, "'tokens' is .*; it must be a list"),
        ("tag", {"tokens": ["a", " "], "tags": ["O", "O"]}, "token 1 is ' '; it must be a text that is not empty"),
        ("tag", {"tokens": ["a"], "tags": [None]}, "the label is None"),
        ("tag", {"tokens": ["a"]}, "lacks 'tags'"),
        ("tag", {"text": "Ada", "spans": "PER"}, "'spans' is 'PER'; it must be a list"),
        ("tag", {"text": "Ada", "spans": [{"start": 0}]}, "a span is .*; it must have 'start', 'end' and 'label'"),
        ("tag", span(0, 99), "a span goes from 0 to 99; it must hold words of the text, which has 10 characters"),
        ("tag", span(3, 5), "a span goes from 3 to 5; it must hold words"),
        ("tag", span(0.0, 3), "a span goes from 0.0 to 3"),
        ("tag", span(0, 3, ""), "the label is ''"),
        (
            "tag",
            {"text": "Ada", "spans": [{"start": 0, "end": 3, "label": "A"}, {"start": 2, "end": 3, "label": "B"}]},
            "two spans overlap at character 2. A word can have one tag",
        ),
        ("seq2seq", {"source": "a"}, "lacks 'target'"),
        ("seq2seq", {"source": "a", "target": " "}, "'target' is ' '; it must be a text"),
        (
            "seq2seq",
            {"source": "a b c d " * 40, "target": "x"},
            "its source has .* tokens, more than 24. Allow more by length",
        ),
        ("seq2seq", {"source": "x", "target": "a b c d " * 40}, "its target has .* tokens, more than 24"),
    ],
)
def test_a_bad_row_is_refused_by_its_place(
    task: str, row: dict[str, Any], message: str, small_preset: Any, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (GOOD[task], row)))
    with pytest.raises(InputError, match=f"^rows.jsonl, row 2: {message}"):
        prepare(tmp_path, task, str(path))
    assert not (tmp_path / "out" / "training.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "holds no rows. Give a file with examples"),
        ("a.csv", b"", "holds no rows"),
        ("a.csv", b"text,label\n", "holds no rows"),
        ("a.csv", b"I like it,good\nI do not,bad\n", "line 1: names no column 'text' .*, but 'I like it', 'good'. Put"),
        ("a.csv", b"text,sentiment\nfine,good\n", "line 1: names no column 'label'"),
        ("a.csv", b"text,label,label\nfine,good,good\n", "line 1: names the column 'label' twice. Rename one"),
        ("a.csv", b"text,label\nfine\n", "line 2: has another number of fields"),
        ("a.csv", b"text,label\nfine,good\ncaf\xe9,bad\n", "line 3: not UTF-8 text .* Convert the file first"),
        ("a.jsonl", b'{"text": "caf\xe9", "label": "bad"}', "line 1: not UTF-8 text"),
        ("a.jsonl", b'{"text": "x", "label": "bad"}\n[1, 2]', r"row 2: is \[1, 2\]; it must be an object"),
        ("a.jsonl", b'{"text": "x", "label": "bad"}\n{"text"', "line 2: not valid JSON"),
        ("a.jsonl", b'{"text": "x", "label": "bad"}\n' * 3, "every row has the label 'bad'. Give rows of at least two"),
        ("a.txt", b"x", "rows are read from .jsonl, .ndjson, .csv, .tsv"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name}.*{message}"):
        prepare(tmp_path, "classify", str(tmp_path / name))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_line_without_end_is_not_read_into_memory(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a line of a gigabyte, which takes no room on the disk, no more is read than may be."""
    import tracemalloc

    limit = 1 << 16
    monkeypatch.setattr(row_file, "MAX_LINE", limit)
    monkeypatch.setattr(input_rows, "MAX_LINE", limit)
    path = tmp_path / f"long{suffix}"
    with path.open("wb") as file:
        file.write(b"text,label\n" if suffix == ".csv" else b'{"text": "x", "label": 1}\n')
        file.truncate(1 << 30 if suffix == ".csv" else 1 << 26)  # JSON lines are read to their end, to go on behind it
    tracemalloc.start()
    with pytest.raises(InputError, match=f"long{suffix}, line 2: longer than 65,536 bytes. Split it"):
        read_rows(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20


def test_test_data_may_have_no_other_labels(small_preset: Any, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", REVIEWS)
    other = write_rows(tmp_path / "test.jsonl", [REVIEWS[0], {"text": "x", "label": "goood"}])
    with pytest.raises(
        InputError, match="test.jsonl, row 2: the label 'goood' is not known. Did you mean 'good'. Known: bad, good"
    ):
        prepare(tmp_path, "classify", data, test_data=other)
    number = write_rows(tmp_path / "test.jsonl", [{"text": "x", "label": 1}, {"text": "x", "label": 2}])
    with pytest.raises(InputError, match="test.jsonl, row 2: the label 2 is out of range; there are 2, counted from 0"):
        prepare(tmp_path, "classify", data, test_data=number)


def test_rows_that_are_all_held_out_leave_nothing(small_preset: Any, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", REVIEWS)
    with pytest.raises(InputError, match="rows.jsonl: all of its rows are held out. Give more, or a smaller held_out"):
        prepare(tmp_path, "classify", data, held_out=0.9999)


def test_a_second_try_has_a_tokenizer_of_its_own(small_preset: Any, tmp_path: Path) -> None:
    """One that is left by a training that never began may be of other texts."""
    bad = write_rows(tmp_path / "rows.jsonl", [{"source": "zzz " * 60, "target": "x"}] * 2)
    with pytest.raises(InputError, match="more than 24"):
        prepare(tmp_path, "seq2seq", bad)
    good = write_rows(tmp_path / "rows.jsonl", [{"source": "abab", "target": "baba"}] * 3)
    training = prepare(tmp_path, "seq2seq", good, held_out=0.0, vocabulary=400)
    assert "abab" in training.parts.tokenizer.get_vocab()


def test_labels_are_texts_or_numbers() -> None:
    def collected(*values: Any, **more: Any) -> Labels:
        return collect_labels(((value, f"row {number}") for number, value in enumerate(values)), "rows", **more)

    assert collected("b", "a", "b").names == ("a", "b")
    assert collected(10, 9, "1").names == ("1", "9", "10")  # by their size
    assert collected(True, False).names == ("false", "true")
    assert collected("b", "a", known=("b", "c", "a")).names == ("b", "c", "a")
    named = collected("spam", "ham")
    assert [named.index(value, "row") for value in ("ham", "spam", 0, "1")] == [0, 1, 0, 1]


def test_csv_may_have_tokens_and_tags_as_words(tmp_path: Path) -> None:
    from glassformer.training.labels import read_tagged_text

    (tmp_path / "rows.tsv").write_text("tokens\ttags\nAda lived\tB-PER O\n")
    (row,) = read_rows(tmp_path / "rows.tsv")
    tagged = read_tagged_text(row)
    assert (tagged.text, list(tagged.tags)) == ("Ada lived", ["B-PER", "O"])
    (tmp_path / "rows.csv").write_text('text,label\n"two\nlines, ""quoted""",x\n')
    (row,) = read_rows(tmp_path / "rows.csv")
    assert row.text(TEXT) == 'two\nlines, "quoted"'
