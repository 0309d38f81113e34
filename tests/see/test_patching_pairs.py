"""Patching over many pairs: each pair's numbers are those of a patching of its own, and means and errors are theirs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from glassformer.cli.app import app
from glassformer.ground.errors import InputError
from glassformer.page.html import html_document
from glassformer.page.terminal import TerminalPage, plain_text
from glassformer.see.patching.compute import METRICS, ScoredPair
from glassformer.see.patching.pair import align
from glassformer.see.patching.view import MetricName, PairPatching
from glassformer.see.schema import schema
from tests.see.models import EXECUTORS, Both, both, encoder, folder

PAIRS = [("the cat sat", "the bat sat", 4, 5), ("a dog ran", "a hog ran", 4, 5), ("the mat sat", "the hat sat", 4, 5)]
WORDS = [("the cat sat", "the dog sat", 4, 5), ("the mat sat", "the cat sat", 4, 5), ("the cat on", "the dog on", 4, 5)]
UNEQUAL = ("the cat sat", "the bigcat sat", 4, 5)


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("family", ["gpt2", "llama", "bart"])
@pytest.mark.parametrize("part", ["heads", "residual", "value"])
def test_each_pair_is_a_patching_of_its_own(family: str, part: Any, executor: str) -> None:
    model = both(family, executor).model
    pairs = WORDS if family == "bart" else PAIRS  # of as many tokens
    view = model.patch_pairs(pairs, part, positions=[-1, -2])
    alone = [model.patch(first, second, part, [-1, -2], answer=a, against=b) for first, second, a, b in pairs]
    values = np.array([np.asarray(one) for one in alone])
    assert np.allclose(np.array(view.values), values, atol=1e-5)
    assert np.allclose(np.asarray(view), values.mean(0), atol=1e-5)
    errors = values.std(0, ddof=1) / np.sqrt(len(PAIRS))
    assert np.allclose(np.array(view.standard_errors), errors, atol=1e-5)
    assert (view.heads, view.sharing) == (alone[0].heads, alone[0].sharing)
    assert view.positions == (() if view.heads else alone[0].positions if family == "bart" else (-2, -1))
    assert [pair.answers for pair in view.pairs] == [one.answers for one in alone]
    best = view.cells[0]
    assert abs(best.mean) == pytest.approx(np.nanmax(np.abs(np.asarray(view))))


def test_positions_of_texts_of_one_length_and_of_several() -> None:
    model = both("gpt2").model
    same = model.patch_pairs([PAIRS[0], PAIRS[2]], "residual")
    assert same.positions == tuple(range(4, 11))
    one = model.patch(*PAIRS[0][:2], answer=4, against=5)
    assert same.at("embedding", 4)[0] == pytest.approx(one.at("embedding", 4), rel=1e-5)
    several = model.patch_pairs(PAIRS, "residual")
    assert several.positions == tuple(range(-7, 0))
    assert several.at(0, -1)[0] == pytest.approx(one.at(0, 10), rel=1e-5)
    assert "counted from its end" in plain_text(TerminalPage(several.page()), 120)
    with pytest.raises(InputError, match="layer 0 and position 3"):
        several.at(0, 3)


def reference_scores(pair: Both, reading: Any, layer: int | None = None, patched: dict[int, Any] | None = None) -> Any:
    """The reference's last scores, with some vectors of a block's output replaced."""
    blocks = pair.reference.transformer.h if pair.family == "gpt2" else pair.reference.model.layers

    def put(_: Any, __: Any, output: Any) -> None:
        stream = output[0] if isinstance(output, tuple) else output
        for at, vector in (patched or {}).items():
            stream[0, at] = vector

    handle = blocks[0 if layer is None else layer].register_forward_hook(put)
    try:
        return pair.run(reading).logits[0, -1].numpy()
    finally:
        handle.remove()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_aligned_texts_against_hooks_on_the_reference(family: str, executor: str) -> None:
    """A text with three letters more: what stands before and after them is put at its counterpart."""
    pair = both(family, executor)
    view = pair.model.patch_pairs([UNEQUAL], "residual", metric="logit_difference")
    first, second = (pair.model.read(text) for text in UNEQUAL[:2])
    origins = align(first.ids, second.ids)
    (described,) = view.pairs
    assert described.unaligned == ((), tuple(at for at in range(len(second)) if at not in origins))
    assert described.unaligned[1] == (4, 5, 6)
    assert set(view.positions) == {at for at in origins if at >= min(view.positions)} == {7, 8, 9, 10, 11, 12, 13}
    states = pair.run(first).hidden_states
    for layer in range(len(states) - 2):  # the last entry is normed
        for position in view.positions:
            scores = reference_scores(pair, second, layer, {position: states[layer + 1][0, origins[position]]})
            (value,) = view.at(layer, position)
            assert value == pytest.approx(float(scores[4] - scores[5]), abs=2e-3)
    text = plain_text(TerminalPage(view.page(everything=True)), 200)
    assert "into: positions 4 to 6" in text


def test_align() -> None:
    assert align([1, 2, 3], [1, 9, 3]) == {0: 0, 1: 1, 2: 2}
    assert align([1, 2, 3], [1, 3]) == {0: 0, 1: 2}
    assert align([1, 2, 3], [1, 8, 9, 3]) == {0: 0, 2: 1, 3: 2}  # the last token of what differs
    assert align([], [1]) == {}


def test_metrics(executor: str) -> None:
    model = both("llama", executor).model
    views = {name: model.patch_pairs(PAIRS[:1], metric=name) for name in METRICS}
    assert tuple(METRICS) == get_args(MetricName)
    first, second = (model.read(text) for text in PAIRS[0][:2])
    scores = [np.concatenate([chunk.scores for chunk in text.chunks(scored=True)])[-1] for text in (first, second)]
    logs = [torch.log_softmax(torch.tensor(one), -1) for one in scores]
    unpatched = {name: view.pairs[0].unpatched for name, view in views.items()}
    assert unpatched["recovered"] == (1.0, 0.0)
    assert unpatched["logit_difference"] == pytest.approx([float(one[4] - one[5]) for one in scores], abs=1e-4)
    assert unpatched["probability"] == pytest.approx([float(one[4].exp()) for one in logs], abs=1e-5)
    divergence = torch.nn.functional.kl_div(logs[1], logs[0], log_target=True, reduction="sum") / math.log(2)
    assert unpatched["kl"] == pytest.approx([0.0, float(divergence)], abs=1e-5)

    def rank(scores: Any, pair: ScoredPair) -> float:
        assert pair.first_scores.shape == scores.shape
        return (scores > scores[pair.answer]).sum()  # type: ignore[no-any-return]

    own = model.patch_pairs(PAIRS[:1], metric=rank)
    assert own.metric == "rank"
    assert own.pairs[0].unpatched == tuple(float((one > one[4]).sum()) for one in scores)
    lead, (clean, corrupted) = np.asarray(views["logit_difference"]), unpatched["logit_difference"]
    assert np.allclose(np.asarray(views["recovered"]), (lead - corrupted) / (clean - corrupted), atol=1e-5)


def test_models_that_fill_gaps() -> None:
    model = encoder().model
    pairs = [("the cat sat on [MASK]", "a cat sat on [MASK]", 7, 9), ("the dog [MASK]", "a dog [MASK]", 7, 9)]
    view = model.patch_pairs(pairs, "mlp")
    alone = model.patch(*pairs[1][:2], "mlp", answer=7, against=9)
    assert np.allclose([row[-1] for row in view.values[1]], [row[-1] for row in alone.values], atol=1e-5)


def test_json_and_pictures() -> None:
    model = both("llama").model
    for part, pairs in (("heads", PAIRS), ("residual", [*PAIRS, UNEQUAL]), ("value", [PAIRS[0]] * 7)):
        view = model.patch_pairs(pairs, part)
        jsonschema.validate(json.loads(json.dumps(view.to_dict(), allow_nan=False)), schema(PairPatching))
        for width in (80, 120):
            shown = plain_text(TerminalPage(view.page()), width)
            assert max(map(len, shown.splitlines())) <= width
        assert f"patched in {len(pairs)} pairs of texts" in shown
        assert f"PairPatching({len(pairs)} pairs" in repr(view)
    assert "2 more (--all)" in shown
    assert "2 more" not in plain_text(TerminalPage(view.page(everything=True)), 120)
    assert "(standard error), 7 pairs" in html_document(view.page())
    few = model.patch_pairs([*PAIRS, UNEQUAL], "residual", positions=[-1, 4])
    assert any(None in row for row in few.means) or any(count < 4 for row in few.counts for count in row)


def test_progress_over_all_pairs() -> None:
    told: list[tuple[int, int]] = []
    view = both("gpt2").model.patch_pairs(PAIRS, progress=lambda done, total: told.append((done, total)))
    total = len(PAIRS) * len(view.layers) * view.heads
    assert told == [(number, total) for number in range(1, total + 1)]


def test_the_command_reads_pairs_from_a_file(tmp_path: Path) -> None:
    place, _ = folder("gpt2", "causal")
    rows = [dict(zip(("first", "second", "answer", "against"), (a, b, "#4", "#5"), strict=True)) for a, b, *_ in PAIRS]
    lines = tmp_path / "pairs.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = tmp_path / "pairs.csv"
    table.write_text("first,second,answer,against\n" + "".join(",".join(row.values()) + "\n" for row in rows))
    model = both("gpt2").model
    expected = model.patch_pairs(PAIRS, "mlp", metric="kl").to_dict()

    def glass(*words: Any) -> Any:
        return CliRunner().invoke(app, ["patch", "-m", str(place), "--executor", "plain", *map(str, words)])

    for file in (lines, table):
        result = glass("--pairs", file, "--part", "mlp", "--metric", "kl", "--json")
        assert result.exit_code == 0, result.output
        data = json.loads(result.stdout)
        assert {**data, "model": ""} == {**json.loads(json.dumps(expected)), "model": ""}
    bad = {
        "short.jsonl": '{"first": "a cat", "second": "a hat"}\n{"first": "a cat"}\n',
        "same.csv": "first,second\na cat,a hat\na cat,a cat\n",
        "field.csv": "first,third\na cat,a hat\n",
        "empty.jsonl": '{"first": "", "second": "a hat"}\n',
    }
    for name, content in bad.items():
        (tmp_path / name).write_text(content)
    for words, message in (
        (("--pairs", tmp_path / "short.jsonl"), "short.jsonl, row 2 is {'first': 'a cat'}; it must have"),
        (("--pairs", tmp_path / "same.csv"), "same.csv, line 3: the two texts are the same"),
        (("--pairs", tmp_path / "field.csv"), "field.csv, line 2 has a field 'third'"),
        (("--pairs", tmp_path / "empty.jsonl"), "empty.jsonl, row 1 is"),
        ((), "FIRST and SECOND are missing. Give them, or --pairs."),
        (("a",), "SECOND is missing. Give it, or --pairs."),
        (("a", "b", "--pairs", lines), "FIRST has no use with --pairs"),
        (("--pairs", lines, "--answer", "a"), "--answer has no use with --pairs"),
        (("a", "b", "--metric", "kl"), "--metric goes with --pairs"),
        (("--pairs", tmp_path / "none.jsonl"), "cannot be read"),
    ):
        failed = glass(*words)
        assert failed.exit_code, words
        assert message in " ".join((failed.output + str(failed.exception)).split()), words
