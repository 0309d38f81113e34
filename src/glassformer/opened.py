"""A name to everything known about a model without running it: config, tokenizer, settings, stored tensors. No torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from glassformer.arguments import checked
from glassformer.blueprints import Blueprint, Config, Head, blueprint, read_config
from glassformer.checkpoint import Checkpoint, StoredTensor, open_at, tiktoken_ranks
from glassformer.checkpoint.catalogue import CATALOGUE
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.locate import CheckpointPart, locate
from glassformer.checkpoint.scratch import ScratchCheckpoint
from glassformer.checkpoint.sentence_pooling import SentenceSettings, read_sentence_settings
from glassformer.checkpoint.stored_tensors import PLAIN_KINDS, main_kind
from glassformer.decoding.settings import SPECIAL_TOKENS, GenerationConfig
from glassformer.errors import CheckpointError, ConfigError, UnknownArgument, refuse_unknown
from glassformer.progress import NamedProgress
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.special_tokens import SPECIAL_TOKEN_NAMES

note = logging.getLogger("glassformer").warning

HEADS_BY_SUFFIX: Mapping[str, Head] = {  # of an architecture's name
    "ForMaskedLM": "masked", "ForPreTraining": "masked", "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token", "ForQuestionAnswering": "question",
}  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16", "float64")  # what a model can run in


@dataclass(frozen=True)
class OpenedModel:
    """A located checkpoint; each part is read on first use."""

    name: str
    checkpoint: Checkpoint
    replacement_tensors: Mapping[str, StoredTensor] | None = None  # instead of the checkpoint's: packed in another kind
    replacement_kind: str | None = None  # the kind that was asked for
    model_type: str | None = None  # of the class that loads it, for a config that has none

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @cached_property
    def config(self) -> Config:
        with _errors_name(self.path, "config.json"):
            return read_config(self.checkpoint.config, self.model_type)

    @cached_property
    def settings(self) -> GenerationConfig:
        """The model's generation settings; what ends a text is taken from its config where they do not say."""
        is_gguf = isinstance(self.checkpoint, GgufCheckpoint)
        config_file, file = ("the GGUF file",) * 2 if is_gguf else ("config.json", "generation_config.json")
        fallback = GenerationConfig.from_model_config(self.config, config_file)
        with _errors_name(self.path, file):
            stored = self.checkpoint.settings
            settings = GenerationConfig.from_dict(stored, file) if stored else fallback
        if settings.unsupported:
            unsupported = ", ".join(f"{name}={value!r}" for name, value in settings.unsupported.items())
            note(f"{self.name}: its generation settings ask for {unsupported}, which is not supported and left out.")
        settings.fill_from(fallback, SPECIAL_TOKENS)
        return settings

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if isinstance(self.checkpoint, GgufCheckpoint):
            with _errors_name(self.path):
                return Tokenizer.from_gguf(self.checkpoint.metadata)
        if isinstance(self.checkpoint, ScratchCheckpoint):
            if (path := tiktoken_ranks.ranks_path()) is None:
                raise CheckpointError(
                    f"{self.path}: its tokenizer is cl100k_base. Fetch it: glass models pull {tiktoken_ranks.NAME}."
                )
            return Tokenizer.from_tiktoken(path)
        return Tokenizer.from_folder(self.path)

    @cached_property
    def sentence(self) -> SentenceSettings:
        """How the model's states become one vector per text."""
        metadata = self.checkpoint.metadata if isinstance(self.checkpoint, GgufCheckpoint) else None
        return read_sentence_settings(self.path, metadata)

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return self.checkpoint.tensors if self.replacement_tensors is None else self.replacement_tensors

    @cached_property
    def kind(self) -> str:
        """What most of the weights are stored in: BF16, Q4_1, …"""
        return main_kind(self.tensors.values())

    @property
    def packed(self) -> bool:
        return self.kind not in PLAIN_KINDS

    @property
    def head(self) -> Head:
        """The head that the checkpoint has, as its architecture says; an encoder may have none."""
        config = self.config
        architecture = (config.architectures or [""])[0]
        otherwise: Head = "base" if config.default_head == "masked" else config.default_head
        return next((head for suffix, head in HEADS_BY_SUFFIX.items() if architecture.endswith(suffix)), otherwise)

    def check_sizes(self, config: Config | None = None) -> None:
        """Refuse a config (its own, or a changed one) whose sizes the weights cannot have. Nothing is built by it before."""
        with _errors_name(self.path, "config.json"):
            (config or self.config).check_sizes(tensor.shape for tensor in self.tensors.values())

    def blueprint(self, head: Head | None = None) -> Blueprint:
        return blueprint(self.config, head or self.head)


@contextmanager
def _errors_name(path: Path, file: str = "") -> Iterator[None]:
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
) -> OpenedModel:
    """Locate a model by path, catalogue name or hub id, and open it; `model_type`: where its config has none."""
    entry = CATALOGUE.get(os.fspath(name))
    if part == "model" and entry is not None and entry.kind == "ranks" and not Path(name).exists():  # before it is fetched
        raise CheckpointError(f"{name}: the ranks of a tokenizer, not a model. Give the model that they belong to.")
    return OpenedModel(os.fspath(name), open_at(locate(name, part, progress)), model_type=model_type)


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
            trust_remote_code: refused if true: no code from a checkpoint is ever run.
            special: special tokens by name, such as pad_token="<pad>".
        """
        if trust_remote_code:
            raise UnknownArgument("trust_remote_code is not supported: no code from a checkpoint is ever run.")
        unknown = {name: token for name, token in special.items() if name not in SPECIAL_TOKEN_NAMES}
        refuse_unknown(unknown, AutoTokenizer.from_pretrained, SPECIAL_TOKEN_NAMES)
        path = locate(name, "tokenizer")
        is_tiktoken = path.suffix == ".tiktoken"
        tokenizer = Tokenizer.from_tiktoken(path) if is_tiktoken else OpenedModel(os.fspath(name), open_at(path)).tokenizer
        options = {"padding_side": padding_side, "truncation_side": truncation_side, "model_max_length": model_max_length}
        for field, value in {**options, **special}.items():
            if value is not None:
                setattr(tokenizer, field, value)
        return tokenizer


class AutoConfig:
    """The configuration of a model."""

    @staticmethod
    @checked
    def from_pretrained(name: str | os.PathLike[str], **changes: Any) -> Config:
        """From a path, a catalogue name or a hub id; keyword arguments change fields."""
        return open_model(name, "config").config.with_changes(changes)
