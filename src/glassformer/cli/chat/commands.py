"""The chat's slash commands: each a function, whose docstring is its line in /help."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from glassformer.cli import common
from glassformer.cli.chat.answer_tokens import find_answer_token, in_columns, token_texts
from glassformer.cli.chat.conversation import Conversation, Message
from glassformer.cli.chat.session import Session, excerpt, is_sampling_setting
from glassformer.decoding import GenerationConfig
from glassformer.decoding.settings import THIS_CALL
from glassformer.ground.errors import InputError, SettingError, did_you_mean
from glassformer.page.document import Column, Page, Paragraph, Table, TableRow
from glassformer.page.format import escape_control, format_percent, pluralize, visible
from glassformer.steering.steer import describe_entry, entry_name, steering_entry

if TYPE_CHECKING:
    from glassformer.runtime.run import Run

KEYS = '''Ctrl-C stops an answer. For several lines end each in \\, or put """ around them.'''
ALIASES = {"exit": "quit", "bye": "quit", "?": "help"}


@dataclass(frozen=True)
class Command:
    arguments: str  # as /help shows them
    help_text: str
    action: Callable[[Session, str], None]


COMMANDS: dict[str, Command] = {}


def command(arguments: str = "") -> Callable[[Callable[[Session, str], None]], Callable[[Session, str], None]]:
    def register(action: Callable[[Session, str], None]) -> Callable[[Session, str], None]:
        COMMANDS[action.__name__.rstrip("_")] = Command(arguments, (action.__doc__ or "").strip(), action)
        return action

    return register


def run_command(session: Session, line: str) -> None:
    """Run the command of a line that begins with a slash."""
    name, argument = [*line[1:].split(None, 1), "", ""][:2]
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        hint = did_you_mean(f"/{name}", (f"/{known}" for known in COMMANDS))
        raise InputError(
            f"there is no command '/{name}'.{hint} /help lists them; with a space before the slash it is a message."
        )
    if argument.strip() and not command.arguments:
        raise InputError(f"/{name} takes no argument.")
    if not argument.strip() and command.arguments == "FILE":
        raise InputError(f"/{name} needs a file name, such as /{name} talk.json.")
    command.action(session, argument.strip())


def complete(line: str) -> list[str]:
    """Completions of a line's last word."""
    if line.startswith("/set "):
        return [f"{name}=" for name in sorted(GenerationConfig.names()) if name.startswith(line[5:].lstrip())]
    return [
        f"/{name}" + (" " if COMMANDS[name].arguments else "") for name in COMMANDS if f"/{name}".startswith(line or " ")
    ]


def print_result(session: Session, text: str) -> None:
    """Print to stdout, or to stderr where stdout is for JSON."""
    (common.note if session.as_json else print)(escape_control(text))


def print_page(session: Session, page: Page) -> None:
    from rich.console import Console

    from glassformer.page.terminal import TerminalPage

    Console(stderr=session.as_json).print(TerminalPage(page))


# Looking inside ------------------------------------------------------------------------------------------------------


@command("[N|WORD]")
def why(session: Session, argument: str) -> None:
    """why a token was said: number N, a WORD, or the one that tells most"""
    run = last_run(session)
    common.show(run.explain(find_answer_token(run, argument) if argument else None), as_json=session.as_json)


@command("[N|WORD]")
def rules(session: Session, argument: str) -> None:
    """what each rule did to a token and its rivals: number N, a WORD, or the first"""
    run = last_run(session)
    common.show(run.why(find_answer_token(run, argument) if argument else 0), as_json=session.as_json)


@command()
def tokens(session: Session, argument: str) -> None:
    """the last answer's tokens, with their numbers for /why"""
    run = last_run(session)
    rows = [
        (number, step.id, text, math.exp(step.logprob or 0))
        for number, (step, text) in enumerate(zip(run.steps, token_texts(run), strict=True))
    ]
    if session.as_json:
        names = ("number", "id", "text", "probability")
        common.print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print(in_columns([(str(number), visible(text), format_percent(chance)) for number, _, text, chance in rows]))


@command()
def trace(session: Session, argument: str) -> None:
    """what the model expected at each token of the last answer, and its surprisal"""
    common.show(last_run(session).trace, as_json=session.as_json)


@command("[N|WORD]")
def lens(session: Session, argument: str) -> None:
    """what each layer would predict before a token: number N, a WORD, or the last few"""
    run = last_run(session)
    before = [run.reading.prompt_length + find_answer_token(run, argument) % len(run.steps) - 1] if argument else None
    common.show(run.lens(before), as_json=session.as_json)


@command("[N|WORD]")
def attention(session: Session, argument: str) -> None:
    """what a token attended to, the mean of all heads: number N, a WORD, or the last"""
    run = last_run(session)
    at = run.reading.prompt_length + (find_answer_token(run, argument) % len(run.steps) if argument else len(run.steps) - 1)
    common.show(run.attention().of(at), as_json=session.as_json)


def last_run(session: Session) -> Run:
    answer = session.conversation.last_answer
    if answer is None:
        raise InputError("there is no answer to look at. Say something first.")
    if answer.run is None:
        raise InputError("the last answer was loaded from a file, without its steps. /retry generates another.")
    return answer.run


# Settings ------------------------------------------------------------------------------------------------------------


@command("[N|-]")
def seed(session: Session, argument: str) -> None:
    """fix the seed of all answers; - draws a new one each time; alone shows it"""
    own = session.conversation.settings
    answer = session.conversation.last_answer
    if argument == "-":
        session.change(settings={name: value for name, value in own.items() if name != "seed"})
        common.note("a new seed is drawn for each answer from now on.")
    elif argument:
        settings = session.change(settings={**own, **common.parse_pairs([f"seed={argument}"], "/seed", "7")})
        unused = "" if settings.do_sample else ", once answers are sampled: /set temperature=0.8"
        common.note(f"seed {settings.seed} from now on{unused}.")
    elif "seed" in own:
        print_result(session, f"fixed to {own['seed']}")
    else:
        last = f"; the last answer's was {answer.seed}" if answer is not None and answer.seed is not None else ""
        print_result(session, f"drawn for each answer{last}")


@command("[TEXT|-]")
def system(session: Session, argument: str) -> None:
    """set the system message; - removes it; alone shows it"""
    conversation = session.conversation
    if argument == "-":
        session.change(messages=conversation.dialogue)
        common.note("the system message is removed.")
    elif argument:
        session.change(messages=(Message("system", argument), *conversation.dialogue))
        common.note("the system message is set.")
    else:
        print_result(session, conversation.system or "there is no system message.")


@command("[NAME [STRENGTH]]")
def steer(session: Session, argument: str) -> None:
    """steer answers by a vector or SAE/FEATURE; strength 0 ends it, - ends all; alone shows them"""
    if argument:
        name, number = [*argument.rsplit(None, 1), "1"][:2]
        others = [] if name == "-" else [entry for entry in session.steering if entry_name(entry) != name]
        try:
            strength = 0.0 if name == "-" else float(number)
        except ValueError:
            raise SettingError(f"/steer {argument} is not NAME STRENGTH, such as /steer {name} 1.") from None
        session.steer([*others, *([steering_entry(name, strength=strength)] if strength else [])])
    shown = ", ".join(map(describe_entry, session.steering))
    text = f"answers are steered by {shown}." if shown else "answers are not steered."
    (common.note if argument else partial(print_result, session))(text)


def split_setting(argument: str) -> tuple[str, bool, str]:
    """A setting's name, whether it is to be changed, and the value.

    >>> [split_setting(text) for text in ("temperature", "temperature 0.7", "temperature = 0.7", "temperature=")]
    [('temperature', False, ''), ('temperature', True, '0.7'), ('temperature', True, '0.7'), ('temperature', True, '')]
    """
    name = re.split(r"[\s=]", argument, maxsplit=1)[0]
    rest = argument[len(name) :].strip()
    return name, bool(rest), rest.removeprefix("=").strip()


@command("[NAME [VALUE]]")
def set_(session: Session, argument: str) -> None:
    """change a setting; NAME alone shows it, NAME= resets it; nothing lists all in force"""
    name, changes, value = split_setting(argument)
    if name and name not in GenerationConfig.names():
        session.model.settings.merged({name: value or "?"})  # raises an error that says what it is instead
        raise SettingError(f"the setting {name!r} changes nothing here. Leave it out.")
    if not argument:
        print_page(session, settings_page(session))
    elif not changes:
        settings = session.check(session.conversation)
        print_result(session, f"{_setting_text(settings, name)}: {settings.info(name).summary}")
    else:
        own = {key: setting for key, setting in session.conversation.settings.items() if key != name}
        if value or not name:
            own |= common.parse_pairs([f"{name}={value}"], "/set", "temperature=0.8")
        common.note(f"{_setting_text(session.change(settings=reconcile_sampling(own, name)), name)} from now on.")


def reconcile_sampling(own: dict[str, Any], name: str) -> dict[str, Any]:
    """Settings after one was set: temperature 0 means greedy, and greedy drops the settings of sampling."""
    if name == "temperature" and own.get(name) == 0:
        own, name = {**own, "do_sample": False}, "do_sample"
    if name == "do_sample" and own.get(name) is False:
        return {name: value for name, value in own.items() if not is_sampling_setting(name)}
    if name in own and is_sampling_setting(name) and own.get("do_sample") is False:
        del own["do_sample"]
    return own


def _setting_text(settings: GenerationConfig, name: str) -> str:
    """A setting's value and origin."""
    value, origin = settings.in_force.get(name, (getattr(settings, name), settings.origin(name)))
    return f"{name}={value!r}" if origin == THIS_CALL else f"{name}={value!r} ({origin})"


def settings_page(session: Session) -> Page:
    """The settings in force, each with its origin."""
    in_force = session.check(session.conversation).in_force
    rows = [
        (name, repr(value), "you" if origin == THIS_CALL else origin)
        for name, (value, origin) in in_force.items()
        if origin != "drawn"
    ]
    columns = (Column("setting"), Column("value", min_width=12), Column("from", min_width=12))
    return Page("the settings in force", (Table(columns, tuple(TableRow(cells) for cells in rows)),))


# Messages ------------------------------------------------------------------------------------------------------------


@command()
def retry(session: Session, argument: str) -> None:
    """another answer to your last message"""
    conversation = session.conversation
    if conversation.last_user_index == len(conversation.messages):
        raise InputError("there is no message to answer. Say something first.")
    session.answer(conversation.messages[: conversation.last_user_index + 1])


@command()
def continue_(session: Session, argument: str) -> None:
    """go on with an answer that was cut"""
    session.continue_answer()


@command()
def undo(session: Session, argument: str) -> None:
    """take back your last message and its answer"""
    conversation = session.conversation
    if conversation.last_user_index == len(conversation.messages):
        raise InputError("there is no message to take back.")
    session.conversation = replace(conversation, messages=conversation.messages[: conversation.last_user_index])
    common.note(f"taken back: {excerpt(conversation.messages[conversation.last_user_index])}")


@command()
def clear(session: Session, argument: str) -> None:
    """start over; the system message and the settings stay"""
    conversation = session.conversation
    session.conversation = replace(conversation, messages=conversation.messages[: conversation.system is not None])
    common.note("the conversation starts over.")


@command("[on|off]")
def shift(session: Session, argument: str) -> None:
    """when the context is full, leave the oldest messages out and go on; alone says whether"""
    if argument and argument not in ("on", "off"):
        raise InputError(f"/shift is on or off, not {argument!r}.")
    session.shifts = argument == "on" if argument else session.shifts
    text = "the oldest messages are left out when the context is full" if session.shifts else "the context ends the chat"
    (common.note if argument else partial(print_result, session))(f"{text}.")


@command("FILE")
def save(session: Session, argument: str) -> None:
    """save the conversation: .json to continue it, .md .txt .html to read"""
    if not session.conversation.messages:
        raise InputError("there is nothing to save yet. Say something first.")
    common.note(f"{pluralize(len(session.conversation.dialogue), 'message')} in {session.conversation.save(argument)}.")


@command("FILE")
def load(session: Session, argument: str) -> None:
    """continue a conversation saved as .json"""
    session.resume(Conversation.load(argument))


@command()
def help_(session: Session, argument: str) -> None:
    """this list"""
    rows = [TableRow((f"/{name} {command.arguments}".rstrip(), command.help_text)) for name, command in COMMANDS.items()]
    print_page(session, Page("", (Table((Column(), Column(wraps=True, min_width=20)), tuple(rows)), Paragraph(KEYS, "dim"))))


@command()
def quit_(session: Session, argument: str) -> None:
    """leave, as Ctrl-D does"""
    session.over = True
