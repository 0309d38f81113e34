"""Kernels run under Triton's interpreter here, on the CPU."""

import tests.engine.gpu.triton_interpreter  # noqa: F401
