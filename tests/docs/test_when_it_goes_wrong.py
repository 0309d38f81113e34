"""docs/when-it-goes-wrong.md: its blocks are run in order, and every message on it is provoked and compared."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.checkpoint.gguf_kinds import dequantize
from glassformer.ground.errors import GlassError
from tests.cli.test_cli import failed, glass
from tests.docs.pages import agrees, blocks, run
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "when-it-goes-wrong.md"
ELSEWHERE = 1  # messages without a block of their own: see test_a_kind_that_cannot_be_dequantized


def test_when_it_goes_wrong_python_blocks(smollm2: Path, minilm: Path, caplog: pytest.LogCaptureFixture) -> None:
    facts(run(PAGE, caplog))


def facts(names: dict[str, Any]) -> None:
    """What the page says in words of what its blocks left behind."""
    assert names["loop"].steps[-1].candidates.probabilities[0] > names["loop"].steps[0].candidates.probabilities[0]
    wild, tame = (np.mean([step.logprob for step in names[run].steps]) for run in ("wild", "tame"))
    assert wild < tame
    assert names["raw"].steps[0].finish.value == "eos"
    assert names["short"].finish.value == "length"
    assert names["chat"].opened.head == "causal"
    assert names["bytes_held"] > 500e6


@pytest.mark.parametrize(
    ("text", "expected"), [(text, expected) for mark, text, expected in blocks(PAGE) if mark == "sh fails"]
)
def test_when_it_goes_wrong_failing_commands(text: str, expected: str) -> None:
    words = shlex.split(text)
    assert words[0] == "glass"
    assert agrees(failed(glass(*words[1:], HF_HUB_OFFLINE="1")).strip(), expected)


def test_when_it_goes_wrong_thinking_block(tiny_qwen3: Path) -> None:
    (block,) = [text for mark, text, _ in blocks(PAGE) if mark == "python qwen3"]
    names: dict[str, Any] = {}
    exec("import glassformer as glass\nfrom glassformer import AutoTokenizer", names)
    exec(block.replace("qwen3-0.6b", str(tiny_qwen3)), names)
    tokenizer = names["tokenizer"]
    ids = tokenizer.encode("<think>\nHm.\n</think>\n\nFine.<|im_end|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>\nHm.\n</think>\n\nFine."


def test_a_kind_that_cannot_be_dequantized() -> None:
    with pytest.raises(GlassError) as caught:
        dequantize(np.zeros(36, np.uint8), "Q8_1", (1, 32), "tensor 'x'")
    message = str(caught.value).replace("tensor 'x'", "…")
    assert f"{type(caught.value).__name__}: {message}" in [text.strip() for mark, text, _ in blocks(PAGE) if mark == "text"]


def test_every_message_has_its_test() -> None:
    marks = [mark for mark, _, _ in blocks(PAGE)]
    provoked = sum(mark in ("python raises", "python notes", "sh fails") for mark in marks)
    assert marks.count("text") == provoked + ELSEWHERE
    assert set(marks) == {"python", "python raises", "python notes", "python qwen3", "sh", "sh fails", "text"}
