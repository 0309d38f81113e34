"""The receipt of a run: everything that is needed to write the same text again, and to notice when it is not the same.

    run.save("run.json")  ·  glass run --replay run.json

It holds the prompt as the model saw it and its ids, the settings and where each came from, the seed and the draws, a hash of
the weights, versions, and the executor; and what came out. A replay feeds the same ids under the same settings, and compares
token by token. It runs nothing that a file says: only known settings are read, and what was a function cannot be replayed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.engine.protocol import alike
from glassformer.errors import InputError
from glassformer.observe.protocols import ModelLike, RunLike
from glassformer.sites import Change
from glassformer.text.pieces import shown_bytes
from glassformer.views.receipt import SCHEMA, Receipt, ReceiptStep, Replay, SettingValue
from glassformer.views.view import plain_data

BLOCK = 1 << 22


def receipt(run: RunLike) -> Receipt:
    model, tokenizer = run.model, run.model.tokenizer
    about = model.executor.describe()
    steps = (
        ReceiptStep(step.id, shown_bytes(tokenizer.token_bytes(step.id)), step.draw, step.logprob) for step in run.steps
    )
    path = getattr(model.opened, "path", None)
    return Receipt(
        model.name,
        None if path is None else str(path),
        weight_hash(model),
        _versions(),
        {one.name: plain_data(getattr(about, one.name)) for one in fields(about)},
        run.prompt,
        run.ids,
        {name: SettingValue(_told(value), where) for name, (value, where) in run.settings.in_force.items()},
        run.seed,
        run.negative,
        {site: _written(change) for site, change in model.changes.items()},
        run.text,
        tuple(steps),
        run.finish.value if run.finish else None,
        run.stop,
    )


def weight_hash(model: ModelLike) -> str | None:
    """The SHA-256 of the files that hold a model's weights, in the order of their names."""
    tensors = getattr(model.opened, "tensors", None)
    if tensors is None:
        return None
    total = hashlib.sha256()
    for path in sorted({one.file.path for one in tensors.values()}):
        with Path(path).open("rb") as file:
            while block := file.read(BLOCK):
                total.update(block)
    return total.hexdigest()


def _versions() -> dict[str, str]:
    ours: Any = sys.modules["glassformer"]
    found = {"glassformer": str(ours.__version__), "python": platform.python_version(), "numpy": np.__version__}
    torch: Any = sys.modules.get("torch")
    return found if torch is None else {**found, "torch": str(torch.__version__)}


def _told(value: Any) -> Any:
    """A setting's value as JSON can hold it; what it cannot hold, as it prints."""
    try:
        json.dumps(value)
    except TypeError:
        return repr(value)
    return value


def _written(change: Change) -> dict[str, Any]:
    shift = None if change.shift is None else np.asarray(change.shift, np.float32).tolist()
    positions, heads = (None if one is None else sorted(one) for one in (change.positions, change.heads))
    return {"scale": change.scale, "shift": shift, "positions": positions, "heads": heads}


def read_receipt(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A receipt from a file, checked: its schema, and the kinds of what a replay needs."""
    name = Path(path).name
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{name} is no receipt that can be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise InputError(f"{name} is no receipt that can be read: it is not JSON ({error}).") from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        said = f"it is {schema!r}" if isinstance(schema, str) else "it has no schema"
        raise InputError(f"{name} is no receipt of a run: {said}, not {SCHEMA!r}. Write one with run.save(…) or --save.")
    kinds = {
        "model": str, "prompt": str, "prompt_ids": list, "settings": dict, "steps": list, "changes": dict, "executor": dict,
    }  # fmt: skip
    for field, kind in kinds.items():
        if not isinstance(found.get(field), kind):
            raise InputError(f"{name} is damaged: its {field} is not there, or not what it should be. Write it again.")
    if not all(isinstance(one, int) for one in found["prompt_ids"]) or not all(_is_step(one) for one in found["steps"]):
        raise InputError(f"{name} is damaged: its ids are not numbers. Write it again.")
    return dict(found)


def _is_step(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("id"), int)


def options_of(found: Mapping[str, Any]) -> dict[str, str]:
    """What a receipt's executor was asked for; nothing, where that is not there or not what it should be."""
    executor = found.get("executor")
    options = executor.get("options") if isinstance(executor, Mapping) else None
    return {name: str(kind) for name, kind in options.items()} if isinstance(options, Mapping) else {}


def check_weights(found: Mapping[str, Any], model: ModelLike) -> None:
    """Refuse a receipt that was written with other weights."""
    own = weight_hash(model)
    if found.get("weights") != own:
        raise InputError(
            f"this receipt was written with other weights of {found['model']} "
            f"({str(found.get('weights'))[:12]}…, here {str(own)[:12]}…). Fetch those, or compare: glass compare --other."
        )


def settings_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a receipt, as a call would give them."""
    given: dict[str, Any] = {}
    for name, was in found["settings"].items():
        if name in ("negative_prompt", "negative_prompt_ids"):  # told as ids
            continue
        if not isinstance(was, dict) or "value" not in was:
            raise InputError(f"the receipt is damaged: its setting {name} has no value. Write it again.")
        value = was["value"]
        if isinstance(value, str) and value.startswith("<"):
            raise InputError(f"this receipt cannot be replayed: {name} was {value}, which no file can hold.")
        given[name] = value
    if found.get("negative_ids") is not None:
        given["negative_prompt_ids"] = found["negative_ids"]
    if found.get("seed") is not None:
        given["seed"] = found["seed"]
    return given


def changes_of(found: Mapping[str, Any]) -> dict[str, Change]:
    """What was changed inside the model."""
    changes = {}
    for site, one in found["changes"].items():
        try:
            shift = None if one["shift"] is None else np.asarray(one["shift"], np.float32)
            changes[site] = Change(one["scale"], shift, one["positions"], one["heads"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the receipt's change at {site} is damaged: {error}.") from error
    return changes


def compare_with_receipt(found: Mapping[str, Any], run: RunLike) -> Replay:
    """A receipt, and the run that was to be the same."""
    was, now = [one["id"] for one in found["steps"]], [step.id for step in run.steps]
    step = None if was == now else alike(was, now)
    tokenizer = run.model.tokenizer
    texts: list[str | None] = [None, None]
    logs: list[float | None] = [None, None]
    if step is not None:
        if step < len(was):
            texts[0], logs[0] = shown_bytes(tokenizer.token_bytes(was[step])), found["steps"][step].get("logprob")
        if step < len(now):
            texts[1], logs[1] = shown_bytes(tokenizer.token_bytes(now[step])), run.steps[step].logprob
    return Replay(step is None, step, texts[0], texts[1], (logs[0], logs[1]), _circumstances(found, run), run.text)


def _circumstances(found: Mapping[str, Any], run: RunLike) -> tuple[str, ...]:
    """What is not as it was: versions, and the executor."""
    about = run.model.executor.describe()
    now = {**_versions(), "executor": about.name, "weights in": about.dtype, "options": _listed(about.options),
           "notes": " · ".join(about.notes)}  # fmt: skip
    executor = found.get("executor") or {}
    was = {**(found.get("versions") or {}), "executor": executor.get("name"), "weights in": executor.get("dtype"),
           "options": _listed(options_of(found)), "notes": " · ".join(executor.get("notes") or ())}  # fmt: skip
    told = [f"{name}: {was[name]} then, {now[name]} now" for name in now if name in was and was[name] != now[name]]
    same = [one["id"] for one in found["steps"]] == [step.id for step in run.steps]
    if same and found.get("text") != run.text:
        told.append("its text is not what its tokens say: somebody changed it")
    if same and any(one.get("draw") != step.draw for one, step in zip(found["steps"], run.steps, strict=True)):
        told.append("its draws are not those of its seed: somebody changed them")
    return tuple(told)


def _listed(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name} in {kind}" for name, kind in options.items()) or "none"
