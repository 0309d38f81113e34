"""A conversation as it goes on: what is asked goes through the chat template with all before it, and the answer streams."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Any

from glassformer.cli import common, settings
from glassformer.cli.chat.conversation import Conversation, Message
from glassformer.cli.chat.wrapping import Wrapping
from glassformer.errors import InputError, SettingError, TemplateError
from glassformer.page.format import many, tame

if TYPE_CHECKING:
    from glassformer.decoding import GenerationConfig
    from glassformer.runtime.model import Model
    from glassformer.runtime.run import Run

LOOK = 10  # candidates of each token of which an account is kept, for /why
PROBE = Message("user", "Hi")  # what settings are tried on
SHORT = 50  # characters that are told of a message
TAKE_BACK = "/undo takes the last exchange back, /clear all of them."


class Session:
    """A model and a conversation with it."""

    def __init__(self, model: Model, conversation: Conversation, *, terminal: bool, as_json: bool = False) -> None:
        self.model = model
        self.terminal = terminal  # whether somebody sits there
        self.as_json = as_json
        self.over = False
        self.check(conversation)
        self.conversation = conversation

    # What the model is given ------------------------------------------------------------------------------------

    @property
    def templated(self) -> bool:
        return self.model.tokenizer.chat_template is not None

    def begin(self, conversation: Conversation) -> Run:
        """The run that answers a conversation's last message."""
        prompt, raw = self._prompt(conversation)
        try:
            return self.model.prepare(prompt, raw=raw, template=conversation.template, **implied(conversation.settings))
        except InputError as error:
            length, context = len(self.model.encode(prompt, raw=raw, **conversation.template)[1]), self.model.config.context
            if length < context:
                raise
            said = f"the conversation has {length:,} tokens, and the model's context holds {context:,}. {TAKE_BACK}"
            raise InputError(said) from error

    def _prompt(self, conversation: Conversation) -> tuple[str | Sequence[Mapping[str, Any]], bool]:
        """What is to be read, and whether as it is."""
        if self.templated:
            return [{"role": one.role, "content": one.content} for one in conversation.messages], False
        for what, there in (("a system message", conversation.system is not None), ("--template", conversation.template)):
            if there:
                raise TemplateError(f"{self.model.name} has no chat template, so {what} has no place. Leave it out.")
        alone = self.model.start is not None  # an encoder reads one text, and the answer goes nowhere
        return (conversation.said[-1].content if alone else continued(conversation.said)), True

    @property
    def manner(self) -> str:
        """What a model without a chat template makes of a conversation; nothing for others."""
        if self.templated:
            return ""
        does = "reads each message by itself" if self.model.start is not None else "goes on with the text, yours and its own"
        return f"This model has no chat template: it {does}."

    def check(self, conversation: Conversation) -> GenerationConfig:
        """Refuse what could not be honoured at the next message; the settings that would be in force then."""
        if not self.as_json and (vain := {"logprobs", "prompt_logprobs"} & conversation.settings.keys()):
            raise SettingError(f"{min(vain)} is told as JSON only. Start with --json for that.")
        system = conversation.messages[: conversation.system is not None]
        begun = self.begin(replace(conversation, messages=(*system, PROBE)))
        self.model.generate(begun)
        return begun.settings

    def change(self, **changes: Any) -> GenerationConfig:
        """Go on otherwise, if that can be."""
        other = replace(self.conversation, **changes)
        found = self.check(other)
        self.conversation = other
        return found

    def take_up(self, other: Conversation) -> None:
        """Go on with a conversation out of a file."""
        name = self.model.name
        named = "" if other.model == name else f" It was held with {other.model}, and goes on with {name}."
        self.change(**{part: getattr(other, part) for part in ("settings", "template", "messages")})
        last = f" The last one: {opening(other.said[-1])}" if other.said else ""
        unanswered = " /retry answers it." if other.said and other.answer is None else ""
        common.note(f"{many(len(other.said), 'message')}.{named}{last}{unanswered}")

    # What it gives ----------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """A message, and its answer."""
        self.answer((*self.conversation.messages, Message("user", text)))

    def answer(self, messages: tuple[Message, ...]) -> None:
        """Answer the last of these; the conversation is then these and the answer. An error leaves it as it was."""
        asked = replace(self.conversation, messages=messages)
        run = self.begin(asked)
        last = self.conversation.answer
        if last is not None and last.run is not None and last.finish != "cancelled" and _same(last.run, run):
            raise SettingError(f"the answer would be the same again: {_cause(run)}")
        with stopping(run) if self.terminal else nullcontext():
            self._stream(run)
            if run.steps:
                self.conversation = replace(asked, messages=(*messages, Message.of(run)))
        if run.steps:
            self._tell(run)
        else:
            common.note("\nstopped before the first word; the message was taken back.")

    def _stream(self, run: Run) -> None:
        pieces = self.model.generate(run, look=LOOK)
        fresh = len(run.ids) - self.model.cached_prefix(run.ids)
        lay = Wrapping.here()
        try:
            with common.waiting(f"reading {many(fresh, 'token')}"):
                first = next(pieces, "")
            for piece in chain([first], pieces):
                if not self.as_json:
                    common.say(piece, lay)
        except KeyboardInterrupt:
            if not self.terminal:
                raise
        finally:
            if not self.as_json and run.steps:
                common.say("\n")

    def _tell(self, run: Run) -> None:
        """The numbers of an answer, beside it."""
        if self.as_json:
            from glassformer.cli.run import summary

            print(json.dumps({**summary(run), "finish": Message.of(run).finish}, ensure_ascii=False), flush=True)
        if run.remedy is not None:
            common.note(f"glass: {run.remedy}")
        dim(counted(run))
        if self.model.start is None and len(run.ids) + len(run.steps) >= self.model.config.context:
            common.note(f"glass: the model's context is full. {TAKE_BACK}")


def implied(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, and what they imply: whoever shapes the draws wants draws, as the options of the command do."""
    return {**({"do_sample": True} if any(map(shapes_draws, settings)) else {}), **settings}


def shapes_draws(name: str) -> bool:
    """Whether a setting has an effect on draws only."""
    from glassformer.decoding import GenerationConfig

    needs = GenerationConfig.about(name).needs if name in GenerationConfig.names() else None
    return needs == "do_sample" or (needs is not None and shapes_draws(needs))


def continued(messages: Sequence[Message]) -> str:
    """A conversation as one text: answers go on where a message ends, and a message begins a line.

    >>> continued([Message("user", "Once"), Message("assistant", " upon a time."), Message("user", "The end")])
    'Once upon a time.\\nThe end'
    """
    text = ""
    for one in messages:
        text += ("\n" if text and one.role == "user" else "") + one.content
    return text


def opening(message: Message) -> str:
    """How a message begins, on one line."""
    line = tame(" ".join(message.content.split()))
    return line if len(line) <= SHORT else f"{line[: SHORT - 1]}…"


def counted(run: Run) -> str:
    """Tokens, speed, seed, and how full the context is."""
    end = settings.ending(run)
    parts = [many(len(run.steps), "token") + (f", {end}" if end != "finished" else "")]
    if run.tokens_per_second:
        parts.append(f"{run.tokens_per_second:.1f} tokens/s")
    if run.seed is not None:
        parts.append(f"seed {run.seed}")
    if run.model.start is None:
        used = (len(run.ids) + len(run.steps)) / run.model.config.context
        parts.append(f"context {used:.0%} full" if used >= 0.005 else "context <1% full")
    return " · ".join(parts)


def dim(text: str) -> None:
    """A note that is no more than a note."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(text, "dim"), soft_wrap=True)


def _same(one: Run, other: Run) -> bool:
    """Whether two runs cannot differ."""
    return one.ids == other.ids and one.settings == other.settings


def _cause(run: Run) -> str:
    if run.settings.do_sample:
        return f"its seed is fixed. /seed {(run.seed or 0) + 1} fixes another, /seed - none."
    return "the best token is taken each time. /set temperature=0.8 draws instead."


@contextmanager
def stopping(run: Run) -> Iterator[None]:
    """Ctrl-C ends the answer, after the token that is being made; before the first one, and pressed again, at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        if run.steps and not run.cancelling.is_set():
            run.cancel()
        elif callable(before):
            before(number, frame)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
