"""A conversation's messages and settings; saved to files and loaded from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.ground.errors import InputError
from glassformer.ground.files import write_text
from glassformer.ground.typecheck import matches_type, type_words
from glassformer.page.format import to_json
from glassformer.runtime.run import Run
from glassformer.see.view import View

if TYPE_CHECKING:
    from glassformer.page.document import Page

ROLES = {"system": "System", "user": "You", "assistant": "Answer"}  # and how they are called in a file for people
CUT_SHORT = ("cancelled", "length", "time")


@dataclass(frozen=True)
class Message:
    """A message; an answer also has how it was generated."""

    role: str
    content: str
    finish: str | None = None  # why an answer ended: "eos", "length", "cancelled" when it was stopped, …
    seed: int | None = None  # that it was sampled with
    tokens: int | None = None
    run: Run | None = field(default=None, compare=False, repr=False, metadata={"stored": False})

    @classmethod
    def of(cls, run: Run) -> Message:
        """An answer; one that was interrupted counts as cancelled."""
        finish = "cancelled" if run.finish is None else run.finish.value
        return cls("assistant", run.text, finish, run.seed, len(run.steps), run)

    @property
    def is_cut(self) -> bool:
        """Whether an answer was cut short, so that it can go on."""
        return self.finish in CUT_SHORT

    @property
    def speaker(self) -> str:
        """The role in words, and whether the message was cut short."""
        return f"{ROLES[self.role]} (cut)" if self.is_cut else ROLES[self.role]


@dataclass(frozen=True)
class Conversation(View):
    """Messages, settings and template variables."""

    SCHEMA = "glassformer.chat/1"

    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # that override the model's own
    template: Mapping[str, Any] = field(default_factory=dict)  # the chat template's variables
    messages: tuple[Message, ...] = ()  # a system message comes first

    @property
    def system(self) -> str | None:
        return self.messages[0].content if self.messages and self.messages[0].role == "system" else None

    @property
    def dialogue(self) -> tuple[Message, ...]:
        """All but the system message."""
        return self.messages[self.system is not None :]

    @property
    def last_user_index(self) -> int:
        """The index of the last user message; the number of messages if there is none."""
        users = (index for index, message in enumerate(self.messages) if message.role == "user")
        return max(users, default=len(self.messages))

    @property
    def last_answer(self) -> Message | None:
        """The last message, if it is an answer."""
        return self.messages[-1] if self.messages and self.messages[-1].role == "assistant" else None

    # Files ------------------------------------------------------------------------------------------------------

    def page(self, everything: bool = False) -> Page:
        from glassformer.page.document import Heading, Page, PagePart, Preformatted

        parts: list[PagePart] = []
        for message in self.messages:
            parts += [Heading(message.speaker), Preformatted(message.content)]
        return Page(f"A conversation with {self.model}", tuple(parts))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it: .json to continue it another time; .md, .txt or .html for people."""
        from glassformer.page.html import html_document

        forms = {
            ".json": lambda: to_json(self.to_dict(), allow_nan=False, indent=1) + "\n",
            ".md": lambda: "\n\n".join(
                [f"# A conversation with {self.model}", *(f"## {turn.speaker}\n\n{turn.content}" for turn in self.messages)]
            ) + "\n",
            ".txt": lambda: "\n\n".join(f"{turn.speaker}:\n{turn.content}" for turn in self.messages) + "\n",
            ".html": lambda: html_document(self.page()),
        }  # fmt: skip
        target = Path(path).expanduser()
        if target.suffix not in forms:
            raise InputError(f"{target.name!r} has no known suffix. Use one of {', '.join(forms)}.")
        write_text(target, forms[target.suffix]())
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Conversation:
        """A conversation that `save` wrote as .json. A message needs only role and content."""
        name = os.fspath(path)
        try:
            raw = json.loads(Path(path).expanduser().read_text("utf-8-sig"))
        except OSError as error:
            raise InputError(f"{name!r} cannot be read: {error.strerror or error}.") from error
        except (ValueError, RecursionError) as error:  # not JSON, or not even text
            raise InputError(f"{name!r} is not JSON: {error}.") from error
        if not isinstance(raw, dict) or raw.get("schema") != cls.SCHEMA:
            raise InputError(f"{name!r} is not a saved conversation: its schema must be {cls.SCHEMA!r}.")
        types = {"model": str, "settings": Mapping[str, Any], "template": Mapping[str, Any], "messages": list[Any]}
        _check_fields(raw, types, f"{name!r}: its")
        raw = {"settings": {}, "template": {}, **raw}
        messages = tuple(_message(message, number, name) for number, message in enumerate(raw["messages"], 1))
        return cls(raw["model"], raw["settings"], raw["template"], messages)


def _message(raw: Any, number: int, name: str) -> Message:
    """A message of a file."""
    where = f"{name!r}: message {number}"
    if not isinstance(raw, dict):
        raise InputError(f"{where} must be an object with a role and a content.")
    types: dict[str, Any] = {"role": str, "content": str, "finish": str | None, "seed": int | None, "tokens": int | None}
    _check_fields(raw, types, f"{where}: its")
    if raw["role"] not in ROLES or (raw["role"] == "system" and number > 1):
        raise InputError(f"{where} is by {raw['role']!r}; it must be by 'user' or 'assistant', or the first by 'system'.")
    return Message(raw["role"], raw["content"], raw.get("finish"), raw.get("seed"), raw.get("tokens"))


def _check_fields(raw: Mapping[str, Any], types: Mapping[str, Any], where: str) -> None:
    """Refuse a field that is missing, unless it is optional, or of another type."""
    optional = ("settings", "template", "finish", "seed", "tokens")
    for name, kind in types.items():
        if name not in raw and name in optional:
            continue
        if name not in raw or not matches_type(raw[name], kind):
            raise InputError(f"{where} {name} must be {FIELD_WORDS.get(name) or type_words(kind)}.")


FIELD_WORDS = {"settings": "an object", "template": "an object", "messages": "a list"}
