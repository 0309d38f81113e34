"""`glass chat`: a conversation, in a terminal or piped."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli import common, settings
from glassformer.cli.options import LOADING, Loading, bundled
from glassformer.cli.settings import WRITING, Writing
from glassformer.errors import GlassError

if TYPE_CHECKING:
    from glassformer.cli.chat.session import Session

EXAMPLE = "Example: glass chat --system 'You answer in rhymes.'   ·   printf 'Hi!\\nAnd you?\\n' | glass chat"


@bundled
def chat(
    context: typer.Context,
    system: common.SystemOption = None,
    write: Writing = WRITING,
    template: common.TemplateOption = None,
    saved: Annotated[str | None, typer.Option("--load", help="Go on with a conversation that /save wrote as .json.")] = None,
    load: Loading = LOADING,
    as_json: common.JsonOption = False,
) -> None:
    """Talk with a model. Lines are messages; /help lists the commands, Ctrl-D leaves."""
    wanted = write.settings(as_json=as_json)
    variables = common.variables(template)
    from glassformer.cli.chat.conversation import Conversation, Message
    from glassformer.cli.chat.session import Session

    past = None if saved is None else Conversation.load(saved)
    source = context.get_parameter_source("model")
    own = past is not None and source is not None and source.name == "DEFAULT"
    loaded = load.open(past.model if own and past is not None else None)
    with common.waiting(f"loading {loaded.name}"):
        loaded = loaded.with_prefix_cache()
        about = loaded.executor.describe()
    first = () if system is None else (Message("system", system),)
    session = Session(loaded, Conversation(loaded.name), terminal=sys.stdin.isatty(), as_json=as_json)
    if past is not None:
        session.take_up(past)
    begun = session.conversation
    session.change(
        settings={**begun.settings, **wanted},
        template={**begun.template, **variables},
        messages=(*first, *begun.said) if first else begun.messages,
    )
    if session.terminal:
        common.note(settings.manner(loaded, session.check(session.conversation), about, raw=False))
        common.note("/help lists the commands, Ctrl-D leaves.")
    if session.manner:
        common.note(session.manner)
    raise typer.Exit(typed(session) if session.terminal else piped(session))


def typed(session: Session) -> int:
    """Talk with somebody at a terminal, whom no error sends away; the exit code."""
    from glassformer.checkpoint.locate import home
    from glassformer.cli.chat.commands import completed
    from glassformer.cli.chat.lines import Typed, message

    lines = Typed(home() / "chat-history.jsonl", completed)
    interrupted, told = False, False
    while not session.over:
        try:
            if interrupted:
                common.note("" if told else "\nCtrl-D or /quit leaves.")
                interrupted, told = False, True
            common.note("")
            text = message(lines)
            if text is None:
                break
            if text.strip():
                lines.remember(text)
                heard(session, text)
        except KeyboardInterrupt:
            interrupted = True  # no more than this, for the next one may follow at once
        except GlassError as error:
            common.note(f"glass: {error}")
    return 0


def piped(session: Session) -> int:
    """Answer line by line; the exit code says whether there was an answer to each."""
    from glassformer.cli.chat.lines import Piped, message

    code, lines = 0, Piped()
    while not session.over and (text := message(lines)) is not None:
        try:
            if text.strip():
                heard(session, text)
        except GlassError as error:
            common.note(f"glass: {error}")
            if session.as_json:
                print(json.dumps({"message": text, "error": str(error)}, ensure_ascii=False), flush=True)
            code = 1
    return code


def heard(session: Session, text: str) -> None:
    """A command is obeyed, a message answered."""
    from glassformer.cli.chat.commands import obey

    if text.startswith("/"):
        obey(session, text)
    else:
        session.say(text[1:] if text.startswith(" /") else text)
