"""Tasks that generate text: text-generation; and from one text to another: translation, summarization."""

from __future__ import annotations

import dataclasses
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassformer.decoding import GenerationConfig, Policy, Recipe, Step
from glassformer.decoding.settings import GENERATE_ONLY, LOGPROB_SETTINGS
from glassformer.decoding.settings_table import NEW_TOKENS
from glassformer.decoding.text_warnings import remedies
from glassformer.ground.errors import GlassError, InputError, InputTypeError, SettingError, needed_for
from glassformer.runtime.start import check_room
from glassformer.tasks.forward import batches
from glassformer.tasks.task import Task, TaskOptions, parse_text
from glassformer.text.chat.template import validated_messages

note = logging.getLogger("glassformer").warning
ROWS = 16  # texts generated together, by default


@dataclass(frozen=True)
class GenerationTaskOptions(TaskOptions):
    settings: Mapping[str, Any] = field(default_factory=dict)  # of GenerationConfig; a call passes each by its own name
    skip_special_tokens: bool = True
    truncation: bool = False  # cut a prompt that leaves no room for an answer
    streamer: Any = None  # receives the ids of each text as they come: an object with put() and end()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.streamer is not None and not (hasattr(self.streamer, "put") and hasattr(self.streamer, "end")):
            raise InputTypeError(f"a streamer has put() and end(), such as TextStreamer(tokenizer); not {self.streamer!r}.")


class GenerationTask(Task):
    """A task over a model that generates."""

    options_type = GenerationTaskOptions

    def _merge_options(self, options: Mapping[str, Any]) -> Any:
        """Generation settings are passed among the task's own options."""
        known = {option.name for option in dataclasses.fields(self.options_type)} - {"settings"}
        task_options = {name: value for name, value in options.items() if name in known}
        defaults = getattr(self, "options", None)
        settings = dict(defaults.settings) if defaults else {}
        settings |= {name: value for name, value in options.items() if name not in known}
        if unused := [name for name in (*GENERATE_ONLY, *LOGPROB_SETTINGS) if settings.get(name)]:
            raise SettingError(f"{unused[0]} is for generate(); a task gives texts. Leave it out.")
        self.model.settings.merged(settings)  # refuses an unknown setting now
        return super()._merge_options({**task_options, "settings": settings})

    @abstractmethod
    def prompt_ids(self, item: Any, options: Any) -> Sequence[int]:
        """An input's token ids."""

    @abstractmethod
    def postprocess(self, item: Any, text: str, options: Any) -> Any:
        """The answer for a generated text."""

    def answer(self, items: Sequence[Any], options: Any) -> Iterable[Any]:
        settings = self.model.settings.merged(options.settings)
        prompts = [self._prompt_or_error(item, settings, options) for item in items]
        valid = [index for index, prompt in enumerate(prompts) if not isinstance(prompt, GlassError)]
        answers: list[Any] = list(prompts)
        settings.draw_seed()
        recipe = self.model.recipe(settings)
        if options.streamer is not None and (settings.num_return_sequences > 1 or settings.num_beams > 1):
            raise InputError("a streamer follows one text as it grows; leave num_beams and num_return_sequences out.")
        finished: list[Policy] = []
        lengths, size = [len(prompts[index]) for index in valid], options.batch_size or ROWS
        one_by_one = ([row] for row in range(len(valid)))
        grouped = batches(lengths, size, padded=True, max_tokens=0) if options.streamer is None else one_by_one
        for rows in grouped:
            batch = [valid[row] for row in rows]
            texts = self.generate([prompts[index] for index in batch], recipe, options.streamer)
            for index, policies in zip(batch, texts, strict=True):
                answers[index] = self.collect_texts(items[index], policies, options)
                finished += policies
        if (advice := remedies(finished)) is not None:
            note(advice)
        return answers

    def collect_texts(self, item: Any, policies: Sequence[Policy], options: Any) -> list[Any]:
        """The answer for the finished texts of one input."""
        texts = [self.tokenizer.decode(policy.chosen, options.skip_special_tokens) for policy in policies]
        return [answer for text in texts for answer in self.postprocess(item, text, options)]

    def truncation(self, options: Any) -> dict[str, Any]:
        """The tokenizer's arguments: an encoder reads all that fits, a decoder leaves room for the answer."""
        if not options.truncation:
            return {}
        context: int = self.model.config.source_context
        new_tokens = options.settings.get("max_new_tokens") or self.model.settings.max_new_tokens or NEW_TOKENS
        room = 0 if self.model.head == "seq2seq" else min(new_tokens, context // 2)
        return {"truncation": True, "max_length": context - room}

    def _prompt_or_error(self, item: Any, settings: GenerationConfig, options: Any) -> Any:
        try:
            return self.fitting_prompt_ids(item, settings, options)
        except GlassError as error:
            return error

    def fitting_prompt_ids(self, item: Any, settings: GenerationConfig, options: Any) -> Sequence[int]:
        """An input's token ids; an error if they leave no room for an answer."""
        ids = self.prompt_ids(item, options)
        check_room(self.model, settings, ids)
        return ids

    def generate(self, prompts: Sequence[Sequence[int]], recipe: Recipe, streamer: Any = None) -> list[list[Policy]]:
        """The finished policies of each prompt, all generated together; several per prompt, if the settings ask for them.

        `streamer`: of the one text that follows one prompt.
        """
        groups = [self.model.policies(recipe, prompt) for prompt in prompts]
        steps = self.model.generate_steps([policy for group in groups for policy in group])
        if streamer is not None:
            steps = self._streamed(steps, groups[0][0].prompt, streamer)
        outcomes = {index: step.outcome for index, step in steps if step.outcome is not None}
        finished = iter([outcomes[index].policy for index in sorted(outcomes)])
        return [[next(finished) for _ in group] for group in groups]

    @staticmethod
    def _streamed(steps: Iterable[tuple[int, Step]], prompt: Sequence[int], streamer: Any) -> Iterator[tuple[int, Step]]:
        """Steps whose ids a streamer receives on the way, after those of the prompt."""
        with needed_for("a streamer"):
            import torch

        streamer.put(torch.tensor(prompt))
        for index, step in steps:
            streamer.put(torch.tensor([step.id]))
            yield index, step
        streamer.end()


@dataclass(frozen=True)
class TextGenerationOptions(GenerationTaskOptions):
    return_full_text: bool = True  # the prompt too, or only what follows it
    continue_final_message: bool | None = None  # continue the last message; by default if it is the assistant's
    tools: Sequence[Any] | None = None  # for the chat template
    documents: Sequence[Mapping[str, Any]] | None = None
    prefix: str = ""  # put before a text; not part of the answer
    add_special_tokens: bool = True


class TextGenerationTask(GenerationTask):
    """The continuation of a text, or the reply to a conversation: `[{"generated_text": …}]`."""

    name = "text-generation"
    about = "the continuation of a text, or a reply"
    heads = ("causal",)
    model_name = "smollm2"
    suggested = "qwen3-0.6b"
    example = "Once upon a time"
    options_type = TextGenerationOptions

    def is_single(self, inputs: Any, options: Any) -> bool:
        return super().is_single(inputs, options) or (
            len(inputs) > 0 and isinstance(inputs[0], Mapping) and "role" in inputs[0]
        )

    def parse_input(self, value: Any, options: TextGenerationOptions) -> Any:
        value = value["messages"] if isinstance(value, Mapping) and "messages" in value else value
        return parse_text(value) if isinstance(value, (str, Mapping)) else validated_messages(value)

    def prompt_ids(self, item: Any, options: TextGenerationOptions) -> Sequence[int]:
        if isinstance(item, str):
            truncation = self.truncation(options)
            encoding = self.tokenizer(options.prefix + item, add_special_tokens=options.add_special_tokens, **truncation)
        else:
            continues = self._continues(item, options)
            encoding = self.tokenizer.apply_chat_template(
                item,
                tools=options.tools,
                documents=options.documents,
                add_generation_prompt=not continues,
                continue_final_message=continues,
                **self.truncation(options),
            )
        ids: Sequence[int] = encoding["input_ids"]
        if not ids:
            raise InputError("the prompt has no tokens. Say something.")
        return ids

    def _continues(self, messages: Sequence[Mapping[str, Any]], options: TextGenerationOptions) -> bool:
        """Whether the answer continues the last message."""
        if options.continue_final_message is not None:
            return options.continue_final_message
        return bool(messages[-1]["role"] == "assistant")

    def postprocess(self, item: Any, text: str, options: TextGenerationOptions) -> list[dict[str, Any]]:
        if not options.return_full_text:
            return [{"generated_text": text}]
        if isinstance(item, str):
            return [{"generated_text": item + text}]
        if self._continues(item, options):
            last = {**item[-1], "content": item[-1]["content"] + text}
            return [{"generated_text": [*item[:-1], last]}]
        return [{"generated_text": [*item, {"role": "assistant", "content": text}]}]


@dataclass(frozen=True)
class TextToTextOptions(GenerationTaskOptions):
    prefix: str | None = None  # the instruction before the text; by default the model's own for the task
    src_lang: str | None = None  # a translation's language, such as en, as the model's tokenizer spells it
    tgt_lang: str | None = None


LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}  # that the original T5 was trained on


class TextToTextTask(GenerationTask):
    """One text rewritten as another: `[{"generated_text": …}]`."""

    name = "text2text-generation"
    about = "a text rewritten as another"
    heads = ("seq2seq",)
    suggested = "t5-small"
    example = "translate English to German: How old are you?"
    options_type = TextToTextOptions
    result_key = "generated_text"

    def prompt_ids(self, item: str, options: TextToTextOptions) -> Sequence[int]:
        prefix = self.prefix(options) if options.prefix is None else options.prefix
        ids: Sequence[int] = self.tokenizer(prefix + item, **self.truncation(options))["input_ids"]
        return ids

    def prefix(self, options: TextToTextOptions) -> str:
        """The model's own instruction for this task, if it has one."""
        return self._config_prefix(self.name) or ""

    def _config_prefix(self, task: str) -> str | None:
        """The prefix that a config names for a task."""
        params = self.model.config.extra_fields.get("task_specific_params")
        entry = params.get(task) if isinstance(params, Mapping) else None
        prefix = entry.get("prefix") if isinstance(entry, Mapping) else None
        return prefix if isinstance(prefix, str) else None

    def postprocess(self, item: str, text: str, options: TextToTextOptions) -> list[dict[str, str]]:
        return [{self.result_key: text}]


class SummarizationTask(TextToTextTask):
    """A summary: `[{"summary_text": …}]`."""

    name = "summarization"
    about = "a summary of a text"
    example = "A long story …"
    result_key = "summary_text"

    def prefix(self, options: TextToTextOptions) -> str:
        return self._config_prefix(self.name) or ("summarize: " if self.model.config.model_type == "t5" else "")


class TranslationTask(TextToTextTask):
    """A translation, `[{"translation_text": …}]`; the task's name may say the languages: translation_en_to_de."""

    name = "translation"
    about = "a text in another language"
    example = "How old are you?"
    result_key = "translation_text"

    def _merge_options(self, options: Mapping[str, Any]) -> Any:
        """A target language that is a token is what the target begins with."""
        merged = super()._merge_options(options)
        if self.tokenizer.languages is None or merged.tgt_lang is None:
            return merged
        first = self.tokenizer.get_lang_id(merged.tgt_lang)
        return dataclasses.replace(merged, settings={**merged.settings, "forced_bos_token_id": first})

    def prompt_ids(self, item: str, options: TextToTextOptions) -> Sequence[int]:
        languages = self.tokenizer.languages
        if languages is None:
            return super().prompt_ids(item, options)
        known = {self.tokenizer.get_lang_id(code): code for code in languages.tokens}
        settings = self.model.settings.merged(options.settings)
        if settings.forced_bos_token_id is None and self.model.decoder_start_token not in known:
            raise InputError(
                f"{self.model.name} translates into many languages: pass tgt_lang=…, or use a task such as "
                f"translation_{languages.source}_to_{next(code for code in known.values() if code != languages.source)}."
            )
        before, after = languages.around(options.src_lang or languages.source)
        cut = self.truncation(options)
        if cut:
            cut["max_length"] -= len(before) + len(after)
        ids = self.tokenizer((options.prefix or "") + item, add_special_tokens=False, **cut)["input_ids"]
        first, last = (self.tokenizer.convert_tokens_to_ids(tokens) for tokens in (before, after))
        return [*first, *ids, *last]

    def prefix(self, options: TextToTextOptions) -> str:
        if options.src_lang is None or options.tgt_lang is None:
            if self.model.config.model_type == "t5":
                raise InputError("T5 needs to know the languages: use a task such as translation_en_to_de.")
            return ""
        if (prefix := self._config_prefix(f"translation_{options.src_lang}_to_{options.tgt_lang}")) is not None:
            return prefix
        if self.model.config.model_type != "t5":
            return ""  # a model for one pair of languages needs no instruction
        for code in (options.src_lang, options.tgt_lang):
            if code not in LANGUAGES:
                raise InputError(
                    f"T5 was not trained on the language {code!r}; it knows {', '.join(LANGUAGES)}. "
                    "Pass prefix=… for a model that was trained further."
                )
        return f"translate {LANGUAGES[options.src_lang]} to {LANGUAGES[options.tgt_lang]}: "
