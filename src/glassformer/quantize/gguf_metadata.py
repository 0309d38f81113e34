"""What a GGUF file says of a model: the inverse of how its config is read from one.

GGUF has a fixed set of fields per architecture, and leaves much to its readers: which activation, which scale, which layers
look through a window. So what would be written is read back first, and must be the same model, step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.blueprints import Blueprint, Config, Op, Rope, blueprint, read_config
from glassformer.checkpoint import gguf_names
from glassformer.checkpoint.gguf_names import TABLES
from glassformer.checkpoint.gguf_writer import OutputTensor
from glassformer.checkpoint.stored_tensors import BufferedFile, StoredTensor
from glassformer.errors import ConfigError, InputError

ARCHITECTURES: Mapping[str, str] = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3", "gpt2": "gpt2",
}  # fmt: skip
WITHOUT_BIASES = ("qwen3", "gemma3_text")  # whose attention has none with GGUF's other readers
MEND = "Keep the checkpoint as it is; load(…, weights=…) packs its weights all the same."


def architecture_of(config: Config, name: str) -> str:
    if config.model_type not in ARCHITECTURES:
        raise InputError(
            f"{name}: a {config.model_type} model cannot be written as GGUF, only {', '.join(ARCHITECTURES)}. {MEND}"
        )
    if config.model_type in WITHOUT_BIASES and getattr(config, "attention_bias", False):
        raise InputError(f"{name}: GGUF has no place for the attention biases of a {config.model_type} model. {MEND}")
    found = ARCHITECTURES[config.model_type]
    if found != "llama" and divisors(config) is not None:
        raise InputError(f"{name}: GGUF has a place for Llama 3's RoPE in Llama's own models only. {MEND}")
    return found


def described(config: Config, made: Blueprint) -> dict[str, Any]:
    """The fields of a config, without the architecture's name in front."""
    table = TABLES[ARCHITECTURES[config.model_type]]
    found = {key: value for key, name in table.sizes.items() if (value := _value(config, name)) is not None}
    found |= {"vocab_size": config.vocab_size}
    windows = [op.options["window"] for op in made.ops if op.kind == "attend" and op.options["window"]]
    if "attention.sliding_window" not in table.sizes:  # within its window a model sees everything
        found["context_length"] = min([config.context, *windows])
    elif not windows:
        found.pop("attention.sliding_window", None)
    if (rope := getattr(config, "rope", None)) is not None:
        size = config.head_dim
        found |= {"attention.value_length": size, "rope.dimension_count": size, **_stretched(rope)}
    if config.model_type == "gemma3_text":
        found |= _gemma3(config)
    return found


def _value(config: Config, name: str) -> Any:
    if name == "rope_theta":
        return float(config.rope.theta)
    if name == "intermediate_size":
        return getattr(config, "inner", None) or getattr(config, name)
    return getattr(config, name, None)


def _stretched(rope: Rope) -> dict[str, Any]:
    """How RoPE is stretched, where a field says it; Llama 3's way is a tensor, `rope_freqs.weight`."""
    if rope.kind not in ("linear", "yarn"):
        return {}
    more = {"rope.scaling.original_context_length": int(rope.original_max_position_embeddings)}
    return {
        "rope.scaling.type": rope.kind,
        "rope.scaling.factor": float(rope.factor),
        **(more if rope.kind == "yarn" else {}),
    }


def _gemma3(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"rope.freq_base_swa": float(config.local_rope.theta)}
    kinds = config.layer_types
    every = next((n for n in (6, *range(2, len(kinds) + 1)) if kinds == _every(n, len(kinds))), 6)
    return found | ({} if every == 6 else {"attention.sliding_window_pattern": every})


def _every(number: int, layers: int) -> list[str]:
    return ["sliding_attention" if (layer + 1) % number else "full_attention" for layer in range(layers)]


def divisors(config: Config) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """By what Llama 3 slows each of RoPE's frequencies; None for every other way."""
    rope = getattr(config, "rope", None)
    if rope is None or rope.kind != "llama3":
        return None
    size = config.head_dim
    found: np.ndarray[Any, np.dtype[np.float32]] = replace(rope, kind="default").frequencies(size) / rope.frequencies(size)
    return found


def check(name: str, made: Blueprint, fields: Mapping[str, Any], tensors: Iterable[OutputTensor]) -> None:
    """Read the fields back as any reader would, and refuse where that is another model."""
    path = Path(name)
    raw = {one.name: _standing_in(one) for one in tensors}
    try:
        again = blueprint(read_config(gguf_names.config(fields, raw, path)), made.head)
    except ConfigError as error:
        raise InputError(f"{name}: GGUF cannot say what its config says ({error}) {MEND}") from error
    context = fields[f"{fields['general.architecture']}.context_length"]
    for own, other in zip(made.ops, again.ops, strict=True):
        for what, said, read in _differences(own, other, context):
            raise InputError(
                f"{name}: GGUF has no field for {what}={said!r} of {own.module or own.kind!r}; "
                f"its readers would take {read!r}. {MEND}"
            )


def _differences(own: Op, other: Op, context: int) -> Iterator[tuple[str, Any, Any]]:
    """What two steps do not have in common: (what, here, there)."""
    for what in ("kind", "shape"):
        if getattr(own, what) != getattr(other, what):
            yield what, getattr(own, what), getattr(other, what)
    named = [[f"{weight.name} {weight.shape}" for weight in op.weights] for op in (own, other)]
    if named[0] != named[1]:
        yield "weights", sorted({*named[0]} - {*named[1]}), sorted({*named[1]} - {*named[0]})
    for what in sorted({*own.options, *other.options}):
        said, read = own.options.get(what), other.options.get(what)
        if what == "window":  # one that is as wide as the context hides nothing
            said, read = (None if one is None or one >= context else one for one in (said, read))
        if isinstance(said, Rope) and isinstance(read, Rope):  # the trained length is used by one kind, which GGUF has not
            said, read = (replace(one, max_position_embeddings=0) for one in (said, read))
        if said != read:
            yield what, said, read


def _standing_in(one: OutputTensor) -> StoredTensor:
    """What the reader of a config asks of a tensor: its shape, and of RoPE's divisors the numbers."""
    told = one.name == "rope_freqs.weight"
    numbers = one.open()(0, 1) if told else np.zeros(0, np.float32)
    kind = "F16" if one.name == "output.weight" else "F32"  # it is written only where it is not the table once more
    return StoredTensor(
        one.name, kind, one.shape, BufferedFile(Path(one.name), numbers.view(np.uint8).reshape(-1)), 0, numbers.nbytes
    )
