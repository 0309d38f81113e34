"""A whole model as one GGUF file: its fields, its tokenizer and its tensors, as llama.cpp and others open it.

From a GGUF file of plain floats, fields and names are taken as they are. From a folder they are made: names and layouts by
the tables that read them (`gguf_names`), the config's fields by `gguf_metadata`, the tokenizer's by `text.sources.gguf.export`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from glassformer.blueprints import Config, blueprint
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.gguf_names import TABLES, written
from glassformer.checkpoint.gguf_writer import OutputTensor, RowReader, rows_in_layout, stored_rows, write_gguf
from glassformer.checkpoint.stored_tensors import Layout, StoredTensor
from glassformer.checkpoint.tensor_names import resolve_names
from glassformer.errors import CheckpointError, InputError
from glassformer.opened import OpenedModel
from glassformer.progress import NamedProgress
from glassformer.quantize.gguf_metadata import MEND, architecture_of, check, described, divisors
from glassformer.quantize.tensor_kinds import Role, checked, kind_for, label, roles, stored_roles
from glassformer.text import Tokenizer
from glassformer.text.sources.gguf import export

Weights: TypeAlias = Mapping[
    str, Callable[[Layout | None], RowReader]
]  # a tensor's rows by its name, laid as GGUF wants them

FILE_TYPES = {  # what most of a file is, by llama.cpp's numbers
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q4_K": 14, "Q5_K": 16, "Q6_K": 18, "BF16": 32,
}  # fmt: skip
ENDS = ("eos", "eot", "eom")  # what a token that ends a text can be called
HEAD = "lm_head.weight"


def quantize(
    opened: OpenedModel, path: Path, kind: str, *, force: bool = False, progress: NamedProgress | None = None
) -> None:
    """Write a model as a GGUF file in a kind; `force` writes over a file that is there."""
    kind = checked(opened, kind)
    if path.exists() and path.samefile(opened.path):
        raise InputError(f"{path} is the model itself, which is read while the other is written. Choose another name.")
    if path.exists() and not force:
        raise InputError(f"{path} is there already. Choose another name, or write over it with --force (force=True).")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is no folder. Make it first, or choose another place.")
    if isinstance(opened.checkpoint, GgufCheckpoint):
        _copy(opened, opened.checkpoint, path, kind, progress)
        return
    architecture_of(opened.config, opened.name)
    if opened.head != "causal":
        raise InputError(f"{opened.name}: GGUF has no place for a model with a {opened.head} head. {MEND}")
    config, weights = _weights(opened)
    ends = opened.settings.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else ends
    write_model(path, label(opened), config, weights, opened.tokenizer, kind, ends=ends, progress=progress)


def write_model(
    path: Path, name: str, config: Config, weights: Weights, tokenizer: Tokenizer, kind: str,
    *, ends: Sequence[int] = (), progress: NamedProgress | None = None,
) -> None:  # fmt: skip
    """Write a GGUF file of a model whose weights may come from anywhere; `ends`: the tokens that end a text."""
    architecture = architecture_of(config, name)
    made = blueprint(config)
    heads = {field: getattr(config, field, None) for field in ("num_attention_heads", "num_key_value_heads")}
    known = roles(made)
    tensors = []
    for weight in made.weights:
        theirs, layout = written(TABLES[architecture], heads, weight.name, weight.shape)
        shape = weight.shape if layout is None else layout.stored_shape(weight.shape)
        role: Role = "product" if known[weight.name] == "columns" else known[weight.name]
        wanted = kind_for(role, shape[-1], kind) or "F32"
        tensors.append(OutputTensor(theirs, wanted, shape, partial(weights[weight.name], layout)))
    if (slowed := divisors(config)) is not None:
        tensors.append(OutputTensor("rope_freqs.weight", "F32", slowed.shape, lambda: lambda *_: slowed[None]))
    said: dict[str, Any] = {f"{architecture}.{key}": value for key, value in described(config, made).items()}
    said |= {"general.architecture": architecture, "general.type": "model", "general.name": name}
    check(name, made, said, tensors)
    said |= _kinds(kind) | spoken(tokenizer, config.vocab_size, ends)
    write_gguf(path, architecture, said, tensors, progress)


def spoken(tokenizer: Tokenizer, size: int, ends: Sequence[int]) -> dict[str, Any]:
    """The tokenizer's fields, and under which names a text's ends go."""
    template = tokenizer.chat_template
    template = template.get("default") if isinstance(template, Mapping) else template
    special = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    found = export.fields(tokenizer.backend, special, template, size)
    own = found.get("tokenizer.ggml.eos_token_id")
    named = zip(ENDS, dict.fromkeys(([] if own is None else [own]) + [*ends]), strict=False)
    return found | {f"tokenizer.ggml.{role}_token_id": end for role, end in named}


def _kinds(kind: str) -> dict[str, int]:
    """What a file says of its kinds."""
    return {"general.file_type": FILE_TYPES[kind], "general.quantization_version": 2}


def _copy(opened: OpenedModel, source: GgufCheckpoint, path: Path, kind: str, progress: NamedProgress | None) -> None:
    """A GGUF file's own fields and names; only the numbers are packed."""
    known = stored_roles(opened)
    at = {one.offset: known.get(id(one), "plain") for one in source.tensors.values()}
    tensors = []
    for name, stored in source.raw.items():
        wanted = kind_for(at.get(stored.offset, "plain"), stored.shape[-1], kind) or "F32"
        tensors.append(OutputTensor(name, wanted, stored.shape, partial(stored_rows, stored)))
    write_gguf(path, source.metadata["general.architecture"], {**source.metadata, **_kinds(kind)}, tensors, progress)


def _weights(opened: OpenedModel) -> tuple[Config, Weights]:
    """A folder's tensors under the full names; the config says that the head is its own where one is stored that is."""
    config = opened.config
    stored = resolve_names(opened.tensors, [HEAD, *(weight.name for weight in blueprint(config).weights)])
    table = stored.get(blueprint(config).weights[0].name)
    if config.tie_word_embeddings and HEAD in stored and table is not None and not stored[HEAD].same_bytes(table):
        config = config.with_changes({"tie_word_embeddings": False})
    found: dict[str, Callable[[Layout | None], RowReader]] = {}
    for weight in blueprint(config).weights:
        one = stored.get(weight.name)
        if one is None:
            raise CheckpointError(f"{opened.path}: the weights lack {weight.name}. Is this the config of these weights?")
        if one.shape != weight.shape:
            raise CheckpointError(
                f"{opened.path}: tensor {one.name!r} has shape {one.shape}, but the config makes it {weight.shape}. "
                "Is this the config of these weights?"
            )
        found[weight.name] = partial(_rows, one)
    return config, found


def _rows(stored: StoredTensor, layout: Layout | None) -> RowReader:
    return stored_rows(stored) if layout is None else rows_in_layout(stored, layout)
