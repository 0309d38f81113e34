"""What `generate` is given to read, checked: ids or vectors in padded batches, encoded sources, caches of earlier calls.

Padded tensors become ragged rows, each of which comes out as it would alone. What the model has read already (a cache, an
encoder's output) becomes rows of an executor that remember it.

Shapes: ids (batch, length); vectors (batch, length, hidden); keys and values (batch, heads, length, head_size).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glassformer.decoding import GenerationConfig
from glassformer.engine.protocol import Row, Source
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.sites import Watch
from glassformer.torch.arguments import check_device
from glassformer.torch.base import check_ids
from glassformer.torch.cache import DynamicCache, EncoderDecoderCache, StaticCache
from glassformer.torch.heads import Seq2SeqLM
from glassformer.torch.mask import chosen_tokens
from glassformer.torch.outputs import BaseModelOutput

if TYPE_CHECKING:
    from glassformer.engine.plain.executor import PlainExecutor

note = logging.getLogger("glassformer").warning
Layers = list[tuple[Tensor, Tensor]]  # each layer's keys and values


@dataclass(frozen=True)
class GenerateInputs:
    """The arguments of `generate` that are read, as they were passed."""

    input_ids: Tensor | None
    attention_mask: Tensor | None = None
    inputs_embeds: Tensor | None = None
    decoder_input_ids: Tensor | None = None
    encoder_outputs: Any = None
    past_key_values: Any = None
    global_attention_mask: Tensor | None = None


@dataclass(frozen=True)
class PaddedRows:
    """A batch's rows, and in which columns of its padded tensors their own tokens stand."""

    length: int
    columns: Sequence[Tensor]  # of each row, ascending

    @classmethod
    def of(cls, batch: int, length: int, mask: Tensor | None = None) -> PaddedRows:
        if mask is None:
            return cls(length, [torch.arange(length)] * batch)
        return cls(length, [row.bool().nonzero()[:, 0].cpu() for row in mask])

    def own(self, batch: Tensor) -> list[Tensor]:
        """Each row of a padded tensor without its padding."""
        return [row[columns.to(row.device)] for row, columns in zip(batch, self.columns, strict=True)]


@dataclass(frozen=True)
class Prompts:
    """What a batch's texts begin with; for each prompt one entry of each list."""

    ids: Tensor  # as `sequences` begin; without columns where the prompts are vectors alone
    layout: PaddedRows
    rows: list[list[int]]  # without padding
    vectors: list[Any]  # in place of the rows' embeddings, or None
    sources: list[Sequence[int] | None]  # for the encoder
    source_layout: PaddedRows | None = None
    encoder_output: BaseModelOutput | None = None  # where the encoder has run already
    executor: PlainExecutor | None = None  # which has rows that were begun, or must take vectors
    begun: list[Row | None] = field(default_factory=list)  # rows that have read some of it
    read: list[int] = field(default_factory=list)  # how many tokens of each they have read

    @property
    def first_column(self) -> int:
        """The first column of the prompts that is still to be read."""
        return min(int(columns[read]) for columns, read in zip(self.layout.columns, self.read, strict=True))


def read_inputs(model: Any, inputs: GenerateInputs, settings: GenerationConfig, watch: Watch | None) -> Prompts:
    """The prompts that the arguments describe; `watch`: for the encoder, where it has to run now."""
    for name, value in vars(inputs).items():
        if isinstance(value, Tensor) and value.device.type == "meta":  # those on other devices are copied
            check_device(name, value, model.device)
    if isinstance(model, Seq2SeqLM):
        prompts = _read_pairs(model, inputs, settings, watch)
    else:
        prompts = _read_prompts(model, inputs, settings)
    cache = inputs.past_key_values
    if cache is not None or inputs.inputs_embeds is not None or prompts.encoder_output is not None:
        return _with_begun_rows(model, prompts, cache)
    count = len(prompts.rows)
    return replace(prompts, begun=[None] * count, read=[0] * count)


def _read_prompts(model: Any, inputs: GenerateInputs, settings: GenerationConfig) -> Prompts:
    """The prompts of a decoder."""
    for name in ("decoder_input_ids", "encoder_outputs"):
        if getattr(inputs, name) is not None:
            raise InputError(f"{name} are for encoder-decoders; this model has no encoder.")
    if settings.is_set("global_tokens"):
        raise InputError(f"global_tokens are for an encoder that has some, and {model.config.model_type} has none.")
    ids, embeds = inputs.input_ids, inputs.inputs_embeds
    if embeds is None:
        prompt_ids = check_ids(ids, model.base_model.vocabulary_size, "generate()")
        layout = _layout(prompt_ids, inputs.attention_mask, settings)
        rows = [row.tolist() for row in layout.own(prompt_ids)]
        return Prompts(prompt_ids, layout, rows, [None] * len(rows), [None] * len(rows))
    check_embeds(model, embeds)
    layout = _layout(embeds, inputs.attention_mask, settings)
    weight = model.base_model.token_embedding.weight
    vectors = [row.to(weight.device, weight.dtype) for row in layout.own(embeds.detach())]
    prompt_ids = torch.empty(len(embeds), 0, dtype=torch.long, device=embeds.device)
    rows = [[] for _ in vectors]
    if ids is not None and ids.numel():
        prompt_ids = check_ids(ids, model.base_model.vocabulary_size, "generate()")
        if prompt_ids.shape != embeds.shape[:2]:
            shapes = f"{tuple(embeds.shape)} and input_ids {tuple(prompt_ids.shape)}"
            raise InputError(f"inputs_embeds have shape {shapes}; a token has one of each, or leave input_ids out.")
        rows = [row.tolist() for row in layout.own(prompt_ids)]
    return Prompts(prompt_ids, layout, rows, vectors, [None] * len(rows))


def _read_pairs(model: Any, inputs: GenerateInputs, settings: GenerationConfig, watch: Watch | None) -> Prompts:
    """The sources of an encoder-decoder, and how its targets begin."""
    ids, embeds = inputs.input_ids, inputs.inputs_embeds
    if ids is not None and embeds is not None:
        raise InputError("give an encoder-decoder's source once: either as input_ids or as inputs_embeds.")
    if ids is not None and inputs.global_attention_mask is None and settings.global_tokens is not None:
        inputs = replace(inputs, global_attention_mask=_mask_of_places(settings.global_tokens, ids, inputs.attention_mask))
    vocabulary = model.base_model.vocabulary_size
    encoder_output, source = None, ids
    if inputs.encoder_outputs is not None:
        encoder_output = _as_encoder_output(inputs.encoder_outputs)
        source = encoder_output.last_hidden_state
        assert source is not None
        if source.shape[-1] != model.config.hidden_size:
            raise InputError(
                f"encoder_outputs have {source.shape[-1]} numbers a token; the model has {model.config.hidden_size}."
            )
    elif embeds is not None:
        check_embeds(model, embeds)
        source = embeds
    else:
        check_ids(ids, vocabulary, "generate()")
    assert source is not None
    layout = _layout(source, inputs.attention_mask, settings)
    if ids is not None and inputs.encoder_outputs is None:
        sources: list[Sequence[int] | None] = [row.tolist() for row in layout.own(ids)]
        if (chosen := _global_tokens(model, inputs, ids)) is not None:
            places = [row.nonzero()[:, 0].tolist() for row in layout.own(chosen)]
            sources = [Source(source or (), tokens) for source, tokens in zip(sources, places, strict=True)]
    else:
        sources = [()] * len(source)
    seen = settings.output_hidden_states or settings.output_attentions
    if encoder_output is None and (embeds is not None or (seen and inputs.past_key_values is not None)):
        encoder_output = _encode(model, inputs, settings, watch)
    decoder_ids = _decoder_ids(model, source, inputs.decoder_input_ids, settings)
    rows = [row.tolist() for row in decoder_ids]
    target_layout = PaddedRows.of(*decoder_ids.shape)
    return Prompts(decoder_ids, target_layout, rows, [None] * len(rows), sources, layout, encoder_output)


def _mask_of_places(places: Sequence[int], ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Which of a source's tokens have these places in its text, (batch, source)."""
    real = torch.ones_like(ids) if attention_mask is None else attention_mask
    return real.bool() & torch.isin(real.cumsum(-1) - 1, torch.tensor(places, device=ids.device))


def _global_tokens(model: Any, inputs: GenerateInputs, ids: Tensor) -> Tensor | None:
    """Which of a source's tokens are global, (batch, source), if a caller has chosen any."""
    chosen = inputs.global_attention_mask
    if chosen is None:
        return None
    if not model.base_model.described.has_global_tokens:
        raise InputError(f"global_attention_mask is for encoders with global tokens; {model.config.model_type} has none.")
    return chosen_tokens(chosen, ids.shape)


def _decoder_ids(model: Any, source: Tensor, decoder_ids: Tensor | None, settings: GenerationConfig) -> Tensor:
    """How an encoder-decoder's targets begin: with `decoder_ids`, or with the start token."""
    if decoder_ids is None:
        start = settings.decoder_start_token_id
        start = model.config.decoder_start_token_id if start is None else start
        if start is None:
            raise InputError("the model has no decoder_start_token_id, so give one, or decoder_input_ids.")
        decoder_ids = torch.full((len(source), 1), start, dtype=torch.long, device=source.device)
    check_ids(decoder_ids, model.base_model.vocabulary_size, "generate()")
    if len(decoder_ids) != len(source):
        raise InputError(f"decoder_input_ids have {len(decoder_ids)} rows, the source {len(source)}.")
    return decoder_ids


def check_embeds(model: Any, embeds: object) -> None:
    """Refuse vectors that are not the model's."""
    hidden = model.base_model.token_embedding.embedding_dim
    if not isinstance(embeds, Tensor) or embeds.ndim != 3 or embeds.shape[2] != hidden or not embeds.numel():
        what = f"of shape {tuple(embeds.shape)}" if isinstance(embeds, Tensor) else f"a {type(embeds).__name__}"
        raise InputError(f"inputs_embeds are {what}; they must be a tensor of (batch, length, {hidden}).")
    if not embeds.is_floating_point():
        raise InputTypeError(f"inputs_embeds are of {embeds.dtype}; vectors are floats, such as those of an embedding.")


def _layout(tokens: Tensor, attention_mask: Tensor | None, settings: GenerationConfig) -> PaddedRows:
    """Where each row's own tokens stand; tokens are ids, or vectors in their place."""
    batch, length = tokens.shape[:2]
    if attention_mask is None:
        is_padded = tokens.ndim == 2 and settings.pad_token_id is not None and bool((tokens == settings.pad_token_id).any())
        if batch > 1 and is_padded:
            note(f"the batch holds the padding id {settings.pad_token_id} and no attention_mask was given; pass **tokens.")
        return PaddedRows.of(batch, length)
    if not isinstance(attention_mask, Tensor):
        raise InputTypeError(f"attention_mask is a {type(attention_mask).__name__}; it must be a tensor, as the ids are.")
    if attention_mask.shape != (batch, length):
        raise InputError(f"attention_mask has shape {tuple(attention_mask.shape)}, the ids {(batch, length)}.")
    layout = PaddedRows.of(batch, length, attention_mask)
    for index, columns in enumerate(layout.columns):
        if not len(columns):
            raise InputError(f"row {index} of the batch is all padding. Give it at least one token.")
    return layout


# What was read before ---------------------------------------------------------------------------------------------------


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """In this block, the model is not in training mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _as_encoder_output(output: Any) -> BaseModelOutput:
    """What an encoder gave: an output of `run_encoder`, or anything that holds its states first."""
    try:
        states = output[0]
    except (TypeError, LookupError):
        states = None
    if not isinstance(states, Tensor) or states.ndim != 3:
        raise InputError("encoder_outputs must hold the encoder's states, (batch, source, hidden), first.")
    return BaseModelOutput(states, getattr(output, "hidden_states", None), getattr(output, "attentions", None))


def _encode(model: Any, inputs: GenerateInputs, settings: GenerationConfig, watch: Watch | None) -> BaseModelOutput:
    chosen = {} if inputs.global_attention_mask is None else {"global_attention_mask": inputs.global_attention_mask}
    with evaluating(model), torch.no_grad():
        output: BaseModelOutput = model.base_model.run_encoder(
            inputs.input_ids,
            inputs.attention_mask,
            inputs_embeds=inputs.inputs_embeds,
            output_attentions=settings.output_attentions,
            output_hidden_states=settings.output_hidden_states,
            watch=watch,
            **chosen,
        )
    return output


def _with_begun_rows(model: Any, prompts: Prompts, cache: Any) -> Prompts:
    """The prompts, with rows that remember what the cache and the encoder's output hold."""
    from glassformer.engine.plain.executor import PlainExecutor
    from glassformer.engine.plain.kv_cache import KvSnapshot

    executor = PlainExecutor(model)
    text, cross = cached_layers(model, cache, prompts) if cache is not None else ([], [])
    sources: list[Layers] = [[] for _ in prompts.rows]
    if prompts.source_layout is not None:
        if cross:
            sources = _row_layers(cross, prompts.source_layout.columns)
        elif prompts.encoder_output is not None:
            sources = _project_sources(model, prompts.encoder_output, prompts.source_layout)
    filled = text[0][0].shape[2] if text else 0
    # a row's last token is read again where the cache holds it: the scores after it are not kept
    cached = [columns[columns < filled][: len(columns) - 1] for columns in prompts.layout.columns]
    begun: list[Row | None] = []
    texts = zip(_row_layers(text, cached), sources, prompts.sources, prompts.rows, prompts.vectors, strict=True)
    for layers, source, source_ids, ids, vectors in texts:
        snapshot = KvSnapshot(layers if layers and layers[0][0].shape[1] else [], source)
        known = snapshot.text or snapshot.source
        begun.append(executor.import_kv(snapshot, source_ids or (), ids, vectors) if known else None)
    read = [0 if row is None else row.length for row in begun]
    return replace(prompts, executor=executor, begun=begun, read=read)


def _row_layers(layers: Layers, columns: Sequence[Tensor]) -> list[Layers]:
    """Each row's keys and values at its own columns, (heads, length, head_size), by layer."""
    return [
        [
            (key[row][:, column.to(key.device)].detach(), value[row][:, column.to(key.device)].detach())
            for key, value in layers
        ]
        for row, column in enumerate(columns)
    ]


def _project_sources(model: Any, output: BaseModelOutput, layout: PaddedRows) -> list[Layers]:
    """The keys and values that each decoder layer makes of each row's encoded source."""
    assert output.last_hidden_state is not None
    weight = model.base_model.token_embedding.weight
    with evaluating(model), torch.no_grad():
        return [
            [
                (key[0], value[0])
                for module in model.base_model.cross_attention_modules
                for key, value in [module.project_source(states[None].to(weight.device, weight.dtype))]
            ]
            for states in layout.own(output.last_hidden_state)
        ]


def cached_layers(model: Any, cache: Any, prompts: Prompts) -> tuple[Layers, Layers]:
    """The keys and values of a caller's cache: of the prompts' own tokens, and of the source. Refused if they do not fit."""
    kinds = (DynamicCache, StaticCache, EncoderDecoderCache) if prompts.source_layout else (DynamicCache, StaticCache)
    if not isinstance(cache, kinds):
        names = " or a ".join(kind.__name__ for kind in kinds)
        raise InputTypeError(
            f"past_key_values is a {type(cache).__name__}; it must be a {names} of glassformer, as an output has it."
        )
    pair = cache if isinstance(cache, EncoderDecoderCache) else EncoderDecoderCache(cache)
    if pair.self_attention_cache.states:
        raise InputError(
            "past_key_values hold states of layers that keep no tokens, and generate() cannot go on from them. Leave them "
            "out, or read on with the model itself."
        )
    text, cross = (_filled_layers(model, part, len(prompts.rows)) for part in _parts(pair))
    if text and text[0][0].shape[2] > prompts.layout.length:
        raise InputError(
            f"past_key_values hold {text[0][0].shape[2]} tokens, and the prompt has {prompts.layout.length}. Give the whole "
            "prompt: what the cache holds of it, and what follows."
        )
    if cross and prompts.source_layout is not None and cross[0][0].shape[2] != prompts.source_layout.length:
        raise InputError(
            f"past_key_values hold a source of {cross[0][0].shape[2]} tokens, and this one has "
            f"{prompts.source_layout.length}. Give the same source again."
        )
    return text, cross


def _parts(cache: EncoderDecoderCache) -> tuple[DynamicCache | StaticCache, DynamicCache | StaticCache]:
    return cache.self_attention_cache, cache.cross_attention_cache


def _filled_layers(model: Any, cache: DynamicCache | StaticCache, batch: int) -> Layers:
    if not cache.get_seq_length():
        return []
    layers = [cache.filled(index) for index in range(len(cache))]
    c = model.config
    heads = getattr(c, "num_key_value_heads", 0) or c.num_attention_heads
    size = getattr(c, "head_dim", 0) or c.hidden_size // c.num_attention_heads
    key = layers[0][0]
    if (len(layers), key.shape[1], key.shape[3]) != (c.num_hidden_layers, heads, size):
        raise InputError(
            f"past_key_values are of another model: they have {len(layers)} layers of {key.shape[1]} heads of size "
            f"{key.shape[3]}, this one {c.num_hidden_layers} of {heads} of size {size}."
        )
    if len(key) != batch:
        raise InputError(
            f"past_key_values are of a batch of {len(key)}, and there are {batch} prompts. Give as many of both."
        )
    return layers
