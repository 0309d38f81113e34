"""Models of texts and images whose text part is a family that is known here: what the part's config and tensors are.

Their files have a history: the text's fields are in `text_config` or, in the first ones, among the others; its tensors are
below `language_model.`, `model.language_model.` or, in the first ones, `model.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief

AnyTensor = TypeVar("AnyTensor")

TEXT_FAMILIES: Mapping[str, str] = {  # of the text part, where its config names none that is known
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text",
    "qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "mistral3": "mistral",
    "llava": "llama", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
    "llama4": "llama4_text",
}  # fmt: skip
SHARED_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype")  # of both, where the part has none
TEXT_NAMES: Mapping[str, str] = {  # how the text part's tensors begin, and how the family's do
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "language_model.": "model.",
    "lm_head.": "lm_head.",
    "mtp.": "mtp.",
    **{f"model.{own}.": f"model.{own}." for own in ("embed_tokens", "layers", "norm")},
}


class TextTensors(NamedTuple):
    tensors: dict[str, Any]  # under the family's names
    left_out: tuple[str, ...]  # the modules of the others


def text_config(raw: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any] | None:
    """The config of the text part; None for a model that is no other than text. `known`: the families that there are."""
    whole = raw.get("model_type")
    if not isinstance(whole, str) or whole not in TEXT_FAMILIES:
        return None
    text = raw.get("text_config", {name: value for name, value in raw.items() if name != "vision_config"})
    if not isinstance(text, Mapping):
        raise ConfigError(f"config field 'text_config' is {brief(text)}; it must be an object.")
    family = text.get("model_type")
    family = family if isinstance(family, str) and family in known else TEXT_FAMILIES[whole]
    shared = {name: raw[name] for name in SHARED_FIELDS if name in raw and text.get(name) is None}
    shared |= {name: raw[name] for name in ("tie_word_embeddings",) if raw.get(name) is not None}  # the whole model's wins
    return {**text, **shared, **_one_axis(text), "model_type": family, "architectures": None}


def _one_axis(text: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE without its sections for the axes of an image: a text's positions are the same on all of them."""
    ropes = {name: text[name] for name in ("rope_scaling", "rope_parameters") if isinstance(text.get(name), Mapping)}
    for name, rope in ropes.items():
        kind = rope.get("rope_type", rope.get("type"))
        kept = {field: value for field, value in rope.items() if field not in ("mrope_section", "mrope_interleaved", "type")}
        ropes[name] = {**kept, **({} if kind is None else {"rope_type": "default" if kind == "mrope" else kind})}
    return ropes


def text_tensors(tensors: Mapping[str, AnyTensor]) -> TextTensors:
    """The tensors of the text part."""
    kept: dict[str, Any] = {}
    left_out: dict[str, None] = {}
    for name, tensor in tensors.items():
        beginning = next((beginning for beginning in TEXT_NAMES if name.startswith(beginning)), None)
        if beginning is None:
            left_out[name.removeprefix("model.").partition(".")[0]] = None
        else:
            kept[TEXT_NAMES[beginning] + name.removeprefix(beginning)] = tensor
    return TextTensors(kept, tuple(left_out))
