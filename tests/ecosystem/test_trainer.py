"""transformers' trainers, accelerate and datasets on our models and tokenizer, as on transformers' own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import datasets
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

import glassformer
from glassformer.torch.container import Block
from tests.ecosystem.models import TEXTS, load_pair, load_tokenizers, make_batches
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")
COLLATORS = {
    "causal": "DataCollatorForLanguageModeling", "masked": "DataCollatorForLanguageModeling",
    "sequence": "DataCollatorWithPadding", "token": "DataCollatorForTokenClassification",
    "seq2seq": "DataCollatorForSeq2Seq",
}  # fmt: skip
MODELS = [("llama", "causal"), ("qwen3", "causal"), ("bert", "sequence"), ("bert", "masked"), ("distilbert", "token"),
          ("bart", "seq2seq")]  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet_datasets() -> None:
    datasets.disable_progress_bars()
    datasets.disable_caching()


def dataset(tokenizer: Any, head: str) -> datasets.Dataset:
    """Texts through `map`, with the labels that a head wants."""

    def encode(rows: dict[str, list[str]]) -> Any:
        encoded = tokenizer(rows["text"], text_target=rows["text"] if head == "seq2seq" else None, truncation=True)
        if head == "sequence":
            encoded["label"] = [len(text) % 2 for text in rows["text"]]
        elif head == "token":
            encoded["labels"] = [[number % 2 for number in row] for row in encoded["input_ids"]]
        return encoded

    return datasets.Dataset.from_dict({"text": list(TEXTS) * 3}).map(encode, batched=True, remove_columns="text")


def trainer_for(model: Any, tokenizer: Any, head: str, folder: Path, library: Any, **settings: Any) -> Any:
    name = "Seq2Seq" if head == "seq2seq" else ""
    options = {"mlm": head == "masked", "seed": 1} if COLLATORS[head].endswith("Modeling") else {}
    arguments = getattr(transformers, f"{name}TrainingArguments")(
        output_dir=str(folder), per_device_train_batch_size=4, per_device_eval_batch_size=4, max_steps=4, logging_steps=1,
        learning_rate=1e-3, report_to=[], disable_tqdm=True, use_cpu=True, seed=0, **{"save_strategy": "no", **settings},
    )  # fmt: skip
    rows = dataset(tokenizer, head)
    return getattr(transformers, f"{name}Trainer")(
        model, arguments, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer,
        data_collator=getattr(library, COLLATORS[head])(tokenizer, **options),
    )  # fmt: skip


def losses(trainer: Any) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(("family", "head"), mostly_swept(MODELS, *(one for one in MODELS if one[0] != "qwen3")))
def test_a_trainer_trains_evaluates_and_saves(
    family: str, head: str, model_folder: Callable[[str, str], Path], tokenizer_folder: Path, tmp_path: Path
) -> None:
    models, tokenizers = load_pair(model_folder(family, head), head), load_tokenizers(tokenizer_folder)
    settings = {"predict_with_generate": True, "generation_max_length": 8} if head == "seq2seq" else {}
    library = transformers if head in ("masked", "seq2seq") else glassformer  # whose collators are used
    ours = trainer_for(models.ours, tokenizers.ours, head, tmp_path / "ours", library, **settings)
    theirs = trainer_for(models.theirs, tokenizers.theirs, head, tmp_path / "theirs", transformers, **settings)
    assert losses(ours) == pytest.approx(losses(theirs), abs=1e-4)
    assert ours.evaluate()["eval_loss"] == pytest.approx(theirs.evaluate()["eval_loss"], abs=1e-4)
    predicted, expected = ours.predict(ours.eval_dataset), theirs.predict(theirs.eval_dataset)
    assert predicted.label_ids.tolist() == expected.label_ids.tolist()
    if head == "seq2seq":
        assert predicted.predictions.tolist() == expected.predictions.tolist()
    ours.save_model(str(tmp_path / "saved"))
    assert {"config.json", "tokenizer.json"} <= {path.name for path in (tmp_path / "saved").iterdir()}
    for library in (glassformer, transformers):
        again = getattr(library, type(models.theirs).__name__).from_pretrained(tmp_path / "saved").eval()
        batch = {name: value for name, value in make_batches("sequence")[0].items() if name == "input_ids"}
        with torch.no_grad():
            torch.testing.assert_close(again(**batch)[0], models.ours.eval()(**batch)[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"every_n_layers": 2}, {"offload": True}], ids=["all", "every other", "offloaded"])
def test_recomputed_activations_train_alike(
    options: dict[str, Any], model_folder: Callable[[str, str], Path], tokenizer_folder: Path, tmp_path: Path
) -> None:
    models, tokenizers = load_pair(model_folder("bart", "seq2seq"), "seq2seq"), load_tokenizers(tokenizer_folder)
    shared = {name: value for name, value in options.items() if name != "offload"}  # theirs needs a GPU for it
    settings = [{"gradient_checkpointing": True, "gradient_checkpointing_kwargs": own} for own in (shared, options)]
    runs = [
        losses(trainer_for(model, tokenizer, "seq2seq", tmp_path, transformers, **own))
        for model, tokenizer, own in zip(models, tokenizers, settings, strict=True)
    ]
    assert runs[1] == pytest.approx(runs[0], abs=1e-4)
    blocks = [module for module in models.ours.modules() if isinstance(module, Block)]
    every = options.get("every_n_layers", 1)
    assert [block.recompute for block in blocks] == [number % every == 0 for number in range(len(blocks))]
    assert all(block.offload == options.get("offload", False) for block in blocks)


def test_checkpoints_are_resumed_from_and_the_best_is_loaded(
    model_folder: Callable[[str, str], Path], tokenizer_folder: Path, tmp_path: Path
) -> None:
    def trainer() -> Any:
        model = load_pair(model_folder("gpt2", "causal"), "causal").ours  # whose head shares the embedding's weight
        tokenizer = load_tokenizers(tokenizer_folder).ours
        steps = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
        return trainer_for(model, tokenizer, "causal", tmp_path / "run", glassformer, **steps, load_best_model_at_end=True)

    whole = losses(trainer())
    assert (tmp_path / "run" / "checkpoint-2" / "config.json").exists()
    resumed = trainer()
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    again = [entry["loss"] for entry in resumed.state.log_history if "loss" in entry]
    assert again == pytest.approx(whole, abs=1e-5)


def test_unused_columns_are_left_out(
    model_folder: Callable[[str, str], Path], tokenizer_folder: Path, tmp_path: Path
) -> None:
    model = load_pair(model_folder("bert", "sequence"), "sequence").ours
    trainer = trainer_for(model, load_tokenizers(tokenizer_folder).ours, "sequence", tmp_path, transformers)
    trainer.train_dataset = trainer.train_dataset.add_column("note", ["x"] * len(trainer.train_dataset))
    batch = next(iter(trainer.get_train_dataloader()))
    assert set(batch) == {"input_ids", "attention_mask", "labels"}


def test_accelerate_prepares_clips_and_keeps_states(model_folder: Callable[[str, str], Path], tmp_path: Path) -> None:
    def run(model: Any) -> tuple[list[float], Any]:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        rows = [{name: value[row] for name, value in batch.items()} for batch in make_batches("causal") for row in range(3)]
        model, optimizer, loader = accelerator.prepare(model.train(), optimizer, DataLoader(rows, batch_size=3))
        seen = []
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                seen.append(accelerator.gather(loss.detach()).item())
        accelerator.save_state(tmp_path / type(model).__module__)
        kept = [value.clone() for value in model.parameters()]
        with torch.no_grad():
            for value in model.parameters():
                value.zero_()
        accelerator.load_state(tmp_path / type(model).__module__)
        assert all(torch.equal(now, before) for now, before in zip(model.parameters(), kept, strict=True))
        assert accelerator.unwrap_model(model) is model
        return seen, model

    theirs, ours = load_pair(model_folder("gpt2", "causal"), "causal")
    (expected, _), (result, model) = run(theirs), run(ours)
    assert result == pytest.approx(expected, abs=1e-5)
    model.save_pretrained(tmp_path / "saved", state_dict=model.state_dict(), is_main_process=True)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "gpt2"
