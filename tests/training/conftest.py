"""What the tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_kernels() -> Iterator[None]:
    """Where a CPU has no bfloat16 products, torch leaves oneDNN for good after trying one; later tests need it back."""
    enabled = torch.backends.mkldnn.enabled  # type: ignore[attr-defined]
    yield
    torch.backends.mkldnn.set_flags(enabled)  # type: ignore[no-untyped-call]
