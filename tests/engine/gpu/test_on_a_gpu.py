"""What only a real GPU can show (`proofs.py`), in a process of its own: this one has none, whatever the machine has."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from glassformer.engine.gpu.device import has_driver
from tests.engine.gpu.proofs import PROOFS

HIDDEN = ("CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET")  # tests/conftest.py sets them, so that no other test needs a GPU


@pytest.mark.skipif(not has_driver(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("proof", sorted(PROOFS))
def test_the_promises_hold_on_this_gpu(proof: str) -> None:
    seen = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    command = [sys.executable, "-m", "tests.engine.gpu.proofs", proof]
    done = subprocess.run(command, env=seen, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
