"""What a call or a request steers by, and the changes that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from glassformer.blueprints import Blueprint
from glassformer.changes import Change, in_sequence
from glassformer.errors import SettingError, did_you_mean
from glassformer.steering.library import Library, local_library
from glassformer.steering.vector import SteeringVector, check_strength
from glassformer.typecheck import brief

Steering: TypeAlias = Mapping[Any, Any] | Sequence[Mapping[str, Any]]
FIELDS = ("name", "strength")
MAX_STEERED = 64  # vectors and features of one call


def steering_changes(
    steer: Steering, library: Library | None, blueprint: Blueprint, model: str, digest: Callable[[], str]
) -> dict[str, Change]:
    """The changes by site; several at one site are applied in the order given."""
    library = library or local_library()
    changes: dict[str, Change] = {}
    for entry in steering_entries(steer):
        vector = entry["vector"] or library.vector(entry["name"])
        if vector.weights is not None:
            vector.check_weights(model, digest())
        for site, change in vector.changes(entry["strength"], blueprint, model).items():
            changes[site] = in_sequence(changes.get(site), change)
    return changes


def steering_entries(steer: Steering) -> list[dict[str, Any]]:
    """What is steered by, each with a name and a checked strength."""
    if isinstance(steer, Mapping) and not set(steer) & set(FIELDS):
        steer = [{"name": name, "strength": strength} for name, strength in steer.items()]
    elif isinstance(steer, Mapping):
        steer = [steer]
    if isinstance(steer, (str, bytes)) or not isinstance(steer, Sequence):
        raise SettingError(
            f"steering maps names to strengths, such as {{'formal': 4.0}}, or lists them; not {brief(steer)}."
        )
    if len(steer) > MAX_STEERED:
        raise SettingError(f"{len(steer)} steering vectors are too many at once: {MAX_STEERED} at most.")
    return [_checked_entry(entry) for entry in steer]


def _checked_entry(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise SettingError(f"each steering vector has a name and a strength, such as {{'name': 'formal', 'strength': 4.0}}; "
                           f"not {brief(entry)}.")  # fmt: skip
    if unknown := [name for name in entry if name not in FIELDS]:
        raise SettingError(f"steering has no field {unknown[0]!r}.{did_you_mean(str(unknown[0]), FIELDS)}")
    name = entry.get("name")
    vector = name if isinstance(name, SteeringVector) else getattr(name, "vector", None)  # one that was just made
    if not isinstance(vector, SteeringVector) and not (isinstance(name, str) and name):
        raise SettingError(f"a steering vector's name is a text, not {brief(name)}.")
    label = name if isinstance(name, str) else "the vector"
    return {"name": label, "vector": vector, "strength": check_strength(entry.get("strength", 1.0), label)}
