"""Identities that hold in every family and on both executors, with post-norms, soft caps, sinks, biases and experts.

Each is exact in real numbers. What is allowed is what float32 loses in a sum, relative to the largest term.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from glassformer.observe.reading import Reading
from glassformer.views.attribution import Attribution, Contribution
from tests.observe.models import EXECUTORS, both, encoder
from tests.parity.configs import DECODERS, ENCODERS, PAIRS

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.every_family]

ROUNDING = 1e-4  # of the largest term


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=[*DECODERS, *PAIRS])
def reading(request: pytest.FixtureRequest, executor: str) -> Reading:
    found: Reading = both(request.param, executor).reading()
    return found


def near(value: float, *terms: float) -> Any:
    return pytest.approx(value, abs=ROUNDING * max(1.0, *map(abs, terms)))


def by_part(parts: tuple[Contribution, ...]) -> dict[tuple[str, int | None], float]:
    """The sum of what each part of each block added, its biases included."""
    sums: dict[tuple[str, int | None], float] = defaultdict(float)
    for part in parts:
        sums[part.name.removesuffix(" bias"), part.block] += part.value
    return sums


def test_the_parts_are_the_score_and_heads_with_biases_are_attentions_part(reading: Reading) -> None:
    for view in (reading.attribution(), reading.attribution(-2, 3, 5), reading.attribution(1, centred=True)):
        terms = [part.value for part in (*view.contributions, *view.heads)]
        parts, heads = by_part(view.contributions), by_part(view.heads)
        assert sum(part.value for part in view.contributions) == near(view.score, *terms)
        assert parts["rounding", None] == near(0.0, *terms)
        assert {part for part in parts if part[0] in ("attention", "cross")} == set(heads)
        for part, value in heads.items():
            assert value == near(parts[part], *terms)


def head_share(view: Attribution, layer: int, head: int) -> float:
    (share,) = (part.value for part in view.heads if (part.name, part.block, part.head) == ("attention", layer, head))
    return share


def test_what_a_head_wrote_is_its_share_in_the_attribution(reading: Reading) -> None:
    for layer in range(reading.model.blueprint.blocks):
        view = reading.circuit(layer, 1, best=2)
        for place in (view.positions[1], view.positions[-1]):
            for token in place.writes:
                found = reading.attribution(place.position, token.id)
                assert token.score == near(head_share(found, layer, 1), *(part.value for part in found.heads))
