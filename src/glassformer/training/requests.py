"""The kinds of training that there are, by the name that they have in a training's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.ground.errors import CheckpointError
from glassformer.training.fine_tuning import ChatTraining, PreferenceRequest
from glassformer.training.g2p import G2pRequest
from glassformer.training.task_training import TaskTraining
from glassformer.training.text_training import TextTraining
from glassformer.training.training_request import TrainingRequest

RECIPES: Mapping[str, type[G2pRequest]] = {G2pRequest.KIND: G2pRequest}
ALL: Sequence[type[TrainingRequest]] = (TextTraining, TaskTraining, ChatTraining, PreferenceRequest, *RECIPES.values())
KINDS = {kind.KIND: kind for kind in ALL}


def read_request(about: Mapping[str, Any]) -> TrainingRequest:
    """What a training was begun with, out of its file."""
    try:
        return KINDS[about["kind"]](**about["request"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"training.json does not say what is trained ({error!r}). Begin the training anew.") from error
