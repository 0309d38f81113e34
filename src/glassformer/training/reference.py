"""What the model at the start says of the answers that are compared: computed once, and kept with the training."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from glassformer.ground.files import atomic_file, crc32_text
from glassformer.training.objectives.answers import Preferences
from glassformer.training.objectives.objective import ExampleBatch
from glassformer.training.sharding import dealt
from glassformer.training.trainer import Trainer


def reference_log_probabilities(trainer: Trainer, objective: Preferences) -> tuple[Tensor, Tensor]:
    """Of all pairs, and of the held-out ones, by a model that is not trained yet; each (pairs, 2), in float64."""
    source = hashlib.sha256(f"{objective.source} {trainer.settings.precision}".encode()).hexdigest()[:16]
    path = None if trainer.folder is None else trainer.folder.path / f"reference-{source}.safetensors"
    counts = (objective.examples, objective.held_out)
    stored = {} if path is None else _stored(path)
    known = tuple(stored.get(name, torch.zeros(0)) for name in ("pairs", "held_out"))
    whole = all(tensor.shape == (count, 2) for tensor, count in zip(known, counts, strict=True))
    found = trainer.ranks.sum(torch.tensor(float(whole), device=trainer.ranks.device))
    if int(found) == trainer.ranks.count:  # with all processes, which may have other disks
        return known[0], known[1]
    pairs, held_out = _computed(trainer, objective, False), _computed(trainer, objective, True)
    if path is not None and trainer.ranks.first:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            tensors = {"pairs": pairs, "held_out": held_out}
            safetensors.torch.save_file(tensors, os.fspath(temporary), {"crc32": _checksum(tensors)})
    return pairs, held_out


def _stored(path: Path) -> dict[str, Tensor]:
    """What an earlier run has computed; nothing if it is damaged, so that it is computed again."""
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
        with safetensors.safe_open(path, framework="pt") as file:
            expected = (file.metadata() or {}).get("crc32")
    except (OSError, safetensors.SafetensorError):
        return {}
    return tensors if expected in (None, _checksum(tensors)) else {}


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    return crc32_text(b"".join(tensors[name].contiguous().numpy().tobytes() for name in sorted(tensors)))


@torch.no_grad()
def _computed(trainer: Trainer, objective: Preferences, held_out: bool) -> Tensor:
    count = objective.held_out if held_out else objective.examples
    size = trainer.micro_batch_size
    trainer.model.eval()
    result = torch.zeros(count, 2, dtype=torch.float64)

    def batch(start: int) -> ExampleBatch:
        return objective.batch(range(start, min(start + size, count)), held_out)

    for part, counts in dealt(map(batch, range(0, count, size)), trainer.ranks):
        values = trainer.compute(part, "log_probabilities")
        if counts:
            result[torch.as_tensor(list(part.rows), dtype=torch.long)] = values.double().cpu()
    return trainer.ranks.sum(result.to(trainer.ranks.device)).cpu()
