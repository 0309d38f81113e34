"""Task heads, generic over families: a base model and the last layer that turns its states into an answer.

What the last layer looks like is up to the family (`BaseModel.heads`); arguments, outputs and losses are the same for all,
and are here.

Shapes: ids (batch, length); states (batch, length, hidden); logits (batch, length, vocabulary) or (batch, labels).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.blueprints import Config, Head, routed
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.sites import Observer, Tap, Watch
from glassformer.ground.typecheck import brief
from glassformer.torch.arguments import ForwardArguments, WatchLike, arguments_of, check_tensor, forward_with, meanings
from glassformer.torch.base import IGNORED, BaseModel, holds
from glassformer.torch.container import FamilyModule, attach_module, label_modules
from glassformer.torch.outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    ModelOutput,
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
from glassformer.torch.shapes import first_tokens, shift_right


class ModelWithHead(FamilyModule):
    """A base model, under the family's own name for it, and a head."""

    base_class: ClassVar[type[BaseModel]]
    head_kind: ClassVar[Head]
    head_arguments: ClassVar[Mapping[str, str]]  # arguments beside the base model's, and what they mean
    config: Any

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "base_class" in vars(cls):  # not a head by itself, nor somebody's subclass of a model
            arguments = {**arguments_of(cls.base_class.forward), **cls.head_arguments}
            cls.forward = forward_with(cls.compute_output, "forward", str(cls.__doc__), arguments)

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

    def run_base(self, given: ForwardArguments) -> Any:
        """The base model's output; it is called with every argument that it takes."""
        names = arguments_of(self.base_class.forward)
        named = {name: getattr(given, name) for name in names if name != "input_ids"}
        return self.base_model(given.input_ids, **named)

    def observe_scores(self, logits: Tensor, output: Any, watch: WatchLike, start: int = 0) -> Tensor:
        """The logits at the site `scores`, where it is watched."""
        if watch is None:
            return logits
        observer = Observer(self.base_model.watch_for(False, False, watch), start=start, record=output.sites)  # type: ignore[arg-type]
        return Tap([observer]).apply("scores", logits)

    def logits_of(self, output: Any, given: ForwardArguments, start: int = 0) -> Tensor:
        """The logits of the positions asked for, seen at their site."""
        logits = self.head_module(select_positions(output.last_hidden_state, given.logits_to_keep))
        return self.observe_scores(logits, output, given.watch, start)

    def compute_output(self, given: ForwardArguments) -> Any:
        """What `forward` returns."""
        raise NotImplementedError


class LabelHead(ModelWithHead):
    """A head for labels. In some encoder-decoders the decoder reads the source too, and outputs are those of its tokens."""

    def run_base(self, given: ForwardArguments) -> Any:
        if not self.base_class.declared.classifies_target:
            return super().run_base(given)
        if given.input_ids is not None and not has_target(given):
            mask = given.decoder_attention_mask
            if mask is None and given.attention_mask is not None:
                mask = F.pad(given.attention_mask[:, :-1], (1, 0), value=1)  # padding moves along
            ids = shift_right(given.input_ids, self.config)
            given = replace(given, decoder_input_ids=ids, decoder_attention_mask=mask)
        output = super().run_base(given if given.use_cache else replace(given, use_cache=False))
        seen = {"hidden_states": output.decoder_hidden_states, "attentions": output.decoder_attentions}
        return output.convert_to(BaseModelOutputWithPast, **seen)


def has_target(given: ForwardArguments) -> bool:
    """Whether a caller says what the decoder is to read."""
    return given.decoder_input_ids is not None or given.decoder_inputs_embeds is not None


class PositionScores(ModelWithHead):
    """Scores at every position, and the loss of a label for each."""

    head_arguments: ClassVar[Mapping[str, str]] = {
        "labels": "what should have been scored best, (batch, length); -100: no loss. Gives `loss`.",
        **meanings("logits_to_keep", "num_items_in_batch"),
    }
    output_class: ClassVar[type[ModelOutput]]
    scored: ClassVar[str] = "tokens of the vocabulary"
    shift: ClassVar[int] = 0

    def compute_output(self, given: ForwardArguments) -> Any:
        start = 0 if given.past_key_values is None else given.past_key_values.get_seq_length()
        output = self.run_base(given)
        logits = self.logits_of(output, given, start)
        loss = token_loss(logits, given.labels, self.scored, given.num_items_in_batch, self.shift)
        return output.convert_to(self.output_class, loss=loss, logits=logits)


class CausalLM(PositionScores):
    """Scores for the next token at every position."""

    head_kind = "causal"
    head_arguments: ClassVar[Mapping[str, str]] = {
        **PositionScores.head_arguments,
        "labels": "ids to be predicted, usually the input itself; -100 where no loss is wanted. Gives `loss`.",
    }
    output_class = CausalLMOutputWithPast
    shift = 1


class Seq2SeqLM(PositionScores):
    """Scores for the next token of a target, given a source."""

    head_kind = "seq2seq"
    head_arguments: ClassVar[Mapping[str, str]] = {
        **PositionScores.head_arguments,
        "labels": "the target's ids; -100 where no loss is wanted. Gives `loss`.",
        "decoder_input_ids": "the target so far, beginning with the start token; made of `labels` if those are given.",
    }
    output_class = Seq2SeqLMOutput

    def compute_output(self, given: ForwardArguments) -> Any:
        if given.labels is not None and not has_target(given):
            given = replace(given, decoder_input_ids=shift_right(given.labels, self.config))
        return super().compute_output(given)


class MaskedLM(PositionScores):
    """Scores for the token at every position, masked or not."""

    head_kind = "masked"
    output_class = MaskedLMOutput


class TokenClassification(PositionScores, LabelHead):
    """Label scores for every token."""

    head_kind = "token"
    head_arguments: ClassVar[Mapping[str, str]] = {
        "labels": "class indices, (batch, length); -100 where no loss is wanted. Gives `loss`.",
        **meanings("num_items_in_batch"),
    }
    output_class = TokenClassifierOutput
    scored = "labels"

    @property
    def num_labels(self) -> int:
        return self.config.label_count


class ReplacedTokenDetection(ModelWithHead):
    """For every token, whether it was put in place of another: a score, (batch, length), above zero if it was."""

    head_kind = "discriminator"
    head_arguments: ClassVar[Mapping[str, str]] = {
        "labels": "1 for tokens that were replaced, 0 for others, (batch, length); padding is left out. Gives `loss`."
    }

    def compute_output(self, given: ForwardArguments) -> TokenClassifierOutput:
        output, labels, mask = self.run_base(given), given.labels, given.attention_mask
        logits = self.logits_of(output, given)[..., 0]
        loss = None
        if labels is not None:
            if labels.shape != logits.shape:
                raise InputError(f"labels have shape {tuple(labels.shape)}; the scores are for {tuple(logits.shape)}.")
            real = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask.bool()
            loss = F.binary_cross_entropy_with_logits(logits[real], labels.to(logits)[real])
        return output.convert_to(TokenClassifierOutput, loss=loss, logits=logits)


class QuestionAnswering(ModelWithHead):
    """For every token, how well an answer would begin and end there."""

    head_kind = "question"
    head_arguments: ClassVar[Mapping[str, str]] = meanings("start_positions", "end_positions", "num_items_in_batch")

    def compute_output(self, given: ForwardArguments) -> QuestionAnsweringModelOutput | Seq2SeqQuestionAnsweringModelOutput:
        start, end, count = given.start_positions, given.end_positions, given.num_items_in_batch
        if (start is None) != (end is None):
            raise InputError("give start_positions and end_positions together.")
        output = self.run_base(given)
        logits = self.logits_of(output, given)
        starts, ends = logits[..., 0].contiguous(), logits[..., 1].contiguous()
        loss = None
        if start is not None and end is not None:
            length = starts.shape[1]
            first, last = (
                cross_entropy(scores, positions.reshape(-1).to(scores.device).clamp(0, length), count, length)
                for scores, positions in ((starts, start), (ends, end))
            )
            loss = (first + last) / 2
        pair = isinstance(output, Seq2SeqModelOutput)
        kind = Seq2SeqQuestionAnsweringModelOutput if pair else QuestionAnsweringModelOutput
        return output.convert_to(kind, loss=loss, start_logits=starts, end_logits=ends)


class SequenceClassification(LabelHead):
    """One row of label scores per text, read off its first, last or end token, their mean, or the pooler."""

    head_kind = "sequence"
    head_arguments: ClassVar[Mapping[str, str]] = {
        "labels": "class indices (batch,), numbers to regress on, or 0/1 rows (batch, labels); gives `loss`.",
        "num_items_in_batch": "for class indices, divide the sum of the losses by this instead of by their count.",
    }

    @property
    def num_labels(self) -> int:
        return self.config.label_count

    def compute_output(self, given: ForwardArguments) -> SequenceClassifierOutput | Seq2SeqSequenceClassifierOutput:
        output, mask = self.run_base(given), given.attention_mask
        padding = mask if mask is not None and mask.ndim == 2 else None
        logits = self.head_module(self.classifier_input(output, given, padding))
        logits = logits if logits.ndim == 2 else mean_over_text(logits, padding)  # what it pools is inside of it
        logits = self.observe_scores(logits[:, None], output, given.watch)[:, 0]
        loss = None if given.labels is None else self.loss(logits, given.labels, given.num_items_in_batch)
        kind = Seq2SeqSequenceClassifierOutput if isinstance(output, Seq2SeqModelOutput) else SequenceClassifierOutput
        return output.convert_to(kind, loss=loss, logits=logits)

    def classifier_input(self, output: Any, given: ForwardArguments, mask: Tensor | None) -> Tensor:
        """The vector of each text that the family's classifier reads, (batch, hidden)."""
        reads = getattr(self.head_module, "reads", "first")
        states: Tensor = output.last_hidden_state
        if reads == "pooler":
            return output.pooler_output
        if reads == "first":
            return first_tokens(states, None if mask is None else mask.bool())
        if reads == "mean":
            return mean_over_text(states, mask)
        if reads == "all":
            return states
        columns = self.last_token_columns(given, mask, states) if reads == "last" else self.last_eos_columns(given.input_ids)
        return states[torch.arange(states.shape[0], device=states.device), columns]

    def last_token_columns(self, given: ForwardArguments, mask: Tensor | None, states: Tensor) -> Tensor:
        """The column of each row's last real token: by the mask if there is one, else by the padding id. A caller's target
        begins with a token more than the source, by which it is known."""
        batch, length = states.shape[:2]
        ids, pad = given.input_ids, self.config.pad_token_id
        real = mask if mask is not None else ids != pad if ids is not None and pad is not None else None
        if real is None and batch > 1:
            raise InputError("a batch needs an attention_mask (or a pad_token_id), to know where each text ends.")
        if real is None:
            return torch.tensor([length - 1], device=states.device)
        if has_target(given):
            return ((torch.arange(real.shape[1], device=states.device) * real).argmax(-1) + 1).clamp(max=length - 1)
        return (torch.arange(length, device=states.device) * real[:, -length:]).argmax(-1)

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


def mean_over_text(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of a text's tokens without its padding: (batch, length, size) to (batch, size)."""
    real = values.new_ones(values.shape[:2]) if mask is None else mask.to(values)
    return (values * real[..., None]).sum(1) / real.sum(1, keepdim=True)


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


def as_float32(logits: Tensor) -> Tensor:
    """In float32, or in a wider dtype."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def check_labels(labels: Tensor, count: int, what: str) -> None:
    """Refuse a label that is not one of the model's."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputTypeError(f"labels are of {labels.dtype}; they must be whole numbers, as of torch.long.")
    wrong = (labels != IGNORED) & ((labels < 0) | (labels >= count))
    if holds(wrong, Tensor.any):
        raise InputError(f"label {int(labels[wrong][0])} is outside the {count} {what} (counted from 0).")


def cross_entropy(logits: Tensor, labels: Tensor, num_items: int | Tensor | None, ignored: int = IGNORED) -> Tensor:
    """The mean over all labels but the ignored one; or their sum, divided by a count that may cover several batches."""
    if num_items is None:
        return F.cross_entropy(as_float32(logits), labels, ignore_index=ignored)
    if not isinstance(num_items, (int, Tensor)) or isinstance(num_items, bool) or not bool(torch.as_tensor(num_items) > 0):
        raise InputError(f"num_items_in_batch is {brief(num_items)}; it must be how many labels there are, above 0.")
    count = num_items.to(logits.device) if isinstance(num_items, Tensor) else num_items
    return F.cross_entropy(as_float32(logits), labels, ignore_index=ignored, reduction="sum") / count


def token_loss(
    logits: Tensor,
    labels: Tensor | None,
    what: str = "tokens of the vocabulary",
    num_items_in_batch: int | Tensor | None = None,
    shift: int = 0,
) -> Tensor | None:
    """Mean cross-entropy of each token's label, or of that of the token `shift` further on; -100 is left out."""
    if labels is None:
        return None
    check_tensor("labels", labels)
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

    head_arguments: ClassVar[Mapping[str, str]] = {
        **CausalLM.head_arguments,
        "output_router_logits": "also return every router's scores, and the loss of uneven loads, which is then a part of "
        "`loss`; by default as the config says.",
    }

    def compute_output(self, given: ForwardArguments) -> Any:
        c, watch, attention_mask = self.config, given.watch, given.attention_mask
        wanted = c.output_router_logits if given.output_router_logits is None else given.output_router_logits
        wanted = wanted and given.p is None
        asked = None if watch is None else self.base_model.watch_for(False, False, watch)
        routers = frozenset(self.base_model.site_names.expand([ROUTERS])) if wanted else frozenset()
        reads = routers | (frozenset() if asked is None else asked.reads)
        observed = Watch(reads, {} if asked is None else asked.changes) if wanted else watch
        output = super().compute_output(replace(given, watch=observed))
        if not wanted:
            return output.convert_to(MoeCausalLMOutputWithPast)
        record = dict(output.sites or {})
        logits = tuple(record[site].flatten(0, -2) for site in sorted(routers, key=list(record).index))
        visible = {site: value for site, value in record.items() if asked is not None and site in asked.reads}
        real = attention_mask if attention_mask is not None and attention_mask.ndim == 2 else None
        real = None if real is None else real[:, -record[next(iter(routers))].shape[1] :]  # of the tokens of this call
        loss, extra = output.loss, load_balancing_loss(logits, c.num_experts_per_tok, real)
        return output.convert_to(
            MoeCausalLMOutputWithPast, loss=None if loss is None else loss + c.router_aux_loss_coef * extra,
            aux_loss=extra, router_logits=logits, sites=None if asked is None else visible,
        )  # fmt: skip


def head_class(base: type[BaseModel], ending: str) -> type[ModelWithHead]:
    """The class of a family's head, by the ending of class names."""
    routed_causal = ending == "ForCausalLM" and issubclass(base.config_class, routed.Config)
    return RoutedCausalLM if routed_causal else HEADS[ending]
