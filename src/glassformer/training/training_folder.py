"""The folder of a training: what it is, how far it has come, and what can be taken up again after whatever happened.

    training.json                  the model's config, the settings and what the data are
    threads.json                   how many threads it is computed with
    metrics.jsonl                  a line for each report
    checkpoints/step-00000200/     the weights and the optimizer's state after 200 steps
    snapshots/step-00000064/       the model after 64 steps, to look at
    curves.html                    the losses, as a picture
    config.json, model.safetensors, …   the model, when the training is over

A checkpoint is written under a hidden name and renamed when it is on the disk, so every `step-…` is whole; its files have
checksums, so that none is taken up that the disk has damaged since. One process at a time writes: the system drops its lock
when it ends, in whatever way.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from glassformer.checkpoint.training_layout import ABOUT, CHECKPOINTS, LOCK, METRICS, step_folders, step_name
from glassformer.ground.errors import CheckpointError, GlassError, SettingError, WriteError, reason_of
from glassformer.ground.files import (
    SEAL,
    file_crc32,
    sealed,
    sync_folder,
    sync_tree,
    temporary_folder,
    unsealed,
    write_error,
    write_text,
)
from glassformer.ground.ownership import try_lock

EARLY = (LOCK, "tokenizer", "tokens")  # what is made before a training begins
DAMAGED = "damaged: its checksum is not the one that was written"
WEIGHTS, MOMENTS, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


class TrainingFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains into this folder meanwhile. A training that is refused before it begins leaves nothing."""
        try:
            new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            made = [self.path / name for name in EARLY if not (self.path / name).exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / LOCK).open("ab") as file:
                if not try_lock(file):
                    raise WriteError(f"{self.path}: another training writes there. Wait for it, or choose another folder.")
                try:
                    yield
                except GlassError:
                    if not self.begun:
                        self._remove(made, new)
                    raise
        except WriteError:
            raise
        except OSError as error:
            raise write_error(self.path, error) from error

    @staticmethod
    def _remove(paths: Iterable[Path], folders: Iterable[Path]) -> None:
        """Remove what a try has made, and then folders that are empty; under the lock, so that nobody else's is lost."""
        for path in paths:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for folder in folders:
            with suppress(OSError):  # not empty
                folder.rmdir()

    # What it is -----------------------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        return (self.path / ABOUT).exists()

    def begin(self, about: Mapping[str, Any]) -> None:
        """A new training; a folder that has one already is refused."""
        if self.begun:
            raise SettingError(
                f"{self.path}: holds a training already. Go on with it by --resume, or choose another folder."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / ABOUT, json.dumps(sealed(json.loads(json.dumps(about))), indent=1))

    def read_about(self) -> dict[str, Any]:
        try:
            about: dict[str, Any] | None = unsealed(_object((self.path / ABOUT).read_text("utf-8")))
        except FileNotFoundError:
            raise SettingError(f"{self.path}: holds no training to go on with. Leave --resume out to begin one.") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self.path / ABOUT}: cannot be read ({reason_of(error)}). Begin the training anew."
            ) from error
        if about is None:
            raise CheckpointError(
                f"{self.path / ABOUT}: damaged, or changed since the training was begun: its checksum does not fit. Put it "
                'back as it was; or remove its "crc32", and it is taken as it is.'
            )
        return about

    def check_same(self, about: Mapping[str, Any]) -> None:
        """Refuse to go on with another model, other data or other settings than it was begun with."""
        earlier = self.read_about()
        now: dict[str, Any] = json.loads(json.dumps(about))
        for part in sorted({*earlier, *now}):
            before, after = earlier.get(part), now.get(part)
            if before == after or part not in earlier:  # an older version did not write it
                continue
            if isinstance(before, dict) and isinstance(after, dict):
                names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
                if not names:  # a field that it lacks counts as None
                    continue
                name = names[0]
                part, before, after = f"{part}: {name}", before.get(name), after.get(name)
            raise SettingError(
                f"{self.path}: the training was begun with {part} {_short(before)}, and now it is {_short(after)}. Give "
                "what it was begun with, or choose another folder."
            )

    # Checkpoints ----------------------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Those that are whole, by step."""
        return step_folders(self.path / CHECKPOINTS)

    def save(
        self, step: int, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> Path:
        """A checkpoint after `step` steps."""

        def write(folder: Path) -> None:
            folder.mkdir()
            safetensors.torch.save_file(_contiguous(weights), folder / WEIGHTS)
            safetensors.torch.save_file(_contiguous(moments), folder / MOMENTS)
            checksums = {name: file_crc32(folder / name) for name in (WEIGHTS, MOMENTS)}
            described = sealed({"step": step, **state, "files": checksums})
            (folder / STATE).write_text(json.dumps(described, indent=1), "utf-8")

        return write_step(self.path / CHECKPOINTS, step, write)

    def keep_latest(self, count: int) -> None:
        """Remove all but the last checkpoints: how the model learned is to be seen in its snapshots."""
        for path in list(self.checkpoints.values())[:-count]:
            shutil.rmtree(path, ignore_errors=True)

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]] | None:
        """The weights, the optimizer's state and the rest of the last checkpoint, if there is one."""
        steps = [step for step, path in self.checkpoints.items() if (path / MOMENTS).exists()]
        if not steps:
            return None
        *earlier, last = steps
        path = self.checkpoints[last]
        advice = f"Remove {path}, and --resume goes on from step {earlier[-1]}." if earlier else "Begin the training anew."
        try:
            name = STATE
            described = _object((path / STATE).read_text("utf-8"))
            state = unsealed(described)
            if state is None or ("files" in described and SEAL not in described):
                raise ValueError(DAMAGED)
            checksums, losses = state.pop("files", {}), state.setdefault("losses", [])
            lists = isinstance(checksums, dict) and isinstance(losses, list)
            if not lists or state.get("step") != last or not all(isinstance(loss, float) for loss in losses):
                raise ValueError("it does not say what belongs to it, or is of another step")
            tensors = []
            for name in (WEIGHTS, MOMENTS):
                if checksums and checksums.get(name) != file_crc32(path / name):
                    raise ValueError(DAMAGED)
                tensors.append(safetensors.torch.load_file(path / name))
        except (OSError, ValueError, RecursionError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{path / name}: cannot be read ({reason_of(error)}). {advice}") from error
        return tensors[0], tensors[1], state

    def clear(self) -> None:
        """Remove all checkpoints."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path / CHECKPOINTS)

    # Metrics --------------------------------------------------------------------------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """The lines written so far; a last one that was cut off is left out."""
        lines = []
        for line in self._metrics_text().splitlines():
            with suppress(ValueError):
                if isinstance(value := json.loads(line), dict):
                    lines.append(value)
        return lines

    def _metrics_text(self) -> str:
        try:
            return (self.path / METRICS).read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def forget_metrics_after(self, step: int) -> None:
        """Steps that will be done again are not reported twice, and a last line that was cut off goes."""
        kept = "".join(json.dumps(line) + "\n" for line in self.metrics() if line.get("step", 0) <= step)
        if kept != self._metrics_text():
            write_text(self.path / METRICS, kept)

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "time": time.time()}) + "\n")
        except OSError as error:
            raise write_error(self.path / METRICS, error) from error


def write_step(parent: Path, step: int, write: Callable[[Path], None]) -> Path:
    """What belongs to a step, in a folder that is there as a whole or not at all.

    One that is there already was written before the training was stopped and taken up from an earlier step.
    """
    target = parent / step_name(step)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            return target
        with temporary_folder(parent, ".saving-") as work:
            inner = work / target.name
            write(inner)
            sync_tree(inner)
            inner.rename(target)
            sync_folder(parent)
    except safetensors.SafetensorError as error:  # a full disk, in the library's words
        raise write_error(target, str(error)) from error
    except OSError as error:
        raise write_error(target, error) from error
    return target


def _object(text: str) -> dict[str, Any]:
    if not isinstance(value := json.loads(text), dict):
        raise ValueError("it is no JSON object")
    return value


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _short(value: Any) -> str:
    text = os.fspath(value) if isinstance(value, Path) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
