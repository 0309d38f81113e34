"""What a call or a request steers by, and the changes that follow from it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from glassformer.blueprints import Blueprint
from glassformer.features.dictionary import FeatureDictionary
from glassformer.features.files import feature_of
from glassformer.ground.changes import Change, in_sequence
from glassformer.ground.errors import InputError, SettingError, did_you_mean
from glassformer.ground.sites import expand_changes
from glassformer.ground.typecheck import brief
from glassformer.steering.library import Library
from glassformer.steering.vector import SteeringVector, check_strength, token_site

Steering: TypeAlias = Mapping[Any, Any] | Sequence[Mapping[str, Any]]
FIELDS = ("name", "feature", "strength", "clamp")
MAX_STEERED = 64  # vectors and features of one call


def steering_changes(
    steer: Steering, library: Library, blueprint: Blueprint, model: str, digest: Callable[[], str]
) -> dict[str, Change]:
    """The changes by site; several at one site are applied in the order given."""
    changes: dict[str, Change] = {}
    for entry in steering_entries(steer):
        for site, change in _entry_changes(entry, library, blueprint, model, digest).items():
            changes[site] = in_sequence(changes.get(site), change)
    return dict(expand_changes(changes, blueprint.site_names))


def _entry_changes(
    entry: Mapping[str, Any], library: Library, blueprint: Blueprint, model: str, digest: Callable[[], str]
) -> Mapping[str, Change]:
    if entry["feature"] is None:
        vector = entry["vector"] or library.vector(entry["name"])
        if vector.weights is not None:
            vector.check_weights(model, digest())
        return vector.changes(entry["strength"], blueprint, model)
    name, feature = feature_of(entry["feature"])
    dictionary = library.dictionary(name)
    check_dictionary(dictionary, blueprint, model)
    if entry["clamp"] is not None:
        return dictionary.clamp({feature: entry["clamp"]})
    site = dictionary.site_out
    direction = dictionary.direction(dictionary.check_feature(feature)).reshape(token_site(blueprint, site, model)[1])
    return SteeringVector({site: direction}).changes(entry["strength"], blueprint, model)


def check_dictionary(dictionary: FeatureDictionary, blueprint: Blueprint, model: str) -> None:
    """Refuse a dictionary whose sites the model lacks, or has in another width."""
    for site, width in ((dictionary.site, dictionary.encoder.shape[0]), (dictionary.site_out, dictionary.decoder.shape[1])):
        _, shape = token_site(blueprint, site, model)
        if math.prod(shape) != width:
            raise InputError(
                f"{dictionary.name} is for {width} numbers at {site}, where {model} has {math.prod(shape)}. It is another "
                "model's, or another site's."
            )


def steering_entries(steer: Steering) -> list[dict[str, Any]]:
    """What is steered by, each with a name and a checked strength."""
    if isinstance(steer, Mapping) and not set(steer) & set(FIELDS):
        steer = [steering_entry(name, strength=strength) for name, strength in steer.items()]
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
    if (feature := entry.get("feature")) is not None:
        return _feature_entry(entry, feature)
    if entry.get("clamp") is not None:
        raise SettingError("a clamp is for a feature. A steering vector has a strength.")
    name = entry.get("name")
    vector = name if isinstance(name, SteeringVector) else getattr(name, "vector", None)  # one that was just made
    if not isinstance(vector, SteeringVector) and not (isinstance(name, str) and name):
        raise SettingError(f"a steering vector's name is a text, not {brief(name)}.")
    label = name if isinstance(name, str) else "the vector"
    return {"name": label, "vector": vector, "feature": None, "strength": check_strength(entry.get("strength", 1.0), label)}


def steering_entry(name: Any, **how: Any) -> dict[str, Any]:
    """An entry for a name, where DICTIONARY/NUMBER is a feature; `how`: its strength, or the value to clamp it to."""
    is_feature = "clamp" in how or (isinstance(name, str) and re.search(r"[^/]/\d+$", name) is not None)
    return {"feature" if is_feature else "name": name, **how}


def entry_name(entry: Mapping[str, Any]) -> str:
    """The name of the vector or feature of an entry."""
    return str(entry.get("name") or entry["feature"])


def describe_entry(entry: Mapping[str, Any]) -> str:
    """What an entry steers by, and how much.

    >>> describe_entry({"name": "formal", "strength": 4.0}), describe_entry({"feature": "resid-8/123", "clamp": 0.0})
    ('formal × 4', 'resid-8/123 held at 0')
    """
    held = entry.get("clamp") is not None
    return f"{entry_name(entry)} {'held at' if held else '×'} {entry['clamp' if held else 'strength']:g}"


def _feature_entry(entry: Mapping[str, Any], feature: Any) -> dict[str, Any]:
    if not isinstance(feature, str):
        raise SettingError(f"a feature is named DICTIONARY/NUMBER, such as 'resid-8/123', not {brief(feature)}.")
    if entry.get("name") is not None:
        raise SettingError("steer by a name or by a feature, each in an entry of its own.")
    clamp, strength = entry.get("clamp"), entry.get("strength")
    if (clamp is None) == (strength is None):
        raise SettingError(f"the feature {feature!r} needs a strength, or a value to clamp it to; one of the two.")
    value = check_strength(strength if clamp is None else clamp, feature)
    return {"name": feature, "vector": None, "feature": feature} | (
        {"strength": value, "clamp": None} if clamp is None else {"strength": None, "clamp": value}
    )
