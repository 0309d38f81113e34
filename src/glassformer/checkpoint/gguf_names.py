"""A GGUF file's metadata and tensors in the families' own words, by the table of its architecture; and the way back.

Fields of a config that only have another name stand in tables. The others have readers, which get the metadata and the
tensors: a bias that is there says more than any field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from glassformer.checkpoint import gguf_fields as fields
from glassformer.checkpoint import gguf_sizes as sizes
from glassformer.checkpoint import gguf_tensors as tensors
from glassformer.checkpoint import gguf_written_fields as written
from glassformer.checkpoint.gguf_parts import EXPANDED_LATENTS, SHARES_OF_KEYS, Halves, Parts, with_whole_tensors
from glassformer.checkpoint.stored_tensors import (
    BufferedFile,
    FoldedVector,
    InterleavedPairs,
    KernelPlanes,
    KernelRows,
    Layout,
    NegativeExponential,
    OffsetByOne,
    PartAfterGroup,
    PartAfterPart,
    SingleRow,
    StoredTensor,
    TiledColumns,
    TiledHeads,
    Transposed,
)
from glassformer.ground.errors import CheckpointError, did_you_mean, did_you_misspell

Reader: TypeAlias = Callable[[fields.Metadata, fields.Raw], dict[str, Any]]
Test: TypeAlias = Callable[[fields.Metadata], bool]
REQUIRED = ("embedding_length", "block_count", "attention.head_count")


def config_from_gguf(metadata: Mapping[str, Any], raw: Mapping[str, StoredTensor], path: Path) -> dict[str, Any]:
    """The configuration that `config.json` would hold."""
    architecture, table = table_of(metadata, path)
    own = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    for key in REQUIRED:
        if own.get(key) is None:
            raise CheckpointError(f"{path}: GGUF field '{architecture}.{key}' is missing. Fetch the file again.")
    config: dict[str, Any] = {"model_type": table.model_type}
    for key, name in table.sizes.items():
        if (value := own.get(key)) is not None:
            config[name] = fields.shortest_float(value)
    if "head_dim" in table.sizes.values() and "head_dim" not in config:
        config["head_dim"] = fields.head_width(own)
    embedding = raw.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{path}: GGUF tensor 'token_embd.weight' is missing. Fetch the file again.")
    config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in raw or raw["output.weight"].same_bytes(embedding)
    for name in ("bos", "eos", "padding"):
        if (token := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{name.removesuffix('ding')}_token_id"] = token
    return config | table.extra(own, raw)


def tensors_from_gguf(
    metadata: Mapping[str, Any], config: Mapping[str, Any], raw: fields.Raw, path: Path
) -> dict[str, StoredTensor]:
    """The tensors under the family's names, with the layout that leads from the file's to the family's order."""
    _, table = table_of(metadata, path)
    found: dict[str, StoredTensor] = {}
    for name, stored in with_parted_attention(with_whole_tensors(raw, table.readable_parts, config), table, config).items():
        if (
            name in table.ignored
            or _is_shared(name, config)
            or (_is_of_draft(name, config) and not tensors.NEXTN.items() <= table.names.items())
        ):
            continue
        if ".ffn_gate_up_exps." in name:
            for half, part in enumerate(("gate", "up")):
                one = name.replace("gate_up", part)
                family_name, _ = family_name_and_layout(metadata, config, one, stored.shape, path)
                found |= unstacked(replace(stored, name=family_name), half)
            continue
        family_name, layout = family_name_and_layout(metadata, config, name, stored.shape, path)
        shape = stored.shape if layout is None else layout.stored_shape(stored.shape)  # each layout is its own inverse there
        tensor = replace(stored, name=family_name, shape=shape, layout=layout)
        found |= unstacked(tensor) if "*" in family_name else {family_name: tensor}
    for key, (pattern, shape) in table.numbers.items():
        found |= _tensors_of_numbers(key, metadata, pattern, shape, config["num_hidden_layers"], path)
    return found


def _tensors_of_numbers(
    key: str, metadata: Mapping[str, Any], pattern: str, shape: tuple[int, ...], layers: int, path: Path
) -> dict[str, StoredTensor]:
    """What a field lists for each layer, as a tensor each."""
    listed = metadata.get(key)
    if not isinstance(listed, list) or len(listed) != layers or not all(isinstance(one, int | float) for one in listed):
        raise CheckpointError(
            f"{path}: GGUF field {key!r} must list a number for each of {layers} layers. Fetch the file again."
        )
    numbers = np.array(listed, np.float32)
    file = BufferedFile(path, numbers.view(np.uint8))
    names = [pattern.format(layer) for layer in range(layers)]
    return {name: StoredTensor(name, "F32", shape, file, 4 * layer, 4) for layer, name in enumerate(names)}


def with_parted_attention(
    raw: fields.Raw, table: ArchitectureTable, config: Mapping[str, Any]
) -> Mapping[str, StoredTensor]:
    """Queries, keys and values apart, where a file has them as one matrix and the family does not."""
    if "blk.{}.attn_qkv" in table.names or "blk.{}.attn_q" not in table.names:
        return raw
    found = dict(raw)
    heads: Any = config.get("num_attention_heads")
    groups: Any = config.get("num_key_value_heads") or heads
    for name in [name for name in raw if re.fullmatch(r"blk\.\d+\.attn_qkv\.(weight|bias)", name)]:
        whole = found.pop(name)
        fits = type(heads) is type(groups) is int and heads > 0 and groups > 0
        if not fits or whole.shape[0] % (heads + 2 * groups):
            raise CheckpointError(
                f"{whole.file.path}: GGUF tensor {name!r} has {whole.shape[0]} rows, which are no queries, keys and values "
                f"of {heads} heads. Fetch the file again."
            )
        start, row, width = 0, whole.size // whole.shape[0], whole.shape[0] // (heads + 2 * groups)
        for part, count in zip("qkv", (heads * width, groups * width, groups * width), strict=True):
            own = name.replace("attn_qkv", f"attn_{part}")
            found[own] = replace(
                whole, name=own, shape=(count, *whole.shape[1:]), offset=whole.offset + start * row, size=count * row
            )
            start += count
    return found


def _is_shared(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor makes keys or values of a layer that takes another's, which nothing reads."""
    layer = re.match(r"blk\.(\d{1,9})\.attn_[kv](_norm)?\.", name)
    shared, layers = config.get("num_kv_shared_layers"), config.get("num_hidden_layers")
    if layer is None or not isinstance(shared, int) or not isinstance(layers, int):
        return False
    return layers - shared <= int(layer[1]) < layers


def _is_of_draft(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor is of a layer after the last that a text goes through."""
    layer = re.match(r"blk\.(\d{1,9})\.", name)
    return layer is not None and "num_hidden_layers" in config and int(layer[1]) >= config["num_hidden_layers"] > 0


def family_name_and_layout(
    metadata: Mapping[str, Any], config: Mapping[str, Any], name: str, shape: tuple[int, ...], path: Path
) -> tuple[str, Layout | None]:
    """The family's name for a tensor of GGUF's name and shape, and how it lies in the file."""
    architecture, table = table_of(metadata, path)
    names = table.names
    if table.other_names is not None and config.get(table.other_names[0]) == table.other_names[1]:
        names = table.other_names[2]
    stem, _, ending = name.rpartition(".")
    layer = re.search(r"(?:^|\.)blk\.(\d+)\.", name)
    whole, pattern = (part.replace(f"blk.{layer.group(1)}.", "blk.{}.") if layer else part for part in (name, stem))
    if whole in names:  # which has no ending
        pattern = whole
    if pattern not in names:
        raise CheckpointError(
            f"{path}: GGUF tensor {name!r} has no place in a {architecture} model."
            f"{did_you_mean(pattern, names)} This variant is not supported; choose another file."
        )
    family_name = names[pattern].format(layer.group(1) if layer else "")
    family_name += "" if family_name.endswith((*tensors.ENDINGS,)) else f".{ending}"
    return family_name, _layout(table, name, shape, config, path)


def unstacked(stacked: StoredTensor, half: int | None = None) -> dict[str, StoredTensor]:
    """What one tensor holds for several experts or heads, by the name of each; * stands for the index. `half`: the first
    or the second half of each expert's rows only."""
    count = max(stacked.shape[0], 1)
    whole, shape = stacked.size // count, stacked.shape[1:]
    size, skipped = whole, 0
    if half is not None:
        size, shape = whole // 2, (shape[0] // 2, *shape[1:])
        skipped = half * size
    return {
        (name := stacked.name.replace("*", str(index))): replace(
            stacked, name=name, shape=shape, offset=stacked.offset + index * whole + skipped, size=size
        )
        for index in range(stacked.shape[0])
    }


def gguf_name_and_layout(
    table: ArchitectureTable, config: Mapping[str, Any], name: str, shape: tuple[int, ...]
) -> tuple[str, Layout | None]:
    """GGUF's name and layout for a tensor of the family: the inverse of `tensors_from_gguf`. Experts have one name."""
    own = next((ending for whole, ending in tensors.ENDINGS.items() if name.endswith(whole)), None)
    stem, _, last = name.rpartition(".")
    layer = re.search(r"\.(\d+)\.", name)
    other = {} if table.other_names is None else table.other_names[2]
    by_ours = {ours: theirs for theirs, ours in reversed([*table.names.items(), *other.items()])}
    without_base = stem.partition(".")[2]  # which an encoder's names have in front
    for part, ending in ((name, own), (stem, f".{last}"), (without_base, f".{last}")):
        pattern = re.sub(r"\.\d+$", ".*", re.sub(r"\.experts\.\d+\.", ".experts.*.", part))
        pattern = pattern.replace(f".{layer.group(1)}.", ".{}.", 1) if layer else pattern
        if ending is not None and pattern in by_ours:
            break
    gguf_name = f"{by_ours[pattern].format(layer.group(1) if layer else '')}{ending}"
    return gguf_name, _layout(table, gguf_name, shape, config, Path(name))


def _layout(
    table: ArchitectureTable, name: str, shape: tuple[int, ...], config: Mapping[str, Any], path: Path
) -> Layout | None:
    """How a tensor of GGUF's name lies, where that is not how the family has it."""
    queries: Any = config.get("num_attention_heads")
    if table.tiled and (tiled := _tiled(name, config)) is not None:
        return tiled
    if table.folded_norms and re.fullmatch(r"blk\.\d+\.ssm_norm\.weight", name):
        groups: Any = config.get("n_groups", config.get("mamba_n_groups"))
        fits = type(groups) is int and groups > 0 and math.prod(shape) % groups == 0
        return FoldedVector(groups) if fits else None  # and the config is refused
    if table.part_after_part and re.fullmatch(r"blk\.\d+\.attn_qkv\.\w+", name):
        return PartAfterPart(_checked_heads(queries, 3, name, shape[0], path))
    if table.part_after_group and re.fullmatch(r"blk\.\d+\.attn_qkv\.\w+", name):
        groups = config.get("num_kv_heads", 1 if config.get("multi_query", True) else queries)
        if not isinstance(groups, int) or not isinstance(queries, int) or groups < 1 or queries % groups:
            return None  # and the config is refused
        return PartAfterGroup(queries, groups) if shape[0] % (queries + 2 * groups) == 0 else None
    projection = re.fullmatch(r"blk\.\d+\.attn_([qk])\.\w+", name) if table.interleaved else None
    if projection is None:
        return next((layout for pattern, layout in table.layouts.items() if re.fullmatch(pattern, name)), None)
    heads = queries if projection.group(1) == "q" else config.get("num_key_value_heads") or queries
    return InterleavedPairs(_checked_heads(heads, 2, name, shape[0], path))


def _tiled(name: str, config: Mapping[str, Any]) -> Layout | None:
    """How what belongs to the heads of a state lies in a file: in turns, a head of values for each head of keys."""
    keys, values, key_size, size = (
        config.get(f"linear_{part}") for part in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    )
    if not (type(keys) is type(values) is type(key_size) is type(size) is int and keys > 0) or values % keys:
        return None  # the config is refused
    of_values, of_numbers = (TiledHeads(keys, values // keys, width) for width in (size, 1))
    behind_keys = TiledHeads(keys, values // keys, size, 2 * keys * key_size)
    layouts: Mapping[str, Layout] = {
        "attn_qkv": behind_keys, "attn_gate": of_values, "ssm_beta": of_numbers, "ssm_alpha": of_numbers,
        "ssm_dt": of_numbers, "ssm_conv1d": KernelRows(behind_keys), "ssm_a": NegativeExponential(of_numbers),
        "ssm_out": TiledColumns(of_values),
    }  # fmt: skip
    found = re.fullmatch(r"blk\.\d+\.(\w+)(?:\.\w+)?", name)
    layout = layouts.get(found.group(1)) if found else None
    in_order = keys == values and isinstance(layout, TiledHeads | TiledColumns)
    return None if in_order else layout


def _checked_heads(heads: Any, parts: int, name: str, rows: int, path: Path) -> int:
    """How many heads a tensor's rows make, refused where they make none that fall into this many parts."""
    if type(heads) is not int or heads < 1 or rows % (parts * heads):
        what = "pairs in" if parts == 2 else "queries, keys and values of"
        raise CheckpointError(
            f"{path}: GGUF tensor {name!r} has {rows} rows, which do not make {what} {heads} heads "
            "(fields 'attention.head_count' and 'attention.head_count_kv'). Fetch the file again."
        )
    return heads


@dataclass(frozen=True)
class ArchitectureTable:
    names: Mapping[str, str]
    sizes: Mapping[str, str]
    model_type: str
    extra: Reader = fields.decoder  # what the tensors show, or no field says
    write: Callable[[Any], Mapping[str, Any]] = written.nothing  # and the inverse: fields beside the sizes, of a config
    refuse: written.Refusal = written.takes_all
    interleaved: bool = False  # query and key rows have their rotary pairs side by side
    tiled: bool = False  # heads of values stand in turns, one for each head of keys
    folded_norms: bool = False  # of states: the weights of each group are a row
    part_after_part: bool = False  # of a fused projection: all queries, then all keys, then all values
    part_after_group: bool = False  # the same, of heads in groups
    other_names: tuple[str, Any, Mapping[str, str]] | None = None  # of models whose config has this value in this field
    layouts: Mapping[str, Layout] = field(default_factory=dict)  # by a pattern of GGUF's names
    ignored: frozenset[str] = frozenset({"rope_freqs.weight", *fields.ROPE_FACTORS.values()})  # in the config instead
    numbers: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # fields that list one for each layer,
    # and the family's tensors that have it: name and shape
    parts: Parts | None = None  # in which a tensor is written
    fused_attention: bool = False  # a file has queries, keys and values of a block as one matrix
    fused_experts: bool = False  # a file has the two matrices of an expert that are read side by side as one
    variants: Sequence[tuple[Test, ArchitectureTable]] = ()  # other models of the same architecture, by what tells them

    @property
    def readable_parts(self) -> Sequence[Parts]:
        return [*dict.fromkeys((EXPANDED_LATENTS, *([] if self.parts is None else [self.parts])))]

    def stacks(self, name: str) -> bool:
        """Whether a tensor of GGUF's name holds several of the family's."""
        stem, _, _ = re.sub(r"\bblk\.\d+\.", "blk.{}.", name).rpartition(".")
        other = {} if self.other_names is None else self.other_names[2]
        return "*" in (self.names.get(stem) or other.get(stem, ""))


QWEN35_LAYOUTS: Mapping[str, Layout] = {r"(?!.*ssm_norm).*norm\.weight": OffsetByOne()}

SHORT_CONVOLUTIONS: Mapping[str, Layout] = {r"blk\.\d+\.shortconv\.conv\.weight": KernelRows()}

STATE_SPACE_LAYOUTS: Mapping[str, Layout] = {
    r"blk\.\d+\.ssm_conv1d\.weight": KernelRows(),
    r"blk\.\d+\.ssm_a": FoldedVector(rates=True),
    r"blk\.\d+\.ssm_d": FoldedVector(),
}

GATE_AND_UP = Halves("ffn_gate_up", ("ffn_gate", "ffn_up"))
OF_SHARED_EXPERT = Halves("ffn_gate_up_shexp", ("ffn_gate_shexp", "ffn_up_shexp"))

TABLES: Mapping[str, ArchitectureTable] = {
    "llama": ArchitectureTable(
        tensors.DECODER, sizes.DECODER, "llama", interleaved=True,
        variants=[(
            fields.has_experts,
            ArchitectureTable(tensors.MIXTRAL, sizes.EXPERT, "mixtral", fields.mixtral, interleaved=True),
        )],
    ),
    "qwen2": ArchitectureTable(tensors.DECODER, sizes.DECODER, "qwen2"),
    "qwen3": ArchitectureTable(
        {**tensors.DECODER, **tensors.HEAD_NORMS}, sizes.DECODER, "qwen3",
        ignored=ArchitectureTable.ignored | {"cls.output.weight"},  # a reranker's: rows of its table, for "yes" and "no"
    ),
    "qwen2moe": ArchitectureTable(
        tensors.QWEN2_MOE, sizes.SHARED_EXPERT, "qwen2_moe", fields.qwen2_moe,
        layouts={r"blk\.\d+\.ffn_gate_inp_shexp\.weight": SingleRow()},
    ),
    "qwen3moe": ArchitectureTable(
        {**tensors.DECODER, **tensors.HEAD_NORMS, **tensors.EXPERTS}, sizes.EXPERT, "qwen3_moe", fields.qwen3_moe,
    ),
    "granitemoe": ArchitectureTable(
        tensors.GRANITE_MOE, sizes.GRANITE_MOE, "granitemoe", interleaved=True,
        variants=[
            (fields.has_shared_expert, ArchitectureTable(
                tensors.GRANITE_HYBRID_MOE, sizes.GRANITE_SHARED_MOE, "granitemoehybrid", fields.granite_hybrid,
                refuse=written.states_as_readers_take_them,
                interleaved=True, parts=OF_SHARED_EXPERT,
            )),
        ],
    ),
    "granitehybrid": ArchitectureTable(
        tensors.GRANITE_HYBRID, sizes.GRANITE_HYBRID, "granitemoehybrid", fields.granite_hybrid,
        write=written.states_beside_attention, refuse=written.states_as_readers_take_them, interleaved=True,
        folded_norms=True, layouts=STATE_SPACE_LAYOUTS,
        parts=GATE_AND_UP,
        variants=[
            (fields.has_no_multipliers, ArchitectureTable(
                tensors.BAMBA, sizes.BAMBA, "bamba", fields.bamba,
                write=written.states_beside_attention, refuse=written.states_as_readers_take_them,
                interleaved=True, folded_norms=True, layouts=STATE_SPACE_LAYOUTS,
            )),
            (fields.has_experts, ArchitectureTable(
                tensors.GRANITE_HYBRID_MOE, sizes.GRANITE_HYBRID_MOE, "granitemoehybrid", fields.granite_hybrid,
                write=written.states_beside_attention, refuse=written.states_as_readers_take_them,
                interleaved=True, folded_norms=True, layouts=STATE_SPACE_LAYOUTS,
                parts=OF_SHARED_EXPERT,
            )),
        ],
    ),
    "mamba2": ArchitectureTable(
        tensors.MAMBA2, sizes.MAMBA2, "mamba2", fields.mamba2,
        write=written.mamba2, folded_norms=True, layouts=STATE_SPACE_LAYOUTS,
    ),
    "falcon-h1": ArchitectureTable(
        tensors.FALCON_H1, sizes.FALCON_H1, "falcon_h1", fields.falcon_h1,
        write=written.inner_states, folded_norms=True, layouts=STATE_SPACE_LAYOUTS,
    ),
    "nemotron_h": ArchitectureTable(
        tensors.NEMOTRON_H, sizes.NEMOTRON_H, "nemotron_h", fields.nemotron_h, write=written.nemotron_h, folded_norms=True,
        layouts=STATE_SPACE_LAYOUTS,
    ),
    "nemotron_h_moe": ArchitectureTable(
        tensors.NEMOTRON_H_MOE, sizes.NEMOTRON_H_MOE, "nemotron_h", fields.nemotron_h,
        write=written.nemotron_h, refuse=written.without_mlps, folded_norms=True,
        layouts=STATE_SPACE_LAYOUTS,
    ),
    "qwen35": ArchitectureTable(
        tensors.QWEN35, {**sizes.DECODER, **sizes.GATED_DELTA}, "qwen3_5_text", fields.gated_delta,
        write=written.qwen35, tiled=True,
        layouts=QWEN35_LAYOUTS,
    ),
    "qwen35moe": ArchitectureTable(
        tensors.QWEN35_MOE, {**sizes.SHARED_EXPERT, **sizes.GATED_DELTA}, "qwen3_5_moe_text", fields.gated_delta,
        write=written.qwen35, tiled=True,
        layouts={**QWEN35_LAYOUTS, r"blk\.\d+\.ffn_gate_inp_shexp\.weight": SingleRow()},
    ),
    "qwen3next": ArchitectureTable(
        tensors.QWEN3_NEXT, {**sizes.SHARED_EXPERT, **sizes.GATED_DELTA}, "qwen3_next", fields.gated_delta,
        write=written.gated_delta, refuse=written.with_experts_everywhere,
        layouts={
            **QWEN35_LAYOUTS, r"blk\.\d+\.ffn_gate_inp_shexp\.weight": SingleRow(),
            r"blk\.\d+\.ssm_conv1d\.weight": KernelRows(), r"blk\.\d+\.ssm_a": NegativeExponential(),
        },
        parts=SHARES_OF_KEYS,
    ),
    "kimi-linear": ArchitectureTable(
        tensors.KIMI_LINEAR, sizes.KIMI_LINEAR, "kimi_linear", fields.kimi_linear,
        write=written.kimi_linear, parts=EXPANDED_LATENTS,
        layouts={
            r"blk\.\d+\.ssm_conv1d_[qkv]\.weight": KernelPlanes(), r"blk\.\d+\.ssm_a": NegativeExponential(),
        },
    ),
    "lfm2": ArchitectureTable(tensors.LFM2, sizes.LFM2, "lfm2", fields.lfm2, write=written.lfm2, layouts=SHORT_CONVOLUTIONS),
    "lfm2moe": ArchitectureTable(
        tensors.LFM2_MOE, sizes.LFM2_MOE, "lfm2_moe", fields.lfm2_moe, write=written.lfm2, layouts=SHORT_CONVOLUTIONS,
    ),
    "olmoe": ArchitectureTable(
        {**tensors.DECODER, **tensors.HEAD_NORMS, **tensors.EXPERTS}, sizes.EXPERT, "olmoe", refuse=written.without_limits,
    ),
    "gpt-oss": ArchitectureTable(tensors.GPT_OSS, sizes.GPT_OSS, "gpt_oss", fields.gpt_oss),
    "phi3": ArchitectureTable(tensors.PHI3, sizes.WINDOW, "phi3", fields.partly_rotated),
    "olmo2": ArchitectureTable(tensors.OLMO2, sizes.WINDOW, "olmo2", fields.olmo2, write=written.local_layers),
    "exaone4": ArchitectureTable(tensors.OLMO2, sizes.WINDOW, "exaone4", fields.exaone4, write=written.local_layers),
    "glm4": ArchitectureTable(tensors.GLM4, sizes.DECODER, "glm4", fields.partly_rotated),
    "glm4moe": ArchitectureTable(tensors.GLM4_MOE, sizes.GROUPED_EXPERT, "glm4_moe", fields.glm4_moe),
    "deepseek2": ArchitectureTable(
        tensors.LATENT, sizes.LATENT, "deepseek_v2", fields.deepseek_v2,
        variants=[(
            fields.shares_by_sigmoids,
            ArchitectureTable({**tensors.LATENT, **tensors.NEXTN}, sizes.LATENT, "deepseek_v3", fields.latent),
        )],
    ),
    "command-r": ArchitectureTable(tensors.COHERE, sizes.COHERE, "cohere"),
    "cohere2": ArchitectureTable(tensors.COHERE, sizes.COHERE2, "cohere2", fields.cohere2, write=written.cohere2),
    "mistral3": ArchitectureTable(
        tensors.DECODER, sizes.DECODER, "ministral3", fields.mistral3, write=written.mistral3, interleaved=True,
    ),
    "llama4": ArchitectureTable(tensors.LLAMA4, sizes.LLAMA4, "llama4_text", fields.llama4),
    "apertus": ArchitectureTable(
        tensors.APERTUS, sizes.DECODER, "apertus", fields.apertus,
        numbers={
            f"xielu.{name}": (f"model.layers.{{}}.mlp.act_fn.{name}", shape)
            for name, shape in {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}.items()
        },
    ),
    "seed_oss": ArchitectureTable(tensors.SEED_OSS, sizes.DECODER, "seed_oss", fields.seed_oss),
    "ernie4_5": ArchitectureTable(tensors.DECODER, sizes.DECODER, "ernie4_5", fields.ernie),
    "ernie4_5-moe": ArchitectureTable(
        tensors.ERNIE_MOE, sizes.ERNIE_MOE, "ernie4_5_moe", fields.ernie_moe,
        layouts={r"blk\.\d+\.exp_probs_b\.bias": SingleRow()},
    ),
    "minimax-m2": ArchitectureTable(tensors.MINIMAX, sizes.WHOLE_EXPERT, "minimax_m2", fields.partly_rotated),
    "hunyuan-dense": ArchitectureTable(tensors.HUNYUAN, sizes.DECODER, "hunyuan_v1_dense"),
    "arcee": ArchitectureTable(tensors.ARCEE, sizes.DECODER, "arcee", interleaved=True),
    "stablelm": ArchitectureTable(tensors.STABLELM, sizes.STABLELM, "stablelm", fields.stablelm),
    "phi2": ArchitectureTable(
        tensors.PHI2, sizes.LAYER_NORM, "phi", fields.partly_rotated, refuse=written.without_head_norms,
    ),
    "nemotron": ArchitectureTable(
        tensors.ARCEE, sizes.NEMOTRON, "nemotron", fields.partly_rotated, layouts={r".*norm\.weight": OffsetByOne()}
    ),
    "olmo": ArchitectureTable(tensors.OLMO, sizes.OLMO, "olmo", interleaved=True),
    "starcoder": ArchitectureTable(tensors.GPT2, sizes.STARCODER, "gpt_bigcode", lambda *_: {}),
    "bloom": ArchitectureTable(tensors.BLOOM, sizes.BLOOM, "bloom", lambda *_: {}, part_after_part=True),
    "falcon": ArchitectureTable(
        tensors.FALCON, sizes.FALCON, "falcon", fields.falcon,
        write=written.falcon, refuse=written.newer_falcons, part_after_group=True,
        other_names=("num_ln_in_parallel_attn", 2, tensors.FALCON_OF_TWO_NORMS),
    ),
    "mpt": ArchitectureTable(tensors.MPT, sizes.MPT, "mpt", fields.mpt, write=written.mpt),
    "granite": ArchitectureTable(tensors.DECODER, sizes.GRANITE, "granite", interleaved=True),
    "smollm3": ArchitectureTable(tensors.DECODER, sizes.DECODER, "smollm3", interleaved=True),
    "starcoder2": ArchitectureTable(tensors.STARCODER2, sizes.STARCODER2, "starcoder2", fields.starcoder2),
    "gptneox": ArchitectureTable(tensors.GPTNEOX, sizes.GPTNEOX, "gpt_neox", fields.gptneox, part_after_part=True),
    "gemma": ArchitectureTable(tensors.DECODER, sizes.DECODER, "gemma", layouts={r".*norm\.weight": OffsetByOne()}),
    "gemma2": ArchitectureTable(
        tensors.GEMMA2, sizes.GEMMA, "gemma2", fields.gemma2, layouts={r".*norm\.weight": OffsetByOne()},
    ),
    "gemma3": ArchitectureTable(
        tensors.GEMMA3, sizes.GEMMA, "gemma3_text", fields.gemma3,
        write=written.gemma3, layouts={r".*norm\.weight": OffsetByOne()},
    ),
    "gemma-embedding": ArchitectureTable(
        tensors.GEMMA3, sizes.GEMMA, "embedding_gemma", fields.gemma3,
        write=written.gemma3, layouts={r".*norm\.weight": OffsetByOne()},
        ignored=frozenset({"dense_2.weight", "dense_3.weight"}),  # of its vectors: `sentence_pooling`
    ),
    "eurobert": ArchitectureTable(tensors.DECODER, sizes.DECODER, "eurobert"),
    "gemma4": ArchitectureTable(
        tensors.GEMMA4, sizes.GEMMA4, "gemma4_text", fields.gemma4, write=written.gemma4, fused_experts=True,
    ),
    "gemma3n": ArchitectureTable(
        tensors.GEMMA3N, sizes.GEMMA3N, "gemma3n_text", fields.gemma3n,
        write=written.gemma3n, refuse=written.as_readers_take_gemma3n,
    ),
    "gpt2": ArchitectureTable(
        tensors.GPT2, {**sizes.COMMON, "attention.layer_norm_epsilon": "layer_norm_epsilon"}, "gpt2", lambda *_: {},
        layouts={r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight": Transposed()},
    ),
    "bert": ArchitectureTable(
        tensors.BERT, sizes.BERT, "bert", fields.bert,
    ),
    "nomic-bert": ArchitectureTable(
        tensors.NOMIC_BERT, sizes.NOMIC_BERT, "nomic_bert", fields.bert, fused_attention=True,
    ),
    "modern-bert": ArchitectureTable(
        tensors.MODERN_BERT, sizes.MODERN_BERT, "modernbert", fields.modern_bert,
        ignored=frozenset(f"cls{part}.{kind}" for part in ("", ".norm", ".output") for kind in ("weight", "bias")),  # a head
    ),
    "t5": ArchitectureTable(tensors.T5, sizes.T5, "t5", fields.t5, ignored=frozenset({"dec.blk.0.cross_attn_rel_b.weight"}),
        other_names=("feed_forward_proj", "relu", tensors.T5_PLAIN),
    ),
}  # fmt: skip


def model_type_of(metadata: Mapping[str, Any], path: Path) -> str:
    """The family that a file's architecture is."""
    return table_of(metadata, path)[1].model_type


def table_of(metadata: Mapping[str, Any], path: Path) -> tuple[str, ArchitectureTable]:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in TABLES:
        raise CheckpointError(
            f"{path}: GGUF field 'general.architecture' is {architecture!r}, which is not known."
            f"{did_you_misspell(str(architecture), TABLES)} Known: {', '.join(TABLES)}."
        )
    own = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    table = TABLES[architecture]
    return architecture, next((variant for test, variant in table.variants if test(own)), table)


def tables_of(architecture: str) -> list[ArchitectureTable]:
    """All tables of an architecture's models."""
    table = TABLES[architecture]
    return [*(variant for _, variant in table.variants), table]


def table_for(architecture: str, config: Any) -> ArchitectureTable:
    """The table of an architecture's models as this one is."""
    own = [table for table in tables_of(architecture) if table.model_type == config.model_type]
    if len(own) > 1:  # with experts and without
        shown = {"expert_count": len(getattr(config, "routed_layers", ()))}
        own = [table for test, table in TABLES[architecture].variants if table in own and test(shown)] or own[::-1]
    return own[0] if own else TABLES[architecture]
