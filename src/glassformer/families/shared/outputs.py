"""Model outputs: named fields, by attribute, by key, or by index.

    output.logits · output["logits"] · output[0]

Fields that were not requested are None; they have an attribute but no key and no index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from torch import Tensor

from glassformer.errors import did_you_mean
from glassformer.layers.cache import Cache

Out = TypeVar("Out", bound="ModelOutput")


@dataclass
class ModelOutput:
    def to_tuple(self) -> tuple[Any, ...]:
        """The fields that are there, in order."""
        return tuple(self[name] for name in self.keys())

    def keys(self) -> list[str]:
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]

    def values(self) -> list[Any]:
        return list(self.to_tuple())

    def items(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.keys()]

    def convert_to(self, kind: type[Out], **values: Any) -> Out:
        """An output of another class: the fields that both have, and these values."""
        names = {f.name for f in fields(kind)}
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name in names}
        return kind(**{**shared, **values})

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, (int, slice)):
            return self.to_tuple()[key]
        if key in self.keys():
            return getattr(self, key)
        hint = did_you_mean(key, self.keys())
        raise KeyError(f"{type(self).__name__} has no {key!r}; it has {', '.join(self.keys())}.{hint}")

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())


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
class _Past(ModelOutput):
    past_key_values: Cache | None = None


@dataclass
class _InnerStates(ModelOutput):
    hidden_states: tuple[Tensor, ...] | None = None  # blocks + 1 of (batch, length, hidden)
    attentions: tuple[Tensor, ...] | None = None  # one per block: (batch, heads, length, keys)
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
    logprobs: Tensor | None = None  # (rows, new): of the chosen tokens; 0 after the end
    prompt_logprobs: list[list[float | None]] | None = None  # of the prompts' own tokens; None for the first
    finish: list[Any] | None = None  # for each row why it ended
    steps: list[list[Any]] | None = field(default=None, repr=False)  # for each row its steps, with candidates if requested
    prompt_steps: list[list[Any]] | None = field(default=None, repr=False)
    settings: Any = field(default=None, repr=False)  # the settings in force, and where each came from
    seed: int | None = None  # of the random draws
