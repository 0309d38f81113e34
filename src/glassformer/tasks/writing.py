"""Tasks whose model writes: text-generation, and from text to text: translation, summarization."""

from __future__ import annotations

import dataclasses
import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassformer.decoding import GenerationConfig, Policy, Recipe
from glassformer.decoding.remedies import remedies
from glassformer.decoding.settings import GENERATE_ONLY, LIKELIHOODS, NEW_TOKENS
from glassformer.errors import GlassError, InputError, SettingError
from glassformer.tasks.reading import batches
from glassformer.tasks.task import Options, Task, checked_text
from glassformer.text.chat.template import checked_messages

note = logging.getLogger("glassformer").warning
ROWS = 16  # texts that are written together


@dataclass(frozen=True)
class WritingOptions(Options):
    settings: Mapping[str, Any] = field(default_factory=dict)  # of GenerationConfig; they are given by their own names
    skip_special_tokens: bool = True
    truncation: bool = False  # cut a prompt that leaves no room for an answer


class Writing(Task):
    """A task over a model that generates."""

    Options = WritingOptions

    def _given(self, options: Mapping[str, Any]) -> Any:
        """The settings of generation stand among the task's own options."""
        known = {one.name for one in dataclasses.fields(self.Options)} - {"settings"}
        own = {name: value for name, value in options.items() if name in known}
        more = {name: value for name, value in options.items() if name not in known}
        before = getattr(self, "options", None)
        settings = {**(before.settings if before else {}), **more}
        if vain := [name for name in (*GENERATE_ONLY, *LIKELIHOODS) if settings.get(name)]:
            raise SettingError(f"{vain[0]} is for generate(); a task gives texts. Leave it out.")
        self.model.settings.merged(settings)  # a setting that means nothing is refused now
        return super()._given({**own, "settings": settings})

    @abstractmethod
    def prompt(self, item: Any, options: Any) -> Sequence[int]:
        """An input's token ids."""

    @abstractmethod
    def said(self, item: Any, text: str, options: Any) -> Any:
        """What is given back for a text that was written."""

    def answer(self, items: Sequence[Any], options: Any) -> Iterable[Any]:
        settings = self.model.settings.merged(options.settings)
        prompts = [self._prompt(item, settings, options) for item in items]
        good = [at for at, prompt in enumerate(prompts) if not isinstance(prompt, GlassError)]
        found: list[Any] = list(prompts)
        settings.draw_seed()
        recipe = self.model.recipe(settings)
        written: list[Policy] = []
        for numbers in batches([len(prompts[at]) for at in good], options.batch_size or ROWS, padded=True, load=0):
            chosen = [good[number] for number in numbers]
            for at, policies in zip(chosen, self.write([prompts[at] for at in chosen], recipe), strict=True):
                texts = [self.tokenizer.decode(policy.chosen, options.skip_special_tokens) for policy in policies]
                found[at] = [answer for text in texts for answer in self.said(items[at], text, options)]
                written += policies
        if (advice := remedies(written)) is not None:
            note(advice)
        return found

    def cut(self, options: Any) -> dict[str, Any]:
        """How the tokenizer cuts: an encoder reads all that fits, a decoder leaves room for what it is to write."""
        if not options.truncation:
            return {}
        context: int = self.model.config.context
        wanted = options.settings.get("max_new_tokens") or self.model.settings.max_new_tokens or NEW_TOKENS
        room = 0 if self.model.head == "seq2seq" else min(wanted, context // 2)
        return {"truncation": True, "max_length": context - room}

    def _prompt(self, item: Any, settings: GenerationConfig, options: Any) -> Any:
        try:
            ids = self.prompt(item, options)
            self.model.check_room(settings, ids)
        except GlassError as error:
            return error
        return ids

    def write(self, prompts: Sequence[Sequence[int]], recipe: Recipe) -> list[list[Policy]]:
        """What follows each prompt, all of them written together; several texts each, if the settings ask for them."""
        groups = [self.model.policies(recipe, prompt) for prompt in prompts]
        steps = self.model.steps([policy for group in groups for policy in group])
        outcomes = {number: step.outcome for number, step in steps if step.outcome is not None}
        texts = iter([outcomes[number].policy for number in sorted(outcomes)])
        return [[next(texts) for _ in group] for group in groups]


@dataclass(frozen=True)
class GenerationOptions(WritingOptions):
    return_full_text: bool = True  # the prompt too, or only what follows it
    continue_final_message: bool | None = None  # go on with the last message; by default if it is the assistant's
    tools: Sequence[Any] | None = None  # for the chat template
    documents: Sequence[Mapping[str, Any]] | None = None
    prefix: str = ""  # put before a text; not given back
    add_special_tokens: bool = True


class TextGeneration(Writing):
    """What follows a text, or the answer to a conversation: `[{"generated_text": …}]`."""

    name = "text-generation"
    about = "what follows a text, or answers a chat"
    heads = ("causal",)
    model_name = "smollm2"
    suggested = "qwen3-0.6b"
    example = "Once upon a time"
    Options = GenerationOptions

    def single(self, inputs: Any, options: Any) -> bool:
        return super().single(inputs, options) or (
            len(inputs) > 0 and isinstance(inputs[0], Mapping) and "role" in inputs[0]
        )

    def check(self, given: Any, options: GenerationOptions) -> Any:
        given = given["messages"] if isinstance(given, Mapping) and "messages" in given else given
        return checked_text(given) if isinstance(given, (str, Mapping)) else checked_messages(given)

    def prompt(self, item: Any, options: GenerationOptions) -> Sequence[int]:
        if isinstance(item, str):
            more = self.cut(options)
            found = self.tokenizer(options.prefix + item, add_special_tokens=options.add_special_tokens, **more)
        else:
            goes_on = self._goes_on(item, options)
            found = self.tokenizer.apply_chat_template(
                item,
                tools=options.tools,
                documents=options.documents,
                add_generation_prompt=not goes_on,
                continue_final_message=goes_on,
                **self.cut(options),
            )
        if not found["input_ids"]:
            raise InputError("the prompt has no tokens. Say something.")
        ids: Sequence[int] = found["input_ids"]
        return ids

    def _goes_on(self, messages: Sequence[Mapping[str, Any]], options: GenerationOptions) -> bool:
        if options.continue_final_message is not None:
            return options.continue_final_message
        return bool(messages[-1]["role"] == "assistant")

    def said(self, item: Any, text: str, options: GenerationOptions) -> list[dict[str, Any]]:
        if not options.return_full_text:
            return [{"generated_text": text}]
        if isinstance(item, str):
            return [{"generated_text": item + text}]
        if self._goes_on(item, options):
            last = {**item[-1], "content": item[-1]["content"] + text}
            return [{"generated_text": [*item[:-1], last]}]
        return [{"generated_text": [*item, {"role": "assistant", "content": text}]}]


@dataclass(frozen=True)
class TextOptions(WritingOptions):
    prefix: str | None = None  # the words that tell the model what to do; by default the model's own for the task
    src_lang: str | None = None  # a translation's language, such as en
    tgt_lang: str | None = None


LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}  # that the original T5 was trained on


class TextToText(Writing):
    """One text made out of another: `[{"generated_text": …}]`."""

    name = "text2text-generation"
    about = "one text made out of another"
    heads = ("seq2seq",)
    suggested = "t5-small"
    example = "translate English to German: How old are you?"
    Options = TextOptions
    result = "generated_text"

    def prompt(self, item: str, options: TextOptions) -> Sequence[int]:
        prefix = self.prefix(options) if options.prefix is None else options.prefix
        ids: Sequence[int] = self.tokenizer(prefix + item, **self.cut(options))["input_ids"]
        return ids

    def prefix(self, options: TextOptions) -> str:
        """The model's own words for this task, if it has any."""
        return self._own(self.name) or ""

    def _own(self, task: str) -> str | None:
        """The prefix that a config names for a task."""
        held = self.model.config.stray.get("task_specific_params")
        entry = held.get(task) if isinstance(held, Mapping) else None
        found = entry.get("prefix") if isinstance(entry, Mapping) else None
        return found if isinstance(found, str) else None

    def said(self, item: str, text: str, options: TextOptions) -> list[dict[str, str]]:
        return [{self.result: text}]


class Summarization(TextToText):
    """A shorter text that says the same: `[{"summary_text": …}]`."""

    name = "summarization"
    about = "a shorter text that says the same"
    example = "A long story …"
    result = "summary_text"

    def prefix(self, options: TextOptions) -> str:
        return self._own(self.name) or ("summarize: " if self.model.config.model_type == "t5" else "")


class Translation(TextToText):
    """The same in another language, `[{"translation_text": …}]`; the task's name may say which: translation_en_to_de."""

    name = "translation"
    about = "the same in another language"
    example = "How old are you?"
    result = "translation_text"

    def prefix(self, options: TextOptions) -> str:
        if options.src_lang is None or options.tgt_lang is None:
            if self.model.config.model_type == "t5":
                raise InputError("a T5 must be told the languages: use the task translation_en_to_de, or its like.")
            return ""
        if (own := self._own(f"translation_{options.src_lang}_to_{options.tgt_lang}")) is not None:
            return own
        if self.model.config.model_type != "t5":
            return ""  # a model of one pair of languages needs no word about it
        for code in (options.src_lang, options.tgt_lang):
            if code not in LANGUAGES:
                raise InputError(
                    f"T5 was not trained on the language {code!r}; it knows {', '.join(LANGUAGES)}. "
                    "Say prefix=… for one that was trained further."
                )
        return f"translate {LANGUAGES[options.src_lang]} to {LANGUAGES[options.tgt_lang]}: "
