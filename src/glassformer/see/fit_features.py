"""Training a sparse autoencoder or a transcoder on rows of activations, in minutes for small ones.

Three kinds: `topk` keeps each row's k largest activations (https://arxiv.org/abs/2406.04093); `batchtopk` keeps k for a row
on average, and is written as a JumpReLU with the threshold that this comes to (https://arxiv.org/abs/2412.06410); `l1` pays
for the sum of activations (https://transformer-circuits.pub/2023/monosemantic-features). Rows of the decoder have the length
1. A feature that no row has activated for a while is dead: it begins anew as what a badly explained row lacks.

Rows come from anywhere, in batches of any size: they are mixed in a buffer, and the first of them are held out. No more
are read than the steps need. A row of a transcoder has what it reads, and behind that what it is to predict.

Shapes: rows (batch, width), activations (batch, features).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch

from glassformer.features.dictionary import FeatureDictionary
from glassformer.ground.errors import InputError, SettingError, did_you_mean
from glassformer.ground.progress import NamedProgress
from glassformer.ground.typecheck import brief
from glassformer.see.feature_training import FeatureKind, FeatureTraining, FeatureTrainingPoint
from glassformer.see.fit import fit, fit_device

Floats: TypeAlias = npt.NDArray[np.float32]
POINTS = 50  # of the curves
REVIVALS = 20  # in a training, before its last quarter
MAX_HELD_OUT = 4096  # rows


@dataclass(frozen=True, kw_only=True)
class FeatureTrainingSettings:
    """Everything that decides which features come out, beside the rows."""

    features: int  # how many
    kind: FeatureKind = "topk"
    k: int = 32  # active features of a row; of the kind l1, not used
    l1: float = 1.0  # what a unit of activation costs; of the kind l1 alone
    steps: int = 2000
    batch_size: int = 512  # rows
    learning_rate: float = 1e-3  # at its highest; it falls to 0 over the last fifth
    buffer: int = 65_536  # rows that are mixed
    seed: int = 0

    def __post_init__(self) -> None:
        bounds: Mapping[str, tuple[float, float]] = {
            "features": (1, 10**7), "k": (1, 10**6), "l1": (0, 10**6), "steps": (1, 10**9), "batch_size": (1, 10**6),
            "learning_rate": (0, 10), "buffer": (1, 10**9), "seed": (0, 2**63 - 1),
        }  # fmt: skip
        if not isinstance(self.kind, str) or self.kind not in get_args(FeatureKind):
            raise SettingError(
                f"the kind {brief(self.kind)} is unknown.{did_you_mean(str(self.kind), get_args(FeatureKind))}"
            )
        for field in fields(self):
            value, (least, most) = getattr(self, field.name), bounds.get(field.name, (0, 0))
            kinds: Any = (int, float) if field.type == "float" else int
            if field.name == "kind":
                continue
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
                raise SettingError(f"{field.name} is {brief(value)}; it must be from {least} to {most:g}.")
        if self.kind != "l1" and self.k > self.features:
            raise SettingError(f"k is {self.k}, and there are only {self.features} features. Take a smaller k.")


def train_features(
    rows: Iterable[Floats],
    settings: FeatureTrainingSettings,
    *,
    site: str = "",
    site_out: str = "",
    predicted: int = 0,
    model: str = "",
    name: str = "features",
    progress: NamedProgress | None = None,
) -> tuple[FeatureDictionary, FeatureTraining]:
    """Features of rows, and how they were learned. `rows` are read again where they end before the training does.

    Args:
        site_out: what a transcoder predicts; by default `site`, as an autoencoder does.
        predicted: how many numbers at the end of each row are those of `site_out`; of an autoencoder 0.
        progress: called as (what, done so far, in all), while the first rows are read and then after each step.
    """
    started = time.perf_counter()
    training = _FeatureFit(rows, settings, predicted, progress)
    told = None if progress is None else partial(progress, "training")
    fit(training.optimizer, training.losses, settings.steps, rate=training.rate, after=training.after, progress=told)
    width, seconds = training.encoder.shape[0], time.perf_counter() - started
    view = FeatureTraining(model, site, settings.kind, settings.features, width, seconds, tuple(training.points))
    return training.dictionary(site, site_out or site, model, name), view


class _Batches:
    """So many batches of mixed rows."""

    def __init__(
        self, rows: Iterable[Floats], settings: FeatureTrainingSettings, count: int, progress: NamedProgress | None
    ) -> None:
        self._rows = rows
        self._generator = np.random.default_rng(settings.seed)
        self.width = 0
        self._stream = self._checked_rows()
        used = count * settings.batch_size
        self._left = used + min(MAX_HELD_OUT, used // 9 + 1)  # rows that are read yet, with those that are held out
        first = self._take(min(settings.buffer, self._left), progress)
        count = min(MAX_HELD_OUT, len(first) // 10)
        if not count:
            raise InputError(f"{len(first)} rows of activations are too few to learn features from: at least 10.")
        self.held_out, self._buffer = first[:count], first[count:]
        self._whole = len(first) < settings.buffer  # nothing is left to be read
        self._size = min(settings.batch_size, len(self._buffer))
        self._generator.shuffle(self._buffer)
        self._at = 0

    def __iter__(self) -> Iterator[Floats]:
        return self

    def __next__(self) -> Floats:
        limit = len(self._buffer) if self._whole else max(self._size, len(self._buffer) // 2)
        if self._at + self._size > limit:
            self._refill()
        self._at += self._size
        return self._buffer[self._at - self._size : self._at]

    def _refill(self) -> None:
        """Replace what was used, mix, and begin anew; what cannot be replaced is used again."""
        if not self._whole:
            wanted = min(self._at, self._left)
            fresh = self._take(wanted)
            if len(fresh) < wanted and not isinstance(self._rows, Iterator):
                self._stream = self._checked_rows(skip=len(self.held_out))
                fresh = np.concatenate([fresh, self._take(wanted - len(fresh))])
            self._buffer[: len(fresh)] = fresh
        self._generator.shuffle(self._buffer)
        self._at = 0

    def _take(self, count: int, progress: NamedProgress | None = None) -> Floats:
        """As many rows as there are, up to a number."""
        parts = [np.zeros((0, self.width), np.float32)]
        taken = 0
        while taken < count and (part := next(self._stream, None)) is not None:
            parts.append(part[: count - taken])
            if len(part) > count - taken:
                self._stream = chain([part[count - taken :]], self._stream)
            taken += len(parts[-1])
            if progress is not None:
                progress("reading activations", taken, count)
        self._left -= taken
        return np.concatenate([part for part in parts if len(part)] or parts[:1])

    def _checked_rows(self, skip: int = 0) -> Iterator[Floats]:
        for part in self._rows:
            array = np.array(part, np.float32)
            if array.ndim != 2 or self.width not in (0, array.shape[1]):
                shape = f"(rows, {self.width or 'width'})"
                raise InputError(f"activations of the shape {list(array.shape)} came where {shape} belong.")
            if not np.isfinite(array).all():
                raise InputError("some activations are not numbers. Leave those out.")
            self.width = array.shape[1]
            skipped, skip = array[skip:], max(0, skip - len(array))
            if len(skipped):
                yield skipped


class _FeatureFit:
    """The weights and their optimizer. Rows are scaled to the mean square 1, and the weights are scaled back at the end."""

    def __init__(
        self, rows: Iterable[Floats], settings: FeatureTrainingSettings, predicted: int, progress: NamedProgress | None
    ) -> None:
        self.settings, self.predicted, steps = settings, predicted, settings.steps
        self.report_after = {round(steps * index / POINTS) for index in range(1, POINTS + 1)}
        self.revive_after = {round(0.75 * steps * index / REVIVALS) for index in range(1, REVIVALS + 1)} - {0}
        self.batches = _Batches(rows, settings, steps + len(self.revive_after), progress)
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.device = fit_device()
        self.scales = (1.0, 1.0)  # of what is read, and of what is predicted
        inputs, targets = self.split(self.batches.held_out)
        self.scales = (_scale(inputs), _scale(targets))
        self.held_out = inputs, targets = self.split(self.batches.held_out)
        self.decoder = self._directions(targets.shape[1]).requires_grad_()
        first = self._directions(inputs.shape[1]) if predicted else self.decoder.detach()
        self.encoder = first.T.clone().requires_grad_()
        self.encoder_bias = torch.zeros(settings.features, device=self.device, requires_grad=True)
        self.decoder_bias = targets.mean(0).requires_grad_()
        self.parameters = (self.encoder, self.encoder_bias, self.decoder, self.decoder_bias)
        self.optimizer = torch.optim.Adam(self.parameters, lr=settings.learning_rate, betas=(0.9, 0.999))
        self.idle = torch.zeros_like(self.encoder_bias, dtype=torch.int64)  # rows since each feature was last active
        self.rows = self.revived = 0
        self.points: list[FeatureTrainingPoint] = []
        self.recent: list[float] = []  # losses since the last of them
        self.threshold = 0.0  # of the kind batchtopk: the smallest activation that is kept, on average

    def _directions(self, width: int) -> torch.Tensor:
        """A random row of the length 1 for each feature."""
        return _unit_rows(torch.randn(self.settings.features, width, generator=self.generator)).to(self.device)

    def split(self, rows: Floats) -> tuple[torch.Tensor, torch.Tensor]:
        """What is read and what it should predict: an autoencoder, the same."""
        width, whole = rows.shape[1] - self.predicted, torch.from_numpy(rows).to(self.device)
        inputs = whole[:, :width] * self.scales[0]
        return inputs, whole[:, width:] * self.scales[1] if self.predicted else inputs

    # One step ---------------------------------------------------------------------------------------------------

    def rate(self, step: int) -> float:
        """The learning rate: it falls to 0 over the last fifth."""
        steps = self.settings.steps
        return self.settings.learning_rate * min(1.0, (steps - step) / max(1, steps // 5))

    def losses(self, step: int) -> Iterator[torch.Tensor]:
        """The loss of a step; what its gradient would do to the lengths of the decoder's rows is taken off."""
        settings, (inputs, targets) = self.settings, self.split(next(self.batches))
        activations = self.activations(inputs, learning=True)
        loss = self._unexplained(targets, activations)
        if settings.kind == "l1":
            loss = loss + settings.l1 * activations.sum(1).mean() / targets.shape[1]
        if not torch.isfinite(loss):
            raise SettingError(f"the loss is no number after step {step + 1}. Take a smaller learning rate.")
        yield loss
        gradient = self.decoder.grad
        assert gradient is not None
        with torch.no_grad():
            gradient -= (gradient * self.decoder).sum(1, keepdim=True) * self.decoder
        self.recent.append(loss.item())
        self.rows += len(inputs)
        active = (activations > 0).any(0)
        self.idle = torch.where(active, 0, self.idle + len(inputs))

    @torch.no_grad()
    def after(self, step: int) -> None:
        """Keep the lengths of the decoder's rows, and now and then revive features and report."""
        self.decoder /= self.decoder.norm(dim=1, keepdim=True).clamp_min(1e-8)
        if step + 1 in self.revive_after:
            self.revive(*self.split(next(self.batches)))
        if step + 1 in self.report_after:
            self.points.append(self.point(step + 1))

    def activations(self, inputs: torch.Tensor, *, learning: bool = False) -> torch.Tensor:
        settings = self.settings
        centred = inputs if self.predicted else inputs - self.decoder_bias
        before: torch.Tensor = (centred @ self.encoder + self.encoder_bias).relu()
        if settings.kind == "l1":
            return before
        if settings.kind == "topk":
            kept = before.topk(settings.k, dim=1)
            return torch.zeros_like(before).scatter(1, kept.indices, kept.values)
        if not learning:
            return before * (before > self.threshold)
        smallest = before.flatten().topk(min(before.numel(), settings.k * len(inputs))).values[-1].detach()
        self.threshold += 0.01 * (smallest.item() - self.threshold) if self.threshold else smallest.item()
        return before * (before >= smallest)

    def _unexplained(self, targets: torch.Tensor, activations: torch.Tensor) -> torch.Tensor:
        """The share of the variance that the reconstruction leaves."""
        errors: torch.Tensor = (targets - activations @ self.decoder - self.decoder_bias).pow(2).sum()
        return errors / (targets - targets.mean(0)).pow(2).sum().clamp_min(1e-12)

    # Dead features ----------------------------------------------------------------------------------------------

    @property
    def dead(self) -> torch.Tensor:
        """The numbers of the features that no row has activated lately."""
        patience = self.settings.batch_size * max(1, self.settings.steps // (2 * REVIVALS))
        return (self.idle >= min(patience, max(self.rows, 1))).nonzero().flatten()

    def revive(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Let dead features begin anew in the direction of what is badly explained, with fresh moments of the optimizer."""
        dead = self.dead
        if not len(dead):
            return
        errors = targets - self.activations(inputs) @ self.decoder - self.decoder_bias
        chances = errors.pow(2).sum(1) + 1e-12
        drawn = torch.multinomial(chances.cpu(), len(dead), replacement=True, generator=self.generator).to(self.device)
        directions = _unit_rows(errors[drawn])
        read = _unit_rows(inputs[drawn] - inputs.mean(0)) if self.predicted else directions
        alive = torch.ones(self.settings.features, dtype=torch.bool, device=self.device)
        alive[dead] = False
        length = self.encoder[:, alive].norm(dim=0).mean() if alive.any() else 1.0
        self.decoder[dead] = directions
        self.encoder[:, dead] = read.T * length
        self.encoder_bias[dead] = 0
        places: Any = ((self.decoder, dead), (self.encoder, (slice(None), dead)), (self.encoder_bias, dead))
        for parameter, index in places:
            for moment in ("exp_avg", "exp_avg_sq"):
                self.optimizer.state[parameter][moment][index] = 0
        self.idle[dead] = 0
        self.revived += len(dead)

    # What came out ----------------------------------------------------------------------------------------------

    def point(self, step: int) -> FeatureTrainingPoint:
        inputs, targets = self.held_out
        activations = self.activations(inputs)
        recent, self.recent = self.recent, []
        revived, self.revived = self.revived, 0
        return FeatureTrainingPoint(
            step, self.rows, sum(recent) / len(recent), float(self._unexplained(targets, activations)),
            float((activations > 0).sum(1).float().mean()), len(self.dead), revived,
        )  # fmt: skip

    def dictionary(self, site: str, site_out: str, model: str, name: str) -> FeatureDictionary:
        """The weights for rows as they come, not scaled; activations count lengths of what is added."""
        read, written = self.scales
        scales = (written / read, written, 1.0, written)
        encoder, encoder_bias, decoder, decoder_bias = (
            np.array((parameter.detach() / scale).numpy(force=True))
            for parameter, scale in zip(self.parameters, scales, strict=True)
        )
        settings, threshold = self.settings, np.float32(self.threshold / written)
        return FeatureDictionary(
            encoder, encoder_bias, decoder, decoder_bias, site=site, site_out=site_out, name=name, model=model,
            threshold=np.full(settings.features, threshold) if settings.kind == "batchtopk" else None,
            k=settings.k if settings.kind == "topk" else None, subtracts_bias=not self.predicted,
        )  # fmt: skip


def _scale(rows: torch.Tensor) -> float:
    """What gives rows the mean square 1."""
    power = float(rows.pow(2).mean())
    return 1 / math.sqrt(power) if power > 0 else 1.0


def _unit_rows(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(rows, eps=1e-8)
