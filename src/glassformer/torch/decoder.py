"""Decoder-only models: each token sees itself and what came before. Llama, Qwen, Mistral, Gemma, GPT-2, the scratch model.

Shapes: ids (batch, length); attention_mask (batch, remembered + length); states (batch, length, hidden).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from glassformer.torch.arguments import ForwardArguments, meanings, takes
from glassformer.torch.base import BaseModel
from glassformer.torch.cache import DynamicCache
from glassformer.torch.forward_pass import ForwardPass
from glassformer.torch.outputs import BaseModelOutputWithPast

CACHED_MASK = meanings("decoder_attention_mask")["decoder_attention_mask"]  # which covers the remembered tokens too


class Decoder(BaseModel):
    @takes(
        "input_ids", "position_ids", "past_key_values", "inputs_embeds", "use_cache", "output_attentions",
        "output_hidden_states", "cache_position", "watch", "p", attention_mask=CACHED_MASK,
    )  # fmt: skip
    def forward(self, given: ForwardArguments) -> BaseModelOutputWithPast:
        """Run the base model."""
        p = given.p or self.prepare(given)
        x = self.embed(given.input_ids, given.inputs_embeds)
        return BaseModelOutputWithPast(self.compute(x, p), p.cache, **self.observed(p.tap, given))

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
