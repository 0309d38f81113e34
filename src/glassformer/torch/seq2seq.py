"""Encoder-decoder models: one stack reads a source, another writes a target while attending to it. T5, BART.

Shapes: ids (batch, source) and decoder ids (batch, length); states (batch, source or length, hidden).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from glassformer.blueprints.blueprint import BlockCounts, Blueprint
from glassformer.ground.errors import InputError, refuse_unknown
from glassformer.ground.sites import ENCODER, Synonyms, Tap
from glassformer.ops.module_steps import part
from glassformer.torch.attention import CrossAttention
from glassformer.torch.base import IGNORED, BaseModel, WatchLike, holds
from glassformer.torch.cache import DynamicCache, EncoderDecoderCache, StaticCache
from glassformer.torch.derivation import Derivation
from glassformer.torch.forward_pass import EncodedSource, ForwardPass
from glassformer.torch.layers import Embedding
from glassformer.torch.mask import Mask
from glassformer.torch.outputs import BaseModelOutput, Seq2SeqModelOutput
from glassformer.torch.tensor_checks import checked_forward


class EncoderDecoder(BaseModel):
    has_decoder: ClassVar[bool] = True

    encoder: Any
    decoder: Any

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
        """Each decoder block's cross-attention, for executors that project the source's keys and values at once."""
        return [module for module in self.decoder.modules() if isinstance(module, CrossAttention)]

    def embed(self, ids: Tensor | None, vectors: Tensor | None) -> Tensor:
        """The target's vectors; source and target share an embedding, unless a checkpoint has one for each."""
        if vectors is None:
            return self.decoder.embed_tokens(ids)
        return vectors * self.token_embedding.scale if self.declared.scaled_vectors else vectors

    def embed_source(self, ids: Tensor | None, vectors: Tensor | None = None) -> Tensor:
        return self.encoder.embed_tokens(ids) if vectors is None else vectors

    def encode(self, x: Tensor, p: ForwardPass) -> Tensor:
        """Embedded source tokens to the encoder's final states."""
        return self.encoder(x, p)

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        """Embedded target tokens to the decoder's final states."""
        return self.decoder(x, p)

    @checked_forward
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | Sequence[Tensor] | None = None,
        past_key_values: EncoderDecoderCache | DynamicCache | StaticCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        cache_position: Tensor | None = None,
        watch: WatchLike = None,
        p: ForwardPass | None = None,
        **unknown: Any,
    ) -> Seq2SeqModelOutput:
        """Run the base model.

        Args:
            input_ids: the source's token ids, (batch, source).
            attention_mask: 1 for real tokens of the source, 0 for padding.
            decoder_input_ids: the target's token ids so far, (batch, length), beginning with the start token.
            decoder_attention_mask: the same for the target, (batch, remembered + length); or what each token sees, of four
                axes, (batch, 1, length, remembered + length): True, or numbers that are added to the scores.
            encoder_outputs: the encoder's states from an earlier call, instead of the source.
            past_key_values: the cache of an earlier call, to go on from.
            inputs_embeds, decoder_inputs_embeds: vectors instead of ids.
            use_cache: give back a cache; on by default.
            output_attentions, output_hidden_states: also give every layer's attention weights, every layer's states.
            cache_position: where the target's tokens go in the cache; nowhere but behind what it holds.
            watch: other sites to read, by name or pattern ("blocks.*.cross.pattern", "encoder.*"), or sites with their
                changes, or a Watch; what was read is in the output's `sites`.
            p: a ready-made pass of the decoder, from an executor.
        """
        refuse_unknown(unknown, self.forward)
        encoded = None
        no_target = decoder_input_ids is None and decoder_inputs_embeds is None
        if no_target and input_ids is not None and self.declared.shifts_source:
            decoder_input_ids = shift_right(input_ids, self.config)
        if p is None:
            target = self.check_inputs(
                decoder_input_ids, decoder_inputs_embeds, ("decoder_input_ids", "decoder_inputs_embeds")
            )
            if past_key_values is None and self.wants_cache(use_cache):
                past_key_values = EncoderDecoderCache()
            elif past_key_values is not None and not isinstance(past_key_values, EncoderDecoderCache):
                past_key_values = EncoderDecoderCache(past_key_values)  # of the decoder's own tokens
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            self.check_cache_position(cache_position, past, target.shape[1])
            watched = self.watch_for(output_attentions, output_hidden_states, watch)
            tap = self.make_tap(watched, past)
            encoded = self.encode_source(input_ids, inputs_embeds, attention_mask, encoder_outputs, past_key_values, tap)
            if len(encoded.states) != len(target):
                raise InputError(f"the source has {len(encoded.states)} rows, the decoder's input {len(target)}.")
            positions, mask = self.positions_and_mask(
                target, decoder_attention_mask, None, past, name="decoder_attention_mask"
            )
            p = self.new_pass(positions, mask, past_key_values, tap, encoded)
        x = self.embed(decoder_input_ids, decoder_inputs_embeds)
        states = self.compute(x, p)
        seen = self.observed(p.tap, output_hidden_states, output_attentions, watch)
        seen["cross"] = self.attentions(p.tap.observers[0].record, "", "cross") if p.tap and output_attentions else None
        both = encoded is not None and encoder_outputs is None  # what was encoded earlier was not watched
        source = self.observed(p.tap, output_hidden_states and both, output_attentions and both, None, ENCODER)
        return Seq2SeqModelOutput(
            states, past_key_values, seen["hidden_states"], seen["attentions"],
            seen["cross"],
            encoded.states if encoded is not None else None, source["hidden_states"], source["attentions"], seen["sites"],
        )  # fmt: skip

    def encode_source(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        earlier: BaseModelOutput | Sequence[Tensor] | None,
        cache: EncoderDecoderCache | None,
        tap: Tap | None,
    ) -> EncodedSource:
        """The source as the decoder sees it: encoded now, or taken from an earlier call."""
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
            tokens = self.check_inputs(input_ids, inputs_embeds)
            positions, mask = self.positions_and_mask(tokens, attention_mask, causal=False)
            x = self.embed_source(input_ids, inputs_embeds)
            states = self.encode(x, self.new_pass(positions, mask, tap=tap))
        if mask.real_tokens is not None and holds(mask.real_tokens, lambda real: ~real.any(-1).all()):
            raise InputError("a row of the source is all padding. Give it at least one token.")
        return EncodedSource(
            states,
            Mask(mask.columns[:, :1], mask.keys, causal=False, real_tokens=mask.real_tokens, self_attention=False),
            cache,
        )

    def run_encoder(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        watch: WatchLike = None,
    ) -> BaseModelOutput:
        """The encoder alone: what `encoder_outputs` takes."""
        watched = self.watch_for(output_attentions, output_hidden_states, watch)
        tap = self.make_tap(watched)
        states = self.encode_source(input_ids, inputs_embeds, attention_mask, None, None, tap).states
        return BaseModelOutput(states, **self.observed(tap, output_hidden_states, output_attentions, watch, ENCODER))


class EncoderPart(EncoderDecoder):
    """The encoder of an encoder-decoder alone; a mixin, put before a family's own model."""

    has_decoder = False
    heads = ()
    absent_modules = ("decoder", "lm_head")

    @property
    def block_counts(self) -> BlockCounts:
        return 0, self.config.encoder_layers, (), Synonyms

    @checked_forward
    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        watch: WatchLike = None,
        **unknown: Any,
    ) -> BaseModelOutput:
        """Run the encoder.

        Args:
            input_ids: token ids, (batch, length).
            attention_mask: 1 for real tokens, 0 for padding.
            inputs_embeds: vectors instead of ids.
            output_attentions, output_hidden_states: also give every layer's attention weights, every layer's states.
            watch: other sites to read, by name or pattern ("encoder.blocks.*.residual"), or sites with their changes, or a
                Watch; what was read is in the output's `sites`.
        """
        refuse_unknown(unknown, self.forward)
        return self.run_encoder(input_ids, attention_mask, inputs_embeds, output_attentions, output_hidden_states, watch)


def shift_right(labels: Tensor, config: Any) -> Tensor:
    """A target as its decoder gets it: shifted right by one, after the start token."""
    if config.decoder_start_token_id is None or config.pad_token_id is None:
        raise InputError("the config has no decoder_start_token_id or no pad_token_id, so give decoder_input_ids.")
    start = labels.new_full((len(labels), 1), config.decoder_start_token_id)
    return torch.cat((start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, config.pad_token_id)), dim=1)
