"""Thoughts are told from the answer, however the text is cut into pieces."""

from __future__ import annotations

import pytest

from glassformer.text.streaming import ThoughtReader

CASES = {
    "both": ("<think>\nIt is\n\neasy. </think>\n\nParis.", False, "It is\n\neasy.", "Paris."),
    "begun by the prompt": ("It is easy.\n</think>\n\nParis.\n", True, "It is easy.", "Paris.\n"),
    "no thoughts": ("  Paris, <think> is a word.", False, "", "  Paris, <think> is a word."),
    "empty thoughts": ("<think>\n\n</think>\n\nParis.", False, "", "Paris."),
    "cut while it thinks": ("<think>It is </thi", False, "It is </thi", ""),
    "cut in the mark": (" <thin", False, "", " <thin"),
    "nothing": ("", False, "", ""),
    "two marks": ("<think>a</think>b</think>c", False, "a", "b</think>c"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_thoughts_are_told_from_the_answer_however_the_text_is_cut(name: str, size: int) -> None:
    text, begun, thoughts, answer = CASES[name]
    reader = ThoughtReader(begun=begun)
    pieces = [reader.feed(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(reader.feed("", last=True))
    assert ("".join(first for first, _ in pieces), "".join(second for _, second in pieces)) == (thoughts, answer)
