"""Gemma 3, text: Llama's blocks with norms before and after, scaled vectors, and two RoPEs: near layers and far ones.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.blueprints.gemma3_text import Config
from glassformer.families import llama
from glassformer.families.shared.decoder import Decoder
from glassformer.layers import Block, Embedding, ForwardPass, GatedMLP, OffsetRMSNorm, RotaryEmbedding, RotaryTables


class GemmaAttention(llama.LlamaAttention):
    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(c, layer)
        self.scale = c.scale
        self.rotary_name = c.rope_name(layer)
        self.q_norm = OffsetRMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = OffsetRMSNorm(c.head_dim, c.rms_norm_eps)

    def prepare_query_key(self, query: Tensor, key: Tensor, p: ForwardPass) -> tuple[Tensor, Tensor]:
        return super().prepare_query_key(self.q_norm(query), self.k_norm(key), p)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.project_output(self.joined_heads(x, p))  # the norm after it gives its update


class GemmaMLP(GatedMLP):
    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("mlp.input", x, p)
        return self.down(self.at_site("mlp.hidden", self.neurons(x), p))


class GemmaDecoderLayer(Block):
    printed_name = "DecoderLayer"

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.self_attn = GemmaAttention(c, layer)
        self.mlp = GemmaMLP(c.hidden_size, c.intermediate_size, c.hidden_act)
        self.input_layernorm = OffsetRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = OffsetRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_feedforward_layernorm = OffsetRMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        update = self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), p))
        x = self.add(x, self.at_site("attention.update", update, p), p, "middle")
        update = self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x), p))
        return self.add(x, self.at_site("mlp.update", update, p), p, "residual")


class Gemma3TextModel(Decoder):
    family = "Gemma3"
    config_class = Config
    class_suffixes = {"ForSequenceClassification": "TextForSequenceClassification"}

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size, scale=c.hidden_size**0.5)
        self.layers = nn.ModuleList(GemmaDecoderLayer(c, number) for number in range(c.num_hidden_layers))
        self.norm = OffsetRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(c.rope, c.head_dim)
        self.rotary_emb_local = RotaryEmbedding(c.local_rope, c.head_dim)
        self.post_init(self.layers)

    @property
    def token_embedding(self) -> Embedding:
        return self.embed_tokens

    def rotary_tables(self, positions: Tensor, dtype: torch.dtype) -> dict[str, RotaryTables]:
        return {"default": self.rotary_emb(positions, dtype), "local": self.rotary_emb_local(positions, dtype)}

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("embedding", x, p)
        for layer in self.layers:
            x = layer(x, p)
        return self.at_site("final", self.final_norm(x), p)

    def final_norm(self, x: Tensor) -> Tensor:
        return self.norm(x)


Model = Gemma3TextModel
