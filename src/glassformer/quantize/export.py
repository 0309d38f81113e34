"""A whole model as one GGUF file: its fields, its tokenizer and its tensors, as llama.cpp and others open it.

From a GGUF file of plain floats, fields and names are taken as they are. From a folder they are made: names and layouts by
the tables that read them (`gguf_names`), the config's fields by `gguf_metadata`, the tokenizer's by
`text.tokenizer_files.gguf.export`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from glassformer.blueprints import Config, drafts
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.gguf_names import gguf_name_and_layout, table_of
from glassformer.checkpoint.gguf_parts import is_part
from glassformer.checkpoint.gguf_tensors import NEXTN
from glassformer.checkpoint.gguf_writer import (
    OutputTensor,
    RowReader,
    fuse_attention,
    in_parts,
    rows_in_layout,
    stack,
    stored_rows,
    write_gguf,
)
from glassformer.checkpoint.legacy_names import resolve_names
from glassformer.checkpoint.sentence_pooling import GGUF_DENSE, Floats, SentenceSettings
from glassformer.checkpoint.stored_tensors import Layout
from glassformer.ground.errors import CheckpointError, InputError
from glassformer.ground.progress import NamedProgress
from glassformer.model_files import DraftHead, ModelFiles
from glassformer.quantize.equivalents import as_in_files
from glassformer.quantize.folded_multipliers import folded
from glassformer.quantize.gguf_metadata import (
    ADVICE,
    architecture_of,
    check_reads_back,
    config_metadata,
    rope_divisors,
    sentence_metadata,
    unread_shapes,
    written_plan,
)
from glassformer.quantize.tensor_kinds import Role, check_quantizable, kind_for, model_label, stored_roles, weight_roles
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.gguf import export as tokenizer_export

Weights: TypeAlias = Mapping[str, Callable[[Layout | None], RowReader]]  # a tensor's rows, in GGUF's layout, by its name

FILE_TYPES = {  # what most of a file is, by llama.cpp's numbers
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q4_K": 14, "Q5_K": 16, "Q6_K": 18, "BF16": 32,
}  # fmt: skip
END_ROLES = ("eos", "eot", "eom")  # what a token that ends a text can be called
HEAD = "lm_head.weight"


def quantize(
    opened: ModelFiles, path: Path, kind: str, *, force: bool = False, allow_requantize: bool = False,
    progress: NamedProgress | None = None,
) -> None:  # fmt: skip
    """Write a model as a GGUF file in a kind; `force` writes over a file that is there.

    `allow_requantize`: weights that are packed already are packed once more, and lose more than the kind costs.
    """
    advice = " --allow-requantize (allow_requantize=True) packs them all the same."
    kind = check_quantizable(opened, kind, packed_too=allow_requantize, advice=advice)
    if path.exists() and path.samefile(opened.path):
        raise InputError(f"{path} is the model itself, which is read while the other is written. Choose another name.")
    if path.exists() and not force:
        raise InputError(f"{path} is there already. Choose another name, or write over it with --force (force=True).")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is no folder. Make it first, or choose another place.")
    if isinstance(opened.checkpoint, GgufCheckpoint) and opened.replacement_tensors is None:
        _quantize_gguf(opened, opened.checkpoint, path, kind, progress)
        return
    architecture_of(opened.config, opened.name)
    if opened.head != ("base" if opened.config.default_head == "masked" else "causal"):
        raise InputError(f"{opened.name}: GGUF has no place for a model with a {opened.head} head. {ADVICE}")
    config, weights = _folder_weights(opened)
    ends = opened.settings.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else ends
    write_model(
        path, model_label(opened), config, weights, opened.tokenizer, kind, ends=ends, sentence=opened.sentence,
        progress=progress, head=opened.draft_head,
    )  # fmt: skip


def write_model(
    path: Path, name: str, config: Config, weights: Weights, tokenizer: Tokenizer, kind: str,
    *, ends: Sequence[int] = (), sentence: SentenceSettings | None = None, progress: NamedProgress | None = None,
    head: DraftHead | None = None,
) -> None:  # fmt: skip
    """Write a GGUF file of a model whose weights may come from anywhere; `ends`: the tokens that end a text; `sentence`:
    how a text becomes a vector; `head`: for further tokens, written where GGUF has a place for it."""
    metadata, tensors = model_contents(name, config, weights, kind, head)
    sentence = sentence or SentenceSettings()
    pooling = sentence_metadata(config, sentence, name)
    metadata |= {f"{metadata['general.architecture']}.{key}": value for key, value in pooling.items()}
    for dense, layer in zip(GGUF_DENSE, sentence.dense, strict=False):
        tensors.append(OutputTensor(dense, "F32", layer.weight.shape, partial(_rows_of, layer.weight)))
    metadata |= tokenizer_metadata(tokenizer, config.vocab_size, ends)
    if (types := getattr(config, "type_vocab_size", None)) is not None:
        metadata["tokenizer.ggml.token_type_count"] = types
    write_gguf(path, metadata["general.architecture"], metadata, tensors, progress)


def model_contents(
    name: str, config: Config, weights: Weights, kind: str, draft_head: DraftHead | None = None
) -> tuple[dict[str, Any], list[OutputTensor]]:
    """A model's metadata, all but its tokenizer's, and its tensors, as a file in a kind has them."""
    architecture_of(config, name)
    config, weights = as_in_files(*folded(config, weights, name))
    architecture = architecture_of(config, name)
    plan = written_plan(config)
    heads = {field: value for field, value in vars(config).items() if "head" in field or field.endswith("n_groups")}
    if config.model_type == "falcon":
        heads["num_kv_heads"] = config.groups
    roles = weight_roles(plan)
    tensors: list[OutputTensor] = []
    metadata: dict[str, Any] = {f"{architecture}.{key}": value for key, value in config_metadata(config, plan).items()}
    metadata |= {"general.architecture": architecture, "general.type": "model", "general.name": name}
    _, table = table_of(metadata, Path(name))  # by which it will be read
    keys = {pattern: key for key, (pattern, _) in table.numbers.items()}
    for weight in plan.weights:
        if (key := keys.get(re.sub(r"\.\d+\.", ".{}.", weight.name))) is not None:
            metadata[key] = [*metadata.get(key, ()), float(weights[weight.name](None)(0, 1).item())]
            continue
        gguf_name, layout = gguf_name_and_layout(table, heads, weight.name, weight.shape)
        shape = weight.shape if layout is None else layout.stored_shape(weight.shape)
        role: Role = "product" if roles[weight.name] == "columns" else roles[weight.name]
        whole = OutputTensor(gguf_name, "F32", shape, partial(weights[weight.name], layout))
        tensors += [
            replace(tensor, kind=kind_for(role, tensor.shape[-1], kind) or "F32")
            for tensor in in_parts(whole, table.parts, heads)
        ]
    has_head = draft_head is not None and NEXTN.items() <= table.names.items()
    if draft_head is not None and has_head:
        roles = weight_roles(draft_head.blueprint())
        for own_name, stored in draft_head.tensors.items():
            if stored.name in drafts.SHARED:
                continue
            whole_name = drafts.name_behind(config, own_name)
            gguf_name, layout = gguf_name_and_layout(table, heads, whole_name, stored.shape)
            shape = stored.shape if layout is None else layout.stored_shape(stored.shape)
            target = kind_for(roles.get(own_name, "plain"), shape[-1], kind) or "F32"
            tensors.append(OutputTensor(gguf_name, target, shape, partial(rows_in_layout, stored, layout)))
    for gguf_name, shape in unread_shapes(config).items():
        target = (kind_for("product", shape[-1], kind) if len(shape) > 1 else None) or "F32"
        tensors.append(OutputTensor(gguf_name, target, shape, partial(_zeros, shape[-1])))
    tensors = stack(tensors, table.stacks, table.fused_experts)
    tensors = fuse_attention(tensors) if table.fused_attention else tensors
    if (divisors := rope_divisors(config)) is not None:
        tensors.append(OutputTensor("rope_freqs.weight", "F32", divisors.shape, lambda: lambda *_: divisors[None]))
    if has_head:
        count = {"block_count": config.num_hidden_layers + 1, "nextn_predict_layers": 1}
        metadata |= {f"{architecture}.{key}": value for key, value in count.items()}
    check_reads_back(name, plan, metadata, tensors)
    return metadata | _quantization_metadata(kind), tensors


def tokenizer_metadata(tokenizer: Tokenizer, size: int, ends: Sequence[int]) -> dict[str, Any]:
    """The tokenizer's fields, and under which names a text's ends go."""
    template = tokenizer.chat_template
    template = template.get("default") if isinstance(template, Mapping) else template
    special = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    metadata = tokenizer_export.tokenizer_fields(tokenizer.backend, special, template, size)
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    ends_by_role = zip(END_ROLES, dict.fromkeys(([] if eos is None else [eos]) + [*ends]), strict=False)
    return metadata | {f"tokenizer.ggml.{role}_token_id": end for role, end in ends_by_role}


def _rows_of(matrix: Floats) -> RowReader:
    return lambda first, last: matrix[first:last]


def _zeros(width: int) -> RowReader:
    return lambda first, last: np.zeros((last - first, width), np.float32)


def _quantization_metadata(kind: str) -> dict[str, int]:
    """What a file says of its kinds."""
    return {"general.file_type": FILE_TYPES[kind], "general.quantization_version": 2}


def _quantize_gguf(
    opened: ModelFiles, source: GgufCheckpoint, path: Path, kind: str, progress: NamedProgress | None
) -> None:
    """A GGUF file's own fields and names; only the numbers are packed."""
    roles = stored_roles(opened)
    role_at = {tensor.offset: roles.get(id(tensor), "plain") for tensor in source.tensors.values()}
    tensors, known = [], table_of(source.metadata, source.path)[1].readable_parts
    for name, stored in source.raw.items():
        role: Role = role_at.get(stored.offset, "product" if is_part(name, known) else "plain")
        target = kind_for(role, stored.shape[-1], kind) or "F32"
        tensors.append(OutputTensor(name, target, stored.shape, partial(stored_rows, stored)))
    metadata = {**source.metadata, **_quantization_metadata(kind)}
    write_gguf(path, metadata["general.architecture"], metadata, tensors, progress)


def _folder_weights(opened: ModelFiles) -> tuple[Config, Weights]:
    """A folder's tensors under the full names; the config says that the head is its own where one is stored that is."""
    config = opened.config
    stored = resolve_names(opened.tensors, [HEAD, *(weight.name for weight in written_plan(config).weights)])
    table = stored.get(written_plan(config).weights[0].name)
    if config.tie_word_embeddings and HEAD in stored and table is not None and not stored[HEAD].same_bytes(table):
        config = config.with_changes({"tie_word_embeddings": False})
    weights: dict[str, Callable[[Layout | None], RowReader]] = {}
    for weight in written_plan(config).weights:
        tensor = stored.get(weight.name)
        if tensor is None:
            raise CheckpointError(f"{opened.path}: the weights lack {weight.name}. Is this the config of these weights?")
        if tensor.shape != weight.shape:
            raise CheckpointError(
                f"{opened.path}: tensor {tensor.name!r} has shape {tensor.shape}, but the config makes it {weight.shape}. "
                "Is this the config of these weights?"
            )
        weights[weight.name] = partial(rows_in_layout, tensor)
    return config, weights
