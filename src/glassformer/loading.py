"""Stored tensors into modules, and modules into files again.

Real checkpoints have history: a base prefix that is there or not, a head that is tied and left out, or tied and
stored all the same. `fill` settles that by name alone; tensors stay mapped to the file wherever kind and dtype allow.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from glassformer.blueprints import Config
from glassformer.checkpoint import Stored
from glassformer.checkpoint.stored import PLAIN, main_kind
from glassformer.decoding.settings import GenerationConfig
from glassformer.errors import CheckpointError, ConfigError, InputError, UnknownArgument
from glassformer.families import Base
from glassformer.heads import WithHead
from glassformer.opening import DTYPES as FLOATS
from glassformer.opening import Opened, open_model

Model: TypeAlias = Base | WithHead

note = logging.getLogger("glassformer").warning

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in FLOATS}
FORGOTTEN = re.compile(r"\.(rotary_emb\.inv_freq|masked_bias|attn\.bias)$")  # buffers that old files carry along


class Loadable:
    """What can be made from a checkpoint: a named class, or an Auto class that finds the right one."""

    @classmethod
    def class_for(cls, opened: Opened) -> type[Any]:
        """The class that a checkpoint becomes."""
        raise NotImplementedError

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        *,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        key_mapping: Mapping[str, str] | None = None,
        attn_implementation: str | None = None,
        device_map: torch.device | str | None = None,
        low_cpu_mem_usage: bool = True,
        use_safetensors: bool = True,
        **changes: Any,
    ) -> Any:
        """A model with the weights of a checkpoint.

        Args:
            name: a path, a catalogue name ('smollm2') or a hub id ('Qwen/Qwen3-0.6B').
            dtype: torch.bfloat16, "float32", …; by default as stored. Packed (GGUF) weights expand to float32.
            torch_dtype: the older name of the same.
            key_mapping: patterns of stored names to replace, such as {"lm_head.weight": "score.weight"}.
            device_map: a device to put the model on ("cuda", "cpu"); "auto" takes a GPU if there is one.
            attn_implementation, low_cpu_mem_usage, use_safetensors: accepted for familiarity: every attention pattern can
                be seen, weights are mapped, and pickles are not read.
            changes: fields of the config, such as num_labels=3.
        """
        if changes.pop("trust_remote_code", False):
            raise UnknownArgument("trust_remote_code is not supported: no code from a checkpoint is ever run.")
        opened = open_model(name)
        chosen = chosen_dtype(dtype if dtype is not None else torch_dtype)
        model = load(cls.class_for(opened), opened, chosen, key_mapping, changes)
        if device_map == "auto":
            device_map = "cuda" if torch.cuda.is_available() else None
        return model if device_map is None else model.to(device_map)


class Pretrained(Loadable):
    """What every assembled model class can do: be read from a checkpoint, and be written as one."""

    config: Any
    generation_config: GenerationConfig
    base_class: type[Base]

    def __init__(self, config: Config) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        if not self.base_model.embeddings.weight.is_meta:  # there, numbers are yet to come from a checkpoint
            whole = cast(nn.Module, self)
            heads = [part for part in whole.children() if not isinstance(part, Base)]  # a base inside has seen to itself
            for part in heads if isinstance(self, WithHead) else [whole]:
                initialise(part, config.initializer_range)
        self.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
        )

    @classmethod
    def class_for(cls, opened: Opened) -> type[Any]:
        if opened.config.model_type != cls.base_class.config_class.model_type:
            raise ConfigError(
                f"{opened.path}: holds a {opened.config.model_type} model, which {cls.__name__} cannot be. "
                "Use the Auto class, which finds the right one."
            )
        return cls

    @property
    def dtype(self) -> torch.dtype:
        return self.base_model.embeddings.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.base_model.embeddings.weight.device

    @property
    def base_model(self) -> Base:
        return super().base_model if isinstance(self, WithHead) else self  # type: ignore[misc,return-value]

    def num_parameters(self) -> int:
        """How many numbers the model has learnt; a shared table counts once."""
        return sum(p.numel() for p in self.parameters())  # type: ignore[attr-defined]

    def save_pretrained(self, folder: str | os.PathLike[str], max_shard_size: str | int = "5GB") -> None:
        """Write config.json, generation_config.json and safetensors, as the field reads them.

        Files are written whole into a temporary folder first, then moved into place.
        """
        save(self, Path(folder), max_shard_size)


def load(
    cls: type[Any],
    opened: Opened,
    dtype: torch.dtype | None = None,
    key_mapping: Mapping[str, str] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Any:
    """An assembled class, filled from an opened checkpoint, ready to run."""
    changes = dict(changes or {})
    if "id2label" in changes and "num_labels" not in changes:
        changes["num_labels"] = len(changes["id2label"])
    config = opened.config.with_changes(changes)
    stored = dict(opened.tensors)
    dtype = dtype or stored_dtype(config, stored)
    with torch.device("meta"):
        model = cls(config)
    fill(model, stored, dtype, key_mapping or {}, opened.path)
    model.generation_config = opened.settings
    return model.eval()


def chosen_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or dtype == "auto":
        return None
    found = NAMES.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InputError(f"dtype {dtype!r} is not one that a model can have. Use one of: {', '.join(NAMES)}.")
    return found


def stored_dtype(config: Config, stored: Mapping[str, Stored]) -> torch.dtype:
    """The dtype that a checkpoint is in: as it says, else that of most of its numbers; packed kinds give float32."""
    if any(one.packed for one in stored.values()):
        return torch.float32
    if config.dtype is not None and config.dtype in NAMES:
        return NAMES[config.dtype]
    return DTYPES[main_kind(one for one in stored.values() if DTYPES[one.kind].is_floating_point)]


def fill(model: Model, stored: dict[str, Stored], dtype: torch.dtype, mapping: Mapping[str, str], path: Path) -> None:
    """Give every parameter of a model (made on the meta device) its stored value; say in one line what did not fit."""
    stored = named(model, stored, mapping)
    expected = dict(model.named_parameters(remove_duplicate=False))
    lacking = [name for name in expected if name not in stored]
    new = [name for name in lacking if is_head(model, name)]
    if missing := [name for name in lacking if name not in new]:
        raise CheckpointError(f"{path}: the weights lack {listed(missing)}. Is this the config of these weights?")
    used: dict[int, Stored] = {}  # by identity: what is stored once and used twice stays one parameter
    for name in (name for name in expected if name not in new):
        if (one := stored[name]).shape != tuple(expected[name].shape):
            raise CheckpointError(
                f"{path}: tensor {one.name!r} has shape {one.shape}, but the config makes {name!r} "
                f"{tuple(expected[name].shape)}. Is this the config of these weights?"
            )
        used[id(one)] = one
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # unpacking is numpy's work, which leaves the interpreter free
        tensors = threads.map(lambda one: as_tensor(one, dtype), used.values())
        values = {key: nn.Parameter(tensor) for key, tensor in zip(used, tensors, strict=True)}
    for name, parameter in expected.items():
        holder, _, attribute = name.rpartition(".")
        fresh = nn.Parameter(torch.empty(parameter.shape, dtype=dtype)) if name in new else values[id(stored[name])]
        setattr(model.get_submodule(holder), attribute, fresh)
    for name in new:
        initialise(model.get_submodule(name.rpartition(".")[0]), model.config.initializer_range)
    unexpected = [name for name, one in stored.items() if id(one) not in used and not FORGOTTEN.search(name)]
    remarks = [f"new, untrained: {listed(new)}"] if new else []
    remarks += [f"not used: {listed(unexpected)}"] if unexpected else []
    if remarks:
        note(f"{path.name}: {'; '.join(remarks)}.")


def named(model: Model, stored: dict[str, Stored], mapping: Mapping[str, str]) -> dict[str, Stored]:
    """The stored tensors under the names that the model has for them."""
    prefix = f"{(model.base_class if isinstance(model, WithHead) else type(model)).prefix}."
    expected = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if model.config.tie_word_embeddings:
        base = model.base_model if isinstance(model, WithHead) else model
        table = next(name for name, value in base.named_parameters() if value is base.embeddings.weight)
        stored = share(stored, f"{prefix}{table}" if f"{prefix}{table}" in stored else table, "lm_head.weight")
    for pattern, replacement in mapping.items():
        try:
            stored = {re.sub(pattern, replacement, name): one for name, one in stored.items()}
        except re.error as error:
            raise InputError(f"key_mapping has {pattern!r}, which is not a regular expression: {error}.") from error
    settled: dict[str, Stored] = {}
    for name, one in stored.items():
        spellings = (name, f"{prefix}{name}", name.removeprefix(prefix))
        settled[next((spelling for spelling in spellings if spelling in expected), name)] = one
    return settled


def share(stored: dict[str, Stored], table: str, head: str) -> dict[str, Stored]:
    """Tie two names to one stored tensor, whichever was written; two that were both written and differ stay two."""
    one, other = stored.get(table), stored.get(head)
    if one is None or other is None:
        only = one or other
        return stored if only is None else {**stored, table: only, head: only}
    return {**stored, head: one} if one.same_bytes(other) else stored


def is_head(model: Model, name: str) -> bool:
    return isinstance(model, WithHead) and not name.startswith(f"{model.base_class.prefix}.")


def as_tensor(stored: Stored, dtype: torch.dtype) -> Tensor:
    """A stored tensor for torch: a view of the mapped file if its kind and place allow, else a converted copy."""
    if stored.packed or stored.layout is not None:
        tensor = torch.from_numpy(stored.expand()).to(dtype)
        stored.release()
        return tensor
    kind = DTYPES[stored.kind]
    if stored.offset % PLAIN[stored.kind]:
        flat = torch.frombuffer(bytearray(stored.bytes), dtype=kind)
    else:
        flat = torch.frombuffer(stored.file.buffer, dtype=kind, count=stored.elements, offset=stored.offset)
    return flat.view(stored.shape).to(dtype if kind.is_floating_point else kind)


@torch.no_grad()
def initialise(module: nn.Module, spread: float) -> None:
    """Untrained numbers: small normal ones for tables and products, zeros for biases; norms are made with ones."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            part.weight.normal_(std=spread)
            if isinstance(part, nn.Linear) and part.bias is not None:
                part.bias.zero_()


def listed(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def save(model: Any, folder: Path, max_shard_size: str | int) -> None:
    from huggingface_hub import save_torch_state_dict

    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; a model is saved into a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        **model.config.to_dict(),
        "architectures": [type(model).__name__],
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as temporary:
        work = Path(temporary)
        (work / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        settings = json.dumps(model.generation_config.to_dict(), indent=2) + "\n"
        (work / "generation_config.json").write_text(settings, "utf-8")
        once = {name: value.detach() for name, value in model.named_parameters()}  # a shared table is written once
        save_torch_state_dict(once, work, max_shard_size=max_shard_size, metadata={"format": "pt"})
        made = sorted(work.iterdir())
        for file in made:
            shutil.move(file, folder / file.name)
    for stale in folder.glob("model*.safetensors*"):  # of an earlier save, cut otherwise
        if stale.name not in {file.name for file in made}:
            stale.unlink()
