"""`generate`: the familiar face of the loop. Padded tensors in, ragged rows through an executor, padded tensors out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from glassformer.decoding import GenerationConfig, Policy, Step, loop
from glassformer.errors import InputError
from glassformer.families.base import check_ids
from glassformer.heads import Seq2SeqLM

note = logging.getLogger("glassformer").warning


class Streamer(Protocol):
    """Receives the prompt's ids first, then each new id; `end` comes last."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


class Generating:
    """What a model with a causal head can do beside scoring."""

    config: Any
    generation_config: GenerationConfig

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
        **settings: Any,
    ) -> Tensor:
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
            settings: any field of GenerationConfig, for this call only:
                max_new_tokens   at most so many new tokens (default 256)
                max_length       the same, prompt included
                do_sample        draw from the probabilities; otherwise the best token is taken each time
                temperature      below 1 sharpens the probabilities, above 1 flattens them
                top_k, top_p     draw only from the best k, or from the best that together have probability p
                eos_token_id     an id, or several, that end a text
                pad_token_id     what fills up rows that ended early
                seed             the same seed gives the same draws; without one, torch's generator gives it

        Returns:
            The prompts (an encoder-decoder's: the start tokens) and what follows them, (batch, longest), filled up with
            the padding id.
        """
        ids = _once(inputs, input_ids)
        prompts, policies = _begin(self, ids, attention_mask, decoder_input_ids, generation_config, settings)
        if streamer is not None:
            if len(policies) > 1:
                raise InputError("a streamer follows one text; give it a batch of one.")
            streamer.put(prompts[0].cpu())
        for _, step in _steps(self, policies):
            if streamer is not None:
                streamer.put(torch.tensor([step.id]))
        if streamer is not None:
            streamer.end()
        longest = max(len(policy.chosen) for policy in policies)
        pad = _padding(policies[0].settings)
        rows = [policy.chosen + [pad] * (longest - len(policy.chosen)) for policy in policies]
        return torch.cat((prompts, torch.tensor(rows, dtype=prompts.dtype, device=prompts.device)), dim=1)

    def steps(
        self: Any,
        inputs: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        look: int = 0,
        **settings: Any,
    ) -> Iterator[tuple[int, Step]]:
        """The same as a generator: (row, step) for each token as it is chosen; `look` candidates beside each."""
        ids = _once(inputs, input_ids)
        _, policies = _begin(self, ids, attention_mask, decoder_input_ids, generation_config, settings, look)
        return _steps(self, policies)


def _once(inputs: Tensor | None, input_ids: Tensor | None) -> Tensor:
    """The prompt, by whichever of its two names it was given."""
    ids = inputs if input_ids is None else input_ids
    if ids is None or (inputs is not None and input_ids is not None):
        raise InputError("give the prompt once: generate(ids), or generate(**tokens).")
    return ids


def _begin(
    model: Any,
    ids: Tensor,
    attention_mask: Tensor | None,
    decoder_ids: Tensor | None,
    given: GenerationConfig | None,
    changes: dict[str, Any],
    look: int = 0,
) -> tuple[Tensor, list[Policy]]:
    """The checked prompt tensor, and a policy for each of its rows with the padding taken off."""
    prompts = check_ids(ids, model.base_model.table.num_embeddings, "generate()")
    settings = (given or model.generation_config).merged(changes)
    rows = _unpadded(prompts, attention_mask, settings)
    sources: list[Any] = [None] * len(rows)
    if isinstance(model, Seq2SeqLM):
        prompts, rows, sources = (*_targets(model, prompts, decoder_ids, settings), rows)
    elif decoder_ids is not None:
        raise InputError("decoder_input_ids are for encoder-decoders; this model has no encoder.")
    seed = settings.seed
    if settings.do_sample and seed is None:
        seed = int(torch.randint(2**31, ()))
    context = model.config.context
    return prompts, [
        Policy(settings, row, context=context, seed=seed, look=look, source=source)
        for row, source in zip(rows, sources, strict=True)
    ]


def _unpadded(prompts: Tensor, attention_mask: Tensor | None, settings: GenerationConfig) -> list[list[int]]:
    """Each row's own tokens."""
    if attention_mask is None:
        if len(prompts) > 1 and settings.pad_token_id is not None and bool((prompts == settings.pad_token_id).any()):
            note(f"the batch holds the padding id {settings.pad_token_id} and no attention_mask was given; pass **tokens.")
        return [row.tolist() for row in prompts]
    if attention_mask.shape != prompts.shape:
        raise InputError(f"attention_mask has shape {tuple(attention_mask.shape)}, the ids {tuple(prompts.shape)}.")
    rows = [row[mask.bool()].tolist() for row, mask in zip(prompts, attention_mask, strict=True)]
    for number, row in enumerate(rows):
        if not row:
            raise InputError(f"row {number} of the batch is all padding. Give it at least one token.")
    return rows


def _targets(
    model: Any, prompts: Tensor, given: Tensor | None, settings: GenerationConfig
) -> tuple[Tensor, list[list[int]]]:
    """How an encoder-decoder's targets begin: as given, or with the start token."""
    if given is None:
        start = settings.decoder_start_token_id
        start = model.config.decoder_start_token_id if start is None else start
        if start is None:
            raise InputError("the model has no decoder_start_token_id, so give one, or decoder_input_ids.")
        given = prompts.new_full((len(prompts), 1), start)
    check_ids(given, model.base_model.table.num_embeddings, "generate()")
    if len(given) != len(prompts):
        raise InputError(f"decoder_input_ids have {len(given)} rows, the source {len(prompts)}.")
    return given, [row.tolist() for row in given]


def _steps(model: Any, policies: list[Policy]) -> Iterator[tuple[int, Step]]:
    from glassformer.engine.plain import Plain

    was_training = model.training
    model.eval()
    try:
        yield from loop(Plain(model), policies)
    finally:
        model.train(was_training)


def _padding(settings: GenerationConfig) -> int:
    if settings.pad_token_id is not None:
        return settings.pad_token_id
    return min(settings.eos, default=0)


class TextStreamer:
    """Prints text as it is generated: `model.generate(**tokens, streamer=TextStreamer(tokenizer))`."""

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, skip_special_tokens: bool = False) -> None:
        self._pieces = tokenizer.pieces(skip_special_tokens)
        self._skip = skip_prompt

    def put(self, value: Tensor) -> None:
        skip, self._skip = self._skip, False
        if not skip:
            for token in value.flatten().tolist():
                print(self._pieces.feed(token), end="", flush=True)

    def end(self) -> None:
        print(self._pieces.finish(), flush=True)
