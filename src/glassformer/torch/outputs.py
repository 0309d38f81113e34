"""Model outputs: named fields, by attribute, by key, or by index.

    output.logits · output["logits"] · output[0]

Fields that were not requested are None; they have an attribute but no key and no index. An output is a dict and a node of
torch's pytrees, by which the field's libraries find the tensors in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from torch import Tensor
from torch.utils import _pytree as pytree

from glassformer.ground.errors import did_you_mean
from glassformer.ground.transformers_isinstance import FamiliarClass
from glassformer.torch.cache import Cache

Out = TypeVar("Out", bound="ModelOutput")


@dataclass
class ModelOutput(FamiliarClass, dict[str, Any]):
    transformers_classes = ("transformers.utils.generic.ModelOutput",)

    def __init_subclass__(cls) -> None:
        pytree.register_pytree_node(
            cls,
            lambda output: (list(output.values()), list(output)),
            lambda values, names: cls(**dict(zip(names, values, strict=True))),
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        )

    def __post_init__(self) -> None:
        """A mapping, or pairs of names and values, can be given instead of fields, as to a dict."""
        first, *others = fields(self)
        pairs = getattr(self, first.name)
        if isinstance(pairs, (Mapping, Iterator)) and all(getattr(self, other.name) is None for other in others):
            setattr(self, first.name, None)
            self.update(pairs)

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields that are there, in order, and what was added to them."""
        declared = {f.name: None for f in fields(self) if f.name in self}
        return tuple(self[name] for name in {**declared, **self})

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if value is None and name in self:
            super().__delitem__(name)
        elif value is not None and name in self.__dataclass_fields__:
            super().__setitem__(name, value)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)
        if name not in self.__dataclass_fields__:  # pipelines hand inputs on in an output
            super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self[name]  # raises for a name that is not there
        setattr(self, name, None)

    pop, popitem, clear = MutableMapping.pop, MutableMapping.popitem, MutableMapping.clear  # so that attributes follow
    update, setdefault = MutableMapping.update, MutableMapping.setdefault

    def convert_to(self, kind: type[Out], **values: Any) -> Out:
        """An output of another class: the fields that both have, and these values."""
        shared = {name: value for name, value in self.items() if name in kind.__dataclass_fields__}
        return kind(**{**shared, **values})

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, (int, slice)):
            return self.to_tuple()[key]
        if key in self:
            return super().__getitem__(key)
        hint = did_you_mean(key, self)
        raise KeyError(f"{type(self).__name__} has no {key!r}; it has {', '.join(self)}.{hint}")


# What outputs are composed of. A dataclass takes its fields from its last base first.


@dataclass
class _States(ModelOutput):
    last_hidden_state: Tensor | None = None  # (batch, length, hidden); of an encoder-decoder: the decoder's


@dataclass
class _Pooled(ModelOutput):
    pooler_output: Tensor | None = None  # (batch, hidden)


@dataclass
class _Logits(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor | None = None  # (batch, length, vocabulary), (batch, length, labels) or (batch, labels)


@dataclass
class _SpanLogits(ModelOutput):
    loss: Tensor | None = None
    start_logits: Tensor | None = None  # (batch, length)
    end_logits: Tensor | None = None


@dataclass
class _RoutedLogits(ModelOutput):
    loss: Tensor | None = None  # with `aux_loss`, by the config's weight of it
    aux_loss: Tensor | None = None  # how unevenly the tokens are spread over the experts
    logits: Tensor | None = None


@dataclass
class _RouterLogits(ModelOutput):
    router_logits: tuple[Tensor, ...] | None = None  # one per block that has experts: (batch · length, experts)


@dataclass
class _Past(ModelOutput):
    past_key_values: Cache | None = None


@dataclass
class _InnerStates(ModelOutput):
    hidden_states: tuple[Tensor, ...] | None = None  # blocks + 1 of (batch, length, hidden)
    attentions: tuple[Tensor, ...] | None = None  # one per block that attends: (batch, heads, length, keys)
    sites: Mapping[str, Tensor] | None = field(default=None, repr=False)  # what a watch read


@dataclass
class _Seq2SeqInnerStates(ModelOutput):
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None  # one per block: (batch, heads, length, source)
    encoder_last_hidden_state: Tensor | None = None  # (batch, source, hidden)
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    sites: Mapping[str, Tensor] | None = field(default=None, repr=False)


# By the field's names ---------------------------------------------------------------------------------------------------


@dataclass
class BaseModelOutput(_InnerStates, _States): ...


@dataclass
class BaseModelOutputWithPast(_InnerStates, _Past, _States): ...


@dataclass
class BaseModelOutputWithPooling(_InnerStates, _Pooled, _States): ...


@dataclass
class Seq2SeqModelOutput(_Seq2SeqInnerStates, _Past, _States): ...


@dataclass
class CausalLMOutputWithPast(_InnerStates, _Past, _Logits): ...


@dataclass
class MoeCausalLMOutputWithPast(_RouterLogits, _InnerStates, _Past, _RoutedLogits): ...


@dataclass
class Seq2SeqLMOutput(_Seq2SeqInnerStates, _Past, _Logits): ...


@dataclass
class MaskedLMOutput(_InnerStates, _Logits): ...


@dataclass
class TokenClassifierOutput(_InnerStates, _Logits): ...


@dataclass
class SequenceClassifierOutput(_InnerStates, _Past, _Logits): ...


@dataclass
class Seq2SeqSequenceClassifierOutput(_Seq2SeqInnerStates, _Past, _Logits): ...


@dataclass
class QuestionAnsweringModelOutput(_InnerStates, _SpanLogits): ...


@dataclass
class Seq2SeqQuestionAnsweringModelOutput(_Seq2SeqInnerStates, _Past, _SpanLogits): ...


@dataclass
class GenerateOutput(ModelOutput):
    """What `generate` gives with `return_dict_in_generate=True`. Rows are texts: batch times num_return_sequences."""

    sequences: Tensor  # (rows, length): prompts, what follows them, padding
    sequences_scores: Tensor | None = None  # (rows,): of whole texts, where beams compared them
    scores: tuple[Tensor, ...] | None = None  # for each step (rows or beams, vocabulary): after the rules
    logits: tuple[Tensor, ...] | None = None  # before them
    beam_indices: Tensor | None = None  # (rows, new): which beam each token came from; -1 after the end
    attentions: tuple[tuple[Tensor, ...], ...] | None = None  # for each step and block (rows or beams, heads, length, keys)
    hidden_states: tuple[tuple[Tensor, ...], ...] | None = (
        None  # for each step blocks + 1 of (rows or beams, length, hidden)
    )
    encoder_attentions: tuple[Tensor, ...] | None = (
        None  # of an encoder-decoder: for each block (batch, heads, source, source)
    )
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[tuple[Tensor, ...], ...] | None = None
    cross_attentions: tuple[tuple[Tensor, ...], ...] | None = None  # (rows or beams, heads, length, source)
    decoder_hidden_states: tuple[tuple[Tensor, ...], ...] | None = None
    past_key_values: Any = None  # of all but the last tokens
    sites: tuple[Mapping[str, Tensor], ...] | None = field(default=None, repr=False)  # for each step what a watch read
    logprobs: Tensor | None = None  # (rows, new): of the chosen tokens; 0 after the end
    prompt_logprobs: list[list[float | None]] | None = None  # of the prompts' own tokens; None for the first
    finish: list[Any] | None = None  # for each row why it ended
    steps: list[list[Any]] | None = field(default=None, repr=False)  # for each row its steps, with candidates if requested
    prompt_steps: list[list[Any]] | None = field(default=None, repr=False)
    settings: Any = field(default=None, repr=False)  # the settings in force, and where each came from
    seed: int | None = None  # of the random draws
