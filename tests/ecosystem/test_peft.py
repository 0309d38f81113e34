"""peft on our models: LoRA adapters trained, saved, loaded and merged as on transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from glassformer.compat.generation_executor import ModuleParts, own_computation
from tests.ecosystem.models import Pair, load_pair, make_batches, train
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")
TASKS = {"causal": "CAUSAL_LM", "sequence": "SEQ_CLS", "seq2seq": "SEQ_2_SEQ_LM", "token": "TOKEN_CLS"}
MODELS = [
    ("llama", "causal"), ("gpt2", "causal"), ("llama", "sequence"), ("bert", "sequence"), ("distilbert", "token"),
    ("t5", "seq2seq"), ("bart", "seq2seq"),
]  # fmt: skip
TARGETS = {  # of other families peft knows them
    "llama": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_proj"], "distilbert": ["q_lin", "v_lin"],
}  # fmt: skip


def adapted(models: Pair, family: str, head: str, **settings: Any) -> Pair:
    """Both models under LoRA adapters with the same numbers."""
    targets = {"target_modules": TARGETS[family]} if family in TARGETS else {}
    options = {"r": 4, "lora_alpha": 8, "init_lora_weights": False, **targets, **settings}
    theirs, ours = (peft.get_peft_model(model, peft.LoraConfig(task_type=TASKS[head], **options)) for model in models)
    numbers = peft.get_peft_model_state_dict(theirs)
    assert numbers.keys() == peft.get_peft_model_state_dict(ours).keys()
    peft.set_peft_model_state_dict(ours, numbers)
    return Pair(theirs, ours)


def labels_for(head: str) -> list[dict[str, torch.Tensor]]:
    batches = make_batches("causal" if head == "token" else head)
    return [{**batch, "labels": batch["labels"].clamp(-100, 1)} for batch in batches] if head == "token" else batches


def logits(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The scores of each text or token; those of padding mean nothing."""
    with torch.no_grad():
        scores: torch.Tensor = model(**batch).logits
    mask = batch["attention_mask"]
    return scores[mask.bool()] if scores.shape[:2] == mask.shape else scores


@pytest.mark.parametrize(
    ("family", "head"),
    mostly_swept(MODELS, ("gpt2", "causal"), ("llama", "sequence"), ("distilbert", "token"), ("t5", "seq2seq")),
)
def test_lora_is_trained_saved_loaded_and_merged(
    family: str, head: str, model_folder: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder, batches = model_folder(family, head), labels_for(head)
    theirs, ours = adapted(load_pair(folder, head), family, head)
    assert type(ours) is type(theirs)
    assert ours.get_nb_trainable_parameters() == theirs.get_nb_trainable_parameters()
    torch.testing.assert_close(train(ours, batches), train(theirs, batches), atol=1e-5, rtol=1e-5)

    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    trained = logits(ours, batches[0])
    for saved in ("ours", "theirs"):
        loaded = peft.PeftModel.from_pretrained(load_pair(folder, head).ours, tmp_path / saved)
        torch.testing.assert_close(logits(loaded.eval(), batches[0]), trained, atol=1e-4, rtol=1e-4)
    of_theirs = peft.PeftModel.from_pretrained(load_pair(folder, head).theirs, tmp_path / "ours").eval()
    torch.testing.assert_close(logits(of_theirs, batches[0]), trained, atol=1e-4, rtol=1e-4)

    merged = ours.merge_and_unload()
    torch.testing.assert_close(logits(merged, batches[0]), trained, atol=1e-5, rtol=1e-5)
    if head != "sequence" or family == "llama":  # what peft leaves around a classifier is no model of the family
        assert own_computation(merged, ModuleParts.of(merged)) is None
    merged.save_pretrained(tmp_path / "merged")
    again = type(merged).from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(again, batches[0]), trained, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "head"), [("llama", "causal"), ("gpt2", "causal"), ("bart", "seq2seq")])
def test_generate_sees_the_adapter(family: str, head: str, model_folder: Callable[[str, str], Path]) -> None:
    plain = load_pair(model_folder(family, head), head).ours
    theirs, ours = adapted(load_pair(model_folder(family, head), head), family, head)
    batch = {"input_ids": make_batches(head)[0]["input_ids"][::2]}  # those without padding
    settings = {"max_new_tokens": 8, "do_sample": False, "min_new_tokens": 8}
    expected = theirs.generate(**batch, **settings)
    assert torch.equal(ours.generate(**batch, **settings), expected)
    assert not torch.equal(plain.generate(**batch, **settings), expected)
    base = ours.get_base_model()
    assert own_computation(base, ModuleParts.of(base)) is not None  # so no engine runs it that reads parameters alone
    with ours.disable_adapter():
        assert torch.equal(ours.generate(**batch, **settings), plain.generate(**batch, **settings))


def test_all_linear_layers_are_the_same_ones(model_folder: Callable[[str, str], Path]) -> None:
    for family, head in (("llama", "causal"), ("gpt2", "causal"), ("bert", "sequence")):
        theirs, ours = (
            peft.get_peft_model(model, peft.LoraConfig(task_type=TASKS[head], target_modules="all-linear"))
            for model in load_pair(model_folder(family, head), head)
        )
        assert sorted(ours.base_model.targeted_module_names) == sorted(theirs.base_model.targeted_module_names)


def test_resized_embeddings_are_saved_with_the_adapter(model_folder: Callable[[str, str], Path], tmp_path: Path) -> None:
    models = load_pair(model_folder("llama", "causal"), "causal")
    for model in models:
        torch.manual_seed(0)
        model.resize_token_embeddings(170, mean_resizing=False)
    for name, model in zip(("theirs", "ours"), adapted(models, "llama", "causal"), strict=True):
        model.save_pretrained(tmp_path / name)
    ours, theirs = (peft.utils.load_peft_weights(str(tmp_path / name), device="cpu") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert any("embed_tokens" in name for name in ours)


@pytest.mark.parametrize("kind", ["dora", "rslora", "embedding", "modules_to_save"])
def test_other_kinds_of_lora(kind: str, model_folder: Callable[[str, str], Path]) -> None:
    settings: dict[str, Any] = {
        "dora": {"use_dora": True}, "rslora": {"use_rslora": True},
        "embedding": {"target_modules": ["embed_tokens", "q_proj"]}, "modules_to_save": {"modules_to_save": ["lm_head"]},
    }[kind]  # fmt: skip
    theirs, ours = adapted(load_pair(model_folder("llama", "causal"), "causal"), "llama", "causal", **settings)
    batches = make_batches("causal")
    torch.testing.assert_close(train(ours, batches), train(theirs, batches), atol=1e-5, rtol=1e-5)


def test_an_adapter_is_trained_with_recomputed_activations(model_folder: Callable[[str, str], Path]) -> None:
    theirs, ours = load_pair(model_folder("llama", "causal"), "causal")
    for model in (theirs, ours):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    theirs, ours = adapted(Pair(theirs, ours), "llama", "causal")
    batches = make_batches("causal")
    torch.testing.assert_close(train(ours, batches), train(theirs, batches), atol=1e-5, rtol=1e-5)
