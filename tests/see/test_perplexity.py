"""Perplexity and its kin, against cross-entropy by torch and against executors whose scores are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.errors import InputError
from glassformer.model_files import open_model
from glassformer.see import evaluation as perplexity
from glassformer.see.evaluation import HELD_OUT, added_bos, likelihood
from tests.likelihoods import compare_likelihoods
from tests.parity.compare import load
from tests.quantize import models

pytestmark = pytest.mark.usefixtures("one_thread")


class TableRow:
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.unscored = 0

    @property
    def length(self) -> int:
        return len(self.seen)


class TableExecutor:
    """Scores each next token by a table; notes what it was fed."""

    def __init__(self, table: npt.NDArray[np.float32], context: int = 1000) -> None:
        self.table = table
        self.context = context
        self.rows: list[TableRow] = []
        self.chunks: list[int] = []
        self.closed = 0

    def open(self, source: Any = None) -> TableRow:
        self.rows.append(TableRow())
        return self.rows[-1]

    def run(self, feeds: Sequence[Feed]) -> list[TableScores]:
        (feed,) = feeds
        assert isinstance(feed.row, TableRow)
        feed.row.unscored += len(feed.ids) if feed.want is Want.NONE else 0
        feed.row.seen += feed.ids
        self.chunks.append(len(feed.ids))
        return [TableScores(self.table[list(feed.ids)])]

    def close(self, row: Any) -> None:
        self.closed += 1


class TableScores:
    sites: Mapping[str, Any] = {}

    def __init__(self, scores: npt.NDArray[np.float32]) -> None:
        self._scores = scores

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        return self._scores[index].copy()


UNIFORM = np.zeros((10, 10), np.float32)
SKEWED = np.random.default_rng(0).standard_normal((10, 10)).astype(np.float32)
IDS = np.random.default_rng(1).integers(0, 10, 100).tolist()


def test_uniform_scores_have_the_vocabulary_size_as_perplexity() -> None:
    found = likelihood(TableExecutor(UNIFORM), IDS)  # type: ignore[arg-type]
    assert found.tokens == 99
    assert found.perplexity == pytest.approx(10)
    assert found.bits == pytest.approx(99 * math.log2(10))


@pytest.mark.parametrize("bos", [None, 7])
def test_each_window_begins_anew(bos: int | None) -> None:
    """Each begins anew; its first token is scored only where a token stands before it."""
    executor, calls = TableExecutor(UNIFORM), list[tuple[int, int]]()
    found = likelihood(executor, IDS, bos=bos, window=41, progress=lambda *call: calls.append(call))  # type: ignore[arg-type]
    starts = [[] if bos is None else [bos]] * 3
    step = 41 - len(starts[0])
    assert [row.seen for row in executor.rows] == [
        (start + IDS[at : at + step])[:-1] for start, at in zip(starts, range(0, 100, step), strict=True)
    ]
    assert found.tokens == (97 if bos is None else 100)
    assert executor.closed == 3
    assert max(executor.chunks) <= perplexity.CHUNK
    assert calls[-1] == (found.tokens, 100)


def test_a_window_is_no_wider_than_the_context() -> None:
    executor = TableExecutor(UNIFORM, context=8)
    likelihood(executor, IDS)  # type: ignore[arg-type]
    assert max(row.length for row in executor.rows) == 7  # the last one is only predicted


def test_the_chunk_size_changes_no_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = likelihood(TableExecutor(SKEWED), IDS)  # type: ignore[arg-type]
    monkeypatch.setattr(perplexity, "CHUNK", 7)
    assert likelihood(TableExecutor(SKEWED), IDS).bits == pytest.approx(wanted.bits)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ids", "bos"), [([], None), ([3], None), ([], 1)])
def test_a_text_of_one_token_is_refused(ids: list[int], bos: int | None) -> None:
    with pytest.raises(InputError, match="two tokens"):
        likelihood(TableExecutor(UNIFORM), ids, bos=bos)  # type: ignore[arg-type]


class TestCompareLikelihoods:
    def test_an_executor_with_itself(self) -> None:
        same = TableExecutor(SKEWED)
        found = compare_likelihoods(same, same, IDS, window=9)  # type: ignore[arg-type]
        assert found.first == found.second
        assert found.divergence == pytest.approx(0, abs=1e-7)
        assert found.agreement == 1.0

    def test_two_executors_by_hand(self) -> None:
        """By hand, in double precision."""
        other = SKEWED + np.random.default_rng(2).standard_normal((10, 10)).astype(np.float32)
        found = compare_likelihoods(TableExecutor(SKEWED), TableExecutor(other, context=50), IDS)  # type: ignore[arg-type]
        logs = [torch.from_numpy(table).double().log_softmax(-1).numpy() for table in (SKEWED, other)]
        places = [(IDS[at], IDS[at + 1]) for start in (0, 50) for at in range(start, start + 49)]
        p, q = (np.array([one[before] for before, _ in places]) for one in logs)
        assert found.first.tokens == len(places) == 98
        for side, own in zip((found.first, found.second), logs, strict=True):
            assert side.bits == pytest.approx(-sum(own[place] for place in places) / math.log(2), rel=1e-5)
        assert found.divergence == pytest.approx((np.exp(p) * (p - q)).sum(1).mean() / math.log(2), rel=1e-5)
        assert found.agreement == pytest.approx((p.argmax(1) == q.argmax(1)).mean())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    models.write(path, "llama")
    return path


@torch.no_grad()
def test_perplexity_is_torchs_cross_entropy(folder: Path) -> None:
    model = load(folder, "causal")
    ids = torch.randint(3, 400, (1, 90), generator=torch.Generator().manual_seed(0))
    logits = model(input_ids=ids).logits[0, :-1]
    wanted = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
    found = likelihood(PlainExecutor(model), ids[0].tolist())
    assert found.tokens == 89
    assert found.perplexity == pytest.approx(float(wanted.exp()), rel=1e-4)


def test_added_bos(folder: Path, qwen3_tokenizer: Path) -> None:
    assert added_bos(open_model(folder).tokenizer) == 1
    assert added_bos(open_model(qwen3_tokenizer).tokenizer) is None


def test_the_held_out_text() -> None:
    text = HELD_OUT.read_text("utf-8")
    assert text.startswith("CHAPTER 86. The Tail.")
    assert 9_000 < len(text.encode()) < 12_000


@pytest.mark.parametrize("bos", [None, 7])
@pytest.mark.parametrize(("window", "stride"), [(41, 10), (41, 39), (200, 5), (7, 1)])
def test_windows_with_a_stride_score_each_token_once_with_context(bos: int | None, window: int, stride: int) -> None:
    executor = TableExecutor(SKEWED)
    strided = likelihood(executor, IDS, bos=bos, window=window, stride=stride)  # type: ignore[arg-type]
    whole = likelihood(TableExecutor(SKEWED), IDS, bos=bos, window=1000)  # type: ignore[arg-type]
    assert strided.tokens == whole.tokens
    assert strided.bits == pytest.approx(whole.bits)  # a table looks at the token before alone
    later = executor.rows[1:]
    assert all(row.unscored >= window - stride - 2 for row in later)


@pytest.mark.parametrize("stride", [0, 42])
def test_a_stride_that_does_not_fit_is_refused(stride: int) -> None:
    with pytest.raises(InputError, match="window of 41"):
        likelihood(TableExecutor(UNIFORM), IDS, window=41, stride=stride)  # type: ignore[arg-type]
