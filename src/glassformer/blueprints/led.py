"""LED, the Longformer encoder-decoder (https://arxiv.org/abs/2004.05150): BART's decoder, and an encoder whose tokens see
what is near, beside a few chosen ones that all see and that see all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glassformer.blueprints import bart
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import BOUNDS, LENGTH
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief


@dataclass(kw_only=True)
class Config(bart.Config):
    model_type = "led"
    title = "LED"
    default_label_count = 2
    aliases = {**bart.Config.aliases, "max_decoder_position_embeddings": "max_position_embeddings"}
    fixed_fields = {"is_encoder_decoder": True, "scale_embedding": False}
    bounds = {**BOUNDS, **dict.fromkeys(("attention_window", "max_encoder_position_embeddings"), LENGTH)}

    max_encoder_position_embeddings: int = 16384
    attention_window: int | list[int] = 512  # of all blocks, or of each: tokens beside its own that a token sees
    forced_eos_token_id: int | list[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        windows = self.windows
        if len(windows) != self.num_encoder_layers:
            raise ConfigError(
                f"config field 'attention_window' is {brief(self.attention_window)}; it must be a number, or one for each "
                f"of the {self.num_encoder_layers} blocks of the encoder."
            )
        if odd := [window for window in windows if window % 2]:
            raise ConfigError(
                f"config field 'attention_window' is {odd[0]}; it must be even, since half of a window is on each side."
            )

    @property
    def windows(self) -> Sequence[int]:
        """How many tokens a token sees beside itself, half of them on each side, by block."""
        windows = self.attention_window
        return [windows] * self.num_encoder_layers if isinstance(windows, int) else windows

    @property
    def source_context(self) -> int:
        return self.max_encoder_position_embeddings


FAMILY = replace(
    bart.FAMILY,
    name="LED",
    base="led",
    heads=("seq2seq", "question"),
    modules={
        **{name: modules for name, modules in bart.FAMILY.modules.items() if name != "self_attn"},
        "encoder.layers.*.self_attn": "EncoderAttention longformer_self_attn output",
        "longformer_self_attn": "EncoderSelfAttention query key value query_global key_global value_global",
        "decoder.layers.*.self_attn": "DecoderAttention k_proj v_proj q_proj out_proj",
        "encoder_attn": "DecoderAttention k_proj v_proj q_proj out_proj",
    },
    global_tokens=True,
)


def encoder_attention(b: Builder, c: Config, h: Value, window: int) -> Value:
    """The update that attention makes of its input in the encoder, with every site but the input's."""
    heads, module = c.encoder_attention_heads, "self_attn.longformer_self_attn"
    size = c.hidden_size // heads
    names = ("query", "key", "value")
    own = [b.heads(h, f"{module}.{name}", heads, size, bias=True, site=f"attention.{name}") for name in names]
    of_global = [b.global_heads(h, f"{module}.{name}_global", heads, size) for name in names]
    a = b.attend_global(own, of_global, module, window=window // 2 + 1, dropout=c.attention_dropout)
    a = b.linear(a, "self_attn.output", c.hidden_size, bias=True, site="attention.update")
    return b.dropout(a, c.dropout, "dropout")


def encoder(b: Builder, c: Config, x: Value, base: str) -> Value:
    """From embedded tokens to the last block's states."""
    for layer, window in enumerate(c.windows):
        with b.block(layer, f"{base}encoder.layers"):
            a = encoder_attention(b, c, b.identity(x, "attention.input", "self_attn.longformer_self_attn"), window)
            x = b.norm(b.add(x, a), "self_attn_layer_norm", bart.EPS, site="middle", how="layer")
            x = b.add(x, bart.mlp(b, c, b.identity(x, "mlp.input"), c.encoder_ffn_dim))
            x = b.norm(x, "final_layer_norm", bart.EPS, site="residual", how="layer")
    return b.identity(x, "final")


def embedded(b: Builder, c: Config, base: str, name: str) -> Value:
    """A stack's tokens as its first block takes them."""
    rows = c.max_encoder_position_embeddings if name == "encoder" else c.max_position_embeddings
    return bart.embedded(b, c, base, name, rows, first=0)


def stack(b: Builder, c: Config, x: Value, base: str, name: str, encoded: Value | None = None) -> Value:
    return encoder(b, c, x, base) if encoded is None else bart.stack(b, c, x, base, name, encoded)


def blueprint(c: Config, head: Head = "seq2seq") -> Blueprint:
    return bart.blueprint(c, head, embedded, stack, family=FAMILY)
