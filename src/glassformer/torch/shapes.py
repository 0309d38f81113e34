"""The three shapes of models: what goes in and what comes out.

Decoder: each token sees itself and what came before. Llama, Qwen, Mistral, Gemma, GPT-2, the scratch model.
Encoder: every token sees every other. BERT, DistilBERT, RoBERTa.
EncoderDecoder: one stack reads a source, another writes a target while attending to it. T5, BART.

Shapes: ids, attention_mask, token_type_ids (batch, length); attention_mask of a decoder (batch, remembered + length);
an encoder-decoder's ids (batch, source) and decoder ids (batch, length); states (batch, length or source, hidden);
pooled (batch, hidden).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from glassformer.blueprints import blueprint
from glassformer.blueprints.blueprint import Blueprint, Head
from glassformer.ground.errors import InputError
from glassformer.ground.sites import ENCODER, ModelSites, Tap
from glassformer.ops.embed import Embed
from glassformer.ops.module_steps import part
from glassformer.ops.op import Op
from glassformer.ops.scores import Scores
from glassformer.torch.arguments import ForwardArguments, WatchLike, meanings, takes
from glassformer.torch.attention import CrossAttention
from glassformer.torch.base import IGNORED, BaseModel, final_op, holds
from glassformer.torch.cache import DynamicCache, EncoderDecoderCache
from glassformer.torch.container import ContainerPlan, label_modules
from glassformer.torch.derivation import Derivation, HeadDerivation
from glassformer.torch.forward_pass import EncodedSource, ForwardPass
from glassformer.torch.layers import Embedding
from glassformer.torch.mask import chosen_tokens
from glassformer.torch.outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    BaseModelOutputWithPooling,
    Seq2SeqModelOutput,
)

ENCODER_ARGUMENTS = ("input_ids", "attention_mask", "inputs_embeds", "output_attentions", "output_hidden_states", "watch")
SOURCE = {
    "input_ids": "the source's token ids, (batch, source).",
    "attention_mask": "1 for real tokens of the source, 0 for padding.",
}
PAIR_ARGUMENTS = (
    *ENCODER_ARGUMENTS, "decoder_input_ids", "decoder_attention_mask", "encoder_outputs", "past_key_values",
    "decoder_inputs_embeds", "use_cache", "cache_position", "p",
)  # fmt: skip
CACHED_MASK = meanings("decoder_attention_mask")["decoder_attention_mask"]  # which covers the remembered tokens too


class Decoder(BaseModel):
    @takes(
        "input_ids", "position_ids", "past_key_values", "inputs_embeds", "use_cache", "output_attentions",
        "output_hidden_states", "cache_position", "watch", "p", attention_mask=CACHED_MASK,
    )  # fmt: skip
    def forward(self, given: ForwardArguments) -> BaseModelOutputWithPast:
        """Run the base model."""
        p = given.p or self.prepare(given)
        with self.modules_hooked(None if given.p else p.tap, given.tokens):
            x = self.embed(given.input_ids, given.inputs_embeds)
            states = self.compute(x, p if self.blocks_stand_alone else self.with_shared(p, given.input_ids, x))
        return BaseModelOutputWithPast(states, p.cache, **self.observed(p.tap, given))

    def with_shared(self, p: ForwardPass, ids: Tensor | None, x: Tensor) -> ForwardPass:
        """A pass with what blocks read beside what enters them."""
        ids = p.ids if ids is None else ids
        if self.reads_ids and ids is None:
            raise InputError(
                "this family's blocks have vectors of their own for each token id: give input_ids, beside vectors too."
            )
        return replace(p, ids=ids, embedded=x, shared={})

    @staticmethod
    def cache_of(layers: Sequence[tuple[Tensor, Tensor]]) -> DynamicCache:
        """A cache that holds these keys and values of each layer, computed elsewhere."""
        cache = DynamicCache()
        cache.refill(layers)
        return cache

    def prepare(self, given: ForwardArguments) -> ForwardPass:
        """Check a caller's tensors and make the pass that they describe."""
        tokens = self.check_inputs(given.input_ids, given.inputs_embeds)
        cache = given.past_key_values
        if cache is None and self.wants_cache(given.use_cache):
            cache = DynamicCache()
        past = cache.get_seq_length() if cache is not None else 0
        self.check_cache_position(given.cache_position, past, tokens.shape[1])
        positions, mask = self.positions_and_mask(tokens, given.attention_mask, given.position_ids, past)
        return self.new_pass(positions, mask, cache, self.tap_for(given, past))


def without_prefix(described: Blueprint, prefix: str) -> Blueprint:
    """A blueprint with a head whose base has its names by itself."""

    def own(op: Op) -> Op:
        weights = tuple(replace(weight, name=weight.name.removeprefix(prefix)) for weight in op.weights)
        return replace(op, module=op.module.removeprefix(prefix), weights=weights)

    parts = tuple(replace(module, module=module.module.removeprefix(prefix)) for module in described.parts)
    return replace(described, ops=tuple(map(own, described.ops)), parts=parts)


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
        self.pooler = None
        self.add_pooler(described)

    def make_head(self, kind: Head) -> tuple[str, nn.Module]:
        name, head = super().make_head(kind)
        if getattr(head, "reads", "") == "pooler" and self.pooler is None:  # which this family has below such a head alone
            self.add_pooler(without_prefix(blueprint(self.config, kind), f"{self.prefix}."))
        return name, head

    def add_pooler(self, described: Blueprint) -> None:
        """The modules of what a blueprint computes between the states and the scores, if there are any."""
        scores = next((index for index, op in enumerate(described.ops) if isinstance(op, Scores)), len(described.ops))
        pooler_ops = range(described.ops.index(final_op(described)) + 1, scores)
        pooler = HeadDerivation(self.config, self.declared, described, pooler_ops)
        if not pooler.nodes:
            return
        del self.pooler
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
        with self.modules_hooked(p.tap, given.tokens):
            states = self.compute(self.embed(given.input_ids, given.inputs_embeds), p)
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


class EncoderDecoder(BaseModel):
    has_decoder: ClassVar[bool] = True

    encoder: Any
    decoder: Any

    def add_modules(self, derivation: Derivation, described: Blueprint) -> None:
        """The token embedding is `shared`; each stack has one too, which usually has the same weight. In some families each
        has its own, and there is no other."""
        op = described.ops[0]
        target = next(table for table in described.ops_of(Embed) if not table.stack)
        stacks = ("encoder", "decoder") if self.has_decoder else ("encoder",)
        shared = [("shared",)] if self.declared.shares_embedding else []
        self.embedding_path = shared[0] if shared else (stacks[-1], "embed_tokens")
        for path in (*shared, *((stack, "embed_tokens") for stack in stacks)):
            table = next(described.ops_of(Embed)) if path[0] != "decoder" else target
            rows, size = table.weights[0].shape
            derivation.leaves[path] = partial(Embedding, rows, size, table.options["scale"])
        self._tied = [(stack, "embed_tokens") for stack in stacks if op.module == "shared"]

    @property
    def input_embedding(self) -> Embedding:
        own: Embedding = self.token_embedding if self.declared.shares_embedding else self.encoder.embed_tokens
        return own

    def add_plans(self, derivation: Derivation, described: Blueprint) -> None:
        for path in self._tied:
            part(self, path).weight = self.token_embedding.weight

    def own_ops(self, described: Blueprint) -> Sequence[int]:
        return [index for index, op in enumerate(described.ops) if self.has_decoder or op.stack]

    @property
    def cross_attention_modules(self) -> Sequence[CrossAttention]:
        """Each decoder block's cross-attention, for executors that project the source's keys and values at once."""
        return [module for module in self.decoder.modules() if isinstance(module, CrossAttention)]

    def embed(self, ids: Tensor | None, vectors: Tensor | None) -> Tensor:
        """The target's vectors; source and target share an embedding, unless a checkpoint has one for each."""
        if vectors is None:
            return self.decoder.embed_tokens(ids)
        return vectors * self.token_embedding.scale if self.declared.scaled_vectors else vectors

    def embed_source(self, ids: Tensor | None, vectors: Tensor | None = None) -> Tensor:
        if vectors is None:
            return self.encoder.embed_tokens(ids)
        return vectors * self.encoder.embed_tokens.scale if self.declared.scaled_source else vectors

    def encode(self, x: Tensor, p: ForwardPass) -> Tensor:
        """Embedded source tokens to the encoder's final states."""
        return self.encoder(x, p)

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        """Embedded target tokens to the decoder's final states."""
        return self.decoder(x, p)

    @takes(*PAIR_ARGUMENTS, **SOURCE)
    def forward(self, given: ForwardArguments) -> Seq2SeqModelOutput:
        """Run the base model."""
        return self.pair_output(given)

    def pair_output(self, given: ForwardArguments) -> Seq2SeqModelOutput:
        encoded = None
        ids, vectors, p = given.decoder_input_ids, given.decoder_inputs_embeds, given.p
        if ids is None and vectors is None and given.input_ids is not None and self.declared.shifts_source:
            ids = shift_right(given.input_ids, self.config)
        if p is None:
            target = self.check_inputs(ids, vectors, ("decoder_input_ids", "decoder_inputs_embeds"))
            cache: Any = given.past_key_values
            if cache is None and self.wants_cache(given.use_cache):
                cache = EncoderDecoderCache()
            elif cache is not None and not isinstance(cache, EncoderDecoderCache):
                cache = EncoderDecoderCache(cache)  # of the decoder's own tokens
            past = cache.get_seq_length() if cache is not None else 0
            self.check_cache_position(given.cache_position, past, target.shape[1])
            tap = self.tap_for(given, past)
            encoded = self.encode_source(given, tap, cache)
            if len(encoded.states) != len(target):
                raise InputError(f"the source has {len(encoded.states)} rows, the decoder's input {len(target)}.")
            positions, mask = self.positions_and_mask(
                target, given.decoder_attention_mask, None, past, name="decoder_attention_mask"
            )
            p = self.new_pass(positions, mask, cache, tap, encoded)
        with self.modules_hooked(None if given.p else p.tap, ids if ids is not None else vectors):
            states = self.compute(self.embed(ids, vectors), p)
        seen = self.observed(p.tap, given)
        cross = self.attentions(p.tap.observers[0].record, "", "cross") if p.tap and given.output_attentions else None
        both = encoded is not None and given.encoder_outputs is None  # what was encoded earlier was not watched
        source = self.observed(p.tap, replace(given, watch=None) if both else ForwardArguments(), ENCODER)
        return Seq2SeqModelOutput(
            states, p.cache, seen["hidden_states"], seen["attentions"], cross,
            encoded.states if encoded is not None else None, source["hidden_states"], source["attentions"], seen["sites"],
        )  # fmt: skip

    def encode_source(
        self, given: ForwardArguments, tap: Tap | None, cache: EncoderDecoderCache | None = None
    ) -> EncodedSource:
        """The source as the decoder sees it: encoded now, or taken from an earlier call."""
        attention_mask, earlier = given.attention_mask, given.encoder_outputs
        if attention_mask is not None and attention_mask.ndim == 4:
            raise InputError(
                f"attention_mask has shape {tuple(attention_mask.shape)}; an encoder-decoder's is (batch, source), since "
                "both of its stacks look at the source."
            )
        if earlier is not None:
            try:
                states = earlier[0]
            except (TypeError, LookupError):
                states = None
            if not isinstance(states, Tensor) or states.ndim != 3:
                raise InputError("encoder_outputs must hold the encoder's states, (batch, source, hidden), first.")
            _, mask = self.positions_and_mask(states, attention_mask, causal=False)
        else:
            tokens = self.check_inputs(given.input_ids, given.inputs_embeds)
            positions, mask = self.positions_and_mask(tokens, attention_mask, causal=False)
            if given.global_attention_mask is not None:
                chosen = chosen_tokens(given.global_attention_mask, tokens.shape[:2])
                mask = mask.with_global_tokens(chosen) if not holds(chosen, lambda tokens: ~tokens.any()) else mask
            with self.modules_hooked(tap, tokens, ENCODER):
                x = self.embed_source(given.input_ids, given.inputs_embeds)
                states = self.encode(x, self.new_pass(positions, mask, tap=tap))
        if mask.real_tokens is not None and holds(mask.real_tokens, lambda real: ~real.any(-1).all()):
            raise InputError("a row of the source is all padding. Give it at least one token.")
        return EncodedSource(states, mask.without_order(), cache)

    @takes(*ENCODER_ARGUMENTS, **SOURCE)
    def run_encoder(self, given: ForwardArguments) -> BaseModelOutput:
        """The encoder alone: what `encoder_outputs` takes."""
        return self.encoder_output(given)

    def encoder_output(self, given: ForwardArguments) -> BaseModelOutput:
        tap = self.tap_for(given)
        return BaseModelOutput(self.encode_source(given, tap).states, **self.observed(tap, given, ENCODER))


class GlobalEncoderDecoder(EncoderDecoder):
    """One of whose source a caller may choose global tokens."""

    @takes(*PAIR_ARGUMENTS, "global_attention_mask", **SOURCE)
    def forward(self, given: ForwardArguments) -> Seq2SeqModelOutput:
        """Run the base model."""
        return self.pair_output(given)

    @takes(*ENCODER_ARGUMENTS, "global_attention_mask", **SOURCE)
    def run_encoder(self, given: ForwardArguments) -> BaseModelOutput:
        """The encoder alone: what `encoder_outputs` takes."""
        return self.encoder_output(given)


class EncoderPart(EncoderDecoder):
    """The encoder of an encoder-decoder alone; a mixin, put before a family's own model."""

    has_decoder = False
    heads = ()
    absent_modules = ("decoder", "lm_head")

    @property
    def site_names(self) -> ModelSites:
        names = super().site_names
        return ModelSites.of([site for site in names.names if site.startswith(ENCODER)], 0)

    @takes(*ENCODER_ARGUMENTS)
    def forward(self, given: ForwardArguments) -> BaseModelOutput:  # type: ignore[override]
        """Run the encoder."""
        return self.encoder_output(given)


def shift_right(labels: Tensor, config: Any) -> Tensor:
    """A target as its decoder gets it: shifted right by one, after the start token, or after its own last token."""
    if config.starts_with_last and config.pad_token_id is not None:
        ids = labels.masked_fill(labels == IGNORED, config.pad_token_id)
        last = (ids != config.pad_token_id).sum(1, keepdim=True) - 1
        return torch.cat((ids.gather(1, last.clamp(min=0)), ids[:, :-1]), dim=1)
    if config.decoder_start_token_id is None or config.pad_token_id is None:
        raise InputError("the config has no decoder_start_token_id or no pad_token_id, so give decoder_input_ids.")
    start = labels.new_full((len(labels), 1), config.decoder_start_token_id)
    return torch.cat((start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, config.pad_token_id)), dim=1)
