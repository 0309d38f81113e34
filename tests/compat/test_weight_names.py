"""Checkpoints as the hub has them: old names, prefixes that come and go, buffers, tied tables stored or left out.

The reference writes modern files, so each layout here is its state dict of a tiny random model, renamed and rewritten as
the published file has it, once in safetensors and once as a pickle. Configs are those of the published models, shrunk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glassformer import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from glassformer.ground.errors import CheckpointError, ConfigError, GlassError, InputError, InputTypeError
from tests.parity import reference
from tests.parity.compare import close, ids_for, load

pytestmark = pytest.mark.usefixtures("one_thread")

Tensors = dict[str, Tensor]
KINDS = ("model.safetensors", "pytorch_model.bin")
TIED = {  # what a head's weight is tied to, by family
    "bert": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    "roberta": ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    "distilbert": ("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
    "gpt2": ("lm_head.weight", "transformer.wte.weight"),
    "llama": ("lm_head.weight", "model.embed_tokens.weight"),
    "t5": ("lm_head.weight", "shared.weight"),
    "bart": ("lm_head.weight", "model.shared.weight"),
}
MAIN = {
    "gpt2": "causal", "llama": "causal", "t5": "seq2seq", "bart": "seq2seq", **dict.fromkeys(reference.ENCODERS, "masked"),
}  # fmt: skip


# The configs, as published but small ------------------------------------------------------------------------------

CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {
        "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 24, "initializer_range": 0.02,
        "intermediate_size": 40, "layer_norm_eps": 1e-12, "max_position_embeddings": 32, "model_type": "bert",
        "num_attention_heads": 3, "num_hidden_layers": 2, "pad_token_id": 0, "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True, "vocab_size": 70,
    },
    "roberta": {
        "architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 24, "initializer_range": 0.02,
        "intermediate_size": 40, "layer_norm_eps": 1e-05, "max_position_embeddings": 34, "model_type": "roberta",
        "num_attention_heads": 3, "num_hidden_layers": 2, "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 70,
    },
    "distilbert": {
        "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 24,
        "dropout": 0.1, "hidden_dim": 40, "initializer_range": 0.02, "max_position_embeddings": 32,
        "model_type": "distilbert", "n_heads": 3, "n_layers": 2, "pad_token_id": 0, "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True, "vocab_size": 70,
    },
    "gpt2": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 69,
        "embd_pdrop": 0.1, "eos_token_id": 69, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": 32, "n_embd": 24, "n_head": 3, "n_layer": 2, "n_positions": 32, "resid_pdrop": 0.1,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 70,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
    "t5": {
        "architectures": ["T5WithLMHeadModel"], "d_ff": 40, "d_kv": 6, "d_model": 24, "decoder_start_token_id": 0,
        "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0, "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512, "num_heads": 3, "num_layers": 2,
        "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 8, "vocab_size": 70,
    },
    "t5 1.1": {
        "architectures": ["T5ForConditionalGeneration"], "d_ff": 40, "d_kv": 6, "d_model": 24, "decoder_start_token_id": 0,
        "dropout_rate": 0.1, "eos_token_id": 1, "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0,
        "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_decoder_layers": 2, "num_heads": 3,
        "num_layers": 2, "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 8,
        "tie_word_embeddings": False, "vocab_size": 70,
    },
    "bart": {
        "activation_dropout": 0.1, "activation_function": "gelu", "add_bias_logits": False, "add_final_layer_norm": False,
        "architectures": ["BartModel"], "attention_dropout": 0.1, "bos_token_id": 0, "classif_dropout": 0.1,
        "classifier_dropout": 0.0, "d_model": 24, "decoder_attention_heads": 3, "decoder_ffn_dim": 40,
        "decoder_layerdrop": 0.0, "decoder_layers": 2, "decoder_start_token_id": 2, "dropout": 0.1,
        "encoder_attention_heads": 3, "encoder_ffn_dim": 40, "encoder_layerdrop": 0.0, "encoder_layers": 2,
        "eos_token_id": 2, "forced_eos_token_id": 2, "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
        "init_std": 0.02, "is_encoder_decoder": True, "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
        "max_position_embeddings": 32, "model_type": "bart", "normalize_before": False, "normalize_embedding": True,
        "num_hidden_layers": 2, "pad_token_id": 1, "scale_embedding": False, "use_cache": True, "vocab_size": 70,
    },
    "llama": {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 40, "max_position_embeddings": 64,
        "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False,
        "torch_dtype": "float32", "use_cache": True, "vocab_size": 70,
    },
}  # fmt: skip


@cache
def original(config: str, head: str) -> Any:
    """The reference's model of a config: what every layout holds."""
    given = {name: value for name, value in CONFIGS[config].items() if name not in ("model_type", "architectures")}
    family = CONFIGS[config]["model_type"]
    with patch.dict(reference.TINY, {family: {}}):  # nothing but what the config says
        return reference.build(family, head, **given)


# The layouts ------------------------------------------------------------------------------------------------------


def old_norms(tensors: Tensors) -> Tensors:
    return {n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): t for n, t in tensors.items()}


def without(tensors: Tensors, pattern: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if not re.search(pattern, name)}


def bert(tensors: Tensors, decoder: bool = True) -> Tensors:
    kept = without(tensors, r"decoder\.bias$" if decoder else r"decoder\.(bias|weight)$")
    return {"bert.embeddings.position_ids": torch.arange(32)[None], **old_norms(kept)}


def bare_bert(tensors: Tensors) -> Tensors:
    return {"embeddings.position_ids": torch.arange(32)[None], **tensors}


def roberta(tensors: Tensors) -> Tensors:
    return {"roberta.embeddings.position_ids": torch.arange(34)[None], **without(tensors, r"lm_head\.decoder|pooler")}


def gpt2(tensors: Tensors, prefix: str = "") -> Tensors:
    """With each layer's mask among the weights, as it was before 2023."""
    kept = {prefix + name.removeprefix("transformer."): tensor for name, tensor in without(tensors, "lm_head").items()}
    for layer in range(2):
        kept[f"{prefix}h.{layer}.attn.bias"] = torch.ones(1, 1, 32, 32).tril()
        kept[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return kept


def t5(tensors: Tensors) -> Tensors:
    stray = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    return {**tensors, stray: torch.randn(8, 3)}


def bart(tensors: Tensors, prefix: str = "") -> Tensors:
    kept = {re.sub(r"^model\.", prefix, name): tensor for name, tensor in tensors.items()}
    for stack in ("encoder", "decoder"):
        kept[f"{prefix}{stack}.version"] = torch.tensor([3.0])
    return kept


def llama(tensors: Tensors) -> Tensors:
    return {**tensors, **{f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.rand(3) for n in range(2)}}


BERT_HEAD = {
    "cls.predictions.bias", "cls.predictions.decoder.bias", "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias", "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
}  # fmt: skip
BERT_STORED = BERT_HEAD - {"cls.predictions.decoder.bias"} | {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
BERT_POOLER = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
POOLER = {"pooler.dense.weight", "pooler.dense.bias"}
LABELS = {"classifier.weight", "classifier.bias"}
SPANS = {"qa_outputs.weight", "qa_outputs.bias"}
ROBERTA_HEAD = {
    "lm_head.bias", "lm_head.dense.weight", "lm_head.dense.bias", "lm_head.layer_norm.weight", "lm_head.layer_norm.bias",
}  # fmt: skip
DISTIL_HEAD = {
    "vocab_transform.weight", "vocab_transform.bias", "vocab_layer_norm.weight", "vocab_layer_norm.bias",
    "vocab_projector.weight", "vocab_projector.bias",
}  # fmt: skip
DECODER_WEIGHT = {"cls.predictions.decoder.weight"}
NONE: set[str] = set()


@dataclass(frozen=True)
class Layout:
    config: str
    head: str  # of the reference's model
    rewrite: Callable[[Tensors], Tensors]
    said: Mapping[str, tuple[set[str], set[str]]]  # by our head: what is new, what is not used
    shared: bool = True  # whether the head's weight is the table
    changes: Mapping[str, Any] = field(default_factory=dict)


LAYOUTS = {
    "bert-base-uncased": Layout("bert", "PreTraining", bert, {
        "base": (NONE, BERT_STORED | DECODER_WEIGHT),
        "masked": (NONE, BERT_POOLER | {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}),
        "sequence": (LABELS, BERT_STORED | DECODER_WEIGHT),
        "token": (LABELS, BERT_STORED | DECODER_WEIGHT | BERT_POOLER),
        "question": (SPANS, BERT_STORED | DECODER_WEIGHT | BERT_POOLER),
    }),
    "bert without a decoder": Layout("bert", "PreTraining", lambda tensors: bert(tensors, decoder=False), {
        "base": (NONE, BERT_STORED),
        "masked": (NONE, BERT_POOLER | {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}),
    }),
    "bert without a prefix": Layout("bert", "base", bare_bert, {
        "base": (NONE, NONE),
        "masked": (BERT_HEAD, POOLER),
        "sequence": (LABELS, NONE),
        "token": (LABELS, POOLER),
        "question": (SPANS, POOLER),
    }),
    "roberta-base": Layout("roberta", "masked", roberta, {
        "base": (POOLER, ROBERTA_HEAD),
        "masked": (NONE, NONE),
        "sequence": (
            {f"classifier.{name}.{own}" for name in ("dense", "out_proj") for own in ("weight", "bias")}, ROBERTA_HEAD,
        ),
        "token": (LABELS, ROBERTA_HEAD),
        "question": (SPANS, ROBERTA_HEAD),
    }),
    "distilbert-base-uncased": Layout("distilbert", "masked", lambda tensors: tensors, {
        "base": (NONE, DISTIL_HEAD),
        "masked": (NONE, NONE),
        "sequence": (LABELS | {"pre_classifier.weight", "pre_classifier.bias"}, DISTIL_HEAD),
        "token": (LABELS, DISTIL_HEAD),
        "question": (SPANS, DISTIL_HEAD),
    }),
    "distilbert without a head": Layout("distilbert", "base", lambda tensors: tensors, {
        "base": (NONE, NONE),
        "masked": (DISTIL_HEAD - {"vocab_projector.weight"}, NONE),
    }),
    "gpt2": Layout("gpt2", "causal", gpt2, {
        "base": (NONE, NONE),
        "causal": (NONE, NONE),
        "sequence": ({"score.weight"}, NONE),
        "token": (LABELS, NONE),
        "question": (SPANS, NONE),
    }),
    "gpt2 with a prefix": Layout("gpt2", "causal", lambda tensors: gpt2(tensors, "transformer."), {
        "base": (NONE, NONE), "causal": (NONE, NONE),
    }),
    "gpt2 with its head": Layout(
        "gpt2", "causal", lambda t: {**gpt2(t, "transformer."), "lm_head.weight": t["lm_head.weight"]}, {
            "base": (NONE, {"lm_head.weight"}),
            "causal": (NONE, NONE),
            "sequence": ({"score.weight"}, {"lm_head.weight"}),
        },
    ),
    "t5-small": Layout("t5", "seq2seq", t5, {"base": (NONE, {"lm_head.weight"}), "seq2seq": (NONE, NONE)}),
    "t5, one table": Layout("t5", "seq2seq", lambda tensors: without(tensors, "embed_tokens|lm_head"), {
        "base": (NONE, NONE), "seq2seq": (NONE, NONE),
    }),
    "t5 1.1": Layout("t5 1.1", "seq2seq", lambda t: {**t, "lm_head.weight": t["lm_head.weight"].flip(0)}, {
        "base": (NONE, {"lm_head.weight"}), "seq2seq": (NONE, NONE),
    }, shared=False),
    "bart-base": Layout("bart", "seq2seq", lambda tensors: without(bart(tensors), "lm_head"), {
        "base": (NONE, {"final_logits_bias"}),
        "seq2seq": (NONE, NONE),
        "sequence": (
            {f"classification_head.{name}.{own}" for name in ("dense", "out_proj") for own in ("weight", "bias")},
            {"final_logits_bias"},
        ),
        "question": (SPANS, {"final_logits_bias"}),
    }),
    "bart with a prefix": Layout("bart", "seq2seq", lambda tensors: bart(tensors, "model."), {
        "base": (NONE, {"final_logits_bias", "lm_head.weight"}), "seq2seq": (NONE, NONE),
    }),
    "llama": Layout("llama", "causal", llama, {
        "base": (NONE, {"lm_head.weight"}),
        "causal": (NONE, NONE),
        "sequence": ({"score.weight"}, {"lm_head.weight"}),
    }, shared=False),
}  # fmt: skip
CASES = [(name, head) for name, layout in LAYOUTS.items() for head in layout.said]


def write(folder: Path, config: Mapping[str, Any], tensors: Tensors, kind: str = KINDS[0]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if kind == KINDS[0]:
        save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / kind, {"format": "pt"})
    else:
        torch.save(tensors, folder / kind)
    return folder


def published(folder: Path, name: str, kind: str = KINDS[0]) -> Path:
    layout = LAYOUTS[name]
    state = original(layout.config, layout.head).state_dict()
    return write(folder, CONFIGS[layout.config], layout.rewrite(dict(state)), kind)


def reference_model(name: str) -> Any:
    """The reference's model with the layout's own numbers."""
    layout = LAYOUTS[name]
    model = original(layout.config, layout.head)
    if name != "t5 1.1":
        return model
    untied = reference.auto("seq2seq").from_config(model.config, attn_implementation="eager").eval()
    untied.load_state_dict(model.state_dict())
    untied.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0))
    return untied


def inputs(model: Any) -> dict[str, Tensor]:
    ids = ids_for(model, 2 if model.config.pad_token_id is not None else 1, 9)  # where a row ends is said by padding
    if not model.config.is_encoder_decoder:
        return {"input_ids": ids}
    ids[:, -1] = model.config.eos_token_id
    return {"input_ids": ids, "decoder_input_ids": ids_for(model, 2, 9, seed=2)}


def last_states(output: Any) -> Tensor:
    return (output.decoder_hidden_states if "decoder_hidden_states" in output else output.hidden_states)[-1]


def parse_remarks(line: str) -> tuple[set[str], int, set[str], int]:
    """A remark's names, and how many it speaks of: new ones, unused ones."""
    result: list[Any] = []
    for word in ("new, untrained: ", "not used: "):
        part = re.search(rf"{word}([^;]*?)(?: and (\d+) more)?(?:;|\.$)", line)
        names = part[1].split(", ") if part else []
        result += [set(names), len(names) + int((part and part[2]) or 0)]
    return tuple(result)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "head"), CASES)
@torch.no_grad()
def test_published_checkpoints_give_the_references_numbers(
    name: str, head: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same states and scores as the reference's, one line about what did not fit, and saved so that it can read it."""
    layout, theirs = LAYOUTS[name], reference_model(name)
    changes = {"num_labels": 3} if head in ("sequence", "token") else {}
    ours = load(published(tmp_path / "old", name, kind), head, **changes)
    new, unused = layout.said[head]
    if layout.shared and kind == "pytorch_model.bin":  # which says by itself that head and table are one
        unused = unused - {TIED[ours.config.model_type][0]}
    assert len(caplog.messages) == bool(new or unused)
    if new or unused:
        named, count, left, more = parse_remarks(caplog.messages[0])
        assert (count, more) == (len(new), len(unused))
        assert named <= new
        assert left <= unused
    assert not ours.training

    given = inputs(theirs)
    result = ours(**given, output_hidden_states=True)
    expected = theirs(**given, output_hidden_states=True)
    close(last_states(result), last_states(expected), 1e-5)
    if head == "base" and not new and "pooler_output" in result:
        close(result.pooler_output, theirs.base_model(**given).pooler_output, 1e-5)
    if head == MAIN[ours.config.model_type]:
        weight, table = (ours.get_parameter(one) for one in TIED[ours.config.model_type])
        assert (weight is table) == layout.shared
        if not new:
            close(result.logits, expected["prediction_logits" if "prediction_logits" in expected else "logits"], 1e-5)
    if changes:
        assert result.logits.shape[-1] == 3

    if kind == "pytorch_model.bin":
        return
    ours.save_pretrained(tmp_path / "new")
    again = reference.auto(head).from_pretrained(tmp_path / "new", attn_implementation="eager").eval()
    assert again.state_dict().keys() == ours.state_dict().keys()
    close(result[0], again(**given)[0], 1e-5)
    if layout.shared and head == MAIN[ours.config.model_type]:
        assert not {*TIED[ours.config.model_type]} <= load_file(tmp_path / "new" / "model.safetensors").keys()


def test_a_new_head_leaves_the_embedding_alone(tmp_path: Path) -> None:
    """Its weight is the table, and only its bias is new."""
    folder = published(tmp_path, "bert without a prefix")
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, load_file(folder / KINDS[0])[
        "embeddings.word_embeddings.weight"])  # fmt: skip
    head = model.cls.predictions
    assert head.bias is head.decoder.bias
    assert not head.bias.any()
    assert torch.equal(head.transform.LayerNorm.weight, torch.ones(24))
    assert 0.01 < float(head.transform.dense.weight.detach().std()) < 0.03


def test_a_new_classifier_is_logged_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(published(tmp_path / "bert", "bert without a prefix"), "sequence", num_labels=3)
    assert caplog.messages == ["bert: new, untrained: classifier.weight, classifier.bias."]


# Tied weights -----------------------------------------------------------------------------------------------------


def stored_twice(family: str, tied: bool, factor: float) -> tuple[dict[str, Any], Tensors, str]:
    """A file that holds a head's weight beside the table: the same numbers, or others."""
    head, table = TIED[family]
    tensors = dict(original(family, MAIN[family]).state_dict())
    if tied:
        tensors = without(tensors, r"(encoder|decoder)\.embed_tokens")
    tensors[head] = tensors[table] * factor
    return {**CONFIGS[family], "tie_word_embeddings": tied}, tensors, head


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", TIED)
class TestTiedWeights:
    def test_equal_tensors_stored_twice_are_tied(self, family: str, kind: str, tmp_path: Path) -> None:
        config, tensors, _ = stored_twice(family, tied=True, factor=1.0)
        model = load(write(tmp_path, config, tensors, kind), MAIN[family])
        one, other = (model.get_parameter(name) for name in TIED[family])
        assert one is other

    @torch.no_grad()
    def test_different_tensors_stay_separate(self, family: str, kind: str, tmp_path: Path) -> None:
        config, tensors, head = stored_twice(family, tied=True, factor=2.0)
        model = load(write(tmp_path / "old", config, tensors, kind), MAIN[family])
        one, other = (model.get_parameter(name) for name in TIED[family])
        assert torch.equal(one, other * 2)
        model.save_pretrained(tmp_path / "new")
        again = load(tmp_path / "new", MAIN[family])
        assert torch.equal(again.get_parameter(head), one)
        theirs = reference.auto(MAIN[family]).from_pretrained(tmp_path / "new", attn_implementation="eager").eval()
        given = inputs(theirs)
        close(model(**given).logits, theirs(**given).logits, 1e-5)

    @torch.no_grad()
    def test_an_untied_config_stays_untied(self, family: str, kind: str, tmp_path: Path) -> None:
        config, tensors, _ = stored_twice(family, tied=False, factor=1.0)
        model = load(write(tmp_path / "old", config, tensors, kind), MAIN[family])
        one, other = (model.get_parameter(name) for name in TIED[family])
        assert torch.equal(one, other)
        if family != "t5":  # where the word is about scaling, and one table stored twice is one
            assert one is not other
        model.save_pretrained(tmp_path / "new")
        assert AutoConfig.from_pretrained(tmp_path / "new") == model.config.with_changes(
            {"dtype": "float32", "architectures": [type(model).__name__]}
        )
        theirs = reference.auto(MAIN[family]).from_pretrained(tmp_path / "new", attn_implementation="eager").eval()
        assert theirs.config.tie_word_embeddings is (family == "t5")
        given = inputs(theirs)
        close(model(**given).logits, theirs(**given).logits, 1e-5)


# What cannot be loaded ------------------------------------------------------------------------------------------------

FAMILY = {name: layout for name, layout in LAYOUTS.items() if name in (
    "bert-base-uncased", "roberta-base", "distilbert-base-uncased", "gpt2", "t5-small", "bart-base", "llama")}  # fmt: skip
ACTIVATION = {
    "distilbert-base-uncased": "activation", "gpt2": "activation_function", "bart-base": "activation_function",
}  # fmt: skip


def change(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def refuses(act: Callable[[], object], message: str, kind: type[GlassError] = InputError) -> None:
    with pytest.raises(kind, match=message) as caught:
        act()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FAMILY)
class TestUnusableCheckpoints:
    def test_an_unknown_model_type_is_refused(self, name: str, tmp_path: Path) -> None:
        folder = change(published(tmp_path, name), model_type="bort")
        refuses(lambda: AutoModel.from_pretrained(folder), "'model_type' is 'bort'.* Did you mean 'bert'", ConfigError)

    def test_an_unknown_activation_is_refused(self, name: str, tmp_path: Path) -> None:
        if name == "t5-small":
            folder = change(published(tmp_path, name), feed_forward_proj="gated-gello")
            message = "'feed_forward_proj' is 'gello', which is not a known activation.* Did you mean 'gelu'"
        else:
            word = ACTIVATION.get(name, "hidden_act")
            folder = change(published(tmp_path, name), **{word: "gello"})
            message = f"'{word}' is 'gello', which is not a known activation.* Did you mean 'gelu'"
        refuses(lambda: AutoModel.from_pretrained(folder), message, ConfigError)

    def test_missing_weights_are_refused(self, name: str, tmp_path: Path) -> None:
        layout = FAMILY[name]
        kept = without(
            layout.rewrite(dict(original(layout.config, layout.head).state_dict())), r"(layer|layers|h|block)\.1\."
        )
        folder = write(tmp_path / "cut", CONFIGS[layout.config], kept)
        refuses(
            lambda: AutoModel.from_pretrained(folder),
            r"cut: the weights lack \S+\.1\.\S+, .* and \d+ more\. Is this the config of these weights\?$",
            CheckpointError,
        )


LABELLED = [(family, head) for family, heads in reference.HEADS.items() for head in ("sequence", "token") if head in heads]


class TestLabels:
    @pytest.mark.parametrize(("family", "head"), LABELLED)
    def test_another_label_count_than_stored(self, family: str, head: str, tmp_path: Path) -> None:
        reference.write(tmp_path, family, head, num_labels=4)
        assert load(tmp_path, head).num_labels == 4
        refuses(
            lambda: load(tmp_path, head, num_labels=3),
            r"has shape \(4,.*The checkpoint's head has other labels than num_labels=3; to make a new one, pass ignore_",
            CheckpointError,
        )
        anew = load(tmp_path, head, num_labels=3, ignore_mismatched_sizes=True)
        assert anew.num_labels == 3
        assert all(bool(torch.isfinite(value).all()) for value in anew.parameters())

    def test_num_labels(self, tmp_path: Path) -> None:
        """What the file says of two labels is not kept for three; saved and read again, it is the same model."""
        folder = change(published(tmp_path / "old", "bert-base-uncased"), id2label={"0": "no", "1": "yes"})
        model = load(folder, "sequence", num_labels=3)
        assert model.config.id2label in (None, {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})
        model.save_pretrained(tmp_path / "new")
        assert load(tmp_path / "new", "sequence").num_labels == 3
        theirs = reference.auto("sequence").from_pretrained(tmp_path / "new")
        assert theirs.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
        assert load(folder, "sequence").config.id2label == {0: "no", 1: "yes"}
        assert load(folder, "sequence", num_labels=2).config.id2label == {0: "no", 1: "yes"}

    def test_id2label(self, tmp_path: Path) -> None:
        names = {0: "bad", 1: "good", 2: "neither"}
        model = load(published(tmp_path / "old", "bert-base-uncased"), "sequence", id2label=names)
        assert (model.num_labels, model.config.label2id) == (3, {"bad": 0, "good": 1, "neither": 2})
        model.save_pretrained(tmp_path / "new")
        assert load(tmp_path / "new", "sequence").config.id2label == names
        assert reference.auto("sequence").from_pretrained(tmp_path / "new").config.id2label == names

    def test_id2label_and_label2id(self, tmp_path: Path) -> None:
        folder, numbers = published(tmp_path, "bert-base-uncased"), {"bad": 0, "good": 1, "neither": 2}
        names = {number: name for name, number in numbers.items()}
        for given in ({"label2id": numbers}, {"label2id": numbers, "id2label": names, "num_labels": 3}):
            model = load(folder, "sequence", **given)
            assert (model.num_labels, model.config.id2label, model.config.label2id) == (3, names, numbers)

    def test_id2label_and_num_labels_must_agree(self, tmp_path: Path) -> None:
        folder = published(tmp_path, "bert-base-uncased")
        refuses(
            lambda: load(folder, "sequence", num_labels=3, id2label={0: "no", 1: "yes"}),
            "num_labels.*3.*id2label.*2",
            ConfigError,
        )

    def test_problem_type(self, tmp_path: Path) -> None:
        folder = published(tmp_path / "old", "distilbert-base-uncased")
        model = load(folder, "sequence", num_labels=3, problem_type="multi_label_classification")
        ids, target = torch.tensor([[5, 6, 7]]), torch.tensor([[1.0, 0.0, 1.0]])
        result = model(ids, labels=target)
        expected = torch.nn.functional.binary_cross_entropy_with_logits(result.logits, target)
        assert torch.equal(result.loss, expected)
        refuses(lambda: model(ids, labels=torch.tensor([1])), r"labels have shape \(1,\); for many labels .* \(1, 3\)")
        model.save_pretrained(tmp_path / "new")
        assert load(tmp_path / "new", "sequence").config.problem_type == "multi_label_classification"
        refuses(
            lambda: load(folder, "sequence", problem_type="regresion"),
            "'problem_type' is 'regresion'.* Did you mean 'regression'",
            ConfigError,
        )


HEADLESS = [
    ("gpt2", "masked", "a gpt2 model cannot be loaded as AutoModelForMaskedLM. Use AutoModel, or AutoModelForCausalLM or "
     "AutoModelForSequenceClassification or AutoModelForTokenClassification or AutoModelForQuestionAnswering."),
    ("llama", "token", "a llama model cannot be loaded as AutoModelForTokenClassification. Use AutoModel, or "
     "AutoModelForCausalLM or AutoModelForSequenceClassification."),
    ("bert-base-uncased", "causal", "a bert model cannot be loaded as AutoModelForCausalLM. Use AutoModel, or "
     "AutoModelForMaskedLM or AutoModelForSequenceClassification or AutoModelForTokenClassification or "
     "AutoModelForQuestionAnswering."),
    ("t5-small", "causal", "a t5 model cannot be loaded as AutoModelForCausalLM. Use AutoModel, or AutoModelForSeq2SeqLM."),
    ("bart-base", "masked", "a bart model cannot be loaded as AutoModelForMaskedLM. Use AutoModel, or AutoModelForSeq2SeqLM "
     "or AutoModelForSequenceClassification or AutoModelForQuestionAnswering."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "head", "message"), HEADLESS)
def test_a_head_that_the_family_lacks_is_refused(name: str, head: str, message: str, tmp_path: Path) -> None:
    folder = published(tmp_path, name)
    refuses(lambda: load(folder, head), f"^{re.escape(message)}$", ConfigError)


# What cannot be run ---------------------------------------------------------------------------------------------------


def ours(name: str, head: str, tmp_path: Path, **changes: Any) -> Any:
    return load(published(tmp_path, name), head, **changes)


class TestInputs:
    @pytest.mark.parametrize("name", ["bert-base-uncased", "roberta-base", "distilbert-base-uncased", "gpt2", "bart-base"])
    def test_positions_beyond_the_table_are_refused(self, name: str, tmp_path: Path) -> None:
        model = ours(name, "base", tmp_path)
        fits = torch.full((1, 32), 5)
        assert model(fits)[0].shape == (1, 32, 24)
        refuses(lambda: model(torch.full((1, 33), 5)), "33 tokens do not fit into the model's context of 32. Shorten")
        if name != "bart-base":
            first = 2 if name == "roberta-base" else 0  # the row of its table that a first token gets
            far = torch.tensor([[0, 1, 40]]) + first
            refuses(lambda: model(fits[:, :3], position_ids=far), "41 tokens do not fit into the model's context of 32")
            refuses(lambda: model(fits[:, :3], position_ids=far - 41), f"position_ids hold {first - 41}; .* from {first}")
            refuses(lambda: model(fits[:, :3], position_ids=far[:, :2]), r"position_ids have shape \(1, 2\).*\(1, 3\)")

    @pytest.mark.parametrize("stack", ["source", "target"])
    def test_positions_beyond_either_stack_of_bart(self, stack: str, tmp_path: Path) -> None:
        model, long, short = ours("bart-base", "seq2seq", tmp_path), torch.full((1, 33), 5), torch.full((1, 3), 5)
        pair = (long, short) if stack == "source" else (short, long)
        refuses(lambda: model(pair[0], decoder_input_ids=pair[1]), "33 tokens do not fit")

    def test_t5_has_no_last_position(self, tmp_path: Path) -> None:
        model = ours("t5-small", "seq2seq", tmp_path)
        result = model(torch.full((1, 700), 5), decoder_input_ids=torch.full((1, 600), 5))
        assert result.logits.shape == (1, 600, 70)

    def test_bad_token_types_are_refused(self, tmp_path: Path) -> None:
        model, ids = ours("bert-base-uncased", "base", tmp_path), torch.full((2, 4), 5)
        for wrong in (2, -1):
            types = torch.zeros_like(ids)
            types[1, 2] = wrong
            refuses(
                lambda types=types: model(ids, token_type_ids=types),  # type: ignore[misc]
                f"token_type_ids hold {wrong}; the model knows 2 types, from 0",
            )
        refuses(
            lambda: model(ids, token_type_ids=torch.zeros(1, 4, dtype=torch.long)),
            r"token_type_ids have shape \(1, 4\), the tokens \(2, 4\)",
        )

    @pytest.mark.parametrize("name", ["t5-small", "bart-base"])
    def test_a_source_of_padding_alone_is_refused(self, name: str, tmp_path: Path) -> None:
        model = ours(name, "seq2seq", tmp_path)
        ids, there = torch.full((2, 4), 5), torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]])
        refuses(
            lambda: model(ids, attention_mask=there, decoder_input_ids=ids),
            "a row of the source is all padding. Give it at least one token",
        )

    @pytest.mark.parametrize("name", ["t5-small", "bart-base"])
    def test_different_row_counts_of_source_and_target_are_refused(self, name: str, tmp_path: Path) -> None:
        model = ours(name, "seq2seq", tmp_path)
        refuses(
            lambda: model(torch.full((2, 4), 5), decoder_input_ids=torch.full((3, 4), 5)),
            "the source has 2 rows, the decoder's input 3",
        )

    @pytest.mark.parametrize("wrong", [70, -1])
    @pytest.mark.parametrize(
        ("name", "head"),
        [("gpt2", "causal"), ("bert-base-uncased", "masked"), ("t5-small", "seq2seq"), ("bart-base", "seq2seq")],
    )
    def test_labels_outside_the_vocabulary_are_refused(self, name: str, head: str, wrong: int, tmp_path: Path) -> None:
        model, ids = ours(name, head, tmp_path), torch.full((1, 4), 5)
        labels = torch.tensor([[-100, 3, wrong, 1]])
        given = {"decoder_input_ids": ids} if head == "seq2seq" else {}
        refuses(
            lambda: model(ids, labels=labels, **given),
            f"label {wrong} is outside the 70 tokens of the vocabulary",
        )
        refuses(lambda: model(ids, labels=labels[:, :3], **given), r"labels have shape \(1, 3\).*\(1, 4\)")

    @pytest.mark.parametrize("wrong", [3, -1])
    def test_labels_outside_the_label_count_are_refused(self, wrong: int, tmp_path: Path) -> None:
        ids = torch.full((2, 4), 5)
        tagger = ours("bert-base-uncased", "token", tmp_path / "a", num_labels=3)
        labels = torch.tensor([[0, 1, 2, wrong]]).expand(2, 4)
        refuses(lambda: tagger(ids, labels=labels), f"label {wrong} is outside the 3 labels")
        for number, name in enumerate(
            ("bert-base-uncased", "roberta-base", "distilbert-base-uncased", "llama", "bart-base")
        ):
            model = ours(name, "sequence", tmp_path / str(number), num_labels=3)
            source = ids.clone()
            source[:, -1] = 2  # BART's end token
            refuses(
                lambda model=model, source=source: model(source, labels=torch.tensor([0, wrong])),  # type: ignore[misc]
                f"label {wrong} is outside the 3 labels",
            )
            refuses(
                lambda model=model, source=source: model(source, labels=torch.tensor([0, 1, 1])),  # type: ignore[misc]
                "there are 2 texts",
            )

    def test_answer_positions_past_the_end_are_ignored(self, tmp_path: Path) -> None:
        """Behind the end they count for nothing, as with the reference; one alone is refused."""
        model, ids = ours("bert-base-uncased", "question", tmp_path), torch.full((2, 4), 5)
        some = model(ids, start_positions=torch.tensor([1, 9]), end_positions=torch.tensor([2, 9])).loss
        one = model(ids[:1], start_positions=torch.tensor([1]), end_positions=torch.tensor([2])).loss
        assert torch.allclose(some, one)
        refuses(lambda: model(ids, start_positions=torch.tensor([1, 2])), "give start_positions and end_positions together")

    def test_barts_classifier_needs_an_end_token(self, tmp_path: Path) -> None:
        model = ours("bart-base", "sequence", tmp_path)
        refuses(lambda: model(torch.full((1, 4), 5)), "every text must hold the end token 2, whose state is classified")


def test_causal_from_an_old_pickle_generates(tmp_path: Path) -> None:
    """The whole way: GPT-2 as it was published, and the reference's greedy ids."""
    theirs = reference_model("gpt2")
    model = AutoModelForCausalLM.from_pretrained(published(tmp_path, "gpt2", KINDS[1]))
    ids = ids_for(theirs, 1, 5)
    expected = theirs.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=69)
    assert model.generate(ids, max_new_tokens=12, do_sample=False).tolist() == expected.tolist()


def test_labels_that_are_no_tensor_are_refused(tmp_path: Path) -> None:
    ids = torch.tensor([[5, 6, 7]])
    for family, head in (("bert", "sequence"), ("bert", "token"), ("gpt2", "causal"), ("t5", "seq2seq")):
        reference.write(tmp_path / family / head, family, head)
        model = load(tmp_path / family / head, head)
        for labels in ([0, 1], "der Mann"):
            refuses(lambda m=model, said=labels: m(ids, labels=said), "labels are a tensor, such as", InputTypeError)


def test_a_decoder_without_a_target_is_refused(tmp_path: Path) -> None:
    reference.write(tmp_path, "t5", "seq2seq")
    model = load(tmp_path, "seq2seq")
    refuses(
        lambda: model(torch.tensor([[5, 6, 7]])),
        "give either decoder_input_ids or decoder_inputs_embeds, or labels",
        InputError,
    )


@torch.no_grad()
@pytest.mark.parametrize("family", ["t5", "bart", "bert", "gpt2"])
def test_a_deep_copy_is_independent(family: str, tmp_path: Path) -> None:
    """Also where the modules of base and head lie openly at the top; and a part that is replaced is the one that runs."""
    head = {"bert": "sequence", "gpt2": "causal"}.get(family, "seq2seq")
    reference.write(tmp_path, family, head)
    model = load(tmp_path, head)
    inputs = {"input_ids": torch.tensor([[5, 6, 2]])}
    if head == "seq2seq":
        inputs["decoder_input_ids"] = torch.tensor([[0, 3]])
    expected = model(**inputs).logits
    other = deepcopy(model)
    assert torch.equal(other(**inputs).logits, expected)
    assert other.base_model is not model.base_model
    for value in other.parameters():
        value.zero_()
    assert torch.equal(model(**inputs).logits, expected)
    assert not torch.equal(other(**inputs).logits, expected)
    name = {"bert": "classifier"}.get(family, "lm_head")
    old = getattr(model, name)
    setattr(model, name, torch.nn.Linear(old.in_features, old.out_features))
    assert not torch.equal(model(**inputs).logits, expected)
