"""T5Gemma's labels, by both stacks and by its encoder alone, and one file opened as either."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import glassformer
from glassformer import pipeline
from tests.parity import reference
from tests.parity.compare import Pair, close, ids_for, pair, ragged, same_fields
from tests.sweeps import swept
from tests.tasks.conftest import same

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.every_family]

FAMILIES = ("t5gemma", "t5gemma_encoder")
HEADS = ("sequence", "token")
SEEDS = [0, 1, *swept(range(2, 20))]
ALL = {"output_hidden_states": True, "output_attentions": True}
TEXTS = ["the quick brown fox", "how are you today?", "the answer is forty two, says the guide"]


@pytest.fixture(scope="module", params=SEEDS)
def changes(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**reference.random_changes("t5gemma", request.param), "num_labels": 4}


@pytest.fixture
def both_stacks(changes: dict[str, Any], tmp_path: Path) -> dict[str, Pair]:
    return {head: pair(tmp_path / head, "t5gemma", head, **changes) for head in HEADS}


@torch.no_grad()
class TestBothStacks:
    def test_every_output_of_texts_alone(self, both_stacks: dict[str, Pair]) -> None:
        for models in both_stacks.values():
            ids = ids_for(models.theirs, 2, 9)
            same_fields(models.ours(ids, **ALL), models.theirs(ids, **ALL))

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_a_padded_row_equals_the_row_alone(self, both_stacks: dict[str, Pair], side: str) -> None:
        """And what the reference says of that."""
        for head, models in both_stacks.items():
            rows, padded, mask = ragged(models.theirs, (11, 4, 8), side)
            together = models.ours(padded, attention_mask=mask).logits
            for number, row in enumerate(rows):
                logits = together[number][mask[number].bool()] if head == "token" else together[number]
                close(logits, models.theirs(row[None]).logits[0])

    def test_labels_of_padded_tokens_equal_the_references(self, both_stacks: dict[str, Pair]) -> None:
        models = both_stacks["token"]
        _, padded, mask = ragged(models.theirs, (11, 4, 8))
        expected, result = (model(padded, attention_mask=mask).logits for model in (models.theirs, models.ours))
        close(result[mask.bool()], expected[mask.bool()])

    def test_a_target_of_the_callers_own(self, both_stacks: dict[str, Pair]) -> None:
        """It begins with a token more than the source, so its labels are read off one column further on."""
        for models in both_stacks.values():
            _, padded, mask = ragged(models.theirs, (11, 4, 8))
            for length in (13, 12, 6):
                target = ids_for(models.theirs, 3, length, seed=4)
                inputs = {"input_ids": padded, "attention_mask": mask, "decoder_input_ids": target}
                close(models.ours(**inputs).logits, models.theirs(**inputs).logits)

    def test_where_a_text_ends_is_known_by_its_padding_without_a_mask(self, both_stacks: dict[str, Pair]) -> None:
        models = both_stacks["sequence"]
        ids = ids_for(models.theirs, 1, 6)
        close(models.ours(ids, inputs_embeds=None).logits, models.theirs(ids).logits)
        target = ids_for(models.theirs, 1, 5, seed=4)
        states = models.ours.base_model.run_encoder(ids)
        alone = models.ours(encoder_outputs=states, decoder_input_ids=target).logits
        close(alone, models.ours(ids, decoder_input_ids=target).logits)


class TestTheEncoderOfBothStacks:
    @pytest.fixture
    def folder(self, changes: dict[str, Any], tmp_path: Path) -> Path:
        reference.write(tmp_path, "t5gemma", "seq2seq", **changes)
        return tmp_path

    @torch.no_grad()
    def test_it_is_read_alone(self, folder: Path) -> None:
        theirs = transformers.T5GemmaEncoderModel.from_pretrained(
            folder, is_encoder_decoder=False, attn_implementation="eager"
        ).eval()
        ids = ids_for(theirs, 2, 9)
        for cls in (glassformer.T5GemmaEncoderModel, glassformer.AutoModelForTextEncoding, glassformer.AutoModel):
            ours = cls.from_pretrained(folder, is_encoder_decoder=False)
            assert type(ours).__name__ == "T5GemmaEncoderModel"
            same_fields(ours(ids, **ALL), theirs(ids, **ALL))

    @torch.no_grad()
    def test_it_is_given_a_head_and_saved(self, folder: Path, tmp_path: Path) -> None:
        torch.manual_seed(0)
        named = glassformer.T5GemmaForSequenceClassification
        made = named.from_pretrained(folder, is_encoder_decoder=False, num_labels=3)
        made.save_pretrained(tmp_path / "labels")
        ids = ids_for(made, 2, 9)
        for cls in (named, glassformer.AutoModelForSequenceClassification):
            assert torch.equal(cls.from_pretrained(tmp_path / "labels")(ids).logits, made(ids).logits)
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
            tmp_path / "labels", attn_implementation="eager"
        )
        assert type(theirs).__name__ == named.__name__
        assert theirs.config.decoder.hidden_size == transformers.AutoConfig.from_pretrained(folder).decoder.hidden_size
        close(made(ids).logits, theirs.eval()(ids).logits)

    def test_a_config_says_which_it_is(self, folder: Path) -> None:
        whole = glassformer.AutoConfig.from_pretrained(folder)
        alone = glassformer.AutoConfig.from_pretrained(folder, is_encoder_decoder=False, num_labels=5)
        assert whole.is_encoder_decoder
        assert not alone.is_encoder_decoder
        assert alone.num_labels == 5
        assert alone.hidden_size == whole.encoder.hidden_size
        again = glassformer.AutoConfig.from_pretrained(folder, is_encoder_decoder=True)
        assert again.to_dict() == whole.to_dict()


@pytest.mark.parametrize("family", FAMILIES)
class TestTasks:
    @pytest.fixture
    def make(self, family: str, minilm: Path, tmp_path: Path) -> Any:
        def of(head: str) -> Path:
            sizes = {"vocab_size": 30522, "pad_token_id": 0}
            stacks = {name: {**reference.TINY[family][name], "vocab_size": 30522} for name in ("encoder", "decoder")}
            reference.write(tmp_path, family, head, **sizes, **stacks)
            shutil.copy(minilm / "tokenizer.json", tmp_path)
            kinds = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
            (tmp_path / "tokenizer_config.json").write_text(json.dumps({**kinds, "pad_token": "[PAD]"}))
            return tmp_path

        return of

    def test_texts_are_labelled_as_by_the_reference(self, make: Any) -> None:
        folder = make("sequence")
        theirs = transformers.pipeline("text-classification", str(folder), device="cpu")
        same(pipeline("text-classification", folder)(TEXTS), theirs(TEXTS))

    def test_tokens_are_labelled_as_by_the_reference(self, make: Any) -> None:
        folder = make("token")
        theirs = transformers.pipeline("token-classification", str(folder), device="cpu")
        same(pipeline("token-classification", folder)(TEXTS), theirs(TEXTS))

    def test_a_look_inside(self, make: Any, family: str) -> None:
        for head, about in (("sequence", "the label"), ("token", "the label of each token")):
            model = glassformer.load(make(head))
            assert model.head == head
            journey = model.look(TEXTS[0])
            assert journey.answers
            assert about in str(journey)

    def test_vectors(self, make: Any, family: str) -> None:
        if family == "t5gemma":
            return
        folder = make("base")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        theirs = transformers.T5GemmaEncoderModel.from_pretrained(folder)
        with torch.inference_mode():
            expected = [theirs(**tokenizer(text, return_tensors="pt"))[0][0].mean(0) for text in TEXTS]
        for executor in ("cpu", "plain"):
            vectors = pipeline("embed", glassformer.load(folder, executor=executor))(TEXTS)
            assert np.allclose(vectors, np.stack(expected), atol=1e-4), executor
