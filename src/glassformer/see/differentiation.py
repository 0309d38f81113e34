"""Gradients of what a model says of a text: with respect to its tokens' vectors, and to the values at any site.

PyTorch computes them, whatever runs the model otherwise. A pass begins at the tokens' vectors (their embeddings, to which
positions are still to be added), so that these can be differentiated and moved. Memory stays bounded: where the activations
of a whole text would be many, blocks keep none and are computed again on the way back, and a loss goes through the
vocabulary a few positions at a time.

Shapes: vectors (rows, length, hidden), an encoder-decoder's source before its target; logits (length, vocabulary) of a text,
(length, labels) of its tokens, or (labels,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from glassformer.blueprints import Blueprint
from glassformer.engine.protocol import Source
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.sites import Watch
from glassformer.ground.typecheck import brief
from glassformer.ops.attend import Attend
from glassformer.see.activations import Activations
from glassformer.see.metrics import MetricFunction, Target
from glassformer.see.view import Floats

Vectors: TypeAlias = tuple[Tensor, ...]
VOCABULARY_HEADS = ("causal", "seq2seq", "masked")
KEPT_BYTES = 256_000_000  # of activations, above which blocks are computed twice
LOSS_POSITIONS = 256  # whose logits are in memory at once


@dataclass(frozen=True)
class ReadPrefix:
    """The beginning of a decoder's text, which the executor has read, and no gradient is wanted of."""

    length: int
    values: Mapping[str, Floats]  # keys and values by site, in the order of `sites`: (heads, length, size)

    @staticmethod
    def sites(blueprint: Blueprint) -> list[str]:
        """What has to be read of it: what attention remembers."""
        attends = (op for op in blueprint.ops_of(Attend) if not op.stack and not op.cross)
        return [site for op in attends for site in op.cached_sites(blueprint.ops) if site is not None]

    def cache(self, module: Any) -> Any:
        tensors = [torch.from_numpy(value)[None].to(module.device, module.dtype) for value in self.values.values()]
        return module.base_model.cache_of(list(zip(tensors[::2], tensors[1::2], strict=True)))


class Differentiation:
    """One text in a model's PyTorch module."""

    def __init__(self, reading: Activations, prefix: ReadPrefix | None = None) -> None:
        """`prefix`: what comes before the positions that gradients are wanted of."""
        model = reading.model
        model.config.check_equations("gradients of tokens and sites")
        if model.config.encoder_layers and model.head != "seq2seq":
            raise InputError(
                f"{model.name} reads one text in its encoder and its decoder, by ids, so it has no gradient of each token."
            )
        self.reading, self.model, self.module = reading, model, model.packed_module
        stacks = [reading.ids] if reading.source is None else [reading.source, reading.ids]
        self.ids = [torch.tensor([stack], device=self.module.device) for stack in stacks]
        self.prefix, self.start = prefix, 0 if prefix is None else prefix.length
        self.ids[-1] = self.ids[-1][:, self.start :]

    @property
    def global_tokens(self) -> Collection[int]:
        """The places of the source's tokens that all others see."""
        return Source.by_default(self.reading.source or ()).global_tokens

    @property
    def length(self) -> int:
        return sum(ids.shape[1] for ids in self.ids)

    def vectors(self) -> Vectors:
        """The tokens' vectors, of a row."""
        with torch.no_grad():
            return tuple(embed(ids, None) for embed, ids in zip(self.embeddings, self.ids, strict=True))

    @property
    def embeddings(self) -> list[Callable[[Tensor, None], Tensor]]:
        """Ids to vectors, in each stack."""
        base = self.module.base_model
        return [base.embed] if len(self.ids) == 1 else [base.embed_source, base.embed]

    def gradients(self, target: Target, vectors: Vectors) -> tuple[Tensor, Vectors]:
        """The target's value for each row, and its gradient at each row's vectors."""
        vectors = tuple(stack.detach().requires_grad_() for stack in vectors)
        values, _ = self.run(target, vectors)
        return values.detach(), torch.autograd.grad(values.sum(), vectors)

    def site_gradients(self, target: Target, sites: Sequence[str]) -> dict[str, Floats]:
        """Its gradient at some sites, each shaped as the value there, without a batch."""
        if "scores" in sites:
            raise InputError("the metric is a function of 'scores', which no pass leads to. Name sites before them.")
        values, read = self.run(target, tuple(stack.requires_grad_() for stack in self.vectors()), sites)
        return site_gradients(values.sum(), read, sites)

    def run(self, target: Target, vectors: Vectors, sites: Sequence[str] = ()) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The target's value for each row, and what is at some sites, to be differentiated."""
        keep: dict[str, Any] = {}
        if self.model.head in VOCABULARY_HEADS and (target.loss or target.function is None):
            positions = [] if target.position is None else [target.position - self.start]
            keep["logits_to_keep"] = torch.tensor(positions, dtype=torch.long, device=vectors[-1].device)
        names = ("inputs_embeds",) if len(vectors) == 1 else ("inputs_embeds", "decoder_inputs_embeds")
        watch = self.watch((*sites, "final") if target.loss else sites, vectors)
        with torch.inference_mode(False), torch.enable_grad():
            inputs = {**dict(zip(names, vectors, strict=True)), **keep}
            if self.module.base_model.reads_ids:
                inputs["input_ids"] = self.ids[-1].expand(len(vectors[-1]), -1)
            if self.model.blueprint.has_global_tokens:
                chosen = [place in self.global_tokens for place in range(self.ids[0].shape[1])]
                inputs["global_attention_mask"] = torch.tensor([chosen] * len(vectors[0]), device=self.module.device).long()
            if self.prefix is not None:
                inputs |= {"past_key_values": self.prefix.cache(self.module), "use_cache": True}
            output = self.module(**{"use_cache": False, **inputs}, watch=watch)
            if target.loss:
                return self._losses(output, watch), output.sites
            rows = [logits[0] if keep and target.position is not None else logits for logits in self._logits(output)]
            if not keep and target.position is not None:
                rows = [logits[target.position] for logits in rows]
            return torch.stack([_value(target, logits) for logits in rows]), output.sites

    def watch(self, sites: Sequence[str], vectors: Vectors | None = None) -> Watch:
        """Reads the sites under the model's changes. A pattern is computed beside the heads, unless something changes it."""
        patterns = {site: Change() for site in sites if site.endswith(".pattern")}
        return Watch(
            frozenset(sites), {**patterns, **self.model.changes}, self.recomputes(1 if vectors is None else len(vectors[0]))
        )

    def recomputes(self, rows: int = 1) -> bool:
        """Whether activations are computed twice: those of a pass are the values at its sites, and about as many between."""
        sizes = {"length": len(self.reading.ids), "source": len(self.reading.source or ())}
        shapes = [
            shape[1:]
            for site, shape in self.model.blueprint.sites.items()
            if not site.endswith("pattern") and site != "scores"
        ]
        numbers = sum(math.prod(sizes[size] if isinstance(size, str) else size for size in shape) for shape in shapes)
        return 8 * rows * numbers > KEPT_BYTES

    def _logits(self, output: Any) -> Tensor:
        """A model's scores, whatever they are of; the states of one without a head."""
        if self.model.head == "question":
            return torch.stack((output.start_logits, output.end_logits), -1)
        if self.model.head == "discriminator":
            scores: Tensor = output.logits[..., None]
            return scores
        logits: Tensor = output.last_hidden_state if self.model.head == "base" else output.logits
        return logits

    def _losses(self, output: Any, watch: Watch) -> Tensor:
        """Each row's mean loss of its tokens after the first, a few positions at a time."""
        states, labels = output.sites["final"][:, :-1], self.ids[-1][0, 1:]

        def chunk(states: Tensor, start: int) -> Tensor:
            logits = self.module.observe_scores(self.module.head_module(states), output, watch, start)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            targets = labels[start : start + logits.shape[1]].expand(len(logits), -1)
            return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").sum(1)

        parts = [
            checkpoint(chunk, states[:, start : start + LOSS_POSITIONS], start, use_reentrant=False)
            for start in range(0, len(labels), LOSS_POSITIONS)
        ]
        return torch.stack(parts).sum(0) / len(labels)


def site_gradients(value: Tensor, read: Mapping[str, Tensor], sites: Sequence[str]) -> dict[str, Floats]:
    """The gradient of one number at some sites, without a batch; zeros where nothing leads from there to it."""
    gradients = torch.autograd.grad(value, [read[site] for site in sites], allow_unused=True)
    return {
        site: (torch.zeros_like(read[site]) if gradient is None else gradient)[0].detach().float().cpu().numpy()
        for site, gradient in zip(sites, gradients, strict=True)
    }


def _value(target: Target, logits: Tensor) -> Tensor:
    """A target's value of one row's logits, to be differentiated: of those at its position, or of all."""
    if target.function is not None:
        return _function_value(target.function, logits)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if target.log_probability:
        logits = logits.log_softmax(-1)
    value = logits[target.token]
    return value if target.against is None else value - logits[target.against]


def _function_value(function: MetricFunction, logits: Tensor) -> Tensor:
    """What a caller's function makes of the logits: one number that depends on them."""
    try:
        value = function(logits)
    except Exception as error:
        raise InputError(f"the metric failed with {type(error).__name__}: {error}") from error
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        found = brief(value) if not isinstance(value, Tensor) else f"a tensor of shape {tuple(value.shape)}"
        raise InputTypeError(
            f"the metric returned {found}; it must return one number as a tensor that it computed from the logits."
        )
    if not bool(value.isfinite()):
        raise InputError(f"the metric returned {value.item()}, which has no gradient.")
    return value.reshape(())
