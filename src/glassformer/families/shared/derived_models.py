"""Base models and heads made from blueprints: the three shapes of transformers, over modules that are derived."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.blueprints import Config, Head, Op, blueprint, routed
from glassformer.blueprints.blueprint import Blueprint
from glassformer.blueprints.family import Family
from glassformer.families.shared.base import BaseModel
from glassformer.families.shared.decoder import Decoder
from glassformer.families.shared.derived import Derivation, HeadDerivation, path_of
from glassformer.families.shared.encoder import Encoder
from glassformer.families.shared.routed import RoutedCausalLM
from glassformer.families.shared.seq2seq import EncoderDecoder, EncoderPart
from glassformer.families.shared.stacked_experts import with_stacked_experts
from glassformer.ground.sites import ENCODER
from glassformer.layers import (
    Embedding,
    ForwardPass,
    RotaryEmbedding,
    RotaryPositions,
    RotaryTables,
    label_block,
    label_modules,
)
from glassformer.layers.attention import CrossAttention
from glassformer.layers.container import Path, Plan, part


class Derived(BaseModel):
    """A base model whose modules are those of its blueprint."""

    embedding_path: Path
    states_plan: Plan

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        described = blueprint(config, "base")
        self._last = final_op(described)  # of those that make the states
        self._has_position_table = any(
            op.kind == "position" and op.options["how"] in ("learned", "sinusoid") for op in described.ops
        )
        derivation = Derivation(config, self.declared, described, self.own_ops(described))
        self.add_modules(derivation, described)
        derivation.attach(self, {name: RotaryEmbedding(rope, config.head_dim) for name, rope in config.ropes.items()})
        label_modules(self, self.declared.label)
        if config.encoder_layers:
            label_modules(part(self, ("encoder",)), self.declared.label, ENCODER)
        for (_, index), path in derivation.blocks.items():
            if path in derivation.inside and path not in derivation.shared_blocks:  # whose index comes with the pass
                label_block(part(self, path), index)
        self.add_plans(derivation, described)

    def own_ops(self, described: Blueprint) -> Sequence[int]:
        return range(len(described.ops))

    def add_modules(self, derivation: Derivation, described: Blueprint) -> None:
        self.embedding_path = path_of(described.ops[0].module)

    def add_plans(self, derivation: Derivation, described: Blueprint) -> None:
        self.states_plan = derivation.plan((), range(len(derivation.nodes)))

    @property
    def token_embedding(self) -> Embedding:
        table: Embedding = part(self, self.embedding_path)
        return table

    def check_positions(self, positions: Tensor) -> None:
        if self._has_position_table:
            self.check_position_table(positions)

    def rotary_tables(self, positions: RotaryPositions, dtype: torch.dtype) -> dict[str, RotaryTables]:
        return {name: part(self, (name,))(positions, dtype) for name in self.config.ropes}

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.states_plan.run(self, x, p)

    def final_states(self, x: Tensor) -> Tensor:
        return part(self, path_of(self._last.module))(x) if self._last.kind == "norm" else x

    def stored_form(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return with_stacked_experts(tensors, self.config.num_experts) if self.declared.stacked_experts else tensors

    def make_head(self, kind: Head) -> tuple[str, nn.Module]:
        described = blueprint(self.config, kind)
        ops, last = described.ops, described.ops.index(final_op(described))
        in_base = [n for n, op in enumerate(ops) if self.prefix and op.module.startswith(f"{self.prefix}.") and n > last]
        pools = [op.options["how"] for op in ops if op.kind == "pool"]
        reads = "pooler" if in_base else pools[0] if pools else "states"
        own = range(1 + (max(in_base) + 1 if in_base else last), len(ops))  # after the pooler, its activation
        derivation = HeadDerivation(self.config, self.declared, described, own)
        name, head = derivation.head(path_of(ops[-1].module), reads)
        if kind == "masked" and self.declared.bias_name:
            *home, bias = path_of(self.declared.bias_name)
            part(head, tuple(home[1:] if name else home)).register_parameter(bias, head.output.bias)
        return name, head


def final_op(described: Blueprint) -> Op:
    return next(op for op in described.ops if op.site == "final")


class DerivedDecoder(Derived, Decoder):
    pass


class DerivedEncoder(Derived, Encoder):
    pooler_plan: Plan | None = None

    def own_ops(self, described: Blueprint) -> Sequence[int]:
        return range(described.ops.index(self._last) + 1)

    def add_plans(self, derivation: Derivation, described: Blueprint) -> None:
        super().add_plans(derivation, described)
        own = range(described.ops.index(self._last) + 1, len(described.ops))
        pooler = HeadDerivation(self.config, self.declared, described, own)
        if not pooler.nodes:
            self.pooler = None
            return
        pooler.attach(self)
        label_modules(part(self, ("pooler",)), self.declared.label)
        self.pooler_plan = pooler.plan((), range(len(pooler.nodes)))

    def pooled(self, first: Tensor) -> Tensor:
        assert self.pooler_plan is not None
        return self.pooler_plan.run(self, first)

    def encoder_positions(self, columns: Tensor, real_tokens: Tensor) -> Tensor:
        if not self.declared.padding_position:
            return super().encoder_positions(columns, real_tokens)
        return (real_tokens.cumsum(-1) - 1).masked_fill(~real_tokens, -1)


class DerivedEncoderDecoder(Derived, EncoderDecoder):
    def add_modules(self, derivation: Derivation, described: Blueprint) -> None:
        """The token embedding is `shared`; each stack has one too, which usually has the same weight."""
        self.embedding_path = ("shared",)
        op = described.ops[0]
        stacks = ("encoder", "decoder") if self.has_decoder else ("encoder",)
        for path in (("shared",), *((stack, "embed_tokens") for stack in stacks)):
            rows, size = op.weights[0].shape
            derivation.leaves[path] = partial(Embedding, rows, size, op.options["scale"])
        self._tied = [(stack, "embed_tokens") for stack in stacks if op.module == "shared"]

    def add_plans(self, derivation: Derivation, described: Blueprint) -> None:
        for path in self._tied:
            part(self, path).weight = self.token_embedding.weight

    def own_ops(self, described: Blueprint) -> Sequence[int]:
        return [number for number, op in enumerate(described.ops) if self.has_decoder or op.stack]

    @property
    def cross_attention_modules(self) -> Sequence[CrossAttention]:
        return [module for module in self.decoder.modules() if isinstance(module, CrossAttention)]

    def embed(self, ids: Tensor | None, vectors: Tensor | None) -> Tensor:
        scaled = vectors is not None and self.declared.scaled_vectors
        return super().embed(ids, vectors * self.token_embedding.scale if vectors is not None and scaled else vectors)

    def encode(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.encoder(x, p)

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.decoder(x, p)


class DerivedEncoderPart(EncoderPart, DerivedEncoderDecoder):
    pass


SHAPES: dict[Head, type[Derived]] = {
    "causal": DerivedDecoder, "masked": DerivedEncoder, "seq2seq": DerivedEncoderDecoder,
}  # fmt: skip


def derived_class(config_class: type[Config], family: Family, encoder_alone: bool = False) -> type[BaseModel]:
    """The base model's class of a family."""
    body: dict[str, Any] = {
        "__module__": __name__, "declared": family, "family": family.name, "config_class": config_class,
        "prefix": family.base, "class_suffixes": family.class_suffixes, "shifts_source": family.shifts_source,
    }  # fmt: skip
    if encoder_alone:
        return type(f"{family.name}EncoderModel", (DerivedEncoderPart,), body)
    body["heads"] = family.heads
    if issubclass(config_class, routed.Config):
        body["head_classes"] = {"ForCausalLM": RoutedCausalLM}
    return type(family.name + family.class_suffixes.get("Model", "Model"), (SHAPES[config_class.default_head],), body)
