"""Each sentence of the catalogue is what its call says, and no other test pins it again."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.messages import MESSAGES

ENTRIES = [
    pytest.param(error, call, sentence, id=f"{area}: {sentence[:60]}")
    for area, entries in MESSAGES.items()
    for error, call, sentence in entries
]
PATTERN = re.compile(r"""\bmatch=r?("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""")
WORDS = 4  # from so many on, a pattern is a sentence; with fewer it names what is wrong
LEFT = 156  # sentences that take more than a call to be told, and are pinned beside it; a new one belongs into the catalogue


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("error", "call", "sentence"), ENTRIES)
def test_a_call_is_answered_with_its_sentence(
    error: type[Exception], call: Callable[[], object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLASS_MODEL", raising=False)
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    said = str(caught.value).replace(os.sep, "/")
    assert re.fullmatch(re.escape(sentence).replace("…", ".*"), said), said


def pinned() -> Iterator[tuple[str, str]]:
    """Each sentence that a test expects of an error, and where."""
    root = Path(__file__).parent
    for path in sorted(root.rglob("test_*.py")):
        for quoted in PATTERN.findall(path.read_text("utf-8")):
            pattern = re.sub(r"\\([^\w\s])", r"\1", ast.literal_eval(f"r{quoted}"))
            if len(pattern.split()) >= WORDS:
                yield pattern, path.relative_to(root).as_posix()


def test_sentences_are_in_the_catalogue() -> None:
    assert len(list(pinned())) <= LEFT, "give the sentence a line in tests/messages; elsewhere ask for what it names"


def test_a_sentence_is_pinned_once() -> None:
    """Whoever says one better changes it where it is raised, and here or in one test."""
    sentences = [sentence for entries in MESSAGES.values() for *_, sentence in entries]
    expected = list(pinned())
    counts = Counter(pattern for pattern, _ in expected)
    again = [f"{where}: {pattern}" for pattern, where in expected if any(pattern in sentence for sentence in sentences)]
    twice = [f"{where}: {pattern}" for pattern, where in expected if counts[pattern] > 1]
    assert again + twice == [], "ask for the error's type and for what it names; its sentence is in tests/messages"
