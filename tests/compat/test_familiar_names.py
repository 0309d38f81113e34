"""The names that scripts for transformers import, and the methods that they call, beside the originals."""

from __future__ import annotations

import asyncio
import queue
import random
import threading
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import glassformer
from glassformer import blueprints
from glassformer.ground.errors import ConfigError, InputError, InputTypeError, UnknownArgument, WriteError
from glassformer.torch import base_class_for
from tests.ecosystem.models import load_tokenizers, write_tokenizer
from tests.parity import reference
from tests.patience import patience

CONFIGS = {
    f"{base_class_for(model_type).__name__.removesuffix('Model')}Config": model_type
    for model_type in blueprints.model_types()
    if model_type not in ("scratch", "embedding_gemma", "t5gemma_encoder")  # which the reference has by no name
}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    reference.build("gpt2", "causal").save_pretrained(folder)
    return folder


def tiny(name: str = "Llama", **changes: Any) -> Any:
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = getattr(glassformer, f"{name}Config")(**{**sizes, **changes})
    torch.manual_seed(0)
    return glassformer.AutoModelForCausalLM.from_config(config)


STATED = {"Glm4MoeConfig": {"head_dim": 128}}  # by itself it has heads of 42, of which RoPE would turn 21
COMPUTED = ("extra_fields", "architectures", "dtype", "layer_types", "no_rope_layers", "attention_types")


class TestConfigs:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_a_config_without_arguments_is_the_reference_s(self, name: str) -> None:
        config = getattr(glassformer, name)(**STATED.get(name, {}))
        theirs = getattr(transformers, name)(**STATED.get(name, {}))
        expected = type(config).read({**theirs.to_dict(), "model_type": config.model_type})
        for field in fields(config):
            if field.name not in COMPUTED:
                ours, wanted = getattr(config, field.name), getattr(expected, field.name)
                if field.name == "attn_config":  # theirs has what every config has, too
                    wanted = {setting: wanted[setting] for setting in ours}
                if field.name == "encoder":  # a config of its own; the same
                    wanted = replace(wanted, extra_fields={})
                assert ours == wanted, field.name
        assert isinstance(config, getattr(glassformer, name))
        assert isinstance(config, glassformer.PretrainedConfig)
        assert not isinstance(config, glassformer.GPT2Config if name != "GPT2Config" else glassformer.BertConfig)

    def test_a_default_of_half_a_pair_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="21 of"):
            glassformer.Glm4MoeConfig()

    def test_needed_fields_have_defaults_in_every_family(self) -> None:
        for model_type in CONFIGS.values():
            kind = blueprints.module_for(model_type).Config
            needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
            assert needed - {"rope", "local_rope"} <= kind.default_fields.keys(), model_type

    def test_fields_are_changed_by_attribute_and_checked(self) -> None:
        config: Any = glassformer.GPT2Config(n_embd=32, n_head=4)
        assert (config.hidden_size, config.n_embd) == (32, 32)
        config.use_cache = False
        config.n_embd = 64
        config.pad_token_id = 3
        assert (config.use_cache, config.hidden_size, config.pad_token_id) == (False, 64, 3)
        with pytest.raises(ConfigError, match="n_head"):
            config.n_head = 5
        assert config.n_head == 4

    def test_labels_agree_under_all_their_names(self) -> None:
        config: Any = glassformer.BertConfig()
        assert config.id2label == {0: "LABEL_0", 1: "LABEL_1"} == transformers.BertConfig().id2label
        assert "id2label" not in config.to_dict()
        config.num_labels = 3
        assert config.label2id == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
        config.label2id = {"no": 0, "yes": 1}
        assert (config.num_labels, config.id2label) == (2, {0: "no", 1: "yes"})
        assert config.to_dict()["label2id"] == {"no": 0, "yes": 1}

    def test_rope_and_what_only_the_file_has_are_read(self) -> None:
        config: Any = glassformer.LlamaConfig(rope_theta=5e5, pretraining_tp=1)
        assert config.rope_theta == 5e5
        assert config.rope_parameters["rope_theta"] == 5e5
        config.rope_theta = 1e6
        assert config.rope.theta == 1e6
        assert config.pretraining_tp == 1
        config.my_note = "kept"
        assert (config.my_note, config.to_dict()["my_note"]) == ("kept", "kept")
        with pytest.raises(AttributeError, match="no field 'nothing'"):
            _ = config.nothing

    def test_a_config_is_saved_and_read_again(self, tmp_path: Path, gpt2: Path) -> None:
        config: Any = glassformer.Qwen3Config(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
        config.save_pretrained(tmp_path / "new")
        assert (tmp_path / "new" / "config.json").read_text("utf-8") == config.to_json_string()
        assert glassformer.Qwen3Config.from_pretrained(str(tmp_path / "new")) == config
        assert glassformer.Qwen3Config.from_dict(config.to_dict()) == config
        assert transformers.AutoConfig.from_pretrained(tmp_path / "new").hidden_size == 16
        (tmp_path / "file").write_text("")
        with pytest.raises(WriteError, match="cannot be written"):
            config.save_pretrained(tmp_path / "file")

    def test_several_fields_are_changed_at_once(self) -> None:
        config: Any = glassformer.T5Config()
        config.update({"d_model": 64, "torch_dtype": "bfloat16"})
        assert (config.hidden_size, config.dtype, config.torch_dtype) == (64, "bfloat16", "bfloat16")


class TestModelParts:
    @pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "t5", "bart"])
    def test_embeddings_are_found_and_replaced(self, family: str, tmp_path: Path) -> None:
        head = {"bert": "masked", "t5": "seq2seq", "bart": "seq2seq"}.get(family, "causal")
        theirs = reference.build(family, head).eval()
        theirs.save_pretrained(tmp_path)
        auto = {"masked": "MaskedLM", "seq2seq": "Seq2SeqLM", "causal": "CausalLM"}[head]
        model = getattr(glassformer, f"AutoModelFor{auto}").from_pretrained(tmp_path)
        assert model.name_or_path == str(tmp_path)
        assert torch.equal(model.get_input_embeddings().weight, theirs.get_input_embeddings().weight)
        assert torch.equal(model.get_output_embeddings().weight, theirs.get_output_embeddings().weight)
        assert model.num_parameters() == theirs.num_parameters()
        assert model.num_parameters(exclude_embeddings=True) == (
            model.num_parameters() - model.get_input_embeddings().weight.numel()
        )
        ids = torch.tensor([[5, 6, 7]])
        more = {"decoder_input_ids": ids} if head == "seq2seq" else {}
        before = model(ids, **more).logits
        new = torch.nn.Embedding.from_pretrained(model.get_input_embeddings().weight.detach() * 2)
        new.scale = 1.0
        model.set_input_embeddings(new)
        assert model.get_input_embeddings() is new
        assert not torch.allclose(model(ids, **more).logits, before)

    @pytest.mark.parametrize("tied", [True, False])
    def test_a_vocabulary_grows_and_shrinks(self, tied: bool) -> None:
        model = tiny(tie_word_embeddings=tied)
        ids = torch.tensor([[5, 6, 7]])
        before, old = model(ids).logits, model.get_input_embeddings().weight.detach().clone()
        model.resize_token_embeddings(61, pad_to_multiple_of=8)
        after = model(ids).logits
        assert after.shape[-1] == model.config.vocab_size == 64
        assert torch.equal(after[..., :60], before)
        assert torch.allclose(model.get_input_embeddings().weight[63], old.mean(0))
        assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
        model.resize_token_embeddings(60, mean_resizing=False)
        assert torch.equal(model(ids).logits, before)
        assert len(model.generate(ids, max_new_tokens=2)[0]) == 5
        with pytest.raises(InputError, match="one token"):
            model.resize_token_embeddings(0)

    @pytest.mark.parametrize(
        "name",
        [
            "BertForMaskedLM",
            "RobertaForMaskedLM",
            "T5ForConditionalGeneration",
            "BartForConditionalGeneration",
            "Gemma4ForCausalLM",
        ],
    )
    def test_all_that_has_a_row_for_each_token_goes_with_the_vocabulary(self, name: str, tmp_path: Path) -> None:
        start, _, end = name.partition("For")
        family = {"Bert": "bert", "Roberta": "roberta", "T5": "t5", "Bart": "bart", "Gemma4": "gemma4_text"}[start]
        head = {"MaskedLM": "masked", "CausalLM": "causal"}.get(end, "seq2seq")
        reference.build(family, head).save_pretrained(tmp_path)
        model = getattr(glassformer, name).from_pretrained(tmp_path)
        ids = torch.tensor([[5, 6, 7]])
        more = {"decoder_input_ids": ids} if head == "seq2seq" else {}
        before = model(ids, **more).logits
        model.resize_token_embeddings(before.shape[-1] + 5)
        new = before.shape[-1] + 4
        assert torch.allclose(model(ids, **more).logits[..., :-5], before, atol=1e-6)
        assert torch.isfinite(model(torch.tensor([[5, new]]), **more).logits).all()

    def test_output_embeddings_can_be_replaced_where_there_are_any(self) -> None:
        model = tiny()
        new = torch.nn.Linear(16, 60, bias=False)
        model.set_output_embeddings(new)
        assert model.lm_head is new
        model.config.tie_word_embeddings = True
        model.tie_weights()
        assert new.weight is model.get_input_embeddings().weight
        assert model.base_model.get_output_embeddings() is None
        with pytest.raises(InputError, match="no output embeddings"):
            model.base_model.set_output_embeddings(new)

    def test_sizes(self) -> None:
        model = tiny()
        for parameter in model.lm_head.parameters():
            parameter.requires_grad_(False)
        assert model.num_parameters(only_trainable=True) == model.num_parameters() - 60 * 16
        assert model.get_memory_footprint(return_buffers=False) == 4 * model.num_parameters()
        assert model.get_memory_footprint() >= 4 * model.num_parameters()
        assert isinstance(model, glassformer.PreTrainedModel)
        assert model.can_generate()
        assert not glassformer.BertModel.can_generate()

    @pytest.mark.parametrize("name", ["Llama", "GPT2"])
    def test_recomputed_activations_give_the_same_gradients(self, name: str) -> None:
        model = tiny(name).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        ids = torch.tensor([[5, 6, 7, 8]])

        def gradients() -> list[torch.Tensor]:
            model.zero_grad()
            model(ids, labels=ids).loss.backward()
            return [parameter.grad.clone() for parameter in model.parameters()]

        kept = gradients()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        assert model.is_gradient_checkpointing
        passes = []
        block = model.base_model.layers[0] if name == "Llama" else model.base_model.h[0]
        block.mlp.register_forward_pre_hook(lambda *_: passes.append(1))
        recomputed = gradients()
        assert len(passes) == 2
        assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(kept, recomputed, strict=True))
        assert model(ids).past_key_values is None
        assert model.eval()(ids).past_key_values is not None
        model.gradient_checkpointing_disable()
        assert not model.is_gradient_checkpointing
        assert model.train()(ids).past_key_values is not None

    def test_tags_are_added_once_to_one_model(self) -> None:
        model = tiny()
        model.add_model_tags("trl")
        model.add_model_tags(["sft", "trl"])
        assert model.model_tags == ["trl", "sft"]
        assert tiny().model_tags is None

    def test_there_is_one_attention_which_no_config_holds(self) -> None:
        model = tiny()
        model.config._attn_implementation = "flash_attention_2"
        assert model.config._attn_implementation == "eager"
        assert "_attn_implementation" not in model.config.to_dict()

    def test_gradients_reach_the_embeddings_of_frozen_weights(self) -> None:
        model = tiny()
        model.requires_grad_(False)
        model.enable_input_require_grads()
        assert model(torch.tensor([[5, 6]])).logits.requires_grad

    def test_inputs_of_the_next_pass_are_the_new_tokens(self) -> None:
        model = tiny()
        ids = torch.tensor([[5, 6, 7]])
        cache = model(ids[:, :2], use_cache=True).past_key_values
        inputs = model.prepare_inputs_for_generation(ids, past_key_values=cache)
        assert inputs["input_ids"].tolist() == [[7]]
        assert torch.allclose(model(**inputs).logits[:, -1], model(ids).logits[:, -1], atol=1e-6)
        vectors = model.get_input_embeddings()(ids)
        assert model.prepare_inputs_for_generation(ids, inputs_embeds=vectors)["inputs_embeds"] is vectors

    def test_a_model_is_pushed_as_it_is_saved(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        import huggingface_hub

        pushed: dict[str, Any] = {}

        class Hub:
            def __init__(self, token: str | None) -> None:
                pushed["token"] = token

            def create_repo(self, repo_id: str, **options: Any) -> Any:
                pushed.update(options)
                return type("Repository", (), {"repo_id": f"me/{repo_id}"})

            def upload_folder(self, repo_id: str, folder_path: str, **options: Any) -> str:
                pushed.update(options)
                pushed["files"] = sorted(path.name for path in Path(folder_path).iterdir())
                return f"https://hub/{repo_id}"

        monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
        assert tiny().push_to_hub("tiny", private=True, token="t") == "https://hub/me/tiny"
        assert pushed["files"] == ["config.json", "generation_config.json", "model.safetensors"]
        assert (pushed["token"], pushed["private"]) == ("t", True)
        tiny().save_pretrained(tmp_path / "named", push_to_hub=True, private=False)
        assert pushed["private"] is False
        with pytest.raises(UnknownArgument, match="no argument 'private'"):
            tiny().save_pretrained(tmp_path / "named", private=True)
        tiny().save_pretrained(tmp_path / "other", is_main_process=False)
        assert not (tmp_path / "other").exists()


class TestTokenizers:
    @pytest.mark.parametrize(
        "name", ["BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast", "PreTrainedTokenizer"]
    )
    def test_tokenizers_are_opened_by_any_of_their_names(self, name: str, tmp_path: Path) -> None:
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
        (tmp_path / "vocab.txt").write_text("\n".join(tokens), "utf-8")
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}', "utf-8")
        tokenizer = getattr(glassformer, name).from_pretrained(tmp_path, padding_side="left")
        assert tokenizer("The cat")["input_ids"] == [2, 5, 6, 3]
        assert tokenizer.padding_side == "left"
        assert tokenizer.name_or_path == str(tmp_path)
        assert isinstance(tokenizer, getattr(glassformer, name))
        assert not isinstance(tokenizer, glassformer.GPT2Tokenizer)
        assert not isinstance("text", glassformer.PreTrainedTokenizerBase)

    def test_every_family_has_its_tokenizer_s_name(self) -> None:
        from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

        for model_type in CONFIGS.values():
            name = TOKENIZER_MAPPING_NAMES.get(model_type)
            if name is not None and name != "TokenizersBackend":
                assert getattr(glassformer, name).__name__ == name

    def test_a_tokenizer_is_made_from_files(self) -> None:
        with pytest.raises(InputTypeError, match="made from files: GPT2TokenizerFast.from_pretrained"):
            glassformer.GPT2TokenizerFast("vocab.json")
        with pytest.raises(AttributeError, match="NoSuchTokenizer"):
            _ = glassformer.NoSuchTokenizer

    def test_a_tokenizer_is_pushed_as_it_is_saved(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        import huggingface_hub

        pushed: dict[str, Any] = {}

        class Hub:
            def __init__(self, token: str | None) -> None: ...

            def create_repo(self, repo_id: str, **options: Any) -> Any:
                return type("Repository", (), {"repo_id": repo_id})

            def upload_folder(self, folder_path: str, **options: Any) -> str:
                pushed.update(options, files=sorted(path.name for path in Path(folder_path).iterdir()))
                return "https://hub/commit"

        monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
        tokenizer = load_tokenizers(write_tokenizer(tmp_path)).ours
        assert tokenizer.push_to_hub("me/words", create_pr=True) == "https://hub/commit"
        assert pushed["files"] == ["tokenizer.json", "tokenizer_config.json"]
        assert (pushed["create_pr"], pushed["repo_id"], pushed["commit_message"]) == (True, "me/words", "Upload tokenizer")
        with pytest.raises(UnknownArgument, match="'privat'"):
            tokenizer.push_to_hub("me/words", privat=True)


class TestGeneration:
    def test_own_processors_and_criteria(self) -> None:
        class Forbid(glassformer.LogitsProcessor):
            def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
                return scores.index_fill(1, torch.tensor([banned]), -torch.inf)

        class After(glassformer.StoppingCriteria):
            def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
                return torch.tensor([input_ids.shape[1] >= 5])

        model, ids = tiny(), torch.tensor([[5, 6, 7]])
        banned = int(model.generate(ids, max_new_tokens=1)[0, -1])
        result = model.generate(
            ids, max_new_tokens=9, logits_processor=glassformer.LogitsProcessorList([Forbid()]),
            stopping_criteria=glassformer.StoppingCriteriaList([After()]),
        )  # fmt: skip
        assert result.shape == (1, 5)
        assert banned not in result[0, 3:].tolist()

    def test_lists_apply_their_members(self) -> None:
        ids, scores = torch.tensor([[1], [2]]), torch.zeros(2, 4)
        doubled = glassformer.LogitsProcessorList([lambda ids, scores: scores + 1, lambda ids, scores: scores * 2])
        assert torch.equal(doubled(ids, scores), torch.full((2, 4), 2.0))
        stops = glassformer.StoppingCriteriaList([lambda ids, scores: ids[:, -1] == 1, lambda ids, scores: False])
        assert stops(ids, None).tolist() == [True, False]
        with pytest.raises(NotImplementedError, match="__call__"):
            glassformer.LogitsProcessor()(ids, scores)

    def test_a_seed_is_set_everywhere(self) -> None:
        def draws() -> tuple[float, float, float]:
            glassformer.set_seed(3)
            return random.random(), float(np.random.rand()), float(torch.rand(()))

        assert draws() == draws()
        glassformer.set_seed(3, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)


class TestStreamers:
    def test_finalized_text_is_handed_over(self, smollm2: Path) -> None:
        tokenizer = glassformer.AutoTokenizer.from_pretrained(smollm2)
        ids = tokenizer("Hello there, café!", return_tensors="pt")["input_ids"]
        pieces: list[tuple[str, bool]] = []

        class Collect(glassformer.TextStreamer):
            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                pieces.append((text, stream_end))

        streamer = Collect(tokenizer, skip_prompt=True)
        for _ in range(2):  # one text after the other
            pieces.clear()
            streamer.put(torch.tensor([[1, 2, 3]]))
            for token in ids[0]:
                streamer.put(token[None])
            streamer.end()
            assert "".join(text for text, _ in pieces) == "Hello there, café!"
            assert [end for _, end in pieces] == [False] * (len(pieces) - 1) + [True]
        with pytest.raises(InputError, match="follows one text"):
            Collect(tokenizer).put(torch.tensor([[1], [2]]))

    def test_another_thread_reads_along(self, smollm2: Path) -> None:
        model = glassformer.AutoModelForCausalLM.from_pretrained(smollm2)
        tokenizer = glassformer.AutoTokenizer.from_pretrained(smollm2)
        tokens = tokenizer("The capital of France is", return_tensors="pt")
        streamer = glassformer.TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=patience(60))
        thread = threading.Thread(
            target=model.generate, kwargs={**tokens, "max_new_tokens": 4, "do_sample": False, "streamer": streamer}
        )
        thread.start()
        text = "".join(streamer)
        thread.join()
        whole = model.generate(**tokens, max_new_tokens=4, do_sample=False)
        assert text == tokenizer.decode(whole[0, tokens["input_ids"].shape[1] :])
        with pytest.raises(queue.Empty):
            next(glassformer.TextIteratorStreamer(tokenizer, timeout=0.01))

    def test_an_event_loop_reads_along(self, smollm2: Path) -> None:
        tokenizer = glassformer.AutoTokenizer.from_pretrained(smollm2)

        async def read() -> str:
            streamer = glassformer.AsyncTextIteratorStreamer(tokenizer, timeout=patience(60))
            ids = tokenizer("one two three", return_tensors="pt")["input_ids"]

            def write() -> None:
                streamer.put(ids)
                streamer.end()

            threading.Thread(target=write).start()
            return "".join([piece async for piece in streamer])

        assert asyncio.run(read()) == "one two three"
        with pytest.raises(InputError, match="event loop"):
            glassformer.AsyncTextIteratorStreamer(tokenizer)


def test_verbosity(caplog: pytest.LogCaptureFixture) -> None:
    log = glassformer.logging
    before = log.get_verbosity()
    try:
        for set_level, level in (
            (log.set_verbosity_debug, log.DEBUG), (log.set_verbosity_info, log.INFO),
            (log.set_verbosity_warning, log.WARNING), (log.set_verbosity_error, log.ERROR),
        ):  # fmt: skip
            set_level()
            assert log.get_verbosity() == level
        log.get_logger().warning("quiet")
        assert caplog.messages == []
        log.disable_propagation()
        assert not log.get_logger().propagate
    finally:
        log.enable_propagation()
        log.set_verbosity(before)
    assert log.get_logger("glassformer.own").name == "glassformer.own"
    log.disable_progress_bar()
    log.enable_progress_bar()


def test_an_unknown_name_is_an_attribute_error() -> None:
    for name in ("NoSuchConfig", "NoSuchForCausalLM", "nothing"):
        with pytest.raises(AttributeError, match=name):
            getattr(glassformer, name)
