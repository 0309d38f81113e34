"""Models that transformers computes: their config, and a blueprint of what can be seen of them.

No file here says what such a model is. Its config is that of transformers, and its blueprint has an op for each value that
was found in its modules (`engine/bridge/anatomy.py`): the stream between blocks, attention's and the MLP's updates,
patterns, scores. So whatever reads a blueprint's sites and shapes works, and whatever needs an equation says that there is
none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar

from glassformer.blueprints.blueprint import Blueprint
from glassformer.blueprints.config import Config, Head
from glassformer.blueprints.synonyms import IN_BLOCK, SHORT
from glassformer.ground.errors import ConfigError, SiteError
from glassformer.ground.sites import ENCODER, ModelSites, Synonyms, axes
from glassformer.ops.computed import Computed
from glassformer.ops.op import Op, Shape, Weight

LIBRARY = "transformers"
ENDLESS = 1_000_000  # tokens: the context of a model whose config names no limit
CONTEXTS = ("max_position_embeddings", "n_positions", "max_target_positions", "context_length", "max_seq_len")
SIZES: Mapping[str, tuple[str, ...]] = {  # a field of ours: what configs of transformers call it
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size", "d_model", "n_embd", "embed_dim", "dim"),
    "num_hidden_layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_blocks"),
}


@dataclass(kw_only=True)
class BridgedConfig(Config):
    """What is needed of a config of transformers; its other fields are kept as they are."""

    title: ClassVar[str]
    encoder_blocks: int = 0
    num_attention_heads: int = 0
    decoder_start_token_id: int | None = None
    limited: bool = True  # whether the config says how long a text may be

    @property
    def encoder_layers(self) -> int:
        return self.encoder_blocks

    def check_equations(self, what: str) -> None:
        raise SiteError(
            f"{what} follow from the equations of each layer, and of a {self.model_type} model {LIBRARY} shows what goes "
            "into its modules and what comes out. Its sites: glass look --sites."
        )

    def to_dict(self) -> dict[str, Any]:
        return {**self.extra_fields, "model_type": self.model_type}


@cache
def config_class(model_type: str, head: Head, spellings: tuple[tuple[str, str], ...] = ()) -> type[BridgedConfig]:
    """The class of a model type's configs; `spellings`: pairs of a name of its own and a field."""
    parts = {"model_type": model_type, "title": model_type, "default_head": head, "aliases": dict(spellings)}
    return type("BridgedConfig", (BridgedConfig,), parts)


def bridged_config(reference: Any, head: Head, encoder_layers: int = 0) -> BridgedConfig:
    """Of a config of transformers, what is needed here."""
    kind = str(reference.model_type)
    own_names: Mapping[str, str] = getattr(reference, "attribute_map", {})
    values: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for name, spellings in {**SIZES, "max_position_embeddings": CONTEXTS}.items():
        found = next((one for one in spellings if isinstance(getattr(reference, one, None), int)), None)
        if found is not None:
            values[name] = getattr(reference, found)
            aliases[own_names.get(found, found)] = name
        elif name in SIZES:
            raise ConfigError(
                f"config field {name!r} is missing in this {kind} config, so transformers cannot be asked for it."
            )
    context = values.pop("max_position_embeddings", -1)
    heads = getattr(reference, "num_attention_heads", None)
    known: dict[str, Any] = {
        name: getattr(reference, name, None)
        for name in (
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "decoder_start_token_id",
            "architectures",
            "problem_type",
        )
    }
    raw = reference.to_dict()
    labels = getattr(reference, "id2label", None) or None
    return config_class(kind, head, tuple((own, name) for own, name in aliases.items() if own != name))(
        **values, **known, max_position_embeddings=ENDLESS if context < 0 else context, limited=context >= 0,
        num_attention_heads=heads if isinstance(heads, int) and heads > 0 else 1, encoder_blocks=encoder_layers,
        tie_word_embeddings=bool(getattr(reference, "tie_word_embeddings", False)),
        id2label=None if labels is None else {int(index): str(label) for index, label in labels.items()},
        extra_fields={name: value for name, value in raw.items() if name not in known},
    )  # fmt: skip


@dataclass(frozen=True)
class FoundSite:
    """A value that was found in the modules of a model."""

    site: str
    module: str
    width: int  # numbers of a token; of a pattern, heads
    block: int | None = None


@dataclass(frozen=True)
class BridgedBlueprint(Blueprint):
    """What can be seen of a model that transformers computes."""

    table: Weight = field(default_factory=lambda: Weight("", (0, 0)))  # the vectors of its tokens
    all_weights: tuple[Weight, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)  # "module:" and a name, to its site

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        return self.all_weights

    @property
    def token_table(self) -> Weight:
        return self.table

    @cached_property
    def attention_patterns(self) -> tuple[str, ...]:
        return tuple(site for site in self.sites if site.endswith(".pattern"))

    @cached_property
    def synonyms(self) -> Synonyms:
        """TransformerLens' names of what was found: of no other place is it known that the numbers are the same."""
        hooks = ("hook_resid_post", "hook_attn_out", "hook_mlp_out", "attn.hook_pattern")
        found: dict[str, str] = {}
        for hook in hooks:
            for index in range(self.blocks):
                site = f"blocks.{index}.{IN_BLOCK[hook]}"
                if site in self.sites:
                    shorts = SHORT.get(hook, ())
                    found |= dict.fromkeys((f"blocks.{index}.{hook}", *(f"{short}.{index}" for short in shorts)), site)
        return Synonyms(found)

    @cached_property
    def site_names(self) -> ModelSites:
        return ModelSites.of(self.sites, self.blocks, (), lambda: self.synonyms, lambda: self.modules)


def bridged_blueprint(
    config: BridgedConfig, head: Head, found: Sequence[FoundSite], blocks: int, encoder_blocks: int,
    weights: Mapping[str, tuple[int, ...]], table: str, modules: Mapping[str, str],
) -> BridgedBlueprint:  # fmt: skip
    """The blueprint of what was found, in the order of a pass. A weight belongs to the first op whose module has it."""
    ops: list[Op] = []
    left = dict(weights)
    patterns = [one for one in found if one.site.endswith(".pattern")]
    for one in found:
        if one in patterns:
            continue
        stack = ENCODER if one.site.startswith(ENCODER) else ""
        shape = site_shape(one)
        inside = {
            pattern.site: site_shape(pattern)
            for pattern in patterns
            if one.site.endswith(("update", "residual")) and _home(pattern.site, found) == one.site
        }
        own = [name for name in left if one.module and name.startswith(f"{one.module}.")]
        ops.append(
            Computed(
                one.module, () if not ops else (len(ops) - 1,), shape,
                tuple(Weight(name, left.pop(name)) for name in own), one.block, stack, one.site, inside, {"by": LIBRARY},
            )
        )  # fmt: skip
    return BridgedBlueprint(
        config.model_type, head, tuple(ops), blocks, encoder_blocks, (),
        Weight(table, weights.get(table, (config.vocab_size, config.hidden_size))),
        tuple(Weight(name, size) for name, size in weights.items()), modules,
    )  # fmt: skip


def site_shape(found: FoundSite) -> Shape:
    """The shape of a site's value: its axes, with the width in the place of what a text does not decide."""
    return tuple(axis if axis in ("batch", "length", "keys", "source") else found.width for axis in axes(found.site))


def _home(pattern: str, found: Sequence[FoundSite]) -> str:
    """The site of the op that a pattern is inside of: the update that it makes, or else the block."""
    update = f"{pattern.removesuffix('pattern')}update"
    if any(one.site == update for one in found):
        return update
    return f"{pattern.rsplit('.', 2)[0]}.residual"
