"""BART: an encoder and a decoder of post-norm blocks with biases; learned positions.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from glassformer.blueprints.bart import EPS, FIRST, Config, stack_sizes
from glassformer.families.shared.head_modules import ClassificationHead, SpanHead
from glassformer.families.shared.seq2seq import EncoderDecoder
from glassformer.ground.sites import ENCODER
from glassformer.layers import (
    MLP,
    ActivationFunction,
    Attention,
    Block,
    CrossAttention,
    Embedding,
    FamilyModule,
    ForwardPass,
    LayerNorm,
    Linear,
    label_modules,
)


class BartAttention(Attention):
    printed_name = "Attention"
    projection_names = ("q_proj", "k_proj", "v_proj", "out_proj")

    def __init__(self, c: Config, heads: int) -> None:
        super().__init__(c.hidden_size, heads, heads, c.hidden_size // heads, bias=True, output_bias=True)
        self.dropout = c.attention_dropout


class BartCrossAttention(CrossAttention, BartAttention):
    pass


class BartEncoderLayer(Block, MLP):
    """Its MLP's two halves are modules of the block itself."""

    printed_name = "EncoderLayer"

    def __init__(self, c: Config, heads: int, inner: int) -> None:
        super().__init__()
        self.self_attn = BartAttention(c, heads)
        self.self_attn_layer_norm = LayerNorm(c.hidden_size, EPS)
        self.activation_fn = ActivationFunction(c.hidden_act)
        self.fc1 = Linear(c.hidden_size, inner)
        self.fc2 = Linear(inner, c.hidden_size)
        self.final_layer_norm = LayerNorm(c.hidden_size, EPS)
        self.dropout = nn.Dropout(c.dropout)
        self.activation_dropout = nn.Dropout(c.activation_dropout)

    def neurons(self, x: Tensor) -> Tensor:
        return self.activation_fn(self.fc1(x))

    def down(self, neurons: Tensor) -> Tensor:
        return self.dropout(self.fc2(self.activation_dropout(neurons)))

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.dropout(self.self_attn(x, p)), p, "middle", self.self_attn_layer_norm)
        return self.add(x, MLP.forward(self, x, p), p, "residual", self.final_layer_norm)


class BartDecoderLayer(BartEncoderLayer):
    printed_name = "DecoderLayer"

    def __init__(self, c: Config, heads: int, inner: int) -> None:
        super().__init__(c, heads, inner)
        self.encoder_attn = BartCrossAttention(c, heads)
        self.encoder_attn_layer_norm = LayerNorm(c.hidden_size, EPS)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.dropout(self.self_attn(x, p)), p, "middle", self.self_attn_layer_norm)
        x = self.add(x, self.dropout(self.encoder_attn(x, p)), p, "crossed", self.encoder_attn_layer_norm)
        return self.add(x, MLP.forward(self, x, p), p, "residual", self.final_layer_norm)


class BartStack(FamilyModule):
    def __init__(self, c: Config, table: Embedding, layers: Sequence[BartEncoderLayer], printed_name: str) -> None:
        super().__init__()
        self.printed_name = printed_name
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size, scale=c.scale)
        if c.tie_word_embeddings:
            self.embed_tokens.weight = table.weight
        self.add_positions(c)
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(c.dropout)

    def add_positions(self, c: Config) -> None:
        """Make what `placed` needs."""
        self.embed_positions: nn.Module = Embedding(c.max_position_embeddings + FIRST, c.hidden_size)
        self.layernorm_embedding = LayerNorm(c.hidden_size, EPS)

    def placed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Token vectors with their positions."""
        return self.layernorm_embedding(x + self.embed_positions(positions + FIRST))

    def final_states(self, x: Tensor) -> Tensor:
        """What happens to the last block's states; in a post-norm stack nothing."""
        return x

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("embedding", self.dropout(self.placed(x, p.positions)), p)
        for layer in self.layers:
            x = layer(x, p)
        return self.at_site("final", self.final_states(x), p)


class BartLMHead(FamilyModule):
    final_logits_bias: Tensor

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.lm_head = Linear(c.hidden_size, c.vocab_size, bias=False)
        self.register_buffer("final_logits_bias", torch.zeros(1, c.vocab_size, device="cpu"))

    @property
    def output(self) -> Linear:
        return self.lm_head

    def forward(self, states: Tensor) -> Tensor:
        return self.lm_head(states) + self.final_logits_bias


class BartClassificationHead(ClassificationHead):
    printed_name = "ClassificationHead"
    reads = "eos"


class BartModel(EncoderDecoder):
    family = "Bart"
    config_class = Config
    heads = {
        "seq2seq": ("", BartLMHead),
        "sequence": ("classification_head", BartClassificationHead),
        "question": ("", SpanHead),
    }
    shifts_source = True
    stack_class: ClassVar[type[BartStack]] = BartStack
    encoder_layer: ClassVar[type[BartEncoderLayer]] = BartEncoderLayer
    decoder_layer: ClassVar[type[BartDecoderLayer]] = BartDecoderLayer

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.shared = Embedding(c.vocab_size, c.hidden_size, scale=c.scale)
        heads, inner, layers = stack_sizes(c, decoder=False)
        encoder_layers = [self.encoder_layer(c, heads, inner) for _ in range(layers)]
        heads, inner, layers = stack_sizes(c, decoder=True)
        decoder_layers = [self.decoder_layer(c, heads, inner) for _ in range(layers)]
        self.encoder = self.stack_class(c, self.shared, encoder_layers, "Encoder")
        self.decoder = self.stack_class(c, self.shared, decoder_layers, "Decoder")
        self.post_init(self.decoder.layers)
        label_modules(self.encoder, self.family, self.encoder.layers, ENCODER)

    @property
    def token_embedding(self) -> Embedding:
        return self.shared

    @property
    def cross_attention_modules(self) -> Sequence[CrossAttention]:
        layers: Iterable[Any] = self.decoder.layers
        return [layer.encoder_attn for layer in layers]

    def check_positions(self, positions: Tensor) -> None:
        self.check_position_table(positions)

    def encode(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.encoder(x, p)

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.decoder(x, p)


Model = BartModel
