"""Packed matrices by themselves: products, their gradients and rows, against the expanded numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glassformer.engine.cpu.library import levels
from tests.engine.cpu.packed import KEPT, packed_model


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", [kind for kind in KEPT if kind[0] == "Q"])
def test_products_and_gradients(kind: str, level: str, tmp_path: Path) -> None:
    model = packed_model(tmp_path / "tiny.gguf", kind).cpu(level=level, threads=2)
    matrices = model.packed_matrices()
    assert set(matrices) == {weight.name for weight in model.blueprint.weights if "norm" not in weight.name}
    for name in ("model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"):
        matrix = matrices[f"{name}.weight"]
        rows, columns = matrix.shape
        weight = matrix.rows(range(rows)).astype(np.float64)
        for tokens in (0, 1, 6, 70):
            draw = np.random.default_rng(tokens)
            inputs, gradients = (draw.standard_normal((tokens, size)).astype(np.float32) for size in (columns, rows))
            np.testing.assert_allclose(matrix.outputs(inputs), inputs @ weight.T, atol=2e-3, err_msg=name)
            np.testing.assert_allclose(matrix.input_gradients(gradients), gradients @ weight, atol=1e-4, err_msg=name)
    assert matrix.rows([]).shape == (0, columns)
