"""What begins with a slash: commands to the chat itself, each a function; its docstring is its line in /help."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glassformer.cli import common
from glassformer.cli.chat.conversation import Conversation, Message
from glassformer.cli.chat.places import listed, texts, which
from glassformer.cli.chat.session import Session, opening, shapes_draws
from glassformer.decoding import GenerationConfig
from glassformer.decoding.settings import CALL
from glassformer.errors import InputError, SettingError, nearest
from glassformer.page.document import Column, Page, Row, Table, Words
from glassformer.page.format import many, share, tame, visible

if TYPE_CHECKING:
    from glassformer.runtime.run import Run

KEYS = '''Ctrl-C stops an answer. For several lines end each in \\, or put """ around them.'''
ALIASES = {"exit": "quit", "bye": "quit", "?": "help"}


@dataclass(frozen=True)
class Command:
    takes: str  # what may follow it
    does: str
    act: Callable[[Session, str], None]


COMMANDS: dict[str, Command] = {}


def command(takes: str = "") -> Callable[[Callable[[Session, str], None]], Callable[[Session, str], None]]:
    def listed(act: Callable[[Session, str], None]) -> Callable[[Session, str], None]:
        COMMANDS[act.__name__.rstrip("_")] = Command(takes, (act.__doc__ or "").strip(), act)
        return act

    return listed


def obey(session: Session, line: str) -> None:
    """Do what a line with a slash says."""
    name, rest = [*line[1:].split(None, 1), "", ""][:2]
    found = COMMANDS.get(ALIASES.get(name, name))
    if found is None:
        near = nearest(f"/{name}", (f"/{known}" for known in COMMANDS))
        raise InputError(f"there is no command '/{name}'.{near} /help lists them; a blank before the slash sends it.")
    if rest.strip() and not found.takes:
        raise InputError(f"/{name} takes nothing after it.")
    if not rest.strip() and found.takes == "FILE":
        raise InputError(f"/{name} needs a file's name, such as /{name} talk.json.")
    found.act(session, rest.strip())


def completed(line: str) -> list[str]:
    """What the last word of a line may become."""
    if line.startswith("/set "):
        return [f"{name}=" for name in sorted(GenerationConfig.names()) if name.startswith(line[5:].lstrip())]
    return [f"/{name}" + (" " if COMMANDS[name].takes else "") for name in COMMANDS if f"/{name}".startswith(line or " ")]


def progress(session: Session, text: str) -> None:
    """What was asked for, on stdout; where only JSON belongs there, beside it."""
    (common.note if session.as_json else print)(text)


def draw(session: Session, page: Page) -> None:
    from rich.console import Console

    from glassformer.page.terminal import Drawn

    Console(stderr=session.as_json).print(Drawn(page))


# Why ----------------------------------------------------------------------------------------------------------------


@command("[N|WORD]")
def why(session: Session, rest: str) -> None:
    """why a token was chosen: number N, a WORD, or the first"""
    run = last_run(session)
    common.show(run.why(which(run, rest) if rest else 0), as_json=session.as_json)


@command()
def tokens(session: Session, rest: str) -> None:
    """the last answer's tokens, with their numbers for /why"""
    run = last_run(session)
    rows = [
        (number, step.id, text, math.exp(step.logprob or 0))
        for number, (step, text) in enumerate(zip(run.steps, texts(run), strict=True))
    ]
    if session.as_json:
        names = ("number", "id", "text", "probability")
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], ensure_ascii=False))
    else:
        print(listed([(str(number), visible(text), share(chance)) for number, _, text, chance in rows]))


@command()
def trace(session: Session, rest: str) -> None:
    """what was expected at each token of the last answer, and how surprising it was"""
    common.show(last_run(session).trace, as_json=session.as_json)


@command("[N|WORD]")
def lens(session: Session, rest: str) -> None:
    """what each layer would have said before a token: number N, a WORD, or the last few"""
    run = last_run(session)
    before = [run.reading.given + which(run, rest) % len(run.steps) - 1] if rest else None
    common.show(run.lens(before), as_json=session.as_json)


@command("[N|WORD]")
def attention(session: Session, rest: str) -> None:
    """what a token looked at, on average over all layers and heads: number N, a WORD, or the last"""
    run = last_run(session)
    at = run.reading.given + (which(run, rest) % len(run.steps) if rest else len(run.steps) - 1)
    common.show(run.attention().of(at), as_json=session.as_json)


def last_run(session: Session) -> Run:
    answer = session.conversation.answer
    if answer is None:
        raise InputError("there is no answer to look at. Say something first.")
    if answer.run is None:
        raise InputError("the last answer is out of a file, which does not say how it was chosen. /retry answers anew.")
    return answer.run


# How answers are made -------------------------------------------------------------------------------------------------


@command("[N|-]")
def seed(session: Session, rest: str) -> None:
    """fix the seed of all answers; - frees it; alone shows it"""
    own = session.conversation.settings
    answer = session.conversation.answer
    if rest == "-":
        session.change(settings={name: value for name, value in own.items() if name != "seed"})
        common.note("a seed is drawn for each answer from now on.")
    elif rest:
        found = session.change(settings={**own, **common.pairs([f"seed={rest}"], "/seed", "7")})
        idle = "" if found.do_sample else ", once answers are drawn: /set temperature=0.8"
        common.note(f"seed {found.seed} from now on{idle}.")
    elif "seed" in own:
        progress(session, f"fixed to {own['seed']}")
    else:
        last = f"; the last answer's was {answer.seed}" if answer is not None and answer.seed is not None else ""
        progress(session, f"drawn for each answer{last}")


@command("[TEXT|-]")
def system(session: Session, rest: str) -> None:
    """say who is to answer and how; - removes it; alone shows it"""
    conversation = session.conversation
    if rest == "-":
        session.change(messages=conversation.said)
        common.note("the system message is gone.")
    elif rest:
        session.change(messages=(Message("system", rest), *conversation.said))
        common.note("the system message holds from now on.")
    else:
        progress(session, tame(conversation.system or "there is no system message."))


@command("[NAME=VALUE]")
def set_(session: Session, rest: str) -> None:
    """change a setting; NAME= resets it; alone lists all in force"""
    name, equals, value = (part.strip() for part in rest.partition("="))
    if name and name not in GenerationConfig.names():
        session.model.settings.merged({name: value or "?"})  # which says what it is instead
        raise SettingError(f"the setting {name!r} changes nothing here. Leave it out.")
    if not rest:
        draw(session, in_force(session))
    elif not equals:
        found = session.check(session.conversation)
        progress(session, f"{_worth(found, name)}: {found.about(name).text}")
    else:
        own = {one: worth for one, worth in session.conversation.settings.items() if one != name}
        if value or not name:
            own |= common.pairs([f"{name}={value}"], "/set", "temperature=0.8")
        common.note(f"{_worth(session.change(settings=settled(own, name)), name)} from now on.")


def settled(own: dict[str, Any], name: str) -> dict[str, Any]:
    """Settings after one was set: temperature 0 is the best token each time, and without draws nothing shapes them."""
    if name == "temperature" and own.get(name) == 0:
        own, name = {**own, "do_sample": False}, "do_sample"
    if name == "do_sample" and own.get(name) is False:
        return {name: value for name, value in own.items() if not shapes_draws(name)}
    if name in own and shapes_draws(name) and own.get("do_sample") is False:
        del own["do_sample"]
    return own


def _worth(settings: GenerationConfig, name: str) -> str:
    """A setting's value, and whose it is."""
    value, where = settings.in_force.get(name, (getattr(settings, name), settings.origin(name)))
    return f"{name}={value!r}" if where == CALL else f"{name}={value!r} ({where})"


def in_force(session: Session) -> Page:
    """The settings in force, each with where it came from."""
    found = session.check(session.conversation).in_force.items()
    rows = [(name, repr(value), "you" if where == CALL else where) for name, (value, where) in found if where != "drawn"]
    columns = (Column("setting"), Column("value", least=12), Column("from", least=12))
    return Page("the settings in force", (Table(columns, tuple(Row(cells) for cells in rows)),))


# What was said --------------------------------------------------------------------------------------------------------


@command()
def retry(session: Session, rest: str) -> None:
    """another answer to your last message"""
    conversation = session.conversation
    if conversation.question == len(conversation.messages):
        raise InputError("there is no message to answer. Say something first.")
    session.answer(conversation.messages[: conversation.question + 1])


@command()
def undo(session: Session, rest: str) -> None:
    """take back your last message and its answer"""
    conversation = session.conversation
    if conversation.question == len(conversation.messages):
        raise InputError("there is nothing to take back.")
    session.conversation = replace(conversation, messages=conversation.messages[: conversation.question])
    common.note(f"taken back: {opening(conversation.messages[conversation.question])}")


@command()
def clear(session: Session, rest: str) -> None:
    """begin anew; the system message and the settings stay"""
    conversation = session.conversation
    session.conversation = replace(conversation, messages=conversation.messages[: conversation.system is not None])
    common.note("the conversation begins anew.")


@command("FILE")
def save(session: Session, rest: str) -> None:
    """write it down: .json to go on, .md .txt .html to read"""
    common.note(f"{many(len(session.conversation.said), 'message')} in {session.conversation.save(rest)}.")


@command("FILE")
def load(session: Session, rest: str) -> None:
    """go on with a conversation saved as .json"""
    session.take_up(Conversation.load(rest))


@command()
def help_(session: Session, rest: str) -> None:
    """this list"""
    rows = [Row((f"/{name} {one.takes}".rstrip(), one.does)) for name, one in COMMANDS.items()]
    draw(session, Page("", (Table((Column(), Column()), tuple(rows)), Words(KEYS, "dim"))))


@command()
def quit_(session: Session, rest: str) -> None:
    """leave, as Ctrl-D does"""
    session.over = True
