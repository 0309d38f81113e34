"""`glass eval`, beside the cross-entropy of the reference's own scores."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest
import torch
import torch.nn.functional as F

from glassformer.see.evaluation import TextEvaluation, evaluate
from glassformer.see.schema import schema
from tests.cli.test_cli import failed, glass
from tests.cli.test_view_verbs import ran
from tests.see.models import both, folder

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = "the cat sat on the mat and the rat ate the hat. " * 6


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@torch.no_grad()
def test_the_loss_is_the_references(file: Path) -> None:
    model = str(folder("gpt2", "causal")[0])
    told = json.loads(ran("eval", model, "--text", str(file), "--window", "50", "--json"))
    jsonschema.validate(told, schema(TextEvaluation))
    ids = both("gpt2").model.tokenizer.encode(TEXT, add_special_tokens=False)
    losses = []
    for start in range(0, len(ids), 50):
        row = torch.tensor([ids[start : start + 50]])
        losses.append(F.cross_entropy(both("gpt2").reference(row).logits[0, :-1], row[0, 1:], reduction="none"))
    expected = torch.cat(losses)
    assert told["tokens"] == len(expected)
    assert told["loss"] == pytest.approx(float(expected.mean()), rel=1e-3)
    assert told["perplexity"] == pytest.approx(math.exp(told["loss"]))
    tokenizer = both("gpt2").model.tokenizer
    assert told["bytes"] == sum(len(tokenizer.token_bytes(number)) for at, number in enumerate(ids) if at % 50)
    assert told["bits_per_byte"] == pytest.approx(float(expected.sum()) / math.log(2) / told["bytes"], rel=1e-3)


def test_only_predicted_tokens_count() -> None:
    model, tokenizer = both("gpt2").model, both("gpt2").model.tokenizer
    text = "ab"
    first, *rest = tokenizer.encode(text, add_special_tokens=False)
    view = evaluate(model, text)
    assert (view.tokens, view.bytes) == (len(rest), len(text) - len(tokenizer.token_bytes(first)))
    assert view.bits_per_byte == pytest.approx(view.bits / view.bytes)
    assert view.loss == pytest.approx(view.bits / view.tokens * math.log(2))
    strided = evaluate(model, TEXT, window=20, stride=10)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert (strided.tokens, strided.bytes) == (len(ids) - 1, len(TEXT) - len(tokenizer.token_bytes(ids[0])))


def test_it_is_shown_as_a_table(file: Path) -> None:
    shown = ran("eval", "--text", str(file), "-m", str(folder("gpt2", "causal")[0]), "--window", "40", "--stride", "10")
    assert "perplexity" in shown
    assert "bits per byte" in shown
    assert "in windows of 40 tokens; each window begins with 30 tokens of the one before" in shown


def test_bad_files_are_refused(tmp_path: Path) -> None:
    assert "absent.txt: cannot be read: No such file" in failed(glass("eval", "--text", str(tmp_path / "absent.txt")))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert "latin.txt: not UTF-8 text" in failed(glass("eval", "--text", str(tmp_path / "latin.txt")))
