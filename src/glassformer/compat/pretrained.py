"""Load stored tensors into modules, and save modules to files.

`weight_names` decides which stored tensor is which parameter. Tensors stay mapped to the file where kind and dtype allow.
"""

from __future__ import annotations

import json
import logging
import os
import re
import weakref
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from glassformer.blueprints import Config, changed_config, variant_hint
from glassformer.blueprints.drafts import no_head
from glassformer.checkpoint import StoredTensor
from glassformer.checkpoint.legacy_names import resolve_names
from glassformer.checkpoint.stored_tensors import PLAIN_KINDS, main_kind
from glassformer.compat.generation_executor import encoder_output, release_engine
from glassformer.compat.live_weights import NOT_LOADED, packable_layers, remember_expanded, use_packed
from glassformer.compat.model_parts import ModelParts
from glassformer.compat.weight_names import IGNORED_NAMES, AnyModel, is_optional, match_names
from glassformer.decoding.settings import GenerationConfig
from glassformer.engine.checks import unchanged_weights
from glassformer.engine.cpu.weight_files import WeightFile, WeightFiles
from glassformer.engine.cpu.weights import PackedMatrix
from glassformer.engine.tensor_parallel.split_module import take_part
from glassformer.ground.arguments import checked
from glassformer.ground.changes import Change, SiteFunction
from glassformer.ground.errors import (
    CheckpointError,
    ConfigError,
    ExecutorError,
    InputError,
    SettingError,
    join_names,
    refuse_unknown,
)
from glassformer.ground.files import atomic_save, write_error
from glassformer.ground.sites import Watch, expand_changes
from glassformer.ground.transformers_isinstance import FamiliarClass
from glassformer.ground.typecheck import OWN_CHECK
from glassformer.model_files import DTYPES as FLOATS
from glassformer.model_files import AdapterNames, DraftHead, ModelFiles, allowing_remote_code, open_model
from glassformer.ops.split import TensorPart
from glassformer.torch import BaseModel, base_class_for, encoder_class_for
from glassformer.torch.arguments import WatchLike
from glassformer.torch.heads import HEADS, ModelWithHead
from glassformer.torch.layers import Conv1D, Linear, LowRankUpdate, RMSNorm, with_low_rank_update
from glassformer.torch.shapes import Encoder
from glassformer.torch.threads import fastest_threads

note = logging.getLogger("glassformer").warning

STORED_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
SAVED_WEIGHTS = re.compile(r"model.*\.safetensors.*")  # all that an earlier save may have left
DTYPES_BY_NAME: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in FLOATS}


class FromPretrained:
    """`from_pretrained`, for the named classes and for the Auto classes, which find the right one."""

    @classmethod
    def default_model_type(cls) -> str | None:
        """The family of a checkpoint whose config has none; an Auto class cannot know."""
        return None

    @classmethod
    def class_for(cls, opened: ModelFiles) -> type[Any]:
        """The class to load a checkpoint into."""
        raise NotImplementedError

    @classmethod
    @checked
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        *,
        dtype: Annotated[torch.dtype | str | None, OWN_CHECK] = None,
        torch_dtype: Annotated[torch.dtype | str | None, OWN_CHECK] = None,
        key_mapping: Mapping[str, str] | None = None,
        attn_implementation: str | None = None,
        device_map: torch.device | str | int | None = None,
        low_cpu_mem_usage: bool | None = True,
        use_safetensors: bool | None = True,
        ignore_mismatched_sizes: bool = False,
        adapter: Annotated[AdapterNames | None, OWN_CHECK] = None,
        trust_remote_code: bool = False,
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
            ignore_mismatched_sizes: make a new head where the stored one has another size, as for other labels.
            adapter: a LoRA to merge into the weights: peft's folder or a .gguf file. Such a folder is also a name: it opens
                on its own base.
            trust_remote_code: accepted for familiarity: no code from a checkpoint is ever run, and none is needed for a
                family that is known here.
            changes: fields of the config, such as num_labels=3.
        """
        opened = open_model(name, model_type=cls.default_model_type(), adapter=adapter)
        with allowing_remote_code(trust_remote_code, opened.name):
            opened = opened.with_variant(changes)
            kind = cls.class_for(opened)
        chosen = parse_dtype(dtype if dtype is not None else torch_dtype)
        model = load(kind, opened, chosen, key_mapping, changes, ignore_mismatched_sizes, for_engine=True)
        if device_map == "auto":
            device_map = "cuda" if torch.cuda.is_available() else None
        try:
            return model if device_map is None else model.to(device_map)
        except (RuntimeError, AssertionError, ValueError) as error:
            raise ExecutorError(
                f"nothing can run on device_map={device_map!r} here ({error}). Leave it out for the CPU."
            ) from error


class ParameterFiles(WeightFiles):
    """The files that a module's parameters are mapped from; those that no parameter lies in any longer are left out."""

    def __init__(self, model: nn.Module, files: Iterable[WeightFile]) -> None:
        super().__init__(files, build=False)
        self._model = weakref.ref(model)
        self._drop_unused()

    def check(self) -> None:
        try:
            super().check()
        except CheckpointError:
            self._drop_unused()  # on a GPU, say, or in another dtype, the parameters are copies
            super().check()

    def _drop_unused(self) -> None:
        model = self._model()
        tensors = () if model is None else (*model.parameters(), *model.buffers())
        addresses = sorted(tensor.data_ptr() for tensor in tensors if tensor.device.type == "cpu")
        self.mappings = [
            mapping
            for mapping in self.mappings
            if bisect_left(addresses, mapping.begin) < bisect_left(addresses, mapping.end)
        ]
        self.files = list(dict.fromkeys(mapping.file for mapping in self.mappings))

    def __reduce__(self) -> tuple[type[WeightFiles], tuple[()]]:
        return WeightFiles, ()  # the parameters of a copied or pickled model lie in no file


@dataclass(eq=False)
class StoredHeads:
    """What a model's files have of heads for further tokens, which are none of its parameters. A copy of a model shares
    them, and one that was pickled has none: where it comes to, the files need not be."""

    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    first: DraftHead | None = None  # the head that drafts
    model: Any = None  # the same, once it is needed

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredHeads:
        return self

    def __reduce__(self) -> tuple[type[StoredHeads], tuple[()]]:
        return StoredHeads, ()


class PreTrainedModel(FamiliarClass, FromPretrained, ModelParts):
    """What every model class of `auto` can do: be loaded from a checkpoint, and be saved as one."""

    transformers_classes = ("transformers.modeling_utils.PreTrainedModel",)
    weight_files: WeightFiles | None = None
    stored_heads = StoredHeads()
    use_gpu_engine: bool = True  # on a GPU, where nobody has hooks on the model or has changed its modules
    changes: Mapping[str, Change] = {}  # in every call, by site; replaced, never filled
    config: Any
    generation_config: GenerationConfig
    base_class: type[BaseModel]
    base_model: BaseModel
    in_family: ClassVar[Callable[[str], type[Any]]]  # the class with the same head, by model type

    def __init__(self, config: Config) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        if not self.base_model.token_embedding.weight.is_meta:  # on meta, the numbers come from a checkpoint later
            module = self.head_module if isinstance(self, ModelWithHead) else cast(nn.Module, self)  # the base is done
            initialize(
                module,
                config.initial_std,
                {self.base_model.token_embedding.weight} if isinstance(self, ModelWithHead) else (),
            )
        self.generation_config = GenerationConfig.from_model_config(config)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.changes and kwargs.get("p") is None:  # a ready-made pass has its own
            kwargs["watch"] = self.changed_watch(kwargs.get("watch"))
        if torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        asked = isinstance(self, Encoder) and vars(self).get("_use_cpu_engine")
        if asked and (output := encoder_output(self, args, kwargs)) is not None:
            return output
        measured = not cast(nn.Module, self).training and self.device.type == "cpu"
        # not in training: a backward pass would run on other threads
        with unchanged_weights(self), fastest_threads() if measured else nullcontext():
            return super().__call__(*args, **kwargs)  # type: ignore[misc]

    @property
    def use_cpu_engine(self) -> bool:
        """Whether the CPU engine may run the model, where nobody has hooks on it or has changed its modules.

        It runs `generate` unless this is False, and single passes of encoders if it is set to True. By default those are
        PyTorch's: the engine is no faster there, and so a watched pass gives the same bits, and padding the numbers that
        transformers has.
        """
        return bool(vars(self).get("_use_cpu_engine", True))

    @use_cpu_engine.setter
    def use_cpu_engine(self, value: bool) -> None:
        for module in (self, self.base_model):
            vars(module)["_use_cpu_engine"] = value

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        release_engine(cast(nn.Module, self))  # the parameters move, or change their dtype
        return super()._apply(fn, recurse)  # type: ignore[misc]

    def train(self, mode: bool = True) -> Any:
        if mode:
            release_engine(cast(nn.Module, self))  # its memory is wanted for gradients
        return super().train(mode)  # type: ignore[misc]

    @classmethod
    def default_model_type(cls) -> str:
        return cls.base_class.config_class.model_type

    @classmethod
    def class_for(cls, opened: ModelFiles) -> type[Any]:
        model_type = opened.config.model_type
        if model_type == (own_type := cls.base_class.config_class.model_type):
            return cls
        name = cls.class_name_for(model_type)
        if base_class_for(model_type).declared.file_classes.get(name) == cls.__name__:  # a variant of the family
            return cls.in_family(model_type)
        raise ConfigError(
            f"{opened.path}: holds a {model_type} model, which {cls.__name__} cannot be. "
            f"Use {name}, or the Auto class, which finds the right one.{variant_hint(model_type, own_type)}"
        )

    @classmethod
    def class_name_for(cls, model_type: str) -> str:
        """The name of this class in another family."""
        ending = next((name for name, kind in HEADS.items() if issubclass(cls, kind)), "Model")
        base = base_class_for(model_type)
        return base.family + base.class_suffixes.get(ending, ending)

    @property
    def dtype(self) -> torch.dtype:
        return self.base_model.token_embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.base_model.token_embedding.weight.device

    @checked
    def changed(self, changes: Annotated[Mapping[str, Change | SiteFunction], OWN_CHECK]) -> Any:
        """The model with some of its values zeroed, scaled, replaced, or given to a function, in every call.

        As for `glassformer.load(…).changed`, sites may be patterns. Modules, weights and hooks are shared, not copied, and
        gradients flow through the changes. They are not saved with the weights.
        """
        other = copy(self)
        other.changes = {**self.changes, **expand_changes(changes, self.base_model.site_names)}
        return other

    def changed_watch(self, watch: WatchLike) -> WatchLike:
        """A call's watch together with the model's changes; where both change a site, the call's own counts."""
        if not self.changes:
            return watch
        asked = Watch.parse(() if watch is None else watch, self.base_model.site_names)
        return Watch(asked.reads, {**self.changes, **asked.changes}, asked.recompute)

    @checked
    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: Mapping[str, Any] | None = None,
        push_to_hub: bool = False,
        max_shard_size: str | int = "5GB",
        safe_serialization: bool = True,
        **hub_options: Any,
    ) -> None:
        """Write config.json, generation_config.json and safetensors.

        A folder that is there keeps its old model until all files of the new one are on the disk, whatever happens. Saved
        from a folder into the same one, a model goes on running with the weights that it has.

        Args:
            save_directory: the folder, which is made if need be.
            is_main_process: of several processes that train one model, one writes; the others pass False.
            state_dict: the weights by name, where the model itself holds only a part of them.
            push_to_hub: also upload it, under `repo_id` or the folder's name; other options are push_to_hub's.
            max_shard_size: where the weights are cut into several files.
            safe_serialization: accepted for familiarity; weights are always written as safetensors.
        """
        refuse_unknown({} if push_to_hub else hub_options, self.save_pretrained)
        if not safe_serialization:
            note("safe_serialization=False is ignored: weights are always written as safetensors.")
        if is_main_process:
            save(self, Path(save_directory), max_shard_size, state_dict)
        if is_main_process and push_to_hub:
            self.push_to_hub(**{"repo_id": Path(save_directory).name, **hub_options})


def load(
    cls: type[Any],
    opened: ModelFiles,
    dtype: torch.dtype | None = None,
    key_mapping: Mapping[str, str] | None = None,
    changes: Mapping[str, Any] | None = None,
    replace_mismatched: bool = False,
    parts: Mapping[str, TensorPart] | None = None,
    packed: Mapping[str, PackedMatrix] | None = None,
    for_engine: bool = False,
) -> Any:
    """A model of a class, with the weights of an opened checkpoint, ready to run.

    `parts`: the weights that this process has a part of, where a model is split among several.
    `packed`: matrices that stay packed, by weight; the model is for passes and gradients of activations then.
    `for_engine`: remember what the parameters are expanded from, so that the CPU engine can run the model in their place.
    """
    config = changed_config(opened.config, changes or {})
    opened.check_sizes(config)
    kept = opened.kept_tensors
    stored = {name: tensor for name, tensor in opened.tensors.items() if name not in kept}
    dtype = dtype or stored_dtype(config, stored)
    with torch.device("meta"):
        model = cls(config)
        add_adapters(model, opened.adapter_ranks)
    layers = packable_layers(model, packed or {})
    parts = {**(parts or {}), **dict.fromkeys(layers, NOT_LOADED)}
    stored_by_name = load_weights(model, stored, dtype, key_mapping or {}, opened, replace_mismatched, parts)
    if for_engine and dtype == torch.float32:
        remember_expanded(model, {name: tensor for name, tensor in stored_by_name.items() if tensor.packed})
    for layer, matrix in layers.values():
        use_packed(layer, matrix)
    model.generation_config = opened.settings
    model.name_or_path = config.name_or_path = opened.name
    model.weight_files = ParameterFiles(model, (tensor.file for tensor in stored.values()))
    model.stored_heads = StoredHeads(kept, opened.draft_head)
    return model.eval()


def draft_model(model: Any) -> Any:
    """The head for further tokens that a model was loaded with, as a model of its own: in its dtype, and where it is."""
    heads = model.stored_heads
    if heads.first is None:
        raise SettingError(no_head(model.name_or_path or type(model).__name__, model.config))
    heads.first.check_whole()
    if heads.model is None or heads.model.dtype != model.dtype:
        heads.model = load(type(model), heads.first, model.dtype)
    return heads.model.to(model.device)


def add_adapters(model: nn.Module, ranks: Mapping[str, int]) -> None:
    """Put low-rank updates beside the layers of a model, by module."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear | Conv1D)}
    for name, rank in resolve_names(ranks, tuple(layers)).items():
        holder, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(holder), attribute, with_low_rank_update(layers[name], rank))


def parse_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or dtype == "auto":
        return None
    parsed = DTYPES_BY_NAME.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if not isinstance(parsed, torch.dtype) or not parsed.is_floating_point:
        raise InputError(f"dtype {dtype!r} is not one that a model can have. Use one of: {', '.join(DTYPES_BY_NAME)}.")
    return parsed


def stored_dtype(config: Config, stored: Mapping[str, StoredTensor]) -> torch.dtype:
    """The dtype that a checkpoint is in: as it says, else that of most of its numbers; packed kinds give float32."""
    if any(tensor.packed for tensor in stored.values()):
        return torch.float32
    if config.dtype is not None and config.dtype in DTYPES_BY_NAME:
        return DTYPES_BY_NAME[config.dtype]
    return STORED_DTYPES[main_kind(tensor for tensor in stored.values() if STORED_DTYPES[tensor.kind].is_floating_point)]


def load_weights(
    model: AnyModel,
    stored: dict[str, StoredTensor],
    dtype: torch.dtype,
    mapping: Mapping[str, str],
    opened: ModelFiles,
    replace_mismatched: bool,
    parts: Mapping[str, TensorPart],
) -> dict[str, StoredTensor]:
    """Give every parameter of a model on the meta device its stored value, and log in one line what did not fit; the
    stored tensors by parameter.

    `replace_mismatched`: a head's tensor of another size counts as missing, and is initialized anew.
    `parts`: the names of which only a part is read, or nothing, and the parameter is None.
    """
    path = opened.path
    stored = match_names(model, stored, mapping)
    expected = dict(model.named_parameters(remove_duplicate=False))
    parts = _with_tied_names(parts, expected)
    elsewhere = {name for name, part in parts.items() if not part.ranges}
    if replace_mismatched:
        for name, value in expected.items():
            if name in stored and stored[name].shape != tuple(value.shape) and is_optional(model, name, value):
                del stored[name]
    buffers = {name: value for name, value in model.named_buffers() if name in stored}
    lacking = [name for name in expected if name not in stored]
    new = [name for name in lacking if name not in parts and is_optional(model, name, expected[name])]
    if missing := [name for name in lacking if name not in new]:
        raise CheckpointError(f"{path}: the weights lack {join_names(missing)}. {_remedy_for_missing(model, missing)}")
    used: dict[int, StoredTensor] = {}  # by identity: what is stored once and used twice stays one parameter
    present = {name: value for name, value in expected.items() if name not in new and name not in elsewhere}
    part_of = {id(stored[name]): parts[name] for name in (*present, *buffers) if name in parts}
    for name, target in {**present, **buffers}.items():
        if (tensor := stored[name]).shape != tuple(target.shape):
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} has shape {tensor.shape}, but the config makes {name!r} "
                f"{tuple(target.shape)}. {_remedy(model, name, target)}"
            )
        used[id(tensor)] = tensor
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # numpy unpacks, and releases the interpreter's lock
        read = threads.map(lambda tensor: as_tensor(tensor, dtype, part_of.get(id(tensor))), used.values())
        values = dict(zip(used, read, strict=True))
    parameters: dict[int, nn.Parameter] = {}
    for name, value in expected.items():
        if name in elsewhere:
            _set_tensor(model, name, None)
            continue
        key = id(value) if name in new else id(stored[name])
        if key not in parameters:
            parameters[key] = nn.Parameter(torch.empty(value.shape, dtype=dtype) if name in new else values[key])
        _set_tensor(model, name, parameters[key])
    for name, buffer in model.named_buffers():
        own_part = take_part(buffer, parts[name]) if name in parts else buffer
        _set_tensor(model, name, values[id(stored[name])] if name in buffers else own_part.to(dtype))
    loaded = {parameters[id(stored[name])] for name in present}
    for name in new:
        module = name.rpartition(".")[0]
        initialize(model.get_submodule(module), model.config.initial_std, loaded, module)
    absent = (model.base_model if isinstance(model, ModelWithHead) else model).absent_modules
    unexpected = [
        name
        for name, tensor in stored.items()
        if id(tensor) not in used
        and name not in elsewhere
        and not IGNORED_NAMES.search(name)
        and name.partition(".")[0] not in absent
    ]
    remarks = [f"new, untrained: {join_names(new)}"] if new else []
    remarks += [f"not used: {join_names(unexpected)}"] if unexpected else []
    if remarks:
        note(f"{path.name if Path(opened.name).exists() else opened.name}: {'; '.join(remarks)}.")
    return {name: stored[name] for name in present}


def _with_tied_names(parts: Mapping[str, TensorPart], expected: Mapping[str, Tensor]) -> Mapping[str, TensorPart]:
    """The parts under all names of a parameter: a blueprint has one for a table that an embedding shares with a head."""
    by_parameter = {id(expected[name]): part for name, part in parts.items() if name in expected}
    tied = {name: by_parameter[id(value)] for name, value in expected.items() if id(value) in by_parameter}
    return {**parts, **tied}


def _set_tensor(model: nn.Module, name: str, value: Tensor | None) -> None:
    module, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(module), attribute, value)


def _remedy_for_missing(model: AnyModel, missing: Collection[str]) -> str:
    encoder = encoder_class_for(model.config.model_type)
    if encoder is not None and all(name.partition(".")[0] in encoder.absent_modules for name in missing):
        return f"It is an encoder alone: use {encoder.__name__}, or AutoModelForTextEncoding."
    return "Is this the config of these weights?"


def _remedy(model: AnyModel, name: str, parameter: Tensor) -> str:
    """What may be wrong when a shape does not fit: a label count, or the config as a whole."""
    if isinstance(model, ModelWithHead) and is_optional(model, name, parameter) and model.head_kind in ("sequence", "token"):
        return (
            f"The checkpoint's head has other labels than num_labels={model.config.label_count}; to make a new one, pass "
            "ignore_mismatched_sizes=True."
        )
    return "Is this the config of these weights?"


def as_tensor(stored: StoredTensor, dtype: torch.dtype, part: TensorPart | None = None) -> Tensor:
    """A stored tensor for torch, or a part of it: a view of the mapped file if its kind and alignment allow, else a
    converted copy. Packed blocks are expanded whole where a part is cut across their rows."""
    if part is not None and part.axis == 0 and len(part.ranges) == 1 and stored.layout is None:
        stored, part = stored.rows(part.ranges[0]), None
    if stored.packed or stored.layout is not None:
        values = torch.from_numpy(stored.to_float32())
        tensor = (values if part is None else take_part(values, part).clone()).to(dtype)
        stored.release()
        return tensor
    kind = STORED_DTYPES[stored.kind]
    if not stored.elements:
        return torch.empty(stored.shape, dtype=dtype)
    if stored.offset % PLAIN_KINDS[stored.kind]:
        flat = torch.frombuffer(bytearray(stored.bytes), dtype=kind)
    else:
        flat = torch.frombuffer(stored.file.buffer, dtype=kind, count=stored.elements, offset=stored.offset)
    tensor = flat.view(stored.shape)
    if part is not None:
        tensor = take_part(tensor, part).contiguous()
    if stored.file.mapped is None:
        stored.release()  # computed: what the tensor does not look into is not needed again
    return tensor.to(dtype if kind.is_floating_point else kind)


@torch.no_grad()
def initialize(
    module: nn.Module, initial_std: Callable[[str, int], float | None], keep: Collection[Tensor] = (), prefix: str = ""
) -> None:
    """Random weights: normal for embeddings and projections, with the family's standard deviation, and zero biases; norms,
    and families whose `initial_std` is None, start as torch initializes them.

    `keep`: tensors that are initialized already, such as an embedding that a head shares. `prefix`: the module's own name.
    """
    ids = {id(tensor) for tensor in keep}
    for name, layer in module.named_modules(prefix=prefix):
        if not isinstance(layer, (nn.Linear, nn.Embedding, Conv1D, nn.LayerNorm, RMSNorm)):
            continue
        saved = [(parameter, parameter.clone()) for parameter in layer.parameters() if id(parameter) in ids]
        std = None if isinstance(layer, (nn.LayerNorm, RMSNorm)) else initial_std(name, getattr(layer, "in_features", 0))
        if std is None:
            reset_to_torch_default(layer)
        else:
            layer.weight.normal_(std=std)
            if (bias := getattr(layer, "bias", None)) is not None:
                bias.zero_()
        for parameter, value in saved:
            parameter.copy_(value)


def reset_to_torch_default(layer: Any) -> None:
    """Initialize a layer as torch's class of its kind does."""
    kind = next((kind for kind in (nn.Linear, nn.Embedding) if isinstance(layer, kind)), type(layer))
    kind.reset_parameters(layer)


def tensors_to_save(model: Any, values: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """A model's tensors (or these values of them): a tied one once, if the config says so; else under each of its names."""
    parameters = model.named_parameters(remove_duplicate=model.config.tie_word_embeddings)
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    buffers = ((name, tensor) for name, tensor in model.named_buffers() if not IGNORED_NAMES.search(name))
    for name, tensor in (*parameters, *buffers):
        value = tensor if values is None else values.get(name, tensor)
        tensors[name] = value.detach().clone() if id(value) in seen else value.detach()
        seen.add(id(value))
    return model.base_model.stored_form(tensors)  # type: ignore[no-any-return]


def _kept_dtype(stored: StoredTensor) -> torch.dtype:
    """In which a tensor is written that is kept as it was read; packed ones expand."""
    return torch.float32 if stored.packed else STORED_DTYPES[stored.kind]


def save(model: Any, folder: Path, max_shard_size: str | int, values: Mapping[str, Tensor] | None = None) -> None:
    from huggingface_hub import save_torch_state_dict
    from safetensors import SafetensorError

    if any(isinstance(module, LowRankUpdate) for module in model.modules()):
        raise InputError(
            "an adapter stands beside the weights. Load the model with it merged into them, to save both as one."
        )
    name = type(model).__name__
    config = {
        **model.config.to_dict(),
        "architectures": [model.base_model.declared.file_classes.get(name, name)],
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    with atomic_save(folder, "config.json", SAVED_WEIGHTS.fullmatch) as work:
        (work / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        settings = json.dumps(model.generation_config.to_dict(), indent=2) + "\n"
        (work / "generation_config.json").write_text(settings, "utf-8")
        try:
            kept = {name: as_tensor(tensor, _kept_dtype(tensor)) for name, tensor in model.stored_heads.tensors.items()}
            save_torch_state_dict(
                {**kept, **tensors_to_save(model, values)}, work, max_shard_size=max_shard_size, metadata={"format": "pt"}
            )
        except SafetensorError as error:  # its errors of reading and writing are no OSError
            raise write_error(folder, str(error)) from error
