"""Encoder-only models: every token sees every other. BERT, DistilBERT, RoBERTa.

Shapes: ids, attention_mask, token_type_ids (batch, length); states (batch, length, hidden); pooled (batch, hidden).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from glassformer.blueprints.blueprint import Blueprint
from glassformer.ground.errors import InputError
from glassformer.ops.module_steps import part
from glassformer.torch.arguments import ForwardArguments, WatchLike, takes
from glassformer.torch.base import BaseModel, holds
from glassformer.torch.container import ContainerPlan, label_modules
from glassformer.torch.derivation import Derivation, HeadDerivation
from glassformer.torch.forward_pass import ForwardPass
from glassformer.torch.outputs import BaseModelOutputWithPooling


def first_tokens(states: Tensor, real_tokens: Tensor | None) -> Tensor:
    """The state of each text's first token, wherever its padding is: (batch, hidden)."""
    if real_tokens is None or holds(real_tokens, lambda real: real[:, 0].all()):
        return states[:, 0]
    return states[torch.arange(len(states), device=states.device), real_tokens.int().argmax(-1)]


class Encoder(BaseModel):
    optional_modules = ("pooler",)
    pooler: nn.Module | None
    pooler_plan: ContainerPlan | None = None

    def own_ops(self, described: Blueprint) -> Sequence[int]:
        return range(described.ops.index(self._last) + 1)

    def add_plans(self, derivation: Derivation, described: Blueprint) -> None:
        super().add_plans(derivation, described)
        pooler_ops = range(described.ops.index(self._last) + 1, len(described.ops))
        pooler = HeadDerivation(self.config, self.declared, described, pooler_ops)
        if not pooler.nodes:
            self.pooler = None
            return
        pooler.attach(self)
        label_modules(part(self, ("pooler",)), self.declared.label)
        self.pooler_plan = pooler.plan((), range(len(pooler.nodes)))

    def pooled(self, first: Tensor) -> Tensor:
        """One vector for each text, made of its first token's state."""
        assert self.pooler_plan is not None
        return self.pooler_plan.run(self, first)

    def encoder_positions(self, columns: Tensor, real_tokens: Tensor) -> Tensor:
        if not self.declared.padding_position:
            return super().encoder_positions(columns, real_tokens)
        return (real_tokens.cumsum(-1) - 1).masked_fill(~real_tokens, -1)

    def drop_unread(self, head: nn.Module) -> None:
        if getattr(head, "reads", "") != "pooler" and self.pooler is not None:
            self.pooler = None

    @takes(
        "input_ids", "token_type_ids", "position_ids", "inputs_embeds", "output_attentions", "output_hidden_states", "watch",
        "p", attention_mask="1 for real tokens, 0 for padding; or what each token sees, (batch, 1, length, length).",
        use_cache="accepted for familiarity: an encoder reads all at once, and has none.",
    )  # fmt: skip
    def forward(self, given: ForwardArguments) -> BaseModelOutputWithPooling:
        """Run the base model."""
        p = given.p or self.prepare(given)
        x = self.embed(given.input_ids, given.inputs_embeds)
        states = self.compute(x, p)
        pooled = self.pooled(first_tokens(states, p.mask.real_tokens)) if self.pooler is not None else None
        return BaseModelOutputWithPooling(states, pooled, **self.observed(p.tap, given))

    def pass_for(self, ids: Tensor, watch: WatchLike) -> ForwardPass:
        """The pass over a batch of texts, before it runs."""
        return self.prepare(ForwardArguments(input_ids=ids, watch=watch))

    def prepare(self, given: ForwardArguments) -> ForwardPass:
        """Check a caller's tensors and make the pass that they describe."""
        tokens, segments = self.check_inputs(given.input_ids, given.inputs_embeds), given.token_type_ids
        positions, mask = self.positions_and_mask(tokens, given.attention_mask, given.position_ids, causal=False)
        types = getattr(self.config, "type_vocab_size", 0)
        if segments is not None and types:
            if segments.shape != tokens.shape[:2]:
                raise InputError(f"token_type_ids have shape {tuple(segments.shape)}, the tokens {tuple(tokens.shape[:2])}.")
            if holds(segments, lambda numbers: (numbers.min() < 0) | (numbers.max() >= types)):
                low, high = int(segments.min()), int(segments.max())
                raise InputError(f"token_type_ids hold {low if low < 0 else high}; the model knows {types} types, from 0.")
            segments = segments.long()
        elif types:
            segments = torch.zeros_like(positions)
        return self.new_pass(positions, mask, tap=self.tap_for(given), segments=segments)
