"""Parameters of the sweeps: marked where sweeps may be run, and not made where they are left out."""

from __future__ import annotations

import pytest

from tests import sweeps


@pytest.mark.parametrize("marks", ["", "sweep", "not slow"])
def test_parameters_of_sweeps_are_marked(marks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "_wanted", False)
    sweeps.choose(marks)
    (one,) = sweeps.swept([(1, "a")])
    assert (one.values, one.marks) == (((1, "a"),), (pytest.mark.sweep,))
    quick, other = sweeps.mostly_swept([(1, "a"), (2, "b")], (1, "a"))
    assert quick == (1, "a")
    assert sweeps.examples(5, 20) == 20
    assert (other.values, other.marks) == ((2, "b"), (pytest.mark.sweep,))


def test_a_run_without_sweeps_makes_only_the_quick_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "_wanted", True)
    sweeps.choose("not sweep")
    assert sweeps.swept([1, 2]) == []
    assert sweeps.mostly_swept([1, 2, 3], 3, 1) == [1, 3]
    assert sweeps.examples(5, 20) == 5
