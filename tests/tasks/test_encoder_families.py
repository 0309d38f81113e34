"""Every encoder through the tasks, with the tokenizer that its checkpoints ship: gaps, labels, vectors, a look inside."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import glassformer
from glassformer import pipeline
from glassformer.ground.errors import ConfigError, InputError
from glassformer.ops.attend import Attend
from glassformer.see.inside.compute import OpValues
from tests.parity.reference import ENCODERS, write
from tests.tasks.conftest import same
from tests.text import models

pytestmark = pytest.mark.usefixtures("one_thread")

PIECES: dict[str, tuple[str, dict[str, Any]]] = {  # SentencePiece's file, and how it was trained
    "xlm-roberta": ("sentencepiece.bpe.model", models.XLM_ROBERTA),
    "albert": ("spiece.model", models.ALBERT),
    "deberta-v2": ("spm.model", models.DEBERTA),
}
FAMILIES = [pytest.param(family, marks=[] if family in PIECES else pytest.mark.sweep) for family in ENCODERS]
TEXTS = ["the quick brown fox", "how are you today?", "the answer is forty two, says the guide"]


@pytest.fixture
def make(minilm: Path, tmp_path: Path) -> Any:
    def of(family: str, head: str) -> Path:
        write(tmp_path, family, head, vocab_size=200 if family in PIECES else 30522)
        if family in PIECES:
            name, options = PIECES[family]
            (tmp_path / name).write_bytes(models.trained(**options))
        else:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(minilm / name, tmp_path)
        return tmp_path

    return of


@pytest.mark.parametrize("family", FAMILIES)
def test_gaps_are_filled_as_by_the_reference(make: Any, family: str) -> None:
    if family == "embedding_gemma":  # whose reference has no head for hidden tokens
        return
    folder = make(family, "masked")
    ours, theirs = pipeline("fill-mask", folder), transformers.pipeline("fill-mask", str(folder), device="cpu")
    text = f"the quick {theirs.tokenizer.mask_token} fox"
    same(ours(text), theirs(text))


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_labelled_as_by_the_reference(make: Any, family: str) -> None:
    folder = make(family, "sequence")
    theirs = transformers.pipeline("text-classification", str(folder), device="cpu")
    same(pipeline("text-classification", folder)(TEXTS), theirs(TEXTS))


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_means_of_the_references_states(make: Any, family: str) -> None:
    folder = make(family, "base")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder)
    with torch.inference_mode():
        expected = [model(**tokenizer(text, return_tensors="pt"))[0][0].mean(0) for text in TEXTS]
    for executor in ("cpu", "plain"):
        vectors = pipeline("embed", glassformer.load(folder, executor=executor))(TEXTS)
        assert np.allclose(vectors, np.stack(expected), atol=1e-4), executor


@pytest.mark.parametrize("family", FAMILIES)
def test_a_look_inside(make: Any, family: str) -> None:
    model = glassformer.load(make(family, "masked"))
    journey = model.look(f"the quick {model.tokenizer.mask_token} fox")
    assert journey.answers[0].about == "the masked token"
    reading = model.read("the quick brown fox")
    values = OpValues(reading, 1)
    for number, op in enumerate(model.blueprint.ops):
        if isinstance(op, Attend):  # its weights, computed from the queries, keys and distances that were read
            pattern = values.pattern(number)
            assert np.allclose(op.scores(values, number, 2).weights, pattern[2], atol=1e-5)


class TestElectrasDiscriminator:
    def test_it_says_which_tokens_were_replaced(self, make: Any) -> None:
        folder = make("electra", "discriminator")
        model = glassformer.load(folder)
        journey = model.look("the quick brown fox")
        tokens = model.tokenizer("the quick brown fox", return_tensors="pt")
        with torch.inference_mode():
            theirs = transformers.ElectraForPreTraining.from_pretrained(folder)(**tokens).logits[0].sigmoid()
        assert model.head == "discriminator"
        for answer in journey.answers:
            shares = {candidate.text: candidate.probability for candidate in answer.candidates}
            assert shares["replaced"] == pytest.approx(float(theirs[answer.position]), abs=1e-5)
            assert shares["original"] == pytest.approx(1 - shares["replaced"], abs=1e-6)

    def test_labels_of_another_shape_are_refused(self, make: Any) -> None:
        model = glassformer.AutoModelForPreTraining.from_pretrained(make("electra", "discriminator"))
        with pytest.raises(InputError, match=r"\(1, 3\)"):
            model(torch.tensor([[5, 6]]), labels=torch.tensor([[0, 1, 0]]))

    def test_other_families_have_none(self, make: Any) -> None:
        with pytest.raises(ConfigError, match="albert model .* AutoModelForPreTraining"):
            glassformer.AutoModelForPreTraining.from_pretrained(make("albert", "masked"))
