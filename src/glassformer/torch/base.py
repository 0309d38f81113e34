"""What every base model has: a token embedding, a `ForwardPass` through the family's own computation, sites on the way.

The three shapes of transformers differ in what goes in and what comes out; each has a file of its own:
`decoder.Decoder`, `encoder.Encoder`, `seq2seq.EncoderDecoder`.

Shapes: ids (batch, length); attention_mask (batch, keys); states (batch, length, hidden).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from glassformer.blueprints import Config, Head, Op, blueprint
from glassformer.blueprints.blueprint import Blueprint, Family
from glassformer.ground.errors import InputError, InputTypeError, check_context, refuse_text
from glassformer.ground.sites import ENCODER, ModelSites, Observer, Tap, Watch, module_sites
from glassformer.ground.typecheck import brief
from glassformer.ops.module_steps import Path, part, path_of
from glassformer.ops.norm import Norm
from glassformer.torch import threads as threads  # imported for what it does at a fork
from glassformer.torch.arguments import ForwardArguments, WatchLike
from glassformer.torch.cache import Cache
from glassformer.torch.container import ContainerPlan, FamilyModule, label_block, label_modules
from glassformer.torch.derivation import Derivation, HeadDerivation
from glassformer.torch.forward_pass import CrossAttentionSource, ForwardPass
from glassformer.torch.layers import Embedding
from glassformer.torch.mask import Mask
from glassformer.torch.module_sites import named_modules_hooked
from glassformer.torch.positions import RotaryEmbedding, RotaryPositions
from glassformer.torch.routed_mlp import with_stacked_experts

IGNORED = -100  # a label that adds nothing to the loss


class BaseModel(FamilyModule):
    """A family without a head: its modules are those of its blueprint."""

    declared: ClassVar[Family]
    family: str
    config_class: ClassVar[type[Config]]
    prefix: ClassVar[str] = "model"  # the base's name inside a model with a head; "": its modules are at the top level
    heads: ClassVar[tuple[Head, ...]] = ()
    class_suffixes: ClassVar[Mapping[str, str]] = {}  # where the field's class names differ: {"ForCausalLM": "LMHeadModel"}
    optional_modules: ClassVar[tuple[str, ...]] = ()  # modules that real checkpoints may lack
    absent_modules: ClassVar[tuple[str, ...]] = ()  # of the whole model's checkpoints: what this part of it does not have
    recompute = False  # as in its blocks
    config: Any
    embedding_path: Path
    states_plan: ContainerPlan

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        described = blueprint(config, "base")
        self._last = final_op(described)  # of those that make the states
        self._keeps_states = described.state_size > 0
        self._has_position_table = any(op.reads_table for op in described.ops)
        derivation = Derivation(config, self.declared, described, self.own_ops(described))
        self.add_modules(derivation, described)
        derivation.attach(
            self, {name: RotaryEmbedding(rope, config.rotary_head_size(name)) for name, rope in config.ropes.items()}
        )
        label_modules(self, self.declared.label)
        if config.encoder_layers:
            label_modules(part(self, ("encoder",)), self.declared.label, ENCODER)
        for (_, index), path in derivation.blocks.items():
            if path in derivation.inside and path not in derivation.shared_blocks:  # whose index comes with the pass
                label_block(part(self, path), index)
        self.add_plans(derivation, described)

    def own_ops(self, described: Blueprint) -> Sequence[int]:
        return range(len(described.ops))

    def add_modules(self, derivation: Derivation, described: Blueprint) -> None:
        self.embedding_path = path_of(described.ops[0].module)

    def add_plans(self, derivation: Derivation, described: Blueprint) -> None:
        self.blocks_stand_alone = described.blocks_stand_alone
        self.paths_beside = [path_of(op.module) for op in described.ops if op.kind == "embed" and op.options.get("beside")]
        self.reads_ids = bool(self.paths_beside)
        self.states_plan = derivation.plan((), range(len(derivation.nodes)))

    blocks_stand_alone = True  # whether a block reads nothing of a text but what enters it
    paths_beside: Sequence[Path] = ()  # of the tables that blocks look tokens up in by themselves
    reads_ids = False  # whether blocks have vectors of tokens beside

    def _get_name(self) -> str:
        return type(self).__name__

    @property
    def base_model(self) -> BaseModel:
        """Itself: a model with a head has it under this name too."""
        return self

    @property
    def token_embedding(self) -> Embedding:
        """The embedding of input tokens."""
        table: Embedding = part(self, self.embedding_path)
        return table

    @property
    def input_embedding(self) -> Embedding:
        """The embedding of what a model is given: the same, but for an encoder's own."""
        return self.token_embedding

    @property
    def vocabulary_size(self) -> int:
        """How many tokens the embedding has; an adapter around it has the weight alone."""
        embedding = self.token_embedding
        return getattr(embedding, "num_embeddings", len(embedding.weight))

    def embed(self, ids: Tensor | None, vectors: Tensor | None) -> Tensor:
        """The caller's vectors, or those of the ids, without positions."""
        return self.token_embedding(ids) if vectors is None else vectors

    def wants_cache(self, use_cache: bool | None) -> bool:
        """Whether a pass fills a cache: as asked for, else as the config says, but not where blocks are computed twice."""
        return self.config.use_cache and not (self.recompute and self.training) if use_cache is None else use_cache

    def stored_form(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """A model's tensors as its files have them, where those are not its own."""
        how = self.declared.stacked_experts
        return with_stacked_experts(tensors, self.config.num_experts, how) if how else tensors

    def drop_unread(self, head: nn.Module) -> None:
        """Called when a head is attached: drop the modules that it does not read."""

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        """Embedded tokens to final states."""
        return self.states_plan.run(self, x, p)

    def final_states(self, x: Tensor) -> Tensor:
        """What the norm after the last block makes of its states, in families that have one."""
        return part(self, path_of(self._last.module))(x) if isinstance(self._last, Norm) else x

    def make_head(self, kind: Head) -> tuple[str, nn.Module]:
        """A head's name in checkpoints, and its module; under no name, its children are at the top level."""
        described = blueprint(self.config, kind)
        ops, last = described.ops, described.ops.index(final_op(described))
        in_base = [n for n, op in enumerate(ops) if self.prefix and op.module.startswith(f"{self.prefix}.") and n > last]
        pool = next((n for n, op in enumerate(ops) if op.pooling), None)
        reads = "pooler" if in_base else "states" if pool is None else ops[pool].pooling if pool == last + 1 else "all"
        head_ops = range(1 + (max(in_base) + 1 if in_base else last), len(ops))  # after the pooler, its activation
        derivation = HeadDerivation(self.config, self.declared, described, head_ops)
        name, head = derivation.head(path_of(ops[-1].module), reads)
        if kind == "masked" and self.declared.bias_name:
            *home, bias = path_of(self.declared.bias_name)
            part(head, tuple(home[1:] if name else home)).register_parameter(bias, head.output.bias)
        return name, head

    def new_pass(
        self,
        positions: Tensor,
        mask: Mask,
        cache: Cache | None = None,
        tap: Tap | None = None,
        source: CrossAttentionSource | None = None,
        segments: Tensor | None = None,
        lengths: Sequence[int] | None = None,
    ) -> ForwardPass:
        """A pass for tokens at these positions; `lengths`: of the rows' texts, if they do not end with these tokens."""
        rows = RotaryPositions(positions, mask.real_tokens, lengths)
        dtype = self.token_embedding.weight.dtype
        rotary = {name: part(self, path_of(name))(rows, dtype) for name in self.config.ropes}
        present = mask.present if self._keeps_states else None
        return ForwardPass(mask, positions, rotary, cache, tap, source, segments, present=present)

    def observed(self, tap: Tap | None, given: ForwardArguments, stack: str = "") -> dict[str, Any]:
        """What was seen of a pass, as fields of its output: what the flags ask for, and what a watch read."""
        record = tap.observers[0].record if tap is not None else {}
        return {
            "hidden_states": self.hidden_states(record, stack) if given.output_hidden_states else None,
            "attentions": self.attentions(record, stack) if given.output_attentions else None,
            "sites": record if given.watch is not None else None,
        }

    # What a pass is made of -------------------------------------------------------------------------------------

    @property
    def site_names(self) -> ModelSites:
        """The sites that it has, or would have with a head."""
        return replace(self.described.site_names, modules=self._module_sites)

    @property
    def described(self) -> Blueprint:
        """What it computes, with its family's usual head."""
        return blueprint(self.config)

    def _module_sites(self) -> dict[str, str]:
        """Its modules by name, also as they are called in a model with a head."""
        names = [name for name, _ in self.named_modules() if name]
        return module_sites([*names, *(f"{self.prefix}.{name}" for name in names if self.prefix)], self._in_encoder)

    def _in_encoder(self, name: str) -> bool:
        """Whether a module is a part of an encoder-decoder's encoder."""
        return bool(self.config.encoder_layers) and f"{name}.".removeprefix(f"{self.prefix}.").startswith("encoder.")

    def modules_hooked(self, tap: Tap | None, tokens: Tensor | None, stack: str = "") -> AbstractContextManager[None]:
        """Around a pass over (rows, length, …) tokens: the modules that its tap wants by name."""
        rows, length = (0, 0) if tokens is None else tokens.shape[:2]
        return named_modules_hooked(self, tap, rows, length, stack, f"{self.prefix}.")

    def watch_for(self, attentions: bool, states: bool, watch: WatchLike) -> Watch | None:
        """The sites that the familiar flags stand for, together with the caller's own watch."""
        if watch is None and not attentions and not states:
            return None
        names = self.site_names
        flags = ["*embedding", "*blocks.*.residual", "*final"] if states else []
        flags += self.described.attention_patterns if attentions else ()
        reads = frozenset(names.expand(flags))
        if watch is None:
            return Watch(reads)
        asked = Watch.parse(watch, names)
        return Watch(asked.reads | reads, asked.changes, asked.recompute)

    def hidden_states(self, record: Mapping[str, Tensor], stack: str = "") -> tuple[Tensor, ...]:
        """What entered each block, and what came out of the last norm, as the field counts them."""
        blocks = self.config.encoder_layers if stack else self.config.num_hidden_layers
        inner = (record[f"{stack}blocks.{index}.residual"] for index in range(blocks - 1))
        return (record[f"{stack}embedding"], *inner, record[f"{stack}final"])

    def attentions(
        self, record: Mapping[str, Tensor], stack: str = "", site_prefix: str = "attention"
    ) -> tuple[Tensor, ...]:
        patterns = self.described.attention_patterns
        return tuple(record[site] for site in patterns if re.match(rf"{stack}blocks\.\d+\.{site_prefix}\.", site))

    def positions_and_mask(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        past: int = 0,
        causal: bool = True,
        name: str = "attention_mask",
    ) -> tuple[Tensor, Mask]:
        """Positions and mask of a caller's tokens."""
        batch, length = tokens.shape[:2]
        keys = past + length
        columns = torch.arange(past, keys, device=tokens.device)[None]
        positions, real_tokens, explicit = columns, None, None
        if attention_mask is not None and attention_mask.ndim == 4:
            explicit = self.explicit_mask(attention_mask, batch, length, keys, name)
        elif attention_mask is not None:
            if attention_mask.shape != (batch, keys):
                remembered = f"with {past} remembered tokens and {length} new ones " if past or causal else ""
                raise InputError(f"{name} has shape {tuple(attention_mask.shape)}; {remembered}it must be {(batch, keys)}.")
            real_tokens = attention_mask.bool()
            if holds(real_tokens, Tensor.all):
                real_tokens = None
            elif causal:
                positions = (real_tokens.cumsum(-1) - 1).clamp(min=0)[:, past:]
            else:
                positions = self.encoder_positions(columns, real_tokens)
        if position_ids is not None:
            if position_ids.shape not in ((batch, length), (1, length)):
                raise InputError(f"position_ids have shape {tuple(position_ids.shape)}, the tokens {(batch, length)}.")
            first = getattr(self.config, "first_position", 0)  # they count the rows of a table
            if holds(position_ids, lambda numbers: numbers.min() < first):
                raise InputError(
                    f"position_ids hold {int(position_ids.min())}; this model's positions are counted from {first}."
                )
            positions = position_ids.to(tokens.device, torch.long) - first
        if self._has_position_table and not torch.compiler.is_compiling():
            check_context(int(positions.max()) + 1, self.config.context if causal else self.config.source_context)
        return positions, Mask(columns, keys, causal=causal, real_tokens=real_tokens, explicit=explicit)

    def explicit_mask(self, mask: Tensor, batch: int, length: int, keys: int, name: str) -> Tensor:
        """A caller's own mask of four axes, checked: truth values, or finite numbers of the model's dtype."""
        heads = self.config.num_attention_heads
        if mask.shape[0] not in (1, batch) or mask.shape[1] not in (1, heads) or mask.shape[2:] != (length, keys):
            raise InputError(
                f"{name} has shape {tuple(mask.shape)}; one of four axes must be (batch or 1, heads or 1, length, keys), "
                f"here of {(batch, heads, length, keys)}."
            )
        if mask.dtype == torch.bool:
            return mask
        if not mask.is_floating_point() or bool(((mask == 0) | (mask == 1)).all() & (mask == 1).any()):
            raise InputError(
                f"{name} has four axes and holds {mask.dtype} of 0 and 1; pass it as {name}.bool(), True where a token is "
                "seen, or as what is added to the scores: 0 where it is, and minus infinity where it is not."
            )
        dtype = self.token_embedding.weight.dtype
        return mask.clamp(min=torch.finfo(dtype).min).to(dtype)

    @staticmethod
    def check_cache_position(cache_position: Tensor | None, past: int, length: int) -> None:
        """Refuse a place in the cache other than the next one, which is where tokens go."""
        if cache_position is not None and cache_position.tolist() != list(range(past, past + length)):
            raise InputError(
                f"cache_position is {brief(cache_position.tolist())}; with {past} remembered tokens, {length} new ones "
                f"stand at {past} to {past + length - 1}. Leave it out, or crop the cache first."
            )

    def encoder_positions(self, columns: Tensor, real_tokens: Tensor) -> Tensor:
        """An encoder's positions: counted from the first real token; padding after it keeps its position."""
        return (columns - real_tokens.int().argmax(-1)[:, None]).clamp(min=0)

    def tap_for(self, given: ForwardArguments, start: int = 0) -> Tap | None:
        """What observes the pass of a call, for its flags and its watch."""
        return self.make_tap(self.watch_for(given.output_attentions, given.output_hidden_states, given.watch), start)

    @staticmethod
    def make_tap(watch: Watch | None, start: int = 0) -> Tap | None:
        return Tap([Observer(watch, start=start)]) if watch is not None else None

    def check_inputs(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, names: tuple[str, str] | None = None
    ) -> Tensor:
        """The tensor to run, checked: whole ids in range, or vectors; both where blocks have vectors of tokens beside."""
        if self.reads_ids and input_ids is not None and inputs_embeds is not None:
            check_ids(input_ids, self.vocabulary_size, "the model")
            if inputs_embeds.shape[:2] != input_ids.shape:
                shapes = f"{tuple(inputs_embeds.shape)} and input_ids {tuple(input_ids.shape)}"
                raise InputError(f"inputs_embeds have shape {shapes}; a token has one of each.")
            input_ids = None
        if (input_ids is None) == (inputs_embeds is None):
            ids, vectors = names or ("input_ids", "inputs_embeds")
            both = ", and not both" if input_ids is not None else ", or labels" if names else ""
            raise InputError(f"give either {ids} or {vectors}{both}.")
        if inputs_embeds is not None:
            hidden = self.token_embedding.weight.shape[1]
            if inputs_embeds.ndim != 3 or not inputs_embeds.numel() or not inputs_embeds.is_floating_point():
                shape = tuple(inputs_embeds.shape)
                raise InputError(f"vectors are floats of (batch, length, {hidden}), not {inputs_embeds.dtype} of {shape}.")
            return inputs_embeds
        check_ids(input_ids, self.vocabulary_size, "the model")
        assert input_ids is not None
        return input_ids


def final_op(described: Blueprint) -> Op:
    return next(op for op in described.ops if op.site == "final")


def holds(numbers: Tensor, condition: Callable[[Tensor], Tensor]) -> bool:
    """Whether something is true of a tensor's numbers, which a graph that torch compiles cannot know: then it is not."""
    return not torch.compiler.is_compiling() and bool(condition(numbers))


def check_ids(ids: object, vocabulary: int, where: str) -> Tensor:
    """A (batch, length) tensor of whole numbers inside the vocabulary, or an error that says what is wrong with it."""
    if not isinstance(ids, Tensor):
        refuse_text(ids, where)
    if ids.dtype not in (torch.long, torch.int):
        raise InputTypeError(f"{where} takes whole token ids, not {ids.dtype}. Use torch.long.")
    if ids.ndim != 2:
        raise InputError(f"{where} takes ids of shape (batch, length), not {tuple(ids.shape)}. Add a batch axis: ids[None].")
    if ids.numel() == 0:
        raise InputError(f"{where} was given an empty prompt: ids of shape {tuple(ids.shape)}. Give at least one token.")
    if torch.compiler.is_compiling():
        return ids
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise InputError(
            f"{where} was given token id {wrong}, outside the vocabulary of {vocabulary}. Is this the model's own tokenizer?"
        )
    return ids
