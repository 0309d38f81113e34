"""trl's trainers on our models and tokenizer, as on transformers' own: the same losses and gradients, step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import trl

from tests.ecosystem.models import TEXTS, load_pair, load_tokenizers
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")
COMMON = {
    "per_device_train_batch_size": 2, "max_steps": 3, "logging_steps": 1, "learning_rate": 1e-2, "optim": "sgd",
    "report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False, "seed": 0, "save_strategy": "no",
}  # fmt: skip
HALVES = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in TEXTS]
MODELS = ("llama", "gpt2", "gemma2", "qwen3")


@pytest.fixture(autouse=True)
def _quiet_datasets() -> None:
    datasets.disable_progress_bars()
    datasets.disable_caching()


def sft(model: Any, tokenizer: Any, arguments: dict[str, Any]) -> Any:
    rows = datasets.Dataset.from_dict({"text": list(TEXTS) * 2})
    return trl.SFTTrainer(model, args=trl.SFTConfig(**arguments), train_dataset=rows, processing_class=tokenizer)


def dpo(model: Any, tokenizer: Any, arguments: dict[str, Any]) -> Any:
    names = {"prompt": [begin for begin, _ in HALVES], "chosen": [end for _, end in HALVES]}
    rows = datasets.Dataset.from_dict({**names, "rejected": [end for _, end in reversed(HALVES)]})
    return trl.DPOTrainer(model, args=trl.DPOConfig(**arguments), train_dataset=rows, processing_class=tokenizer)


def grpo(model: Any, tokenizer: Any, arguments: dict[str, Any]) -> Any:
    """Rewards by order alone, and two different texts in a group, or their gradients would cancel."""
    rows = datasets.Dataset.from_dict({"prompt": [begin for begin, _ in HALVES]})
    settings = {"num_generations": 2, "max_completion_length": 6, "top_k": 1, "beta": 0.1}
    generate = model.generate

    def best_tokens(**inputs: Any) -> torch.Tensor:
        """The best tokens, since the two libraries draw differently; and another one at the end of every other text."""
        ids: torch.Tensor = generate(**inputs)
        ids[1::2, -1] = 7
        return ids

    model.generate = best_tokens
    return trl.GRPOTrainer(
        model, args=trl.GRPOConfig(**arguments, **settings), train_dataset=rows, processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [float(number % 2) for number in range(len(completions))],
    )  # fmt: skip


def record(trainer: Any) -> list[float]:
    """The loss and the norm of the gradient at each step."""
    trainer.train()
    return [entry[name] for entry in trainer.state.log_history if "loss" in entry for name in ("loss", "grad_norm")]


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("make", [sft, dpo, grpo])
@pytest.mark.parametrize("family", mostly_swept(MODELS, "llama"))
def test_trl_trains_as_it_trains_transformers_own(
    family: str,
    make: Callable[..., Any],
    checkpointing: bool,
    model_folder: Callable[[str, str], Path],
    tokenizer_folder: Path,
    tmp_path: Path,
) -> None:
    models, tokenizers = load_pair(model_folder(family, "causal"), "causal"), load_tokenizers(tokenizer_folder)
    arguments = {**COMMON, "gradient_checkpointing": checkpointing, "output_dir": str(tmp_path)}
    runs = [record(make(*both, arguments)) for both in zip(models, tokenizers, strict=True)]
    assert len(runs[0]) == 6
    assert runs[1] == pytest.approx(runs[0], rel=1e-4, abs=1e-4)
