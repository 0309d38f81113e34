"""The executor of docs/adding-an-executor.md, as it stands there: through the tests of the protocol, and verified."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.executors import Subject
from tests.engine.test_protocol import (  # noqa: F401  collected here once more, with this file's subject
    TestBadInput,
    checkpoint,
    test_random_moves_score_like_an_uncached_pass,
    test_scores_outlive_the_next_pass,
    test_several_threads_share_an_executor,
    test_token_tree_sees_only_ancestors,
    test_top_matches_softmax_of_all_scores,
    test_want_none_last_and_all,
)
from tests.patience import patience

pytestmark = pytest.mark.usefixtures("one_thread")
PAGE = Path(__file__).parents[2] / "docs" / "adding-an-executor.md"


def code(label: str) -> str:
    (block,) = re.findall(rf"```python {label}\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    return str(block)


class RecomputeSubject(Subject):
    def executor(self) -> Any:
        names: dict[str, Any] = {"__name__": __name__}
        exec(compile(code("file=recompute.py"), str(PAGE), "exec"), names)
        return names["RecomputeExecutor"](self.model)


@pytest.fixture
def subject(checkpoint: Subject) -> Subject:  # noqa: F811
    return RecomputeSubject(checkpoint.folder)


def test_recompute_executor_is_verified_at_every_site(subject: Subject) -> None:
    verdict = subject.verdict(subject.executor())
    assert len(verdict.sites) == len(subject.blueprint.sites)
    assert verdict.agrees(1e-4)


def test_unembed_matches_the_plain_executor(subject: Subject) -> None:
    import numpy as np

    states = np.random.default_rng(1).standard_normal((3, subject.config.hidden_size)).astype(np.float32)
    np.testing.assert_allclose(subject.executor().unembed(states), subject.plain().unembed(states), atol=1e-5)


def test_the_page_s_example_runs() -> None:
    program = code("file=recompute.py") + code("after=recompute")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("sites agree\n")
