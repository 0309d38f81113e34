"""Scores and gradients in float64, to 1e-8 of each one's own scale: what float32 could hide does not show here either.

The reference computes some things in float32 whatever the model's dtype. Its RMS norms and routers are replaced here by the
plain formula, and its attention is torch's own (its eager one has a float32 softmax), or nothing could be told beyond 1e-7.
RoPE's frequencies are float32 numbers on both sides; ours are the rounded exact ones, the reference's were computed in
float32. They are compared by themselves, and then the reference is given ours: cosines and sines must then be equal. The
loss is written out below, since the reference's own goes through float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.apertus.modeling_apertus import ApertusRMSNorm
from transformers.models.arcee.modeling_arcee import ArceeRMSNorm
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.cohere2.modeling_cohere2 import Cohere2LayerNorm
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2RMSNorm
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm
from transformers.models.ernie4_5.modeling_ernie4_5 import Ernie4_5RMSNorm
from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeRMSNorm
from transformers.models.eurobert.modeling_eurobert import EuroBertRMSNorm
from transformers.models.exaone4.modeling_exaone4 import Exaone4RMSNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nRMSNorm
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm
from transformers.models.glm4.modeling_glm4 import Glm4RMSNorm
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeRMSNorm
from transformers.models.glm4_moe_lite.modeling_glm4_moe_lite import Glm4MoeLiteRMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.granite.modeling_granite import GraniteRMSNorm
from transformers.models.helium.modeling_helium import HeliumRMSNorm
from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2RMSNorm
from transformers.models.ministral3.modeling_ministral3 import Ministral3RMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.mixtral.modeling_mixtral import MixtralRMSNorm, MixtralTopKRouter
from transformers.models.modernbert import modeling_modernbert
from transformers.models.modernbert_decoder import modeling_modernbert_decoder
from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.olmo3.modeling_olmo3 import Olmo3RMSNorm
from transformers.models.olmoe.modeling_olmoe import OlmoeRMSNorm, OlmoeTopKRouter
from transformers.models.phi3.modeling_phi3 import Phi3RMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeRMSNorm, Qwen2MoeTopKRouter
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRMSNorm, Qwen3MoeTopKRouter
from transformers.models.seed_oss.modeling_seed_oss import SeedOssRMSNorm
from transformers.models.smollm3.modeling_smollm3 import SmolLM3RMSNorm
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersLayerNorm,
    SwitchTransformersTop1Router,
)
from transformers.models.t5.modeling_t5 import T5LayerNorm
from transformers.models.t5gemma.modeling_t5gemma import T5GemmaRMSNorm
from transformers.models.umt5.modeling_umt5 import UMT5LayerNorm

from glassformer.torch.positions import RotaryPositions
from tests.parity import reference
from tests.parity.compare import ids_for, load, ragged

pytestmark = pytest.mark.usefixtures("one_thread")

NORMS = (
    SwitchTransformersLayerNorm,
    UMT5LayerNorm,
    LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm, T5LayerNorm, MT5LayerNorm, Phi3RMSNorm, Olmo2RMSNorm,
    Olmo3RMSNorm, GraniteRMSNorm, SmolLM3RMSNorm, MixtralRMSNorm, OlmoeRMSNorm, Qwen3MoeRMSNorm, GptOssRMSNorm,
    ArceeRMSNorm, Ernie4_5RMSNorm, Exaone4RMSNorm, Glm4RMSNorm, HeliumRMSNorm, HunYuanDenseV1RMSNorm, SeedOssRMSNorm,
    Qwen2MoeRMSNorm, Glm4MoeRMSNorm, ApertusRMSNorm, Ministral3RMSNorm, DeepseekV2RMSNorm, DeepseekV3RMSNorm,
    Glm4MoeLiteRMSNorm, MiniMaxM2RMSNorm, Ernie4_5_MoeRMSNorm, EuroBertRMSNorm,
)  # fmt: skip
OFFSET_NORMS = (GemmaRMSNorm, Gemma2RMSNorm, Gemma3RMSNorm, T5GemmaRMSNorm)
ROUTERS = (MixtralTopKRouter, OlmoeTopKRouter, Qwen2MoeTopKRouter, Qwen3MoeTopKRouter)
EXACT = 1e-8
ROUNDED = (
    "gemma2",
    "gemma3n_text",
    "t5gemma",
    "gptj",
    "gpt_neo",
    "cohere",
    "cohere2",
    "ernie4_5",
    "glm4_moe",
    "bloom",
    "mpt",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "minimax_m2",
    "llama4_text",
    "ernie4_5_moe",
    "granitemoe",
    "led",
    "roformer",
    *reference.RECURRENT,
)  # families whose attention the reference has in float32 only, or whose RoPE, norms, router or states
FLOAT32 = {"ernie4_5_moe": (".mlp.gate.weight",), "olmo_hybrid": (".A_log", ".dt_bias")}
TURNED = ("embedding_gemma", "eurobert", "gte", "modernbert", "nomic_bert", "roformer")  # encoders with RoPE
UNTURNED = ({*reference.ENCODERS} - {*TURNED}) | {"opt", "biogpt", "led", *reference.BARTS}
KEYS = ("k_proj.bias", "key.bias", "k_lin.bias", "attn.k.bias")
CASES = [
    *((family, head, {}) for family, heads in reference.HEADS.items() for head in heads if head not in ("base",)),
    ("t5", "seq2seq", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("t5", "seq2seq", {"feed_forward_proj": "gated-silu"}),
    ("gpt2", "causal", {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False, "n_inner": None}),
    ("bert", "masked", {"hidden_act": "relu"}),
    ("bert", "masked", {"hidden_act": "gelu_new"}),
    ("bart", "seq2seq", {"scale_embedding": False, "activation_function": "relu"}),
    *(("llama", "causal", {"rope_parameters": rope}) for rope in reference.ROPES),
    ("gemma3_text", "causal", {"rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}, "full_attention": reference.ROPES[1]}}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _norms_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)

    def offset(self: Any, x: Tensor) -> Tensor:
        return (1 + self.weight) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def centred(self: Any, x: Tensor) -> Tensor:
        return plain(self, x - x.mean(-1, keepdim=True))

    def weighted_perhaps(self: Any, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return normed * self.weight if self.with_scale else normed

    def unweighted(self: Any, x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, self.normalized_shape, eps=1e-5)

    def route(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = torch.nn.functional.linear(x, self.weight)
        best, experts = scores.softmax(-1).topk(self.top_k, -1)
        normalized = getattr(self, "norm_topk_prob", True)
        return scores, best / best.sum(-1, keepdim=True) if normalized else best, experts

    for norm in NORMS:
        monkeypatch.setattr(norm, "forward", plain)
    for norm in OFFSET_NORMS:
        monkeypatch.setattr(norm, "forward", offset)
    for norm in (Gemma3nRMSNorm, Gemma4RMSNorm):
        monkeypatch.setattr(norm, "forward", weighted_perhaps)
    monkeypatch.setattr(OlmoLayerNorm, "forward", unweighted)
    for router in ROUTERS:
        monkeypatch.setattr(router, "forward", route)
    for norm in (CohereLayerNorm, Cohere2LayerNorm):
        monkeypatch.setattr(norm, "forward", centred)
    for modeling in (modeling_modernbert, modeling_modernbert_decoder):
        monkeypatch.setattr(modeling, "apply_rotary_pos_emb", apply_rotary_pos_emb)


def inputs(theirs: Any, family: str, head: str) -> dict[str, Tensor]:
    """A padded batch where that means the same on both sides."""
    if family not in reference.PAIRS:
        return {"input_ids": ids_for(theirs, 2, 19)}
    whole = {"t5gemma": (17, 17), "led": (16, 16)}  # whose windows of padding alone are no numbers in float64
    _, source, mask = ragged(theirs, whole.get(family, (17, 8)))
    if head == "sequence":
        source = ids_for(theirs, 2, 9)
        source[:, -1] = theirs.config.eos_token_id
        return {"input_ids": source}
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": ids_for(theirs, 2, 18, seed=4)}


def share_frequencies(theirs: Any, ours: Any) -> None:
    """Give the reference our RoPE frequencies; they may differ from its own by float32's rounding only."""
    base = ours.base_model
    mine = {"inv_freq": "rotary_emb", "full_attention_inv_freq": "rotary_emb", "sliding_attention_inv_freq":
            "rotary_emb_local"}  # fmt: skip
    for name, buffer in list(theirs.named_buffers()):
        if (last := name.rpartition(".")[2]) in mine:
            stack = next((f"{own}." for own in ("encoder", "decoder") if f".{own}.rotary_emb" in name), "")
            frequencies = (
                base.get_submodule(f"{stack}{mine[last]}").frequencies(RotaryPositions(torch.zeros(1, 1))).flatten()
            )
            assert frequencies.dtype == buffer.dtype == torch.float32
            torch.testing.assert_close(frequencies, buffer, rtol=5e-7, atol=0)
            buffer.copy_(frequencies)
        elif name.endswith("embed_positions.weights"):  # fairseq's sinusoids
            table = base.get_submodule(name.rpartition(".")[0].removeprefix("model."))
            rows = slice(theirs.config.pad_token_id + 1, theirs.config.pad_token_id + 1 + len(table.weight))
            torch.testing.assert_close(table.weight, buffer[rows].to(table.weight.dtype), rtol=0, atol=1e-5)
            buffer[rows].copy_(table.weight)


def loss(output: Any) -> Tensor:
    """Cross-entropy of an arbitrary answer, in the scores' own dtype."""
    scores = output["logits"] if "logits" in output else torch.stack((output["start_logits"], output["end_logits"]), 1)
    rows = scores.reshape(-1, scores.shape[-1])
    answers = torch.arange(len(rows)) * 7 % rows.shape[-1]
    entropy = -rows.log_softmax(-1)[torch.arange(len(rows)), answers].mean()
    return entropy + 0.1 * rows.square().mean()  # which a constant added to all scores does not leave as it is


def exact(ours: Tensor, theirs: Tensor, name: str, share: float = EXACT) -> None:
    ours, theirs = ours.detach(), theirs.detach()
    assert ours.dtype == theirs.dtype == torch.float64
    scale = float(theirs.abs().max())
    assert scale > 0, f"{name}: all zeros, so nothing is compared"
    assert float((ours - theirs).abs().max()) <= share * scale, name


@pytest.mark.parametrize(("family", "head", "changes"), CASES)
def test_gradients_equal_the_reference_in_float64(
    family: str, head: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference.write(tmp_path, family, head, **changes)
    auto = reference.auto(head, family)
    share = 1e-4 if family in reference.RECURRENT else 1e-5 if family in ROUNDED else EXACT
    own = {"experts_implementation": "eager"} if family in reference.EXPERTS else {}  # the usual one has no float64
    eager = (
        *ROUNDED,
        "deberta",
        "deberta-v2",
        "mpnet",
        "megatron-bert",
        "gpt_oss",
        "openai-gpt",
        "switch_transformers",
    )  # which have no other; gpt_oss's sinks are in this one alone
    attention = "eager" if family in eager else "sdpa"
    theirs = auto.from_pretrained(tmp_path, dtype=torch.float64, attn_implementation=attention, **own).eval()
    if family == "deberta":  # some of whose biases stay in float32
        theirs.double()
    for router in theirs.modules():
        if isinstance(router, SwitchTransformersTop1Router):  # which would compute in float32
            router.dtype = torch.float64
    ours = load(tmp_path, head, dtype=torch.float64)
    assert {value.dtype for value in ours.parameters()} == {torch.float64}
    share_frequencies(theirs, ours)
    with monkeypatch.context() as patched:
        if family in ("mamba2", "nemotron_h", "deberta"):  # whose scores, steps or norms the reference has in float32
            patched.setattr(Tensor, "float", Tensor.double)
        expected, result = (model(**inputs(theirs, family, head)) for model in (theirs, ours))
    for name in ("logits",) if "logits" in expected else ("start_logits", "end_logits"):
        exact(result[name], expected[name], name, share)
    if family in reference.SINUSOIDAL:  # whose tables of positions follow from the config
        for stack in (theirs.model.encoder, theirs.model.decoder):
            stack.embed_positions.requires_grad_(False)
    for name, value in theirs.named_parameters():
        if name.endswith("e_score_correction_bias"):  # which no gradient reaches
            value.requires_grad_(False)
    mine, all_names = dict(ours.named_parameters()), theirs.named_parameters(remove_duplicate=False)
    right = {name: value for name, value in all_names if value.requires_grad}
    distinct = {name: value for name, value in theirs.named_parameters() if value.requires_grad}
    assert len(mine) == len(reference.in_checkpoint(theirs, distinct))
    gradients = dict(zip(right, torch.autograd.grad(loss(expected), list(right.values()), allow_unused=True), strict=True))
    gradients = reference.in_checkpoint(theirs, gradients)
    gradients = {name: gradients[name] for name in mine}  # of the names of what is tied, either may come first
    got = dict(zip(mine, torch.autograd.grad(loss(result), list(mine.values()), allow_unused=True), strict=True))
    for name, gradient in gradients.items():
        if gradient is None:
            assert got[name] is None, name
        elif family in UNTURNED and name.endswith(KEYS):  # adds the same to all of a query's scores: it is only rounding
            assert float(got[name].abs().max()) <= EXACT
        elif ".experts." in name and not gradient.any():  # no token that counts goes there
            assert got[name] is None or not got[name].any(), name
        elif name.endswith(FLOAT32.get(family, ())):  # which the reference has in float32 always
            exact(got[name], gradient.double(), name, share)
        else:
            exact(got[name], gradient, name, share)
