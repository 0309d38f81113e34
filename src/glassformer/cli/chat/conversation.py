"""What was said so far, by whom, and under which settings; written to files and read from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.errors import InputError
from glassformer.runtime.run import Run
from glassformer.typecheck import fits, words
from glassformer.views.view import View

if TYPE_CHECKING:
    from glassformer.page.document import Page

ROLES = {"system": "System", "user": "You", "assistant": "Answer"}  # and how they are called in a file for people
BROKEN_OFF = ("cancelled", "length", "time")


@dataclass(frozen=True)
class Message:
    """What one of the two said; of an answer, also how it came to be."""

    role: str
    content: str
    finish: str | None = None  # why an answer ended: "eos", "length", "cancelled" when it was stopped, …
    seed: int | None = None  # what it was drawn with
    tokens: int | None = None
    run: Run | None = field(default=None, compare=False, repr=False, metadata={"told": False})

    @classmethod
    def of(cls, run: Run) -> Message:
        """An answer; one that was broken off counts as stopped."""
        finish = "cancelled" if run.finish is None else run.finish.value
        return cls("assistant", run.text, finish, run.seed, len(run.steps), run)

    @property
    def speaker(self) -> str:
        """Who says it, for people; and whether it is all there."""
        return f"{ROLES[self.role]} (cut)" if self.finish in BROKEN_OFF else ROLES[self.role]


@dataclass(frozen=True)
class Conversation(View):
    """Messages and what goes with them. A change gives another one."""

    SCHEMA = "glassformer.chat/1"

    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that were set by hand, over the model's own
    template: Mapping[str, Any] = field(default_factory=dict)  # the chat template's variables
    messages: tuple[Message, ...] = ()  # a system message, if there is one, comes first

    @property
    def system(self) -> str | None:
        return self.messages[0].content if self.messages and self.messages[0].role == "system" else None

    @property
    def said(self) -> tuple[Message, ...]:
        """All but the system message."""
        return self.messages[self.system is not None :]

    @property
    def question(self) -> int:
        """Where the last exchange begins."""
        return max((at for at, one in enumerate(self.messages) if one.role == "user"), default=len(self.messages))

    @property
    def answer(self) -> Message | None:
        """The last message, where it is an answer."""
        return self.messages[-1] if self.messages and self.messages[-1].role == "assistant" else None

    # Files ------------------------------------------------------------------------------------------------------

    def page(self, everything: bool = False) -> Page:
        from glassformer.page.document import Heading, Page, Part, Passage
        from glassformer.page.format import tame

        parts: list[Part] = []
        for one in self.messages:
            parts += [Heading(one.speaker), Passage(tame(one.content))]
        return Page(f"A conversation with {self.model}", tuple(parts))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it: .json to go on with it another time; .md, .txt or .html for people."""
        from glassformer.page.html import document

        forms = {
            ".json": lambda: json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n",
            ".md": lambda: "\n\n".join(
                [f"# A conversation with {self.model}", *(f"## {one.speaker}\n\n{one.content}" for one in self.messages)]
            ) + "\n",
            ".txt": lambda: "\n\n".join(f"{one.speaker}:\n{one.content}" for one in self.messages) + "\n",
            ".html": lambda: document(self.page()),
        }  # fmt: skip
        target = Path(path).expanduser()
        if target.suffix not in forms:
            raise InputError(
                f"{target.name!r} does not say in which form it is to be written. End it in {', '.join(forms)}."
            )
        try:
            target.write_text(forms[target.suffix](), "utf-8")
        except OSError as error:
            raise InputError(f"{str(target)!r} cannot be written: {error.strerror or error}.") from error
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Conversation:
        """What `save` wrote as .json. Of a message only role and content must be there."""
        name = os.fspath(path)
        try:
            raw = json.loads(Path(path).expanduser().read_text("utf-8-sig"))
        except OSError as error:
            raise InputError(f"{name!r} cannot be read: {error.strerror or error}.") from error
        except ValueError as error:  # not JSON, or not even text
            raise InputError(f"{name!r} is not JSON: {error}.") from error
        if not isinstance(raw, dict) or raw.get("schema") != cls.SCHEMA:
            raise InputError(f"{name!r} is not a saved conversation: its schema must be {cls.SCHEMA!r}.")
        kinds = {"model": str, "settings": Mapping[str, Any], "template": Mapping[str, Any], "messages": list[Any]}
        _check(raw, kinds, f"{name!r}: its")
        raw = {"settings": {}, "template": {}, **raw}
        messages = tuple(_message(one, number, name) for number, one in enumerate(raw["messages"], 1))
        return cls(raw["model"], raw["settings"], raw["template"], messages)


def _message(raw: Any, number: int, name: str) -> Message:
    """One of a file's messages."""
    where = f"{name!r}: message {number}"
    if not isinstance(raw, dict):
        raise InputError(f"{where} must be an object with a role and a content.")
    kinds: dict[str, Any] = {"role": str, "content": str, "finish": str | None, "seed": int | None, "tokens": int | None}
    _check(raw, kinds, f"{where}: its")
    if raw["role"] not in ROLES or (raw["role"] == "system" and number > 1):
        raise InputError(f"{where} is by {raw['role']!r}; it must be by 'user' or 'assistant', or the first by 'system'.")
    return Message(raw["role"], raw["content"], raw.get("finish"), raw.get("seed"), raw.get("tokens"))


def _check(raw: Mapping[str, Any], kinds: Mapping[str, Any], where: str) -> None:
    """Refuse what is missing, unless it may be, and what is of another kind."""
    optional = ("settings", "template", "finish", "seed", "tokens")
    for name, kind in kinds.items():
        if name not in raw and name in optional:
            continue
        if name not in raw or not fits(raw[name], kind):
            raise InputError(f"{where} {name} must be {NAMED.get(name) or words(kind)}.")


NAMED = {"settings": "an object", "template": "an object", "messages": "a list"}
