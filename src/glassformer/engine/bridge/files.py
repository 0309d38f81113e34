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
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from glassformer.blueprints import Blueprint, Config, Head, model_types, read_text_config
from glassformer.blueprints.bridged import BridgedConfig, bridged_config
from glassformer.checkpoint import StoredTensor
from glassformer.checkpoint.folder import FolderCheckpoint
from glassformer.ground.errors import CheckpointError, ConfigError, ExecutorError, install, needed_for, reason_of, spell
from glassformer.model_files import ModelFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from glassformer.engine.bridge.model import BridgedModel
    from glassformer.engine.protocol import BlockInput
    from glassformer.ground.sites import Watch

    Floats: TypeAlias = npt.NDArray[np.float32]

note = logging.getLogger("glassformer").warning
HEADS: Mapping[Head, str] = {  # the first that a class is for: how transformers' own list of such classes is called
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "sequence": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "question": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "base": "MODEL_MAPPING_NAMES",
}
WRITING: tuple[Head, ...] = ("seq2seq", "causal")


@dataclass(frozen=True)
class BridgedFiles(ModelFiles):
    """A checkpoint that transformers computes."""

    dtype: str | None = None  # that it computes in; None: as stored

    @cached_property
    def reference_config(self) -> Any:
        """The config as transformers has it."""
        from transformers import CONFIG_MAPPING

        raw = dict(self.checkpoint.config)
        with self._reading("its config"):
            return CONFIG_MAPPING[raw["model_type"]].from_dict(raw)

    @cached_property
    def model_class(self) -> tuple[Head, str]:
        """The head that the checkpoint has, and transformers' class for it."""
        return _model_class(self.reference_config)

    @cached_property
    def config(self) -> Config:
        reference, (head, _) = self.reference_config, self.model_class
        layers = next(
            (getattr(reference, n) for n in ("encoder_layers", "num_encoder_layers") if hasattr(reference, n)), None
        )
        pair = bool(getattr(reference, "is_encoder_decoder", False)) and head == "seq2seq"
        config: BridgedConfig = bridged_config(reference, head, int(layers or reference.num_hidden_layers) if pair else 0)
        return config

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
        options = {"dtype": "auto" if self.dtype is None else getattr(torch, self.dtype)}
        with self._reading("it"):
            module, info = getattr(transformers, name).from_pretrained(
                str(self.path), config=self.reference_config, local_files_only=True, output_loading_info=True, **options
            )  # fmt: skip
        if missing := sorted(info["missing_keys"]):
            raise CheckpointError(f"{self.path}: {len(missing)} weights of {name} are missing, such as {missing[0]!r}.")
        model = BridgedModel(module.eval().requires_grad_(False), self.config, head)  # type: ignore[arg-type]
        with quiet():
            _ = model.anatomy
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
    def _reading(self, what: str) -> Iterator[None]:
        """Errors of transformers, as errors about this checkpoint."""
        try:
            with quiet():
                yield
        except Exception as error:
            raise CheckpointError(f"{self.path}: transformers cannot read {what}: {reason_of(error)}.") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' own notes and bars."""
    from transformers.utils import logging as theirs

    level, has_bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.ERROR)
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(level)
        if has_bars:
            theirs.enable_progress_bar()


def bridged(opened: ModelFiles, dtype: str | None = None) -> ModelFiles:
    """The same checkpoint as transformers computes it, where no file here describes its model type; else itself."""
    kind = opened.checkpoint.config.get("model_type") if isinstance(opened.checkpoint, FolderCheckpoint) else None
    if not isinstance(kind, str) or kind in model_types():
        return opened
    try:
        _ = read_text_config(opened.checkpoint.config) or opened.config
    except ConfigError as error:
        if find_spec("transformers") is None:
            raise ConfigError(
                f"{error} If transformers knows it, it can be computed so: {install('transformers')}."
            ) from error
        if not _is_known(kind):
            raise
    else:
        return opened
    if opened.adapters or opened.model_type is not None:
        raise CheckpointError(f"{opened.name}: {kind} is no family of Glassformer's own, and adapters need one.")
    found = BridgedFiles(**{part.name: getattr(opened, part.name) for part in fields(ModelFiles)}, dtype=dtype)
    _ = found.config
    note(f"{opened.name}: {kind} is no family of Glassformer's own, so transformers computes it.")
    return found


def check_bridged_options(opened: BridgedFiles, **options: Any) -> None:
    """Refuse options of `load` that only models of our own families have."""
    for name, value in options.items():
        if value:
            raise CheckpointError(
                f"{opened.name} is computed by transformers, and {spell(name)} is for Glassformer's own families. "
                "Leave it out."
            )


def _is_known(kind: str) -> bool:
    """Whether transformers has a class for texts for a model type."""
    from transformers.models.auto import configuration_auto, modeling_auto

    texts = (name for head, name in HEADS.items() if head != "base")
    return kind in vars(configuration_auto)["CONFIG_MAPPING_NAMES"] and any(
        kind in getattr(modeling_auto, name) for name in texts
    )


def _model_class(config: Any) -> tuple[Head, str]:
    """The head and the class of a checkpoint: its architecture, or the first kind of head that its model type has."""
    from transformers.models.auto import modeling_auto

    architecture = (config.architectures or [""])[0]
    kind, pair = config.model_type, bool(getattr(config, "is_encoder_decoder", False))
    classes = {head: _names(getattr(modeling_auto, name).get(kind)) for head, name in HEADS.items()}
    for head, names in classes.items():
        if architecture in names and (head != "seq2seq" or pair):
            return head, architecture
    if architecture:
        raise ConfigError(
            f"config field 'architectures' is {architecture!r}, which has none of the heads that are known here. Take one "
            f"of {', '.join(sorted({name for names in classes.values() for name in names}))}."
        )
    return next((head, names[0]) for head, names in classes.items() if names and (head != "seq2seq" or pair))


def _names(classes: Any) -> tuple[str, ...]:
    return (classes,) if isinstance(classes, str) else tuple(classes or ())
