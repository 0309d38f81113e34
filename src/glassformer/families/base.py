"""The base model's familiar face: ids and masks in, a `Pass` through the family's own computation, outputs out.

Shapes: ids (batch, length); attention_mask (batch, keys); states (batch, length, hidden).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from glassformer import sites
from glassformer.blueprints import Config
from glassformer.cache import Cache, DynamicCache
from glassformer.errors import InputError, InputTypeError, refuse, refuse_text
from glassformer.layers import Embedding, Mask, Part, Pass, Rotary, christen
from glassformer.outputs import BaseModelOutputWithPast
from glassformer.sites import Change, Tap, View, Watch

Watching: TypeAlias = Watch | Mapping[str, Change] | str | Sequence[str] | None


class Base(Part):
    """A family without a head. Subclasses build their modules, call `ready`, and say how they `compute`."""

    family: str
    config_class: ClassVar[type[Config]]
    prefix: ClassVar[str] = "model"  # what the base is called inside a model with a head
    config: Any

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def ready(self, blocks: nn.ModuleList) -> None:
        """Called when all modules are in place."""
        christen(self, self.family, blocks)

    def _get_name(self) -> str:
        return type(self).__name__

    @property
    def embeddings(self) -> Embedding:
        """The table from ids to vectors."""
        raise NotImplementedError

    def turns(self, positions: Tensor, dtype: torch.dtype) -> dict[str, Rotary]:
        """The rotary tables of a pass, by name; none for families that place tokens otherwise."""
        return {}

    def compute(self, x: Tensor, p: Pass) -> Tensor:
        """The family itself: embedded tokens to final states."""
        raise NotImplementedError

    def begin(self, positions: Tensor, mask: Mask, cache: Cache | None = None, tap: Tap | None = None) -> Pass:
        """A pass for tokens at these positions."""
        return Pass(mask, self.turns(positions, self.embeddings.weight.dtype), cache, tap)

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
        watch: Watching = None,
        p: Pass | None = None,
        **unknown: Any,
    ) -> BaseModelOutputWithPast:
        """Run the base model.

        Args:
            input_ids: token ids, (batch, length).
            attention_mask: 1 for real tokens, 0 for padding, (batch, remembered + length).
            position_ids: where each token stands; by default counted from the mask.
            past_key_values: the cache of an earlier call, to go on from.
            inputs_embeds: vectors instead of ids.
            use_cache: give back a cache; on by default.
            output_attentions, output_hidden_states: also give every layer's attention weights, every layer's states.
            watch: other sites to read, by name or pattern ("blocks.*.residual"), or sites with their changes
                ({"blocks.3.residual": Change(scale=0)}), or a Watch; what was read is in the output's `sites`.
            p: a ready-made pass, from an executor, instead of mask, positions, cache and watch.
        """
        refuse(unknown, self.forward)
        if p is None:
            asked = self.watching(output_attentions, output_hidden_states, watch)
            p = self.prepare(input_ids, inputs_embeds, attention_mask, position_ids, past_key_values, use_cache, asked)
        x = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        states = self.compute(x, p)
        record = p.tap.views[0].record if p.tap is not None else {}
        return BaseModelOutputWithPast(
            states,
            p.cache,
            self.hidden_states(record) if output_hidden_states else None,
            self.attentions(record) if output_attentions else None,
            record if watch is not None else None,
        )

    # What a pass is made of -------------------------------------------------------------------------------------

    def watching(self, attentions: bool, states: bool, watch: Watching) -> Watch | None:
        """The sites behind the familiar flags, joined with whatever else is watched."""
        reads: set[str] = set()
        if attentions:
            reads.update(sites.expand(["blocks.*.attention.pattern"], self.config.num_hidden_layers))
        if states:
            reads.update(sites.expand(["embedding", "blocks.*.residual", "final"], self.config.num_hidden_layers))
        if watch is None:
            return Watch(frozenset(reads)) if reads else None
        asked = Watch.asked(watch, self.config.num_hidden_layers)
        return Watch(asked.reads | reads, asked.changes)

    def hidden_states(self, record: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """What entered each block, and what came out of the last norm, as the field counts them."""
        inner = (record[f"blocks.{number}.residual"] for number in range(self.config.num_hidden_layers - 1))
        return (record["embedding"], *inner, record["final"])

    def attentions(self, record: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return tuple(record[f"blocks.{number}.attention.pattern"] for number in range(self.config.num_hidden_layers))

    def prepare(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache | None,
        use_cache: bool | None,
        watch: Watch | None,
    ) -> Pass:
        """Check a caller's tensors and make the pass that they describe."""
        tokens = self.check(input_ids, inputs_embeds)
        batch, length = tokens.shape[:2]
        if cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = DynamicCache()
        past = cache.get_seq_length() if cache is not None else 0
        keys = past + length
        columns = torch.arange(past, keys, device=tokens.device)[None]
        positions, present = columns, None
        if attention_mask is not None:
            if attention_mask.shape != (batch, keys):
                raise InputError(
                    f"attention_mask has shape {tuple(attention_mask.shape)}; with {past} remembered tokens and "
                    f"{length} new ones it must be {(batch, keys)}."
                )
            present = attention_mask.bool()
            if bool(present.all()):
                present = None
            else:
                positions = (present.cumsum(-1) - 1).clamp(min=0)[:, past:]
        if position_ids is not None:
            positions = position_ids.to(tokens.device)
        mask = Mask(columns, keys, present=present)
        tap = Tap([View(watch, start=past)]) if watch is not None else None
        return self.begin(positions, mask, cache, tap)

    def check(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """The tensor that says what runs: whole ids in range, or vectors."""
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give either input_ids or inputs_embeds, and not both.")
        if inputs_embeds is not None:
            return inputs_embeds
        check_ids(input_ids, self.config.vocab_size, "the model")
        assert input_ids is not None
        return input_ids


def check_ids(ids: object, vocabulary: int, where: str) -> Tensor:
    """A (batch, length) tensor of whole numbers inside the vocabulary, or an error that says what else it is."""
    if not isinstance(ids, Tensor):
        refuse_text(ids, where)
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputTypeError(f"{where} takes whole token ids, not {ids.dtype}. Use torch.long.")
    if ids.ndim != 2:
        raise InputError(f"{where} takes ids of shape (batch, length), not {tuple(ids.shape)}. Add a batch axis: ids[None].")
    if ids.numel() == 0:
        raise InputError(f"{where} was given an empty prompt: ids of shape {tuple(ids.shape)}. Give at least one token.")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise InputError(
            f"{where} was given token id {wrong}, outside the vocabulary of {vocabulary}. Is this the model's own tokenizer?"
        )
    return ids
