"""Decoder-only models: each token sees itself and what came before. Llama, Qwen, Mistral, Gemma, GPT-2, the scratch model.

Shapes: ids (batch, length); attention_mask (batch, remembered + length); states (batch, length, hidden).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from glassformer.ground.errors import refuse_unknown
from glassformer.ground.sites import Watch
from glassformer.torch.base import BaseModel, WatchLike
from glassformer.torch.cache import Cache, DynamicCache
from glassformer.torch.forward_pass import ForwardPass
from glassformer.torch.outputs import BaseModelOutputWithPast
from glassformer.torch.tensor_checks import checked_forward


class Decoder(BaseModel):
    @checked_forward
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        cache_position: Tensor | None = None,
        watch: WatchLike = None,
        p: ForwardPass | None = None,
        **unknown: Any,
    ) -> BaseModelOutputWithPast:
        """Run the base model.

        Args:
            input_ids: token ids, (batch, length).
            attention_mask: 1 for real tokens, 0 for padding, (batch, remembered + length); or what each token sees, of four
                axes, (batch, 1, length, remembered + length): True, or numbers that are added to the scores.
            position_ids: where each token stands; by default counted from the mask.
            past_key_values: the cache of an earlier call, to go on from.
            inputs_embeds: vectors instead of ids.
            use_cache: give back a cache; on by default.
            output_attentions, output_hidden_states: also give every layer's attention weights, every layer's states.
            cache_position: where the tokens go in the cache; nowhere but behind what it holds.
            watch: other sites to read, by name or pattern ("blocks.*.residual"), or sites with their changes
                ({"blocks.3.residual": Change(scale=0)}), or a Watch; what was read is in the output's `sites`.
            p: a ready-made pass, from an executor, instead of mask, positions, cache and watch.
            return_dict: False for a plain tuple, as everywhere.
        """
        refuse_unknown(unknown, self.forward)
        if p is None:
            watched = self.watch_for(output_attentions, output_hidden_states, watch)
            p = self.prepare(
                input_ids, inputs_embeds, attention_mask, position_ids, past_key_values, use_cache, watched, cache_position
            )
        x = self.embed(input_ids, inputs_embeds)
        states = self.compute(x, p)
        return BaseModelOutputWithPast(
            states, p.cache, **self.observed(p.tap, output_hidden_states, output_attentions, watch)
        )

    @staticmethod
    def cache_of(layers: Sequence[tuple[Tensor, Tensor]]) -> DynamicCache:
        """A cache that holds these keys and values of each layer, computed elsewhere."""
        cache = DynamicCache()
        cache.refill(layers)
        return cache

    def prepare(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache | None,
        use_cache: bool | None,
        watch: Watch | None,
        cache_position: Tensor | None = None,
    ) -> ForwardPass:
        """Check a caller's tensors and make the pass that they describe."""
        tokens = self.check_inputs(input_ids, inputs_embeds)
        if cache is None and self.wants_cache(use_cache):
            cache = DynamicCache()
        past = cache.get_seq_length() if cache is not None else 0
        self.check_cache_position(cache_position, past, tokens.shape[1])
        positions, mask = self.positions_and_mask(tokens, attention_mask, position_ids, past)
        return self.new_pass(positions, mask, cache, self.make_tap(watch, past))
