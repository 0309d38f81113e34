"""Checkpoints of model types that no file here describes, and that an installed transformers computes. Needs no torch until
their modules are asked for.

Only classes of the installed library are ever used: no code of a checkpoint is run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from glassformer.blueprints import Blueprint, Config, Head, has_family, model_types
from glassformer.blueprints.bridged import LIBRARY, bridged_config
from glassformer.checkpoint import StoredTensor
from glassformer.checkpoint.folder import FolderCheckpoint
from glassformer.engine.bridge.installed import classes, installed_version, quiet, text_model_types
from glassformer.engine.bridge.reasons import explained, mismatch_sentence
from glassformer.ground.errors import (
    CheckpointError,
    ConfigError,
    ExecutorError,
    did_you_misspell,
    install,
    join_names,
    needed_for,
    spell,
)
from glassformer.ground.typecheck import brief
from glassformer.model_files import ModelFiles, errors_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from glassformer.engine.bridge.model import BridgedModel
    from glassformer.engine.protocol import BlockInput
    from glassformer.ground.sites import Watch

    Floats: TypeAlias = npt.NDArray[np.float32]

note = logging.getLogger("glassformer").warning


@dataclass(frozen=True)
class BridgedFiles(ModelFiles):
    """A checkpoint that transformers computes."""

    dtype: str | None = None  # that it computes in; None: as stored

    @cached_property
    def reference_config(self) -> Any:
        """The config as transformers has it: the first that is asked of it, so that this says who computes the model."""
        raw = dict(self.checkpoint.config)
        note(f"{self.name}: {raw['model_type']} is no family of Glassformer's own, so {LIBRARY} computes it.")
        with needed_for(f"{self.name}, which {LIBRARY} computes,"):
            from transformers import CONFIG_MAPPING
        with self._explained("read"):
            return CONFIG_MAPPING[raw["model_type"]].from_dict(raw)

    @cached_property
    def model_class(self) -> tuple[Head, str]:
        """The head that the checkpoint has, and transformers' class for it: its architecture, or the first kind of head
        that its model type has.
        """
        raw = self.checkpoint.config
        found = classes(raw["model_type"])
        architectures = raw.get("architectures") or [""]
        if not (isinstance(architectures, list) and isinstance(architectures[0], str)):
            raise ConfigError(
                f"{self.path / 'config.json'}: config field 'architectures' is {brief(architectures)}; it must be a list of "
                "names."
            )
        for head, names in found.items():
            if architectures[0] in (*names, "") and names and (head != "seq2seq" or self._is_pair):
                return head, architectures[0] or names[0]
        known = sorted({name for names in found.values() for name in names})
        raise ConfigError(
            f"{self.path / 'config.json'}: config field 'architectures' is {architectures[0]!r}, which has none of the "
            f"heads that are known here. Take one of {', '.join(known)}."
        )

    @property
    def _is_pair(self) -> bool:
        """Whether it is an encoder-decoder, by its config or by what transformers has where that does not say."""
        said = self.checkpoint.config.get("is_encoder_decoder")
        return bool(getattr(self.reference_config, "is_encoder_decoder", False) if said is None else said)

    @cached_property
    def config(self) -> Config:
        head, _ = self.model_class
        reference = self.reference_config
        layers = next(
            (getattr(reference, n) for n in ("encoder_layers", "num_encoder_layers") if hasattr(reference, n)), None
        )
        pair = head == "seq2seq"
        with errors_name(self.path, "config.json"):
            return bridged_config(reference, head, int(layers or reference.num_hidden_layers) if pair else 0)

    @property
    def head(self) -> Head:
        return self.model_class[0]

    @cached_property
    def _stored_tensors(self) -> Mapping[str, StoredTensor]:
        return self.checkpoint.tensors

    @cached_property
    def model(self) -> BridgedModel:
        """Its modules, loaded when they are first needed."""
        with needed_for(f"{self.name}, which transformers computes,"):
            import torch
            import transformers

        from glassformer.engine.bridge.model import BridgedModel

        if not isinstance(self.checkpoint, FolderCheckpoint):
            raise CheckpointError(
                f"{self.name}: what can be seen of a model that transformers computes is found in its modules, and there "
                "are no weights here. Fetch them: glass models pull."
            )
        self.check_sizes()
        head, name = self.model_class
        options = {"dtype": "auto" if self.dtype is None else getattr(torch, self.dtype), "ignore_mismatched_sizes": True}
        with self._explained(f"build a {name} by"):
            module, info = getattr(transformers, name).from_pretrained(
                str(self.path), config=self.reference_config, local_files_only=True, output_loading_info=True, **options
            )  # fmt: skip
        if mismatched := info["mismatched_keys"]:
            raise ConfigError(f"{self.path / 'config.json'}: {mismatch_sentence(mismatched, self.checkpoint.config)}")
        if missing := sorted(info["missing_keys"]):
            raise CheckpointError(
                f"{self.path}: the weights lack {join_names(missing)}. Fetch the files again, or look whether config.json "
                "is that of these weights."
            )
        model = BridgedModel(module.eval().requires_grad_(False), self.config, head)  # type: ignore[arg-type]
        with self._explained(f"run a {name} by"):
            padded = model.anatomy.padded
        if padded:
            note(f"{self.name} pads each text inside; what is shown is of the text's own tokens.")
        return model

    def read_pass(
        self, ids: Sequence[int], watch: Watch, begin: BlockInput | None = None, second: int | None = None
    ) -> tuple[Floats | None, dict[str, Floats]]:
        """One pass of a model that only reads: its logits, and what the watch read."""
        if begin is not None:
            raise ExecutorError(f"{self.name} is computed by transformers, which computes every block of a pass.")
        return self.model.read(ids, watch, second)

    def blueprint(self, head: Head | None = None) -> Blueprint:
        return self.model.blueprint

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Without notes of transformers, and with its errors as errors about this checkpoint."""
        reference = vars(self).get("reference_config")
        with explained(self.path, self.checkpoint.config, doing, getattr(reference, "attribute_map", {})), quiet():
            yield


def bridged(opened: ModelFiles, dtype: str | None = None) -> ModelFiles:
    """The same checkpoint as transformers computes it, where no file here describes its model type; else itself."""
    config = opened.checkpoint.config if isinstance(opened.checkpoint, FolderCheckpoint) else {}
    kind = config.get("model_type")
    if not isinstance(kind, str) or has_family(kind):
        return opened
    if (installed := installed_version()) is None:
        try:
            _ = opened.config
        except ConfigError as error:
            raise ConfigError(f"{error} If {LIBRARY} knows it, it can be computed so: {install(LIBRARY)}.") from error
    if not classes(kind):
        raise ConfigError(
            f"{opened.path / 'config.json'}: config field 'model_type' is {kind!r}, which is neither a family of "
            f"Glassformer's own nor one for texts of the installed {LIBRARY} {installed}."
            f"{did_you_misspell(kind, {*model_types(), *text_model_types()})} docs/models.md lists the families."
        )
    if opened.adapters or opened.model_type is not None:
        raise CheckpointError(f"{opened.name}: {kind} is no family of Glassformer's own, and adapters need one.")
    return BridgedFiles(**{part.name: getattr(opened, part.name) for part in fields(ModelFiles)}, dtype=dtype)


def check_bridged_options(opened: BridgedFiles, **options: Any) -> None:
    """Refuse options of `load` that only models of our own families have."""
    for name, value in options.items():
        if value:
            raise CheckpointError(
                f"{opened.name} is computed by transformers, and {spell(name)} is for Glassformer's own families. "
                "Leave it out."
            )
