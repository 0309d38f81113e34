"""Whether values are of the types that annotations declare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from glassformer.ground.typecheck import as_python_number, matches_type


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ([1, 2, 3], Sequence[int], True),
        ([1, True], Sequence[int], False),
        ([1, "2"], Sequence[int], False),
        ([1, 2.5], Sequence[float], True),
        ([True], Sequence[float], False),
        (("a", "b"), tuple[str, ...], True),
        ("ab", Sequence[str], False),
        ([1, None], list[int | None], True),
        ([[1], ["2"]], list[list[int]], False),
        ([], list[int], True),
    ],
)
def test_every_item_of_a_list_is_checked(value: Any, hint: Any, expected: bool) -> None:
    assert matches_type(value, hint) is expected


def test_numpy_numbers_become_pythons_in_mixed_lists_too() -> None:
    numbers = as_python_number([1, np.int64(2), np.float32(0.5)])
    assert numbers == [1, 2, 0.5]
    assert list(map(type, numbers)) == [int, int, float]
