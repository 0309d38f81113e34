"""Task heads, generic over families: a base model and the last layer that turns its states into an answer.

What the last layer looks like is up to the family (`BaseModel.heads`); arguments, outputs and losses are the same for all,
and are here.

Shapes: ids (batch, length); states (batch, length, hidden); logits (batch, length, vocabulary) or (batch, labels).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.blueprints import Config, Head, routed
from glassformer.ground import sites
from glassformer.ground.errors import InputError, InputTypeError, refuse_unknown
from glassformer.ground.sites import Observer, Tap, Watch
from glassformer.ground.typecheck import brief
from glassformer.torch.base import IGNORED, BaseModel, WatchLike, holds
from glassformer.torch.cache import Cache, DynamicCache, EncoderDecoderCache, StaticCache
from glassformer.torch.container import FamilyModule, attach_module, label_modules
from glassformer.torch.encoder import first_tokens
from glassformer.torch.forward_pass import ForwardPass
from glassformer.torch.outputs import (
    CausalLMOutputWithPast,
    MaskedLMOutput,
    MoeCausalLMOutputWithPast,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    Seq2SeqQuestionAnsweringModelOutput,
    Seq2SeqSequenceClassifierOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from glassformer.torch.routed_mlp import load_balancing_loss
from glassformer.torch.seq2seq import shift_right
from glassformer.torch.tensor_checks import checked_forward


class ModelWithHead(FamilyModule):
    """A base model, under the family's own name for it, and a head."""

    base_class: ClassVar[type[BaseModel]]
    head_kind: ClassVar[Head]
    config: Any

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        base = self.base_class(config)
        name, made = base.make_head(self.head_kind)
        head: Any = made
        base.drop_unread(head)
        label_modules(head, base.declared.label)
        if config.tie_word_embeddings and self.head_kind in ("causal", "seq2seq", "masked"):
            head.output.weight = base.token_embedding.weight
        self._head_name = name
        self.__dict__["_unnamed"] = (base, head)  # not registered: under no name, only their children are modules
        attach_module(self, self.base_class.prefix, base)
        attach_module(self, name, head)

    def _get_name(self) -> str:
        return type(self).__name__

    @property
    def base_model(self) -> BaseModel:
        prefix = self.base_class.prefix
        return getattr(self, prefix) if prefix else self.__dict__["_unnamed"][0]

    @property
    def head_module(self) -> nn.Module:
        """The last layer, as the family has it."""
        return getattr(self, self._head_name) if self._head_name else self.__dict__["_unnamed"][1]

    def run_base(self, ids: Tensor | None, mask: Tensor | None, watch: WatchLike, inputs: Mapping[str, Any]) -> Any:
        """The base model's output; an argument that neither it nor the head has is refused."""
        if not torch.compiler.is_compiling():
            parameters = inspect.signature(self.base_model.forward).parameters.values()
            names = [p.name for p in parameters if p.kind != p.VAR_KEYWORD]
            refuse_unknown({name: value for name, value in inputs.items() if name not in names}, self.forward, names)
        return self.base_model(ids, attention_mask=mask, watch=watch, **inputs)

    def observe_scores(self, scores: Tensor, output: Any, watch: WatchLike, start: int = 0) -> Tensor:
        """The scores at their site, where it is watched."""
        if watch is None:
            return scores
        observer = Observer(self.base_model.watch_for(False, False, watch), start=start, record=output.sites)  # type: ignore[arg-type]
        return Tap([observer]).apply("scores", scores)

    def logits_of(
        self, output: Any, keep: int | Tensor | tuple[Tensor, Tensor] = 0, watch: WatchLike = None, start: int = 0,
        p: ForwardPass | None = None,
    ) -> Tensor:  # fmt: skip
        """The scores of some positions, seen at their site: but an executor has each row's, and observes them itself."""
        logits = self.head_module(select_positions(output.last_hidden_state, keep))
        return logits if p is not None else self.observe_scores(logits, output, watch, start)


class CausalLM(ModelWithHead):
    """Scores for the next token at every position."""

    head_kind = "causal"

    @checked_forward
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
        cache_position: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        watch: WatchLike = None,
        p: ForwardPass | None = None,
        **unknown: Any,
    ) -> CausalLMOutputWithPast:
        """Scores for the next token, at every position.

        Args:
            input_ids: token ids, (batch, length).
            attention_mask: 1 for real tokens, 0 for padding, (batch, remembered + length); or what each token sees, of four
                axes, (batch, 1, length, remembered + length): True, or numbers that are added to the scores.
            position_ids: where each token stands; by default counted from the mask.
            past_key_values: the cache of an earlier call, to go on from.
            inputs_embeds: vectors instead of ids.
            labels: ids to be predicted, usually the input itself; -100 where no loss is wanted. Gives `loss`.
            use_cache: give back a cache; on by default.
            output_attentions, output_hidden_states: also give every layer's attention weights, every layer's states.
            logits_to_keep: score only the last so many positions (0: all), or these columns, or these (rows, columns).
            cache_position: where the tokens go in the cache; nowhere but behind what it holds.
            num_items_in_batch: divide the sum of the losses by this, not by how many there are: labels of several batches.
            watch: other sites to read, by name or pattern ("blocks.*.residual"), or sites with their changes
                ({"blocks.3.residual": Change(scale=0)}), or a Watch; what was read is in the output's `sites`.
            p: a ready-made pass, from an executor, instead of mask, positions, cache and watch.
            return_dict: False for a plain tuple, as everywhere.
        """
        refuse_unknown(unknown, self.forward)
        start = past_key_values.get_seq_length() if past_key_values is not None else 0
        output = self.base_model(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=past_key_values,
            inputs_embeds=inputs_embeds, use_cache=use_cache, output_attentions=output_attentions,
            output_hidden_states=output_hidden_states, cache_position=cache_position, watch=watch, p=p,
        )  # fmt: skip
        logits = self.logits_of(output, logits_to_keep, watch, start, p)
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch=num_items_in_batch, shift=1)
        return output.convert_to(CausalLMOutputWithPast, loss=loss, logits=logits)


class Seq2SeqLM(ModelWithHead):
    """Scores for the next token of a target, given a source."""

    head_kind = "seq2seq"

    @checked_forward
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | DynamicCache | StaticCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        logits_to_keep: int | Tensor | tuple[Tensor, Tensor] = 0,
        cache_position: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        watch: WatchLike = None,
        p: ForwardPass | None = None,
        **unknown: Any,
    ) -> Seq2SeqLMOutput:
        """Scores for the next token of the target, at every position.

        Args:
            input_ids: the source's token ids, (batch, source).
            attention_mask: 1 for real tokens of the source, 0 for padding.
            decoder_input_ids: the target so far, beginning with the start token; from `labels` if those are given.
            decoder_attention_mask: the same as `attention_mask`, for the target.
            encoder_outputs: the encoder's states from an earlier call, instead of the source.
            past_key_values: the cache of an earlier call, to go on from.
            inputs_embeds, decoder_inputs_embeds: vectors instead of ids.
            labels: the target's ids; -100 where no loss is wanted. Gives `loss`.
            num_items_in_batch: divide the sum of the losses by this, not by how many there are: labels of several batches.
            use_cache, output_attentions, output_hidden_states, logits_to_keep, cache_position, watch, p: as for every model.
        """
        refuse_unknown(unknown, self.forward)
        check_tensor(labels)
        start = past_key_values.get_seq_length() if past_key_values is not None else 0
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = shift_right(labels, self.config)
        output = self.base_model(
            input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask, encoder_outputs=encoder_outputs,
            past_key_values=past_key_values, inputs_embeds=inputs_embeds, decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache, output_attentions=output_attentions, output_hidden_states=output_hidden_states,
            cache_position=cache_position, watch=watch, p=p,
        )  # fmt: skip
        logits = self.logits_of(output, logits_to_keep, watch, start, p)
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch=num_items_in_batch)
        return output.convert_to(Seq2SeqLMOutput, loss=loss, logits=logits)


class MaskedLM(ModelWithHead):
    """Scores for the token at every position, masked or not."""

    head_kind = "masked"

    @checked_forward
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor | tuple[Tensor, Tensor] = 0,
        num_items_in_batch: int | Tensor | None = None,
        watch: WatchLike = None,
        **inputs: Any,
    ) -> MaskedLMOutput:
        """Vocabulary scores for each token.

        Args:
            input_ids, attention_mask, watch, inputs: as for the base model.
            labels: ids to be guessed, (batch, length); -100 where no loss is wanted. Gives `loss`.
            logits_to_keep: score only these columns (0: all), or these (rows, columns), such as the masked ones.
            num_items_in_batch: divide the sum of the losses by this, not by how many there are: labels of several batches.
        """
        output = self.run_base(input_ids, attention_mask, watch, inputs)
        logits = self.logits_of(output, logits_to_keep, watch)
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch=num_items_in_batch)
        return output.convert_to(MaskedLMOutput, loss=loss, logits=logits)


class TokenClassification(ModelWithHead):
    """Label scores for every token."""

    head_kind = "token"

    @property
    def num_labels(self) -> int:
        return self.config.label_count

    @checked_forward
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        watch: WatchLike = None,
        **inputs: Any,
    ) -> TokenClassifierOutput:
        """Label scores for each token.

        Args:
            input_ids, attention_mask, watch, inputs: as for the base model.
            labels: class numbers, (batch, length); -100 where no loss is wanted. Gives `loss`.
            num_items_in_batch: divide the sum of the losses by this, not by how many there are: labels of several batches.
        """
        output = self.run_base(input_ids, attention_mask, watch, inputs)
        logits = self.logits_of(output, watch=watch)
        loss = None if labels is None else token_loss(logits, labels, "labels", num_items_in_batch)
        return output.convert_to(TokenClassifierOutput, loss=loss, logits=logits)


class ReplacedTokenDetection(ModelWithHead):
    """For every token, whether it was put in place of another."""

    head_kind = "discriminator"

    @checked_forward
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        watch: WatchLike = None,
        **inputs: Any,
    ) -> TokenClassifierOutput:
        """A score for each token, (batch, length): above zero, if it was replaced.

        Args:
            input_ids, attention_mask, watch, inputs: as for the base model.
            labels: 1 for tokens that were replaced, 0 for others, (batch, length); padding is left out. Gives `loss`.
        """
        output = self.run_base(input_ids, attention_mask, watch, inputs)
        logits = self.logits_of(output, watch=watch)[..., 0]
        loss = None
        if labels is not None:
            check_tensor(labels)
            if labels.shape != logits.shape:
                raise InputError(f"labels have shape {tuple(labels.shape)}; the scores are for {tuple(logits.shape)}.")
            real = torch.ones_like(logits, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
            loss = F.binary_cross_entropy_with_logits(logits[real], labels.to(logits)[real])
        return output.convert_to(TokenClassifierOutput, loss=loss, logits=logits)


class QuestionAnswering(ModelWithHead):
    """For every token, how well an answer would begin and end there."""

    head_kind = "question"

    @checked_forward
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        watch: WatchLike = None,
        **inputs: Any,
    ) -> QuestionAnsweringModelOutput | Seq2SeqQuestionAnsweringModelOutput:
        """Scores for an answer's first and last token.

        Args:
            input_ids, attention_mask, watch, inputs: as for the base model.
            start_positions, end_positions: where the answers are, (batch,); positions past the end are ignored.
            num_items_in_batch: divide the sum of the losses by this, not by how many there are: answers of several batches.
        """
        if (start_positions is None) != (end_positions is None):
            raise InputError("give start_positions and end_positions together.")
        output = self.run_base(input_ids, attention_mask, watch, inputs)
        logits = self.logits_of(output, watch=watch)
        starts, ends = logits[..., 0].contiguous(), logits[..., 1].contiguous()
        loss = None
        if start_positions is not None and end_positions is not None:
            length = starts.shape[1]
            both = ((starts, start_positions), (ends, end_positions))
            first, last = (
                cross_entropy(scores, at.reshape(-1).to(scores.device).clamp(0, length), num_items_in_batch, length)
                for scores, at in both
            )
            loss = (first + last) / 2
        pair = isinstance(output, Seq2SeqModelOutput)
        kind = Seq2SeqQuestionAnsweringModelOutput if pair else QuestionAnsweringModelOutput
        return output.convert_to(kind, loss=loss, start_logits=starts, end_logits=ends)


class SequenceClassification(ModelWithHead):
    """One row of label scores per text, read off its first, last or end token, their mean, or the pooler."""

    head_kind = "sequence"

    @property
    def num_labels(self) -> int:
        return self.config.label_count

    @checked_forward
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        watch: WatchLike = None,
        **inputs: Any,
    ) -> SequenceClassifierOutput | Seq2SeqSequenceClassifierOutput:
        """Label scores for each text.

        Args:
            input_ids, attention_mask, watch, inputs: as for the base model.
            labels: class numbers (batch,), numbers to regress on, or 0/1 rows (batch, labels); gives `loss`.
            num_items_in_batch: for class numbers, divide the sum of the losses by this, not by how many there are.
        """
        output = self.run_base(input_ids, attention_mask, watch, inputs)
        padding = attention_mask if attention_mask is not None and attention_mask.ndim == 2 else None
        logits = self.head_module(self.classifier_input(output, input_ids, padding))
        logits = self.observe_scores(logits[:, None], output, watch)[:, 0]
        loss = None if labels is None else self.loss(logits, labels, num_items_in_batch)
        kind = Seq2SeqSequenceClassifierOutput if isinstance(output, Seq2SeqModelOutput) else SequenceClassifierOutput
        return output.convert_to(kind, loss=loss, logits=logits)

    def classifier_input(self, output: Any, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        """The vector of each text that the family's classifier reads, (batch, hidden)."""
        reads = getattr(self.head_module, "reads", "first")
        states: Tensor = output.last_hidden_state
        if reads == "pooler":
            return output.pooler_output
        if reads == "first":
            return first_tokens(states, None if mask is None else mask.bool())
        if reads == "mean":
            real = states.new_ones(states.shape[:2]) if mask is None else mask.to(states)
            return (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        columns = self.last_token_columns(ids, mask, states) if reads == "last" else self.last_eos_columns(ids)
        return states[torch.arange(states.shape[0], device=states.device), columns]

    def last_token_columns(self, ids: Tensor | None, mask: Tensor | None, states: Tensor) -> Tensor:
        """The column of each row's last real token: by the mask if there is one, else by the padding id."""
        batch, length = states.shape[:2]
        columns = torch.arange(length, device=states.device)
        if mask is not None:
            return (columns * mask[:, -length:]).argmax(-1)
        if ids is not None and (pad := self.config.pad_token_id) is not None:
            real: Tensor = ids != pad
            return (columns * real).argmax(-1)
        if batch > 1:
            raise InputError("a batch needs an attention_mask (or a pad_token_id), to know where each text ends.")
        return columns[-1:]

    def last_eos_columns(self, ids: Tensor | None) -> Tensor:
        """The column of each row's last end token."""
        if ids is None:
            raise InputError("this model's classifier reads the state of the end token, so it needs input_ids.")
        ends = ids == self.config.eos_token_id
        if holds(ends, lambda ends: ~ends.any(-1).all()):
            raise InputError(f"every text must hold the end token {self.config.eos_token_id}, whose state is classified.")
        return (torch.arange(ids.shape[1], device=ids.device) * ends).argmax(-1)

    def loss(self, logits: Tensor, labels: Tensor, num_items: int | Tensor | None = None) -> Tensor:
        """Cross-entropy for classes, mean square for numbers, per-label binary for many labels at once."""
        check_tensor(labels)
        labels = labels.to(logits.device)
        kind = self.config.problem_type
        if kind is None:
            classes = labels.dtype in (torch.long, torch.int)
            kind = "regression" if self.num_labels == 1 else "single" if classes else "multi"
        if kind == "regression":
            return F.mse_loss(logits.squeeze(), labels.to(logits.dtype).squeeze())
        if kind.startswith("multi"):
            if labels.shape != logits.shape:
                raise InputError(
                    f"labels have shape {tuple(labels.shape)}; for many labels at once it is {tuple(logits.shape)}."
                )
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        if labels.numel() != len(logits):
            raise InputError(f"labels have shape {tuple(labels.shape)}; there are {len(logits)} texts.")
        check_labels(labels, self.num_labels, "labels")
        return cross_entropy(logits, labels.view(-1).long(), num_items)


def select_positions(states: Tensor, keep: int | Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """The states to be scored."""
    if isinstance(keep, int) and keep >= 0:
        return states[:, -keep:] if keep else states
    try:
        return states[keep] if isinstance(keep, tuple) else states[:, keep]
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"logits_to_keep is {brief(keep)}; it must be how many of the last of {states.shape[1]} positions, or which."
        ) from error


def as_float32(scores: Tensor) -> Tensor:
    """In float32, or in a wider dtype."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def check_labels(labels: Tensor, count: int, what: str) -> None:
    """Refuse a label that is not one of the model's."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputTypeError(f"labels are of {labels.dtype}; they must be whole numbers, as of torch.long.")
    wrong = (labels != IGNORED) & ((labels < 0) | (labels >= count))
    if holds(wrong, Tensor.any):
        raise InputError(f"label {int(labels[wrong][0])} is outside the {count} {what} (counted from 0).")


def check_tensor(labels: object) -> None:
    """Refuse labels that are a list or a text."""
    if labels is not None and not isinstance(labels, Tensor):
        raise InputTypeError(f"labels are a tensor, such as torch.tensor([0, 1]), not {type(labels).__name__}.")


def cross_entropy(scores: Tensor, labels: Tensor, num_items: int | Tensor | None, ignored: int = IGNORED) -> Tensor:
    """The mean over all labels but the ignored one; or their sum, divided by a count that may cover several batches."""
    if num_items is None:
        return F.cross_entropy(as_float32(scores), labels, ignore_index=ignored)
    if not isinstance(num_items, (int, Tensor)) or isinstance(num_items, bool) or not bool(torch.as_tensor(num_items) > 0):
        raise InputError(f"num_items_in_batch is {brief(num_items)}; it must be how many labels there are, above 0.")
    count = num_items.to(scores.device) if isinstance(num_items, Tensor) else num_items
    return F.cross_entropy(as_float32(scores), labels, ignore_index=ignored, reduction="sum") / count


def token_loss(
    logits: Tensor,
    labels: Tensor,
    what: str = "tokens of the vocabulary",
    num_items_in_batch: int | Tensor | None = None,
    shift: int = 0,
) -> Tensor:
    """Mean cross-entropy of each token's label, or of that of the token `shift` further on; -100 is left out."""
    check_tensor(labels)
    if labels.shape != logits.shape[:2]:
        raise InputError(f"labels have shape {tuple(labels.shape)}; the scores are for {tuple(logits.shape[:2])}.")
    logits, labels = logits[:, : logits.shape[1] - shift], labels[:, shift:]
    check_labels(labels, logits.shape[-1], what)
    return cross_entropy(logits.flatten(0, 1), labels.flatten().to(logits.device).long(), num_items_in_batch)


HEADS: Mapping[str, type[ModelWithHead]] = {  # by the ending of class names
    "ForCausalLM": CausalLM,
    "ForConditionalGeneration": Seq2SeqLM,
    "ForMaskedLM": MaskedLM,
    "ForSequenceClassification": SequenceClassification,
    "ForTokenClassification": TokenClassification,
    "ForQuestionAnswering": QuestionAnswering,
    "ForPreTraining": ReplacedTokenDetection,
}


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


def head_class(base: type[BaseModel], ending: str) -> type[ModelWithHead]:
    """The class of a family's head, by the ending of class names."""
    routed_causal = ending == "ForCausalLM" and issubclass(base.config_class, routed.Config)
    return RoutedCausalLM if routed_causal else HEADS[ending]
