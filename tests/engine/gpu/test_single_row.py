"""A single row, decoded greedily by the persistent kernel in simulation; and models that it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.checkpoint.quantization import quantize_rows
from glassformer.checkpoint.stored_tensors import BufferedFile, StoredTensor
from glassformer.engine.gpu import executor as engine
from glassformer.engine.gpu import single_row
from glassformer.engine.gpu.executor import GpuExecutor
from glassformer.engine.gpu.persistent.decoder import PersistentDecoder
from glassformer.engine.gpu.persistent.kernel import Card
from glassformer.engine.gpu.single_row import decoder_weights, fitting_layout
from glassformer.engine.protocol import BEST, NOT_CHOSEN, Choice, ChosenTokens, Feed
from glassformer.ground.errors import ExecutorError
from tests.engine.executors import Subject, write_checkpoint
from tests.engine.gpu import torch_kernels
from tests.engine.gpu.simulation import compile_simulation
from tests.engine.gpu.test_persistent_decoder import SimulatedKernel
from tests.patience import patience

pytestmark = pytest.mark.usefixtures("one_thread")

CARD = Card("a simulated GPU", (9, 0), 3, 100_000)
SHAPE = {
    "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 64,
    "vocab_size": 50, "num_hidden_layers": 1,
}  # fmt: skip


DRAWN = Choice(sampled=True, temperature=0.8, top_k=9, top_p=0.9)
DRAWS = [0.1, 0.9, 0.4, 0.7, 0.2]


def in_memory(tensor: StoredTensor, kind: str, values: np.ndarray) -> StoredTensor:
    raw = values.reshape(-1).view(np.uint8)
    return replace(tensor, kind=kind, file=BufferedFile(Path("memory"), raw), offset=0, size=raw.size)


def in_bfloat16(tensor: StoredTensor) -> StoredTensor:
    values = torch.from_numpy(tensor.to_float32()).bfloat16().contiguous().view(torch.uint8).numpy()
    return in_memory(tensor, "BF16", values)


def in_eight_bits(tensor: StoredTensor) -> StoredTensor:
    """A matrix in Q8_0; others stay as they are."""
    if len(tensor.shape) < 2:
        return tensor
    return in_memory(tensor, "Q8_0", np.frombuffer(quantize_rows(tensor.to_float32(), "Q8_0"), np.uint8))


def on_cpu(subject: Subject, tensors: Mapping[str, StoredTensor] | None = None, **options: Any) -> GpuExecutor:
    tensors = tensors or {name: in_bfloat16(tensor) for name, tensor in subject.opened.tensors.items()}
    device = torch.device("cpu")
    return GpuExecutor(subject.config, subject.blueprint, tensors, device=device, kernels=torch_kernels, **options)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return write_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", **SHAPE)


@pytest.fixture(scope="module")
def simulated(subject: Subject) -> SimulatedKernel:
    _, schedule = fitting_layout(subject.blueprint, on_cpu(subject)._weights, "bf16", CARD)
    return SimulatedKernel(compile_simulation(schedule))


@pytest.fixture
def executor(subject: Subject, simulated: SimulatedKernel, monkeypatch: pytest.MonkeyPatch) -> GpuExecutor:
    """One that the persistent kernel fits."""
    monkeypatch.setattr(engine, "PersistentDecoder", partial(PersistentDecoder, card=CARD, timeout=patience(5)))
    monkeypatch.setattr(engine, "load_kernel", lambda schedule, card: simulated)
    executor = on_cpu(subject, batch_invariant=False)
    executor._single_row, _ = fitting_layout(subject.blueprint, executor._weights, "bf16", CARD)
    return executor


def test_it_gives_the_tokens_that_the_other_kernels_give(subject: Subject, executor: GpuExecutor) -> None:
    rows = {}
    for name, some in (("persistent", executor), ("separate", on_cpu(subject))):
        row = some.open()
        some.run([Feed(row, [3, 4, 5])])
        rows[name] = some.capabilities.sampler.best([row], [6], 5).tolist(), row.length
        (after,) = some.run([Feed(row, [7])])
        rows[name] += (int(after.host().argmax()),)
    assert executor._decoder is not None
    assert rows["persistent"] == rows["separate"]
    assert rows["persistent"][1] == 8


def test_it_is_made_for_some_tokens_and_used_for_any(executor: GpuExecutor) -> None:
    row = executor.open()
    executor.capabilities.sampler.best([row], [3], 2)
    assert executor._decoder is None
    executor.capabilities.sampler.best([row], [3], 4)
    decoder = executor._decoder
    executor.capabilities.sampler.best([row], [3], 1)
    assert executor._decoder is decoder is not None


def test_several_rows_go_through_the_other_kernels(executor: GpuExecutor) -> None:
    executor.capabilities.sampler.best([executor.open(), executor.open()], [3, 4], 4)
    assert executor._decoder is None


def test_many_tokens_take_several_launches(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = executor.capabilities.sampler.best([executor.open()], [3], 5)
    monkeypatch.setattr(single_row, "MAX_LAUNCH_STEPS", 2)
    assert np.array_equal(executor.capabilities.sampler.best([executor.open()], [3], 5), whole)


def test_scores_that_are_not_numbers_end_it(executor: GpuExecutor) -> None:
    row = executor.open()
    executor.run([Feed(row, [3])])
    executor._pool.tensor[row.pages.pages[0], :, :, :, 0] = torch.nan
    assert executor.capabilities.sampler.best([row], [4], 4).tolist() == [[-1, -1, -1, -1]]


def test_a_kernel_that_cannot_be_made_is_noted_once(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(*arguments: Any, **options: Any) -> None:
        calls.append(arguments)
        raise ExecutorError("the persistent kernel cannot be compiled.")

    monkeypatch.setattr(engine, "PersistentDecoder", fail)
    row = executor.open()
    for _ in range(2):
        assert executor.capabilities.sampler.best([row], [3], 4).min() >= 0
    assert len(calls) == 1
    assert executor.describe().notes[-1] == "the persistent kernel cannot be compiled."


def test_a_copy_of_the_weights_needs_memory(executor: GpuExecutor) -> None:
    layout = executor._single_row
    assert layout is not None
    with pytest.raises(
        ExecutorError, match="needs 0.0 GB for a copy of the weights, and 0.0 GB of the GPU's memory are free"
    ):
        PersistentDecoder(
            layout.shape, decoder_weights(layout, executor._weights, 64), card=replace(CARD, free_bytes=1000)
        )  # fmt: skip


def test_packed_weights_are_decoded_as_what_they_stand_for(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = write_checkpoint(tmp_path_factory.mktemp("packed"), "qwen3", **SHAPE)
    tensors = {name: in_eight_bits(tensor) for name, tensor in subject.opened.tensors.items()}
    floats = {name: in_memory(tensor, "F32", tensor.to_float32()) for name, tensor in tensors.items()}
    executor = on_cpu(subject, tensors=tensors, batch_invariant=False)
    assert executor.cache == "f16"
    executor._single_row, schedule = fitting_layout(subject.blueprint, executor._weights, "f16", CARD)
    kernel = SimulatedKernel(compile_simulation(schedule))
    monkeypatch.setattr(engine, "PersistentDecoder", partial(PersistentDecoder, card=CARD, timeout=patience(5)))
    monkeypatch.setattr(engine, "load_kernel", lambda schedule, card: kernel)
    ids = [
        some.capabilities.sampler.best([some.open()], [6], 5).tolist()
        for some in (executor, on_cpu(subject, tensors=floats))
    ]
    assert executor._decoder is not None
    assert ids[0] == ids[1]


def test_batch_invariance_is_the_default_and_needs_no_persistent_kernel(subject: Subject) -> None:
    about = on_cpu(subject).describe()
    assert about.notes[-1] == "batch-invariant: what a row gets does not depend on what runs beside it"
    assert about.options == {}
    assert on_cpu(subject, batch_invariant=False).describe().options == {"batch_invariant": "false"}


class TestModelsThatDoNotFit:
    def test_another_family(self, tiny: Callable[..., Subject]) -> None:
        subject = tiny("gpt2")
        with pytest.raises(ExecutorError, match="the persistent kernel does not fit: gpt2 has more than blocks"):
            fitting_layout(subject.blueprint, on_cpu(subject)._weights, "bf16", CARD)

    def test_another_shape(self, tiny: Callable[..., Subject]) -> None:
        subject = tiny("llama")
        with pytest.raises(ExecutorError, match="the persistent kernel does not fit: heads of 12 values do not fit"):
            fitting_layout(subject.blueprint, on_cpu(subject)._weights, "bf16", CARD)

    def test_an_older_card(self, subject: Subject) -> None:
        with pytest.raises(ExecutorError, match="needs a GPU of compute capability 9.0 or later, unlike an A100"):
            fitting_layout(
                subject.blueprint, on_cpu(subject)._weights, "bf16", replace(CARD, name="an A100", capability=(8, 0))
            )

    def test_other_dtypes(self, subject: Subject) -> None:
        with pytest.raises(ExecutorError, match="keeps keys and values in bf16 or f16, not in f32"):
            fitting_layout(subject.blueprint, on_cpu(subject)._weights, "f32", CARD)
        with pytest.raises(ExecutorError, match="it has no format for weights in F32"):
            fitting_layout(subject.blueprint, subject.gpu()._weights, "bf16", CARD)

    def test_an_embedding_of_another_kind(self, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
        weights = on_cpu(subject)._weights
        layout, _ = fitting_layout(subject.blueprint, weights, "bf16", CARD)
        part = weights.part
        other = {layout.embedding: replace(part(layout.embedding), kind="F32")}
        monkeypatch.setattr(weights, "part", lambda name: other.get(name) or part(name))
        with pytest.raises(ExecutorError, match="cannot read an embedding in F32"):
            fitting_layout(subject.blueprint, weights, "bf16", CARD)

    def test_without_a_gpu_there_is_a_note(self, subject: Subject) -> None:
        about = on_cpu(subject, batch_invariant=False).describe()
        assert about.notes[-1] == "the persistent kernel needs a GPU."


class TestChoosingAhead:
    """A launch for each token, or one for all of them, and what is chosen and recorded beside."""

    def decoded(self, executor: GpuExecutor, choice: Choice, draws: list[float]) -> ChosenTokens:
        row = executor.open()
        executor.run([Feed(row, [3, 4, 5])])
        (text,) = executor.capabilities.sampler.decode([row], [6], [choice], np.array([draws]))
        assert executor._decoder is not None
        assert row.length == 3 + len(draws)
        return text

    @pytest.mark.parametrize("choice", [Choice(candidates=3), DRAWN, replace(DRAWN, candidates=3)], ids=str)
    def test_tokens_records_and_sites_are_those_of_the_other_kernels(
        self, subject: Subject, executor: GpuExecutor, choice: Choice
    ) -> None:
        choice = replace(choice, sites=frozenset(("blocks.0.residual", "blocks.0.middle")))
        separate = on_cpu(subject)
        row = separate.open()
        separate.run([Feed(row, [3, 4, 5])])
        (expected,) = separate.capabilities.sampler.decode([row], [6], [choice], np.array([DRAWS]))
        text = self.decoded(executor, choice, DRAWS)
        assert text.ids == expected.ids
        assert text.records is not None
        assert expected.records is not None
        np.testing.assert_allclose(text.records.best, expected.records.best, atol=0.1)
        np.testing.assert_allclose(text.records.chosen, expected.records.chosen, atol=0.1)
        assert text.sites.keys() == choice.sites
        for site, values in text.sites.items():
            np.testing.assert_allclose(values, expected.sites[site], atol=0.1)

    def test_watched_tokens_are_those_of_nobody_watching(self, executor: GpuExecutor) -> None:
        watching = {"candidates": 3, "sites": frozenset(("blocks.0.residual",))}
        for choice in (BEST, DRAWN):
            assert (
                self.decoded(executor, choice, DRAWS).ids == self.decoded(executor, replace(choice, **watching), DRAWS).ids
            )

    def test_many_steps_go_in_several_pieces(self, executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = self.decoded(executor, DRAWN, DRAWS).ids
        monkeypatch.setattr(single_row, "MAX_STEPS", 2)
        assert self.decoded(executor, DRAWN, DRAWS).ids == whole

    def test_what_the_kernel_does_not_keep_is_read_from_the_others(self, executor: GpuExecutor) -> None:
        row = executor.open()
        choice = Choice(sites=frozenset(("blocks.0.mlp.hidden",)))
        (text,) = executor.capabilities.sampler.decode([row], [6], [choice], np.zeros((1, 4)))
        assert text.sites["blocks.0.mlp.hidden"].shape == (1, 4, 64)
        assert executor._decoder is None

    def test_scores_that_are_not_numbers_end_it(self, executor: GpuExecutor) -> None:
        for choice in (DRAWN, Choice(candidates=3)):
            row = executor.open()
            executor.run([Feed(row, [3])])
            executor._pool.tensor[row.pages.pages[0], :, :, :, 0] = torch.nan
            (text,) = executor.capabilities.sampler.decode([row], [4], [choice], np.array([DRAWS]))
            assert text.ids == [NOT_CHOSEN] * len(DRAWS)
            executor._pool.tensor[row.pages.pages[0]] = 0
