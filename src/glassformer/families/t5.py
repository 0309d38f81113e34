"""T5: an encoder and a decoder of pre-norm blocks without biases; positions as a learned bias on the attention scores.

Each block is a list of layers, as its checkpoints have it: attention, in the decoder attention to the source, MLP.

Shapes: x (batch, length, hidden); a bias (1 or batch, heads, length, keys).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from glassformer.blueprints.t5 import Config
from glassformer.families.shared.seq2seq import EncoderDecoder, EncoderPart
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
    Linear,
    RMSNorm,
    label_modules,
    relative_buckets,
)


class T5Attention(Attention):
    printed_name = "Attention"
    projection_names = ("q", "k", "v", "o")

    def __init__(self, c: Config, biased: bool = False) -> None:
        heads = c.num_attention_heads
        super().__init__(c.hidden_size, heads, heads, c.head_dim, bias=False, output_bias=False)
        self.scale = 1.0
        self.dropout = c.dropout_rate
        if biased:
            self.relative_attention_bias = Embedding(c.relative_attention_num_buckets, heads)


class T5CrossAttention(CrossAttention, T5Attention):
    pass


class T5Layer(FamilyModule):
    """A module that adds to the residual stream, with the norm before it and the dropout after it."""

    def __init__(self, c: Config, name: str, module: nn.Module, printed_name: str) -> None:
        super().__init__()
        self.printed_name = f"Layer{printed_name}"
        self.add_module(name, module)
        self.layer_norm = RMSNorm(c.hidden_size, c.layer_norm_epsilon)
        self.layer_norm.printed_name = "LayerNorm"
        self.dropout = nn.Dropout(c.dropout_rate)
        self.inner = name

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.dropout(getattr(self, self.inner)(self.layer_norm(x), p))


class T5Dense(MLP):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.printed_name = "DenseGatedActDense" if c.gated else "DenseActDense"
        names = ("wi_0", "wi_1") if c.gated else ("wi",)
        for name in names:
            self.add_module(name, Linear(c.hidden_size, c.intermediate_size, bias=False))
        self.wo = Linear(c.intermediate_size, c.hidden_size, bias=False)
        self.dropout = nn.Dropout(c.dropout_rate)
        self.act = ActivationFunction(c.hidden_act)
        self.names = names

    def neurons(self, x: Tensor) -> Tensor:
        first, *second = (getattr(self, name)(x) for name in self.names)
        return self.act(first) * second[0] if second else self.act(first)

    def down(self, neurons: Tensor) -> Tensor:
        return self.wo(self.dropout(neurons))


class T5Block(Block):
    printed_name = "Block"

    def __init__(self, c: Config, first: bool, decoder: bool) -> None:
        super().__init__()
        layers = [T5Layer(c, "SelfAttention", T5Attention(c, biased=first), "SelfAttention")]
        if decoder:
            layers.append(T5Layer(c, "EncDecAttention", T5CrossAttention(c), "CrossAttention"))
        self.layer = nn.ModuleList([*layers, T5Layer(c, "DenseReluDense", T5Dense(c), "FF")])
        self.sites = ("middle", "crossed", "residual") if decoder else ("middle", "residual")

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        for layer, site in zip(self.layer, self.sites, strict=True):
            x = self.add(x, layer(x, p), p, site)
        return x


class T5Stack(FamilyModule):
    printed_name = "Stack"

    def __init__(self, c: Config, table: Embedding, layers: int, decoder: bool) -> None:
        super().__init__()
        self.config, self.decoder = c, decoder
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size)
        self.embed_tokens.weight = table.weight
        self.block = nn.ModuleList(T5Block(c, number == 0, decoder) for number in range(layers))
        self.final_layer_norm = RMSNorm(c.hidden_size, c.layer_norm_epsilon)
        self.final_layer_norm.printed_name = "LayerNorm"
        self.dropout = nn.Dropout(c.dropout_rate)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        p = replace(p, mask=p.mask.with_bias(self.bias(p)))
        x = self.at_site("embedding", self.dropout(x), p)
        for block in self.block:
            x = block(x, p)
        return self.at_site("final", self.dropout(self.final_layer_norm(x)), p)

    def bias(self, p: ForwardPass) -> Tensor:
        """What the first block's table adds to the scores of every block of the stack."""
        c = self.config
        count, max_distance = c.relative_attention_num_buckets, c.relative_attention_max_distance
        distances = p.mask.distances()[:, 0]  # (1 or batch, length, keys)
        numbers = relative_buckets(distances, count, max_distance, bidirectional=not self.decoder)
        first: Any = self.block[0]
        return first.layer[0].SelfAttention.relative_attention_bias(numbers).permute(0, 3, 1, 2)


class T5LMHead(FamilyModule):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.lm_head = Linear(c.hidden_size, c.vocab_size, bias=False)
        self.scale = c.hidden_size**-0.5 if c.scale_decoder_outputs else 1.0

    @property
    def output(self) -> Linear:
        return self.lm_head

    def forward(self, states: Tensor) -> Tensor:
        return self.lm_head(states * self.scale)


class T5Model(EncoderDecoder):
    family = "T5"
    config_class = Config
    prefix = ""
    heads = {"seq2seq": ("", T5LMHead)}

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.shared = Embedding(c.vocab_size, c.hidden_size)
        self.encoder = T5Stack(c, self.shared, c.num_encoder_layers, decoder=False)
        if self.has_decoder:
            self.decoder = T5Stack(c, self.shared, c.num_hidden_layers, decoder=True)
        self.post_init(self.decoder.block if self.has_decoder else ())
        label_modules(self.encoder, self.family, self.encoder.block, ENCODER)

    def final_states(self, x: Tensor) -> Tensor:
        return self.decoder.final_layer_norm(x)

    @property
    def token_embedding(self) -> Embedding:
        return self.shared

    @property
    def cross_attention_modules(self) -> Sequence[CrossAttention]:
        blocks: Iterable[Any] = self.decoder.block
        return [block.layer[1].EncDecAttention for block in blocks]

    def encode(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.encoder(x, p)

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.decoder(x, p)


class T5EncoderModel(EncoderPart, T5Model):
    pass


Model = T5Model
EncoderModel = T5EncoderModel
