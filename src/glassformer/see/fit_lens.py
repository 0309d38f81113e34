"""How a tuned lens is trained, in minutes on two cores.

Belrose et al. take 65 million tokens. Here a map begins where a ridge regression of the last layer's states on its own puts
it (a closed form, after Din et al. 2023), or at the logit lens if that diverges less; then Adam lowers the divergence. Of
each layer the best of the three is kept, chosen on some held-out tokens and measured on others.
A step takes some tokens, computes the model's own distribution once, and for all layers only the logits of the tokens that
matter there: the likeliest, and a sample of the others that stands for the rest of the vocabulary (importance weights),
since a vocabulary's head costs far more than the maps.

States are recorded to a temporary folder first, so that memory does not grow with texts and layers.

With a rank, a map is the product of two matrices. The regression of that rank has a closed form, too: what the full one
predicts, projected on its strongest directions (Izenman 1975).

Shapes: states (rows, hidden); logits (rows, vocabulary), or (rows, some of it).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from glassformer.ground.candidates import kl_divergence, log_softmax
from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.see.activation_files import write_activations
from glassformer.see.activations import residual_sites
from glassformer.see.fit import fit
from glassformer.see.lens import LayerDivergence, LensTraining, Translator, TunedLens
from glassformer.see.protocols import ModelLike
from glassformer.see.recorded_activations import RecordedActivations
from glassformer.see.view import Floats

LENGTH = 256  # tokens of a text
TOKENS = 10_000  # that are read, at most
HELD_OUT = 10  # one text of as many is measured on
MEASURED = 256  # tokens that are measured on, at most
CHOOSING = 64  # other held-out tokens, on which the best map of a layer is chosen, at most
BATCH = 128  # tokens of a step
LIKELIEST = 48  # of the vocabulary, at each token of a step
SAMPLED = 2048  # of all others
RATE = 1e-3  # of Adam, falling to 0
RIDGE = 0.01  # of the mean variance
Map: TypeAlias = tuple[
    Tensor, ...
]  # a bias and a weight, or the two of a low rank; what they give is added to a layer's states


def train_lens(
    model: ModelLike, texts: Iterable[str], *, length: int | None, steps: int, seed: int, rank: int | None,
    tokens: int, progress: Progress | None,
) -> TunedLens:  # fmt: skip
    """A map for each layer but the last, and how far its predictions diverge on held-out texts, before and after.

    Args:
        rank: of each map, by default the full one: a lens of a low rank is a smaller file.
        tokens: that are read, at most.
    """
    if model.decoder_start_token is not None:
        raise InputError(f"{model.name} is an encoder-decoder; a tuned lens is trained for models of one stack.")
    model.unembed(np.zeros((0, model.config.hidden_size), np.float32))  # raises now if this model scores no tokens
    if steps < 0:
        raise InputError(f"steps is {steps}; it must be 0 or more.")
    if rank is not None and not 1 <= rank <= model.config.hidden_size:
        raise InputError(f"rank is {rank}; it must be from 1 to {model.config.hidden_size}, the width of the stream.")
    if tokens < 1:
        raise InputError(f"tokens is {tokens}; it must be 1 or more.")
    started = perf_counter()
    stream = residual_sites(model.blueprint)
    with tempfile.TemporaryDirectory() as folder:
        chosen = list(_some_texts(model, texts, length or LENGTH, tokens))
        write_activations(model, chosen, list(stream.values()), Path(folder), length=length or LENGTH)
        states = RecordedStates(RecordedActivations(folder), [*stream.values()])
        training = _LensFit(model, states, np.random.default_rng(seed), rank)
        before = training.divergences(training.measured)
        training.start()
        training.run(steps, progress)
        after = training.divergences(training.measured)
    layers = tuple(
        LayerDivergence(layer, *pair) for layer, pair in zip(stream, zip(before, after, strict=True), strict=False)
    )
    view = LensTraining(
        model.name, len(chosen), len(states.train), len(training.measured), steps, perf_counter() - started, layers
    )  # fmt: skip
    return TunedLens(model, dict(zip(stream, training.translators(), strict=False)), view)


def _some_texts(model: ModelLike, texts: Iterable[str], length: int, enough: int) -> Iterator[str]:
    """As many texts as have enough tokens."""
    tokens = 0
    for text in texts:
        yield text
        tokens += min(length, len(model.tokenizer(text)["input_ids"])) if isinstance(text, str) else 0
        if tokens >= enough:
            return


class RecordedStates:
    """The residual stream of all tokens, layer by layer, on disk."""

    def __init__(self, recorded: RecordedActivations, sites: Sequence[str]) -> None:
        texts = len(recorded)
        if texts < 2:
            raise InputError("a tuned lens needs at least two texts: some to train on, and one to measure on.")
        self.sites = sites
        self.parts = [recorded.shard(index).arrays for index in range(len(recorded.index.shards))]
        self.ends = np.cumsum([shard.rows for shard in recorded.index.shards])
        numbers = np.repeat(np.arange(texts), [len(text.ids) for text in recorded])
        held = numbers % HELD_OUT == min(HELD_OUT, texts) - 1
        self.train, self.held_out = np.flatnonzero(~held), np.flatnonzero(held)

    def rows(self, layer: int, numbers: Any) -> Tensor:
        """Some tokens' states after a layer."""
        shards = np.searchsorted(self.ends, numbers, side="right")
        starts = np.concatenate(([0], self.ends))[shards]
        rows: Floats = np.stack([
            self.parts[shard][self.sites[layer]][row] for shard, row in zip(shards, numbers - starts, strict=True)
        ])  # fmt: skip
        return torch.from_numpy(rows)


class _LensFit:
    def __init__(self, model: ModelLike, states: RecordedStates, random: np.random.Generator, rank: int | None) -> None:
        self.model = model
        self.states = states
        self.random = random
        self.rank = rank
        self.layers = range(len(states.sites) - 1)
        hidden = model.config.hidden_size
        shapes = [(hidden, hidden)] if rank is None else [(rank, hidden), (hidden, rank)]
        self.maps: list[Map] = [(torch.zeros(hidden), *map(torch.zeros, shapes)) for _ in self.layers]
        order = random.permutation(len(states.held_out))
        choosing = min(CHOOSING, len(order) // 2)
        self.measured = states.held_out[np.sort(order[choosing:][:MEASURED])]
        self.choosing = states.held_out[np.sort(order[:choosing])] if choosing else self.measured
        self.head = _Unembedding(model)

    def translators(self) -> list[Translator]:
        arrays = [[tensor.detach().numpy() for tensor in found] for found in self.maps]
        return [Translator(weight, bias, *up) for bias, weight, *up in arrays]

    @torch.no_grad()
    def divergences(self, numbers: Any) -> list[float]:
        """The mean KL divergence of each layer's prediction from the model's own, over some tokens."""
        last = self._logs(self.states.rows(len(self.layers), numbers))
        return [
            float(kl_divergence(last, self._logs(self._translated(layer, numbers)))) / len(numbers) for layer in self.layers
        ]

    def _keep_better(self, before: Sequence[Map]) -> None:
        """Of each layer, take back the map from before if that diverges less."""
        now, after = self.maps, self.divergences(self.choosing)
        self.maps = [*before]
        earlier = self.divergences(self.choosing)
        self.maps = [
            old if first < last else new
            for old, new, first, last in zip(before, now, earlier, after, strict=True)
        ]  # fmt: skip

    def _logs(self, states: Tensor) -> Any:
        return log_softmax(self.head(states).numpy())

    def _translated(self, layer: int, numbers: Any) -> Tensor:
        rows = self.states.rows(layer, numbers)
        bias, *weights = self.maps[layer]
        change = rows
        for weight in weights:
            change = change @ weight.T
        return rows + change + bias

    @torch.no_grad()
    def start(self) -> None:
        """Put each map where a ridge regression does, if that diverges less than the logit lens."""
        last = self.states.rows(len(self.layers), self.states.train).double()
        weights = 1 / last.pow(2).mean(1).clamp(min=1e-12)  # the last norm divides by it: only directions count
        logit_lens, self.maps = self.maps, []
        for layer in self.layers:
            states = self.states.rows(layer, self.states.train).double()
            self.maps.append(_ridge(states, last - states, weights, self.rank))
        self._keep_better(logit_lens)

    def run(self, steps: int, progress: Progress | None) -> None:
        if not steps:
            return
        started = [tuple(tensor.clone() for tensor in found) for found in self.maps]
        parameters = [tensor.requires_grad_() for found in self.maps for tensor in found]
        optimizer = torch.optim.Adam(parameters)
        fit(optimizer, self._losses, steps, rate=lambda step: RATE * (1 - step / steps), progress=progress)
        self._keep_better(started)

    def _losses(self, step: int) -> Iterator[Tensor]:
        """Of each layer, on tokens that the step draws; the layers have nothing else in common."""
        batch = self.random.choice(self.states.train, min(BATCH, len(self.states.train)), replace=False)
        targets = self._targets(batch)
        for layer in self.layers:
            yield self._loss(self._translated(layer, batch), *targets)

    @torch.no_grad()
    def _targets(self, batch: Any) -> tuple[Tensor, Tensor | None, Tensor]:
        """The model's probabilities of some tokens, which tokens, and the logarithms of how many each of them stands for."""
        probabilities = self.head(self.states.rows(len(self.layers), batch)).softmax(-1)
        size = probabilities.shape[-1]
        if not self.head.can_select or size <= 2 * SAMPLED:
            return probabilities, None, torch.zeros(size)
        likely = torch.unique(probabilities.topk(LIKELIEST).indices)
        others = torch.ones(size, dtype=torch.bool)
        others[likely] = False
        rest = others.nonzero()[:, 0]
        sample = rest[torch.from_numpy(self.random.choice(len(rest), SAMPLED, replace=False))]
        tokens = torch.cat((likely, sample))
        log_weights = torch.zeros(len(tokens))
        log_weights[len(likely) :] = float(np.log(len(rest) / SAMPLED))
        return probabilities[:, tokens] * log_weights.exp(), tokens, log_weights

    def _loss(self, states: Tensor, targets: Tensor, tokens: Tensor | None, log_weights: Tensor) -> Tensor:
        """The cross-entropy with the model's own distribution: the divergence but for a constant; the mean over rows."""
        logits = self.head(states, tokens)
        total = torch.logsumexp(logits + log_weights, -1)
        return (targets.sum(-1) * total - (targets * logits).sum(-1)).mean()


class _Unembedding:
    """The last norm and the head, for some tokens of the vocabulary or all."""

    def __init__(self, model: ModelLike) -> None:
        self.module: Any = model.module
        self.norm: Callable[[Tensor], Tensor] = self.module.base_model.final_states
        self.head: Any = self.module.head_module
        output = getattr(self.head, "output", None)
        self.dtype = self.module.base_model.token_embedding.weight.dtype
        self.parameters = {
            name: value
            for name, value in self.head.named_parameters()
            if output is not None and any(value is weight for weight in (output.weight, output.bias))
        }
        self.can_select = output is not None and any(value is output.weight for value in self.parameters.values())

    def __call__(self, states: Tensor, tokens: Tensor | None = None) -> Tensor:
        normed = self.norm(states.to(self.dtype))
        if tokens is None:
            scores: Tensor = self.head(normed).float()
            return scores
        chosen = {name: value.detach()[tokens] for name, value in self.parameters.items()}
        selected: Tensor = functional_call(self.head, chosen, (normed,)).float()
        return selected


def _ridge(states: Tensor, difference: Tensor, weights: Tensor, rank: int | None) -> Map:
    """The map that takes states nearest to the last layer's, by weighted least squares with a penalty on its matrix."""
    shares = (weights / weights.sum())[:, None]
    mean, target = (shares * states).sum(0), (shares * difference).sum(0)
    centered = states - mean
    covariance = centered.T @ (shares * centered)
    penalty = RIDGE * covariance.diagonal().mean().clamp(min=1e-12) * torch.eye(len(covariance), dtype=states.dtype)
    weight = torch.linalg.solve(covariance + penalty, centered.T @ (shares * (difference - target))).T
    bias = (target - weight @ mean).float()
    if rank is None:
        return bias, weight.float().contiguous()
    strongest = torch.linalg.eigh(weight @ covariance @ weight.T).eigenvectors[:, -rank:]  # of what it predicts
    return bias, (strongest.T @ weight).float().contiguous(), strongest.float().contiguous()
