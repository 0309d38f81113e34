"""Adapters of peft: a folder with adapter_config.json and its tensors, read and written."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from glassformer.adapters.application import Adapter, MatrixUpdate
from glassformer.blueprints import Head
from glassformer.checkpoint import StoredTensor
from glassformer.checkpoint.folder import read_json, read_weights
from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import atomic_save, write_error
from glassformer.ground.typecheck import brief, matches_type

# Regular expressions out of files ---------------------------------------------------------------------------------
# Python's matcher tries one way after another: a repetition inside a repetition makes their number exponential in the text's
# length. Names of modules are short, so that a few repetitions side by side are harmless.

MAX_LENGTH = 4000
MAX_REPEATS = 8  # unbounded ones, side by side
MANY = 16  # a repetition that may go on for longer is unbounded


def compile_pattern(pattern: str, path: Path) -> re.Pattern[str]:
    """A pattern that a file has, compiled."""
    try:
        if len(pattern) > MAX_LENGTH:
            raise ValueError(f"it has {len(pattern)} characters, and {MAX_LENGTH} are enough")
        if _unbounded(_parsed(pattern)) > MAX_REPEATS:
            raise ValueError("it has repetitions inside repetitions, or too many of them")
        return re.compile(pattern)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: {brief(pattern)} is no pattern that can be used: {error}. Write the modules' names out."
        ) from error


def _parsed(pattern: str) -> Any:
    parser: Any = getattr(re, "_parser")  # noqa: B009  # the standard library's own, which has no public name
    return parser.parse(pattern)


def _unbounded(node: Any, inside: bool = False) -> int:
    """How many unbounded repetitions a parsed pattern has; one inside another counts as too many."""
    total = 0
    for item in node if isinstance(node, list) or type(node).__name__ == "SubPattern" else ():
        kind, value = (str(item[0]), item[1]) if isinstance(item, tuple) else ("", item)
        if kind.endswith("REPEAT"):
            _, most, body = value
            unbounded = int(most) > MANY
            total += unbounded * (MAX_REPEATS + 1 if inside else 1) + _unbounded(body, inside or unbounded)
        else:
            total += sum(_unbounded(part, inside) for part in _subpatterns(value))
    return total


def _subpatterns(value: Any) -> list[Any]:
    """The parts of a group, a branch or a look-around that are patterns themselves."""
    if type(value).__name__ == "SubPattern":
        return [value]
    if isinstance(value, (tuple, list)):
        return [inner for part in value for inner in _subpatterns(part)]
    return []


# The config -------------------------------------------------------------------------------------------------------

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")  # the best first
PREFIX = "base_model.model."  # of every name in the file
INSERTED = re.compile(r"\.(base_layer|modules_to_save(\.default)?)(?=\.)")  # modules that peft puts around the base's own
PART = re.compile(r"(.+)\.(lora_[AB]\.weight|lora_embedding_[AB]|lora_magnitude_vector(?:\.weight)?)")
PARTS = {"lora_A.weight": "a", "lora_B.weight": "b", "lora_embedding_A": "a", "lora_embedding_B": "b"}
HEADS: Mapping[str, Head] = {
    "CAUSAL_LM": "causal", "SEQ_2_SEQ_LM": "seq2seq", "SEQ_CLS": "sequence", "TOKEN_CLS": "token",
    "QUESTION_ANS": "question",
}  # fmt: skip
MAX_NUMBER = 1 << 32  # of ranks and alphas
MERGE = "Merge it into its base with peft (merge_and_unload), and open what that saves."
CHANGING_INITS = ("pissa", "olora", "corda", "lora_ga", "loftq")  # which leave the base with other weights
REFUSED: Mapping[str, tuple[Any, ...]] = {  # fields that change what is computed, and the values that do not
    "layer_replication": (None, []),
    "lora_bias": (None, False),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "use_qalora": (None, False),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "velora_config": (None,),
    "monteclora_config": (None,),
    "use_bdlora": (None, False),
}


@dataclass(frozen=True)
class PeftConfig:
    """The fields of adapter_config.json that change what is computed."""

    path: Path
    r: int = 8
    lora_alpha: int | float = 8
    use_rslora: bool = False
    use_dora: bool = False
    target_modules: str | list[str] | None = None
    exclude_modules: str | list[str] | None = None
    modules_to_save: list[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, int | float] | None = None
    base_model_name_or_path: str | None = None
    task_type: str | None = None
    _patterns: dict[str, re.Pattern[str]] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, path: Path) -> PeftConfig:
        raw = read_json(path)
        if (kind := raw.get("peft_type")) != "LORA":
            raise CheckpointError(f"{path}: adapters of the kind {brief(kind)} are not supported, only LORA. {MERGE}")
        for name, neutral in REFUSED.items():
            if raw.get(name) not in neutral:
                raise CheckpointError(f"{path}: {name} is {brief(raw[name])}, which is not supported. {MERGE}")
        if str(raw.get("init_lora_weights")).lower().startswith(CHANGING_INITS):
            raise CheckpointError(
                f"{path}: init_lora_weights is {brief(raw['init_lora_weights'])}, which changes the base model too. {MERGE}"
            )
        values = {}
        for name, hint in _HINTS.items():
            value = raw.get(name)
            if value is None:
                continue
            numbers = value.values() if isinstance(value, dict) else [value] if name in ("r", "lora_alpha") else ()
            if not matches_type(value, hint) or not all(_is_number(number) for number in numbers):
                raise CheckpointError(f"{path}: {name} is {brief(value)}, which is of the wrong type. Fetch it again.")
            values[name] = value
        return cls(path, **values)

    def targets(self, module: str) -> bool:
        """Whether a module is one that the adapter changes, as peft decides it."""
        if self.exclude_modules and self._names(self.exclude_modules, module):
            return False
        if any(self._pattern(rf"(^|.*\.){re.escape(name)}($|\..*)").match(module) for name in self.modules_to_save or ()):
            return False
        targets = self.target_modules
        if targets is None or targets == "all-linear":
            return False
        if not self._names(targets, module):
            return False
        layers = self.layers_to_transform
        if isinstance(targets, str) or module in targets or layers is None or layers == []:
            return True
        layer = self._layer(module)
        return layer is not None and layer in ([layers] if isinstance(layers, int) else layers)

    def _names(self, names: str | list[str], module: str) -> bool:
        """Whether a pattern is a module's whole name, or a list has its name or the end of it."""
        if isinstance(names, str):
            return self._pattern(names).fullmatch(module) is not None
        return module in names or any(module.endswith(f".{name}") for name in names)

    def _layer(self, module: str) -> int | None:
        patterns = [self.layers_pattern] if isinstance(self.layers_pattern, str) else self.layers_pattern
        wholes = [rf"(?:^|.*?\.){pattern}\.(?P<layer>\d+)\." for pattern in patterns or ()]
        for whole in wholes or [r".*?\.[^.]*\.(?P<layer>\d+)\."]:
            if match := self._pattern(whole).match(module):
                return int(match["layer"])
        return None

    def scale(self, module: str, rank: int) -> float:
        """What an update is multiplied by; refused where its rank is another than the config says."""
        expected = self._by_pattern(self.rank_pattern or {}, module, self.r)
        if rank != expected:
            raise CheckpointError(
                f"{self.path}: says that the update of {module!r} has the rank {expected}, and it has {rank}. Are these the "
                "config and the weights of one adapter?"
            )
        alpha = self._by_pattern(self.alpha_pattern or {}, module, self.lora_alpha)
        return float(alpha / (math.sqrt(rank) if self.use_rslora else rank))

    def _by_pattern(self, values: Mapping[str, int | float], module: str, default: int | float) -> int | float:
        matching = (key for key in values if self._pattern(rf"(.*\.)?({key})$").match(module))
        return values[key] if (key := next(matching, None)) is not None else default

    def _pattern(self, pattern: str) -> re.Pattern[str]:
        if pattern not in self._patterns:
            self._patterns[pattern] = compile_pattern(pattern, self.path)
        return self._patterns[pattern]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER


_HINTS: Mapping[str, Any] = {
    "r": int, "lora_alpha": int | float, "use_rslora": bool, "use_dora": bool, "target_modules": str | list[str],
    "exclude_modules": str | list[str], "modules_to_save": list[str], "layers_to_transform": int | list[int],
    "layers_pattern": str | list[str], "rank_pattern": dict[str, int], "alpha_pattern": dict[str, int | float],
    "base_model_name_or_path": str, "task_type": str,
}  # fmt: skip


def read_folder(folder: Path) -> Adapter:
    """The adapter in a folder."""
    config = PeftConfig.read(folder / CONFIG)
    file = next((path for name in WEIGHTS if os.path.lexists(path := folder / name)), None)
    if file is None:
        raise CheckpointError(f"{folder}: holds {CONFIG} and no {' or '.join(WEIGHTS)}. Fetch the adapter's weights.")
    parts, replacements = split_tensors(read_weights(file))
    if not parts:
        raise CheckpointError(f"{file}: holds no lora_A and lora_B. Fetch the adapter again.")
    updates = {module: _update(config, file, module, tensors) for module, tensors in parts.items()}
    return Adapter(
        folder, updates, replacements, config.base_model_name_or_path or None, HEADS.get(config.task_type or ""),
        _targets(config),
    )  # fmt: skip


def _targets(config: PeftConfig) -> Callable[[str], bool] | None:
    return None if config.target_modules in (None, "all-linear") else config.targets


def split_tensors(tensors: Mapping[str, StoredTensor]) -> tuple[dict[str, dict[str, StoredTensor]], dict[str, StoredTensor]]:
    """Parts of updates, by module, and whole tensors, by name; both under the names of the base's modules."""
    parts: dict[str, dict[str, StoredTensor]] = {}
    replacements: dict[str, StoredTensor] = {}
    for stored_name, tensor in tensors.items():
        name = INSERTED.sub("", stored_name.removeprefix(PREFIX))
        if match := PART.fullmatch(name):
            parts.setdefault(match[1], {})[PARTS.get(match[2], "magnitude")] = tensor
        elif ".original_module." not in name:
            replacements[name] = tensor
    return parts, replacements


def _update(config: PeftConfig, file: Path, module: str, parts: Mapping[str, StoredTensor]) -> MatrixUpdate:
    needed = {"a": "lora_A", "b": "lora_B"} | ({"magnitude": "lora_magnitude_vector"} if config.use_dora else {})
    if missing := [name for part, name in needed.items() if part not in parts]:
        raise CheckpointError(f"{file}: lacks {missing[0]} of {module!r}. Fetch the adapter again.")
    a, b = parts["a"], parts["b"]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or 0 in (*a.shape, *b.shape):
        raise CheckpointError(
            f"{file}: lora_A and lora_B of {module!r} have the shapes {a.shape} and {b.shape}, which do not make a product. "
            "Fetch the adapter again."
        )
    return MatrixUpdate(a, b, config.scale(module, a.shape[0]), parts["magnitude"] if config.use_dora else None)


Matrix = np.ndarray[Any, Any]
SAVED_WEIGHTS = re.compile(r"adapter_model.*\.(safetensors|bin)")  # what an earlier save may have left


@dataclass(frozen=True)
class LoraDescription:
    """What adapter_config.json says of an adapter."""

    base: str  # the model's name or path
    rank: int
    alpha: float
    targets: Sequence[str]  # endings of modules' names, or whole names
    dropout: float = 0.0  # that it was trained with
    columns: bool = False  # whether the base has its matrices as (inputs, outputs), as GPT-2


def write_adapter(folder: Path, description: LoraDescription, updates: Mapping[str, tuple[Matrix, Matrix]]) -> None:
    """Updates, each as a and b, by module, into a folder; an adapter that is there stays until the new one is whole."""
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": description.base,
        "r": description.rank, "lora_alpha": description.alpha, "lora_dropout": description.dropout,
        "target_modules": list(description.targets), "bias": "none", "fan_in_fan_out": description.columns,
        "inference_mode": True,
    }  # fmt: skip
    tensors: dict[str, Matrix] = {}
    for module, (a, b) in updates.items():
        tensors[f"{PREFIX}{module}.lora_A.weight"] = np.ascontiguousarray(a)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = np.ascontiguousarray(b)
    with atomic_save(folder, CONFIG, SAVED_WEIGHTS.fullmatch) as work:
        (work / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        try:
            save_file(tensors, work / WEIGHTS[0], metadata={"format": "pt"})
        except SafetensorError as error:  # its errors of writing are no OSError
            raise write_error(folder, str(error)) from error
