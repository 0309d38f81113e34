"""Dropout: where the reference has it and at the config's rates; at work in training, gone outside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from glassformer.blueprints import read_config
from glassformer.compat import auto
from glassformer.torch.attention import Attention, CrossAttention
from tests.parity import reference
from tests.parity.compare import close, ids_for, load

pytestmark = pytest.mark.usefixtures("one_thread")

LLAMA = {"attention_dropout": 0.21}
BERT = {"hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.21, "classifier_dropout": 0.41}
UNHEADED = {name: rate for name, rate in BERT.items() if name != "classifier_dropout"}
MODERNBERT = {**LLAMA, "embedding_dropout": 0.31, "mlp_dropout": 0.11, "classifier_dropout": 0.41}
DEBERTA = {**UNHEADED, "pooler_dropout": 0.31, "cls_dropout": 0.41}
BART = {"dropout": 0.11, "attention_dropout": 0.21, "activation_dropout": 0.31}
NOTHING: dict[str, float] = {}
RATES: dict[str, dict[str, float]] = {  # each its own, so that none can stand in for another
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma3_text"), LLAMA),
    **dict.fromkeys(("olmo2", "olmo3", "granite", "smollm3", "gemma", "gemma2"), LLAMA),
    **dict.fromkeys((*reference.EXPERTS, *reference.RECURRENT), LLAMA),
    "phi3": {**LLAMA, "resid_pdrop": 0.11},
    **dict.fromkeys(("cohere", "cohere2", "hunyuan_v1_dense", "arcee", "helium", "glm4", "exaone4"), LLAMA),
    "seed_oss": {**LLAMA, "residual_dropout": 0.11},
    **dict.fromkeys(("ernie4_5", "ernie4_5_moe", "lfm2", "lfm2_moe"), NOTHING),
    **dict.fromkeys(("nemotron", "olmo", "ministral3", "apertus", "gemma3n_text", "gemma4_text"), LLAMA),
    "stablelm": {**LLAMA, "hidden_dropout": 0.11},
    "phi": {**LLAMA, "resid_pdrop": 0.11, "embd_pdrop": 0.31},
    "bloom": {**LLAMA, "hidden_dropout": 0.11},
    "mpt": {},
    "mamba2": {},
    "falcon": {},  # without ALiBi
    "opt": {"dropout": 0.11, "attention_dropout": 0.21},
    "biogpt": {"hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.21, "activation_dropout": 0.31},
    **{key: {"resid_pdrop": 0.11, "embd_pdrop": 0.31, "attn_pdrop": 0.21} for key in ("gpt_bigcode", "openai-gpt")},
    "gptj": {"resid_pdrop": 0.11, "embd_pdrop": 0.31, "attn_pdrop": 0.21},
    "gpt_neox": {**LLAMA, "hidden_dropout": 0.11, "classifier_dropout": 0.41},
    "starcoder2": {**LLAMA, "residual_dropout": 0.11, "embedding_dropout": 0.31},
    **dict.fromkeys(reference.ENCODERS, BERT),
    **dict.fromkeys(("mpnet", "megatron-bert", "roformer"), UNHEADED),
    **dict.fromkeys(("eurobert", "embedding_gemma"), LLAMA),
    "albert": {"hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.21, "classifier_dropout_prob": 0.41},
    **dict.fromkeys(("modernbert", "modernbert-decoder"), MODERNBERT),
    **dict.fromkeys(("deberta", "deberta-v2"), DEBERTA),
    "gpt_neo": {"resid_dropout": 0.11, "embed_dropout": 0.31, "attention_dropout": 0.21, "classifier_dropout": 0.41},
    "gpt2": {"resid_pdrop": 0.11, "embd_pdrop": 0.31, "attn_pdrop": 0.21, "classifier_dropout": 0.41},
    "distilbert": {"dropout": 0.11, "attention_dropout": 0.21, "qa_dropout": 0.31, "seq_classif_dropout": 0.41},
    "t5": {"dropout_rate": 0.21},
    "mt5": {"dropout_rate": 0.21},
    "umt5": {"dropout_rate": 0.21},
    "switch_transformers": {"dropout_rate": 0.21},
    **{key: {**LLAMA, "dropout_rate": 0.11, "classifier_dropout_rate": 0.41} for key in ("t5gemma", "t5gemma_encoder")},
    **{family: {**BART, "classifier_dropout": 0.41} for family in ("bart", "mbart")},
    **dict.fromkeys(("marian", "pegasus", "m2m_100", "blenderbot", "blenderbot-small", "led"), BART),
    "scratch": {"dropout": 0.21},
}
ATTENTION = {
    **dict.fromkeys(("gpt2", "gptj", "gpt_bigcode", "openai-gpt"), "attn_pdrop"), "biogpt": "attention_probs_dropout_prob",
    "t5": "dropout_rate", "mt5": "dropout_rate", "umt5": "dropout_rate", "switch_transformers": "dropout_rate",
    "scratch": "dropout",
    **{family: name for family in reference.ENCODERS if (name := "attention_probs_dropout_prob") in RATES[family]},
}  # fmt: skip
MAIN = reference.MAIN
SCRATCH = {"model_type": "scratch", "d_model": 24, "num_blocks": 2, "num_heads": 3, "context_length": 16}
DROPPING = tuple(family for family in reference.FAMILIES if RATES.get(family) != {})  # the others have nothing to drop out
FAMILIES = (*DROPPING, "scratch")
CASES = [(family, head) for family in DROPPING for head in reference.HEADS[family]]


def make(family: str, head: str | None = None, **rates: float) -> Any:
    """A tiny model with random weights, in training."""
    if family == "scratch":
        raw = {**SCRATCH, "max_token_value": 60, **RATES[family], **rates}
    else:
        raw = reference.config(family, **{**RATES[family], **rates}).to_dict()
    config = read_config(raw)
    torch.manual_seed(3)
    model = auto.model_class_for_head(family, head or MAIN.get(family, "causal"))(config)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():  # lively, so that a dropped weight shows
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return model.train()


def inputs(model: Any) -> dict[str, Tensor]:
    ids = ids_for(model, 2, 9)
    if not hasattr(model.base_model, "cross_attention_modules"):
        return {"input_ids": ids}
    ids[:, -1] = model.config.eos_token_id
    if getattr(model, "head_kind", "") == "sequence":  # the decoder reads the source itself
        return {"input_ids": ids}
    return {"input_ids": ids, "decoder_input_ids": ids_for(model, 2, 7, seed=2)}


def rates(model: nn.Module) -> dict[str, float]:
    """By name; the reference's BART has numbers where ours and the others have modules."""
    result = {name: part.p for name, part in model.named_modules() if isinstance(part, nn.Dropout)}
    for name, part in model.named_modules():
        for own in ("dropout", "activation_dropout"):
            if isinstance(rate := getattr(part, own, None), float) and "Attention" not in type(part).__name__:
                result[f"{name}.{own}".lstrip(".")] = rate
    return result


def shares(count: int, rate: float) -> Tensor:
    """What is left of each of some numbers: all of it, half of a rate less, a whole rate less, and so on."""
    return 1 - rate * (torch.arange(count) % 3) / 2


@pytest.fixture
def predictable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout that takes a little from most numbers, by their place, instead of all from some, by chance."""
    attend = functional.scaled_dot_product_attention

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * shares(x.shape[-1], p) if training else x

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Any = None, p: float = 0.0, **more: Any) -> Tensor:
        left = value * shares(value.shape[-2], p)[:, None]  # less of a key's weight is less of its value
        return attend(query, key, left, mask, 0.0, **more)

    monkeypatch.setattr(functional, "dropout", dropout)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)


def dropout_of_windows(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """The same for weights with a column for each place in a token's window: (batch, length, heads, window + 1)."""
    if x.ndim != 4:
        return x * shares(x.shape[-1], p) if training else x
    length, width = x.shape[1], x.shape[-1]
    keys = torch.arange(length)[:, None] + torch.arange(width) - width // 2
    return x * shares(length, p)[keys.clamp(0, length - 1)][:, None] if training else x


@torch.no_grad()
@pytest.mark.usefixtures("predictable")
@pytest.mark.parametrize(("family", "head"), CASES)
def test_dropout_is_where_the_reference_has_it(
    family: str, head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same modules by the same names, at the same rates, the same inside attention; applied at the same places."""
    if family == "led":
        monkeypatch.setattr(functional, "dropout", dropout_of_windows)
    theirs = reference.write(tmp_path, family, head, **RATES[family])
    ours = load(tmp_path, head)
    given = inputs(ours)
    calm = theirs(**given)[0]
    close(ours(**given)[0], calm, 1e-5)
    expected, result = theirs.train()(**given)[0], ours.train()(**given)[0]
    close(result, expected, 1e-5)
    assert float((expected - calm).abs().max()) > 1e-3 * float(calm.max() - calm.min())
    assert rates(ours) == rates(theirs)
    for name, part in ours.named_modules():
        if isinstance(part, Attention):
            other = theirs.get_submodule(reference.module_name(theirs, name))
            rate = getattr(other, "attention_dropout", None) or getattr(other, "attn_dropout", None) or other.dropout
            assert part.dropout_rate == (rate.p if isinstance(rate, nn.Dropout) else rate) == 0.21, name


@pytest.mark.parametrize("family", FAMILIES)
class TestDropoutInTraining:
    def test_dropout_acts_in_training_only(self, family: str) -> None:
        model = make(family)
        given = inputs(model)
        first, second = model(**given).logits, model(**given).logits
        assert not torch.allclose(first, second, atol=1e-3)
        torch.manual_seed(1)
        once = model(**given).logits
        torch.manual_seed(1)
        assert torch.equal(model(**given).logits, once)
        model.eval()
        still = model(**given).logits
        assert torch.equal(model(**given).logits, still)
        assert not torch.allclose(still, first, atol=1e-3)
        assert torch.isfinite(first).all()

    def test_gradients_flow_through_dropout(self, family: str) -> None:
        model = make(family)
        given = inputs(model)
        if model.base_model.described.has_global_tokens:
            given["global_attention_mask"] = (torch.arange(given["input_ids"].shape[1]) == 2).expand_as(given["input_ids"])
        scores = model(**given).logits
        scores.logsumexp(-1).square().mean().backward()
        silent = [n for n, p in model.named_parameters() if p.grad is None or not float(p.grad.abs().max()) > 0]
        experts = [n for n, _ in model.named_parameters() if ".experts." in n]
        assert set(silent) <= set(experts)  # no token goes there
        assert not experts or len(silent) < len(experts)
        assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)

    def test_attention_weights_are_dropped(self, family: str) -> None:
        """With all other rates zero, what attention drops is all that differs; with none, training is as evaluation."""
        own = ATTENTION.get(family, "attention_dropout")
        none = {name: 0.0 for name in RATES[family] if name != own}
        model = make(family, **none)
        if family in ("t5", "scratch"):  # one rate for all: the others' modules are set by hand
            inside = {part for name, part in model.named_modules() if ".heads." in f"{name}."}
            for part in model.modules():
                if isinstance(part, nn.Dropout) and part not in inside:
                    part.p = 0.0
        given = inputs(model)
        first, second, still = model(**given).logits, model(**given).logits, model.eval()(**given).logits
        assert not torch.allclose(first, second, atol=1e-5)
        assert not torch.allclose(first, still, atol=1e-5)
        calm = make(family, **dict.fromkeys(RATES[family], 0.0))
        assert torch.equal(calm(**given).logits, calm.eval()(**given).logits)

    def test_a_watched_pattern_is_before_dropout(self, family: str) -> None:
        """A pattern is shown whole: rows sum to one in training too, or to less where sinks take a part."""
        model = make(family)
        result = model(**inputs(model), watch="blocks.0.attention.pattern").sites["blocks.0.attention.pattern"]
        sums = result.sum(-1)
        if "blocks.0.attention.pattern" not in model.base_model.described.attention_patterns:
            return  # of a state, whose weights sum to anything
        assert bool((sums <= 1 + 1e-5).all())
        assert family == "gpt_oss" or torch.allclose(sums, torch.ones_like(sums), atol=1e-5)


@pytest.mark.parametrize("family", reference.PAIRS)
def test_cross_attention_weights_are_dropped(family: str) -> None:
    """Dropped by itself: everything else is at rest."""
    model = make(family)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, Attention) and not isinstance(part, CrossAttention):
            part.dropout = 0.0
    given = inputs(model)
    one, other = model(**given), model(**given)
    assert torch.equal(one.encoder_last_hidden_state, other.encoder_last_hidden_state)
    assert not torch.allclose(one.logits, other.logits, atol=1e-5)


def test_routers_read_noise_in_training_alone() -> None:
    """Switch Transformers: each number of what its routers read is multiplied by one near 1."""
    changes = {"dropout_rate": 0.0, "router_jitter_noise": 0.3}
    config = read_config({"model_type": "switch_transformers", **reference.TINY["switch_transformers"], **changes})
    model = auto.AutoModelForSeq2SeqLM.from_config(config)
    layer = model.encoder.block[1].layer[1]
    read: list[torch.Tensor] = []
    layer.layer_norm.register_forward_hook(lambda module, args, made: read.append(made))
    layer.mlp.router.classifier.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    ratios = []
    for training in (True, False):
        model.train(training)
        with torch.no_grad():
            model(**inputs(model))
        normed, routed = read[:2]
        ratios.append(routed / normed)
        read.clear()
    noisy, quiet = ratios
    assert torch.equal(quiet, torch.ones_like(quiet))
    assert 0.7 <= float(noisy.min()) < 0.8
    assert 1.2 < float(noisy.max()) <= 1.3


@pytest.mark.parametrize("family", DROPPING)
def test_loaded_and_new_models_are_in_eval_mode(family: str, tmp_path: Path) -> None:
    """From a checkpoint, as from a config by an Auto class, a model comes ready to run."""
    reference.write(tmp_path, family, MAIN[family], **RATES[family])
    model = load(tmp_path, MAIN[family])
    assert not any(part.training for part in model.modules())
    assert all(part.dropout_rate == 0.0 for part in model.modules() if isinstance(part, Attention))
    given = inputs(model)
    with torch.no_grad():
        assert torch.equal(model(**given).logits, model(**given).logits)
    ending = reference.AUTO[MAIN[family]]
    assert not getattr(auto, f"AutoModelFor{ending}").from_config(model.config).training
    assert model.config.to_dict().items() >= RATES[family].items()
