"""Tiny models with a head for further tokens, which the reference does not have.

Its block is one of the reference's: a model of one layer. All around it is written out here, as it was published: norms of
the next token's vector and of the state, side by side, and a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.parity import reference

MTP: dict[str, dict[str, Any]] = {  # families whose heads are `mtp.*`, and what makes a model of one layer a head's block
    "qwen3_5_text": {"layer_types": ["full_attention"]},
    "qwen3_5_moe_text": {"layer_types": ["full_attention"]},
    "qwen3_next": {"layer_types": ["full_attention"], "mlp_only_layers": [], "decoder_sparse_step": 1},
}
BEHIND: dict[str, dict[str, Any]] = {  # whose heads are a layer behind the last one
    "deepseek_v3": {"first_k_dense_replace": 0},
    "glm4_moe": {"first_k_dense_replace": 0},
    "glm4_moe_lite": {"mlp_layer_types": ["sparse"]},
}
FAMILIES = (*MTP, *BEHIND)


@dataclass
class Reference:
    model: Any
    block: Any  # a model of one layer: the head's, and the norm after it
    tokens_norm: torch.Tensor
    states_norm: torch.Tensor
    matrix: torch.Tensor

    @torch.no_grad()
    def head(self, ids: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of tokens t + 1 and states at t: logits of tokens t + 2, and the head's own states."""
        vectors = self.model.get_input_embeddings()(ids)
        both = torch.cat((self._normed(vectors, self.tokens_norm), self._normed(states, self.states_norm)), -1)
        last = self.block.model(inputs_embeds=both @ self.matrix.T, use_cache=False).last_hidden_state
        return self.model.lm_head(last), last

    @torch.no_grad()
    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """The head's guesses all along texts."""
        return self.head(ids[:, 1:], self.model.model(ids, use_cache=False).last_hidden_state[:, :-1])[0]

    @torch.no_grad()
    def draft(self, ids: torch.Tensor, count: int) -> list[int]:
        """The best guesses after a text whose last token has not been read, each from those before; nothing is cached."""
        states, text, guesses = self.model.model(ids[:, :-1], use_cache=False).last_hidden_state, ids, []
        for _ in range(count):
            logits, own = self.head(text[:, 1:], states)
            guesses.append(int(logits[0, -1].argmax()))
            text = torch.cat((text, torch.tensor([guesses[-1:]])), 1)
            states = torch.cat((states, own[:, -1:]), 1)
        return guesses

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        eps = self.model.config.rms_norm_eps
        added = 1.0 if self.model.config.model_type in MTP else 0.0
        normed: torch.Tensor = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (added + weight)
        return normed


def file_name(family: str, layers: int, name: str) -> str:
    """What a tensor of the model of one layer is called in a file with a head."""
    if family in MTP:
        return name.replace("model.", "mtp.", 1)
    whole = f"model.layers.{layers}."
    return name.replace("model.norm.", f"{whole}shared_head.norm.").replace("model.layers.0.", whole)


def write(folder: Path, family: str, **changes: Any) -> Reference:
    """A tiny model with a head, in a folder."""
    model = reference.write(folder, family, **changes)
    one = {**changes, "num_hidden_layers": 1, **{**MTP, **BEHIND}[family]}
    torch.manual_seed(3)
    block = reference.build(family, **one)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
    width, layers = model.config.hidden_size, model.config.num_hidden_layers
    mean = 0.0 if family in MTP else 1.0
    norms = [mean + 0.1 * torch.randn(width) for _ in range(2)]
    matrix = torch.randn(width, 2 * width) * (2 * width) ** -0.5
    names = ["mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc"]
    if family in BEHIND:
        names = [f"model.layers.{layers}.{name}" for name in ("enorm", "hnorm", "eh_proj")]
    tensors = {f"{name}.weight": value for name, value in zip(names, (*norms, matrix), strict=True)}
    stored = reference.in_checkpoint(
        block, {name: value for name, value in block.state_dict().items() if "layers" in name or "model.norm" in name}
    )
    tensors |= {file_name(family, layers, name): value.clone().contiguous() for name, value in stored.items()}
    save_file({**load_file(folder / "model.safetensors"), **tensors}, folder / "model.safetensors", {"format": "pt"})
    return Reference(model, block, norms[0], norms[1], matrix)


def write_agreeing(folder: Path, family: str, **changes: Any) -> None:
    """A model in which a token alone decides on the next one, and whose head has learned just that: no block adds anything,
    and of a pair the head takes the token."""
    theirs = write(folder, family, **changes)
    path, width = folder / "model.safetensors", theirs.model.config.hidden_size
    stored = load_file(path)
    norm = stored["model.norm.weight"]
    for name, value in stored.items():
        if any(part in name for part in ("o_proj", "out_proj", "down_proj")):
            stored[name] = torch.zeros_like(value)
        elif "enorm" in name or "norm_embedding" in name:
            stored[name] = torch.zeros_like(value) if family in MTP else torch.ones_like(value)
        elif "eh_proj" in name or "mtp.fc" in name:
            stored[name] = torch.cat((torch.eye(width), torch.zeros(width, width)), 1)
        elif "shared_head.norm" in name or name == "mtp.norm.weight":
            stored[name] = norm.clone()
    save_file(stored, path, {"format": "pt"})
