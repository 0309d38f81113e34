"""A training that a server follows: the one folder that was named when it was started, and nothing else of the disk."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

from glassformer.ground.errors import CheckpointError, GlassError, Unavailable
from glassformer.runtime.model import load
from glassformer.see.learning import Learning, learning
from glassformer.see.reading import Reading
from glassformer.see.training_curves import TrainingCurves, TrainingLog

log = logging.getLogger("glassformer")


class FollowedTraining:
    """Its curves as they grow, and its snapshots, of which one at a time is in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = TrainingLog(folder)
        self._reading, self._learning = threading.Lock(), threading.Lock()

    def curves(self) -> TrainingCurves:
        """All that the training has reported by now."""
        with self._reading:
            return self._log.read()

    def learning(self, prompt: str, target: str | None, stop: threading.Event, **options: Any) -> Learning:
        """What each snapshot makes of a text (`see.learning`); ends early when it is told to stop."""

        def read(path: Path) -> Reading:
            if stop.is_set():
                raise Unavailable("the snapshots were not read in the time that this server gives to an answer.")
            try:
                model = load(path)
            except GlassError as error:  # which says where it lies
                log.warning("%s", error)
                raise CheckpointError(f"the snapshot {path.name} cannot be read; the server's log says why.") from error
            return model.with_name(self.folder.resolve().name).read(prompt, target, raw=True)

        with self._learning:
            return learning(self.folder, read, **options)
