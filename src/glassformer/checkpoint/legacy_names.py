"""Which stored tensor a name means: real files have a base prefix or none, legacy names, and a shared embedding under any of
its names.

The expected names are a blueprint's. `compat.weight_names` does the same for torch's modules, which can be asked themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

AnyTensor = TypeVar("AnyTensor")

LEGACY_NAMES = (
    (re.compile(r"\.gamma$"), ".weight"),  # of a norm, in old files
    (re.compile(r"(?<!\.act_fn)\.beta$"), ".bias"),
    (re.compile(r"^embed_out\."), "lm_head."),  # of GPT-NeoX
)
BASES = (  # the module below a head
    "model", "transformer", "bert", "roberta", "distilbert", "electra", "albert", "deberta", "gpt_neox",
    "mpnet", "roformer", "nomic_bert", "gte", "biogpt",
)  # fmt: skip
EMBEDDING_NAMES = (  # of one embedding matrix, wherever it is shared
    "lm_head.weight", "model.embed_tokens.weight", "transformer.wte.weight", "shared.weight", "model.shared.weight",
    "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight", "gpt_neox.embed_in.weight", "transformer.tokens_embed.weight",
    "transformer.word_embeddings.weight", "biogpt.embed_tokens.weight",
)  # fmt: skip


def modern_name(name: str) -> str:
    for old, new in LEGACY_NAMES:
        name = old.sub(new, name)
    return name


def modern_names(stored: Mapping[str, AnyTensor]) -> dict[str, AnyTensor]:
    return {modern_name(name): tensor for name, tensor in stored.items()}


def resolve_names(stored: Mapping[str, AnyTensor], expected: Sequence[str]) -> dict[str, AnyTensor]:
    """The stored tensors under the expected names; those that are not stored are left out."""
    tensors = modern_names(stored)
    resolved: dict[str, AnyTensor] = {}
    for name in expected:
        base, _, rest = name.partition(".")
        shared = EMBEDDING_NAMES if name in EMBEDDING_NAMES[1:] else ()  # a head of its own has one name
        spellings = (name, *([rest] if base in BASES else []), *(f"{prefix}.{name}" for prefix in BASES), *shared)
        stored_name = next((spelling for spelling in spellings if spelling in tensors), None)
        if stored_name is not None:
            resolved[name] = tensors[stored_name]
    return resolved
