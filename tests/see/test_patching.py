"""Patching: every cell against the reference with a hook in it, one pass for each, on every family and executor."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
import torch

from glassformer.engine.protocol import BlockInput
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError
from glassformer.ground.sites import Watch
from glassformer.page.terminal import TerminalPage, plain_text
from glassformer.see.passes import encoder_pass
from glassformer.see.patching import pair as read_pair
from glassformer.see.patching.compute import BY_HEAD, SITES, PartPlaces, one_pair, run_patches
from glassformer.see.patching.pair import TextPair
from glassformer.see.patching.view import PatchedPart, Patching
from glassformer.see.schema import schema
from tests.features.dictionaries import write_folder
from tests.parity import reference
from tests.see.models import EXECUTORS, WRITERS, Both, both, encoder
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")
FIRST, SECOND = "the cat sat on the mat", "the dog sat on the cat"  # words or letters: as many tokens in each


def swept(family: str, executor: str) -> bool:
    """Every family on the fast executor, the slow one with one of each shape; the rest with the sweeps."""
    return executor == "plain" and family not in ("gpt2", "llama", "t5")


PAIRS = [(family, executor) for family in WRITERS for executor in EXECUTORS]


def marked(*values: Any, sweep: bool) -> Any:
    """Parameters whose first is one of PAIRS."""
    return pytest.param(*values, id="-".join((*values[0], *values[1:])), marks=[pytest.mark.sweep] if sweep else [])


@pytest.fixture(params=[marked(names, sweep=swept(*names)) for names in PAIRS])
def pair(request: pytest.FixtureRequest) -> Both:
    return both(*request.param)


def readings(pair: Both) -> tuple[Any, Any]:
    return pair.reading(FIRST), pair.reading(SECOND)


def patching(
    first: Any, second: Any, part: PatchedPart = "residual", positions: Any = None, *, answer: Any = None,
    against: Any = None, progress: Any = None,
) -> Patching:  # fmt: skip
    """What `model.patch` makes of texts that are read."""
    pair, places = TextPair(first, second, positions, answers=(answer, against)), PartPlaces(part)
    return one_pair(places, *run_patches([pair], places, progress=progress))


def answers(pair: Both) -> dict[str, int]:
    """Two tokens that are told apart; tiny models lead to the same one everywhere."""
    first, second = (pair.run(reading).logits[0, -1] for reading in readings(pair))
    gap = first - second
    return {"answer": int(gap.argmax()), "against": int(gap.argmin())}


def blocks(pair: Both) -> list[Any]:
    """The reference's blocks on the side that is patched."""
    model = pair.reference
    if pair.family == "gpt2":
        return list(model.transformer.h)
    if pair.family == "t5":
        return list(model.encoder.block)
    return list(model.model.encoder.layers if pair.family == "bart" else model.model.layers)


def last_scores(pair: Both, reading: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = pair.run(reading).logits[0, -1].numpy()
    return found


def stream(output: Any) -> torch.Tensor:
    found: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return found


def hooked(pair: Both, layer: int, position: int) -> np.ndarray[Any, Any]:
    """The reference's scores of the second text, with one block's output at one position from the first."""
    first, second = readings(pair)
    block, kept = blocks(pair)[layer], []
    handle = block.register_forward_hook(lambda _, __, output: kept.append(stream(output).clone()))
    last_scores(pair, first)
    handle.remove()

    def patch(_: Any, __: Any, output: Any) -> None:
        stream(output)[0, position] = kept[0][0, position]

    handle = block.register_forward_hook(patch)
    try:
        return last_scores(pair, second)
    finally:
        handle.remove()


def test_each_cell_of_the_stream_is_the_references(pair: Both) -> None:
    asked = answers(pair)
    first, second = readings(pair)
    found = patching(first, second, **asked)
    wanted, other = asked["answer"], asked["against"]
    clean, dirty = (last_scores(pair, side)[[wanted, other]] @ [1, -1] for side in (first, second))
    assert found.differences == pytest.approx((clean, dirty), abs=1e-3)
    assert found.layers == ("embedding", *map(str, range(len(blocks(pair)))))
    ids = (first.source, second.source) if pair.sourced else (first.ids, second.ids)
    begins = 0 if pair.sourced else next(at for at, (a, b) in enumerate(zip(*ids, strict=True)) if a != b)
    assert found.positions == tuple(range(begins, len(ids[0])))
    for layer in range(len(blocks(pair))):
        for column, position in enumerate(found.positions):
            expected = (hooked(pair, layer, position)[[wanted, other]] @ [1, -1] - dirty) / (clean - dirty)
            assert found.values[layer + 1][column] == pytest.approx(expected, abs=2e-3)


RECURRENT_PARTS = ["recurrent", "recurrent_heads"]  # of layers that have a state beside attention
OTHER_PARTS = [part for part in get_args(PatchedPart) if part not in ("residual", *RECURRENT_PARTS)]
PAIRS_AND_PARTS = [  # each part with some of the pairs, all with the sweeps
    marked(names, part, sweep=swept(*names) or (at + number) % 3 != 0)
    for at, names in enumerate(PAIRS)
    for number, part in enumerate(OTHER_PARTS)
] + [marked(("falcon_h1", executor), part, sweep=executor != "cpu") for executor in EXECUTORS for part in RECURRENT_PARTS]


@pytest.mark.parametrize(("pair", "part"), PAIRS_AND_PARTS, indirect=["pair"])
def test_the_other_parts_one_change_at_a_time(pair: Both, part: PatchedPart) -> None:
    """Against the same change made by hand, in a pass of its own."""
    asked = answers(pair)
    first, second = readings(pair)
    found = patching(first, second, part, **asked)
    prefix = "encoder." if pair.sourced else ""
    clean, dirty = found.differences
    begins = min(found.positions)
    for layer, row in enumerate(found.values):
        site = prefix + SITES[part].format(layer)
        value = first.at(site)
        for column, cell in enumerate(row):
            spots = list(found.positions) if part in BY_HEAD else [found.positions[column]]
            shift = value[column][None, begins:] if part in BY_HEAD else value[spots[0]]
            change = {site: Change(0.0, shift, spots, [column] if part in BY_HEAD else None)}
            changed = type(second)(pair.model.changed(change), second.ids, second.source, second.prompt_length)
            scores = np.concatenate([chunk.scores for chunk in changed.chunks(scored=True)])[-1]
            lead = float(scores[asked["answer"]] - scores[asked["against"]])
            assert cell == pytest.approx((lead - dirty) / (clean - dirty), abs=2e-3)
    assert found.heads == (len(found.values[0]) if part in BY_HEAD else 0)


def test_heads_that_share_a_key() -> None:
    found = patching(*readings(both("llama")), "value", **answers(both("llama")))
    heads = both("llama").model.config.num_attention_heads
    assert found.heads * found.sharing == heads > found.heads
    assert found.columns[0] == f"0–{found.sharing - 1}"
    assert f"which {found.sharing} heads share" in str(found)
    assert found.at(0, 1) == found.values[0][1]
    assert patching(*readings(both("llama")), "query", **answers(both("llama"))).sharing == 1


def test_a_position_by_either_text_s_token() -> None:
    pair = both("gpt2")
    first, second = pair.reading("xat"), pair.reading("xbt")
    gap = pair.run(first).logits[0, -1] - pair.run(second).logits[0, -1]
    told = {"answer": int(gap.argmax()), "against": int(gap.argmin())}
    assert {patching(first, second, positions=one, **told).positions for one in (1, "b", "a")} == {(1,)}


def test_a_word_exchanged_at_the_bottom_is_the_other_text(pair: Both) -> None:
    """With one token that differs, the embedding there is all there is: it brings everything back, and no other does."""
    first, second = pair.reading(FIRST), pair.reading("the cat sat on the cat")
    gap = pair.run(first).logits[0, -1] - pair.run(second).logits[0, -1]
    found = patching(first, second, answer=int(gap.argmax()), against=int(gap.argmin()))
    changed = [at for at, (a, b) in enumerate(zip(*found.tokens, strict=True)) if a != b]
    assert len(changed) == 1
    whole = found.values[0]
    for column, position in enumerate(found.positions):
        assert whole[column] == pytest.approx(1.0 if position == changed[0] else 0.0, abs=1e-3)


def test_positions_are_named_by_number_or_token(pair: Both) -> None:
    asked = answers(pair)
    first, second = readings(pair)
    whole = patching(first, second, **asked)
    some = patching(first, second, positions=[whole.positions[-1], whole.positions[-2]], **asked)
    assert some.positions == whole.positions[-2:]  # in the order of the text
    assert np.allclose(np.asarray(some), np.asarray(whole)[:, -2:], atol=1e-5)
    one = patching(first, second, positions=whole.positions[-1], **asked)
    assert one.at(0, whole.positions[-1]) == pytest.approx(whole.at("0", whole.positions[-1]), abs=1e-5)
    assert whole.at("embedding", whole.positions[0]) == whole.values[0][0]
    by_token = patching(first, second, positions=[whole.tokens[1][-1]], **asked)
    assert by_token.tokens[1][by_token.positions[0]] == whole.tokens[1][-1]
    heads = patching(first, second, "heads", positions=whole.positions[:1], **asked)
    assert heads.positions == whole.positions[:1]


def test_one_pass_or_many_it_is_the_same(monkeypatch: pytest.MonkeyPatch, pair: Both) -> None:
    asked = answers(pair)
    together = patching(*readings(pair), "heads", **asked)
    monkeypatch.setattr(read_pair, "BATCH_TOKENS", 1)
    told: list[tuple[int, int]] = []
    alone = patching(*readings(pair), "heads", **asked, progress=lambda done, every: told.append((done, every)))
    assert np.allclose(alone.values, together.values, atol=1e-5)
    cells = len(together.layers) * len(together.columns)
    assert told == [(number, cells) for number in range(1, cells + 1)]


def test_a_model_that_fills_gaps() -> None:
    pair = encoder()
    first, second = (pair.model.read(text) for text in ("the cat sat on [MASK]", "a cat sat on [MASK]"))
    assert len(first) == len(second)
    mask = first.ids.index(pair.model.tokenizer.mask_token_id)
    clean, dirty = (pair.run(side).logits[0, mask] for side in (first, second))
    gap = clean - dirty
    wanted, other = int(gap.argmax()), int(gap.argmin())
    found = patching(first, second, answer=wanted, against=other)
    assert found.positions == tuple(range(len(first)))
    layers = pair.reference.bert.encoder.layer
    leads = [float(scores[wanted] - scores[other]) for scores in (clean, dirty)]
    for number, layer in enumerate(layers):
        for position in found.positions:
            kept: list[torch.Tensor] = []
            handle = layer.register_forward_hook(lambda _, __, output, kept=kept: kept.append(stream(output).clone()))
            pair.run(first)
            handle.remove()

            def patch(_: Any, __: Any, output: Any, at: int = position, kept: list[torch.Tensor] = kept) -> None:
                stream(output)[0, at] = kept[0][0, at]

            handle = layer.register_forward_hook(patch)
            scores = pair.run(second).logits[0, mask]
            handle.remove()
            expected = (float(scores[wanted] - scores[other]) - leads[1]) / (leads[0] - leads[1])
            assert found.values[number + 1][position] == pytest.approx(expected, abs=2e-3)


def test_json_and_pictures_of_a_patching(pair: Both) -> None:
    for part in ("residual", "heads"):
        found = patching(*readings(pair), part, **answers(pair))
        jsonschema.validate(json.loads(json.dumps(found.to_dict(), allow_nan=False)), schema(Patching))
        for width in (80, 120):
            shown = plain_text(TerminalPage(found.page(everything=True)), width)
            assert max(map(len, shown.splitlines())) <= width
        assert f"from: {found.texts[0]}" in shown
        every = sorted((abs(value) for row in found.values for value in row), reverse=True)
        assert [abs(cell.value) for cell in found.cells] == every
        if part == "heads":
            best = found.cells[0]
            assert found.at(best.layer, int(best.place)) == best.value
            assert f"{best.value:+.1%}" in shown
        assert repr(found).startswith("Patching(")
        assert ("where it is carried" in shown) == (part == "residual")


def test_model_patch() -> None:
    pair = both("qwen3")
    asked = answers(pair)
    assert pair.model.patch(FIRST, SECOND, **asked) == patching(*readings(pair), **asked)
    sourced = both("t5")
    told = sourced.model.patch(FIRST, SECOND, target="a dog sat", **answers(sourced))
    assert told == patching(*readings(sourced), **answers(sourced))


def test_texts_that_lead_to_the_same() -> None:
    """What is said names two tokens, and these do tell the texts apart."""
    model = both("qwen3").model
    first, second = "the cat sat on the mat", "the cat sat on the cat"
    one, other = (reading.attribution().id for reading in (model.read(first), model.read(second)))
    assert one == other
    with pytest.raises(InputError, match="tell them apart") as said:
        model.patch(first, second)
    named = re.findall(r"'[^']+'|\"[^\"]+\"", str(said.value))[-2:]
    assert len(set(named)) == 2


def test_what_the_picture_says_of_the_answers() -> None:
    pair = both("qwen3")
    asked = answers(pair)
    found = pair.model.patch(FIRST, SECOND, **asked)
    shown = plain_text(TerminalPage(found.page()), 200)
    assert "which places move" in shown  # for these are not what the texts lead to
    own = replace(found, best=(asked["answer"], asked["against"]))
    assert "which places make it" in plain_text(TerminalPage(own.page()), 200)
    behind = replace(found, differences=(2.5, -3.25))
    shown = plain_text(TerminalPage(behind.page()), 200)
    assert "is 3.25 behind" in shown
    assert "is 2.50 ahead of" in shown
    assert "differ little in this" not in shown
    assert "differ little in this" in plain_text(TerminalPage(replace(found, differences=(0.2, -0.1)).page()), 200)


def test_where_it_is_carried() -> None:
    """From layer to layer one place, another, or none."""
    pair = both("qwen3")
    found = pair.model.patch(FIRST, SECOND, positions=[-2, -1], **answers(pair))
    first, second = found.positions
    spread = replace(found, values=((0.9, 0.1), (0.7, 0.2), (0.4, 0.4), (-0.2, 1.1)))
    lines = plain_text(TerminalPage(spread.page()), 100).split("where it is carried")[1].splitlines()[2:]
    assert [line.split("  ")[0] for line in lines] == ["embedding to layer 0", "layer 1", "layer 2"]
    assert [f" {first} " in lines[0], "no single place" in lines[1], f" {second} " in lines[2]] == [True] * 3
    assert "70.0%" in lines[0]


def test_a_patching_names_the_models_changes() -> None:
    pair = both("qwen3")
    changed = pair.model.changed({"blocks.1.mlp.update": Change(scale=0.5)})
    found = changed.patch(FIRST, SECOND, **answers(pair))
    assert found.changes == ("blocks.1.mlp.update",)
    assert "under a change of blocks.1.mlp.update" in plain_text(TerminalPage(found.page()), 100)


def test_a_cell_that_is_not_there() -> None:
    pair = both("qwen3")
    found = pair.model.patch(FIRST, SECOND, **answers(pair))
    for layer, column in ((9, found.positions[0]), (0, 99)):
        with pytest.raises(InputError, match=f"layer {layer} and position {column}"):
            found.at(layer, column)


@pytest.mark.parametrize("part", ["residual", "heads"])
def test_an_encoder_is_computed_from_the_patched_block_on(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    model = encoder().model
    counted = model.changed({"blocks.0.attention.input": lambda value, where: calls.append(where.site)})
    texts = [counted.read(text) for text in ("the cat sat on [MASK]", "a cat sat on [MASK]")]
    found = patching(*texts, part, answer=3, against=5)
    from_block, calls[:] = len(calls), []
    monkeypatch.setattr(read_pair, "entry_sites", lambda text: {})
    assert np.allclose(found.values, patching(*texts, part, answer=3, against=5).values, atol=1e-5)
    later = model.blueprint.blocks - 1  # blocks that a patch can begin at
    assert len(calls) - from_block == later * len(found.columns) - 1  # one pass more reads what enters them


@pytest.mark.parametrize("family", mostly_swept(reference.ENCODERS, "bert", "albert", "deberta-v2", "modernbert"))
def test_a_pass_of_an_encoder_begins_at_any_block(family: str) -> None:
    model = encoder(family).model.changed({"blocks.0.residual": Change(scale=1.1)})
    reading = model.read("the cat sat")
    for block in range(1, model.blueprint.blocks):
        begin = BlockInput(block, reading.at(f"blocks.{block - 1}.residual"))
        last = f"blocks.{model.blueprint.blocks - 1}.residual"
        watch = Watch(frozenset({last, "scores"}), {f"blocks.{block}.attention.heads": Change(scale=0.0, heads=[0])})
        (scores, sites), (whole, all_sites) = (encoder_pass(model, reading.ids, watch, *at) for at in ((begin,), ()))
        np.testing.assert_allclose(scores, whole, atol=1e-5)
        assert sites.keys() == all_sites.keys() == {last, "scores"}
        np.testing.assert_allclose(sites[last], all_sites[last], atol=1e-5)


def test_patches_under_a_change_that_reads_another_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transcoder across blocks: every patch is computed from the start, since what it reads is there."""
    model = both("llama", "cpu").model
    hooks = {"hook_name": "blocks.0.hook_mlp_out", "hook_name_out": "blocks.1.hook_mlp_out"}
    dictionary = model.dictionary(write_folder(tmp_path / "across", "transcoder", metadata=hooks))
    seen: list[torch.Tensor] = []  # of the rows of a pass, in order

    def look(value: torch.Tensor, where: Any) -> None:
        seen.append(torch.from_numpy(dictionary.encode_some(value[0].numpy(), [4])))

    def hold(value: torch.Tensor, where: Any) -> torch.Tensor:
        return value + (2 - seen.pop(0)) * torch.from_numpy(dictionary.direction(4))

    clamped = model.changed(dictionary.clamp({4: 2.0})).patch(FIRST, SECOND)
    monkeypatch.setattr(read_pair, "entry_sites", lambda text: {})
    by_hand = model.changed({dictionary.site: look, dictionary.site_out: hold}).patch(FIRST, SECOND)
    np.testing.assert_allclose(clamped.values, by_hand.values, atol=1e-4)
    assert not np.allclose(clamped.values, model.patch(FIRST, SECOND).values, atol=1e-3)
