"""What real checkpoints call their tensors, and what the model has them under.

Files have history: a base prefix that is there or not, old names, buffers that nobody reads, a table that is tied and stored
once, or twice, or under another name. All of it is settled here, for every family, by names alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

from glassformer.checkpoint import Stored
from glassformer.checkpoint.naming import renamed
from glassformer.errors import InputError
from glassformer.families import Base
from glassformer.families.shared.heads import WithHead

Model: TypeAlias = Base | WithHead

FORGOTTEN = re.compile(  # what old files carry along, and nothing reads
    r"(^|\.)(rotary_emb\.inv_freq|masked_bias|attn\.bias|position_ids|token_type_ids|version|_float_tensor"
    r"|heads\.\d+\.mask|EncDecAttention\.relative_attention_bias\.weight)$"
)


def named(model: Model, stored: dict[str, Stored], mapping: Mapping[str, str]) -> dict[str, Stored]:
    """The stored tensors under the names that the model has for them."""
    if mapping and model.config.tie_word_embeddings:  # a head that is left out can be mapped all the same
        base = model.base_model if isinstance(model, WithHead) else model
        table = next(name for name, value in base.named_parameters() if value is base.table.weight)
        written = [name for name in (table, f"{base.prefix}.{table}") if name in stored]
        stored = {**({"lm_head.weight": stored[written[0]]} if written else {}), **stored}
    for pattern, replacement in mapping.items():
        try:
            stored = {re.sub(pattern, replacement, name): one for name, one in stored.items()}
        except re.error as error:
            raise InputError(f"key_mapping has {pattern!r}, which is not a regular expression: {error}.") from error
    stored = renamed(stored)
    kinds = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    expected = {name for name, _ in kinds}
    prefix = (model.base_class if isinstance(model, WithHead) else type(model)).prefix
    settled: dict[str, Stored] = {}
    for name, one in stored.items():
        spellings = (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")) if prefix else (name,)
        settled[next((spelling for spelling in spellings if spelling in expected), name)] = one
    same: dict[int, list[str]] = {}  # the names of each parameter
    for name, value in kinds:
        same.setdefault(id(value), []).append(name)
    for names in same.values():
        settled = share(settled, names) if len(names) > 1 else settled
    return settled


def share(stored: dict[str, Stored], names: Sequence[str]) -> dict[str, Stored]:
    """Tie names to one stored tensor, whichever was written; those that were written and differ stay apart."""
    written = [name for name in names if name in stored]
    if not written:
        return stored
    first = stored[written[0]]
    alike = {name: first for name in names if name not in stored or stored[name].same_bytes(first)}
    return {**stored, **alike}


def may_lack(model: Model, name: str, parameter: Tensor) -> bool:
    """Whether a checkpoint may be without it: a head, or what a family calls optional."""
    base = model.base_model if isinstance(model, WithHead) else model
    return all(parameter is not own for own in base.parameters()) or any(part in base.optional for part in name.split("."))
