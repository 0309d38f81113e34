"""lm-evaluation-harness over our model and tokenizer: the same numbers as over transformers'."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import unavailable
from tests.ecosystem.models import TEXTS, load_pair, load_tokenizers

try:
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
except ImportError:
    lm_eval = None

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.sweep]
TASKS = {
    "tiny_choice": {
        "output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_choice": ["sat", "ran", "sang"],
        "doc_to_target": 1, "metric_list": [{"metric": "acc"}],
    },
    "tiny_perplexity": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "tiny_generation": {
        "output_type": "generate_until", "doc_to_text": "{{text}}", "doc_to_target": "{{text}}",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 6, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}  # fmt: skip


@pytest.fixture
def task_manager(tmp_path: Path) -> Any:
    """Tasks over a file on this machine."""
    if lm_eval is None:
        unavailable("lm-eval is not installed; it is in the extra `ecosystem`")
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS), "utf-8")
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}}}
    for name, task in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"task": name, **data, "test_split": "test", **task}), "utf-8")
    return TaskManager(include_path=str(tmp_path), include_defaults=False)


def test_results_are_equal(task_manager: Any, model_folder: Callable[[str, str], Path], tokenizer_folder: Path) -> None:
    """One text at a time: where texts are generated, the harness's stops are about a whole batch, and ours about a text."""
    results = []
    pairs = zip(load_pair(model_folder("llama", "causal"), "causal"), load_tokenizers(tokenizer_folder), strict=True)
    for model, tokenizer in pairs:
        harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, device="cpu")
        answer = lm_eval.simple_evaluate(harness, tasks=list(TASKS), task_manager=task_manager, bootstrap_iters=0)
        samples = {
            name: [[response for responses in row["resps"] for response in responses] for row in rows]
            for name, rows in answer["samples"].items()
        }
        results.append((answer["results"], samples))
    (theirs, their_samples), (ours, our_samples) = results
    assert ours.keys() == theirs.keys() == TASKS.keys()
    for name in TASKS:
        numbers = {key: value for key, value in theirs[name].items() if isinstance(value, float)}
        assert {key: ours[name][key] for key in numbers} == pytest.approx(numbers, rel=1e-4), name
    assert our_samples["tiny_generation"] == their_samples["tiny_generation"]
    for row, expected in zip(our_samples["tiny_choice"], their_samples["tiny_choice"], strict=True):
        assert [float(score) for score, _ in row] == pytest.approx([float(score) for score, _ in expected], abs=1e-3)
