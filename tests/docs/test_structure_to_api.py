"""docs/structure-to-api.md, row by row: each call is made, its shape is the one on the page, and the look inside agrees."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from click.testing import CliRunner

from glassformer.cli.app import app
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "structure-to-api.md"
COURSE = [  # the concepts of the course's own table, in its order
    "tokenization", "token ids", "padding mask", "encoder-only backbone", "decoder-only language model",
    "encoder-decoder language model", "token representations", "classification scores", "hidden states at each layer",
    "attention weights", "cross-attention weights", "autoregressive generation", "KV cache", "training loss",
]  # fmt: skip


class TableRow(NamedTuple):
    structure: str
    call: str
    shape: tuple[int, ...]
    look: str


def table_rows() -> list[TableRow]:
    """The page's table; of each cell the part in code counts, the rest is for people."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    code = re.compile(r"`([^`]+)`")
    return [
        TableRow(name, code.findall(call)[0], ast.literal_eval(code.findall(back)[0]), code.findall(look)[0])
        for name, call, back, look in cells
    ]


ROWS = {row.structure: row for row in table_rows()}


@pytest.fixture(scope="module")
def names(smollm2: Path, minilm: Path) -> dict[str, Any]:
    """What the page's own blocks define."""
    result: dict[str, Any] = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block, str(PAGE), "exec"), result)
    return result


def shape(value: Any) -> tuple[int, ...]:
    """A tensor's; tuples and lists add an axis in front."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    first = value[0]
    return (len(value), *(shape(first) if isinstance(first, torch.Tensor) else ()))


def test_the_table_has_every_row_of_the_course() -> None:
    assert list(ROWS) == COURSE


@pytest.mark.parametrize("structure", COURSE)
def test_the_call_gives_the_shape(structure: str, names: dict[str, Any]) -> None:
    row = ROWS[structure]
    assert shape(eval(row.call, names)) == row.shape


@pytest.mark.parametrize("structure", COURSE)
def test_the_site_agrees_with_the_call(structure: str, names: dict[str, Any]) -> None:
    row = ROWS[structure]
    if row.look.startswith("glass "):
        done = CliRunner().invoke(app, shlex.split(row.look)[1:], env={"COLUMNS": "100"})
        assert done.exit_code == 0, done.output
        assert "deep" in done.stdout
        return
    value, inside = eval(row.call, names), eval(row.look, names)
    match structure:
        case "padding mask":
            assert value.tolist() == [[1] * 7, [1] * 5 + [0] * 2]
            assert inside[1, :, :, 5:].abs().max() == 0
            assert inside[1, :, :, :5].sum(-1).allclose(torch.ones(7))
        case "autoregressive generation":
            assert [int(one.ids[0]) for one in inside] == value[0, 3:].tolist()
        case "training loss":
            ids = names["prompt"]["input_ids"]
            assert value.item() == pytest.approx(torch.nn.functional.cross_entropy(inside[0, :-1], ids[0, 1:]).item())
        case "hidden states at each layer":
            assert torch.equal(value[1], inside)
            assert torch.equal(value[0], names["decoder_sites"]["embedding"])
            assert torch.equal(value[-1], names["decoder_sites"]["final"])
        case "attention weights" | "cross-attention weights":
            assert torch.equal(value[0], inside)
        case _:
            assert torch.equal(value, inside)


def test_the_notes_below_the_table_hold(names: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    names["AutoModelForSequenceClassification"].from_pretrained("minilm", num_labels=2)
    (note,) = [record.message for record in caplog.records]
    assert f"`{note}`" in PAGE.read_text("utf-8")
    assert names["decoder_sites"]["blocks.29.residual"].shape == (1, 3, 576)
    eager = names["AutoModel"].from_pretrained("minilm", attn_implementation="eager")
    assert torch.equal(eager(**names["inputs"]).last_hidden_state, names["encoder"](**names["inputs"]).last_hidden_state)
