"""One process of two trainings over several, with copies and with shards: `torchrun -m tests.training.distributed OUT`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from glassformer.training.events import Evaluated, StepDone
from glassformer.training.sharding import Ranks, joined_ranks, whole_weights
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder
from tests.training.models import SETTINGS, language_model, tiny_model


def losses_of(trainer: Trainer, stop: int | None = None) -> list[float]:
    """Of its steps and evaluations, up to a step after which it is left."""
    losses = []
    for event in trainer.run():
        if isinstance(event, StepDone | Evaluated):
            losses.append(event.loss)
        if isinstance(event, StepDone) and event.step == stop:
            break
    return losses


def train(out: Path, ranks: Ranks, shard: bool) -> None:
    settings = replace(SETTINGS, micro_batch_size=2, shard=shard)
    trainer = Trainer(tiny_model(), language_model(), settings, TrainingFolder(out), ranks)
    if shard:  # it is left after the checkpoint of step 4, and another one goes on
        before = losses_of(trainer, stop=5)[:-1]
        trainer = Trainer(tiny_model(), language_model(), settings, TrainingFolder(out), ranks)
        assert trainer.resume()
        losses = before + losses_of(trainer)
        weights = whole_weights(trainer.model)
        parts = [parameter.to_local().numel() for parameter in trainer.model.parameters()]
    else:
        losses, weights, parts = losses_of(trainer), None, []
    if ranks.first:
        if weights is not None:
            save_file({name: value.contiguous() for name, value in weights.items()}, out / "weights.safetensors")
        (out / "losses.json").write_text(json.dumps([ranks.count, losses, sum(parts)]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined_ranks("cpu") as together:
        train(Path(sys.argv[1], "copies"), together, shard=False)
        train(Path(sys.argv[1], "shards"), together, shard=True)
