"""A run as `--json` prints it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.runtime.run import Run


def run_data(run: Run, why: bool = False) -> dict[str, Any]:
    """A run as --json prints it."""
    from glassformer.decoding.settings import json_value
    from glassformer.runtime.run import logprob_data

    data: dict[str, Any] = {
        "model": run.model.name,
        "prompt": run.prompt,
        "prompt_ids": list(run.prompt_ids),
        "text": run.text,
        "ids": [step.id for step in run.steps],
        "finish": run.finish.value if run.finish else None,
        "stop": run.stop,
        "seed": run.seed,
        "settings": {
            name: {"value": json_value(value), "origin": where} for name, (value, where) in run.settings.in_force.items()
        },
        "remedy": run.remedy,
        "seconds_to_first": round(run.seconds_to_first, 4),
        "tokens_per_second": round(run.tokens_per_second, 2),
        "executor": asdict(run.model.executor.describe()),
    }
    if run.settings.logprobs is not None:
        data["logprobs"] = [logprob_data(step) for step in run.steps]
    if run.settings.prompt_logprobs is not None:
        data["prompt_logprobs"] = [logprob_data(step) for step in run.prompt_steps]
    if why:
        data["why"] = [run.why(number).to_dict() for number in range(len(run.steps))]
    return data
