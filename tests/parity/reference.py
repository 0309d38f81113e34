"""The reference implementation, asked for tiny models: it writes them to disk, and ours reads them."""

from __future__ import annotations

import logging
import os
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from transformers.models.t5gemma.configuration_t5gemma import T5GemmaModuleConfig

from tests.parity.configs import (
    DECODERS,
    DENSE,
    ENCODERS,
    EXPERTS,
    FAMILIES,
    HEADS,
    LLAMA3_ROPE,
    MAIN,
    PAIRS,
    RANDOM,
    RECURRENT,
    ROPES,
    TINY,
    decoders,
    encoder_decoders,
    experts,
    recurrent,
)

logging.getLogger("transformers").setLevel(logging.ERROR)
transformers.utils.logging.disable_progress_bar()

NOT_ON_GPU = {**decoders.NOT_ON_GPU, **recurrent.NOT_ON_GPU, **experts.NOT_ON_GPU, **encoder_decoders.NOT_ON_GPU}
SINUSOIDAL = encoder_decoders.SINUSOIDAL
BARTS = encoder_decoders.BARTS
NOT_SPLIT = {**decoders.NOT_SPLIT, **recurrent.NOT_SPLIT, **experts.NOT_SPLIT, **encoder_decoders.NOT_SPLIT}
ON_GPU = tuple(family for family in (*DECODERS, *PAIRS) if family not in NOT_ON_GPU)  # what the GPU engine runs

__all__ = [
    "BARTS",
    "DECODERS",
    "DENSE",
    "ENCODERS",
    "EXPERTS",
    "FAMILIES",
    "HEADS",
    "LLAMA3_ROPE",
    "MAIN",
    "NOT_ON_GPU",
    "NOT_SPLIT",
    "ON_GPU",
    "PAIRS",
    "RECURRENT",
    "ROPES",
    "SINUSOIDAL",
    "TINY",
    "as_usual",
    "auto",
    "build",
    "config",
    "in_checkpoint",
    "module_name",
    "random_changes",
    "write",
]  # fmt: skip

AUTO = {  # our word for a head: how its Auto class ends, with the reference and with us
    "base": "", "causal": "CausalLM", "seq2seq": "Seq2SeqLM", "masked": "MaskedLM", "sequence": "SequenceClassification",
    "token": "TokenClassification", "question": "QuestionAnswering", "discriminator": "PreTraining",
}  # fmt: skip


def config(model_type: str, **changes: Any) -> Any:
    fields = {**TINY[model_type], **changes}
    if model_type.startswith("t5gemma"):  # whose stacks have configs of their own, here changed alike
        alike = {name: changes[name] for name in changes.keys() & T5GemmaModuleConfig().to_dict().keys()}
        fields |= {stack: {**fields[stack], **alike} for stack in ("encoder", "decoder")}
    if model_type == "gemma4_text":  # whose blocks have a vector for each token, too
        fields["vocab_size_per_layer_input"] = fields["vocab_size"]
    if model_type == "embedding_gemma":  # which is Gemma 3 by a field
        return transformers.AutoConfig.for_model("gemma3_text", use_bidirectional_attention=True, **fields)
    return transformers.AutoConfig.for_model(model_type.removesuffix("_encoder"), **fields)  # T5Gemma's is one by a field


def auto(head: str, model_type: str = "") -> Any:
    """The reference's Auto class for a head: by our word for it, or by its own."""
    head = "causal" if model_type == "embedding_gemma" and head == "masked" else head
    head = "TextEncoding" if model_type == "t5gemma_encoder" and head == "base" else head
    ending = AUTO.get(head, head)
    return getattr(transformers, f"AutoModelFor{ending}" if ending else "AutoModel")


def build(model_type: str, head: str = "CausalLM", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A reference model with random weights that are lively enough for differences to show.

    No bias is zero and no norm's weight is one, so that nothing can be swapped or forgotten unseen.
    """
    kind, described = auto(head, model_type), config(model_type, **changes)
    model = kind.from_config(described, dtype=dtype, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(7)
    norms = {module for module in model.modules() if "Norm" in type(module).__name__}
    added_to_one = (
        "GemmaRMSNorm",
        "Gemma2RMSNorm",
        "Gemma3RMSNorm",
        "T5GemmaRMSNorm",
        "NemotronLayerNorm1P",
        "Qwen3_5RMSNorm",
        "Qwen3_5MoeRMSNorm",
        "Qwen3NextRMSNorm",
    )
    centred = {module for module in norms if type(module).__name__ in added_to_one}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad and "e_score" not in name:  # a table that follows from the config
                continue
            holder, _, own = name.rpartition(".")
            module = model.get_submodule(holder)
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if module in norms:
                parameter.copy_(0.1 * noise + (own == "weight" and module not in centred))
            elif "relative_attention_bias" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * (0.3 if parameter.ndim == 1 else 0.15))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(0.8 + 0.3 * torch.rand(buffer.shape, generator=generator))
            if name.endswith(("final_logits_bias", "e_score_correction_bias", "expert_bias")):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * (1.0 if "logits" in name else 0.2))
    if model_type == "led":
        model.get_encoder().register_forward_hook(with_whole_patterns, with_kwargs=True)
    return model


def with_whole_patterns(encoder: Any, args: Any, given: Mapping[str, Any], output: Any) -> Any:
    """LED's patterns, (batch, heads, length, global tokens + window + 1), as those of most others: with all keys."""
    if not output.get("attentions"):
        return output
    chosen, pairs = given.get("global_attention_mask"), zip(output.attentions, encoder.config.attention_window, strict=True)
    globals_ = output.get("global_attentions") or (None,) * len(output.attentions)
    whole = [whole_pattern(*pair, chosen, seen) for pair, seen in zip(pairs, globals_, strict=True)]
    output["attentions"] = tuple(whole)
    return output


def whole_pattern(near: Any, window: int, chosen: Any, seen: Any) -> Any:
    """`near`: (batch, heads, length, global tokens + window + 1); `seen`: what these see, (…, keys, global tokens)."""
    batch, heads, length, width = near.shape
    whole = torch.zeros(batch, heads, length, length)
    first = width - window - 1  # behind the global tokens
    for away in range(-(window // 2), window // 2 + 1):
        rows = torch.arange(max(0, -away), min(length, length - away))
        whole[:, :, rows, rows + away] = near[:, :, rows, first + window // 2 + away]
    for row in range(batch if chosen is not None else 0):
        for index, column in enumerate(chosen[row].nonzero()[:, 0].tolist()):
            whole[row, :, :, column] += near[row, :, :, index]
        for index, column in enumerate(chosen[row].nonzero()[:, 0].tolist()):
            whole[row, :, column] = seen[row, :, :length, index]
    return whole


def write(folder: Path, model_type: str, head: str = "CausalLM", **changes: Any) -> Any:
    model = build(model_type, head, **changes)
    model.save_pretrained(folder)
    return model


def kept_in_buffers(model: Any) -> int:
    """How many numbers a reference keeps in files beside its parameters."""
    state = model.state_dict()
    return sum(buffer.numel() for name, buffer in model.named_buffers() if name in state)


def in_checkpoint(model: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A reference model's tensors, or what belongs to each, under the names of its files: there, experts are not stacked."""
    names = dict.fromkeys(("mixtral", "minimax_m2", "lfm2_moe", "kimi_linear"), ("w1", "w3", "w2")).get(
        model.config.model_type, ("gate_proj", "up_proj", "down_proj")
    )
    stored: dict[str, Any] = {}
    for name, value in tensors.items():
        name = name.replace(".gate.moe_statics.", ".moe_statics.")
        if model.config.model_type == "nemotron_h":
            name = name.replace("model.", "backbone.", 1)
        if model.config.model_type == "roformer" and name.endswith("embed_positions.weight"):
            continue  # RoPE's table, which follows from the config
        if names[0] == "w1" and model.config.model_type != "lfm2_moe":
            name = re.sub(r"\.mlp\.(?!(gate|up|down)_proj\.)", ".block_sparse_moe.", name)
        if model.config.model_type == "kimi_linear":
            name = name.replace(".forget_gate.", ".")
            if ".conv1d." in name:
                stored |= {
                    name.replace("conv1d", f"{which}_conv1d"): part
                    for which, part in zip("qkv", value.chunk(3), strict=True)
                }
                continue
        if model.config.model_type.startswith("granitemoe"):
            name = name.replace("moe.router.weight", "moe.router.layer.weight")
        stem, _, last = name.rpartition(".experts.")
        which, kind = last.removesuffix("_bias"), "bias" if last.endswith("_bias") else "weight"
        if which not in ("gate_up_proj", "up_proj", "down_proj"):
            stored[name] = value
            continue
        alternate = model.config.model_type == "gpt_oss"
        if model.config.model_type in ("gpt_oss", "llama4_text") and kind == "weight":
            value = value.mT
        pair = (value[:, ::2], value[:, 1::2]) if alternate else value.chunk(2, 1)
        whole = {"down_proj": names[2]}.get(which, which)
        parts = dict(zip(names, pair, strict=False)) if which == "gate_up_proj" else {whole: value}
        for own, part in parts.items():
            stored |= {f"{stem}.experts.{number}.{own}.{kind}": expert for number, expert in enumerate(part)}
    return stored


def as_usual(model: Any, ids: Any, output: Any) -> Any:
    """A model's output, as that of most others: Mamba-2's has a cache of another name, and its hidden states begin after
    the first block, with the last of them twice; Gemma 3n's have all streams of a block."""
    if model.config.model_type == "gemma3n_text" and (states := output.get("hidden_states")) is not None:
        active, final = model.config.altup_active_idx, model.base_model(ids).last_hidden_state
        output["hidden_states"] = (states[0][0], *(state[active] for state in states[1:-1]), final)
        return output
    if model.config.model_type != "mamba2":
        return output
    fields = {name: value for name, value in output.items() if name != "cache_params"}
    if (states := fields.get("hidden_states")) is not None:
        fields["hidden_states"] = (model.get_input_embeddings()(ids), *states[:-2], states[-1])
    outputs = transformers.modeling_outputs
    kind = outputs.BaseModelOutputWithPast if "last_hidden_state" in fields else outputs.CausalLMOutputWithPast
    return kind(**fields)


def module_name(model: Any, name: str) -> str:
    """What a module is called in the reference, where its files have another name."""
    if model.config.model_type.startswith("granitemoe"):
        return name.replace("router.layer", "router")
    renamed = name.replace("backbone.", "model.", 1) if model.config.model_type == "nemotron_h" else name
    return renamed.replace("block_sparse_moe", "mlp")  # Mixtral's name in checkpoints, which the reference has dropped


def random_changes(model_type: str, seed: int) -> dict[str, Any]:
    """A configuration that no other test has."""
    return RANDOM[model_type](random.Random(seed))
