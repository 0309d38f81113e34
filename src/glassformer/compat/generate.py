"""`generate`, as in `transformers`: padded tensors in, ragged rows through an executor, padded tensors out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from glassformer.compat.generation_executor import executor_for, release_engine
from glassformer.compat.streamers import Streamer
from glassformer.decoding import GenerationConfig, Look, Outcome, Policy, Recipe, Step, generate, policies
from glassformer.decoding.settings import empty_prompt_token
from glassformer.decoding.text_warnings import remedies
from glassformer.errors import InputError, InputTypeError, SettingError
from glassformer.families.shared.base import check_ids
from glassformer.families.shared.heads import Seq2SeqLM
from glassformer.families.shared.outputs import GenerateOutput
from glassformer.families.shared.tensor_checks import check_device

note = logging.getLogger("glassformer").warning


class GenerationMixin:
    """`generate`, for models that score the next token."""

    config: Any
    generation_config: GenerationConfig
    use_gpu_engine: bool = True  # where the model is on a GPU, and nobody has hooks on it or has changed its modules

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        release_engine(cast(nn.Module, self))  # the parameters move, or change their dtype
        return super()._apply(fn, recurse)  # type: ignore[misc]

    def train(self, mode: bool = True) -> Any:
        if mode:
            release_engine(cast(nn.Module, self))  # its memory is wanted for gradients
        return super().train(mode)  # type: ignore[misc]

    def generate(
        self: Any,
        inputs: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        streamer: Streamer | None = None,
        tokenizer: Any = None,
        **settings: Any,
    ) -> Any:
        """Continue token ids: score the next token, choose one, append it, and again.

        An encoder-decoder reads the ids as its source, and writes a target that begins with its start token.

        Example:
            tokens = tokenizer("Hi!", return_tensors="pt")
            result = model.generate(**tokens, max_new_tokens=20)
            print(tokenizer.decode(result[0]))

        Args:
            inputs, input_ids: the prompt as token ids, (batch, length). Text must go through the tokenizer first.
            attention_mask: 1 for real tokens, 0 for padding, on either side. Each row comes out as it would alone.
            token_type_ids: accepted, since some tokenizers give them; nothing that generates reads them.
            decoder_input_ids: for an encoder-decoder, how the target begins, instead of the start token alone.
            generation_config: settings to use instead of `model.generation_config`.
            streamer: an object with `put` and `end`, such as TextStreamer, that receives ids as they come.
            tokenizer: needed where settings name texts: stop_strings, bad_words, json_schema, regex, ….
            settings: any field of GenerationConfig, for this call only; docs/decoding.md has them all. Often used:
                max_new_tokens   at most so many new tokens (default 256)
                do_sample        draw from the probabilities; otherwise the best token is taken each time
                temperature      below 1 sharpens the probabilities, above 1 flattens them
                top_k, top_p     draw only from the best k, or from the best that together have probability p
                num_beams        follow so many texts at once, and take the best as a whole
                repetition_penalty   above 1: tokens of the text so far become less likely
                seed             the same seed gives the same draws; without one, torch's generator gives it

        Returns:
            The prompts (an encoder-decoder's: the start tokens) and what follows them, (rows, longest), padded with
            the padding id; a row for each prompt, or num_return_sequences of them. With return_dict_in_generate=True a
            GenerateOutput that has this as `sequences`, and all else that was requested.
        """
        ids = _prompt_ids(inputs, input_ids)
        call = _prepare_call(self, ids, attention_mask, decoder_input_ids, generation_config, tokenizer, settings)
        if streamer is not None:
            if not hasattr(streamer, "put") or not hasattr(streamer, "end"):
                raise InputTypeError(f"a streamer has put() and end(), such as TextStreamer(tokenizer); not {streamer!r}.")
            if len(call.policies) > 1 or call.settings.num_beams > 1:
                raise InputError("a streamer follows one text as it grows; give it a batch of one, and no beams.")
            streamer.put(call.prompts[0].cpu())
        steps: list[list[Step]] = [[] for _ in call.policies]
        outcomes: dict[int, Outcome] = {}
        for number, step in _steps(self, call):
            if call.settings.return_dict_in_generate:
                steps[number].append(step)
            if streamer is not None:
                streamer.put(torch.tensor([step.id]))
            if step.outcome is not None:
                outcomes[number] = step.outcome
        if streamer is not None:
            streamer.end()
        texts = [outcomes[number] for number in range(len(call.policies))]
        if (advice := remedies([text.policy for text in texts])) is not None:
            note(advice)
        chosen = _pad_rows([text.policy.chosen for text in texts], call.pad, call.prompts)
        sequences = torch.cat((call.prompts, chosen), dim=1)
        return _output(call, sequences, steps, texts) if call.settings.return_dict_in_generate else sequences

    def steps(
        self: Any,
        inputs: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        tokenizer: Any = None,
        look: int | str = 0,
        **settings: Any,
    ) -> Iterator[tuple[int, Step]]:
        """The same as a generator: (row, step) for each token as it is chosen; with each, its `look` best candidates and
        what each rule did to them."""
        ids = _prompt_ids(inputs, input_ids)
        shown = Look.of(look)
        return _steps(
            self, _prepare_call(self, ids, attention_mask, decoder_input_ids, generation_config, tokenizer, settings, shown)
        )

    def compute_transition_scores(
        self,
        sequences: Tensor,
        scores: tuple[Tensor, ...],
        beam_indices: Tensor | None = None,
        normalize_logits: bool = False,
    ) -> Tensor:
        """The score that each chosen token had, (rows, steps), from what `generate` gave back as scores."""
        steps = torch.stack(tuple(scores))  # (steps, rows or beams, vocabulary)
        if normalize_logits:
            steps = steps.log_softmax(-1)
        count = len(steps) if beam_indices is None else beam_indices.shape[1]
        chosen = sequences[:, -count:]
        if beam_indices is None:
            return steps[torch.arange(count), torch.arange(len(chosen))[:, None], chosen]
        return steps[torch.arange(count), beam_indices.clamp(min=0), chosen].masked_fill(beam_indices < 0, 0.0)


@dataclass(frozen=True)
class GenerateCall:
    """One call of `generate`, ready to run."""

    prompts: Tensor  # (rows, length), as passed in; a row for each text
    policies: list[Policy]
    settings: GenerationConfig
    pad: int


def _prompt_ids(inputs: Tensor | None, input_ids: Tensor | None) -> Tensor:
    """The prompt, under either of its two argument names."""
    ids = inputs if input_ids is None else input_ids
    if ids is None or (inputs is not None and input_ids is not None):
        raise InputError("give the prompt once: generate(ids), or generate(**tokens).")
    return ids


def _prepare_call(
    model: Any,
    ids: Tensor,
    attention_mask: Tensor | None,
    decoder_ids: Tensor | None,
    config: GenerationConfig | None,
    tokenizer: Any,
    changes: dict[str, Any],
    look: Look | None = None,
) -> GenerateCall:
    """The checked prompt tensor, and a policy for each text that is to follow one of its rows, without padding."""
    embedding = model.base_model.token_embedding
    for name, tensor in (("input_ids", ids), ("attention_mask", attention_mask), ("decoder_input_ids", decoder_ids)):
        if isinstance(tensor, Tensor) and tensor.device.type == "meta":  # those on other devices are copied
            check_device(name, tensor, embedding.weight.device)
    prompts = check_ids(ids, embedding.num_embeddings, "generate()")
    settings = GenerationConfig.of(model.generation_config).merged({**changes, "generation_config": config})
    has_steps = look is not None or settings.return_dict_in_generate
    if not has_steps and (settings.logprobs is not None or settings.prompt_logprobs is not None):
        raise SettingError("logprobs are only part of the full output. Pass return_dict_in_generate=True too.")
    rows = _unpadded(prompts, attention_mask, settings)
    sources: list[Any] = [None] * len(rows)
    if isinstance(model, Seq2SeqLM):
        prompts, rows, sources = (*_decoder_prompts(model, prompts, decoder_ids, settings), rows)
    elif decoder_ids is not None:
        raise InputError("decoder_input_ids are for encoder-decoders; this model has no encoder.")
    settings.draw_seed(lambda: int(torch.randint(2**31, ())), "torch's generator")
    recipe = Recipe.of(settings, tokenizer, model.config.vocab_size)
    look = look or Look(raw=settings.output_logits, scores=settings.output_scores)
    more = {"context": model.config.context, "look": look}
    negatives = _negatives(settings, tokenizer, len(rows))
    row_policies = [
        policy
        for row, source, negative in zip(rows, sources, negatives, strict=True)
        for policy in policies(recipe, row, source=source, negative=negative, **more)
    ]
    return GenerateCall(
        prompts.repeat_interleave(settings.num_return_sequences, 0), row_policies, settings, _padding(settings)
    )


def _negatives(settings: GenerationConfig, tokenizer: Any, rows: int) -> list[list[int] | None]:
    """Each row's negative prompt, for guidance: one for all rows, or one for each."""
    prompt: Any = settings.negative_prompt_ids
    if settings.negative_prompt is not None:
        if tokenizer is None:
            raise SettingError("negative_prompt is a text, so a tokenizer is needed. Pass tokenizer=tokenizer too.")
        prompt = tokenizer.encode(settings.negative_prompt) or [empty_prompt_token(settings)]
    if prompt is None:
        return [None] * rows
    try:
        ids = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        ids = torch.empty(0)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or not ids.shape[1] or len(ids) not in (1, rows) or ids.is_floating_point():
        raise InputError(f"negative_prompt_ids are token ids, for all {rows} rows or one for each, and at least one id.")
    return [row.tolist() for row in ids.expand(rows, -1)]


def _unpadded(prompts: Tensor, attention_mask: Tensor | None, settings: GenerationConfig) -> list[list[int]]:
    """Each row's own tokens."""
    if attention_mask is None:
        if len(prompts) > 1 and settings.pad_token_id is not None and bool((prompts == settings.pad_token_id).any()):
            note(f"the batch holds the padding id {settings.pad_token_id} and no attention_mask was given; pass **tokens.")
        return [row.tolist() for row in prompts]
    if not isinstance(attention_mask, Tensor):
        raise InputTypeError(f"attention_mask is a {type(attention_mask).__name__}; it must be a tensor, as the ids are.")
    if attention_mask.shape != prompts.shape:
        raise InputError(f"attention_mask has shape {tuple(attention_mask.shape)}, the ids {tuple(prompts.shape)}.")
    rows = [row[mask.bool()].tolist() for row, mask in zip(prompts, attention_mask, strict=True)]
    for number, row in enumerate(rows):
        if not row:
            raise InputError(f"row {number} of the batch is all padding. Give it at least one token.")
    return rows


def _decoder_prompts(
    model: Any, prompts: Tensor, decoder_ids: Tensor | None, settings: GenerationConfig
) -> tuple[Tensor, list[list[int]]]:
    """How an encoder-decoder's targets begin: with `decoder_ids`, or with the start token."""
    if decoder_ids is None:
        start = settings.decoder_start_token_id
        start = model.config.decoder_start_token_id if start is None else start
        if start is None:
            raise InputError("the model has no decoder_start_token_id, so give one, or decoder_input_ids.")
        decoder_ids = prompts.new_full((len(prompts), 1), start)
    check_ids(decoder_ids, model.base_model.token_embedding.num_embeddings, "generate()")
    if len(decoder_ids) != len(prompts):
        raise InputError(f"decoder_input_ids have {len(decoder_ids)} rows, the source {len(prompts)}.")
    return decoder_ids, [row.tolist() for row in decoder_ids]


def _steps(model: Any, call: GenerateCall) -> Iterator[tuple[int, Step]]:
    assistant = call.settings.assistant_model
    if assistant is not None:
        check_assistant(model, assistant)
        assistant = executor_for(assistant)
    executor, was_training = executor_for(model), model.training
    model.eval()
    try:
        yield from generate(executor, call.policies, assistant)
    finally:
        model.train(was_training)


def check_assistant(model: Any, assistant: Any) -> None:
    """Refuse a model that cannot draft for another."""
    if not isinstance(assistant, GenerationMixin):
        raise SettingError(
            f"assistant_model is {type(assistant).__name__}; it must be a model of glassformer that generates."
        )
    ours, theirs = model.config, assistant.config
    if ours.vocab_size != theirs.vocab_size or isinstance(model, Seq2SeqLM) != isinstance(assistant, Seq2SeqLM):
        raise SettingError(
            f"assistant_model must have the same vocabulary and kind as the model: it is {theirs.model_type} of "
            f"{theirs.vocab_size} tokens, the model {ours.model_type} of {ours.vocab_size}."
        )


def _pad_rows(rows: list[list[Any]], fill: Any, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Ragged rows as one tensor, padded at the end."""
    longest = max(len(row) for row in rows)
    padded = [row + [fill] * (longest - len(row)) for row in rows]
    return torch.tensor(padded, dtype=dtype or like.dtype, device=like.device)


def _output(call: GenerateCall, sequences: Tensor, steps: list[list[Step]], texts: list[Outcome]) -> GenerateOutput:
    """The output with everything that the settings request."""
    settings = call.settings
    output = GenerateOutput(sequences, steps=steps, settings=settings, seed=call.policies[0].seed)
    output.finish = [row[-1].finish for row in steps]
    count = settings.num_beams if settings.num_beams > 1 else 1
    copies = settings.num_return_sequences
    if count > 1:
        output.sequences_scores = torch.tensor([text.score for text in texts], device=sequences.device)
        offsets = [count * (number // copies) for number in range(len(texts))]
        beams = [[beam + offset for beam in text.beams] for text, offset in zip(texts, offsets, strict=True)]
        output.beam_indices = _pad_rows(beams, -1, sequences)
    if settings.output_scores:
        scores = [text.beam_scores for text in texts[::copies]] if count > 1 else [[s.scores for s in row] for row in steps]
        output.scores = _stack_steps(scores, count, call.pad, sequences)
    if settings.output_logits:
        logits = [text.beam_logits for text in texts[::copies]] if count > 1 else [[s.raw for s in row] for row in steps]
        output.logits = _stack_steps(logits, count, call.pad, sequences)
    if settings.logprobs is not None:
        output.logprobs = _pad_rows([[step.logprob for step in row] for row in steps], 0.0, sequences, torch.float32)
    if settings.prompt_logprobs is not None:
        output.prompt_steps = [list(text.prompt_steps) for text in texts]
        output.prompt_logprobs = [[step.logprob for step in text.prompt_steps] for text in texts]
    return output


def _stack_steps(rows: Sequence[Sequence[Any]], count: int, pad: int, like: Tensor) -> tuple[Tensor, ...]:
    """Each step's scores of all rows (or beams); a row that has ended has probability 1 for padding."""
    size = rows[0][0].shape[-1]
    ended = torch.full((count, size), -torch.inf)
    ended[:, pad] = 0.0
    steps = range(max(len(row) for row in rows))
    scores = ([torch.as_tensor(row[at]).view(count, size) if at < len(row) else ended for row in rows] for at in steps)
    return tuple(torch.cat(step).to(like.device) for step in scores)


def _padding(settings: GenerationConfig) -> int:
    if settings.pad_token_id is not None:
        return settings.pad_token_id
    return min(settings.eos, default=0)
