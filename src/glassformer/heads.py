"""Task heads, generic over families: a base model and the last layer that turns its states into an answer.

Shapes: ids (batch, length); states (batch, length, hidden); logits (batch, length, vocabulary) or (batch, labels).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.blueprints import Config, Head
from glassformer.cache import Cache
from glassformer.errors import InputError, refuse
from glassformer.families import Base
from glassformer.families.base import Watching
from glassformer.layers import Linear, Part, Pass
from glassformer.outputs import BaseModelOutputWithPast, CausalLMOutputWithPast, SequenceClassifierOutputWithPast


class WithHead(Part):
    """A base model under the family's own name for it, and a head beside it."""

    base_class: ClassVar[type[Base]]
    head: ClassVar[Head]
    config: Any

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.add_module(self.base_class.prefix, self.base_class(config))

    def _get_name(self) -> str:
        return type(self).__name__

    @property
    def base_model(self) -> Base:
        base: Base = getattr(self, self.base_class.prefix)
        return base

    def states(
        self, ids: Tensor | None, vectors: Tensor | None, attentions: bool, states: bool, watch: Watching, p: Pass
    ) -> BaseModelOutputWithPast:
        """The base model's output for a prepared pass."""
        found: BaseModelOutputWithPast = self.base_model(
            ids, inputs_embeds=vectors, output_attentions=attentions, output_hidden_states=states, watch=watch, p=p
        )
        return found


class CausalLM(WithHead):
    """Scores for the next token at every position."""

    head = "causal"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.base_model.embeddings.weight

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        logits_to_keep: int | Tensor | tuple[Tensor, Tensor] = 0,
        watch: Watching = None,
        p: Pass | None = None,
        **unknown: Any,
    ) -> CausalLMOutputWithPast:
        """Scores for the next token, at every position.

        Args:
            input_ids: token ids, (batch, length).
            attention_mask: 1 for real tokens, 0 for padding, (batch, remembered + length).
            position_ids: where each token stands; by default counted from the mask.
            past_key_values: the cache of an earlier call, to go on from.
            inputs_embeds: vectors instead of ids.
            labels: ids to be predicted, usually the input itself; -100 where no loss is wanted. Gives `loss`.
            use_cache: give back a cache; on by default.
            output_attentions, output_hidden_states: also give every layer's attention weights, every layer's states.
            logits_to_keep: score only the last so many positions (0: all), or these columns, or these (rows, columns).
            watch: other sites to read, by name or pattern ("blocks.*.residual"), or sites with their changes
                ({"blocks.3.residual": Change(scale=0)}), or a Watch; what was read is in the output's `sites`.
            p: a ready-made pass, from an executor, instead of mask, positions, cache and watch.
        """
        refuse(unknown, self.forward)
        base, given = self.base_model, p
        if p is None:
            asked = base.watching(output_attentions, output_hidden_states, watch)
            p = base.prepare(input_ids, inputs_embeds, attention_mask, position_ids, past_key_values, use_cache, asked)
        found = self.states(input_ids, inputs_embeds, output_attentions, output_hidden_states, watch, p)
        assert found.last_hidden_state is not None
        logits = self.lm_head(_kept(found.last_hidden_state, logits_to_keep))
        if given is None:  # an executor keeps the scores of each row apart, and shows them itself
            logits = self.touch("scores", logits, p)
        loss = None if labels is None else next_token_loss(logits, labels)
        return CausalLMOutputWithPast(
            loss, logits, found.past_key_values, found.hidden_states, found.attentions, found.sites
        )


def _kept(states: Tensor, keep: int | Tensor | tuple[Tensor, Tensor]) -> Tensor:
    if isinstance(keep, int):
        return states[:, -keep:] if keep else states
    return states[keep] if isinstance(keep, tuple) else states[:, keep]


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each label given what came before it; -100 is left out."""
    if labels.shape != logits.shape[:2]:
        raise InputError(f"labels have shape {tuple(labels.shape)}; the scores are for {tuple(logits.shape[:2])}.")
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten().to(logits.device))


class SequenceClassification(WithHead):
    """One row of label scores per text, read off its last token that is no padding."""

    head = "sequence"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels or 2
        self.score = Linear(config.hidden_size, self.num_labels, bias=False)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        watch: Watching = None,
        **unknown: Any,
    ) -> SequenceClassifierOutputWithPast:
        """Label scores for each text.

        Args:
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds: as for every model.
            labels: class numbers (batch,), numbers to regress on, or 0/1 rows (batch, labels); gives `loss`.
            output_attentions, output_hidden_states, watch: what else to give back.
        """
        refuse(unknown, self.forward)
        base = self.base_model
        asked = base.watching(output_attentions, output_hidden_states, watch)
        p = base.prepare(input_ids, inputs_embeds, attention_mask, position_ids, past_key_values, use_cache, asked)
        found = self.states(input_ids, inputs_embeds, output_attentions, output_hidden_states, watch, p)
        states = found.last_hidden_state
        assert states is not None
        last = self.last_tokens(input_ids, attention_mask, states)
        logits = self.score(states[torch.arange(states.shape[0], device=states.device), last])  # (batch, labels)
        if p.tap is not None:
            logits = self.touch("scores", logits[:, None], p)[:, 0]
        loss = None if labels is None else self.loss(logits, labels)
        return SequenceClassifierOutputWithPast(
            loss, logits, found.past_key_values, found.hidden_states, found.attentions, found.sites
        )

    def last_tokens(self, ids: Tensor | None, mask: Tensor | None, states: Tensor) -> Tensor:
        """The column of each row's last real token: by the mask if there is one, else by the padding id."""
        batch, length = states.shape[:2]
        columns = torch.arange(length, device=states.device)
        if mask is not None:
            return (columns * mask[:, -length:]).argmax(-1)
        if ids is not None and (pad := self.config.pad_token_id) is not None:
            kept: Tensor = ids != pad
            return (columns * kept).argmax(-1)
        if batch > 1:
            raise InputError("a batch needs an attention_mask (or a pad_token_id), to know where each text ends.")
        return columns[-1:]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy for classes, mean square for numbers, per-label binary for many labels at once."""
        labels = labels.to(logits.device)
        kind = self.config.problem_type
        if kind is None:
            whole = labels.dtype in (torch.long, torch.int)
            kind = "regression" if self.num_labels == 1 else "single" if whole else "multi"
        if kind == "regression":
            return F.mse_loss(logits.squeeze(), labels.to(logits.dtype).squeeze())
        if kind.startswith("multi"):
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        if labels.numel() and int(labels.max()) >= self.num_labels:
            raise InputError(f"label {int(labels.max())} is outside the {self.num_labels} labels (counted from 0).")
        return F.cross_entropy(logits.view(-1, self.num_labels), labels.view(-1))


HEADS: dict[str, type[WithHead]] = {"ForCausalLM": CausalLM, "ForSequenceClassification": SequenceClassification}
