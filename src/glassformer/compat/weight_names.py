"""Match the tensor names of real checkpoints to the model's own.

Files have history: a base prefix that is there or not, old names, buffers that nothing reads, a tied embedding stored once,
or twice, or under another name. All of it is resolved here, for every family, by names alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

from glassformer.checkpoint import StoredTensor
from glassformer.checkpoint.legacy_names import modern_names
from glassformer.ground.errors import InputError
from glassformer.torch import BaseModel
from glassformer.torch.heads import ModelWithHead

AnyModel: TypeAlias = BaseModel | ModelWithHead

IGNORED_NAMES = re.compile(  # old files have them, and nothing reads them
    r"(^|\.)(rotary_emb\.inv_freq|masked_bias|(attn|attention)\.bias|position_ids|token_type_ids|version|_float_tensor"
    r"|heads\.\d+\.mask|encoder\.embed_positions\.weight|(en|de)coder\.embed_positions\.weights|EncDecAttention\.relative_attention_bias\.weight)$"
)


def match_names(model: AnyModel, stored: dict[str, StoredTensor], mapping: Mapping[str, str]) -> dict[str, StoredTensor]:
    """The stored tensors under the names that the model has for them."""
    if mapping and model.config.tie_word_embeddings:  # a tied head that is not stored can be mapped too
        base = model.base_model if isinstance(model, ModelWithHead) else model
        embedding = next(name for name, value in base.named_parameters() if value is base.token_embedding.weight)
        stored_names = [name for name in (embedding, f"{base.prefix}.{embedding}") if name in stored]
        stored = {**({"lm_head.weight": stored[stored_names[0]]} if stored_names else {}), **stored}
    for pattern, replacement in mapping.items():
        try:
            stored = {re.sub(pattern, replacement, name): tensor for name, tensor in stored.items()}
        except (re.error, TypeError) as error:
            raise InputError(f"key_mapping has {pattern!r}, which is not a regular expression: {error}.") from error
    stored = modern_names(stored)
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    expected = {name for name, _ in tensors}
    prefix = (model.base_class if isinstance(model, ModelWithHead) else type(model)).prefix
    matched: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        candidates = (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")) if prefix else (name,)
        matched[next((candidate for candidate in candidates if candidate in expected), name)] = tensor
    names_of: dict[int, list[str]] = {}  # by the identity of the parameter
    for name, value in tensors:
        names_of.setdefault(id(value), []).append(name)
    for names in names_of.values():
        matched = tie_names(matched, names) if len(names) > 1 else matched
    return matched


def tie_names(stored: dict[str, StoredTensor], names: Sequence[str]) -> dict[str, StoredTensor]:
    """Give tied names the one stored tensor; those that are stored with other numbers keep their own."""
    stored_names = [name for name in names if name in stored]
    if not stored_names:
        return stored
    first = stored[stored_names[0]]
    tied = {name: first for name in names if name not in stored or stored[name].same_bytes(first)}
    return {**stored, **tied}


def is_optional(model: AnyModel, name: str, parameter: Tensor) -> bool:
    """Whether a checkpoint may lack a parameter: a head's, or one of the family's `optional_modules`."""
    base = model.base_model if isinstance(model, ModelWithHead) else model
    in_head = all(parameter is not weight for weight in base.parameters())
    return in_head or any(part in base.optional_modules for part in name.split("."))
