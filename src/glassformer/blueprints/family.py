"""What a family's file says beside its config and its ops: names that other libraries know, and that PyTorch prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from glassformer.blueprints.config import Head


@dataclass(frozen=True, kw_only=True)
class Family:
    """`modules`: for a module's name (or the end of it, with * for numbers), its class without the family's name, and then
    its children in the order in which PyTorch shows them; those that are left out follow in the order of their use, at
    first those with weights."""

    name: str  # of its classes: "Llama" for LlamaModel
    heads: tuple[Head, ...]
    modules: Mapping[str, str] = field(default_factory=dict)
    printed: bool = True  # whether its name is printed before those of its modules
    base: str = "model"  # the base's name inside a model with a head; "": its modules are at the top level
    class_suffixes: Mapping[str, str] = field(default_factory=dict)  # where class names differ, as {"Model": "TextModel"}
    has_encoder_model: bool = False  # whether the encoder of an encoder-decoder has a class of its own
    types_first: bool = False  # token types are added before positions
    padding_position: bool = False  # padding has a row of the position table: the one before the first token's
    bias_name: str = ""  # a second name of the bias of the head that guesses hidden tokens
    stacked_experts: bool = False  # files have the experts of a block in one tensor
    scales_states: bool = False  # what scores are multiplied by is applied to the states
    scaled_vectors: bool = False  # a caller's vectors are scaled, as those of ids are
    shifts_source: bool = False  # without a target, the decoder gets the source itself, shifted right

    @property
    def label(self) -> str:
        """What is printed before the names of its modules."""
        return self.name if self.printed else ""
