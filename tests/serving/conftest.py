"""What the tests of serving share."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.opened import open_model
from glassformer.text import Tokenizer


@pytest.fixture(scope="session")
def qwen(qwen3_tokenizer: Path) -> Tokenizer:
    return open_model(qwen3_tokenizer).tokenizer
