"""The course's chapter from structure to calls, with only the import changed: BERT, GPT-2 and T5, true outside, tiny inside.

Vocabularies, depths and numbers of heads are those of bert-base-uncased, gpt2 and t5-small, so the printed shapes are the
chapter's; the weights are random and narrow.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from glassformer import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from tests.parity.reference import write

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """MiniLM's vocabulary is bert-base-uncased's."""
    folder = tmp_path_factory.mktemp("bert-base-uncased")
    write(folder, "bert", "PreTraining", vocab_size=30522, hidden_size=48, intermediate_size=64, num_hidden_layers=12,
          num_attention_heads=12, max_position_embeddings=512)  # fmt: skip
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm / name, folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory, gpt2_tokenizer: Path) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    write(folder, "gpt2", vocab_size=50257, n_embd=48, n_layer=12, n_head=12, n_positions=1024, bos_token_id=50256,
          eos_token_id=50256)  # fmt: skip
    for file in gpt2_tokenizer.iterdir():
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its own words are not to be had here, so it has a few of the example's."""
    folder = tmp_path_factory.mktemp("t5-small")
    write(folder, "t5", "Seq2SeqLM", d_model=48, d_kv=6, d_ff=64, num_layers=6, num_decoder_layers=6, num_heads=8,
          decoder_start_token_id=0)  # fmt: skip
    words = ["<pad>", "</s>", "<unk>", ":", "."]
    words += [f"▁{word}" for word in ("Translate", "English", "to", "German", "I", "love", "deep", "learning", "Ich")]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram([(word, -1.0) for word in words], unk_id=2))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    made.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    made.add_special_tokens(["<pad>", "</s>", "<unk>"])
    made.save(str(folder / "tokenizer.json"))
    return folder


class TestEncoderOnly:
    def test_text_to_ids(self, bert: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(bert)
        inputs = tokenizer("I love deep learning.", return_tensors="pt")
        assert list(inputs) == ["input_ids", "token_type_ids", "attention_mask"]
        assert inputs["input_ids"].tolist() == [[101, 1045, 2293, 2784, 4083, 1012, 102]]
        batch = tokenizer(["I love deep learning.", "Good morning!"], padding=True)
        assert batch["attention_mask"] == [[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]
        assert tokenizer.convert_ids_to_tokens(batch["input_ids"][1]) == [
            "[CLS]", "good", "morning", "!", "[SEP]", "[PAD]", "[PAD]",
        ]  # fmt: skip

    def test_base_model_states(self, bert: Path) -> None:
        tokenizer, model = AutoTokenizer.from_pretrained(bert), AutoModel.from_pretrained(bert)
        outputs = model(**tokenizer("I love deep learning.", return_tensors="pt"))
        assert list(outputs.keys()) == ["last_hidden_state", "pooler_output"]
        assert outputs.last_hidden_state.shape == (1, 7, 48)
        assert outputs.pooler_output.shape == (1, 48)

    def test_sequence_classification_logits(self, bert: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(bert)
        model = AutoModelForSequenceClassification.from_pretrained(bert, num_labels=2, attn_implementation="eager")
        assert model(**tokenizer("This movie is great!", return_tensors="pt")).logits.shape == (1, 2)
        inputs = tokenizer(["This movie is great!", "This movie is terrible!"], return_tensors="pt", padding=True)
        assert model(**inputs, labels=torch.tensor([1, 0])).loss.item() > 0

    def test_token_classification_logits(self, bert: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(bert)
        model = AutoModelForTokenClassification.from_pretrained(bert, num_labels=9)
        assert model(**tokenizer("I love deep learning.", return_tensors="pt")).logits.shape == (1, 7, 9)

    def test_attentions_and_hidden_states(self, bert: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(bert)
        model = AutoModelForSequenceClassification.from_pretrained(bert, num_labels=2, attn_implementation="eager")
        inputs = tokenizer("I love deep learning.", return_tensors="pt")
        outputs = model(**inputs, output_attentions=True, output_hidden_states=True)
        assert (len(outputs.attentions), outputs.attentions[0].shape) == (12, (1, 12, 7, 7))
        assert (len(outputs.hidden_states), outputs.hidden_states[-1].shape) == (13, (1, 7, 48))
        attn = outputs.attentions[-1][0, 0]
        assert torch.allclose(attn.sum(-1), torch.ones(7), atol=1e-5)


class TestDecoderOnly:
    def test_logits_of_every_position(self, gpt2: Path) -> None:
        tokenizer, model = AutoTokenizer.from_pretrained(gpt2), AutoModelForCausalLM.from_pretrained(gpt2)
        inputs = tokenizer("I love deep", return_tensors="pt")
        logits = model(**inputs).logits
        assert logits.shape == (1, 3, 50257)
        assert logits[:, -1, :].shape == (1, 50257)
        assert model(**inputs, labels=inputs["input_ids"]).loss.item() > 0

    def test_generate_continues_the_prompt(self, gpt2: Path) -> None:
        tokenizer, model = AutoTokenizer.from_pretrained(gpt2), AutoModelForCausalLM.from_pretrained(gpt2)
        inputs = tokenizer("The last human on Earth heard a knock at the door and", return_tensors="pt")
        sampled: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_p": 0.9}
        with torch.inference_mode():
            for settings in ({}, sampled):
                output_ids = model.generate(**inputs, max_new_tokens=10, **settings)
                text = tokenizer.decode(output_ids[0], skip_special_tokens=True)
                assert text.startswith("The last human on Earth heard a knock at the door and")

    def test_a_kv_cache_gives_the_same_logits(self, gpt2: Path) -> None:
        tokenizer, model = AutoTokenizer.from_pretrained(gpt2), AutoModelForCausalLM.from_pretrained(gpt2)
        ids = tokenizer("I love deep learning because", return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            outputs = model(input_ids=ids[:, :-1], use_cache=True)
            later = model(input_ids=ids[:, -1:], past_key_values=outputs.past_key_values, use_cache=True)
            assert torch.allclose(later.logits[:, -1], model(ids).logits[:, -1], atol=1e-4)


def test_encoder_decoder_logits_and_generate(t5: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(t5), AutoModelForSeq2SeqLM.from_pretrained(t5)
    inputs = tokenizer("Translate English to German: I love deep learning.", return_tensors="pt")
    with torch.inference_mode():
        output_ids = model.generate(**inputs, max_new_tokens=8)
        assert isinstance(tokenizer.decode(output_ids[0], skip_special_tokens=True), str)
        outputs = model(**inputs, decoder_input_ids=output_ids, output_attentions=True, output_hidden_states=True)
    length, source = output_ids.shape[1], inputs["input_ids"].shape[1]
    assert [one.shape for one in outputs.cross_attentions] == [(1, 8, length, source)] * 6
    assert outputs.encoder_last_hidden_state.shape == (1, source, 48)
    assert (len(outputs.decoder_hidden_states), len(outputs.encoder_hidden_states)) == (7, 7)
    assert outputs.decoder_attentions[0].shape == (1, 8, length, length)
    assert outputs.encoder_attentions[0].shape == (1, 8, source, source)
