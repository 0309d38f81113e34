"""Real files for these tests, through the product's own fetching path and cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import unavailable


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the sentence embedder."""
    from glassformer.checkpoint.locate import locate
    from glassformer.errors import FetchError

    try:
        return locate("minilm")
    except FetchError as error:
        unavailable(f"the sentence embedder could not be fetched: {error}")
        raise
