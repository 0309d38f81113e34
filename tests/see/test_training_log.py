"""The metrics of a training: what is read of them, also while they grow, and whatever stands in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer.checkpoint.training_layout import METRICS
from glassformer.ground.errors import InputError
from glassformer.see import training_curves as training_log
from glassformer.see.training_curves import Curve, TrainingLog, read_training
from tests.training.folders import evaluation_line, sample_line, step_line, training_folder, write_lines


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9, 16, 17, 80])
@pytest.mark.parametrize("most", [2, 4, 6])
@pytest.mark.every_combination
def test_a_curve_has_a_bounded_number_of_points_each_the_mean_of_its_steps(count: int, most: int) -> None:
    values = [float(number * number % 7) for number in range(count)]
    curve = Curve(most)
    for step, value in enumerate(values, 1):
        curve.add(step, value)
    assert len(curve.points) <= most
    assert curve.points[-1].step == len(values)
    start = 0
    for point in curve.points:
        steps = values[start : point.step]
        assert point.value == pytest.approx(sum(steps) / len(steps))
        assert start == 0 or len(steps) == curve.size or point.step == len(values)
        start = point.step


def test_the_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    lines = [
        step_line(1, 5.0), sample_line(1, "the"), step_line(2, 4.5), evaluation_line(2, 4.75), step_line(3, 4.0),
        {"kind": "checkpoint", "step": 3, "path": "step-00000003"},
    ]  # fmt: skip
    view = read_training(training_folder(tmp_path / "book", lines, ("gpt2", "gpt2"), steps=30))
    assert [(point.step, point.value) for point in view.loss] == [(1, 5.0), (2, 4.5), (3, 4.0)]
    assert [point.value for point in view.learning_rate] == [0.001, 0.002, 0.003]
    assert [point.value for point in view.gradient_norm] == pytest.approx([2.0, 1.5, 1 + 1 / 3])
    assert [(at.step, at.loss, dict(at.measures)) for at in view.held_out] == [(2, 4.75, {"perplexity": 4.0})]
    assert [(sample.step, sample.text) for sample in view.samples] == [(1, "the")]
    assert (view.name, view.step, view.steps, view.tokens, view.tokens_per_second) == ("book", 3, 30, 300, 200.0)
    assert view.snapshots == (0, 10)


def test_a_file_that_grows_is_read_further_and_a_new_one_from_its_start(tmp_path: Path) -> None:
    log = TrainingLog(training_folder(tmp_path, [step_line(1, 5.0), step_line(2, 4.0)]))
    assert log.read().step == 2
    path = tmp_path / METRICS
    text = json.dumps(step_line(3, 3.0))
    with path.open("a") as file:
        file.write(text[:20])
    assert log.read().step == 2  # its last line is not complete
    with path.open("a") as file:
        file.write(text[20:] + "\n")
    assert [point.value for point in log.read().loss] == [5.0, 4.0, 3.0]
    other = tmp_path / "other"
    write_lines(other, [step_line(step, 1.0) for step in range(1, 9)])
    other.replace(path)  # as long as before, and longer
    assert [point.value for point in log.read().loss] == [1.0] * 8
    path.write_text(json.dumps(step_line(1, 2.0)) + "\n")  # the same file, shorter
    assert [point.value for point in log.read().loss] == [2.0]


def test_what_is_broken_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_log, "MAX_LINE", 1000)
    broken = [
        '{"kind": "step", "st', "[1, 2]", "7", "[" * 5000, "x" * 5000, '{"kind": "sample", "step": 1}',
        *(json.dumps(step_line(2, loss)) for loss in (float("nan"), 10**400)),
        *(json.dumps({**step_line(3, 1.0), **change}) for change in ({"step": True}, {"step": -1}, {"loss": "low"})),
    ]  # fmt: skip
    view = read_training(training_folder(tmp_path, [step_line(1, 5.0), *broken, step_line(7, 4.0)]))
    assert [point.step for point in view.loss] == [1, 7]
    assert (view.steps, view.samples, view.held_out) == (None, (), ())


@pytest.mark.parametrize("about", ["", "[]", "{}", '{"steps": "many"}', '{"steps": -3}', "[" * 9999], ids=range(6))
def test_without_a_readable_training_file_the_number_of_steps_is_not_known(tmp_path: Path, about: str) -> None:
    training_folder(tmp_path, [step_line(1, 5.0)])
    (tmp_path / "training.json").write_text(about)
    assert read_training(tmp_path).steps is None


@pytest.mark.parametrize("lines", [[], ["no JSON"], [sample_line(1, "a")]], ids=["empty", "broken", "no-steps"])
def test_a_file_without_a_step_is_refused_in_a_sentence(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(InputError, match="metrics.jsonl"):
        read_training(training_folder(tmp_path, lines))


def test_a_folder_without_a_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="metrics.jsonl"):
        read_training(tmp_path)


def test_of_many_samples_and_long_ones_a_bounded_part_is_kept(tmp_path: Path) -> None:
    lines = [step_line(1, 5.0), *(sample_line(step, "a" * 3000) for step in range(1, 100))]
    view = read_training(training_folder(tmp_path, lines))
    assert [sample.step for sample in view.samples] == list(range(60, 100))
    assert {len(sample.text) for sample in view.samples} == {2000}
