"""`generate`, as in `transformers`: padded tensors in, ragged rows through an executor, padded tensors out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.compat.generate_inputs import GenerateInputs, evaluating, read_inputs
from glassformer.compat.generate_output import GenerateCall, check_cache_room, fill_cache, output_of, pad_rows
from glassformer.compat.generation_executor import executor_for
from glassformer.compat.pretrained import draft_model
from glassformer.compat.streamers import Streamer
from glassformer.decoding import GenerationConfig, Outcome, Recipe, Step, StepDetail, generate, policies
from glassformer.decoding.settings import empty_prompt_token
from glassformer.decoding.settings_table import OWN_HEAD
from glassformer.decoding.text_warnings import remedies
from glassformer.engine.checks import unchanged_weights
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.ground.errors import InputError, InputTypeError, SettingError
from glassformer.ground.sites import Watch
from glassformer.torch.arguments import WatchLike
from glassformer.torch.heads import Seq2SeqLM
from glassformer.torch.threads import by_fastest_threads

note = logging.getLogger("glassformer").warning


class GenerationMixin:
    """`generate`, for models that score the next token."""

    config: Any
    generation_config: GenerationConfig

    def generate(
        self: Any,
        inputs: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        global_attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        generation_config: GenerationConfig | None = None,
        streamer: Streamer | None = None,
        tokenizer: Any = None,
        watch: WatchLike = None,
        **settings: Any,
    ) -> Any:
        """Continue token ids: score the next token, choose one, append it, and again.

        An encoder-decoder reads the ids as its source, and writes a target that begins with its start token.

        Example:
            tokens = tokenizer("Hi!", return_tensors="pt")
            result = model.generate(**tokens, max_new_tokens=20)
            print(tokenizer.decode(result[0]))

        Args:
            inputs, input_ids: the prompt as token ids, (batch, length). Text must go through the tokenizer first. Without
                them a text is begun: after the model's bos_token_id.
            attention_mask: 1 for real tokens, 0 for padding, on either side. Each row comes out as it would alone.
            token_type_ids, labels: accepted, since tokenizers and `Trainer` give them; nothing that generates reads them.
            inputs_embeds: vectors in place of the ids' embeddings, (batch, length, hidden). Without ids, a decoder's output
                has what it wrote alone.
            decoder_input_ids: for an encoder-decoder, how the target begins, instead of the start token alone.
            encoder_outputs: for an encoder-decoder, what its encoder gave for the source, which is not read again.
            global_attention_mask: for an encoder with global tokens, 1 for those, which all others see and which see all.
            past_key_values: the cache of a call that has read the beginning of this prompt, or an empty one. What it holds
                is not read again; afterwards it holds the whole text but for the last token (not with beams).
            generation_config: settings to use instead of `model.generation_config`.
            streamer: an object with `put` and `end`, such as TextStreamer, that receives ids as they come.
            tokenizer: needed where settings name texts: stop_strings, bad_words, json_schema, regex, ….
            watch: sites to read in every pass, or to change; what was read is in the output's `sites`, by step.
            settings: any field of GenerationConfig, for this call only; docs/decoding.md has them all. Often used:
                max_new_tokens   the most new tokens (default 256)
                do_sample        draw from the probabilities; otherwise the best token is taken each time
                temperature      below 1 sharpens the probabilities, above 1 flattens them
                top_k, top_p     draw only from the best k, or from the best that together have probability p
                num_beams        follow this many texts at once, and take the best as a whole
                repetition_penalty   above 1: tokens of the text so far become less likely
                seed             the same seed gives the same draws; without one, torch's generator gives it

        Returns:
            The prompts (an encoder-decoder's: the start tokens) and what follows them, (rows, longest), padded with
            the padding id; a row for each prompt, or num_return_sequences of them. With return_dict_in_generate=True a
            GenerateOutput that has this as `sequences`, and all else that was requested.
        """
        read = GenerateInputs(
            _prompt_ids(self, inputs, input_ids, settings, (inputs_embeds, encoder_outputs)), attention_mask, inputs_embeds,
            decoder_input_ids, encoder_outputs, past_key_values, global_attention_mask,
        )  # fmt: skip
        call = _prepare_call(self, read, generation_config, tokenizer, settings, watch)
        if streamer is not None:
            if not hasattr(streamer, "put") or not hasattr(streamer, "end"):
                raise InputTypeError(f"a streamer has put() and end(), such as TextStreamer(tokenizer); not {streamer!r}.")
            if len(call.policies) > 1 or call.settings.num_beams > 1:
                raise InputError("a streamer follows one text as it grows; give it a batch of one, and no beams.")
            streamer.put(call.prompts.ids[0].cpu())
        steps: list[list[Step]] = [[] for _ in call.policies]
        outcomes: dict[int, Outcome] = {}
        for row, step in _steps(self, call):
            if call.settings.return_dict_in_generate:
                steps[row].append(step)
            if streamer is not None:
                streamer.put(torch.tensor([step.id]))
            if step.outcome is not None:
                outcomes[row] = step.outcome
        if streamer is not None:
            streamer.end()
        texts = [outcomes[row] for row in range(len(call.policies))]
        if (advice := remedies([text.policy for text in texts])) is not None:
            note(advice)
        chosen = pad_rows([text.policy.chosen for text in texts], call.pad, call.prompts.ids)
        sequences = torch.cat((call.sequence_starts, chosen), dim=1)
        if call.settings.return_dict_in_generate:
            return output_of(call, sequences, steps, texts)
        if call.cache is not None and call.settings.num_beams == 1:
            fill_cache(call, texts)
        return sequences

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
        watch: WatchLike = None,
        **settings: Any,
    ) -> Iterator[tuple[int, Step]]:
        """`generate` as a generator: (row, step) for each token as it is chosen; with each, its `look` best candidates and
        what each rule did to them, and what `watch` read where the token was predicted."""
        read = GenerateInputs(_prompt_ids(self, inputs, input_ids, settings), attention_mask, None, decoder_input_ids)
        return _steps(self, _prepare_call(self, read, generation_config, tokenizer, settings, watch, StepDetail.of(look)))

    def prepare_inputs_for_generation(
        self: Any,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """The arguments of the model's next call, for a loop of one's own.

        Args:
            input_ids: the text so far, (batch, length); an encoder-decoder's target.
            next_sequence_length: how many of its last tokens are to be read; by default all that the cache does not hold.
            past_key_values: the cache of the last call.
            attention_mask: of the text so far; an encoder-decoder's: of the source.
            inputs_embeds: vectors to read instead of ids, in the first call of a loop.
            is_first_iteration: whether this is that call; by default, if the cache is empty.
            more: passed on as they are, but for labels.
        """
        is_pair = isinstance(self, Seq2SeqLM)
        count = next_sequence_length
        cached = past_key_values.get_seq_length() if past_key_values is not None else 0
        is_first = not cached if is_first_iteration is None else is_first_iteration
        if count is None:
            count = input_ids.shape[1] - cached if cached < input_ids.shape[1] else input_ids.shape[1]
        arguments: dict[str, Any] = {"decoder_input_ids" if is_pair else "input_ids": input_ids[:, -count:]}
        if inputs_embeds is not None and is_first and not is_pair:
            whole = next_sequence_length is None
            arguments = {"input_ids": None, "inputs_embeds": inputs_embeds if whole else inputs_embeds[:, -count:]}
        for name, value in (("past_key_values", past_key_values), ("attention_mask", attention_mask)):
            if value is not None:
                arguments[name] = value
        if (positions := more.pop("position_ids", None)) is not None:
            arguments["position_ids"] = positions[..., -count:]
        return {**{name: value for name, value in more.items() if name != "labels"}, **arguments}

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


def _prompt_ids(
    model: Any, inputs: Tensor | None, input_ids: Tensor | None, settings: dict[str, Any], others: Sequence[Any] = ()
) -> Tensor | None:
    """The prompt, under either of its two argument names; or none, where something else stands for it. Without any of them,
    the token that begins a text."""
    if inputs is not None and input_ids is not None:
        raise InputError("give the prompt once: generate(ids), or generate(**tokens).")
    ids = inputs if input_ids is None else input_ids
    if ids is not None or any(other is not None for other in others):
        return ids
    begin = settings.get("bos_token_id", model.generation_config.bos_token_id)
    if begin is None:
        raise InputError("give a prompt, generate(**tokens): the model has no token that begins a text (bos_token_id).")
    return torch.tensor([[begin]], device=model.device)


def _prepare_call(
    model: Any,
    inputs: GenerateInputs,
    config: GenerationConfig | None,
    tokenizer: Any,
    changes: dict[str, Any],
    watch: WatchLike,
    detail: StepDetail | None = None,
) -> GenerateCall:
    """The checked prompts, and a policy for each text that is to follow one of them."""
    settings = GenerationConfig.of(model.generation_config).merged({**changes, "generation_config": config})
    is_full, by_step = settings.return_dict_in_generate, detail is not None
    if not (is_full or by_step) and (settings.logprobs is not None or settings.prompt_logprobs is not None):
        raise SettingError("logprobs are only part of the full output. Pass return_dict_in_generate=True too.")
    changed = model.changed_watch(watch)
    watched = model.base_model.watch_for(settings.output_attentions, settings.output_hidden_states, changed)
    if watch is not None and watched is not None and not watched.changes and not (is_full or by_step):
        raise SettingError("what a watch reads is part of the full output. Pass return_dict_in_generate=True too.")
    _refuse_unread(inputs, settings, watched)
    prompts = read_inputs(model, inputs, settings, watched)
    if any(prompts.read) and settings.is_active("penalty_alpha"):
        raise SettingError(
            "penalty_alpha compares with the states of the whole prompt, which no cache holds. Leave one out."
        )
    settings.draw_seed(lambda: int(torch.randint(2**31, ())), "torch's generator")
    recipe = Recipe.of(settings, tokenizer, model.config.vocab_size)
    keeps_cache = inputs.past_key_values is not None or (is_full and changes.get("use_cache", True))
    detail = detail or StepDetail(
        raw=settings.output_logits,
        scores=settings.output_scores,
        passes=is_full and watched is not None,
        kv=keeps_cache and settings.num_beams == 1,
    )
    more = {"context": model.config.context, "detail": detail}
    negatives = _negatives(settings, tokenizer, len(prompts.rows))
    row_policies = [
        policy
        for index, negative in enumerate(negatives)
        for policy in policies(
            recipe, prompts.rows[index], source=prompts.sources[index], negative=negative, row=prompts.begun[index],
            vectors=prompts.vectors[index], prompt_index=index, **more,
        )
    ]  # fmt: skip
    call = GenerateCall(model, prompts, row_policies, settings, watched, watch is not None, inputs.past_key_values)
    check_cache_room(call)
    return call


def _refuse_unread(inputs: GenerateInputs, settings: GenerationConfig, watch: Watch | None) -> None:
    """Refuse what needs tokens, or passes, that a call does not have."""
    if settings.prompt_logprobs is not None:
        for name, present in (
            ("past_key_values", inputs.past_key_values is not None),
            ("inputs_embeds", inputs.inputs_embeds is not None),
            ("what is read inside the model", watch is not None),
        ):
            if present:
                raise SettingError(f"prompt_logprobs read the whole prompt as ids, which does not go with {name}.")
    if inputs.inputs_embeds is not None or inputs.encoder_outputs is not None:
        for name in ("assistant_model", "prompt_lookup_num_tokens"):
            if settings.is_active(name):
                raise SettingError(f"{name} drafts from ids, and the prompt has none. Give input_ids alone.")


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


def _steps(model: Any, call: GenerateCall) -> Iterator[tuple[int, Step]]:
    assistant = call.settings.assistant_model
    if assistant == OWN_HEAD:
        assistant = executor_for(draft_model(model))
    elif assistant is not None:
        check_assistant(model, assistant)
        assistant = executor_for(assistant)
    looks_inside = call.watch is not None or any(policy.detail.kv for policy in call.policies)
    with unchanged_weights(model):
        executor = call.prompts.executor or executor_for(model, modules_on_cpu=looks_inside)
    with evaluating(model):
        steps = generate(executor, call.policies, assistant, call.watch)
        if not isinstance(executor, PlainExecutor):
            yield from _from_unchanged_weights(model, steps)
        else:
            yield from by_fastest_threads(steps) if model.device.type == "cpu" else steps


def _from_unchanged_weights(model: Any, steps: Iterator[tuple[int, Step]]) -> Iterator[tuple[int, Step]]:
    """The steps of an engine that reads a model's parameters where they are, perhaps in a mapped file."""
    while True:
        with unchanged_weights(model):
            step = next(steps, None)
        if step is None:
            return
        yield step


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
