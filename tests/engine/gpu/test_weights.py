"""Stored tensors on the device: fused where one step reads several, floats as they are, packed kinds packed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from glassformer.checkpoint.gguf_kinds import dequantize
from glassformer.engine.gpu import kernels
from glassformer.engine.gpu.weights import DTYPES, PACKED_KINDS, DeviceWeights, _as_q8_0, device_bytes
from glassformer.engine.lowering import Lowering
from glassformer.engine.program import MatrixRef, ProgramStep, StepKind
from glassformer.ground.errors import CheckpointError
from tests.engine.executors import Subject
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")

Tiny = Callable[..., Subject]


def weights_of(subject: Subject) -> DeviceWeights:
    expected = {weight.name: weight.shape for weight in subject.blueprint.weights}
    return DeviceWeights(subject.opened.tensors, expected, torch.device("cpu"))


def matmuls(subject: Subject) -> list[ProgramStep]:
    program = Lowering(subject.blueprint, "", frozenset(), frozenset(), subject.config).lower()
    return [step for step in program.steps if step.kind is StepKind.MATMUL]


def expected_rows(subject: Subject, weights: DeviceWeights, step: ProgramStep) -> np.ndarray:
    """The rows of a step's matrices, one after another, in float32."""
    rows = []
    for table in step.matrices:
        assert isinstance(table, MatrixRef)
        values = [weights.stored(name).to_float32() for name in table.names]
        rows += [value.T if table.transposed else value for value in values]
    return np.concatenate(rows)


@pytest.mark.parametrize("what", ["F32", "F16", "BF16", "gpt2", "llama", "gemma3_text", "t5", "Q2_K"])
def test_floats_lie_side_by_side_in_their_own_dtype(what: str, tiny: Tiny) -> None:
    """Rows in GGUF's order, transposed matrices, and kinds that no kernel reads included."""
    subject = tiny(what)
    weights = weights_of(subject)
    for step in matmuls(subject)[:5]:
        (matrix,) = weights.matrices(step.matrices)
        assert matrix.data.dtype == DTYPES.get(what, torch.float32)
        assert np.array_equal(matrix.data.float().numpy(), expected_rows(subject, weights, step))


@pytest.mark.parametrize("kind", mostly_swept([*PACKED_KINDS, "Q5_0"], "Q4_K", "Q5_0"))
def test_packed_kinds_stay_packed(kind: str, tiny: Tiny) -> None:
    subject = tiny(kind)
    weights = weights_of(subject)
    step = matmuls(subject)[0]  # queries and keys have rotary pairs side by side in the file
    (matrix,) = weights.matrices(step.matrices)
    assert (matrix.kind, matrix.columns) == ("Q8_0" if kind == "Q5_0" else kind, 256)
    assert matrix.data.nbytes < matrix.rows * matrix.columns * 2
    out = torch.empty(1, matrix.rows)
    inputs = torch.from_numpy(np.random.default_rng(1).standard_normal((1, 256)).astype(np.float32))
    kernels.matmul(inputs, [matrix], out)
    expected = inputs.numpy() @ expected_rows(subject, weights, step).T
    assert np.linalg.norm(out.numpy() - expected) / np.linalg.norm(expected) < 1e-2


def test_q5_0_as_q8_0_has_the_same_numbers(tiny: Tiny) -> None:
    tensor = weights_of(tiny("Q5_0")).stored("model.layers.1.mlp.up_proj.weight")
    widened = _as_q8_0(tensor.bytes.reshape(tensor.shape[0], -1))
    assert np.array_equal(dequantize(widened.reshape(-1), "Q8_0", tensor.shape, "x"), tensor.to_float32())


def test_tied_embeddings_are_on_the_device_once(tiny: Tiny) -> None:
    subject = tiny("gemma3_text")
    weights = weights_of(subject)
    program = Lowering(subject.blueprint, "", frozenset(), frozenset(), subject.config).lower()
    table, (head,) = weights.table(program.steps[0].matrices[0]), weights.matrices(program.steps[-1].matrices)
    assert table.data.data_ptr() == head.data.data_ptr()


def test_rows_of_a_fused_matrix(tiny: Tiny) -> None:
    subject = tiny("llama")
    weights = weights_of(subject)
    weights.matrices(matmuls(subject)[0].matrices)
    name = "model.layers.0.self_attn.k_proj.weight"
    assert np.array_equal(weights.part(name).data.numpy(), weights.stored(name).to_float32())


def test_matrices_of_different_kinds_stay_apart(tiny: Tiny) -> None:
    """As in many GGUF files, whose values are packed in more bits than queries and keys."""
    subject, other = tiny("Q4_K"), tiny("Q6_K")
    expected = {weight.name: weight.shape for weight in subject.blueprint.weights}
    mixed = {
        name: other.opened.tensors[name] if "v_proj" in name else tensor for name, tensor in subject.opened.tensors.items()
    }
    weights = DeviceWeights(mixed, expected, torch.device("cpu"))
    matrices = weights.matrices(matmuls(subject)[0].matrices)
    assert [(matrix.kind, matrix.rows) for matrix in matrices] == [("Q4_K", 256 + 128), ("Q6_K", 128)]


def test_bytes_on_the_device(tiny: Tiny) -> None:
    """Kinds that no kernel reads take four bytes a number."""
    for what in ("F16", "Q4_K"):
        tensors = tiny(what).opened.tensors.values()
        assert device_bytes(tensors) == sum(tensor.size for tensor in tensors)
    weights = tiny("Q5_0").opened.tensors.values()
    assert device_bytes(weights) == sum(
        tensor.elements * 34 // 32 if tensor.kind == "Q5_0" else tensor.size for tensor in weights
    )
    tensors = tiny("Q2_K").opened.tensors.values()
    assert device_bytes(tensors) == 4 * sum(tensor.elements for tensor in tensors)


def test_missing_weights_are_refused(tiny: Tiny) -> None:
    subject = tiny("llama")
    expected = {weight.name: weight.shape for weight in subject.blueprint.weights}
    with pytest.raises(CheckpointError, match="the weights lack"):
        DeviceWeights({}, expected, torch.device("cpu"))
