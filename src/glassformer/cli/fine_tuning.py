"""The options of `glass train` for a model that exists: what it learns from, and how much of it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.cli.command import OptionGroup, option
from glassformer.ground.errors import SettingError

if TYPE_CHECKING:
    from glassformer.training.prepared import TrainingRequest


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

    def request(
        self, init: str | None, text: str | None, length: int | None, held_out: float, sample: str, settings: dict[str, Any]
    ) -> TrainingRequest | None:
        """The training of conversations or preferences that is asked for; None if it is of text."""
        from glassformer.training.fine_tuning import ChatTraining, PreferenceRequest

        data = {"--chat": self.chat, "--preferences": self.preferences, "--text": text}
        kinds = [name for name, value in data.items() if value is not None]
        if len(kinds) > 1:
            raise SettingError(f"{' and '.join(kinds)} are different things to learn from. Give one of them.")
        if self.dpo_beta is not None and self.preferences is None:
            raise SettingError("--dpo-beta is for pairs of answers: give them with --preferences FILE.")
        if self.chat is None and self.preferences is None:
            if self.epochs is not None or self.no_pack:
                raise SettingError(
                    f"{'--epochs' if self.epochs is not None else '--no-pack'} is for rows: give --chat FILE."
                )
            return None
        if init is None:
            raise SettingError(f"{kinds[0]} trains a model that exists: name it with --init MODEL, such as --init smollm2.")
        common: dict[str, Any] = {
            "init": init, "length": length, "held_out": held_out, "prompt": sample, "lora": self.lora_fields(),
            "merge": self.merge, "pack": not self.no_pack, "epochs": self.epochs, "settings": settings,
        }  # fmt: skip
        if self.chat is not None:
            return ChatTraining(data=self.chat, **common)
        beta: dict[str, Any] = {} if self.dpo_beta is None else {"beta": self.dpo_beta}
        return PreferenceRequest(data=self.preferences or "", **beta, **common)
