"""A conversation in progress: each message goes through the chat template with all before it, and the answer is streamed."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Any

from glassformer.cli import bars, common, settings
from glassformer.cli.chat.conversation import Conversation, Message
from glassformer.cli.chat.word_wrap import WordWrapper
from glassformer.ground.errors import InputError, SettingError, TemplateError
from glassformer.page.format import escape_control, pluralize

if TYPE_CHECKING:
    from glassformer.decoding import GenerationConfig
    from glassformer.runtime.model import Model
    from glassformer.runtime.run import Run

LOOK = 10  # candidates of each token that are kept for /why
PROBE = Message("user", "Hi")  # the message that settings are tried on
DEFAULT_ROOM = 256  # tokens for an answer, where no setting says how many it may have
EXCERPT_LENGTH = 50  # characters
HOW_TO_SHORTEN = "/undo takes the last exchange back, /clear all of them; /shift on leaves the oldest out."


class Session:
    """A model and a conversation with it."""

    def __init__(
        self, model: Model, conversation: Conversation, *, terminal: bool, as_json: bool = False, shifts: bool = False
    ) -> None:
        self.model = self._unsteered = model
        self.steering: list[dict[str, Any]] = []
        self.terminal = terminal  # whether stdin is a terminal
        self.as_json = as_json
        self.over = False
        self.shifts = shifts  # whether the oldest messages are left out when the context is full
        self._left_out = 0  # messages of the dialogue that the model reads no more
        self.check(conversation)
        self.conversation = conversation

    # Prompt and settings ----------------------------------------------------------------------------------------

    @property
    def templated(self) -> bool:
        return self.model.tokenizer.chat_template is not None

    def start(self, conversation: Conversation) -> Run:
        """The run that answers a conversation's last message."""
        prompt, raw = self._prompt(conversation)
        try:
            return self.model.start(
                prompt, raw=raw, template=conversation.template, **with_implied_sampling(conversation.settings)
            )
        except InputError as error:
            _, ids = self.model.encode(prompt, raw=raw, template=conversation.template)
            context = self.model.config.context
            if len(ids) < context:
                raise
            raise InputError(
                f"the conversation has {len(ids):,} tokens, and the model's context holds {context:,}. {HOW_TO_SHORTEN}"
            ) from error

    def _shifted(self, conversation: Conversation) -> Conversation:
        """What the model reads of a conversation that is to go on for ever.

        When the context has no more room for an answer, the oldest exchanges are left out, until it is half empty: what is
        left is read anew then, and not with each message.
        """
        if not self.shifts or self.model.decoder_start_token is not None:
            return conversation
        dialogue, kept = conversation.dialogue, conversation.messages[: conversation.system is not None]
        users = [index for index, message in enumerate(dialogue) if message.role == "user"]
        left_out = min(self._left_out, users[-1] if users else 0)

        def from_message(index: int) -> Conversation:
            return replace(conversation, messages=(*kept, *dialogue[index:]))

        context = self.model.config.context
        wanted = self.model.settings.merged(with_implied_sampling(conversation.settings)).max_new_tokens or DEFAULT_ROOM
        if self._length(from_message(left_out)) + min(wanted, context // 4) > context:
            further = (index for index in users if index > left_out)
            left_out = next((at for at in further if self._length(from_message(at)) <= context // 2), max(users, default=0))
            common.note(
                f"glass: the context is full; the model reads no more of the first {pluralize(left_out, 'message')}."
            )
        self._left_out = left_out
        return from_message(left_out)

    def _length(self, conversation: Conversation) -> int:
        """Tokens of a conversation's prompt."""
        prompt, raw = self._prompt(conversation)
        return len(self.model.encode(prompt, raw=raw, template=conversation.template)[1])

    def _prompt(self, conversation: Conversation) -> tuple[str | Sequence[Mapping[str, Any]], bool]:
        """The prompt, and whether it is raw."""
        if self.templated:
            return [{"role": message.role, "content": message.content} for message in conversation.messages], False
        for what, present in (("a system message", conversation.system is not None), ("--template", conversation.template)):
            if present:
                raise TemplateError(f"{self.model.name} has no chat template, so {what} has no place. Leave it out.")
        if self.model.decoder_start_token is not None:  # an encoder reads one text
            return conversation.dialogue[-1].content, True
        return join_messages(conversation.dialogue), True

    @property
    def no_template_note(self) -> str:
        """How a model without a chat template answers; empty for others."""
        if self.templated:
            return ""
        does = (
            "reads each message by itself"
            if self.model.decoder_start_token is not None
            else "continues the text, yours and its own"
        )
        return f"This model has no chat template: it {does}."

    def check(self, conversation: Conversation) -> GenerationConfig:
        """Refuse what the next message could not use; the settings that would be in force then."""
        if not self.as_json and (unseen := {"logprobs", "prompt_logprobs"} & conversation.settings.keys()):
            raise SettingError(f"{min(unseen)} is printed as JSON only. Start with --json for that.")
        system = conversation.messages[: conversation.system is not None]
        run = self.start(replace(conversation, messages=(*system, PROBE)))
        self.model.generate(run)  # which refuses settings too; nothing is generated yet
        return run.settings

    def change(self, **changes: Any) -> GenerationConfig:
        """Change parts of the conversation, if the model allows it; the settings then in force."""
        conversation = replace(self.conversation, **changes)
        settings = self.check(conversation)
        self.conversation = conversation
        return settings

    def steer(self, steering: Sequence[dict[str, Any]]) -> None:
        """Steer the answers from now on by these vectors and features, and by no others."""
        self.model = self._unsteered.steered(steering) if steering else self._unsteered
        self.steering = list(steering)

    def resume(self, saved: Conversation) -> None:
        """Continue a saved conversation."""
        name = self.model.name
        models = "" if saved.model == name else f" It was held with {saved.model}, and continues with {name}."
        self._left_out = 0
        self.change(settings=saved.settings, template=saved.template, messages=saved.messages)
        last = f" The last one: {excerpt(saved.dialogue[-1])}" if saved.dialogue else ""
        unanswered = " /retry answers it." if saved.dialogue and saved.last_answer is None else ""
        common.note(f"{pluralize(len(saved.dialogue), 'message')}.{models}{last}{unanswered}")

    # Answers ----------------------------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        """Answer a new message."""
        self.answer((*self.conversation.messages, Message("user", text)))

    def answer(self, messages: tuple[Message, ...]) -> None:
        """Answer the last of these, which with the answer become the conversation. An error leaves it as it was."""
        conversation = replace(self.conversation, messages=messages)
        run = self.start(self._shifted(conversation))
        last = self.conversation.last_answer
        if last is not None and last.run is not None and last.finish != "cancelled" and _same_input(last.run, run):
            raise SettingError(f"the answer would be the same again: {_why_same(run)}")
        with cancel_on_interrupt(run) if self.terminal else nullcontext():
            self._stream(run)
            if run.steps:
                self.conversation = replace(conversation, messages=(*messages, Message.of(run)))
        if run.steps:
            self._report(run)
        else:
            common.note("\nstopped before the first token; the message was taken back.")

    def continue_answer(self) -> None:
        """Let the last answer go on where it was cut."""
        conversation, answer = self.conversation, self.conversation.last_answer
        if answer is None:
            raise InputError("there is no answer to continue. Say something first.")
        if not answer.is_cut:
            raise InputError("the last answer is finished. /retry generates another.")
        if answer.run is None:
            raise InputError("the last answer was loaded from a file, without its tokens. /retry generates another.")
        run = self.model.start(answer.run, **with_implied_sampling(conversation.settings))
        with cancel_on_interrupt(run) if self.terminal else nullcontext():
            self._stream(run)
            if run.steps:
                whole = replace(
                    run,
                    prompt=answer.run.prompt,
                    prompt_ids=answer.run.prompt_ids,
                    steps=[*answer.run.steps, *run.steps],
                    text=answer.run.text + run.text,
                )
                self.conversation = replace(conversation, messages=(*conversation.messages[:-1], Message.of(whole)))
        if run.steps:
            self._report(run)

    def _stream(self, run: Run) -> None:
        uncached = len(run.prompt_ids) - self.model.cached_prefix(run.prompt_ids)
        wrap = WordWrapper.for_terminal()
        try:
            with bars.prompt_spinner(uncached) as progress:
                pieces = self.model.generate(run, look=LOOK, progress=progress)
                first = next(pieces, "")
            for piece in chain([first], pieces):
                if not self.as_json:
                    common.write_piece(piece, wrap)
        except KeyboardInterrupt:
            if not self.terminal:
                raise
        finally:
            if not self.as_json and run.steps:
                common.write_piece("\n")

    def _report(self, run: Run) -> None:
        """Print an answer's statistics; with --json, the answer too."""
        if self.as_json:
            from glassformer.cli.run_data import run_data

            common.print_json({**run_data(run), "finish": Message.of(run).finish}, flush=True)
        if run.remedy is not None:
            common.note(f"glass: {run.remedy}")
        dim_note(stats_line(run))
        if (
            not self.shifts
            and self.model.decoder_start_token is None
            and len(run.prompt_ids) + len(run.steps) >= self.model.config.context
        ):
            common.note(f"glass: the model's context is full. {HOW_TO_SHORTEN}")


def with_implied_sampling(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with do_sample where one of them is about sampling, as the command's options imply it."""
    return {**({"do_sample": True} if any(map(is_sampling_setting, settings)) else {}), **settings}


def is_sampling_setting(name: str) -> bool:
    """Whether a setting has an effect only when sampling."""
    from glassformer.decoding import GenerationConfig

    needs = GenerationConfig.info(name).needs if name in GenerationConfig.names() else None
    return needs == "do_sample" or (needs is not None and is_sampling_setting(needs))


def join_messages(messages: Sequence[Message]) -> str:
    """A conversation as one text: an answer continues a message's line, and a message begins a new one.

    >>> continued([Message("user", "Once"), Message("assistant", " upon a time."), Message("user", "The end")])
    'Once upon a time.\\nThe end'
    """
    text = ""
    for message in messages:
        text += ("\n" if text and message.role == "user" else "") + message.content
    return text


def excerpt(message: Message) -> str:
    """The beginning of a message, on one line."""
    line = " ".join(message.content.split())
    return line if len(line) <= EXCERPT_LENGTH else f"{line[: EXCERPT_LENGTH - 1]}…"


def stats_line(run: Run) -> str:
    """Tokens, speed, seed, and how full the context is."""
    end = settings.finish_text(run)
    more = " (/continue goes on)" if Message.of(run).is_cut and run.model.decoder_start_token is None else ""
    parts = [pluralize(len(run.steps), "token") + (f", {end}{more}" if end != "finished" else "")]
    if run.tokens_per_second:
        parts.append(f"{run.tokens_per_second:.1f} tokens/s")
    if run.seed is not None:
        parts.append(f"seed {run.seed}")
    if run.model.decoder_start_token is None:
        used = (len(run.prompt_ids) + len(run.steps)) / run.model.config.context
        parts.append(f"context {used:.0%} full" if used >= 0.005 else "context <1% full")
    return " · ".join(parts)


def dim_note(text: str) -> None:
    """A note in a dim color."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    console.print(Text(escape_control(text), "dim"), soft_wrap=not console.is_terminal)


def _same_input(first: Run, second: Run) -> bool:
    """Whether two runs must give the same answer."""
    same_model = first.model is second.model  # steering makes another one of it
    return same_model and first.prompt_ids == second.prompt_ids and first.settings == second.settings


def _why_same(run: Run) -> str:
    if run.settings.do_sample:
        return f"its seed is fixed. /seed {(run.seed or 0) + 1} sets another, /seed - none."
    return "decoding is greedy. /set temperature=0.8 samples instead."


@contextmanager
def cancel_on_interrupt(run: Run) -> Iterator[None]:
    """Ctrl-C ends the answer after the current token; at once before the first one, and when pressed again."""

    def cancel(number: int, frame: FrameType | None) -> None:
        if run.steps and not run.cancelling.is_set():
            run.cancel()
        elif callable(previous):
            previous(number, frame)

    previous = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
