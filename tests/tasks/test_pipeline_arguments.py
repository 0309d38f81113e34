"""What scripts pass to `pipeline` and to its tasks beside texts: devices, dtypes, streamers, configs, datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.pipelines.pt_utils import KeyDataset

from glassformer import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, TextIteratorStreamer, TextStreamer, pipeline
from tests.patience import patience
from tests.tasks.conftest import Make, same

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["Ada lives", "Hi", "The quick brown fox"]
GREEDY = {"do_sample": False, "max_new_tokens": 5}


@pytest.fixture
def gpt2(make: Make) -> Path:
    return make("gpt2", "CausalLM")


@pytest.fixture
def classifier(make: Make) -> Path:
    return make("bert", "SequenceClassification")


def reference(task: str, folder: Path, **options: Any) -> Any:
    return transformers.pipeline(task, model=str(folder), tokenizer=str(folder), device="cpu", **options)


class TestDevices:
    @pytest.mark.parametrize("device_map", ["auto", "cpu", {"": "cpu"}, torch.device("cpu"), "balanced"])
    def test_a_map_names_a_device(self, classifier: Path, device_map: Any) -> None:
        task = pipeline("text-classification", classifier, device_map=device_map)
        assert task.device.type in ("cpu", "cuda")
        same(task("Hi"), pipeline("text-classification", classifier)("Hi"))


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16"])
def test_dtypes_by_name_and_by_torch(classifier: Path, name: str, dtype: Any) -> None:
    task = pipeline("text-classification", classifier, **{name: dtype})
    assert task.model.module.dtype is torch.bfloat16


class TestStreamer:
    def test_it_receives_what_the_references_does(self, gpt2: Path, capsys: pytest.CaptureFixture[str]) -> None:
        ours, theirs = pipeline("text-generation", gpt2), reference("text-generation", gpt2)
        expected = theirs(TEXTS[0], streamer=transformers.TextStreamer(theirs.tokenizer), **GREEDY)
        printed = capsys.readouterr().out
        same(ours(TEXTS[0], streamer=TextStreamer(ours.tokenizer), **GREEDY), expected)
        assert capsys.readouterr().out == printed

    def test_several_texts_come_one_after_the_other(self, gpt2: Path) -> None:
        task = pipeline("text-generation", gpt2)
        streamer = TextIteratorStreamer(task.tokenizer, timeout=patience(5))
        answers = task(TEXTS, streamer=streamer, batch_size=2, **GREEDY)
        for (answer,) in answers:
            assert "".join(streamer) == answer["generated_text"]
        assert answers == task(TEXTS, **GREEDY)

    def test_an_encoder_decoders(self, make: Make) -> None:
        task = pipeline("text2text-generation", make("bart", "Seq2SeqLM"))
        streamer = TextIteratorStreamer(task.tokenizer, timeout=patience(5), skip_prompt=True)
        (answer,) = task("Hi there", streamer=streamer, **GREEDY)
        assert "".join(streamer) == answer["generated_text"]


class TestGenerationConfig:
    def test_for_a_call_and_for_the_task(self, gpt2: Path) -> None:
        config = GenerationConfig(max_new_tokens=3, repetition_penalty=1.5)
        expected = reference("text-generation", gpt2)(
            TEXTS[0],
            generation_config=transformers.GenerationConfig(max_new_tokens=3, repetition_penalty=1.5, do_sample=False),
        )
        same(pipeline("text-generation", gpt2)(TEXTS[0], generation_config=config), expected)
        same(pipeline("text-generation", gpt2, generation_config=config)(TEXTS[0]), expected)

    def test_one_of_transformers(self, gpt2: Path) -> None:
        config = transformers.GenerationConfig(max_new_tokens=3, do_sample=False)
        expected = pipeline("text-generation", gpt2)(TEXTS[0], max_new_tokens=3)
        same(pipeline("text-generation", gpt2)(TEXTS[0], generation_config=config), expected)

    def test_with_a_model_of_an_auto_class(self, gpt2: Path) -> None:
        model, tokenizer = AutoModelForCausalLM.from_pretrained(gpt2), AutoTokenizer.from_pretrained(gpt2)
        model.generation_config.max_new_tokens = 2
        task = pipeline("text-generation", model=model, tokenizer=tokenizer)
        same(task(TEXTS[0]), pipeline("text-generation", gpt2)(TEXTS[0], max_new_tokens=2))


class TestManyInputs:
    rows = [{"text": text, "label": number} for number, text in enumerate(TEXTS)]

    @pytest.mark.parametrize("batch_size", [None, 1, 2])
    def test_datasets_and_generators_equal_the_reference(self, classifier: Path, batch_size: int | None) -> None:
        ours, theirs = pipeline("text-classification", classifier), reference("text-classification", classifier)
        expected = [*theirs(KeyDataset(self.rows, "text"), batch_size=batch_size or 1)]
        dataset = KeyDataset(self.rows, "text")
        assert isinstance(ours(dataset, batch_size=batch_size), Iterator)
        same([*ours(dataset, batch_size=batch_size)], expected)
        same([*ours((row["text"] for row in self.rows), batch_size=batch_size)], expected)
        same([*ours(iter(self.rows), batch_size=batch_size)], expected)

    def test_a_task_that_generates_takes_them_too(self, gpt2: Path) -> None:
        task = pipeline("text-generation", gpt2, **GREEDY)
        same([*task(KeyDataset(self.rows, "text"), batch_size=2)], task(TEXTS))
