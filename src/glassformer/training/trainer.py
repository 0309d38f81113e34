"""The loop: batches to losses to gradients to weights, with everything on the disk that a killed training needs.

What a step computes follows from the settings, the data, the step's index and the weights before it: which examples it
sees and what dropout drops are drawn anew for each step from its index. So a training that was stopped, in whatever way,
ends with the weights of an unbroken one; and how its batches are cut into parts, over time or over processes, changes
rounding alone.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from glassformer.ground.errors import CheckpointError, NotNumbers, TrainingDiverged
from glassformer.torch.layers import has_fast_matmul
from glassformer.training.events import Evaluated, Event, EventFiles, Sampled, Saved, SnapshotKept, StepDone
from glassformer.training.objectives.objective import ExampleBatch, ExampleOrder, Objective
from glassformer.training.settings import TrainingSettings
from glassformer.training.sharding import Ranks, dealt, like, release_whole, shard_model, whole
from glassformer.training.trained_model import Snapshots
from glassformer.training.training_folder import TrainingFolder

note = logging.getLogger("glassformer").warning
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter
KEPT_STATES = 2  # checkpoints that a training can go on from


class LossOf(nn.Module):
    """A model and what it is trained to do, as one module: what compiles, and what several processes share."""

    def __init__(self, model: nn.Module, objective: Objective[Any]) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, inputs: Mapping[str, Tensor], targets: Tensor, method: str = "loss") -> Any:
        """`method`: another one of the objective, of a model and a batch."""
        return getattr(self.objective, method)(self.model, ExampleBatch(inputs, targets))


class Trainer:
    """Trains a model in place.

    Args:
        model: of an Auto class, with the objective's head.
        objective: the examples, and their loss.
        settings: the steps, their size and their learning rate.
        folder: where checkpoints and metrics go, and where an earlier part of the training may lie.
        ranks: this process's place among several.
        sample: what the model writes, for people to look at when it is evaluated.
        snapshots: which models are kept on the way, to see how it learned.
    """

    def __init__(
        self,
        model: Any,
        objective: Objective[Any],
        settings: TrainingSettings,
        folder: TrainingFolder | None = None,
        ranks: Ranks | None = None,
        sample: Callable[[Any], str] | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.model, self.objective, self.settings, self.folder, self.sample = model, objective, settings, folder, sample
        self.snapshots, self._snapshot_steps = snapshots, frozenset() if snapshots is None else snapshots.steps(model)
        objective.label_smoothing = settings.label_smoothing
        objective.pad_multiple = 8 if settings.compile else 1
        self.model.to(self.ranks.device)
        self.model.use_gpu_engine = self.model.use_cpu_engine = False  # they would be made anew for each evaluation
        if settings.recompute:
            model.gradient_checkpointing_enable()
        self._module = LossOf(model, objective)
        if settings.shard:
            shard_model(self._module, settings, self.ranks)
        self.optimizer = adamw(model.parameters(), settings)
        self.order = ExampleOrder(objective.examples, settings.batch_size, settings.seed)
        self.step = 0  # done so far
        self.losses: list[float] = []  # of the first step, and of the last few
        self._saved_at = time.monotonic()
        self._event_files: EventFiles | None = None  # begun with the first event
        self.stopping = False  # set from elsewhere: end after this step, with a checkpoint
        if settings.precision == "bfloat16" and self.ranks.device.type == "cpu" and not has_fast_matmul(torch.bfloat16):
            note("this CPU has no products of bfloat16: it trains faster with --precision float32.")
        self._loss: Any = self._module
        if settings.compile:
            self._loss = torch.compile(self._loss)
        if self.ranks.count > 1 and not settings.shard:
            self._loss = DistributedDataParallel(self._loss)

    # The loop -------------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[Event]:
        """Train to the last step, telling each; evaluated and saved now and then, and at the end."""
        settings = self.settings
        if self.step == 0:
            yield from map(self._write, self.snapshot())
        self._saved_at = time.monotonic()
        while self.step < settings.steps:
            yield self._write(self.train_step())
            self._check_divergence()
            yield from map(self._write, self.snapshot())
            last = self.step == settings.steps
            stopping, overdue = self._agree(self.stopping, self._overdue)
            if stopping and not last:
                if self.folder is not None:
                    yield self._write(self.save())
                return
            if last or self.step % settings.evaluate_every == 0:
                yield from map(self._write, self.evaluate())
            due = last or overdue or self.step % settings.save_every == 0
            if self.folder is not None and due and not self.diverging:
                yield self._write(self.save())

    @property
    def _overdue(self) -> bool:
        """Whether the last checkpoint is too long ago, by the clock of the process that writes them."""
        return self.ranks.first and time.monotonic() - self._saved_at >= 60 * self.settings.save_minutes

    def _agree(self, *wishes: bool) -> list[bool]:
        """What any process wishes, all of them do: each saves a part, or waits for the others."""
        if self.ranks.count == 1:
            return list(wishes)
        return (self.ranks.sum(torch.tensor(wishes, dtype=torch.float32, device=self.ranks.device)) > 0).tolist()

    def train_step(self) -> StepDone:
        """One update of the weights."""
        started, settings, step = time.perf_counter(), self.settings, self.step
        rate = settings.learning_rate_at(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        batches = self._batches(step)
        targets = self._sum(sum(batch.count for batch in batches))
        losses = []
        for part, batch in enumerate(batches):
            torch.manual_seed(_mixed(settings.seed, step, self.ranks.rank, part))
            with self._precision(), self._synced(part == len(batches) - 1):
                loss = self._loss(batch.inputs, batch.targets)
                (loss * (self.ranks.count / max(1.0, targets))).backward()  # processes average their gradients
            losses.append(loss.detach())
        norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip_norm or math.inf))
        total, size = torch.stack((torch.stack(losses).sum(), norm)).tolist()  # waits for the device, once
        mean = self._sum(total) / max(1.0, targets)
        if not math.isfinite(mean) or not math.isfinite(size):
            raise NotNumbers(self._diagnosis(step, batches, losses))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.losses = [*self.losses[:1], *[*self.losses[1:], mean][-settings.patience :]]
        tokens = int(self._sum(sum(batch.tokens for batch in batches)))
        seconds = time.perf_counter() - started
        return StepDone(self.step, mean, rate, size, tokens, seconds, self.order.epoch(self.step))

    def rehearse(self, examples: int) -> None:
        """A part of the next step that changes nothing, to see how long it takes."""
        self.model.train()
        self.objective.step_seed = _mixed(self.settings.seed, self.step)
        batch = self.objective.batch(self.order.rows(self.step)[:examples].tolist()).to(self.ranks.device)
        with self._precision():
            self._loss(batch.inputs, batch.targets).backward()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self) -> Iterator[Evaluated | Sampled]:
        """The loss and what else the objective measures on the held-out examples, and a sample."""
        if self.objective.held_out:
            started = time.perf_counter()
            self.model.eval()
            totals, count = dict.fromkeys(self.objective.summed, 0.0), 0
            most = None if self.step == self.settings.steps else self.settings.evaluation_examples
            batches = self.objective.held_out_batches(self.micro_batch_size, most)
            for batch, counts in dealt(batches, self.ranks):
                sums = self.compute(batch, "sums")
                if counts:
                    totals = {name: total + float(sums[name]) for name, total in totals.items()}
                    count += batch.count
            targets = max(1.0, self._sum(count))
            means = {name: self._sum(total) / targets for name, total in totals.items()}
            loss = means.pop("loss")
            measures = self.objective.measures(self.model, loss, most) if self.ranks.first else {}
            examples = min(self.objective.held_out, most or self.objective.held_out)
            yield Evaluated(self.step, loss, time.perf_counter() - started, {**means, **measures}, examples)
        if self.sample is not None and self.ranks.first:
            self.model.eval()
            yield Sampled(self.step, self.sample(self.model))

    def snapshot(self) -> Iterator[SnapshotKept]:
        """The model as it is now, if it is to be kept after this step."""
        if self.snapshots is not None and self.ranks.first and self.step in self._snapshot_steps:
            yield SnapshotKept(self.step, self.snapshots.keep(self.step, self.model))

    def compute(self, batch: ExampleBatch, method: str) -> Any:
        """What a method of the objective gives for a batch, in the precision of the training."""
        batch = batch.to(self.ranks.device)
        with self._precision():
            result = self._module(batch.inputs, batch.targets, method)
        if self.settings.shard:
            release_whole(self._module)
        return result

    def _batches(self, step: int) -> list[ExampleBatch]:
        """This process's share of a step, in parts that fit into memory."""
        self.objective.step_seed = _mixed(self.settings.seed, step)
        rows = self.order.rows(step)[self.ranks.rank :: self.ranks.count].tolist()
        size = self.micro_batch_size
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        return [self.objective.batch(part).to(self.ranks.device) for part in parts]

    @property
    def micro_batch_size(self) -> int:
        """How many examples are computed at once."""
        return self.settings.micro_batch_size or -(-self.settings.batch_size // self.ranks.count)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.settings.precision == "bfloat16":
            return torch.autocast(self.ranks.device.type, torch.bfloat16)
        return tf32_products() if self.settings.precision == "tf32" else nullcontext()

    def _synced(self, last: bool) -> AbstractContextManager[Any]:
        """Processes exchange gradients with the last part of a step alone."""
        ddp = isinstance(self._loss, DistributedDataParallel)
        return self._loss.no_sync() if ddp and not last else nullcontext()

    def _sum(self, value: float) -> float:
        if self.ranks.count == 1:
            return value
        return float(self.ranks.sum(torch.tensor(value, dtype=torch.float64, device=self.ranks.device)))

    def _write(self, event: Event) -> Event:
        if self.folder is not None and self.ranks.first:
            self.folder.append_metrics(event.to_dict())
            if self._event_files is None:
                self._event_files = EventFiles(self.folder.path, event.step)
            self._event_files.add(event)
        return event

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def save(self) -> Saved:
        assert self.folder is not None
        weights, moments = self.weights(), self._moments()  # parts of them come from all processes
        if self.ranks.first:
            state = {"epoch": self.order.epoch(self.step), "losses": self.losses}
            path = self.folder.save(self.step, weights, moments, state)
            self.folder.keep_latest(KEPT_STATES)
        else:
            path = self.folder.path
        self.ranks.wait()
        self._saved_at = time.monotonic()
        return Saved(self.step, path)

    def resume(self) -> bool:
        """Go on after the folder's last checkpoint; False if there is none, and all begins anew."""
        latest = None if self.folder is None else self.folder.latest()
        if self.folder is not None and self.ranks.first:
            self.folder.forget_metrics_after(-1 if latest is None else int(latest[2]["step"]))
        if self.folder is None or latest is None:
            return False
        weights, moments, state = latest
        trained = dict(self._trained())
        if {name: value.shape for name, value in trained.items()} != {name: value.shape for name, value in weights.items()}:
            raise CheckpointError(f"{self.folder.path}: its checkpoints are of another model. Choose another folder.")
        for name, parameter in trained.items():
            device = parameter.device
            with torch.no_grad():
                parameter.copy_(like(parameter, weights[name]))
            self.optimizer.state[parameter] = {
                key: like(parameter, value) if key != "step" else value.to(device if device.type == "cuda" else "cpu")
                for key in MOMENTS
                if (value := moments.get(f"{name}.{key}")) is not None
            }
        self.step, self.losses = int(state["step"]), state["losses"]
        return True

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    def weights(self) -> dict[str, Tensor]:
        """What is trained, by name; where processes have parts of it, all of them must ask."""
        return {name: whole(parameter.data) for name, parameter in self._trained()}

    def _moments(self) -> dict[str, Tensor]:
        state = self.optimizer.state
        return {
            f"{name}.{key}": whole(state[parameter][key])
            for name, parameter in self._trained()
            for key in MOMENTS
            if key in state.get(parameter, {})
        }

    # When a training goes wrong -------------------------------------------------------------------------------------

    @property
    def diverging(self) -> bool:
        """Whether the last loss is far above the first: what is worse than the beginning is not kept."""
        return len(self.losses) > 1 and self.losses[-1] > tolerated_loss(self.losses[0])

    def _check_divergence(self) -> None:
        first, *recent = self.losses
        if len(recent) < self.settings.patience or min(recent) <= tolerated_loss(first):
            return
        good = [] if self.folder is None else list(self.folder.checkpoints)
        kept = f"The last good checkpoint is that of step {good[-1]}." if good else "No checkpoint was written."
        raise TrainingDiverged(
            f"step {self.step}: the loss is {recent[-1]:,.1f}, and was {first:.2f} at the start: the training has diverged. "
            f"{kept} Begin anew with a lower learning rate than {self.settings.learning_rate:g}, or a longer warmup."
        )

    @torch.no_grad()
    def _diagnosis(self, step: int, batches: list[ExampleBatch], losses: list[Tensor]) -> str:
        """Where the first value that is no number stands: the part of the batch, and the site."""
        bad = next((part for part, loss in enumerate(losses) if not bool(loss.isfinite())), None)
        advice = "Lower the learning rate, warm up longer, or take the batch out of the data."
        if bad is None:
            return f"step {step + 1}: the gradient is no number, though the loss is {float(losses[0]):.4g}. {advice}"
        batch = batches[bad]
        rows = ", ".join(map(str, batch.rows[:8])) + (", …" if len(batch.rows) > 8 else "")
        if self.settings.shard:  # a pass needs all processes, and this one may be alone with its trouble
            return f"step {step + 1}: the loss is no number, for examples {rows}. {advice}"
        torch.manual_seed(_mixed(self.settings.seed, step, self.ranks.rank, bad))
        with self._precision():
            sites = self.objective.run_base(self.model, batch, watch="*").sites or {}
        site = next((name for name, value in sites.items() if not bool(value.isfinite().all())), "scores")
        return (
            f"step {step + 1}: the loss is no number, for examples {rows}; the first site that is none is {site}. {advice}"
        )


def adamw(parameters: Iterable[nn.Parameter], settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW over the parameters that have gradients; decay pulls to zero, where a norm's weight or a bias need not go."""
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


def tolerated_loss(first: float) -> float:
    """What a loss may rise to: batches differ, and a high learning rate does harm at first that a model recovers from.

    >>> tolerated_loss(1.5), tolerated_loss(10.5)
    (5.5, 21.0)
    """
    return first + max(4.0, first)


@contextmanager
def tf32_products() -> Iterator[None]:
    """A GPU multiplies float32 matrices in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _mixed(*parts: int) -> int:
    """A generator's seed, of several parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1
