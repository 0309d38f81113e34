"""What the parity tests share."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.parity.compare")  # so that a failed comparison says what was compared


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For tiny models: waking a second thread costs more than all of their work."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
