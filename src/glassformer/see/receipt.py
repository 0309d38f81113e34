"""The receipt of a run: everything that is needed to write the same text again, and to notice when it is not the same.

    run.save("run.json")  ·  glass run --replay run.json

It holds the prompt as the model saw it and its ids, the settings and where each came from, the seed and the draws, a hash of
the weights, versions, the executor, and the output. A replay feeds the same ids under the same settings, and compares token
by token. Nothing in a file is executed: only known settings are read, and what was a function cannot be replayed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from glassformer.checkpoint.content_digest import stored_files
from glassformer.checkpoint.stored_tensors import MappedFile
from glassformer.decoding.settings import json_value
from glassformer.decoding.stopping import Finish
from glassformer.engine.protocol import common_prefix, option_texts
from glassformer.ground.changes import Change, change_data, change_from_data
from glassformer.ground.errors import InputError, InputTypeError, SiteError, reason_of, shortened
from glassformer.ground.operations import operation
from glassformer.ground.typecheck import brief, matches_type
from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Preformatted, Table, TableRow, elide_middle
from glassformer.page.format import visible
from glassformer.see.journey.view import shown_prompt
from glassformer.see.protocols import ModelLike, RunLike
from glassformer.see.tokens import token_text
from glassformer.see.view import View, plain_data

SCHEMA = "glassformer.run/1"
MAX_TOKENS = 64  # unless everything is shown


@dataclass(frozen=True)
class ReceiptStep:
    """One chosen token."""

    id: int
    text: str
    draw: float | None
    logprob: float | None


@dataclass(frozen=True)
class SettingValue:
    """A setting in force, and its origin."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Receipt(View):
    """Everything that is needed to write a run's text again."""

    SCHEMA = SCHEMA

    model: str
    path: str | None  # of its weights
    weights: str | None  # their SHA-256; None for a model built in memory
    versions: Mapping[str, str]
    executor: Mapping[str, Any]
    prompt: str  # as the model saw it
    prompt_ids: tuple[int, ...]
    settings: Mapping[str, SettingValue]
    seed: int | None
    negative_ids: tuple[int, ...] | None  # of guidance's negative prompt
    changes: Mapping[str, Any]  # changes inside the model, by site
    text: str
    steps: tuple[ReceiptStep, ...]
    finish: str | None
    stop: str | None
    adapters: Mapping[str, float] = field(default_factory=dict)  # on top of the model, by name, with a weight each

    def page(self, everything: bool = False) -> Page:
        about = {
            "model": self.model,
            "path": self.path or "",
            "adapters": ", ".join(f"{name} × {weight:g}" for name, weight in self.adapters.items()),
            "weights": f"sha256 {self.weights}" if self.weights else "in memory",
            "executor": ", ".join(str(self.executor.get(name, "")) for name in ("name", "dtype")),
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            "seed": "" if self.seed is None else str(self.seed),
            "ended": self.finish or "",
            "changed": ", ".join(self.changes),
        }
        rows = tuple(TableRow((name, value)) for name, value in about.items() if value)
        settings = tuple(TableRow((name, str(setting.value), setting.origin)) for name, setting in self.settings.items())
        tokens = [
            TableRow((str(index), str(step.id), visible(step.text), "" if step.draw is None else f"{step.draw:.6f}"))
            for index, step in enumerate(self.steps)
        ]
        columns = (
            Column("", "number"),
            Column("id", "number"),
            Column("token", "token", min_width=8),
            Column("draw", "number"),
        )
        parts: list[PagePart] = [
            Heading("what it was made with"),
            Table((Column(), Column(min_width=20)), rows),
            Heading("settings, and where each came from"),
            Table((Column("setting"), Column("value", min_width=12), Column("from")), settings),
            Heading("the prompt, as the model saw it"),
            Preformatted(shown_prompt(self.prompt, everything)),
            Heading("the text"),
            Paragraph(self.text),
            Table(columns, tuple(tokens) if everything else elide_middle(tokens, MAX_TOKENS)),
        ]
        return Page(f"{self.model}: receipt", tuple(parts))

    def __repr__(self) -> str:
        return f"Receipt({self.model}: {len(self.steps)} tokens)"


@dataclass(frozen=True)
class Replay(View):
    """The result of replaying a receipt."""

    SCHEMA = "glassformer.replay/1"

    identical: bool  # whether every token is the same
    step: int | None  # the first that differs
    was: str | None  # the token in the receipt; None: the text had ended
    now: str | None  # the token in the replay; None: the text had ended
    logprobs: tuple[float | None, float | None]  # of the two tokens, each in its own run
    differences: tuple[str, ...]  # of versions and executor
    text: str

    def page(self, everything: bool = False) -> Page:
        parts: list[PagePart] = []
        if self.identical:
            parts.append(Paragraph("identical: every token is the same", "chosen"))
        else:
            was = "the end" if self.was is None else visible(self.was)
            now = "the end" if self.now is None else visible(self.now)
            parts.append(Paragraph(f"not identical: at token {self.step} there was {was}, now it is {now}", "strong"))
            before, after = ("–" if value is None else f"{value:.4f}" for value in self.logprobs)
            parts.append(Paragraph(f"their log-probabilities: {before} then, {after} now", "dim"))
        parts += [Paragraph(difference, "dim") for difference in self.differences]
        return Page("replay", tuple(parts))

    def __repr__(self) -> str:
        return "Replay(identical)" if self.identical else f"Replay(differs from token {self.step} on)"


BLOCK = 1 << 22


@operation(is_property=True)
def receipt(run: RunLike) -> Receipt:
    """Everything that is needed to write this text again, and to notice when it is not the same."""
    model, tokenizer = run.model, run.model.tokenizer
    about = model.executor.describe()
    steps = (ReceiptStep(step.id, token_text(tokenizer, step.id), step.draw, step.logprob) for step in run.steps)
    path = getattr(model.opened, "path", None)
    return Receipt(
        model.name,
        None if path is None else str(path),
        weight_hash(model),
        _versions(),
        {field.name: plain_data(getattr(about, field.name)) for field in fields(about)},
        run.prompt,
        run.prompt_ids,
        {name: SettingValue(json_value(value), origin) for name, (value, origin) in run.settings.in_force.items()},
        run.seed,
        run.negative,
        {site: change_data(change) for site, change in model.changes.items()},
        run.text,
        tuple(steps),
        run.finish.value if run.finish else None,
        run.stop,
        getattr(model.opened, "added_adapters", {}),
    )


def weight_hash(model: ModelLike) -> str | None:
    """The SHA-256 of the files that hold a model's weights, by their names, and of what is computed from them."""
    tensors = getattr(model.opened, "tensors", None)
    if tensors is None:
        return None
    digest = hashlib.sha256()
    stored, recipes = stored_files(tensor.file for tensor in tensors.values())
    files = {path: file.mapped or MappedFile(path) for path, file in stored.items()}
    for path in sorted(files):  # as they were mapped: another file may have taken a name since
        files[path].check()
        for start in range(0, len(files[path]), BLOCK):
            digest.update(files[path].read(start, BLOCK))
    for recipe in recipes:
        digest.update(recipe.encode())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    package: Any = sys.modules["glassformer"]
    versions = {"glassformer": str(package.__version__), "python": platform.python_version(), "numpy": np.__version__}
    torch: Any = sys.modules.get("torch")
    return versions if torch is None else {**versions, "torch": str(torch.__version__)}


def read_receipt(path: str | os.PathLike[str] | Mapping[str, Any] | Receipt) -> dict[str, Any]:
    """A receipt's data, checked: from a file, or as they are."""
    if isinstance(path, Receipt | Mapping):
        return check_receipt(path.to_dict() if isinstance(path, Receipt) else path, "this")
    if not isinstance(path, (str, os.PathLike)):
        raise InputTypeError(f"a receipt is a file's path, what it holds, or a run, not {brief(path)}.")
    name = Path(path).name
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{name} is no receipt that can be read: {error.strerror or error}.") from error
    except UnicodeError as error:  # in the file, or in its name
        raise InputError(f"{name!r} is no receipt that can be read: it is not text ({reason_of(error)}).") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is no receipt that can be read: it is not JSON ({reason_of(error)}).") from error
    return check_receipt(data, name)


def check_receipt(data: Any, name: str) -> dict[str, Any]:
    """A receipt's data, checked: its schema, and the types of all that it holds."""
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if schema != SCHEMA:
        reason = f"it is {brief(schema)}" if isinstance(schema, str) else "it has no schema"
        raise InputError(f"{name} is no receipt of a run: {reason}, not {SCHEMA!r}. Write one with run.save(…) or --save.")
    if (field := misfit(data, Receipt)) is not None:
        raise InputError(f"{name} is damaged: its {shortened(field, 100)} is missing, or of the wrong type. Write it again.")
    if data["finish"] not in (None, *(finish.value for finish in Finish)):
        raise InputError(f"{name} is damaged: its finish is {brief(data['finish'])}. Write it again.")
    if not data["steps"] or not data["prompt_ids"]:
        raise InputError(f"{name} holds no tokens, so there is nothing to replay.")
    return dict(data)


def misfit(value: Any, hint: Any, where: str = "") -> str | None:
    """Where JSON data first differs from a type, a dataclass perhaps; None where it fits."""
    origin, arguments = get_origin(hint), get_args(hint)
    inner: Iterable[tuple[Any, Any, str]] = ()
    if is_dataclass(hint):
        types = get_type_hints(hint)
        if not isinstance(value, Mapping):
            return where or "content"
        dot = f"{where}." if where else ""
        present = [field for field in fields(hint) if field.name in value or field.default_factory is MISSING]
        inner = [(value.get(field.name, ...), types[field.name], f"{dot}{field.name}") for field in present]
    elif origin is tuple and isinstance(value, (list, tuple)):
        inner = [(item, arguments[0], f"{where}[{index}]") for index, item in enumerate(value)]
    elif origin is Mapping and isinstance(value, Mapping):
        inner = [(item, arguments[1], f"{where}.{key}") for key, item in value.items()]
    elif value is ... or not matches_type(value, hint):
        return where
    return next((place for item in inner if (place := misfit(*item)) is not None), None)


def broken_off(data: Mapping[str, Any]) -> Finish | None:
    """Why a text ended where it did not end by itself; an interrupt leaves no reason."""
    finish = Finish.CANCELLED if data["finish"] is None else Finish(data["finish"])
    return finish if finish in (Finish.CANCELLED, Finish.TIME) else None


def executor_options(data: Mapping[str, Any]) -> dict[str, str]:
    """The options of a receipt's executor; none, where they are missing or of the wrong type."""
    executor = data.get("executor")
    options = executor.get("options") if isinstance(executor, Mapping) else None
    return {name: str(kind) for name, kind in options.items()} if isinstance(options, Mapping) else {}


def adapter_arguments(data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `load` that give a receipt's adapters."""
    return {"adapter": data["adapters"]} if data.get("adapters") else {}


def executor_arguments(data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `load` that give a receipt's executor."""
    name, dtype = data["executor"].get("name"), data["executor"].get("dtype")
    options = executor_options(data)
    ranks = options.get("tensor_parallel", "")
    split = {"tensor_parallel": int(ranks)} if ranks.isdecimal() else {}
    if name == "plain":
        return {"executor": "plain", **({"dtype": dtype} if isinstance(dtype, str) else {}), **split}
    engine = "gpu" if name == "gpu" else "cpu"
    arguments: dict[str, Any] = {name: kind for name, kind in options.items() if name in ("cache", "activations")}
    invariance = {"batch_invariant": False} if "batch_invariant" in options else {}
    return {"executor": engine, **arguments, **invariance, **split}


def check_weights(data: Mapping[str, Any], model: ModelLike) -> None:
    """Refuse a receipt that was written with other weights."""
    digest = weight_hash(model)
    if data.get("weights") != digest:
        raise InputError(
            f"this receipt was written with other weights of {shortened(data['model'], 200)} "
            f"({str(data.get('weights'))[:12]}…, here {str(digest)[:12]}…). Fetch those, or compare: glass compare --other."
        )


def receipt_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a receipt, as keywords of a call."""
    settings: dict[str, Any] = {}
    for name, entry in data["settings"].items():
        if name in ("negative_prompt", "negative_prompt_ids", "max_time"):  # see negative_ids and broken_off
            continue
        value = entry["value"]
        if isinstance(value, str) and value.startswith("<"):
            raise InputError(f"this receipt cannot be replayed: {name} was {shortened(value, 200)}, which no file can hold.")
        settings[name] = value
    if data.get("negative_ids") is not None:
        settings["negative_prompt_ids"] = data["negative_ids"]
    if data.get("seed") is not None:
        settings["seed"] = data["seed"]
    return settings


def receipt_changes(data: Mapping[str, Any]) -> dict[str, Change]:
    """What was changed inside the model."""
    changes = {}
    for site, entry in data["changes"].items():
        sequence = entry.get("sequence") if isinstance(entry, Mapping) else None
        parts = sequence if isinstance(sequence, list) else [entry]
        if not all(isinstance(part, Mapping) for part in parts):
            raise InputError(f"the receipt's change at {site} is damaged: {brief(entry)} is none. Write it again.")
        if function := next((part["function"] for part in parts if "function" in part), None):
            raise InputError(
                f"this receipt cannot be replayed: {shortened(str(function), 200)}, a function, changed {site}, and no file "
                "can hold it."
            )
        try:
            changes[site] = change_from_data(entry)
        except (TypeError, ValueError, OverflowError, LookupError, SiteError) as error:
            raise InputError(f"the receipt's change at {site} is damaged: {reason_of(error)}. Write it again.") from error
    return changes


def compare_with_receipt(data: Mapping[str, Any], run: RunLike) -> Replay:
    """A receipt, and its replay."""
    recorded, replayed = [step["id"] for step in data["steps"]], [step.id for step in run.steps]
    step = None if recorded == replayed else common_prefix(recorded, replayed)
    tokenizer = run.model.tokenizer
    texts: list[str | None] = [None, None]
    logprobs: list[float | None] = [None, None]
    if step is not None:
        if step < len(recorded):
            texts[0], logprobs[0] = token_text(tokenizer, recorded[step]), data["steps"][step].get("logprob")
        if step < len(replayed):
            texts[1], logprobs[1] = token_text(tokenizer, replayed[step]), run.steps[step].logprob
    return Replay(step is None, step, texts[0], texts[1], (logprobs[0], logprobs[1]), _differences(data, run), run.text)


def _differences(data: Mapping[str, Any], run: RunLike) -> tuple[str, ...]:
    """What is not as it was: versions, the executor, and what somebody changed in the file."""
    about = run.model.executor.describe()
    now = {**_versions(), "executor": about.name, "weights in": about.dtype, "options": _listed(about.options),
           "notes": " · ".join(about.notes)}  # fmt: skip
    executor = data.get("executor") or {}
    was = {**(data.get("versions") or {}), "executor": executor.get("name"), "weights in": executor.get("dtype"),
           "options": _listed(executor_options(data)), "notes": _joined(executor.get("notes"))}  # fmt: skip
    differences = [f"{name}: {was[name]} then, {now[name]} now" for name in now if name in was and was[name] != now[name]]
    same = [step["id"] for step in data["steps"]] == [step.id for step in run.steps]
    interrupted = data["finish"] is None  # with some text held back, as it could have begun a stop string
    if same and not (run.text.startswith(data["text"]) if interrupted else run.text == data["text"]):
        differences.append("its text is not what its tokens say: somebody changed it")
    if same and any(recorded.get("draw") != step.draw for recorded, step in zip(data["steps"], run.steps, strict=True)):
        differences.append("its draws are not those of its seed: somebody changed them")
    return tuple(differences)


def _joined(notes: Any) -> str:
    """A receipt's notes, whatever somebody made of them."""
    return " · ".join(map(str, notes)) if isinstance(notes, Sequence) and not isinstance(notes, str) else str(notes or "")


def _listed(options: Mapping[str, str]) -> str:
    return ", ".join(option_texts(options)) or "none"
