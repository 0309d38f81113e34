"""The options of `glass train` in groups: how it is trained, and how a model that exists is trained further."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from glassformer.cli.command import OptionGroup, option
from glassformer.ground.errors import SettingError
from glassformer.ground.operations import ArgumentInfo
from glassformer.training.settings import SETTINGS, TrainingSettings


class TrainingGroup(OptionGroup):
    """How it is trained: the settings' table, as options; what is left out, the preset decides."""

    HEADING = "Training"

    def __init__(self, **values: Any) -> None:
        self.values = values

    @classmethod
    def options(cls) -> Mapping[str, tuple[Any, ArgumentInfo, Any]]:
        hints = get_type_hints(TrainingSettings)
        options: dict[str, tuple[Any, ArgumentInfo, Any]] = {}
        for name, info in SETTINGS.items():
            about = option(*info.flags, help=info.help, minimum=info.minimum)
            if info.option and hints[name] is bool:
                options[name] = bool, about, False
            elif info.option:
                options[name] = hints[name] | None, about, None
        return options

    def changes(self) -> dict[str, Any]:
        """What was said, by the settings' names."""
        return {name: value for name, value in self.values.items() if value is not None and value is not False}  # 0 is said


@dataclass(frozen=True)
class FineTuningGroup(OptionGroup):
    """How a model of --init is trained further."""

    HEADING = "Fine-tuning (with --init MODEL)"

    chat: Annotated[
        str | None, option(help='Conversations, as JSON lines: {"messages": […]}, or {"prompt": …, "completion": …}.')
    ] = None
    preferences: Annotated[
        str | None, option(help='Pairs of answers, as JSON lines: {"prompt": …, "chosen": …, "rejected": …} (DPO).')
    ] = None
    dpo_beta: Annotated[float | None, option(help="How much a change of log-probability is worth (default: 0.1).")] = None
    epochs: Annotated[float | None, option(help="How often every row is seen, instead of --steps.")] = None
    lora: Annotated[
        int | None, option(help="Train low-rank updates beside the weights, of this rank, such as 8.", minimum=1)
    ] = None
    lora_alpha: Annotated[float | None, option(help="Their scale, times the rank (default: twice the rank).")] = None
    lora_targets: Annotated[
        str | None, option(help="The projections that have one: all-linear (default), or names such as q_proj,v_proj.")
    ] = None
    lora_dropout: Annotated[float | None, option(help="Of what an update reads.")] = None
    merge: Annotated[bool, option(help="Write the updates and the weights as one model, too.")] = False
    no_pack: Annotated[bool, option(help="Give every conversation a window of its own.")] = False

    def lora_fields(self) -> dict[str, Any] | None:
        """The LoRA's settings, by their names; None if there is none."""
        fields = {"alpha": self.lora_alpha, "targets": self.lora_targets, "dropout": self.lora_dropout}
        said = {name: value for name, value in fields.items() if value is not None}
        if self.lora is None and said:
            raise SettingError(f"--lora-{next(iter(said))} is for a LoRA: add its rank, --lora 8.")
        return None if self.lora is None else {"rank": self.lora, **said}

    @property
    def said(self) -> bool:
        """Whether any of them was given."""
        return self != FineTuningGroup()

    def rows_of(self, init: str | None, text: str | None) -> str | None:
        """The file of conversations or preferences that is trained on; None if a text is."""
        data = {"--chat": self.chat, "--preferences": self.preferences, "--text": text}
        kinds = [name for name, value in data.items() if value is not None]
        if len(kinds) > 1:
            raise SettingError(f"{' and '.join(kinds)} are different things to learn from. Give one of them.")
        if self.dpo_beta is not None and self.preferences is None:
            raise SettingError("--dpo-beta is for pairs of answers: give them with --preferences FILE.")
        rows = self.chat if self.preferences is None else self.preferences
        if rows is None and (self.epochs is not None or self.no_pack):
            raise SettingError(f"{'--no-pack' if self.epochs is None else '--epochs'} is for rows: give --chat FILE.")
        if rows is not None and init is None:
            raise SettingError(f"{kinds[0]} trains a model that exists: name it with --init MODEL, such as --init smollm2.")
        return rows
