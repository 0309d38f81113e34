"""AdamW, with weight decay on matrices alone."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from glassformer.training.settings import TrainingSettings


def make_optimizer(parameters: Iterable[nn.Parameter], settings: TrainingSettings) -> torch.optim.AdamW:
    """Over the parameters that have gradients. Decay pulls to zero, where a norm's weight or a bias need not go."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
