"""A name to everything known about a model without running it: config, tokenizer, settings, stored tensors. No torch."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeAlias

from glassformer.adapters import MODES, PEFT_CONFIG, AdapterMode, apply_adapters, is_adapter, read_adapter, with_adapter_ops
from glassformer.blueprints import (
    Blueprint,
    Config,
    Head,
    blueprint,
    changed_config,
    drafts,
    read_config,
    read_text_config,
    variant_field,
)
from glassformer.blueprints.multimodal import TEXT_FAMILIES, text_tensors
from glassformer.checkpoint import Checkpoint, StoredTensor, open_at, tiktoken_ranks
from glassformer.checkpoint.catalogue import CATALOGUE
from glassformer.checkpoint.folder import FolderCheckpoint, read_json
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.gguf_kinds import file_kind
from glassformer.checkpoint.legacy_names import resolve_names
from glassformer.checkpoint.locate import CheckpointPart, locate
from glassformer.checkpoint.published_names import with_family_names
from glassformer.checkpoint.quantized import quantization_method
from glassformer.checkpoint.scratch import ScratchCheckpoint
from glassformer.checkpoint.sentence_pooling import SentenceSettings, read_sentence_settings
from glassformer.checkpoint.stacked_experts import separate_experts
from glassformer.checkpoint.stored_tensors import PLAIN_KINDS, main_kind
from glassformer.checkpoint.training_layout import check_finished
from glassformer.decoding.settings import SPECIAL_TOKENS, GenerationConfig, open_by_name
from glassformer.decoding.settings_table import OWN_HEAD
from glassformer.ground.arguments import checked
from glassformer.ground.errors import (
    CheckpointError,
    ConfigError,
    FetchError,
    InputError,
    InputTypeError,
    ModelNotFound,
    did_you_mean,
    join_names,
    refuse_unknown,
    spell,
)  # fmt: skip
from glassformer.ground.files import home
from glassformer.ground.progress import NamedProgress
from glassformer.ground.typecheck import brief
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.config_fields import SPECIAL_TOKEN_NAMES

note = logging.getLogger("glassformer").warning

HEADS_BY_SUFFIX: Mapping[str, Head] = {  # of an architecture's name
    "ForMaskedLM": "masked", "ForSequenceClassification": "sequence", "ForTokenClassification": "token",
    "ForQuestionAnswering": "question",
}  # fmt: skip
AdapterNames: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, float]
DTYPES = ("float32", "bfloat16", "float16", "float64")  # what a model can run in


@dataclass(frozen=True)
class ModelFiles:
    """A located checkpoint; each part is read on first use."""

    name: str
    checkpoint: Checkpoint
    replacement_tensors: Mapping[str, StoredTensor] | None = None  # instead of the checkpoint's: packed in another kind
    replacement_kind: str | None = None  # the kind that was asked for
    model_type: str | None = None  # of the class that loads it, for a config that has none
    adapters: tuple[tuple[str, float], ...] = ()  # by name, each with its weight
    adapter_ranks: Mapping[str, int] = field(default_factory=dict)  # of the updates beside the weights, by module
    config_changes: Mapping[str, Any] = field(default_factory=dict)  # what adapters, or a variant, make of the config
    head_override: Head | None = None  # an adapter's
    tokenizer_path: Path | None = None  # an adapter's folder that has a tokenizer

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @cached_property
    def config(self) -> Config:
        with errors_name(self.path, "config.json"):
            config = read_text_config(self.checkpoint.config) or read_config(self.checkpoint.config, self.model_type)
        return changed_config(config, self.config_changes) if self.config_changes else config

    def with_variant(self, changes: Mapping[str, Any]) -> Self:
        """As another variant of its family, where a change of the config's fields makes it one."""
        name = variant_field(self.config.model_type)
        return replace(self, config_changes={**self.config_changes, name: changes[name]}) if name in changes else self

    @cached_property
    def settings(self) -> GenerationConfig:
        """The model's generation settings; what ends a text is taken from its config where they do not say."""
        is_gguf = isinstance(self.checkpoint, GgufCheckpoint)
        config_file, file = ("the GGUF file",) * 2 if is_gguf else ("config.json", "generation_config.json")
        fallback = GenerationConfig.from_model_config(self.config, config_file)
        with errors_name(self.path, file):
            stored = self.checkpoint.settings
            settings = GenerationConfig.from_dict(stored, file) if stored else fallback
        if settings.unsupported:
            unsupported = ", ".join(f"{name}={value!r}" for name, value in settings.unsupported.items())
            note(f"{self.name}: its generation settings ask for {unsupported}, which is not supported and left out.")
        settings.fill_from(fallback, SPECIAL_TOKENS)
        return settings

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if self.tokenizer_path is not None:
            return Tokenizer.from_folder(self.tokenizer_path)
        if isinstance(self.checkpoint, GgufCheckpoint):
            with errors_name(self.path):
                return Tokenizer.from_gguf(self.checkpoint.metadata, home() / "tokenizers")
        if isinstance(self.checkpoint, ScratchCheckpoint):
            if (self.path.parent / "tokenizer.json").is_file():  # trained with one of its own
                return Tokenizer.from_folder(self.path.parent)
            if (path := tiktoken_ranks.ranks_path()) is None:
                raise CheckpointError(
                    f"{self.path}: its tokenizer is cl100k_base. Fetch it: glass models pull {tiktoken_ranks.NAME}."
                )
            return Tokenizer.from_tiktoken(path)
        return Tokenizer.from_folder(self.path)

    @cached_property
    def sentence(self) -> SentenceSettings:
        """How the model's states become one vector per text."""
        if isinstance(self.checkpoint, GgufCheckpoint):
            return read_sentence_settings(self.path, self.checkpoint.metadata, self.checkpoint.raw)
        return read_sentence_settings(self.path)

    @property
    def packed_by(self) -> str | None:
        """The method by which another library has packed the weights of a folder."""
        quantization = self.checkpoint.quantization if isinstance(self.checkpoint, FolderCheckpoint) else None
        return quantization_method(quantization)

    @property
    def added_adapters(self) -> dict[str, float]:
        """The adapters that its name does not mean already, each with its weight."""
        return {name: weight for name, weight in self.adapters if name != self.name}

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return self._stored_tensors if self.replacement_tensors is None else self.replacement_tensors

    @cached_property
    def _stored_tensors(self) -> Mapping[str, StoredTensor]:
        """The checkpoint's; stacked experts apart; of a model of texts and images those of its text part, with a notice."""
        try:
            kind, routed = self.checkpoint.config.get("model_type"), bool(self.config.routed_layers)
        except (CheckpointError, ConfigError):
            return self.checkpoint.tensors  # weights whose config is missing or unknown can still be listed
        if not isinstance(kind, str) or kind not in TEXT_FAMILIES:
            tensors = with_family_names(self.checkpoint.tensors, self.config.model_type)
            return self._with_separate_experts(tensors) if routed else tensors
        part = text_tensors(self.checkpoint.tensors)
        without = f", without {' and '.join(part.left_out)}" if part.left_out else ""
        name = self.path.name if Path(self.name).exists() else self.name
        note(f"{name}: only the text part of this {kind} model is opened{without}. It reads no images.")
        return self._with_separate_experts(part.tensors) if routed else part.tensors

    def _with_separate_experts(self, tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
        """Those of heads for further tokens stay as they are: they are written as they were read."""
        kept = {name: tensors[name] for name in drafts.kept_names(self.config, tensors)}
        own = {name: tensor for name, tensor in tensors.items() if name not in kept}
        return {**separate_experts(own, self.config.model_type), **kept}

    @cached_property
    def draft_head(self) -> DraftHead | None:
        """The head for further tokens that its files have, as a model of its own; None where there is none."""
        tensors = drafts.head_tensors(self.config, self.tensors)
        if not tensors:
            return None
        if self.config.routed_layers:
            tensors = separate_experts(tensors, self.config.model_type)
        return DraftHead(
            self.name, self.checkpoint, tensors, self.replacement_kind, self.model_type, config_changes=self.config_changes,
            head_override="causal", model_config=self.config,
        )  # fmt: skip

    @property
    def kept_tensors(self) -> dict[str, StoredTensor]:
        """Those of heads for further tokens, which are no part of the model itself and are written with it."""
        tensors = self.tensors
        return {drafts.name_in_family(self.config, name): tensors[name] for name in drafts.kept_names(self.config, tensors)}

    @cached_property
    def kind(self) -> str:
        """What most of the weights are stored in: BF16, Q4_1, …"""
        return main_kind(self.tensors.values())

    @cached_property
    def kind_text(self) -> str:
        """The kind for people; a file or a packing of mixed kinds by its name where most numbers are of another."""
        name = self.replacement_kind
        if name is None and self.replacement_tensors is None and isinstance(self.checkpoint, GgufCheckpoint):
            name = file_kind(self.checkpoint.metadata.get("general.file_type"))
        return self.kind if name is None or name.upper().startswith(self.kind) else f"{name.upper()} (mixed)"

    @property
    def packed(self) -> bool:
        return self.kind not in PLAIN_KINDS

    @property
    def head(self) -> Head:
        """The head that the checkpoint has, as its architecture says; an encoder may have none."""
        if self.head_override is not None:
            return self.head_override
        config = self.config
        architecture = (config.architectures or [""])[0]
        otherwise: Head = "base" if config.default_head == "masked" else config.default_head
        suffixes = {**HEADS_BY_SUFFIX, "ForPreTraining": config.pretraining_head}
        if config.default_head == "masked":  # whose tokens see what they are scored by
            suffixes["ForCausalLM"] = "masked"
        return next((head for suffix, head in suffixes.items() if architecture.endswith(suffix)), otherwise)

    def check_sizes(self, config: Config | None = None) -> None:
        """Refuse a config (its own, or a changed one) whose sizes the weights cannot have. Nothing is built by it before."""
        with errors_name(self.path, "config.json"):
            (config or self.config).check_sizes(tensor.shape for tensor in self.tensors.values())

    def blueprint(self, head: Head | None = None) -> Blueprint:
        return with_adapter_ops(blueprint(self.config, head or self.head), self.adapter_ranks)


@dataclass(frozen=True)
class DraftHead(ModelFiles):
    """A head for further tokens, whose tensors are some of a model's."""

    model_config: Config = field(kw_only=True)

    @cached_property
    def config(self) -> Config:
        """Its logits come from the model's own matrix, unless it has another."""
        config = drafts.head_config(self.model_config)
        assert config is not None
        return config

    def check_whole(self) -> None:
        """Refuse to draft with a head that lacks weights; its model is none the worse for it."""
        needed = [weight.name for weight in self.blueprint().weights]
        found = resolve_names(self.tensors, needed)
        if lacking := [drafts.file_name(self.model_config, name) for name in needed if name not in found]:
            raise CheckpointError(
                f"{self.name}: its head for further tokens lacks {join_names(lacking)}, so it cannot draft. "
                f"Leave {spell('assistant_model', OWN_HEAD)} out, or fetch the files again."
            )


@contextmanager
def errors_name(path: Path, file: str = "") -> Iterator[None]:
    """Put the file's name in front of an error about its content."""
    path = path / file if file and path.is_dir() else path
    try:
        yield
    except (CheckpointError, ConfigError) as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error


def open_model(
    name: str | os.PathLike[str],
    part: CheckpointPart = "model",
    progress: NamedProgress | None = None,
    model_type: str | None = None,
    adapter: AdapterNames | None = None,
) -> ModelFiles:
    """Locate a model by path, catalogue name or hub id, and open it; `model_type`: where its config has none.

    The folder of an adapter opens as its base with the adapter in it. `adapter`: further ones.
    """
    opened, its_adapter = open_base(name, part, progress, model_type)
    opened = opened if its_adapter is None or part != "model" else with_adapters(opened, its_adapter)
    return opened if adapter is None else with_adapters(opened, adapter, progress=progress)


def open_base(
    name: str | os.PathLike[str],
    part: CheckpointPart = "model",
    progress: NamedProgress | None = None,
    model_type: str | None = None,
) -> tuple[ModelFiles, str | None]:
    """A model as `open_model` opens it; of an adapter's folder the base, and the adapter, which is not applied yet."""
    entry = CATALOGUE.get(os.fspath(name))
    if part == "model" and entry is not None and entry.kind == "ranks" and not Path(name).exists():  # before it is fetched
        raise CheckpointError(f"{name}: the ranks of a tokenizer, not a model. Give the model that they belong to.")
    if entry is not None and entry.kind == "data" and not Path(name).exists():
        raise CheckpointError(
            f"{name}: text to train on, not a model. Train one on it: glass train --text {name} --out DIR."
        )
    path = locate_finished(name, part, progress)
    if not is_adapter(path):
        return ModelFiles(os.fspath(name), open_at(path), model_type=model_type), None
    has_tokenizer = any((path / file).exists() for file in TOKENIZER_FILES)
    base = ModelFiles(os.fspath(name), open_at(_base_path(path, part, progress)), model_type=model_type)
    return replace(base, tokenizer_path=path if has_tokenizer else None), os.fspath(name)


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def locate_finished(
    name: str | os.PathLike[str], part: CheckpointPart = "model", progress: NamedProgress | None = None
) -> Path:
    """Where a model or a part of it lies; refused while it is still being trained."""
    path = locate(name, part, progress)
    check_finished(path)
    return path


def _base_path(folder: Path, part: CheckpointPart, progress: NamedProgress | None) -> Path:
    """Where the base of an adapter lies: in its own folder, or where its config says."""
    if (folder / "config.json").exists():
        return folder
    base = read_json(folder / PEFT_CONFIG).get("base_model_name_or_path")
    advice = f"Give the base, and the adapter with {spell('adapter', str(folder))}."
    if not isinstance(base, str) or not base:
        raise CheckpointError(f"{folder}: an adapter whose {PEFT_CONFIG} names no base. {advice}")
    try:
        return locate(base, part, progress)
    except (ModelNotFound, FetchError) as error:
        raise type(error)(f"{folder}: its base {base!r} cannot be opened: {error} {advice}") from error


def adapter_weights(adapter: AdapterNames) -> tuple[tuple[str, float], ...]:
    """The adapters that were asked for, each with its weight: one by default."""
    if isinstance(adapter, str | os.PathLike):
        return ((os.fspath(adapter), 1.0),)
    names = adapter if isinstance(adapter, list | tuple) else ()
    weights = list(adapter.items()) if isinstance(adapter, Mapping) else [(name, 1.0) for name in names]
    if not weights or not all(
        isinstance(name, str | os.PathLike) and isinstance(weight, int | float) and math.isfinite(weight)
        for name, weight in weights
    ):
        raise InputTypeError(
            f"adapter is a path, a list of them, or a mapping to their weights, {{'./lora': 0.5}}; not {brief(adapter)}."
        )
    return tuple({os.fspath(name): float(weight) for name, weight in weights}.items())


def check_adapter_mode(mode: str) -> None:
    if mode not in MODES:
        raise InputError(f"there is no adapter_mode {mode!r}.{did_you_mean(mode, MODES)} Known: {', '.join(MODES)}.")


def with_adapters(
    opened: ModelFiles,
    adapter: AdapterNames,
    mode: str = "merged",
    progress: NamedProgress | None = None,
) -> ModelFiles:
    """A model with adapters: merged into its weights, or beside them."""
    check_adapter_mode(mode)
    choices, config = adapter_weights(adapter), opened.config
    heads = {name: getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads")}
    raw_config = {**config.to_dict(), **heads}
    adapters = [(read_adapter(locate_finished(name, "model", progress), raw_config), weight) for name, weight in choices]
    applied_mode: AdapterMode = "beside" if mode == "beside" else "merged"
    with errors_name(adapters[-1][0].path):
        applied = apply_adapters(opened.tensors, config, opened.head, adapters, applied_mode, opened.name)
    if applied.expanded:
        before = sum(tensor.size for tensor in applied.expanded) / 1e6
        after = sum(4 * tensor.elements for tensor in applied.expanded) / 1e6
        note(
            f"{opened.name}: {len(applied.expanded)} {main_kind(applied.expanded)} matrices become F32, since an adapter is "
            f"merged into them: {after:,.1f} MB instead of {before:,.1f}."
            + ("" if mode == "beside" else f" They stay as they are with {spell('adapter_mode', 'beside')}.")
        )
    return replace(
        opened,
        replacement_tensors=applied.tensors,
        adapters=(*opened.adapters, *choices),
        adapter_ranks={**opened.adapter_ranks, **applied.ranks},
        config_changes={**opened.config_changes, **applied.config_changes},
        head_override=applied.head or opened.head_override,
    )


@contextmanager
def allowing_remote_code(allowed: bool, name: str) -> Iterator[None]:
    """Around what reads a checkpoint: somebody who passed trust_remote_code=True learns that none of its code is run."""
    try:
        yield
    except ConfigError as error:
        if not allowed:
            raise
        raise ConfigError(
            f"{error} No code from a checkpoint is ever run, so trust_remote_code=True cannot help."
        ) from error
    if allowed:
        note(f"{name}: trust_remote_code=True changes nothing: no code from a checkpoint is ever run, and none is needed.")


class AutoTokenizer:
    """The tokenizer that belongs to a model."""

    @staticmethod
    @checked
    def from_pretrained(
        name: str | os.PathLike[str],
        *,
        padding_side: str | None = None,
        truncation_side: str | None = None,
        model_max_length: int | None = None,
        use_fast: bool = True,
        trust_remote_code: bool = False,
        **special: Any,
    ) -> Tokenizer:
        """From a path, a catalogue name ('smollm2') or a hub id ('Qwen/Qwen3-0.6B').

        Args:
            padding_side: 'left' or 'right', where a batch's shorter texts are padded.
            truncation_side: which end of a text is cut off.
            model_max_length: how many tokens truncation=True leaves.
            use_fast: accepted for familiarity.
            trust_remote_code: accepted for familiarity: no code from a checkpoint is ever run.
            special: special tokens by name, such as pad_token="<pad>".
        """
        unknown = {name: token for name, token in special.items() if name not in SPECIAL_TOKEN_NAMES}
        refuse_unknown(unknown, AutoTokenizer.from_pretrained, SPECIAL_TOKEN_NAMES)
        path = locate(name, "tokenizer")
        is_tiktoken = path.suffix == ".tiktoken"
        with allowing_remote_code(trust_remote_code, os.fspath(name)):
            opened = None if is_tiktoken else open_base(name, "tokenizer")[0]
            tokenizer = Tokenizer.from_tiktoken(path) if opened is None else opened.tokenizer
        tokenizer.name_or_path = os.fspath(name)
        options = {"padding_side": padding_side, "truncation_side": truncation_side, "model_max_length": model_max_length}
        for attribute, value in {**options, **special}.items():
            if value is not None:
                setattr(tokenizer, attribute, value)
        return tokenizer


class AutoConfig:
    """The configuration of a model."""

    @staticmethod
    @checked
    def from_pretrained(name: str | os.PathLike[str], *, trust_remote_code: bool = False, **changes: Any) -> Config:
        """From a path, a catalogue name or a hub id; keyword arguments change fields.

        `trust_remote_code` is accepted for familiarity: no code from a checkpoint is ever run.
        """
        with allowing_remote_code(trust_remote_code, os.fspath(name)):
            config = changed_config(open_model(name, "config").config, changes)
        config.name_or_path = os.fspath(name)
        return config


def open_settings(name: str | os.PathLike[str]) -> GenerationConfig:
    """The generation settings of a model, by its name."""
    return open_model(name, "config").settings


Config.open_by_name = AutoConfig.from_pretrained
open_by_name[:] = [open_settings]
