"""Stored tensors into modules, and modules into files again.

Which stored tensor is which parameter is settled by `history`; here they become one. Tensors stay mapped to the file where
kind and dtype allow.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from glassformer.blueprints import Config
from glassformer.checkpoint import Stored
from glassformer.checkpoint.stored import PLAIN, main_kind
from glassformer.compat.weight_names import FORGOTTEN, Model, may_lack, named
from glassformer.decoding.settings import GenerationConfig
from glassformer.errors import CheckpointError, ConfigError, InputError, UnknownArgument
from glassformer.families import Base, find
from glassformer.families.shared.heads import HEADS, WithHead
from glassformer.layers import Conv1D, RMSNorm
from glassformer.opened import DTYPES as FLOATS
from glassformer.opened import Opened, open_model

note = logging.getLogger("glassformer").warning

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in FLOATS}


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
        ignore_mismatched_sizes: bool = False,
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
                be seen, weights are mapped, and pickles are read only where there are no safetensors.
            ignore_mismatched_sizes: make a head anew where the stored one has another size, as other labels need it.
            changes: fields of the config, such as num_labels=3.
        """
        if changes.pop("trust_remote_code", False):
            raise UnknownArgument("trust_remote_code is not supported: no code from a checkpoint is ever run.")
        opened = open_model(name)
        chosen = chosen_dtype(dtype if dtype is not None else torch_dtype)
        model = load(cls.class_for(opened), opened, chosen, key_mapping, changes, ignore_mismatched_sizes)
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
        if not self.base_model.table.weight.is_meta:  # there, numbers are yet to come from a checkpoint
            part = self.head_part if isinstance(self, WithHead) else cast(nn.Module, self)  # a base has seen to itself
            initialise(part, config.spread, {self.base_model.table.weight} if isinstance(self, WithHead) else ())
        self.generation_config = GenerationConfig.implied(config)

    @classmethod
    def class_for(cls, opened: Opened) -> type[Any]:
        if opened.config.model_type != cls.base_class.config_class.model_type:
            raise ConfigError(
                f"{opened.path}: holds a {opened.config.model_type} model, which {cls.__name__} cannot be. "
                f"Use {cls.kin(opened.config.model_type)}, or the Auto class, which finds the right one."
            )
        return cls

    @classmethod
    def kin(cls, model_type: str) -> str:
        """What this class is called in another family."""
        ending = next((name for name, kind in HEADS.items() if issubclass(cls, kind)), "Model")
        other = find(model_type)
        return other.family + other.titles.get(ending, ending)

    @property
    def dtype(self) -> torch.dtype:
        return self.base_model.table.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.base_model.table.weight.device

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
    remake: bool = False,
) -> Any:
    """An assembled class, filled from an opened checkpoint, ready to run."""
    config = opened.config.with_changes(changes or {})
    stored = dict(opened.tensors)
    dtype = dtype or stored_dtype(config, stored)
    with torch.device("meta"):
        model = cls(config)
    fill(model, stored, dtype, key_mapping or {}, opened, remake)
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


def fill(
    model: Model, stored: dict[str, Stored], dtype: torch.dtype, mapping: Mapping[str, str], opened: Opened, remake: bool
) -> None:
    """Give every parameter of a model (made on the meta device) its stored value; say in one line what did not fit.

    `remake`: a head's tensor of another size counts as missing, and is made anew.
    """
    path = opened.path
    stored = named(model, stored, mapping)
    expected = dict(model.named_parameters(remove_duplicate=False))
    if remake:
        for name, value in expected.items():
            if name in stored and stored[name].shape != tuple(value.shape) and may_lack(model, name, value):
                del stored[name]
    buffers = {name: value for name, value in model.named_buffers() if name in stored}
    lacking = [name for name in expected if name not in stored]
    new = [name for name in lacking if may_lack(model, name, expected[name])]
    if missing := [name for name in lacking if name not in new]:
        raise CheckpointError(f"{path}: the weights lack {listed(missing)}. Is this the config of these weights?")
    used: dict[int, Stored] = {}  # by identity: what is stored once and used twice stays one parameter
    for name, wanted in (*((name, value) for name, value in expected.items() if name not in new), *buffers.items()):
        if (one := stored[name]).shape != tuple(wanted.shape):
            raise CheckpointError(
                f"{path}: tensor {one.name!r} has shape {one.shape}, but the config makes {name!r} "
                f"{tuple(wanted.shape)}. {_remedy(model, name, wanted)}"
            )
        used[id(one)] = one
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # unpacking is numpy's work, which leaves the interpreter free
        values = dict(zip(used, threads.map(lambda one: as_tensor(one, dtype), used.values()), strict=True))
    made: dict[int, nn.Parameter] = {}
    for name, parameter in expected.items():
        key = id(parameter) if name in new else id(stored[name])
        if key not in made:
            made[key] = nn.Parameter(torch.empty(parameter.shape, dtype=dtype) if name in new else values[key])
        _put(model, name, made[key])
    for name, buffer in model.named_buffers():
        _put(model, name, values[id(stored[name])] if name in buffers else buffer.to(dtype))
    stored_ones = {made[id(stored[name])] for name in expected if name not in new}
    for name in new:
        module = name.rpartition(".")[0]
        initialise(model.get_submodule(module), model.config.spread, stored_ones, module)
    unexpected = [name for name, one in stored.items() if id(one) not in used and not FORGOTTEN.search(name)]
    remarks = [f"new, untrained: {listed(new)}"] if new else []
    remarks += [f"not used: {listed(unexpected)}"] if unexpected else []
    if remarks:
        note(f"{path.name if Path(opened.name).exists() else opened.name}: {'; '.join(remarks)}.")


def _put(model: nn.Module, name: str, value: Tensor) -> None:
    holder, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(holder), attribute, value)


def _remedy(model: Model, name: str, wanted: Tensor) -> str:
    """What may be wrong when a shape does not fit: a label count, or the config as a whole."""
    if isinstance(model, WithHead) and may_lack(model, name, wanted) and model.head in ("sequence", "token"):
        return (
            f"The checkpoint's head has other labels than num_labels={model.config.labels}; to make it anew, pass "
            "ignore_mismatched_sizes=True."
        )
    return "Is this the config of these weights?"


def as_tensor(stored: Stored, dtype: torch.dtype) -> Tensor:
    """A stored tensor for torch: a view of the mapped file if its kind and place allow, else a converted copy."""
    if stored.packed or stored.layout is not None:
        tensor = torch.from_numpy(stored.expand()).to(dtype)
        stored.release()
        return tensor
    kind = DTYPES[stored.kind]
    if not stored.elements:
        return torch.empty(stored.shape, dtype=dtype)
    if stored.offset % PLAIN[stored.kind]:
        flat = torch.frombuffer(bytearray(stored.bytes), dtype=kind)
    else:
        flat = torch.frombuffer(stored.file.buffer, dtype=kind, count=stored.elements, offset=stored.offset)
    return flat.view(stored.shape).to(dtype if kind.is_floating_point else kind)


@torch.no_grad()
def initialise(
    module: nn.Module, spread: Callable[[str, int], float | None], keep: Collection[Tensor] = (), where: str = ""
) -> None:
    """Untrained numbers: normal ones for tables and products, as far apart as the family has them, zeros for biases; norms,
    and all of a family that leaves it to torch, start as torch has it.

    `keep`: what has its numbers already, such as a table whose weight a head shares. `where`: the module's own name.
    """
    held = {id(one) for one in keep}
    for inner, part in module.named_modules(prefix=where):
        if not isinstance(part, (nn.Linear, nn.Embedding, Conv1D, nn.LayerNorm, RMSNorm)):
            continue
        kept = [(one, one.clone()) for one in part.parameters() if id(one) in held]
        far = None if isinstance(part, (nn.LayerNorm, RMSNorm)) else spread(inner, getattr(part, "in_features", 0))
        if far is None:
            torchs_own(part)
        else:
            part.weight.normal_(std=far)
            if (bias := getattr(part, "bias", None)) is not None:
                bias.zero_()
        for one, value in kept:
            one.copy_(value)


def torchs_own(part: Any) -> None:
    """The numbers that torch's layer of this kind begins with."""
    kind = next((kind for kind in (nn.Linear, nn.Embedding) if isinstance(part, kind)), type(part))
    kind.reset_parameters(part)


def listed(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def written(model: Any) -> dict[str, Tensor]:
    """What a file of a model holds: a shared table once, if the config says so; else under each of its names."""
    parameters = model.named_parameters(remove_duplicate=model.config.tie_word_embeddings)
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in (*parameters, *model.named_buffers()):
        if not FORGOTTEN.search(name):
            found[name] = value.detach().clone() if id(value) in seen else value.detach()
            seen.add(id(value))
    return found


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
        save_torch_state_dict(written(model), work, max_shard_size=max_shard_size, metadata={"format": "pt"})
        made = sorted(work.iterdir())
        for file in made:
            shutil.move(file, folder / file.name)
    for stale in folder.glob("model*.safetensors*"):  # of an earlier save, cut otherwise
        if stale.name not in {file.name for file in made}:
            stale.unlink()
