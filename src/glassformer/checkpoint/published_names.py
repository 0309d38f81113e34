"""Tensors as the authors of a family published them, under the names that the family has here.

Some files are older than their family's place in transformers: they call its modules otherwise, and hold several matrices as
one, whose rows follow one another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from glassformer.checkpoint.stored_tensors import StoredTensor, computed_tensor
from glassformer.ground.errors import CheckpointError

QKV = tuple(f"self_attn.{name}_proj." for name in "qkv")


@dataclass(frozen=True)
class PublishedNames:
    renamed: Mapping[str, str]  # patterns, in order: what stands in their place
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of a name that stands for several: theirs
    joined: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # of a name whose rows have several: theirs, in order


TABLES: Mapping[str, PublishedNames] = {
    "olmo_hybrid": PublishedNames(
        {r"\.attention_layer_norm\.": ".input_layernorm.", r"\.feedforward_layer_norm\.": ".post_attention_layernorm."},
        joined={"linear_attn.conv1d.": tuple(f"linear_attn.{name}_conv1d." for name in "qkv")},
    ),
    "kimi_linear": PublishedNames(  # transformers writes an MLP without experts as one with them
        {r"\.block_sparse_moe\.((?:gate|up|down)_proj\.)": r".mlp.\1"}
    ),
    "nomic_bert": PublishedNames(
        {
            r"^bert\.": "", r"\bencoder\.layers\.": "layers.", r"\bemb_ln\.": "embeddings.LayerNorm.",
            r"\battn\.out_proj\.": "self_attn.o_proj.", r"\.fc11\.": ".up_proj.", r"\.fc12\.": ".gate_proj.",
            r"\.fc2\.": ".down_proj.", r"\.norm1\.": ".post_attention_layernorm.", r"\.norm2\.": ".post_mlp_layernorm.",
        },
        {"attn.Wqkv.": QKV},
    ),
    "gte": PublishedNames(
        {
            r"^new\.": "", r"\bencoder\.layer\.": "layers.", r"\battention\.o_proj\.": "self_attn.o_proj.",
            r"\.attn_ln\.": ".post_attention_layernorm.", r"\.mlp_ln\.": ".post_mlp_layernorm.",
            r"^lm_head\.norm\.": "lm_head.layer_norm.",
        },
        {"attention.qkv_proj.": QKV, "mlp.up_gate_proj.": ("mlp.up_proj.", "mlp.gate_proj.")},
    ),
}  # fmt: skip


def with_family_names(tensors: Mapping[str, StoredTensor], model_type: str) -> Mapping[str, StoredTensor]:
    """A checkpoint's tensors, those of other names and those that are several under the family's."""
    table = TABLES.get(model_type)
    if table is None:
        return tensors
    named: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        for pattern, ours in table.renamed.items():
            name = re.sub(pattern, ours, name)
        stem = next((stem for stem in table.parts if stem in name), "")
        parts = table.parts.get(stem, ("",))
        rows, rest = divmod(tensor.shape[0] if tensor.shape else 0, len(parts))
        if stem and (rest or not rows):
            raise CheckpointError(f"{tensor.label} has shape {tensor.shape}: no {len(parts)} parts. Fetch it again.")
        for index, part in enumerate(parts):
            own = name.replace(stem, part) if stem else name
            taken = tensor.rows(range(index * rows, (index + 1) * rows)) if stem else tensor
            named[own] = taken if taken.name == own else replace(taken, name=own)
    return _joined(named, table.joined)


def _joined(tensors: Mapping[str, StoredTensor], joined: Mapping[str, tuple[str, ...]]) -> Mapping[str, StoredTensor]:
    """With the rows of several tensors, one after the other, as one."""
    whole = dict(tensors)
    for stem, parts in joined.items():
        for name in [name for name in tensors if parts[0] in name]:
            sources = [whole.pop(name.replace(parts[0], part), None) for part in parts]
            own = name.replace(parts[0], stem)
            found = [source for source in sources if source is not None]
            if len(found) < len(parts) or len({(len(one.shape), one.shape[1:]) for one in found}) > 1 or not found[0].shape:
                raise CheckpointError(f"{tensors[name].label} and those beside it do not fit together. Fetch them again.")
            shape = (sum(source.shape[0] for source in found), *found[0].shape[1:])
            whole[own] = computed_tensor(own, shape, partial(_rows_of, found), found, "rows")
    return whole


def _rows_of(sources: Sequence[StoredTensor]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.concatenate([source.to_float32() for source in sources])
