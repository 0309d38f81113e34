"""The short face: `load` a model by name, then `chat`, `stream` or `watch`.

A `Model` here is tokenizer, executor and settings in one object. It needs no torch by itself; the executor may.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from glassformer.blueprints import Blueprint, Head, blueprint
from glassformer.candidates import top
from glassformer.checkpoint.locate import Progress
from glassformer.checkpoint.sentence import Sentence
from glassformer.decoding import GenerationConfig, Look, Policy, Recipe, Step, policies, write
from glassformer.decoding.remedies import remedy
from glassformer.decoding.settings import FAMILIAR, LIKELIHOODS, empty_prompt
from glassformer.decoding.stopping import cancelled
from glassformer.engine.protocol import Executor
from glassformer.errors import (
    InputError,
    InputTypeError,
    SettingError,
    TemplateError,
    refuse,
)
from glassformer.executing import Choice
from glassformer.observe.journey import TOP, Candidate, Journey, candidates, journey, next_token
from glassformer.observe.vocabulary import Vocabulary
from glassformer.opening import Opened, open_model
from glassformer.running import Growing, Run
from glassformer.text import Tokenizer

note = logging.getLogger("glassformer").warning
Prompt: TypeAlias = str | Sequence[Mapping[str, Any]]


def load(
    name: str | os.PathLike[str] = "smollm2",
    *,
    executor: Literal["auto", "plain", "cpu"] = "auto",
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    progress: Progress | None = None,
    **unknown: Any,
) -> Model:
    """A model by path, hub id or catalogue name, ready to talk.

    Args:
        name: 'smollm2', 'Qwen/Qwen3-0.6B', './folder', './file.gguf'.
        executor: how it runs: 'cpu' is native code, 'plain' is PyTorch; 'auto' takes the best that this machine has.
        dtype: 'float32', 'bfloat16', …, which PyTorch is to compute in; by default as stored.
        weights: a kind to pack the weights of a folder in: 'q8_0', 'q4_1', 'q4_k', …; packed once, and kept in the cache.
        cache: what the CPU engine keeps keys and values in: 'f32', 'f16', 'bf16' or 'q8'; by default as fits the weights.
        progress: called as (what, bytes so far, bytes in all) while something is fetched or packed.
    """
    refuse(unknown, load)
    if not isinstance(name, (str, os.PathLike)):
        raise InputTypeError(f"a model's name is text or a path, not {type(name).__name__}.")
    dtype = dtype if dtype is None else str(dtype).removeprefix("torch.")  # torch.bfloat16 is as good as its name
    choice = Choice(executor, dtype, cache)
    opened = open_model(name, progress=progress)
    if weights is not None:
        from glassformer.quantising import requantised

        opened = replace(opened, given=requantised(opened, weights, progress))
    _ = opened.config, opened.tensors  # what is broken is said now, not at the first word
    return Model(opened, choice)


def _flat(ids: Any) -> tuple[int, ...]:
    """Token ids, of whatever shape they were given in."""
    found = np.asarray(ids)
    if found.size == 0 or found.dtype.kind not in "iu":
        raise InputError(f"negative_prompt_ids are token ids, at least one, not {ids!r}.")
    return tuple(found.reshape(-1).tolist())


@dataclass(frozen=True)
class Given:
    """A model that is in memory already, where a checkpoint would be."""

    module: Any
    tokenizer: Tokenizer
    sentence: Sentence = field(default_factory=Sentence)

    @property
    def name(self) -> str:
        return type(self.module).__name__

    @property
    def config(self) -> Any:
        return self.module.config

    @property
    def settings(self) -> GenerationConfig:
        found: GenerationConfig = self.module.generation_config
        return found

    @property
    def head(self) -> Head:
        return getattr(self.module, "head", "base")

    @property
    def kind(self) -> str:
        return str(self.module.dtype).removeprefix("torch.")

    @property
    def packed(self) -> bool:
        return False

    def blueprint(self) -> Blueprint:
        return blueprint(self.config, self.head)


class Model:
    """A loaded model: tokenizer, executor, settings. Made by `load`."""

    def __init__(self, opened: Opened | Given, choice: Choice | None = None) -> None:
        self.opened = opened
        self._choice = choice or Choice()
        self._tokenizer: Tokenizer | None = None  # another than its own

    @classmethod
    def around(cls, module: Any, tokenizer: Tokenizer) -> Model:
        """A model of an Auto class, and its tokenizer, as one of these."""
        return cls(Given(module.eval(), tokenizer))

    def with_tokenizer(self, tokenizer: Tokenizer) -> Model:
        """The same model, reading with another tokenizer."""
        other = copy(self)  # whatever is loaded is shared
        other._tokenizer = tokenizer
        return other

    @property
    def name(self) -> str:
        return self.opened.name

    @property
    def config(self) -> Any:
        return self.opened.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.opened.tokenizer if self._tokenizer is None else self._tokenizer

    @property
    def head(self) -> Head:
        """What its last layer is for."""
        return self.opened.head

    @property
    def sentence(self) -> Sentence:
        """How its states become one vector per text."""
        return self.opened.sentence

    def label(self, number: int) -> str:
        """What a classifier's label is called."""
        names: Mapping[int, str] = self.config.id2label or {}
        return names.get(number, f"LABEL_{number}")

    @property
    def settings(self) -> GenerationConfig:
        """The model's own generation settings."""
        return self.opened.settings

    @cached_property
    def blueprint(self) -> Blueprint:
        return self.opened.blueprint()

    @property
    def vocabulary(self) -> Vocabulary:
        """How many tokens were trained, are listed, and are scored."""
        return Vocabulary.of(self.tokenizer, self.blueprint)

    @property
    def writes(self) -> bool:
        """Whether it generates text; an encoder only reads."""
        return self.head in ("causal", "seq2seq")

    @property
    def start(self) -> int | None:
        """What an encoder-decoder's target begins with; None for a model without an encoder."""
        if self.head != "seq2seq":
            return None
        start = self.settings.decoder_start_token_id  # or its config's
        if start is None:
            raise InputError(f"{self.name}: neither its config nor its settings have a decoder_start_token_id.")
        return start

    @cached_property
    def module(self) -> Any:
        """The PyTorch model behind the plain executor, with the familiar face."""
        if isinstance(self.opened, Given):
            return self.opened.module
        from glassformer.auto import made_for
        from glassformer.loading import chosen_dtype, load

        cls = made_for(self.config.model_type, self.head)
        return load(cls, self.opened, chosen_dtype(self._choice.dtype)).requires_grad_(False)

    @cached_property
    def executor(self) -> Executor:
        """What runs the model; made when first needed."""
        self._check_writes()
        native = None if isinstance(self.opened, Given) else self._choice.engine(self.opened, self.blueprint)
        if native is not None:
            return native
        from glassformer.engine.plain import Plain

        return Plain(self.module)

    @cached_property
    def reader(self) -> Any:
        """The CPU engine over the model's base, which turns texts to states; None where PyTorch runs it."""
        known = isinstance(self.opened, Given) or "module" in vars(self)
        return None if known else self._choice.reader(cast(Opened, self.opened))

    def _check_writes(self) -> None:
        if not self.writes:
            encoder = self.config.natural == "masked"
            what = "an encoder" if encoder else f"a model with a {self.head} head"
            raise InputError(
                f"{self.name} is {what} ({self.config.model_type}): it reads text and writes none. "
                "Look at what it makes of a text: glass look."
            )

    # Prompts ----------------------------------------------------------------------------------------------------

    def render(self, prompt: Prompt, *, raw: bool = False, system: str | None = None, **variables: Any) -> str:
        """The text that the model will see: through the chat template if it has one, unless `raw`."""
        messages: Sequence[Mapping[str, Any]]
        if isinstance(prompt, str):
            if not prompt:
                raise InputError("the prompt is empty. Say something.")
            if raw and system is not None:
                raise InputError("a raw prompt has no place for a system message. Leave one of the two out.")
            if raw:
                return prompt
            messages = [{"role": "user", "content": prompt}]
        elif isinstance(prompt, Sequence):
            messages = cast(Sequence[Mapping[str, Any]], prompt)
        else:
            raise InputTypeError(f"a prompt is text, or a list of messages, not {type(prompt).__name__}.")
        if raw:
            raise InputTypeError("a raw prompt is text; messages need the chat template.")
        if system is not None and any(message.get("role") == "system" for message in messages):
            raise InputError("the conversation has a system message already. Leave out system=….")
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        if self.tokenizer.chat_template is None:
            if isinstance(prompt, str) and system is None:
                return prompt
            raise TemplateError(f"{self.name} has no chat template, so it takes plain text only.")
        if "enable_thinking" in self.tokenizer.template().variables:
            variables.setdefault("enable_thinking", False)
        rendered: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)
        return rendered

    def encode(
        self, prompt: Prompt, *, raw: bool = False, system: str | None = None, **variables: Any
    ) -> tuple[str, tuple[int, ...]]:
        """The rendered prompt and its ids."""
        text = self.render(prompt, raw=raw, system=system, **variables)
        templated = not raw and self.tokenizer.chat_template is not None
        ids = tuple(self.tokenizer(text, add_special_tokens=not templated)["input_ids"])
        if not ids:
            raise InputError("the prompt has no tokens. Say something.")
        return text, ids

    # Answers ----------------------------------------------------------------------------------------------------

    def chat(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> str:
        """The answer to a text or a conversation. Settings are those of GenerationConfig."""
        return "".join(self.stream(prompt, raw=raw, system=system, template=template, **settings))

    def stream(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        """The answer piece by piece, as soon as each piece is whole text."""
        if vain := [name for name in LIKELIHOODS if settings.get(name) is not None]:
            raise SettingError(f"{vain[0]} has no place in a text. Here watch(…) keeps all there is: run.steps.")
        run = self.begin(prompt, raw=raw, system=system, template=template, **settings)
        return self._streamed(run)

    def watch(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        look: int | Literal["all"] = TOP,
        **settings: Any,
    ) -> Run:
        """The same text as `chat` gives, and everything that made it: steps, candidates, the journey.

        `look`: for how many candidates of each step it is kept what the rules did to them; 'all' keeps the vocabulary.
        """
        run = self.begin(prompt, raw=raw, system=system, template=template, **settings)
        for _ in self.follow(run, look=look):
            pass
        self._say([run])
        return run

    def runs(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        look: int | Literal["all"] = 0,
        **settings: Any,
    ) -> list[Run]:
        """Several texts for one prompt: `num_return_sequences` of them, drawn, or the best of as many beams."""
        run = self._begun(prompt, settings, raw=raw, system=system, template=template)
        runs = [run, *(replace(run, steps=[], prompt_steps=[]) for _ in range(run.settings.num_return_sequences - 1))]
        for _ in self._written(runs, look):
            pass
        self._say(runs)
        return runs

    def _streamed(self, run: Run) -> Generator[str, None, None]:
        yield from self.follow(run)
        self._say([run])

    @staticmethod
    def _say(runs: Sequence[Run]) -> None:
        """Say in one line what may be wrong with a text, and what to try."""
        if (word := next((run.remedy for run in runs if run.remedy is not None), None)) is not None:
            note(word)

    def begin(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Run:
        """A run that has its prompt and settings, and nothing generated yet; `follow` it."""
        one = {"num_return_sequences": 1, **settings}  # whatever the model's file says
        return self._begun(prompt, one, raw=raw, system=system, template=template)

    def _begun(
        self,
        prompt: Prompt,
        settings: Mapping[str, Any],
        *,
        raw: bool,
        system: str | None,
        template: Mapping[str, Any] | None,
    ) -> Run:
        self._check_writes()
        variables = template or {}
        if vain := [name for name in FAMILIAR if settings.get(name)]:
            raise SettingError(f"{vain[0]} is for generate(). Here watch(…) keeps all there is: run.steps.")
        merged = self.settings.merged(settings)
        merged.draw_seed()
        recipe = self.recipe(merged)
        text, ids = self.encode(prompt, raw=raw, system=system, **variables)
        self.room(merged, ids)  # said now, before anything is loaded
        negative = None if merged.negative_prompt_ids is None else _flat(merged.negative_prompt_ids)
        if merged.negative_prompt == "":
            negative = (empty_prompt(merged),)
        elif merged.negative_prompt is not None:
            _, negative = self.encode(merged.negative_prompt, raw=raw, system=system, **variables)
        run = Run(self, text, ids, recipe, merged.seed if merged.do_sample else None, negative)
        run.recipe = replace(recipe, stops=(*recipe.stops, cancelled(run.ending)))
        return run

    def recipe(self, settings: GenerationConfig) -> Recipe:
        """Settings made ready for choosing among this model's tokens."""
        return Recipe.of(settings, self.tokenizer, self.config.vocab_size)

    def policies(
        self,
        recipe: Recipe,
        ids: Sequence[int],
        *,
        seed: int | None = None,
        look: Look | None = None,
        negative: Sequence[int] | None = None,
    ) -> list[Policy]:
        """How texts are written after these ids; an encoder-decoder reads them, and its texts begin with the start."""
        source, prompt = (None, ids) if self.start is None else (ids, (self.start,))
        more = {"context": self.config.context, "seed": seed, "source": source, "negative": negative}
        return policies(recipe, prompt, look=look or Look(), **more)

    def write(self, written: Sequence[Policy]) -> Iterator[tuple[int, Step]]:
        """Run policies of one recipe to their ends; (which, step) as tokens come."""
        return write(self.executor, written, self._helper(written[0].settings.assistant_model))

    def _helper(self, given: Any) -> Executor | None:
        """The executor of a model that drafts: one of these, one of an Auto class, or a name."""
        if given is None:
            return None
        helper = load(given) if isinstance(given, (str, os.PathLike)) else given
        helper = helper if isinstance(helper, Model) else Model.around(helper, self.tokenizer)
        if helper.head != self.head or helper.config.vocab_size != self.config.vocab_size:
            raise SettingError(
                f"assistant_model must have the same vocabulary and kind as {self.name}: {helper.name} is "
                f"{helper.config.model_type} of {helper.config.vocab_size} tokens, not {self.config.vocab_size}."
            )
        return helper.executor

    def follow(self, run: Run, look: int | Literal["all"] = 0) -> Iterator[str]:
        """Generate a run's text, filling it in as it grows."""
        if run.settings.num_return_sequences > 1:
            count = run.settings.num_return_sequences
            raise SettingError(f"num_return_sequences={count} gives several texts. Leave it out, or call runs(…) in Python.")
        return (piece for _, piece in self._written([run], look) if piece)

    def _written(self, runs: Sequence[Run], look: int | Literal["all"]) -> Iterator[tuple[int, str]]:
        """Write the texts of one prompt; (which, piece) as they grow."""
        first = runs[0]
        written = self.policies(first.recipe, first.ids, seed=first.seed, look=Look.of(look), negative=first.negative)
        texts = [Growing(run, self.tokenizer) for run in runs]
        steps = self.write(written)
        started = time.perf_counter()
        for number, step in steps:
            yield number, texts[number].add(step, time.perf_counter() - started)
            if step.finish:
                run, policy = runs[number], written[number]
                run.remedy, run.score, run.prompt_steps = remedy(policy), policy.score, policy.behind

    def look(
        self, prompt: Prompt, *, raw: bool = False, system: str | None = None, template: Mapping[str, Any] | None = None
    ) -> Journey:
        """A prompt's journey to the next token, without generating more than that."""
        return self.journey_of(*self.encode(prompt, raw=raw, system=system, **(template or {})))

    def journey_of(self, text: str, ids: Sequence[int]) -> Journey:
        """The journey of an encoded prompt; one pass."""
        start, answer = self.start, "the next token"
        if start is not None:
            answer = "the target's first token"
        if self.writes:
            found = next_token(self.tokenizer, self.executor, ids, start)
        else:
            answer, found = self._read(ids)
        return journey(self.tokenizer, self.blueprint, text, ids, found, name=self.name, answer=answer, start=start)

    def _read(self, ids: Sequence[int]) -> tuple[str, tuple[Candidate, ...]]:
        """What a head that does not write says of a text: of its first masked token, or of the whole.

        Where there is nothing to choose from, a word on where the answer is.
        """
        import torch

        head, mask = self.head, self.tokenizer.mask_token_id
        with torch.inference_mode():
            scores: Any = getattr(self.module(torch.tensor([list(ids)])), "logits", None)
        if head == "masked" and mask in ids:
            hidden = scores[0, list(ids).index(mask)]
            return "the masked token", candidates(self.tokenizer, top(hidden.float().numpy(), TOP))
        if head == "masked":
            return f"Put {self.tokenizer.mask_token} into the text to see what this model would fill in.", ()
        if head == "sequence":
            best = top(scores[0].float().numpy(), TOP)
            rows = zip(best.ids, best.scores, best.probabilities, strict=True)
            return "the label", tuple(
                Candidate(int(n), self.label(int(n)), float(score), float(share)) for n, score, share in rows
            )
        where = "the states of its tokens" if head == "base" else 'scores for every token: at["scores"]'
        return f"This model ends with {where}.", ()

    def room(self, settings: GenerationConfig, ids: Sequence[int]) -> None:
        """Refuse a prompt that leaves no room; an encoder-decoder's has the encoder to itself."""
        context = self.config.context
        settings.room(len(ids) if self.start is None else 1, context)
        if len(ids) > context:
            raise InputError(f"a text of {len(ids)} tokens does not fit into the model's context of {context}. Shorten it.")

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.config.model_type}, {self.blueprint.parameters:,} parameters)"
