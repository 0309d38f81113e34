"""The field `glass` of a request: what each token's choice was made of, what went on inside, and what is changed there.

A client that does not know the field sees nothing of it, and who does not ask pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from glassformer.decoding import Step
from glassformer.ground.changes import Change, change_from_data
from glassformer.ground.errors import NotNumbers, SettingError
from glassformer.ground.sites import Watch
from glassformer.runtime.model import Model
from glassformer.runtime.run import Run
from glassformer.see.why import why
from glassformer.serving.limits import Limits
from glassformer.text import Tokenizer
from glassformer.text.streaming import shown_bytes

DEFAULT_CANDIDATES = 10  # of a waterfall, where a request does not say


class SiteChange(BaseModel):
    """value · scale + shift, at some positions, heads and neurons; or a projection, or bounds."""

    model_config = ConfigDict(extra="forbid")

    scale: float | list[Any] = 1.0
    shift: float | list[Any] | None = None
    positions: list[int] | None = None  # negative ones count from the end of what was read
    heads: list[int] | None = None
    neurons: list[int] | None = None  # of the last axis
    onto: list[float] | None = None  # a direction: what is along it is left
    away_from: list[float] | None = None  # a direction: what is along it is taken away
    minimum: float | None = None
    maximum: float | None = None

    def change(self, site: str) -> Change:
        data = self.model_dump(exclude_none=True)
        for name in ("scale", "shift", "onto", "away_from"):
            try:
                with np.errstate(over="ignore"):  # to infinity
                    finite = bool(np.isfinite(np.asarray(data.get(name, 0.0), np.float32)).all())
            except (TypeError, ValueError, OverflowError):
                finite = False
            if not finite:
                raise SettingError(f"the {name} at {site} is no array of finite numbers that float32 has.")
        return change_from_data(data)


def site_changes(changes: Mapping[str, SiteChange]) -> dict[str, Change]:
    """A request's changes, by site."""
    return {site: change.change(site) for site, change in changes.items()}


class Steer(BaseModel):
    """A steering vector of this server, or a feature of one of its autoencoders, and how many times it is added.

    A feature, AUTOENCODER/NUMBER, can be clamped to a value instead.
    """

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    feature: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    strength: float | None = None
    clamp: float | None = None


Steering: TypeAlias = Steer | Annotated[list[Steer], Field(max_length=16)]


@contextmanager
def blamed_on(changes: Mapping[str, Any]) -> Iterator[None]:
    """Numbers that are none are the doing of a request's own changes, if it has any: then they are its own mistake."""
    try:
        yield
    except NotNumbers as error:
        if not changes:
            raise
        raise SettingError(f"{error} This request changes {', '.join(changes)}: change less there.") from error


def changed_model(model: Model, change: Mapping[str, SiteChange], steer: Steering) -> Model:
    """A model with a request's changes, and then steered."""
    model = model.changed(site_changes(change)) if change else model
    entries = [entry.model_dump(exclude_none=True) for entry in (steer if isinstance(steer, list) else [steer])]
    return model.steered(entries) if entries else model


class Inspection(BaseModel):
    """What a request wants to see of its texts, or to change inside the model for them alone."""

    model_config = ConfigDict(extra="forbid")

    candidates: Annotated[int, Field(ge=0)] = 0  # how many of the model's best, for each token
    waterfall: bool = False  # what each rule did to them
    sites: list[str] = []  # what is read there for each token: at the position that predicted it
    change: dict[str, SiteChange] = {}  # by site
    steer: Steering = []  # by what it is steered, after these changes
    receipt: bool = False  # all that is needed to write the text again

    @property
    def depth(self) -> int:
        """The candidates of which something is to be said."""
        return self.candidates or (DEFAULT_CANDIDATES if self.waterfall else 0)

    def check(self, limits: Limits) -> None:
        """Refuse more than a server allows."""
        if self.depth > limits.top_logprobs:
            raise SettingError(f"glass.candidates is {self.candidates}; this server allows {limits.top_logprobs} at most.")

    def changed(self, model: Model) -> Model:
        """The model with this request's changes."""
        return changed_model(model, self.change, self.steer)

    def watch(self, model: Model, limits: Limits) -> Watch | None:
        """What is read and changed in the passes of a changed model's texts."""
        blueprint = model.blueprint
        reads = Watch.parse(self.sites, blueprint.site_names).reads
        if len(reads) > limits.sites:
            raise SettingError(f"glass.sites are {len(reads)} sites; this server allows {limits.sites} at most.")
        return Watch(reads, model.changes) if reads or model.changes else None

    def steps_data(self, tokenizer: Tokenizer, steps: Sequence[Step], first: int = 0) -> list[dict[str, Any]]:
        """What there is to see of some steps, of which the first has this number in its text."""
        return [self._step_data(tokenizer, step, index) for index, step in enumerate(steps, first)]

    def _step_data(self, tokenizer: Tokenizer, step: Step, index: int) -> dict[str, Any]:
        data: dict[str, Any] = {"id": step.id, "token": shown_bytes(tokenizer.token_bytes(step.id))}
        if step.candidates is not None and self.depth:
            data["logprob"], data["entropy"] = step.logprob, step.entropy
            candidates = step.candidates
            data["candidates"] = [
                {"id": token, "token": shown_bytes(tokenizer.token_bytes(token)), "score": score, "probability": share}
                for token, score, share in zip(
                    candidates.ids.tolist(), candidates.scores.tolist(), candidates.probabilities.tolist(), strict=True
                )
            ]
        if self.waterfall and step.waterfall is not None:
            data["waterfall"] = why(tokenizer, step, index).to_dict()
        if step.sites:
            data["sites"] = {site: _array_data(value) for site, value in step.sites.items()}
        return data

    def end_data(self, run: Run) -> dict[str, Any]:
        """What there is to see of a text that is over."""
        return {"receipt": served_receipt(run)} if self.receipt else {}


def served_receipt(run: Run) -> dict[str, Any]:
    """A run's receipt without what is the server's own: where the model lies on its disk."""
    return {**run.receipt.to_dict(), "path": None}


def _array_data(value: Any) -> dict[str, Any]:
    array = np.asarray(value, np.float32)
    return {"shape": list(array.shape), "values": [_json_number(number) for number in array.ravel().tolist()]}


def _json_number(number: float) -> float | None:
    """JSON has no NaN and no infinities."""
    return number if np.isfinite(number) else None
