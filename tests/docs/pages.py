"""How a page is run: its blocks in order, in one session, and every message on it compared with what is said."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glassformer.cli.app import app
from glassformer.ground.errors import GlassError

BLOCK = re.compile(r"^```(.+)\n((?:.*\n)*?)```$", re.M)
RUN = ("python", "python raises", "python notes")


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Each block's mark and text, and the text of the message that follows it."""
    found = BLOCK.findall(page.read_text("utf-8"))
    for (mark, text), (_, said) in zip(found, [*found[1:], ("", "")], strict=True):
        yield mark, text, said.strip()


def agrees(said: str, told: str) -> bool:
    """Whether a message is the page's; the page may leave out an end with `…`."""
    if told.endswith(" …"):
        return said.startswith(told.removesuffix(" …"))
    return said == told


def run(page: Path, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Run a page's Python; what it leaves behind, by name."""
    names: dict[str, Any] = {}
    for mark, text, told in blocks(page):
        if mark not in RUN:
            continue
        caplog.clear()
        code = compile(text, f"{page.name}: {text.splitlines()[0]}", "exec")
        if mark == "python raises":
            with pytest.raises(GlassError) as caught:
                exec(code, names)
            assert agrees(f"{type(caught.value).__name__}: {caught.value}", told), caught.value
            continue
        with caplog.at_level(logging.WARNING, "glassformer"):
            exec(code, names)
        if mark == "python notes":
            assert [record.message for record in caplog.records] == [told]
    return names


def run_with(page: Path, model: str, tiny: str) -> tuple[dict[str, Any], list[str]]:
    """Run a page's Python and its commands with a tiny model in place of the page's; what is left by name, the commands."""
    names: dict[str, Any] = {}
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.S | re.M)
    for mark, text in fenced:
        if mark == "python":
            exec(compile(text.replace(f'"{model}"', repr(tiny)), str(page), "exec"), names)
    commands = [line for mark, text in fenced if not mark for line in text.splitlines()]
    for command in commands:
        glass(f"{command} -m {shlex.quote(tiny)}")
    return names, commands


def glass(line: str) -> str:
    """A command's output, notes included; `printf '…' |` before it is its input."""
    typed, _, command = line.rpartition(" | ")
    stdin = shlex.split(typed)[1].encode().decode("unicode_escape") if typed else None
    first, *rest = shlex.split(command, comments=True)
    assert first == "glass", line
    done = CliRunner().invoke(app, rest, input=stdin)
    assert done.exit_code == 0, (line, done.output, done.exception)
    assert done.stdout.strip(), line
    return done.output
