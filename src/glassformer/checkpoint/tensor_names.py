"""Which stored tensor a name means: real files have a base prefix or none, old names, and a table stored under any of its
names.

The names that are expected are a blueprint's. The same history is settled for torch's modules in `history`, which has the
modules themselves to ask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from glassformer.checkpoint.stored_tensors import StoredTensor

RENAMED = ((re.compile(r"\.gamma$"), ".weight"), (re.compile(r"\.beta$"), ".bias"))  # what old files call a norm's
BASES = ("model", "transformer", "bert", "roberta", "distilbert")  # what families call what is below a head
TABLES = (  # the names of one table of vectors, wherever it is shared
    "lm_head.weight", "model.embed_tokens.weight", "transformer.wte.weight", "shared.weight", "model.shared.weight",
    "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)  # fmt: skip


def modern_names(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    found = dict(stored)
    for old, new in RENAMED:
        found = {old.sub(new, name): one for name, one in found.items()}
    return found


def resolve_names(stored: Mapping[str, StoredTensor], expected: Sequence[str]) -> dict[str, StoredTensor]:
    """The stored tensors under the names that are expected; what was not stored is not there."""
    found = modern_names(stored)
    settled: dict[str, StoredTensor] = {}
    for name in expected:
        base, _, rest = name.partition(".")
        others = TABLES if name in TABLES[1:] else ()  # a head of its own has one name
        spellings = (name, *([rest] if base in BASES else []), *(f"{prefix}.{name}" for prefix in BASES), *others)
        written = next((spelling for spelling in spellings if spelling in found), None)
        if written is not None:
            settled[name] = found[written]
    return settled
