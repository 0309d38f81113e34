"""Checkpoints into models: names, sharing, dtypes, heads, and what is said when something does not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer
from glassformer import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
from glassformer.blueprints import read_config
from glassformer.compat.auto import model_class_for_head
from glassformer.ground.errors import CheckpointError, ConfigError, InputError, UnknownArgument
from tests.parity import reference

IDS = torch.tensor([[5, 9, 14, 3, 77, 21]])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    reference.write(folder, "llama", tie_word_embeddings=True)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(original, tmp_path / "copy"))


def rewrite(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    tensors = {name: value.clone() for name, value in load_file(path).items()}
    save_file(change(tensors) or tensors, path)


def config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class TestTensorNames:
    def test_without_the_base_prefix(self, folder: Path, original: Path) -> None:
        rewrite(folder, lambda t: {name.removeprefix("model."): value for name, value in t.items()})
        expected = AutoModelForCausalLM.from_pretrained(original)(IDS).logits
        assert torch.equal(AutoModelForCausalLM.from_pretrained(folder)(IDS).logits, expected)
        assert torch.equal(
            AutoModel.from_pretrained(folder)(IDS).last_hidden_state,
            AutoModel.from_pretrained(original)(IDS).last_hidden_state,
        )

    def test_old_buffers_are_ignored(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}))
        AutoModelForCausalLM.from_pretrained(folder)
        assert not caplog.text

    def test_unexpected_and_new_tensors_are_logged_in_one_line(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        rewrite(folder, lambda t: t.update({f"extra.{n}": torch.ones(1) for n in range(5)}))
        AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
        (line,) = caplog.messages
        assert line == "copy: new, untrained: score.weight; not used: extra.0, extra.1, extra.2 and 2 more."

    def test_missing_weights_are_an_error(self, folder: Path) -> None:
        rewrite(folder, lambda t: {name: value for name, value in t.items() if "layers.1" not in name})
        with pytest.raises(CheckpointError, match=r"model\.layers\.1\."):
            AutoModelForCausalLM.from_pretrained(folder)


class TestTiedWeights:
    def test_a_tied_head_that_is_not_stored(self, original: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(original)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert "lm_head.weight" not in load_file(original / "model.safetensors")

    def test_a_tied_head_that_is_stored_too(self, folder: Path, original: Path) -> None:
        rewrite(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert torch.equal(model(IDS).logits, AutoModelForCausalLM.from_pretrained(original)(IDS).logits)

    def test_a_tied_head_stored_with_other_numbers(self, folder: Path) -> None:
        rewrite(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] * 2}))
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight * 2)

    def test_a_tied_embedding_stored_under_the_heads_name(self, folder: Path, original: Path) -> None:
        rewrite(folder, lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}))
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert torch.equal(model(IDS).logits, AutoModelForCausalLM.from_pretrained(original)(IDS).logits)

    def test_saving_writes_a_tied_embedding_once(self, original: Path, tmp_path: Path) -> None:
        AutoModelForCausalLM.from_pretrained(original).save_pretrained(tmp_path)
        assert load_file(tmp_path / "model.safetensors").keys() == load_file(original / "model.safetensors").keys()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "generation_config.json", "model.safetensors"]

    def test_saving_in_shards(self, original: Path, tmp_path: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(original)
        model.save_pretrained(tmp_path, max_shard_size="100KB")
        assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(IDS).logits, model(IDS).logits)

    def test_saving_again_leaves_no_stale_weights(self, original: Path, tmp_path: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(original)
        for size in ("5GB", "100KB", "5GB"):
            model.save_pretrained(tmp_path, max_shard_size=size)
            with torch.no_grad():
                model.model.norm.weight.mul_(2)
            again = AutoModelForCausalLM.from_pretrained(tmp_path)
            assert torch.equal(again.model.norm.weight * 2, model.model.norm.weight)

    def test_saving_into_the_folder_it_came_from(self, folder: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder)
        expected = model(IDS).logits
        model.save_pretrained(folder)
        assert torch.equal(model(IDS).logits, expected)
        assert torch.equal(AutoModelForCausalLM.from_pretrained(folder)(IDS).logits, expected)

    def test_training_never_writes_into_the_file(self, folder: Path) -> None:
        before = (folder / "model.safetensors").read_bytes()
        model = AutoModelForCausalLM.from_pretrained(folder)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        first = model(IDS, labels=IDS).loss
        first.backward()
        optimiser.step()
        assert model(IDS, labels=IDS).loss.item() < first.item()
        assert (folder / "model.safetensors").read_bytes() == before


class TestDtypes:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
    def test_dtype_as_stored(self, dtype: torch.dtype, tmp_path: Path) -> None:
        reference.write(tmp_path, "qwen3", dtype=dtype)
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert model.dtype == dtype
        assert model(IDS).logits.dtype == dtype
        config(tmp_path, dtype=None)
        assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == dtype

    @pytest.mark.parametrize("dtype", ["bfloat16", "torch.float16", torch.float64, "auto", None])
    def test_dtype_as_chosen(self, original: Path, dtype: Any) -> None:
        model = AutoModelForCausalLM.from_pretrained(original, dtype=dtype)
        assert str(model.dtype).removeprefix("torch.") == {"auto": "float32", None: "float32"}.get(
            dtype, str(dtype).removeprefix("torch.")
        )
        assert AutoModelForCausalLM.from_pretrained(original, torch_dtype=dtype).dtype == model.dtype

    @pytest.mark.parametrize("dtype", ["float99", torch.int8, 7])
    def test_an_impossible_dtype_is_refused(self, original: Path, dtype: Any) -> None:
        with pytest.raises(InputError, match="^dtype .*float32"):
            AutoModelForCausalLM.from_pretrained(original, dtype=dtype)

    def test_half_precision_generates_on_any_cpu(self, original: Path) -> None:
        for dtype in ("bfloat16", "float16"):
            model = AutoModelForCausalLM.from_pretrained(original, dtype=dtype)
            assert model.generate(IDS, max_new_tokens=4, eos_token_id=None).shape == (1, 10)


class TestModelClasses:
    def test_named_classes(self, original: Path) -> None:
        model = glassformer.LlamaForCausalLM.from_pretrained(original)  # type: ignore[attr-defined]
        assert type(model) is glassformer.LlamaForCausalLM
        assert isinstance(AutoModel.from_pretrained(original), glassformer.LlamaModel)

    def test_from_config(self, original: Path) -> None:
        model = AutoModelForCausalLM.from_config(glassformer.AutoConfig.from_pretrained(original))
        assert model.generate(IDS, max_new_tokens=2, eos_token_id=None).shape == (1, 8)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert 0.01 < float(model.model.layers[0].mlp.up_proj.weight.detach().std()) < 0.03

    def test_id2label_sets_the_label_count(self, original: Path) -> None:
        labels = {0: "no", 1: "yes", 2: "maybe"}
        model = AutoModelForSequenceClassification.from_pretrained(original, id2label=labels)
        assert model(IDS).logits.shape == (1, 3)
        assert model.config.label2id == {"no": 0, "yes": 1, "maybe": 2}

    def test_a_bad_key_mapping_is_refused(self, original: Path) -> None:
        with pytest.raises(InputError, match="not a regular expression"):
            AutoModelForCausalLM.from_pretrained(original, key_mapping={"(": "x"})

    def test_untied_head_as_classifier(self, tmp_path: Path) -> None:
        reference.write(tmp_path, "llama", tie_word_embeddings=False)
        classifier = AutoModelForSequenceClassification.from_pretrained(
            tmp_path, num_labels=160, key_mapping={"lm_head.weight": "score.weight"}
        )
        expected = AutoModelForCausalLM.from_pretrained(tmp_path)(IDS).logits[:, -1]
        assert torch.allclose(classifier(IDS).logits, expected, atol=1e-5)

    @pytest.mark.parametrize("auto", [AutoModelForCausalLM, glassformer.LlamaForCausalLM])
    def test_remote_code_is_never_run_which_is_said(
        self, original: Path, auto: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert auto.from_pretrained(original, trust_remote_code=True).config.model_type == "llama"
        assert caplog.messages == [
            f"{original}: trust_remote_code=True changes nothing: no code from a checkpoint is ever run, and none is needed."
        ]
        own_code = {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
        (tmp_path / "config.json").write_text(json.dumps(own_code))
        for kind in (auto, glassformer.AutoConfig):
            with pytest.raises(ConfigError, match="trust_remote_code"):
                kind.from_pretrained(tmp_path, trust_remote_code=True)

    def test_unknown_arguments_are_refused(self, original: Path) -> None:
        with pytest.raises(UnknownArgument, match="'cache_dir'"):
            glassformer.AutoTokenizer.from_pretrained(original, cache_dir=".")

    def test_loading_flags_of_transformers_are_accepted(self, original: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(
            original, attn_implementation="eager", device_map="auto", low_cpu_mem_usage=True, use_safetensors=True
        )
        assert model.device.type in ("cpu", "cuda")
        assert AutoModelForCausalLM.from_pretrained(original, device_map="cpu").device.type == "cpu"


def test_unsupported_generation_settings_are_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In one line, and only those that would change the text."""
    settings = {"dola_layers": "high", "num_beam_groups": 1, "top_h": None, "renormalize_logits": True, "some_version": "4"}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    AutoModelForCausalLM.from_pretrained(folder)
    (line,) = caplog.messages
    assert line.endswith("ask for dola_layers='high', renormalize_logits=True, which is not supported and left out.")


class TestWithoutModelType:
    """A config.json without model_type: a family's class knows it, an Auto class cannot."""

    @pytest.mark.parametrize("model_type", reference.FAMILIES)
    def test_the_class_of_a_family_is_enough(self, model_type: str, tmp_path: Path) -> None:
        head = reference.HEADS[model_type][1]
        named = model_class_for_head(model_type, head)  # type: ignore[arg-type]
        original = reference.write(tmp_path, model_type, head)
        raw = json.loads((tmp_path / "config.json").read_text())
        del raw["model_type"]
        (tmp_path / "config.json").write_text(json.dumps(raw))
        loaded = named.from_pretrained(tmp_path)
        assert type(loaded) is named
        assert loaded.config.model_type == model_type
        weight = original.get_input_embeddings().weight
        assert torch.equal(loaded.get_input_embeddings().weight, weight)

    def test_an_auto_class_says_what_to_do(self, folder: Path) -> None:
        config(folder, model_type=None)
        with pytest.raises(ConfigError, match="'model_type'"):
            AutoModel.from_pretrained(folder)
        with pytest.raises(ConfigError, match="'model_type' is missing"):
            glassformer.load(str(folder)).config  # noqa: B018


class TestConfig:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model_type": "lama"}, "'model_type' is 'lama'"),
            ({"model_type": "LLaMA"}, "'model_type' is 'LLaMA'"),
            ({"model_type": "phimoe"}, "'model_type' is 'phimoe'"),
            ({"model_type": "phi3_v"}, "'model_type' is 'phi3_v'"),
            ({"model_type": "mamba"}, "'model_type' is 'mamba'"),
            ({"model_type": "plbart"}, "'model_type' is 'plbart'"),
            ({"model_type": None}, "'model_type'"),
            ({"hidden_act": "silo"}, "'hidden_act' is 'silo'"),
            ({"hidden_size": "wide"}, "'hidden_size' is 'wide'"),
            ({"hidden_size": True}, "'hidden_size' is True"),
            ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
            ({"num_key_value_heads": 3}, "'num_key_value_heads' is 3"),
            ({"head_dim": 7}, "'head_dim' is 7"),
            ({"rope_parameters": {"rope_type": "lama3"}}, "'rope_type' is 'lama3'"),
            ({"rope_parameters": {"rope_type": "llama3"}}, "'factor' is None"),
            ({"rope_parameters": [1]}, "'rope_parameters'"),
            ({"rope_parameters": {"rope_theta": 0.5}}, "'rope_theta' is 0.5"),
            ({"rope_parameters": {"rope_type": ["llama3"]}}, "'rope_type'"),
            ({"rope_parameters": {"rope_type": "divisors"}}, "'divisors'"),
            ({"rope_parameters": {**reference.LLAMA3_ROPE, "low_freq_factor": 8.0}}, "'low_freq_factor'"),
            ({"rope_parameters": {"rope_theta": 10**400}}, "'rope_theta'"),
            ({"id2label": {"a": "x"}}, "'id2label'"),
            ({"rope_parameters": {"rope_theta": -1}}, "'rope_theta' is -1"),
            ({"eos_token_id": "two"}, "'eos_token_id' is 'two'"),
        ],
    )
    def test_unsupported_config_values_are_refused(self, folder: Path, changes: dict[str, Any], message: str) -> None:
        config(folder, **changes)
        with pytest.raises(ConfigError, match=rf"config.json: .*{message}"):
            AutoModelForCausalLM.from_pretrained(folder)

    def test_extra_config_fields_are_kept_and_saved(self, folder: Path, tmp_path: Path) -> None:
        config(folder, some_new_thing=[1, 2])
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.extra_fields["some_new_thing"] == [1, 2]
        model.save_pretrained(tmp_path / "again")
        assert json.loads((tmp_path / "again" / "config.json").read_text())["some_new_thing"] == [1, 2]

    def test_older_config_names(self, folder: Path) -> None:
        new = glassformer.AutoConfig.from_pretrained(folder)
        path = folder / "config.json"
        raw = json.loads(path.read_text())
        raw["rope_theta"] = raw.pop("rope_parameters")["rope_theta"]
        raw["torch_dtype"] = raw.pop("dtype")
        path.write_text(json.dumps(raw))
        old = glassformer.AutoConfig.from_pretrained(folder)
        assert (old.rope, old.dtype) == (new.rope, new.dtype)  # type: ignore[attr-defined]

    def test_barts_older_name_of_a_forced_first_token(self) -> None:
        raw = {"model_type": "bart", **reference.TINY["bart"], "bos_token_id": 7, "force_bos_token_to_be_generated": True}
        assert (
            read_config(raw).forced_bos_token_id,
            read_config({**raw, "forced_bos_token_id": 3}).forced_bos_token_id,
        ) == (7, 3)

    @pytest.mark.parametrize("name", ["sliding_window_pattern", "_sliding_window_pattern"])
    def test_gemmas_period_of_full_attention(self, name: str) -> None:
        raw = {"model_type": "gemma3_text", **reference.TINY["gemma3_text"], "layer_types": None, name: 2}
        assert read_config(raw).layer_types == ["sliding_attention", "full_attention", "sliding_attention"]

    def test_an_older_rope_scaling_wins(self, folder: Path) -> None:
        config(folder, rope_parameters={"rope_type": "default", "rope_theta": 77.0}, rope_scaling={"rope_type": "yam"})
        with pytest.raises(ConfigError, match="'rope_type' is 'yam'"):
            AutoModelForCausalLM.from_pretrained(folder)
        config(folder, rope_scaling={k: v for k, v in reference.LLAMA3_ROPE.items() if k != "rope_theta"})
        result = glassformer.AutoConfig.from_pretrained(folder).rope  # type: ignore[attr-defined]
        assert (result.kind, result.theta) == ("llama3", 77.0)

    def test_rope_divisors_of_no_known_rule_are_refused(self) -> None:
        from glassformer.blueprints import Rope

        with pytest.raises(ConfigError, match="follow no known rule"):
            Rope.read({"rope_scaling": {"rope_type": "divisors", "divisors": [1.0, 9.0, 2.0, 5.0]}})


class TestInitialization:
    """Where nothing was learnt, numbers begin as they do with the reference: neither too far apart nor too near."""

    @pytest.mark.parametrize("model_type", ["llama", "gpt2", "bert", "t5", "bart"])
    def test_standard_deviations_equal_the_references(self, model_type: str) -> None:
        head = {"bert": "MaskedLM", "t5": "Seq2SeqLM", "bart": "Seq2SeqLM"}.get(model_type, "CausalLM")
        shape = reference.config(model_type, **({"d_model": 64} if model_type == "t5" else {}))
        torch.manual_seed(0)
        theirs = dict(reference.auto(head).from_config(shape).named_parameters())
        ours = dict(getattr(glassformer, f"AutoModelFor{head}").from_config(read_config(shape.to_dict())).named_parameters())
        compared = [name for name, one in ours.items() if one.numel() > 1500 and name in theirs]
        assert len(compared) > 10
        for name in compared:
            assert ours[name].std().item() == pytest.approx(theirs[name].std().item(), rel=0.12), name

    def test_the_scratch_model_is_initialized_as_torch_does(self) -> None:
        from glassformer.compat.scratch import Model

        torch.manual_seed(0)
        model = Model({"d_model": 80, "num_blocks": 2, "num_heads": 4, "context_length": 16, "dropout": 0.1,
                       "max_token_value": 1000, "device": "cpu"})  # fmt: skip
        assert model.token_embedding_lookup_table.weight.std().item() == pytest.approx(1, rel=0.05)
        linear = model.transformer_blocks[0].ffn.ffn[0]
        edge = 80**-0.5
        assert linear.weight.abs().max().item() == pytest.approx(edge, rel=0.02)
        assert linear.weight.std().item() == pytest.approx(edge / 3**0.5, rel=0.05)
        assert linear.bias.abs().max().item() > 0


def test_the_tables_of_both_stacks_are_resized(tmp_path: Path) -> None:
    """As the reference does it; what is saved then is read back."""
    theirs = reference.write(tmp_path, "t5gemma", "seq2seq")
    named = model_class_for_head("t5gemma", "seq2seq")
    ours = named.from_pretrained(tmp_path)
    for model in (ours, theirs):
        model.resize_token_embeddings(150)
    sizes = {name: value.shape for name, value in theirs.state_dict().items()}
    assert {name: value.shape for name, value in ours.state_dict().items()} == sizes
    ours.save_pretrained(tmp_path / "resized")
    again = named.from_pretrained(tmp_path / "resized")
    ids = torch.tensor([[3, 149, 7]])
    assert torch.equal(again(ids, decoder_input_ids=ids).logits, ours(ids, decoder_input_ids=ids).logits)
