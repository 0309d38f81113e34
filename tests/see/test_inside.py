"""Stepping inside: every level of every family, down to one number, whose arithmetic gives what the engine gave."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer
from glassformer.ops.activate import ACTIVATIONS, torch_activation
from glassformer.page.format import visible
from glassformer.see.inside.compute import make_strip
from glassformer.see.inside.view import Inside
from glassformer.see.reading import Reading
from glassformer.see.schema import schema
from glassformer.see.tokens import token_text
from tests.see.models import WRITERS, both, encoder, folder
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")
ENCODERS = ("bert", "roberta", "distilbert")
POSITION = 3


def reading_of(family: str, executor: str = "plain") -> Any:
    return encoder(family).model.read("the cat sat on") if family in ENCODERS else both(family, executor).reading()


def levels(reading: Reading, path: str = "") -> Iterator[Inside]:
    """A level and those inside it: every part, and the first few heads, keys and numbers. Of the blocks, the second."""
    view = reading.inside(path, POSITION)
    assert view.path == path
    yield view
    inner = [part.path for part in view.parts if part.path and "blocks." not in part.path.removeprefix("encoder.blocks.1")]
    if path == "":
        inner += ["blocks.1", *(["encoder.blocks.1"] if reading.source else [])]
    elif view.kind in ("block", "group"):
        inner = [part.path for part in view.parts if part.path]
    inner += [row.path for row in view.heads[1:3]] + [key.path for key in view.keys[:3]]
    for inside in [*inner, *(number.path for number in view.numbers[:2])]:
        yield from levels(reading, inside)


OTHERS = ("phi3", "olmo2", "granite", "smollm3", "gemma2", "gpt_neox", "cohere2")  # each with a mechanism of its own


@pytest.mark.parametrize(
    "family", mostly_swept([*WRITERS, *ENCODERS, *OTHERS], "gpt2", "qwen3", "gemma3_text", "t5", "bert")
)
def test_each_numbers_arithmetic_ends_at_the_engines_number(family: str) -> None:
    reading = reading_of(family)
    kinds, compared = set[str](), 0
    for view in levels(reading):
        kinds.add(view.kind)
        for product in view.products:
            terms = sum(term.product for term in product.terms) + product.others_sum
            assert terms == pytest.approx(product.total, abs=1e-5)
        if view.result is not None:
            compared += 1
            assert view.steps[-1].value == pytest.approx(view.result, abs=1e-4), view.path
            assert not any("engine" in note for note in view.notes)
    assert kinds == {"model", "block", "group", "operation", "number", "head", "score"}
    assert compared > 20


@pytest.mark.parametrize(("family", "prefix"), [
    ("qwen3", "blocks.1.attention"), ("gemma3_text", "blocks.2.attention"), ("bert", "blocks.1.attention"),
    ("t5", "blocks.1.attention"), ("t5", "blocks.1.cross"), ("t5", "encoder.blocks.1.attention"),
])  # fmt: skip
def test_a_heads_scores_become_the_engines_attention_pattern(family: str, prefix: str) -> None:
    reading = reading_of(family)
    pattern = reading.at(f"{prefix}.pattern")
    for head in range(len(pattern)):
        view = reading.inside(f"{prefix}.heads.{head}", POSITION)
        scores = np.array([key.score if key.visible else -np.inf for key in view.keys])
        softmax = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        assert np.abs(softmax - pattern[head, POSITION]).max() < 1e-5
        assert [key.weight for key in view.keys] == pattern[head, POSITION].tolist()


def test_a_head_says_which_key_head_it_shares() -> None:
    view = reading_of("qwen3").inside("blocks.1.attention")
    assert [row.key_head for row in view.heads] == [0, 0, 1, 1]
    assert "Grouped-query attention: 4 query heads share 2 key and value heads." in view.notes
    assert "Query head 3 uses key head 1." in reading_of("qwen3").inside("blocks.1.attention.heads.3.0").notes


def test_what_a_mask_hides_has_no_weight() -> None:
    later = reading_of("qwen3").inside("blocks.0.attention.heads.0.5", 2)
    assert later.steps[-1].expression == "masked: this token may not look there"
    assert later.result == later.steps[-1].value == 0
    beyond_the_window = reading_of("gemma3_text").inside("blocks.0.attention.heads.0", 9)
    assert [key.visible for key in beyond_the_window.keys][:10] == [False] * 5 + [True] * 5
    assert "Sliding window: no further back than 5 tokens, itself included." in beyond_the_window.notes


@pytest.mark.parametrize(("path", "nearest"), [
    ("nothing", ""), ("blocks.99", ""), ("blocks.1.nothing", "blocks.1"),
    ("blocks.1.attention.nothing.4", "blocks.1.attention"),
    ("blocks.1.attention.pattern", "blocks.1.attention"), ("blocks.1.attention.heads.99", "blocks.1.attention"),
    ("blocks.1.attention.heads.1.999", "blocks.1.attention.heads.1"),
    ("blocks.1.attention.heads.1.x", "blocks.1.attention.heads.1"),
    ("blocks.1.mlp.hidden.100000", "blocks.1.mlp.hidden"), ("blocks.1.mlp.hidden.٣", "blocks.1.mlp.hidden"),
    ("encoder.blocks.0", ""), ("relative_attention_bias", ""),
])  # fmt: skip
def test_a_path_that_does_not_exist_gives_the_nearest_level(path: str, nearest: str) -> None:
    assert reading_of("qwen3").inside(path).path == nearest


def test_biases_by_distance_are_no_level() -> None:
    assert reading_of("t5").inside("relative_attention_bias").path == ""


def test_levels_know_the_ones_around_them() -> None:
    reading = reading_of("qwen3")
    view = reading.inside("blocks.1.attention.heads.2.3", 4)
    assert [crumb.label for crumb in view.crumbs] == ["model", "block 1", "attention", "head 2", "q·k"]
    assert [reading.inside(crumb.path).path for crumb in view.crumbs] == [crumb.path for crumb in view.crumbs]
    assert (view.previous, view.next) == ("blocks.1.attention.heads.2.2", "blocks.1.attention.heads.2.4")
    block = reading.inside("blocks.1")
    assert (block.previous, block.next) == ("blocks.0", "blocks.2")
    assert [(part.name, part.inputs) for part in block.parts] == [
        ("residual stream", ()), ("attention", (0,)), ("stream after attention", (0, 1)), ("MLP", (2,)),
        ("stream after the block", (2, 3)),
    ]  # fmt: skip


def test_a_decoders_cross_attention_reads_the_encoder() -> None:
    block = reading_of("t5").inside("blocks.1")
    named = {part.name: part for part in block.parts}
    assert [block.parts[number].name for number in named["cross-attention"].inputs] == [
        "encoder's states",
        "stream after attention",
    ]
    encoder_block = reading_of("t5").inside("encoder.blocks.1", 99)
    assert (encoder_block.side, encoder_block.position) == ("source", len(encoder_block.tokens) - 1)
    assert [reading_of("t5").inside(f"blocks.1.cross.{name}").side for name in ("query", "key", "value", "heads.0")] == [
        "text", "source", "source", "text",
    ]  # fmt: skip
    names = [part.name for part in reading_of("t5").inside().parts]
    assert names[0] == "encoder embedding (shared)"
    assert "encoder last norm (final_layer_norm)" in names


@pytest.mark.parametrize(("family", "path"), [
    ("qwen3", "blocks.1.attention.heads.3.2"), ("t5", "blocks.1.cross.heads.1.2"), ("bert", "blocks.0.mlp.update.5"),
    ("qwen3", "blocks.1.attention.query.17"), ("qwen3", "blocks.1.mlp.hidden.5"),
])  # fmt: skip
def test_its_python_lines_give_the_same_numbers(family: str, path: str) -> None:
    reading = reading_of(family)
    view = reading.inside(path, POSITION)
    names: dict[str, Any] = {"reading": reading, "model": reading.model}
    numbers = []
    for line in view.python[:-1]:
        name, assigns, expression = line.partition(" = ")
        value = eval(expression if assigns else line, names)
        numbers += [] if assigns else [float(value)]
        names |= {name: value} if assigns else {}
    shown = {*(step.value for step in view.steps), view.result}
    for number in numbers:
        assert min(abs(number - (value or 0)) for value in shown) < 1e-5
    assert eval(view.python[-1], names) == view


def test_long_vectors_are_drawn_by_the_numbers_furthest_from_zero() -> None:
    strip = make_strip(np.float32([1, -4, 2, 3, -1]), most=2)
    assert (strip.size, strip.group, strip.cells) == (5, 3, (-4.0, 3.0))


def test_levels_fit_their_schema() -> None:
    for path in ("", "blocks.0.attention", "blocks.0.attention.heads.1.0", "scores"):
        view = reading_of("gpt2").inside(path)
        jsonschema.validate(json.loads(json.dumps(view.to_dict(), allow_nan=False)), schema(Inside))


def test_scores_are_named_by_their_tokens() -> None:
    reading = reading_of("gpt2")
    view = reading.inside("scores", POSITION)
    best = int(reading.at("scores")[POSITION].argmax())
    assert view.numbers[0].path == f"scores.{best}"
    assert view.numbers[0].label == visible(token_text(reading.model.tokenizer, best))
    assert reading.inside(view.numbers[0].path, POSITION).title == view.numbers[0].label


def test_every_activation_can_be_shown() -> None:
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    for name, (function, _) in ACTIVATIONS.items():
        assert np.abs(function.compute(x) - torch_activation(name, torch.from_numpy(x)).numpy()).max() < 1e-5, name


def test_weights_are_found_under_their_old_names(tmp_path: Path) -> None:
    """Old files call a norm's weights gamma and beta, and leave the base's name out."""
    source = folder("bert", "masked")[0]
    shutil.copytree(source, tmp_path / "old")
    tensors = load_file(source / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
    save_file(old, tmp_path / "old" / "model.safetensors", {"format": "pt"})
    reading = glassformer.load(tmp_path / "old").read("the cat sat on")
    path = "blocks.1.middle.5"
    assert reading.inside(path, 2).steps == encoder("bert").model.read("the cat sat on").inside(path, 2).steps


def test_ids_are_read_as_a_run_has_them() -> None:
    for family in ("qwen3", "t5"):
        model = both(family).model
        run = model.watch("the cat", max_new_tokens=3)
        assert model.read_ids(run.prompt_ids, run.ids) == run.reading
