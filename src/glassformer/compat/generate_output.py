"""What `generate` gives back with return_dict_in_generate=True: the reference's fields, and more.

Texts are ragged rows inside; here they become padded tensors again, in the columns in which the prompts stood. What no row
computed, for padding and for a text that had ended, is zero.

Shapes: rows are texts, or all beams of all prompts; states (rows, length, hidden); attentions (rows, heads, length, keys).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from glassformer.compat.generate_inputs import Prompts
from glassformer.decoding import GenerationConfig, Outcome, Policy, Step
from glassformer.ground.errors import InputError
from glassformer.ground.sites import ENCODER, Watch, axes
from glassformer.torch.cache import DynamicCache, EncoderDecoderCache, StaticCache
from glassformer.torch.heads import Seq2SeqLM
from glassformer.torch.outputs import GenerateOutput

Sites = Mapping[str, Any]  # what a watch read of one row, (1, …)


@dataclass(frozen=True)
class GenerateCall:
    """One call of `generate`, ready to run."""

    model: Any
    prompts: Prompts
    policies: list[Policy]  # num_return_sequences for each prompt
    settings: GenerationConfig
    watch: Watch | None = None  # what is read and changed in every pass
    reads_sites: bool = False  # whether the caller named sites
    cache: Any = None  # the caller's own, to be filled

    @property
    def pad(self) -> int:
        if self.settings.pad_token_id is not None:
            return self.settings.pad_token_id
        return min(self.settings.eos, default=0)

    @property
    def sequence_starts(self) -> Tensor:
        """What each text begins with, (texts, length)."""
        return self.prompts.ids.repeat_interleave(self.settings.num_return_sequences, 0)


def output_of(call: GenerateCall, sequences: Tensor, steps: list[list[Step]], texts: list[Outcome]) -> GenerateOutput:
    """The output with everything that the settings request."""
    settings = call.settings
    output = GenerateOutput(sequences, settings=settings, seed=call.policies[0].seed)
    output.steps = [[replace(step, pass_sites=None) for step in row] for row in steps]
    output.finish = [row[-1].finish for row in steps]
    count = settings.num_beams if settings.num_beams > 1 else 1
    copies = settings.num_return_sequences
    if count > 1:
        output.sequences_scores = torch.tensor([text.score for text in texts], device=sequences.device)
        offsets = [count * (index // copies) for index in range(len(texts))]
        beams = [[beam + offset for beam in text.beams] for text, offset in zip(texts, offsets, strict=True)]
        output.beam_indices = pad_rows(beams, -1, sequences)
    if settings.output_scores:
        scores = [text.beam_scores for text in texts[::copies]] if count > 1 else [[s.scores for s in row] for row in steps]
        output.scores = _stack_steps(scores, count, call.pad, sequences)
    if settings.output_logits:
        logits = [text.beam_logits for text in texts[::copies]] if count > 1 else [[s.raw for s in row] for row in steps]
        output.logits = _stack_steps(logits, count, call.pad, sequences)
    if settings.logprobs is not None:
        output.logprobs = pad_rows([[step.logprob for step in row] for row in steps], 0.0, sequences, torch.float32)
    if settings.prompt_logprobs is not None:
        output.prompt_steps = [list(text.prompt_steps) for text in texts]
        output.prompt_logprobs = [[step.logprob for step in text.prompt_steps] for text in texts]
    if call.watch is not None:
        _add_sites(output, call, _rows_of_steps(call, steps, texts))
    if count == 1:
        output.past_key_values = fill_cache(call, texts)
    return output


def pad_rows(rows: list[list[Any]], fill: Any, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Ragged rows as one tensor, padded at the end."""
    longest = max(len(row) for row in rows)
    padded = [row + [fill] * (longest - len(row)) for row in rows]
    return torch.tensor(padded, dtype=dtype or like.dtype, device=like.device)


def _stack_steps(rows: Sequence[Sequence[Any]], count: int, pad: int, like: Tensor) -> tuple[Tensor, ...]:
    """Each step's scores of all rows (or beams); a row that has ended has probability 1 for padding."""
    size = rows[0][0].shape[-1]
    ended = torch.full((count, size), -torch.inf)
    ended[:, pad] = 0.0
    steps = range(max(len(row) for row in rows))
    scores = ([torch.as_tensor(row[step]).view(count, size) if step < len(row) else ended for row in rows] for step in steps)
    return tuple(torch.cat(step).to(like.device) for step in scores)


# States, attentions, sites ------------------------------------------------------------------------------------------------


def _rows_of_steps(call: GenerateCall, steps: list[list[Step]], texts: list[Outcome]) -> list[list[Sites | None]]:
    """For each step what was read of each row; None for one that had ended."""
    width, copies = call.settings.num_beams, call.settings.num_return_sequences
    if width == 1:
        count = max(len(row) for row in steps)
        return [[row[step].pass_sites if step < len(row) else None for row in steps] for step in range(count)]
    searches = [text.beam_sites for text in texts[::copies]]
    ended: list[Sites | None] = [None] * width
    count = max(len(search) for search in searches)
    return [[row for search in searches for row in (search[step] if step < len(search) else ended)] for step in range(count)]


def _add_sites(output: GenerateOutput, call: GenerateCall, steps: list[list[Sites | None]]) -> None:
    """The fields of hidden states, attentions and sites that were asked for."""
    settings, base, prompts = call.settings, call.model.base_model, call.prompts
    per_prompt = len(steps[0]) // len(prompts.rows)  # texts or beams
    records = [batched_sites(call, index, rows, per_prompt) for index, rows in enumerate(steps)]
    encoder = prompts.encoder_output
    if encoder is None and isinstance(call.model, Seq2SeqLM):
        first = {site: value[::per_prompt] for site, value in records[0].items() if site.startswith(ENCODER)}
    else:
        first = {}
    if settings.output_hidden_states:
        states = tuple(base.hidden_states(record) for record in records)
        if isinstance(call.model, Seq2SeqLM):
            output.decoder_hidden_states = states
            output.encoder_hidden_states = encoder.hidden_states if encoder else base.hidden_states(first, ENCODER)
        else:
            output.hidden_states = states
    if settings.output_attentions:
        attentions = tuple(base.attentions(record) for record in records)
        if isinstance(call.model, Seq2SeqLM):
            output.decoder_attentions = attentions
            output.cross_attentions = tuple(base.attentions(record, site_prefix="cross") for record in records)
            output.encoder_attentions = encoder.attentions if encoder else base.attentions(first, ENCODER)
        else:
            output.attentions = attentions
    if call.reads_sites:
        if encoder is not None and encoder.sites is not None:
            repeated = {site: value.repeat_interleave(per_prompt, 0) for site, value in encoder.sites.items()}
            records[0] = {**repeated, **records[0]}
        output.sites = tuple(records)


def batched_sites(call: GenerateCall, step: int, rows: Sequence[Sites | None], per_prompt: int) -> dict[str, Tensor]:
    """What was read of all rows at each site in one step, in the columns of the padded prompts."""
    present = next(row for row in rows if row is not None)
    return {site: _batched(call, site, step, [row and row[site] for row in rows], per_prompt) for site in present}


def _batched(call: GenerateCall, site: str, step: int, parts: Sequence[Any], per_prompt: int) -> Tensor:
    names, prompts, weight = axes(site), call.prompts, call.model.base_model.token_embedding.weight
    shape = list(next(part for part in parts if part is not None).shape)
    shape[0] = len(parts)
    for axis, name in enumerate(names):
        if (size := _padded_size(prompts, name, site, step)) is not None:
            shape[axis] = size
    batch = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
    for row, part in enumerate(parts):
        if part is None:
            continue
        columns = [_columns(prompts, name, site, step, row // per_prompt) for name in names[1:]]
        sizes = part.shape[1:]
        index = [torch.arange(size) if column is None else column for column, size in zip(columns, sizes, strict=True)]
        value = torch.as_tensor(part)[0].to(weight.device, weight.dtype)
        batch[row].index_put_(torch.meshgrid(*index, indexing="ij"), value)
    return batch


def _padded_size(prompts: Prompts, axis: str, site: str, step: int) -> int | None:
    """How long an axis of tokens is in a padded tensor; None for another axis."""
    match axis:
        case "length":
            return 1 if step or site == "scores" else prompts.layout.length - prompts.first_column
        case "keys":
            return prompts.layout.length + step
        case "source":
            assert prompts.source_layout is not None
            return prompts.source_layout.length
    return None


def _columns(prompts: Prompts, axis: str, site: str, step: int, row: int) -> Tensor | None:
    """Where the tokens of one prompt's row stand along an axis of tokens; None for another axis."""
    columns = prompts.layout.columns[row]
    match axis:
        case "length":
            alone = step > 0 or site == "scores"  # the prompt's last token is the only one that is scored
            return torch.zeros(1, dtype=torch.long) if alone else columns[prompts.read[row] :] - prompts.first_column
        case "keys":
            return torch.cat((columns, prompts.layout.length + torch.arange(step)))
        case "source":
            assert prompts.source_layout is not None
            return prompts.source_layout.columns[row]
    return None


# The cache ----------------------------------------------------------------------------------------------------------------


def check_cache_room(call: GenerateCall) -> None:
    """Refuse a cache of a fixed size that the texts may outgrow."""
    text_cache = call.cache.self_attention_cache if isinstance(call.cache, EncoderDecoderCache) else call.cache
    if isinstance(text_cache, StaticCache):
        most = call.prompts.layout.length + max(policy.room for policy in call.policies) - 1
        if most > text_cache.max_cache_len:
            raise InputError(
                f"the static cache has room for {text_cache.max_cache_len} tokens, and prompt and answer may have "
                f"{most}. Take a larger max_cache_len, or pass max_new_tokens."
            )


def fill_cache(call: GenerateCall, texts: Sequence[Outcome]) -> Any:
    """The keys and values of all texts, in the caller's own cache where it has one for this many rows; None where the engine
    that wrote the texts keeps its own."""
    if any(text.kv is None for text in texts):
        return None
    copies, prompts = call.settings.num_return_sequences, call.prompts
    length = prompts.layout.length + max(len(text.policy.chosen) for text in texts) - 1
    columns = []
    for index, text in enumerate(texts):
        new = torch.arange(len(text.policy.chosen) - 1)
        columns.append(torch.cat((prompts.layout.columns[index // copies], prompts.layout.length + new)))
    cache = _cache_for(call, len(texts))
    text_layers = _padded_layers([text.kv.text for text in texts], columns, length)
    if prompts.source_layout is None:
        cache.refill(text_layers)
        return cache
    layout = prompts.source_layout
    source_columns = [layout.columns[index // copies] for index in range(len(texts))]
    cross = _padded_layers([text.kv.source for text in texts], source_columns, layout.length)
    pair = cache if isinstance(cache, EncoderDecoderCache) else EncoderDecoderCache(cache)
    pair.self_attention_cache.refill(text_layers)
    pair.cross_attention_cache.refill(cross)
    return cache if cache is call.cache else pair


def _cache_for(call: GenerateCall, rows: int) -> Any:
    text_cache = call.cache.self_attention_cache if isinstance(call.cache, EncoderDecoderCache) else call.cache
    static = isinstance(text_cache, StaticCache) and text_cache.get_seq_length() and len(text_cache.filled(0)[0]) != rows
    return DynamicCache() if text_cache is None or static else call.cache


def _padded_layers(
    rows: Sequence[Sequence[tuple[Tensor, Tensor]]], columns: Sequence[Tensor], length: int
) -> list[tuple[Tensor, Tensor]]:
    """Each layer's keys and values of all rows, (rows, heads, length, head_size)."""
    layers = []
    for index in range(len(rows[0])):
        both = []
        for kind in (0, 1):
            first = rows[0][index][kind]
            batch = first.new_zeros(len(rows), first.shape[0], length, first.shape[2])
            for row, column in enumerate(columns):
                batch[row][:, column.to(batch.device)] = rows[row][index][kind]
            both.append(batch)
        layers.append((both[0], both[1]))
    return layers
