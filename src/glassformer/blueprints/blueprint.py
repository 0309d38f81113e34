"""Blueprints: a model as a flat list of ops, which is only data.

Each `Op` (`ops/`) is one equation. The shape journey, the parameter table, drawings and the native engines all read it;
the tests prove that it agrees with what the family computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

from glassformer.blueprints.config import Config, Head
from glassformer.blueprints.synonyms import synonyms
from glassformer.ground.errors import SiteError
from glassformer.ground.sites import AFTER, ENCODER, ModelSites, Synonyms, module_sites
from glassformer.ops.activate import build_activate, build_learned_activate
from glassformer.ops.add import build_add, build_identity, build_scale, build_scales, build_times
from glassformer.ops.attend import Attend, build_attend
from glassformer.ops.attend_global import AttendGlobal, build_attend_global, build_global_heads
from glassformer.ops.causal_conv import build_causal_conv
from glassformer.ops.clip import build_clip
from glassformer.ops.columns import build_columns
from glassformer.ops.embed import Embed, build_embed
from glassformer.ops.experts import ExpertGate, build_expert_gate, build_expert_linear, build_route
from glassformer.ops.gate import build_fused_gate, build_gate, build_gated
from glassformer.ops.heads import build_fused_heads, build_heads, build_heads_at, build_separate_heads
from glassformer.ops.join import build_join
from glassformer.ops.keep_top import build_keep_top
from glassformer.ops.latent import AttendLatent, build_attend_latent, build_expand, build_head_columns, build_join_heads
from glassformer.ops.linear import build_linear
from glassformer.ops.norm import build_head_norms, build_l2_norm, build_norm
from glassformer.ops.op import Op, Shape, Weight
from glassformer.ops.position import build_distance_vectors, build_position, build_relative_bias
from glassformer.ops.recorder import Recorder, UnweightedModule, Value
from glassformer.ops.recur import build_recur
from glassformer.ops.rope import Rope
from glassformer.ops.rotate import Rotate, build_rotate
from glassformer.ops.scores import build_pool, build_scores
from glassformer.ops.streams import Mix, build_mix, build_rescale, build_stream
from glassformer.ops.time_step import build_decay, build_time_step
from glassformer.ops.token_mixer import TokenMixer

__all__ = ["Blueprint", "Builder", "Family", "Head", "Value"]

Kind = TypeVar("Kind", bound=Op)


@dataclass(frozen=True)
class Blueprint:
    model_type: str
    head: Head
    ops: tuple[Op, ...]
    blocks: int
    encoder_blocks: int = 0  # of the encoder of an encoder-decoder
    parts: tuple[UnweightedModule, ...] = ()  # what only PyTorch's modules have

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """Every tensor of the checkpoint, once each, in the order of first use."""
        return tuple({weight.name: weight for op in self.ops for weight in op.weights}.values())

    @property
    def optional_weights(self) -> tuple[str, ...]:
        """Tensors that a checkpoint may hold: tables that can be made where it does not."""
        return tuple(op.options["stored"] for op in self.ops if "stored" in op.options)

    @property
    def parameters(self) -> int:
        return sum(weight.elements for weight in self.weights)

    @property
    def ropes(self) -> list[Rope]:
        """RoPE's kinds of frequencies in the decoder, or in a model that is one stack."""
        return list(dict.fromkeys(op.rope for op in self.ops_of(Rotate) if not op.stack))

    def ops_of(self, kind: type[Kind]) -> Iterator[Kind]:
        """The ops of a kind."""
        return (op for op in self.ops if isinstance(op, kind))

    @property
    def blocks_stand_alone(self) -> bool:
        """Whether a block reads nothing of a text but what enters it, so that a pass may begin there."""
        return not self.state_size and not any(op.options.get("beside") or "shares" in op.options for op in self.ops)

    @property
    def routed_blocks(self) -> tuple[int, ...]:
        """The numbers of the blocks that have experts; of an encoder-decoder, its decoder's."""
        return tuple(op.block for op in self.ops_of(ExpertGate) if op.block is not None and not op.stack)

    @cached_property
    def state_size(self) -> int:
        """How many numbers a row keeps from one token to the next, beside keys and values."""
        return sum(op.state_size for op in self.ops)

    def caching_layers(self, stack: str = "") -> int:
        """How many layers of a stack have keys and values that an engine keeps."""
        return sum(op.caches_keys and op.stack == stack and not op.cross for op in self.ops_of(TokenMixer))

    def key_shapes(self, stack: str = "") -> tuple[tuple[int, int], ...]:
        """How many keys each of these layers has of a token, and of which size; nothing where all are alike."""
        mixers = (op for op in self.ops_of(Attend) if op.caches_keys and op.stack == stack and not op.cross)
        shapes = tuple((shape.heads, shape.key_size) for op in mixers for shape in (op.cached_shape(self.ops),))
        return shapes if len(set(shapes)) > 1 else ()

    @property
    def token_table(self) -> Weight:
        """The vectors of its tokens; of an encoder-decoder, those that it writes."""
        return next(table for table in self.ops_of(Embed) if not table.stack).weights[0]

    @cached_property
    def has_global_tokens(self) -> bool:
        """Whether a caller may choose some tokens of a source, which all others see and which see all."""
        return any(self.ops_of(AttendGlobal))

    @cached_property
    def mixes_streams(self) -> bool:
        """Whether blocks have several streams, so that none of them is the sum of all that was added."""
        return any(self.ops_of(Mix))

    def check_one_stream(self, what: str) -> None:
        """Refuse what takes the stream of the sites for the sum of all that was added to it."""
        if self.mixes_streams:
            raise SiteError(
                f"{what} follow from one stream, and a {self.model_type} model has several, which each block mixes. "
                "Patching, attention and steps inside work with all of them."
            )

    @cached_property
    def attention_patterns(self) -> tuple[str, ...]:
        """The sites of the patterns by which tokens attend, which are sums of one; those of states are none."""
        return tuple(op.inner_site("pattern") for op in self.ops_of(Attend))

    @cached_property
    def site_names(self) -> ModelSites:
        """Its sites, and those of any head."""
        slots = (op.site for op in self.ops_of(ExpertGate) if op.site is not None)
        sources = (source for op in self.ops_of(AttendLatent) for source in op.inputs[1:3])
        derived = (site for source in sources if (site := self.ops[source].site) is not None)
        names = {*self.sites, *AFTER}
        return ModelSites.of(names, self.blocks, slots, lambda: self.synonyms, self._module_sites, derived)

    def _module_sites(self) -> dict[str, str]:
        """PyTorch's modules by name: those that have weights, and those around them."""
        stacks: dict[str, set[str]] = {}
        for op in self.ops:
            for weight in op.weights:
                parts = weight.name.split(".")[:-1]
                for count in range(1, len(parts) + 1):
                    stacks.setdefault(".".join(parts[:count]), set()).add(op.stack)
        return module_sites(stacks, lambda name: stacks[name] == {ENCODER})

    @cached_property
    def synonyms(self) -> Synonyms:
        """What other libraries call the sites."""
        return synonyms(self.ops, self.blocks)

    @cached_property
    def sites(self) -> Mapping[str, Shape]:
        """Every site, with its shape."""
        shapes: dict[str, Shape] = {}
        for op in self.ops:
            shapes.update(op.inner_sites)
            if op.site:
                shapes[op.site] = op.shape
        return shapes


@dataclass(frozen=True, kw_only=True)
class Family:
    """`modules`: for a module's name (or the end of it, with * for numbers), its class without the family's name, and then
    its children in the order in which PyTorch shows them; those that are left out follow in the order of their use, at
    first those with weights."""

    name: str  # of its classes: "Llama" for LlamaModel
    heads: tuple[Head, ...]
    modules: Mapping[str, str] = field(default_factory=dict)
    printed: bool = True  # whether its name is printed before those of its modules
    base: str = "model"  # the base's name inside a model with a head; "": its modules are at the top level
    class_suffixes: Mapping[str, str] = field(default_factory=dict)  # where class names differ, as {"Model": "TextModel"}
    file_classes: Mapping[str, str] = field(default_factory=dict)  # what files call its classes, where that is otherwise
    has_encoder_model: bool = False  # whether the encoder of an encoder-decoder has a class of its own
    types_first: bool = False  # token types are added before positions
    padding_position: bool = False  # padding has a row of the position table: the one before the first token's
    bias_name: str = ""  # a second name of the bias of the head that guesses hidden tokens
    stacked_experts: Literal["in turns", "side by side", "rows", "stacked", ""] = (
        ""  # gates and ups, where files have all experts in one tensor
    )
    scales_states: bool = False  # what scores are multiplied by is applied to the states
    scaled_vectors: bool = False  # a caller's vectors are scaled, as those of ids are; of an encoder-decoder the target's
    scaled_source: bool = False  # and the source's
    shares_embedding: bool = True  # an encoder-decoder has a token embedding beside its stacks
    global_tokens: bool = False  # a caller may choose some tokens of a source, which all others see and which see all
    shifts_source: bool = False  # without a target, the decoder gets the source itself, shifted right
    classifies_target: bool = False  # that is so below a head for labels alone, which are those of the decoder's tokens

    def prefix(self, head: Head) -> str:
        """What the names of the base's modules begin with, in a model with this head."""
        return f"{self.base}." if self.base and head != "base" else ""

    @property
    def label(self) -> str:
        """What is printed before the names of its modules."""
        return self.name if self.printed else ""


class Builder(Recorder):
    """Records a blueprint, one call per equation. Names inside `block` are relative to that block."""

    config: Config

    embed = build_embed
    position = build_position
    relative_bias = build_relative_bias
    distance_vectors = build_distance_vectors
    norm = build_norm
    l2_norm = build_l2_norm
    head_norms = build_head_norms
    linear = build_linear
    heads = build_heads
    separate_heads = build_separate_heads
    fused_heads = build_fused_heads
    heads_at = build_heads_at
    columns = build_columns
    join = build_join
    rotate = build_rotate
    attend = build_attend
    global_heads = build_global_heads
    attend_global = build_attend_global
    causal_conv = build_causal_conv
    time_step = build_time_step
    decay = build_decay
    recur = build_recur
    head_columns = build_head_columns
    join_heads = build_join_heads
    expand = build_expand
    attend_latent = build_attend_latent
    activate = build_activate
    learned_activate = build_learned_activate
    gate = build_gate
    gated = build_gated
    fused_gate = build_fused_gate
    route = build_route
    expert_gate = build_expert_gate
    expert_linear = build_expert_linear
    add = build_add
    identity = build_identity
    scale = build_scale
    times = build_times
    scales = build_scales
    keep_top = build_keep_top
    clip = build_clip
    stream = build_stream
    mix = build_mix
    rescale = build_rescale
    pool = build_pool
    scores = build_scores

    def build(self, head: Head) -> Blueprint:
        c = self.config
        return Blueprint(
            c.model_type, head, tuple(self.ops), c.num_hidden_layers, c.encoder_layers, tuple(self.parts)
        )  # fmt: skip

    def build_with_head(self, x: Value, head: Head, token_head: str = "classifier", **options: Any) -> Blueprint:
        """Add a head as most families have it, and build; `options`: of the scores for the vocabulary."""
        c = self.config
        if head in ("causal", "masked"):
            self.scores(x, "lm_head", c.vocab_size, tied=c.tie_word_embeddings, **options)
        elif head == "sequence":
            self.scores(self.pool(x, "last"), "score", c.label_count)
        elif head == "token":
            self.scores(x, token_head, c.label_count, bias=True, dropout=c.head_dropout)
        elif head == "question":
            self.scores(x, "qa_outputs", 2, bias=True)
        return self.build(head)
