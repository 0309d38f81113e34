"""Comparing executors: what agrees, what differs, and where it begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.engine.protocol import CACHES, Feed
from glassformer.ground.candidates import kl_divergence, log_softmax
from glassformer.ground.errors import InputError
from glassformer.page.terminal import plain_text
from glassformer.see.verification import (
    EngineVerdict,
    SiteDifference,
    Verdict,
    difference,
    tolerance,
    verdicts_table,
    verify,
    verify_all,
)
from tests.engine.executors import Subject
from tests.site_names import usual_sites

pytestmark = pytest.mark.usefixtures("one_thread")

Tiny = Callable[..., Subject]
PROMPTS = ([4, 8, 15], [16], [23, 42, 7, 9, 30])


class Spoilt:
    """An executor that is right but for one site, and what it was fed."""

    def __init__(self, inner: Any, site: str | None = None, spoil: Callable[[Any], Any] = lambda value: value * 1.5) -> None:
        self.inner, self.site, self.spoil = inner, site, spoil
        self.fed: list[list[list[int]]] = []
        self.opened: list[Any] = []
        self.closed: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(self, *source: Any) -> Any:
        self.opened.append(self.inner.open(*source))
        return self.opened[-1]

    def close(self, row: Any) -> None:
        self.closed.append(row)
        self.inner.close(row)

    def run(self, feeds: Sequence[Feed]) -> list[Any]:
        self.fed.append([list(feed.ids) for feed in feeds])
        found = list(self.inner.run(feeds))
        for scores in found:
            if self.site is not None:
                scores.sites = self.spoilt(scores.sites)
        return found

    def spoilt(self, sites: Mapping[str, Any]) -> dict[str, Any]:
        changed = dict(sites)
        value = self.spoil(changed.pop(self.site)) if self.site in changed else None
        return changed if value is None else {**changed, str(self.site): value}


class TestVerify:
    def test_an_executor_and_itself(self, tiny: Tiny) -> None:
        subject = tiny("qwen3")
        found = verify(subject.plain(), subject.plain(), PROMPTS, usual_sites(3))
        assert [one.site for one in found.sites] == list(usual_sites(3).names)
        assert found.worst.error == found.worst.largest == found.divergence == found.farthest == 0
        assert found.agreement == 1
        assert found.agrees(0)

    def test_what_is_fed(self, tiny: Tiny) -> None:
        """Ragged prompts, then the best token of each row, then that beside chunks; and rows are given back."""
        subject = tiny("qwen3")
        one, other = Spoilt(subject.plain()), Spoilt(subject.cpu())
        found = verify(one, other, PROMPTS, usual_sites(3))
        assert one.fed == other.fed
        first, second, third = one.fed
        assert first == [list(prompt) for prompt in PROMPTS]
        assert [len(ids) for ids in second] == [1, 1, 1]
        assert [len(ids) for ids in third] == [4, 1, 6]
        assert third[0][1:] == first[0]
        assert found.positions == sum(len(ids) for step in one.fed for ids in step)
        for executor in (one, other):
            assert executor.closed == executor.opened
            assert len(executor.opened) == 3

    @pytest.mark.parametrize("site", ["embedding", "blocks.1.attention.pattern", "blocks.2.mlp.hidden", "scores"])
    def test_what_differs_is_named(self, site: str, tiny: Tiny) -> None:
        subject = tiny("qwen3")
        found = verify(subject.plain(), Spoilt(subject.cpu(), site), PROMPTS, usual_sites(3))
        assert found.worst.site == site
        assert found.worst.error == pytest.approx(0.5, rel=1e-3)
        assert found.worst.largest == pytest.approx(0.5, rel=1e-3)
        assert not found.agrees(0.4)
        assert sorted(one.error for one in found.sites)[-2] < 1e-5

    @pytest.mark.parametrize(
        "spoil",
        [lambda _: None, lambda value: value[:, :-1], lambda value: value * math.nan, lambda value: value + math.inf],
    )
    def test_what_is_missing_or_no_number(self, spoil: Callable[[Any], Any], tiny: Tiny) -> None:
        subject = tiny("llama")
        found = verify(subject.plain(), Spoilt(subject.cpu(), "blocks.0.residual", spoil), PROMPTS, usual_sites(3))
        assert found.worst == SiteDifference("blocks.0.residual", math.inf, math.inf)
        assert not found.agrees(1e9)

    def test_several_at_once(self, tiny: Tiny) -> None:
        subject = tiny("llama")
        one = Spoilt(subject.plain())
        right, wrong = verify_all(one, [subject.cpu(), Spoilt(subject.cpu(), "final")], PROMPTS, usual_sites(3))
        assert right.agrees(1e-5)
        assert wrong.worst.site == "final"
        assert len(one.fed) == 3

    def test_encoders(self, tiny: Tiny) -> None:
        subject = tiny("t5")
        found = verify(subject.plain(), subject.cpu(), PROMPTS, usual_sites(3, 2), [[5, 6], [7], [8, 9, 10, 11]])
        assert [one.site for one in found.sites] == list(usual_sites(3, 2).names)
        assert found.agrees(1e-5)

    def test_a_context_that_is_full(self, tiny: Tiny) -> None:
        subject = tiny("bart")  # 64 tokens
        one = Spoilt(subject.plain())
        full = [[2] * 64, [2] * 63, [2] * 60]
        assert verify(one, subject.cpu(), full, usual_sites(3, 2), [[5]] * 3).agrees(1e-5)
        assert [[len(ids) for ids in step] for step in one.fed] == [[64, 63, 60], [1, 1], [3]]
        one = Spoilt(subject.plain())
        verify(one, subject.cpu(), full[:1], usual_sites(3, 2), [[5]])
        assert len(one.fed) == 1

    @pytest.mark.parametrize("prompts", [[], [[]], [[4], []]])
    def test_nothing_to_compare_on(self, prompts: Any, tiny: Tiny) -> None:
        with pytest.raises(InputError, match="nothing to compare"):
            verify(tiny("llama").plain(), tiny("llama").cpu(), prompts, usual_sites(3))

    def test_rows_are_given_back_when_something_fails(self, tiny: Tiny) -> None:
        one = Spoilt(tiny("llama").plain())
        with pytest.raises(InputError, match="outside the vocabulary"):
            verify(one, tiny("llama").cpu(), [[4, 999]], usual_sites(3))
        assert one.closed == one.opened != []


class TestMeasures:
    def test_difference_is_relative(self) -> None:
        value = torch.tensor([[3.0, 4.0]], dtype=torch.bfloat16)
        found = difference("final", {"final": value}, {"final": np.array([[3.0, 5.0]])})
        assert found.error == pytest.approx(1 / 5)
        assert found.largest == pytest.approx(1 / 4)
        assert difference("final", {"final": value * 0}, {"final": value * 0}).error == 0
        assert difference("final", {"final": value * 0}, {"final": value}).error == math.inf

    def test_kl_divergence(self) -> None:
        even, skewed = (log_softmax(np.log(np.array(shares, np.float32))) for shares in ([0.5, 0.5], [0.9, 0.1]))
        assert kl_divergence(even, log_softmax(np.float32(even + 3))) == pytest.approx(0, abs=1e-6)
        expected = 0.5 * math.log2(0.5 / 0.9) + 0.5 * math.log2(0.5 / 0.1)  # bits
        assert kl_divergence(even, skewed) == pytest.approx(expected, rel=1e-5)
        assert kl_divergence(even, skewed * math.nan) == math.inf

    def test_tolerances(self) -> None:
        assert tolerance(packed=False, cache="f32") == 1e-4
        assert [tolerance(packed=True, cache=cache) for cache in CACHES] == [1e-2, 1e-2, 8e-2, 4e-1]
        assert [tolerance(packed, "f32", "q8") for packed in (False, True)] == [1e-4, 5e-1]


FOUND = Verdict(
    (
        SiteDifference("embedding", 0.0, 0.0),
        SiteDifference("blocks.0.residual", 1e-4, 2e-4),
        SiteDifference("blocks.13.residual", 0.0024, 0.01),
        SiteDifference("scores", math.inf, math.inf),
    ),
    66, 0.985, 7.8e-4, 2e-3,
)  # fmt: skip


class TestPictures:
    def test_a_verdict(self) -> None:
        shown = str(FOUND)
        assert "66 positions: the same best token at 98.5%, divergence 7.8e-4 bits, worst site scores (∞)" in " ".join(
            shown.split()
        )
        lines = [line.split() for line in shown.splitlines()]
        assert ["embedding", "0", "0"] in lines
        assert ["residual", "block", "13", "2.4e-3", "1e-2"] in lines
        assert max(map(len, plain_text(FOUND, 80).splitlines())) <= 80

    def test_several_fit_eighty_columns(self) -> None:
        good = Verdict(FOUND.sites[:3], 66, 1.0, 1e-6, 1e-5)
        rows = [EngineVerdict("avx512vnni", "bf16", "q14", good, 1e-2), EngineVerdict("portable", "f32", "q8", FOUND, 1e-4)]
        lines = plain_text(verdicts_table(rows), 80).splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[3].split() == [
            "avx512vnni", "bf16", "q14", "100.0%", "1e-6", "13", "residual", "2.4e-3", "1e-2", "agrees",
        ]  # fmt: skip
        assert lines[4].split() == ["portable", "f32", "q8", "98.5%", "7.8e-4", "scores", "∞", "1e-4", "differs"]

    def test_as_data(self) -> None:
        found = EngineVerdict("portable", "f32", "q8", FOUND, 1e-4).to_dict()
        assert found["worst"] == {"site": "scores", "error": None, "largest": None}  # JSON has no infinity
        assert (found["level"], found["activations"]) == ("portable", "q8")
        assert (found["agrees"], found["positions"]) == (False, 66)
        assert found["sites"][1] == {"site": "blocks.0.residual", "error": 1e-4, "largest": 2e-4}
