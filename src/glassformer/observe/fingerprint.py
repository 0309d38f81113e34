"""What a model is, by what it computes, and what of it has changed since something was made with it.

A job goes on, and activations, probes and lenses that were kept are used, only where the model is still the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from glassformer.ground.changes import Change, ComputedChange, change_data, parts_of
from glassformer.ground.errors import SettingError
from glassformer.observe.protocols import ModelLike

DIGESTS = {  # what changed, where the value is a digest that tells a person nothing
    "input": "the input file", "weights": "the model's weights", "config": "the model's config",
    "tokenizer": "the tokenizer", "model settings": "the model's own settings",
}  # fmt: skip


def model_fingerprint(model: ModelLike) -> dict[str, Any]:
    """A model by what it computes, wherever it lies. `executor` too: another one rounds differently."""
    fingerprint: dict[str, Any] = {
        "weights": model.weights_digest,
        "config": json_digest(model.config.to_dict()),
        "tokenizer": _tokenizer_digest(model),
        "model settings": json_digest(model.settings.to_dict()),
        "changes": {site: _change_digest(site, change) for site, change in model.changes.items()},
        "version": str(sys.modules["glassformer"].__version__),
    }
    if model.writes:
        about = model.executor.describe()
        fingerprint |= {"executor": about.name, "dtype": about.dtype, "executor options": dict(about.options)}
    return fingerprint


def differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """What is not as it was, in words."""
    changes = []
    for name in dict.fromkeys((*recorded, *current)):
        then, now = recorded.get(name), current.get(name)
        if then == now:
            continue
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            changes += differences(then, now)
        elif name in DIGESTS:
            changes.append(f"{DIGESTS[name]} is another")
        else:
            changes.append(f"{name} was {_shown(then)} and is {_shown(now)}")
    return changes


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a file holds them; what it cannot hold, by its type."""
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=_name_of))
    return plain


def json_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_name_of).encode()).hexdigest()


def _name_of(value: Any) -> str:
    return str(getattr(value, "name", None) or f"<{type(value).__name__}>")


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _tokenizer_digest(model: ModelLike) -> str:
    tokenizer = model.tokenizer
    return json_digest([tokenizer.backend.to_str(), tokenizer.chat_template])


def _change_digest(site: str, change: Change) -> str:
    if any(isinstance(part, ComputedChange) for part in parts_of(change)):
        raise SettingError(f"what can be resumed has no function at {site}: another one would not be noticed.")
    return json_digest(change_data(change))
