"""docs/vocabulary-sizes.md: its numbers are those of the real tokenizers, and its blocks say what it says they do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from glassformer.model_files import AutoConfig, AutoTokenizer
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "vocabulary-sizes.md"
TEXT = PAGE.read_text("utf-8")
ROWS = {
    name: (int(trained), int(listed), int(scored))
    for name, trained, listed, scored in re.findall(r"\| (\w\S+) \| (\d+) \| (\d+) \| (\d+) \|", TEXT.replace(",", ""))
}


@pytest.mark.parametrize("name", ["Qwen3", "SmolLM2", "MiniLM", "GPT-2"])
def test_vocabulary_table_matches_the_tokenizers(name: str, request: pytest.FixtureRequest) -> None:
    fixture = {"Qwen3": "qwen3_tokenizer", "SmolLM2": "smollm2", "MiniLM": "minilm", "GPT-2": "gpt2_tokenizer"}[name]
    path = request.getfixturevalue(fixture)
    tokenizer = AutoTokenizer.from_pretrained(path)
    trained, listed, scored = ROWS[name]
    assert (tokenizer.vocab_size, len(tokenizer), len(tokenizer.vocab)) == (trained, listed, listed)
    assert sorted(tokenizer.get_vocab().values()) == list(range(listed))
    if name in ("SmolLM2", "MiniLM"):
        assert AutoConfig.from_pretrained(path).vocab_size == scored


def test_statements_about_qwen3(qwen3_tokenizer: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(qwen3_tokenizer)
    trained, listed, scored = ROWS["Qwen3"]
    assert sorted(tokenizer.get_added_vocab().values()) == list(range(trained, listed))
    assert {"<|im_start|>", "<|im_end|>", "<think>"} <= tokenizer.get_added_vocab().keys()
    assert (listed - trained, scored - listed, scored) == (26, 267, 1187 * 128)


def test_statements_about_the_other_models(smollm2: Path, minilm: Path, gpt2_tokenizer: Path) -> None:
    smol, mini, gpt2 = (AutoTokenizer.from_pretrained(path) for path in (smollm2, minilm, gpt2_tokenizer))
    assert smol.convert_tokens_to_ids("<|im_start|>") == 1
    assert ROWS["SmolLM2"][2] == 384 * 128
    assert mini.convert_tokens_to_ids("[CLS]") < ROWS["MiniLM"][0]
    assert ROWS["MiniLM"][2] % 128
    assert ROWS["GPT-2"][2] == 256 + 50_000 + 1
    assert gpt2.convert_tokens_to_ids("<|endoftext|>") == 50_256


def test_vocabulary_python_blocks(smollm2: Path, tiny_qwen3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    (block,) = blocks(PAGE, "python")
    exec(block, names)
    assert capsys.readouterr().out == "trained 49,152 · with added tokens 49,152 · scores 49,152\n"
    (block,) = blocks(PAGE, "python qwen3")
    exec(block.replace("qwen3-0.6b", str(tiny_qwen3)), names)
    assert capsys.readouterr().out == blocks(PAGE, "text")[-1]
