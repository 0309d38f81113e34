"""LoRA: updates beside frozen weights are what peft says they are, in every way they are opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import glassformer
from glassformer import AutoModelForCausalLM
from glassformer.ground.errors import SettingError
from glassformer.model_files import open_model
from glassformer.training.events import StepDone
from glassformer.training.fine_tuning import ChatTraining
from glassformer.training.lora import LoraSettings, add_lora, lora_layers, target_modules
from glassformer.training.sharding import Ranks
from glassformer.training.text_training import TextTraining
from glassformer.training.training_folder import TrainingFolder
from glassformer.training.training_request import PreparedTraining
from tests.conftest import unavailable
from tests.training.chat_models import CHATS, write_chat_model, write_rows
from tests.training.models import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = torch.tensor([[3, 17, 5, 29, 11, 2, 40]])
QUICK = {"steps": 3, "batch_size": 4, "learning_rate": 0.02, "save_every": 2, "evaluate_every": 3, "warmup_steps": 0}


def request(folder: Path, **changes: Any) -> ChatTraining:
    data = write_rows(folder / "chats.jsonl", CHATS)
    fields = {"data": data, "init": str(folder / "base"), "lora": {"rank": 4, "alpha": 6}, "settings": QUICK, **changes}
    return ChatTraining(**fields)


def trained(request: Any, out: Path, resume: bool = False) -> PreparedTraining:
    prepared = request.prepare(TrainingFolder(out), Ranks(), resume)
    list(prepared.trainer.run())
    prepared.write(out)
    return prepared


@torch.no_grad()
def logits(model: Any) -> np.ndarray[Any, Any]:
    scores: np.ndarray[Any, Any] = model(IDS).logits[0].float().numpy()
    return scores


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("llama", "all-linear"),
        ("gpt2", "all-linear"),
        ("qwen3", "q_proj,v_proj"),
        pytest.param("phi3", "all-linear", marks=pytest.mark.sweep),
        pytest.param("gpt_neox", "all-linear", marks=pytest.mark.sweep),
        pytest.param("qwen3_moe", "all-linear", marks=pytest.mark.sweep),
    ],
)
def test_peft_and_every_executor_open_what_was_trained(family: str, targets: str, tmp_path: Path) -> None:
    try:
        import peft
    except ImportError:
        unavailable("adapters are compared with peft's, which is not installed")
    base = write_chat_model(tmp_path / "base", family)
    before = logits(base)
    out = tmp_path / "out"
    prepared = trained(request(tmp_path, lora={"rank": 4, "alpha": 6, "targets": targets, "dropout": 0.1}), out)
    ours = logits(prepared.trainer.model.eval())
    theirs = logits(peft.PeftModel.from_pretrained(base, out).eval())
    assert np.abs(ours - before).max() > 1e-2
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    if targets == "all-linear" and family != "qwen3_moe":  # the same projections as peft's own choice
        config = peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM")
        chosen = peft.get_peft_model(write_chat_model(tmp_path / "base", family), config)
        names = {name.partition(".lora_A")[0] for name, _ in chosen.named_parameters() if ".lora_A." in name}
        assert names == {f"base_model.model.{name}" for name in lora_layers(prepared.trainer.model)}
    np.testing.assert_allclose(logits(AutoModelForCausalLM.from_pretrained(out)), theirs, atol=1e-4)
    prompt = "What is 2 + 2?"
    beside = glassformer.load(tmp_path / "base", adapter=out, adapter_mode="beside", executor="plain")
    assert beside.chat(prompt, max_new_tokens=4) == glassformer.load(out, executor="plain").chat(prompt, max_new_tokens=4)


def test_checkpoints_hold_only_what_is_trained_and_resume_exactly(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "base")
    asked = request(tmp_path, lora={"rank": 2, "dropout": 0.2})
    trained(asked, tmp_path / "whole")
    broken = TrainingFolder(tmp_path / "broken")
    for event in asked.prepare(broken, Ranks()).trainer.run():
        if isinstance(event, StepDone) and event.step == 3:
            break  # killed after the checkpoint of step 2
    assert list(broken.checkpoints) == [2]
    saved = load_file(broken.checkpoints[2] / "weights.safetensors")
    assert {name.rpartition(".lora_")[2] for name in saved} == {"A.weight", "B.weight"}
    assert trained(asked, tmp_path / "broken", resume=True).trainer.step == 3
    first, second = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "broken"))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_merged_model_is_one_of_its_own(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "base")
    prepared = trained(request(tmp_path, merge=True), tmp_path / "out")
    ours = logits(prepared.trainer.model.eval())
    np.testing.assert_allclose(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), ours, atol=1e-4)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "base", adapter=tmp_path / "out" / "adapter")
    np.testing.assert_allclose(logits(opened), ours, atol=1e-4)


def test_plain_text_trains_a_lora_too(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "base")
    (tmp_path / "text.txt").write_text("one two three four five six seven\n" * 40)
    asked = TextTraining(
        text=str(tmp_path / "text.txt"), init=str(tmp_path / "base"), length=16, lora={"rank": 2}, settings=QUICK
    )
    trained(asked, tmp_path / "out")
    assert (tmp_path / "out" / "adapter_config.json").exists()
    assert glassformer.load(tmp_path / "out", executor="plain").chat("Hi", max_new_tokens=2) is not None


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch's, on a CPU without such products
def test_a_frozen_model_is_in_the_precision_of_the_training(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "base")
    prepared = trained(request(tmp_path, settings={**QUICK, "precision": "bfloat16"}), tmp_path / "out")
    parameters = dict(prepared.trainer.model.named_parameters())
    assert {parameter.dtype for parameter in parameters.values() if parameter.requires_grad} == {torch.float32}
    assert {parameter.dtype for parameter in parameters.values() if not parameter.requires_grad} == {torch.bfloat16}


def test_packed_weights_are_expanded_with_a_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from glassformer.quantize.export import quantize

    write_chat_model(tmp_path / "base", hidden_size=64, intermediate_size=96, head_dim=16)
    quantize(open_model(tmp_path / "base"), tmp_path / "base.gguf", "q8_0")
    caplog.clear()
    prepared = trained(request(tmp_path, init=str(tmp_path / "base.gguf")), tmp_path / "out")
    assert "base.gguf: its Q8_0 weights are expanded to be trained with: " in caplog.text
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "base.gguf", adapter=tmp_path / "out")
    np.testing.assert_allclose(logits(opened), logits(prepared.trainer.model.eval()), atol=1e-4)


def test_recomputed_activations_reach_the_updates(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "base")
    losses = []
    for recompute in (False, True):
        trainer = request(tmp_path, settings={**QUICK, "recompute": recompute}).prepare(
            TrainingFolder(tmp_path / f"out {recompute}"), Ranks()
        )
        losses.append([event.loss for event in trainer.trainer.run() if isinstance(event, StepDone)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_names_of_projections_that_are_not_there_are_refused() -> None:
    model = tiny_model()
    assert target_modules(model, "layers.1.self_attn.q_proj") == ["model.layers.1.self_attn.q_proj"]
    add_lora(model, LoraSettings(rank=2, targets="q_proj"))
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == [
        f"model.layers.{layer}.self_attn.q_proj.lora_{part}.weight" for layer in range(2) for part in "AB"
    ]


def test_an_adapter_is_no_base(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "base")
    trained(request(tmp_path), tmp_path / "out")
    with pytest.raises(SettingError, match="is an adapter, and lora trains one beside a whole model. Give its base"):
        request(tmp_path, init=str(tmp_path / "out")).prepare(TrainingFolder(tmp_path / "second"), Ranks())
