"""`glass chat`: a conversation, in a terminal or piped."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from glassformer.cli import bars, common, settings
from glassformer.cli.command import option
from glassformer.cli.options import SteerableModelGroup
from glassformer.cli.settings import GenerationGroup
from glassformer.ground.errors import GlassError, spelled_by

if TYPE_CHECKING:
    from glassformer.cli.chat.session import Session

EXAMPLE = "Example: glass chat --system 'You answer in rhymes.'   ·   printf 'Hi!\\nAnd you?\\n' | glass chat"


def chat(
    context: click.Context,
    system: common.SystemOption = None,
    *,
    generation: GenerationGroup,
    template: common.TemplateOption = None,
    file: Annotated[str | None, option("--load", help="Continue a conversation that /save wrote as .json.")] = None,
    model_options: SteerableModelGroup,
    context_shift: Annotated[
        bool, option("--context-shift", help="Leave the oldest messages out when the context is full, and go on.")
    ] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Chat with a model. Each line is a message; /help lists the commands, Ctrl-D leaves."""
    source = context.get_parameter_source("model")
    start_chat(
        model_options, generation, system=system, template=template, file=file, as_json=as_json, shifts=context_shift,
        default_model=source is not None and source.name == "DEFAULT",
    )  # fmt: skip


def start_chat(
    model_options: SteerableModelGroup,
    generation: GenerationGroup,
    *,
    system: str | None = None,
    template: list[str] | None = None,
    file: str | None = None,
    as_json: bool = False,
    shifts: bool = False,
    default_model: bool = False,
) -> None:
    """A chat until it is left. `default_model`: whether nobody has named one, so that a file's is taken."""
    chosen = generation.settings(as_json=as_json)
    variables = common.template_variables(template)
    from glassformer.cli.chat.conversation import Conversation, Message
    from glassformer.cli.chat.session import Session

    saved = None if file is None else Conversation.load(file)
    model = replace(model_options, steer=None, clamp=None).load(saved.model if saved is not None and default_model else None)
    with bars.spinner(f"loading {model.name}"):
        model = model.with_prefix_cache()
        about = model.executor.describe()
    session = Session(model, Conversation(model.name), terminal=sys.stdin.isatty(), as_json=as_json, shifts=shifts)
    session.steer(model_options.steering)
    if saved is not None:
        session.resume(saved)
    conversation = session.conversation
    session.change(
        settings={**conversation.settings, **chosen},
        template={**conversation.template, **variables},
        messages=conversation.messages if system is None else (Message("system", system), *conversation.dialogue),
    )
    chosen_settings = session.check(session.conversation)
    settings.note_unused_seed(chosen_settings, chosen)
    if session.terminal:
        common.note(settings.status_line(session.model, chosen_settings, about, raw=False, steering=session.steering))
        common.note("/help lists the commands, Ctrl-D leaves.")
    if session.no_template_note:
        common.note(session.no_template_note)
    raise click.exceptions.Exit(chat_in_terminal(session) if session.terminal else chat_from_pipe(session))


def chat_in_terminal(session: Session) -> int:
    """Chat with somebody at a terminal; errors do not end it. The exit code."""
    from glassformer.cli.chat.commands import complete
    from glassformer.cli.chat.line_input import TerminalLines, read_message
    from glassformer.ground.files import home

    lines = TerminalLines(home() / "chat-history.jsonl", complete)
    interrupted, hint_shown = False, False
    while not session.over:
        try:
            if interrupted:
                common.note("" if hint_shown else "\nCtrl-D or /quit leaves.")
                interrupted, hint_shown = False, True
            common.note("")
            text = read_message(lines)
            if text is None:
                break
            if text.strip():
                lines.remember(text)
                handle(session, text)
        except KeyboardInterrupt:
            interrupted = True  # nothing more here: the next one may follow at once
        except GlassError as error:
            common.note(f"glass: {error}")
    return 0


def chat_from_pipe(session: Session) -> int:
    """Answer line by line; the exit code says whether there was an answer to each."""
    from glassformer.cli.chat.line_input import PipedLines, read_message

    code, lines = 0, PipedLines()
    while not session.over and (text := read_message(lines)) is not None:
        try:
            if text.strip():
                handle(session, text)
        except GlassError as error:
            common.note(f"glass: {error}")
            if session.as_json:
                common.print_json({"message": text, "error": str(error)}, flush=True)
            code = 1
    return code


def handle(session: Session, text: str) -> None:
    """Run a command, or answer a message."""
    from glassformer.cli.chat.commands import run_command

    with spelled_by(chat_spelling):
        if text.startswith("/"):
            run_command(session, text)
        else:
            session.send(text[1:] if text.startswith(" /") else text)


def chat_spelling(name: str, *value: Any) -> str:
    """A setting as it is typed in a chat, and anything else as where the chat was started.

    >>> chat_spelling("do_sample", True), chat_spelling("executor", "plain")
    ('/set do_sample=true', '--executor plain')
    """
    from glassformer.decoding.settings_table import SETTINGS

    if name not in SETTINGS:
        return settings.command_line_spelling(name, *value)
    return "=".join([f"/set {name}", *(json.dumps(item, default=str) for item in value)]) if value else name
