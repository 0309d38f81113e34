"""What people are told when they ask for what cannot be had: each sentence once, beside a call that is answered with it.

`tests/test_messages.py` runs them. Elsewhere a test asks for the error's type, and for the argument or the value that it
names: so a sentence is changed in one test and where it is raised. `…` stands for what is long, or differs by machine.
"""

from __future__ import annotations

from tests.messages import (
    arguments,
    bridged,
    data,
    engines,
    familiar,
    inputs,
    inside,
    learned,
    patching,
    saliency,
    servers,
    settings,
    tasks,
    texts,
    tokenizer_files,
    trainings,
    trees,
)
from tests.messages.calls import Entry

__all__ = ["MESSAGES"]

PARTS = (
    arguments, inputs, settings, familiar, inside, patching, saliency, trees, learned, texts, tokenizer_files, tasks, data,
    trainings, engines, bridged, servers,
)  # fmt: skip
MESSAGES: dict[str, list[Entry]] = {area: entries for part in PARTS for area, entries in part.MESSAGES.items()}
