"""What a model with experts has beside others: router logits, and the loss that keeps the experts' loads even."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from glassformer.families.shared.base import WatchLike
from glassformer.families.shared.heads import CausalLM
from glassformer.families.shared.outputs import MoeCausalLMOutputWithPast
from glassformer.families.shared.tensor_checks import checked_forward
from glassformer.ground import sites
from glassformer.ground.sites import Watch
from glassformer.layers import ForwardPass
from glassformer.layers.cache import Cache
from glassformer.layers.routed_mlp import load_balancing_loss

ROUTERS = "blocks.*.mlp.router"


class RoutedCausalLM(CausalLM):
    """Scores for the next token at every position."""

    @checked_forward
    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_router_logits: bool | None = None,
        logits_to_keep: int | Tensor | tuple[Tensor, Tensor] = 0,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        cache_position: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        watch: WatchLike = None,
        p: ForwardPass | None = None,
        **unknown: Any,
    ) -> MoeCausalLMOutputWithPast:
        """Scores for the next token, at every position.

        Args:
            output_router_logits: also give every router's scores, and the loss of uneven loads, which is then a part of
                `loss`; by default as the config says.
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, labels, use_cache, logits_to_keep,
            output_attentions, output_hidden_states, cache_position, num_items_in_batch, watch, p: as for every model.
        """
        c = self.config
        wanted = p is None and (c.output_router_logits if output_router_logits is None else output_router_logits)
        own = None if watch is None else self.base_model.watch_for(False, False, watch)
        routers = frozenset(sites.expand([ROUTERS], *self.base_model.block_counts)) if wanted else frozenset()
        reads = routers | (frozenset() if own is None else own.reads)
        observed = Watch(reads, {} if own is None else own.changes) if wanted else watch
        output = super().forward(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, labels, use_cache,
            output_attentions, output_hidden_states, logits_to_keep, cache_position, num_items_in_batch, observed, p,
            **unknown,
        )  # fmt: skip
        if not wanted:
            return output.convert_to(MoeCausalLMOutputWithPast)
        record = dict(output.sites or {})
        logits = tuple(record[site].flatten(0, -2) for site in sorted(routers, key=list(record).index))
        visible = {site: value for site, value in record.items() if own is not None and site in own.reads}
        real = attention_mask if attention_mask is not None and attention_mask.ndim == 2 else None
        real = None if real is None else real[:, -record[next(iter(routers))].shape[1] :]  # of the tokens of this call
        loss, extra = output.loss, load_balancing_loss(logits, c.num_experts_per_tok, real)
        return output.convert_to(
            MoeCausalLMOutputWithPast, loss=None if loss is None else loss + c.router_aux_loss_coef * extra,
            aux_loss=extra, router_logits=logits, sites=None if own is None else visible,
        )  # fmt: skip
