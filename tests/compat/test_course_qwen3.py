"""The course's walk on a Qwen3 checkpoint (tiny inside, true vocabulary and tokenizer), with only the import changed.

Numbers depend on weights; shapes, types, names and printed forms are what must agree.
"""

from __future__ import annotations

import pprint
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BatchEncoding,
    ModelOutput,
    Qwen3ForCausalLM,
)

CHAT = [{"role": "user", "content": "how are you?"}]
PROMPT = "<|im_start|>user\nhow are you?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
IDS = [151644, 872, 198, 5158, 525, 498, 30, 151645, 198, 151644, 77091, 198, 151667, 271, 151668, 271]
TEMPLATE: dict[str, Any] = {"add_generation_prompt": True, "enable_thinking": False}


@pytest.fixture(scope="module")
def tokenizer(tiny_qwen3: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_qwen3)


@pytest.fixture(scope="module")
def model(tiny_qwen3: Path) -> Any:
    device = torch.get_default_device()
    loaded = AutoModelForCausalLM.from_pretrained(str(tiny_qwen3)).to(device)
    assert loaded.requires_grad_(False) is loaded
    return loaded


class TestTextGeneration:
    """Text in, text out."""

    def test_tokens_print_as_in_the_course(self, tokenizer: Any) -> None:
        token = tokenizer("Hi!", return_tensors="pt")
        assert pprint.pformat(token) == "{'input_ids': tensor([[13048,     0]]), 'attention_mask': tensor([[1, 1]])}"
        assert isinstance(token, BatchEncoding)

    def test_generate_and_decode(self, model: Any, tokenizer: Any) -> None:
        token = tokenizer("Hi!", return_tensors="pt")
        result = model.generate(**token, max_new_tokens=20)
        assert result[0, :2].tolist() == [13048, 0]
        assert 3 <= result.shape[1] <= 22
        (text,) = tokenizer.decode(result)
        assert text.startswith("Hi!")
        assert tokenizer.decode(result[0, token["input_ids"].shape[1] :], skip_special_tokens=True) == text[3:]

    def test_chat_template_text_and_ids(self, tokenizer: Any) -> None:
        assert tokenizer.apply_chat_template(CHAT, tokenize=False, **TEMPLATE) == PROMPT
        tokens = tokenizer.apply_chat_template(CHAT, return_tensors="pt", **TEMPLATE)
        assert tokens["input_ids"].tolist() == [IDS]
        assert tokenizer(PROMPT, return_tensors="pt")["input_ids"].tolist() == [IDS]
        flat = tokenizer.apply_chat_template(CHAT, return_tensors="pt", return_dict=False, **TEMPLATE)
        assert torch.equal(flat, tokens["input_ids"])
        assert list(zip(IDS, tokenizer.convert_ids_to_tokens(tokens["input_ids"][0]), strict=True))[3:6] == [
            (5158, "how"),
            (525, "Ġare"),
            (498, "Ġyou"),
        ]

    def test_thinking_changes_the_prompt(self, model: Any, tokenizer: Any) -> None:
        thinking = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, enable_thinking=True, return_tensors="pt")
        assert thinking["input_ids"].shape == (1, 12)
        assert model.generate(**thinking, max_new_tokens=2).shape[1] == 14


class TestStructure:
    """Base model and head, shape by shape."""

    def test_print_of_the_model(self, tiny_qwen3: Path) -> None:
        text = str(Qwen3ForCausalLM.from_pretrained(tiny_qwen3))
        assert text == PRINTED

    def test_shapes_from_ids_to_logits(self, model: Any, tokenizer: Any) -> None:
        tokens = tokenizer.apply_chat_template(CHAT, return_tensors="pt", **TEMPLATE)
        base, head = model.model, model.lm_head
        assert base.__class__.__name__ == "Qwen3Model"
        assert model.base_model is base
        assert str(head) == "Linear(in_features=32, out_features=151936, bias=False)"
        output = base(**tokens)
        assert output.last_hidden_state.shape == (1, 16, 32)
        scores = head(output.last_hidden_state)
        assert scores.shape == (1, 16, 151936)
        assert (tokenizer.vocab_size, len(tokenizer.vocab)) == (151643, 151669)
        best, index = scores[:, -1, :].topk(1, dim=-1)
        assert best.shape == index.shape == (1, 1)
        assert isinstance(tokenizer.decode(index), list)
        assert isinstance(tokenizer.decode(index[0]), str)
        assert isinstance(tokenizer.decode(index[0, 0]), str)
        assert torch.equal(scores, model(**tokens).logits)

    def test_output_fields_by_name_key_and_index(self, model: Any, tokenizer: Any) -> None:
        tokens = tokenizer("Hi", return_tensors="pt")
        output = model.model(**tokens)
        text = repr(output)
        assert text.startswith("BaseModelOutputWithPast(last_hidden_state=tensor([[[")
        layers = ", ".join(["DynamicLayer"] * 3)
        assert text.endswith(f"past_key_values=DynamicCache(layers=[{layers}]), hidden_states=None, attentions=None)")
        whole = model.forward(tokens["input_ids"])
        printed = pprint.pformat(whole)
        order = [
            printed.index(name)
            for name in ("loss=None", "logits=", "past_key_values=", "hidden_states=None", "attentions=None")
        ]
        assert order == sorted(order)
        assert isinstance(whole, ModelOutput)
        assert whole["logits"] is whole.logits is whole[0]
        assert list(whole.keys()) == ["logits", "past_key_values"]
        assert len(whole) == 2
        assert "logits" in whole
        assert "loss" not in whole
        assert list(whole) == list(whole.keys())
        assert [name for name, _ in whole.items()] == list(whole.keys())
        assert next(iter(whole.values())) is whole.to_tuple()[0]
        assert whole[:1] == (whole.logits,)

    def test_attentions_and_hidden_states_on_request(self, model: Any, tokenizer: Any) -> None:
        tokens = tokenizer("Hi dog how are you?", return_tensors="pt")
        output = model(**tokens, output_hidden_states=True, output_attentions=True)
        assert len(output.hidden_states) == 4
        assert [a.shape for a in output.attentions] == [(1, 4, 6, 6)] * 3
        assert torch.allclose(output.attentions[0].sum(-1), torch.ones(1, 4, 6))

    def test_later_tokens_do_not_change_earlier_logits(self, model: Any, tokenizer: Any) -> None:
        short, long = (model(**tokenizer(text, return_tensors="pt")).logits for text in ("Hi dog", "Hi dog how are you?"))
        assert torch.allclose(short[:, 1], long[:, 1], atol=1e-5)
        other = model(**tokenizer("Hello dog", return_tensors="pt")).logits
        assert not torch.allclose(short[:, 1], other[:, 1], atol=1e-3)

    def test_generation_config_belongs_to_the_model(self, tiny_qwen3: Path, tokenizer: Any) -> None:
        fresh = AutoModelForCausalLM.from_pretrained(tiny_qwen3)
        fresh.generation_config.max_new_tokens = 3
        assert fresh.generate(**tokenizer("Hi", return_tensors="pt"), eos_token_id=None).shape == (1, 4)
        assert fresh.config.eos_token_id == 151645
        assert fresh.generation_config.eos_token_id == 151645


class TestGenerationAsClassification:
    """Text generation is sequence classification in a for-loop."""

    def test_a_loop_of_classifications_gives_the_generated_text(self, tiny_qwen3: Path, model: Any, tokenizer: Any) -> None:
        classifier = AutoModelForSequenceClassification.from_pretrained(
            tiny_qwen3, num_labels=model.config.vocab_size, key_mapping={"lm_head.weight": "score.weight"}
        )
        assert type(classifier).__name__ == "Qwen3ForSequenceClassification"
        ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
        expected = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
        for _ in range(6):
            scores = classifier.forward(ids).logits
            assert scores.shape == (1, 151936)
            ids = torch.cat((ids, scores.topk(1, -1).indices), 1)
        assert ids.tolist() == expected.tolist()
        assert classifier.score.weight is classifier.model.embed_tokens.weight  # stored once, shared still


def test_text_instead_of_ids_is_refused(model: Any) -> None:
    for call in (model.generate, model, model.model):
        with pytest.raises(TypeError, match="not str"):
            call("this is a test input")


def test_generate_documents_its_arguments(model: Any) -> None:
    text = model.generate.__doc__
    for word in ("max_new_tokens", "temperature", "attention_mask", "Returns", "Example", "seed", "streamer"):
        assert word in text


PRINTED = """Qwen3ForCausalLM(
  (model): Qwen3Model(
    (embed_tokens): Embedding(151936, 32)
    (layers): ModuleList(
      (0-2): 3 x Qwen3DecoderLayer(
        (self_attn): Qwen3Attention(
          (q_proj): Linear(in_features=32, out_features=32, bias=False)
          (k_proj): Linear(in_features=32, out_features=16, bias=False)
          (v_proj): Linear(in_features=32, out_features=16, bias=False)
          (o_proj): Linear(in_features=32, out_features=32, bias=False)
          (q_norm): Qwen3RMSNorm((8,), eps=1e-06)
          (k_norm): Qwen3RMSNorm((8,), eps=1e-06)
        )
        (mlp): Qwen3MLP(
          (gate_proj): Linear(in_features=32, out_features=64, bias=False)
          (up_proj): Linear(in_features=32, out_features=64, bias=False)
          (down_proj): Linear(in_features=64, out_features=32, bias=False)
          (act_fn): SiLUActivation()
        )
        (input_layernorm): Qwen3RMSNorm((32,), eps=1e-06)
        (post_attention_layernorm): Qwen3RMSNorm((32,), eps=1e-06)
      )
    )
    (norm): Qwen3RMSNorm((32,), eps=1e-06)
    (rotary_emb): Qwen3RotaryEmbedding()
  )
  (lm_head): Linear(in_features=32, out_features=151936, bias=False)
)"""
