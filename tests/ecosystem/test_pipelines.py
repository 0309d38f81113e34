"""transformers' own pipelines over our models and tokenizer, as over its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.ecosystem.models import TEXTS, load_pair, load_tokenizers

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = [
    ("text-generation", "llama", "causal", TEXTS[1], {"max_new_tokens": 4, "do_sample": False}),
    ("text-generation", "gpt2", "causal", list(TEXTS), {"max_new_tokens": 4, "do_sample": False, "batch_size": 2}),
    ("text-classification", "bert", "sequence", list(TEXTS), {}),
    ("token-classification", "distilbert", "token", TEXTS[2], {}),
    ("fill-mask", "bert", "masked", "the [MASK] sat", {}),
    ("feature-extraction", "bert", "masked", TEXTS[0], {}),
]


@pytest.mark.parametrize(
    ("task", "family", "head", "text", "options"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES]
)
def test_a_pipeline_of_transformers_answers_alike(
    task: str, family: str, head: str, text: Any, options: dict[str, Any],
    model_folder: Callable[[str, str], Path], tokenizer_folder: Path,
) -> None:  # fmt: skip
    models, tokenizers = load_pair(model_folder(family, head), head), load_tokenizers(tokenizer_folder)
    answers = [
        transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")(text, **options)
        for model, tokenizer in zip(models, tokenizers, strict=True)
    ]
    assert flat(answers[1]) == pytest.approx(flat(answers[0]), abs=1e-4)


def flat(answer: Any) -> list[Any]:
    """The numbers and texts of nested lists and dictionaries, in order."""
    if isinstance(answer, (list, tuple, dict)):
        return [leaf for part in (answer.values() if isinstance(answer, dict) else answer) for leaf in flat(part)]
    return [answer]
