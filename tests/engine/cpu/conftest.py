"""What the tests of the native library share."""

from __future__ import annotations

import pytest

from glassformer.engine.cpu import build
from glassformer.ground.errors import ExecutorError
from tests.conftest import unavailable


@pytest.fixture(scope="session")
def compiler() -> list[str]:
    """This machine's own."""
    try:
        return build.find_compiler()
    except ExecutorError as error:
        unavailable(str(error))
        raise
