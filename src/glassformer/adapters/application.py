"""What an adapter is, and how it is applied to a base: merged into its tensors, or with the updates as tensors beside them.

Merged weights are computed in float32 when they are first read: W + scale · b · a, exact but for the rounding of a float32
product, whatever the base's own kind is. Beside the base, an update stays the two thin matrices that it is, and the base's
weights stay as they are stored; only what cannot stand beside (an embedding's update, a head's, an expert's, DoRA's, whole
tensors) is merged there too.

Shapes: weight (outputs, inputs), or (inputs, outputs) where it is transposed; a (rank, inputs), b (outputs, rank);
an embedding's inputs are its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from glassformer.adapters.unmerged import stands_beside
from glassformer.blueprints import Blueprint, Config, Head, blueprint
from glassformer.checkpoint import StoredTensor
from glassformer.checkpoint.legacy_names import EMBEDDING_NAMES, resolve_names
from glassformer.checkpoint.stored_tensors import Floats, computed_tensor
from glassformer.ground.errors import CheckpointError, ConfigError, did_you_mean
from glassformer.ops.embed import Embed

AdapterMode: TypeAlias = Literal["merged", "beside"]
MODES: tuple[AdapterMode, ...] = get_args(AdapterMode)
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class MatrixUpdate:
    """What is added to a matrix: scale · b · a (https://arxiv.org/abs/2106.09685).

    With a magnitude (DoRA, https://arxiv.org/abs/2402.09353) each row of the sum gets that length.
    """

    a: StoredTensor
    b: StoredTensor
    scale: float
    magnitude: StoredTensor | None = None  # (outputs,)

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(frozen=True)
class Adapter:
    """An adapter's tensors under its own names: those of the modules of the model that it was trained on."""

    path: Path  # as it was named
    updates: Mapping[str, MatrixUpdate]  # by module
    replacements: Mapping[str, StoredTensor]  # tensors that take the place of the base's: biases, whole modules
    base: str | None = None  # the model that it was trained on, as the file names it
    head: Head | None = None  # the head of that model, if it is said
    targets: Callable[[str], bool] | None = None  # which modules it says that it changes

    @property
    def made_for(self) -> str:
        """Half a sentence for errors about a base that does not fit."""
        return f" It was made for {self.base!r}." if self.base else ""


class Matrix(NamedTuple):
    """A matrix of the base that an update can change."""

    name: str  # of its tensor, in the blueprint
    shape: tuple[int, int]  # (outputs, inputs)
    transposed: bool  # whether the base has it as (inputs, outputs)
    required: bool  # of an adapter whose targets name it: in a block, and no expert's, which peft may have seen stacked
    beside: bool  # whether an update can stand beside it


class WeightedUpdate(NamedTuple):
    """An update of one of the adapters, and how much of it counts."""

    update: MatrixUpdate
    weight: float
    adapter: Adapter

    @property
    def scale(self) -> float:
        return self.update.scale * self.weight


@dataclass(frozen=True)
class AppliedAdapters:
    """What adapters make of a base."""

    tensors: Mapping[str, StoredTensor]
    config_changes: Mapping[str, Any] = field(default_factory=dict)
    head: Head | None = None  # instead of the base's
    ranks: Mapping[str, int] = field(default_factory=dict)  # of the updates that stand beside, by module
    expanded: tuple[StoredTensor, ...] = ()  # packed tensors of the base that merging made float32


def apply_adapters(
    tensors: Mapping[str, StoredTensor], config: Config, head: Head, adapters: Sequence[tuple[Adapter, float]],
    mode: AdapterMode, base_name: str,
) -> AppliedAdapters:  # fmt: skip
    """Adapters, each with a weight, on a base's tensors; `base_name`: what errors call it."""
    other_heads = {adapter.head for adapter, _ in adapters} - {None, head}
    new_head = _only_head(other_heads, [adapter for adapter, _ in adapters], base_name)
    changes = _label_count(adapters, new_head or head)
    adapted_config = config.with_changes(changes)
    base = Base(blueprint(adapted_config, new_head or head), tensors, adapted_config, base_name)
    updates: dict[str, list[WeightedUpdate]] = {}  # by the name of the matrix
    replaced: dict[str, StoredTensor] = {}
    for adapter, weight in adapters:
        for name, update in base.fitted(adapter).items():
            updates.setdefault(name, []).append(WeightedUpdate(update, weight, adapter))
        replaced |= base.fitted_replacements(adapter)
    if base.tied and (HEAD in updates or HEAD in replaced or base.table in updates or base.table in replaced):
        changes = {**changes, "tie_word_embeddings": False}  # the head and the embedding part ways
        base = base.untied(config.with_changes(changes))
    stored, stored_names = dict(base.tensors), base.stored_names
    for name, tensor in replaced.items():
        stored[stored_names.get(name, name)] = tensor
    ranks: dict[str, int] = {}
    expanded = []
    for name, parts in updates.items():
        matrix, module = base.matrices[name], name.removesuffix(".weight")
        source = stored[stored_names.get(name, name)]
        if mode == "beside" and matrix.beside and not any(part.update.magnitude for part in parts):
            ranks[module] = sum(part.update.rank for part in parts)
            stored |= _beside_tensors(module, matrix, parts)
            continue
        expanded += [source] if source.packed else []
        stored[stored_names.get(name, name)] = _merged_tensor(source, matrix, parts)
    return AppliedAdapters(stored, changes, new_head, ranks, tuple(expanded))


def _only_head(heads: set[Head | None], adapters: Sequence[Adapter], base_name: str) -> Head | None:
    if len(heads) > 1:
        raise ConfigError(
            f"{adapters[-1].path}: the adapters are for different heads. Give those of one task to {base_name}."
        )
    return next(iter(heads), None)


def _label_count(adapters: Sequence[tuple[Adapter, float]], head: Head) -> dict[str, Any]:
    """How many labels a classifier has whose last layer is an adapter's."""
    if head not in ("sequence", "token"):
        return {}
    lasts = [
        tensor.shape[0]
        for adapter, _ in adapters
        for name, tensor in adapter.replacements.items()
        if name in ("score.weight", "classifier.weight", "classifier.out_proj.weight") and len(tensor.shape) == 2
    ]
    return {"num_labels": lasts[-1]} if lasts else {}


class Base:
    """A base model, and where an adapter's tensors fit into it."""

    def __init__(self, plan: Blueprint, tensors: Mapping[str, StoredTensor], config: Config, name: str) -> None:
        self.plan, self.tensors, self.config, self.name = plan, tensors, config, name
        self.weights = {weight.name: weight.shape for weight in plan.weights}
        self.matrices = {matrix.name: matrix for matrix in _matrices(plan)}
        stored = resolve_names({name: name for name in tensors}, tuple(self.weights))
        self.stored_names: Mapping[str, str] = stored  # by the blueprint's names
        self.table = next(plan.ops_of(Embed)).weights[0].name

    @property
    def tied(self) -> bool:
        return self.config.tie_word_embeddings and self.plan.head in ("causal", "seq2seq", "masked")

    def untied(self, config: Config) -> Base:
        """The base with a separate head, which begins as the embedding."""
        if self.plan.head != "causal":
            raise CheckpointError(
                f"{self.name}: its head is its embedding, and the adapter changes one of them. Merge it with peft "
                "(merge_and_unload), and open what that saves."
            )
        table = self.tensors[self.stored_names[self.table]]
        head = self.tensors.get(HEAD, table)
        tensors = {**self.tensors, self.stored_names[self.table]: table, HEAD: replace(head, name=HEAD)}
        return Base(blueprint(config, self.plan.head), tensors, config, self.name)

    def fitted(self, adapter: Adapter) -> dict[str, MatrixUpdate]:
        """An adapter's updates by the names of the matrices that they change."""
        known = {**dict.fromkeys(self.matrices), **({HEAD: None} if self.tied else {})}
        names = resolve_names({f"{module}.weight": module for module in adapter.updates}, tuple(known))
        shared = self._one_of_shared(adapter, names)
        unknown = [module for module in adapter.updates if module not in names.values()]
        if unknown:
            hint = did_you_mean(unknown[0], (name.removesuffix(".weight") for name in known))
            raise CheckpointError(
                f"{adapter.path}: changes {unknown[0]!r}, which {self.name} does not have.{hint} Is this its base?"
                f"{adapter.made_for}"
            )
        fitted = {}
        for name, module in names.items():
            if name in shared:
                continue
            update = adapter.updates[module]
            self._check_shape(adapter, module, update, self._shape(name))
            fitted[name] = update
        self._check_complete(adapter, names)
        return fitted

    def _one_of_shared(self, adapter: Adapter, names: Mapping[str, str]) -> set[str]:
        """Names of a table that is shared which mean another of its names: the one that the adapter has itself."""
        tables = [name for name in names if name in EMBEDDING_NAMES]
        return {name for name in tables if f"{names[name]}.weight" != name and f"{names[name]}.weight" in tables}

    def _shape(self, name: str) -> tuple[int, int]:
        """(outputs, inputs) of a matrix; of a head that is the embedding, as it would be stored."""
        if name in self.matrices:
            return self.matrices[name].shape
        vocabulary, hidden = self.weights[self.table]
        return vocabulary, hidden

    def _check_shape(self, adapter: Adapter, module: str, update: MatrixUpdate, shape: tuple[int, int]) -> None:
        update_shape = (update.b.shape[0], update.a.shape[1])
        magnitude = update.magnitude
        if update_shape != shape or (magnitude is not None and magnitude.elements != shape[0]):
            raise CheckpointError(
                f"{adapter.path}: its update of {module!r} has the shape {update_shape}, and in {self.name} that matrix has "
                f"{shape}. Is this its base?{adapter.made_for}"
            )

    def _check_complete(self, adapter: Adapter, names: Mapping[str, str]) -> None:
        """Refuse an adapter that lacks a module of a block that it says it changes."""
        if adapter.targets is None:
            return
        prefixed = any(name.removesuffix(".weight") == module for name, module in names.items())
        for name, matrix in self.matrices.items():
            module = name.removesuffix(".weight")
            module_name = module if prefixed else module.partition(".")[2]
            if matrix.required and name not in names and adapter.targets(module_name):
                raise CheckpointError(
                    f"{adapter.path}: lacks lora_A and lora_B of {module_name!r}, which its target_modules name. "
                    f"Fetch it again, or give it its own base.{adapter.made_for}"
                )

    def fitted_replacements(self, adapter: Adapter) -> dict[str, StoredTensor]:
        """An adapter's whole tensors, by the blueprint's names."""
        shapes = {**self.weights, **({HEAD: self.weights[self.table]} if self.tied else {})}
        exact = {name: tensor for name, tensor in adapter.replacements.items() if name in shapes}
        rest = {name: tensor for name, tensor in adapter.replacements.items() if name not in shapes}
        fitted = {**resolve_names(rest, tuple(name for name in shapes if name not in exact)), **exact}
        used = {id(tensor) for tensor in fitted.values()}
        for name, tensor in adapter.replacements.items():
            if id(tensor) not in used:
                raise CheckpointError(
                    f"{adapter.path}: holds {name!r}, which {self.name} has no place for.{did_you_mean(name, shapes)} "
                    f"Is this its base?{adapter.made_for}"
                )
        for name, tensor in fitted.items():
            if tensor.shape != shapes[name]:
                raise CheckpointError(
                    f"{adapter.path}: its {name!r} has the shape {tensor.shape}, and in {self.name} it has {shapes[name]}. "
                    f"Is this its base?{adapter.made_for}"
                )
        return {name: replace(tensor, name=name) for name, tensor in fitted.items()}


def _matrices(plan: Blueprint) -> Iterator[Matrix]:
    """The matrices of a blueprint that updates can change: of products, of the table of tokens, of the head."""
    seen = set()
    for op in plan.ops:
        if op.weight_role == "plain":
            continue
        for weight in op.weights:
            if len(weight.shape) != 2 or not weight.name.endswith(".weight") or weight.name in seen:
                continue
            seen.add(weight.name)
            transposed = isinstance(op, Embed) or bool(op.options.get("columns"))
            rows, columns = weight.shape
            shape = (columns, rows) if transposed else (rows, columns)
            required = op.block is not None and not op.experts
            yield Matrix(weight.name, shape, transposed, required, stands_beside(plan, op))


def _merged_tensor(source: StoredTensor, matrix: Matrix, parts: Sequence[WeightedUpdate]) -> StoredTensor:
    """The base's tensor with updates in it."""
    pieces = [
        piece for part in parts for piece in (part.update.a, part.update.b, part.update.magnitude) if piece is not None
    ]
    recipe = f"merged {matrix.transposed} {[(part.scale, part.update.magnitude is not None) for part in parts]}"
    compute = partial(_merge, source, matrix.transposed, parts)
    return computed_tensor(source.name, source.shape, compute, [source, *pieces], recipe, pieces[-1].file.path)


def _merge(source: StoredTensor, transposed: bool, parts: Sequence[WeightedUpdate]) -> Floats:
    stored = source.to_float32()
    source.release()
    base = stored.T if transposed else stored
    weight = base
    for part in parts:
        delta = np.float32(part.scale) * (part.update.b.to_float32() @ part.update.a.to_float32())
        weight = weight + delta
        if part.update.magnitude is not None:
            lengths = np.linalg.norm(base + delta, axis=1, keepdims=True)
            weight = weight * (part.update.magnitude.to_float32().reshape(-1, 1) / lengths)
    return np.ascontiguousarray(weight.T if transposed else weight)


def _beside_tensors(module: str, matrix: Matrix, parts: Sequence[WeightedUpdate]) -> dict[str, StoredTensor]:
    """The two matrices of an update, the second of them scaled; those of several updates joined along their ranks."""
    rank = sum(part.update.rank for part in parts)
    down, up = f"{module}.lora_A.weight", f"{module}.lora_B.weight"
    downs, ups = [part.update.a for part in parts], [part.update.b for part in parts]
    scales = [part.scale for part in parts]

    def joined_downs() -> Floats:
        return np.concatenate([a.to_float32() for a in downs])

    def joined_ups() -> Floats:
        return np.concatenate([np.float32(s) * b.to_float32() for s, b in zip(scales, ups, strict=True)], 1)

    return {
        down: computed_tensor(down, (rank, matrix.shape[1]), joined_downs, downs, "joined"),
        up: computed_tensor(up, (matrix.shape[0], rank), joined_ups, ups, f"joined {scales}"),
    }
