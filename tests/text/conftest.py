"""The text layer's material: two real tokenizers, the reference's view of one, and texts that break things."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glassformer.checkpoint.gguf import Gguf
from glassformer.opening import open_model
from glassformer.text import Tokenizer


@pytest.fixture(scope="session")
def qwen(qwen3_tokenizer: Path) -> Tokenizer:
    return open_model(qwen3_tokenizer).tokenizer


@pytest.fixture(scope="session")
def reference(qwen3_tokenizer: Path) -> Any:
    from tests.parity.reference import transformers

    return transformers.AutoTokenizer.from_pretrained(qwen3_tokenizer)


@pytest.fixture(scope="session")
def smol(smollm2: Path) -> Tokenizer:
    return open_model(smollm2).tokenizer


@pytest.fixture(scope="session")
def smol_metadata(smollm2: Path) -> Mapping[str, Any]:
    return Gguf(smollm2).metadata
