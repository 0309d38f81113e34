"""One process of a training over several: `torchrun -m tests.training.distributed OUT`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from glassformer.training.events import Evaluated, StepDone
from glassformer.training.ranks import joined_ranks
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder
from tests.training.models import SETTINGS, language_model, tiny_model

if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    with joined_ranks("cpu") as ranks:
        settings = replace(SETTINGS, micro_batch_size=2)
        trainer = Trainer(tiny_model(), language_model(), settings, TrainingFolder(out), ranks)
        losses = [event.loss for event in trainer.run() if isinstance(event, StepDone | Evaluated)]
        if ranks.first:
            (out / "losses.json").write_text(json.dumps([ranks.count, losses]))
