"""The CPU engine over a live model: packed weights as the file has them, encoders' states, and when PyTorch computes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer.compat import generation_executor
from glassformer.compat.generation_executor import executor_for, reader_for
from glassformer.compat.live_weights import digest
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.ground.changes import Change
from tests.parity import reference
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = torch.tensor([[5, 9, 14, 3, 77, 21], [21, 77, 3, 14, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
MATRIX = "model.layers.0.mlp.down_proj.weight"
ENCODERS = ("bert", "roberta", "distilbert", "electra", "albert", "deberta-v2", "modernbert")


@pytest.fixture(scope="module")
def smollm2_model(smollm2: Path) -> Any:
    return glassformer.AutoModelForCausalLM.from_pretrained(smollm2)


def test_packed_weights_are_read_from_the_file_until_they_are_changed(smollm2_model: Any) -> None:
    model, weight = smollm2_model, smollm2_model.get_parameter(MATRIX)
    assert MATRIX in executor_for(model).packed_matrices()
    before = weight.detach().clone()
    weight.data[3, 5] += 1
    changed = executor_for(model)
    assert isinstance(changed, CpuExecutor)
    assert MATRIX not in changed.packed_matrices()
    assert MATRIX.replace("down", "up") in changed.packed_matrices()
    weight.data.copy_(before)
    assert MATRIX in executor_for(model).packed_matrices()


def test_what_is_made_of_live_weights_is_not_kept_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.engine.cpu import weights

    monkeypatch.setattr(weights, "_cached_file", lambda *_: pytest.fail("a file of the cache was made"))
    reference.write(tmp_path, "gpt2", "causal")  # whose matrices are transposed
    model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(executor_for(model), CpuExecutor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_digest_knows_every_number_and_its_place(dtype: torch.dtype) -> None:
    values = torch.randn(700, 48, generator=torch.Generator().manual_seed(1)).to(dtype)
    seen = {digest(values), digest(values.flip(0)), digest(values.flip(1)), digest(-values), digest(values[1:])}
    for row, column in ((0, 0), (350, 7), (699, 47)):
        other = values.clone()
        other[row, column] += 1
        seen.add(digest(other))
    assert len(seen) == 8
    assert digest(values.clone()) == digest(values)


@pytest.mark.parametrize(
    "settings",
    [
        {"watch": {"blocks.0.mlp.update": Change(scale=0)}},
        {"watch": ["blocks.0.mlp.update"], "return_dict_in_generate": True},
        {"output_hidden_states": True, "return_dict_in_generate": True},
        {"return_dict_in_generate": True},
    ],
    ids=["changes", "sites", "states", "a cache"],
)
def test_what_is_seen_inside_comes_from_pytorch(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference.write(tmp_path, "llama", "causal")
    model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    monkeypatch.setattr(generation_executor, "_cpu_engine", lambda *_: pytest.fail("the engine ran"))
    result = model.generate(IDS[:1], max_new_tokens=2, **settings)
    if settings.get("return_dict_in_generate"):
        assert result.past_key_values.get_seq_length() == 7


def test_scores_without_a_cache_come_from_the_engine(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama", "causal")
    model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    options = {"max_new_tokens": 3, "return_dict_in_generate": True, "output_scores": True, "use_cache": False}
    ours = model.generate(IDS[:1], **options)
    assert isinstance(generation_executor._engines[model].executor, CpuExecutor)
    model.use_cpu_engine = False
    theirs = model.generate(IDS[:1], **options)
    for one, other in zip(ours.scores, theirs.scores, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


class TestEncoders:
    @pytest.fixture(params=mostly_swept(ENCODERS, "bert", "albert", "modernbert", "deberta-v2"))
    def folder(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        reference.write(tmp_path, request.param, "base")
        return tmp_path

    def test_states_are_pytorch_s_at_every_token(self, folder: Path) -> None:
        model = glassformer.AutoModel.from_pretrained(folder)
        for mask in (MASK, MASK.flip(1), None):
            ids = IDS if mask is None or mask is MASK else IDS.flip(1)
            given = {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}
            with torch.no_grad():
                model.use_cpu_engine = True
                assert reader_for(model) is not None
                ours = model(**given)
                model.use_cpu_engine = False
                theirs = model(**given)
            real = torch.ones_like(ids).bool() if mask is None else mask.bool()
            torch.testing.assert_close(ours.last_hidden_state[real], theirs.last_hidden_state[real], atol=1e-4, rtol=1e-4)
            assert (ours.pooler_output is None) == (theirs.pooler_output is None)
            if ours.pooler_output is not None:
                torch.testing.assert_close(ours.pooler_output, theirs.pooler_output, atol=1e-4, rtol=1e-4)


@pytest.fixture
def bert(tmp_path: Path) -> Any:
    reference.write(tmp_path, "bert", "sequence")
    model = glassformer.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    model.use_cpu_engine = True
    return model


@pytest.fixture
def engine_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from glassformer.engine.cpu.executor import CpuReader

    calls: list[int] = []
    read = CpuReader.read
    monkeypatch.setattr(CpuReader, "read", lambda *args: (calls.append(1), read(*args))[1])
    return calls


def test_a_head_reads_the_engine_s_states(bert: Any, engine_calls: list[int]) -> None:
    types = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]])
    with torch.inference_mode():
        ours = bert(IDS, attention_mask=MASK, token_type_ids=types, labels=torch.tensor([0, 1]))
        assert len(engine_calls) == 1
        bert.use_cpu_engine = False
        theirs = bert(IDS, attention_mask=MASK, token_type_ids=types, labels=torch.tensor([0, 1]))
    assert len(engine_calls) == 1
    torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.loss, theirs.loss, atol=1e-4, rtol=1e-4)


def test_an_encoder_is_pytorch_s_unless_the_engine_is_asked_for(tmp_path: Path, engine_calls: list[int]) -> None:
    reference.write(tmp_path, "bert", "base")
    model = glassformer.AutoModel.from_pretrained(tmp_path)
    with torch.inference_mode():
        states = model(IDS, attention_mask=MASK).last_hidden_state
        watched = model(IDS, attention_mask=MASK, output_hidden_states=True).last_hidden_state
    assert torch.equal(states, watched)
    assert engine_calls == []


def with_gradients(model: Any) -> None:
    with torch.enable_grad():
        assert model(IDS).logits.requires_grad


def with_states(model: Any) -> None:
    assert model(IDS, output_hidden_states=True).hidden_states is not None


def with_a_watch(model: Any) -> None:
    model.changed({"blocks.0.mlp.update": Change(scale=0)})(IDS)


def with_a_hook(model: Any) -> None:
    calls: list[int] = []
    model.base_model.encoder.layer[0].register_forward_hook(lambda *_: calls.append(1))
    model(IDS)
    assert calls


def with_positions(model: Any) -> None:
    model(IDS, position_ids=torch.arange(6).flip(0)[None])


def with_holes(model: Any) -> None:
    model(IDS, attention_mask=torch.tensor([[1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]))


def in_training(model: Any) -> None:
    model.train()(IDS)


def switched_off(model: Any) -> None:
    model.use_cpu_engine = False
    model(IDS)


@pytest.mark.parametrize(
    "call", [with_gradients, with_states, with_a_watch, with_a_hook, with_positions, with_holes, in_training, switched_off]
)
def test_pytorch_answers_what_the_engine_cannot(call: Callable[[Any], None], bert: Any, engine_calls: list[int]) -> None:
    with torch.no_grad():
        call(bert)
    assert not engine_calls


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input_ids": IDS + 900}, "vocabulary"),
        ({"input_ids": IDS[0]}, "batch"),
        ({"input_ids": IDS, "attention_mask": MASK[:, :3]}, "attention_mask"),
        ({"input_ids": IDS, "token_type_ids": IDS}, "token_type_ids"),
    ],
)
def test_errors_are_those_of_pytorch(given: dict[str, Any], message: str, bert: Any) -> None:
    with torch.no_grad(), pytest.raises(glassformer.GlassError, match=message):
        bert(**given)


def test_changed_parameters_of_an_encoder_are_noticed(bert: Any) -> None:
    with torch.no_grad():
        before = bert(IDS).logits
        bert.base_model.token_embedding.weight.data.mul_(2)
        after = bert(IDS).logits
        bert.use_cpu_engine = False
        torch.testing.assert_close(after, bert(IDS).logits, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(before, after, atol=1e-3)


def test_an_engine_goes_with_its_model(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama", "causal")
    model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not isinstance(executor_for(model), PlainExecutor)
    gc.collect()  # others that are gone already
    count = len(generation_executor._engines)
    del model
    gc.collect()
    assert len(generation_executor._engines) == count - 1
