"""What the installed transformers computes: its lists of classes, read off its text. Importing it takes seconds, and a
refusal should take none of them.
"""

from __future__ import annotations

import ast
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.blueprints import Head
from glassformer.blueprints.bridged import LIBRARY

LISTS: Mapping[Head, str] = {  # the first that a class is for: how transformers calls its list of such classes
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "sequence": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "question": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "base": "MODEL_MAPPING_NAMES",
}


def installed_version() -> str | None:
    """None: it is not installed."""
    try:
        return version(LIBRARY) if find_spec(LIBRARY) is not None else None
    except PackageNotFoundError:
        return None


def classes(model_type: str) -> dict[Head, tuple[str, ...]]:
    """The classes of a model type, by their heads; none where it has none for texts."""
    found = {head: _names(_list(name).get(model_type)) for head, name in LISTS.items()}
    return found if any(names for head, names in found.items() if head != "base") else {}


@cache
def text_model_types() -> frozenset[str]:
    """The model types that it has a class for texts for."""
    return frozenset().union(*(_list(name) for head, name in LISTS.items() if head != "base"))


def _list(name: str) -> Mapping[str, Any]:
    """A list of classes by model type."""
    if name in (lists := _written_lists()):
        return lists[name]
    from transformers.models.auto import modeling_auto  # a version that has it written otherwise

    found: Mapping[str, Any] = getattr(modeling_auto, name)
    return found


@cache
def _written_lists() -> Mapping[str, Mapping[str, Any]]:
    """The lists that are written out as `NAME = OrderedDict([(…, …), …])`."""
    spec = find_spec(LIBRARY)
    path = Path(spec.origin if spec and spec.origin else "").parent / "models" / "auto" / "modeling_auto.py"
    found: dict[str, Mapping[str, Any]] = {}
    for line in ast.parse(path.read_text("utf-8")).body if path.is_file() else []:
        if not (isinstance(line, ast.Assign) and isinstance(line.value, ast.Call) and line.value.args):
            continue
        (target,), value = line.targets, line.value.args[0]
        if isinstance(target, ast.Name) and target.id in LISTS.values() and isinstance(value, ast.List):
            found[target.id] = dict(ast.literal_eval(value))
    return found


def _names(written: Any) -> tuple[str, ...]:
    return (written,) if isinstance(written, str) else tuple(written or ())


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' own notes, warnings and bars."""
    from transformers.utils import logging as theirs

    level, has_bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.ERROR)
    theirs.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        theirs.set_verbosity(level)
        if has_bars:
            theirs.enable_progress_bar()
