"""Legs of a journey: how long each part of the way took, what it weighs, and how much it gives to the next.

A part is what can be timed: before the blocks of a stack, the blocks, and what comes behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from glassformer.observe.clock import CHOSEN, READ, SCORED, WRITTEN
from glassformer.observe.stages import Stage

AROUND = ("text", "pair", "ids", "start", "sites", "pooled", "next scores", "best id", "next text")


@dataclass(frozen=True)
class Leg:
    """A part of the way."""

    name: str
    seconds: float | None  # None: not known
    parameters: int = 0
    stored: int | None = 0  # bytes of these as their file has them; None: not known
    bytes: int = 0  # of what it gives to the next
    each: tuple[float, ...] = ()  # the seconds of every block


def legs(way: Sequence[Stage], seconds: Mapping[str, float]) -> tuple[Leg, ...]:
    """The legs of a journey's stages; `seconds` by what a clock noted."""
    sizes = {stage.name: stage.bytes for stage in way}
    inside = [stage for stage in way if stage.name not in AROUND]
    both = any(stage.stack for stage in inside)
    found = [Leg("text to ids", seconds.get(READ), bytes=sizes.get("ids", 0))]
    for stack in dict.fromkeys(stage.stack for stage in inside):
        found += _stack([stage for stage in inside if stage.stack == stack], stack, both, seconds)
    if (given := sizes.get("next scores", sizes.get("pooled"))) is not None:
        found[-1] = replace(found[-1], bytes=given)  # the last token's are all that is computed
    if "next scores" in sizes:
        found.append(Leg("choosing", seconds.get(CHOSEN), bytes=sizes["best id"]))
        found.append(Leg("id to text", seconds.get(WRITTEN)))
    elif CHOSEN in seconds:
        found.append(Leg("finding the answer", seconds[CHOSEN]))
    return tuple(found)


def _stack(own: Sequence[Stage], stack: str, both: bool, seconds: Mapping[str, float]) -> list[Leg]:
    """The legs of a model, or of one side of an encoder-decoder."""
    places = [number for number, stage in enumerate(own) if stage.blocks]
    before, blocks, behind = own[: places[0]], own[places[0] : places[-1] + 1], own[places[-1] + 1 :]
    side = ("source ", "encoder ") if stack else ("target ", "decoder ") if both else ("", "")
    found = [
        _leg(f"{side[0]}embedding", before, seconds.get(f"{stack}embedding")),
        _blocks(side[1], stack, blocks, seconds),
    ]
    ends = _sum(seconds.get(name) for name in ([f"{stack}final"] if stack else ["final", SCORED]))
    normed = any(stage.parameters for stage in behind if stage.name.endswith("final"))
    if any(stage.name == "scores" for stage in behind):
        return [*found, _leg("norm and head" if normed else "head", behind, ends)]
    if any(stage.parameters for stage in behind):
        return [*found, _leg(f"{side[1]}norm" if normed else "pooler", behind, ends)]
    return [found[0], replace(found[1], seconds=_sum([found[1].seconds, ends]))]  # nothing is done there


def _blocks(side: str, stack: str, stages: Sequence[Stage], seconds: Mapping[str, float]) -> Leg:
    count = max(stage.blocks[1] for stage in stages if stage.blocks) + 1
    each = [seconds.get(f"{stack}blocks.{number}.residual") for number in range(count)]
    made = _leg(f"{side}blocks 0–{count - 1}" if count > 1 else f"{side}block 0", stages, _sum(each))
    return replace(made, each=() if None in each else tuple(one for one in each if one is not None))


def _leg(name: str, stages: Sequence[Stage], seconds: float | None) -> Leg:
    times = [stage.blocks[1] - stage.blocks[0] + 1 if stage.blocks else 1 for stage in stages]
    stored = _sum(stage.stored and stage.stored * count for stage, count in zip(stages, times, strict=True))
    parameters = sum(stage.parameters * count for stage, count in zip(stages, times, strict=True))
    values = [stage.bytes for stage in stages if stage.dtype]
    return Leg(name, seconds, parameters, None if stored is None else int(stored), values[-1] if values else 0)


def _sum(numbers: Iterable[float | None]) -> float | None:
    """None where one of them is not known."""
    found = list(numbers)
    return None if None in found else sum(one for one in found if one is not None)
