"""Families that have no file here: what they write, their states, updates and patterns, against transformers' own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.blueprints import model_types
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError, SiteError
from tests.engine.bridge import families
from tools.model_table import PAGE, bridge_row

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = [5, 9, 31, 44, 17, 80, 6, 5, 7, 23, 60]
SOURCE = [7, 21, 33, 101, 8, 5, 77]
WRITING = [*families.DECODERS, *families.PAIRS]
WITHOUT_PATTERNS = (
    "mamba", "falcon_mamba", "rwkv", "recurrent_gemma", "jamba", "fnet", "funnel", "longformer",
)  # fmt: skip  # they have none, or none of each token for each
STATES_AFTER_BLOCKS = ("mamba", "falcon_mamba", "rwkv")  # their hidden states are what leaves each block, not what enters
CHANGED_BY_HAND = {  # a family: the module that makes a block's update, as its own file has it
    "codegen": ("blocks.1.attention.update", "transformer.h.1.attn"),
    "mamba": ("blocks.1.attention.update", "backbone.layers.1.mixer"),
    "rwkv": ("blocks.1.mlp.update", "rwkv.blocks.1.feed_forward"),
    "jetmoe": ("blocks.2.mlp.update", "model.layers.2.mlp"),
    "convbert": ("blocks.0.mlp.update", "convbert.encoder.layer.0.output.dense"),
    "plbart": ("blocks.1.cross.update", "model.decoder.layers.1.encoder_attn"),
    "longt5": ("encoder.blocks.1.mlp.update", "encoder.block.1.layer.1.DenseReluDense"),
}


@cache
def both(kind: str) -> tuple[Any, Any]:
    """A model as it is loaded here, and transformers' own."""
    folder = Path(mkdtemp())
    reference = families.write(folder, kind)
    return glassformer.load(folder), reference


def reading(model: Any) -> Any:
    """The text under the glass; an encoder-decoder's target."""
    if model.head == "seq2seq":
        return model.read_ids(SOURCE, TEXT[1:])
    return model.read_ids(TEXT)


def reference_pass(kind: str, **asked: bool) -> Any:
    _, reference = both(kind)
    ids = torch.tensor([[reference.config.decoder_start_token_id, *TEXT[1:]] if kind in families.PAIRS else TEXT])
    given = {"input_ids": torch.tensor([SOURCE]), "decoder_input_ids": ids} if kind in families.PAIRS else {"input_ids": ids}
    with torch.no_grad():
        return reference(**given, **asked, **({"use_cache": False} if kind in WRITING else {}))


def same(one: Any, other: Any) -> bool:
    other = other.numpy() if isinstance(other, torch.Tensor) else other
    return one.shape == other.shape and bool(np.allclose(one, other, atol=2e-4, rtol=1e-3))


def test_there_are_at_least_twenty_and_no_file_for_any() -> None:
    tested = {*families.DECODERS, *families.ENCODERS, *families.PAIRS}
    assert len(tested) >= 20
    assert tested.isdisjoint(model_types())


@pytest.mark.parametrize("kind", WRITING)
def test_writes_what_transformers_writes(kind: str) -> None:
    model, reference = both(kind)
    prompt = SOURCE if kind in families.PAIRS else TEXT
    run = model.watch(prompt, max_new_tokens=12, eos_token_id=None)
    written = reference.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=12, min_new_tokens=0,
        do_sample=False, num_beams=1, eos_token_id=None, use_cache=kind != "prophetnet",
    )[0].tolist()  # fmt: skip
    assert list(run.ids) == written[-12:]


@pytest.mark.parametrize("kind", [*WRITING, *families.ENCODERS])
def test_states_are_the_references(kind: str) -> None:
    model, _ = both(kind)
    output, text = reference_pass(kind, output_hidden_states=True), reading(model)
    pair = kind in families.PAIRS
    stacks = [("encoder.", output.encoder_hidden_states)] if pair else []
    decoded = output.decoder_hidden_states if pair else output.hidden_states
    stacks += [("", decoded)] if model.blueprint.blocks else []
    compared, shifted = 0, kind in STATES_AFTER_BLOCKS
    for stack, states in stacks:
        blocks = model.blueprint.encoder_blocks if stack else model.blueprint.blocks
        sites = [f"{stack}embedding", *(f"{stack}blocks.{index}.residual" for index in range(blocks))][shifted:]
        for index, site in enumerate(sites):
            state = (states[index][0] if isinstance(states[index], tuple) else states[index])[
                0, : len(SOURCE if stack else TEXT)
            ]
            found = text.at(site)
            if index == len(sites) - 1 and not same(found, state):  # after the last norm, where the reference's last is
                found = text.at(f"{stack}final")
            assert same(found, state), site
            compared += 1
    assert compared >= 3


@pytest.mark.parametrize("kind", [*WRITING, *families.ENCODERS])
def test_scores_are_the_references(kind: str) -> None:
    model, _ = both(kind)
    assert same(reading(model).at("scores"), reference_pass(kind).logits[0])


@pytest.mark.parametrize("kind", [*WRITING, *families.ENCODERS])
def test_patterns_are_the_references(kind: str) -> None:
    model, reference = both(kind)
    sites = [site for site in model.blueprint.sites if site.endswith(".pattern")]
    if kind in WITHOUT_PATTERNS:
        assert sites == []
        return
    assert sites
    before = reference.config._attn_implementation
    reference.set_attn_implementation("eager")
    output, text = reference_pass(kind, output_attentions=True), reading(model)
    reference.set_attn_implementation(before)
    pair = kind in families.PAIRS
    for site in sites:
        block = int(site.split("blocks.")[1].split(".")[0])
        if site.startswith("encoder."):
            expected = output.encoder_attentions[block]
        elif ".cross." in site:
            expected = output.cross_attentions[block]
        else:
            expected = (output.decoder_attentions if pair else output.attentions)[block]
        assert same(text.at(site), expected[0]), site


@pytest.mark.parametrize("kind", [*WRITING, *families.ENCODERS])
def test_reading_sites_changes_nothing(kind: str) -> None:
    model, _ = both(kind)
    text = reading(model)
    sites = [site for site in model.blueprint.sites if site != "scores"]
    assert np.array_equal(text.at("scores"), text.values("scores", *sites)["scores"])


@pytest.mark.parametrize("kind", CHANGED_BY_HAND)
@pytest.mark.parametrize("named", ["site", "module"])
def test_an_update_is_what_its_module_gives(kind: str, named: str) -> None:
    model, reference = both(kind)
    site, module = CHANGED_BY_HAND[kind]

    def nothing(_: Any, inputs: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        return (torch.zeros_like(first), *output[1:]) if isinstance(output, tuple) else torch.zeros_like(first)

    before = reading(model).at("scores")
    changed = model.changed({site if named == "site" else f"module:{module}": Change(scale=0)})
    handle = reference.get_submodule(module).register_forward_hook(nothing)
    expected = reference_pass(kind).logits[0]
    handle.remove()
    found = reading(changed).at("scores")
    assert same(found, expected)
    assert not same(found, before)


@pytest.mark.parametrize(
    ("kind", "module"),
    [("mamba", "backbone.layers.2.mixer.out_proj"), ("diffllama", "model.layers.0.mlp.up_proj"),
     ("dbrx", "transformer.blocks.1.norm_attn_norm.attn.Wqkv"), ("fnet", "fnet.encoder.layer.1.intermediate.dense"),
     ("plbart", "model.decoder.layers.0.fc1"), ("plbart", "model.encoder.layers.0.fc1")],
)  # fmt: skip
def test_any_module_is_a_site(kind: str, module: str) -> None:
    model, reference = both(kind)
    seen = []
    handle = reference.get_submodule(module).register_forward_hook(lambda _, inputs, output: seen.append(output))
    reference_pass(kind)
    handle.remove()
    assert same(reading(model).at(f"module:{module}"), seen[0][0])


def test_a_module_is_found_by_a_pattern() -> None:
    model, _ = both("mamba")
    found = reading(model).values("module:*.mixer.in_proj")
    assert list(found) == [f"module:backbone.layers.{index}.mixer.in_proj" for index in range(3)]


@pytest.mark.parametrize("kind", ["mamba", "codegen", "recurrent_gemma", "plbart", "rembert"])
def test_states_are_read_out_as_the_model_does(kind: str) -> None:
    model, _ = both(kind)
    text = reading(model)
    states = text.at(f"blocks.{model.blueprint.blocks - 1}.residual")
    assert same(model.unembed(states), text.at("scores"))


@pytest.mark.parametrize("kind", families.WITHOUT_STREAM)
def test_what_is_not_found_is_not_there(kind: str) -> None:
    model, _ = both(kind)
    assert same(reading(model).at("scores"), reference_pass(kind).logits[0])
    with pytest.raises(SiteError, match=r"blocks\.\*\.residual"):
        reading(model).values("blocks.*.residual")
    assert "the model" in [phase.name for phase in model.look(families.text(TEXT)).phases]


@pytest.mark.parametrize("kind", [*WRITING, *families.ENCODERS, *families.WITHOUT_STREAM])
def test_the_page_says_what_is_found(kind: str) -> None:
    assert bridge_row(kind, both(kind)[0]) in PAGE.read_text("utf-8").splitlines(), "python tools/model_table.py"


@pytest.mark.parametrize("kind", ["codegen", "mamba", "plbart", "fnet"])
def test_the_lines_of_a_journey_run_as_they_are_printed(kind: str) -> None:
    """Over `glass.load(…)`, which the first of them names: no Auto class knows such a model."""
    model, _ = both(kind)
    journey = model.look(families.text(TEXT))
    assert journey.stages[0].python.endswith("model = glass.load(…)")
    names: dict[str, Any] = {"model": model, "text": journey.prompt}
    for stage in journey.stages:
        target, equals, _ = stage.python.partition("  #")[0].partition(" = ")
        if equals:
            exec(stage.python, names)
        value = names[target] if equals else eval(stage.python, names)
        assert (value.shape if isinstance(value, np.ndarray) else (len(value),)) == stage.shape, stage
    assert names["ids"] == [token.id for token in journey.tokens]
    if model.writes:
        assert names["best"] == [journey.next.id]


def test_an_encoder_decoder_whose_blocks_are_not_seen_writes() -> None:
    model, reference = both("fsmt")
    assert (model.blueprint.blocks, model.blueprint.encoder_blocks) == (0, 0)
    run = model.watch(SOURCE, max_new_tokens=6, num_beams=1, eos_token_id=None)
    written = reference.generate(
        torch.tensor([SOURCE]), attention_mask=torch.ones(1, len(SOURCE)), max_new_tokens=6, num_beams=1, do_sample=False,
        eos_token_id=None, use_cache=False,
    )[0].tolist()  # fmt: skip
    assert list(run.ids) == written[-6:]
    assert "encoder" in [phase.name for phase in model.look(families.text(SOURCE)).phases]


def test_a_model_that_pads_says_so_in_our_words(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    families.write(tmp_path, "longformer")
    model = glassformer.load(tmp_path)
    model.look("w5 <mask>")
    model.read("w0 <mask>").lens()  # with the token that pads
    assert [message.partition(" ")[2] for message in caplog.messages] == [
        "longformer is no family of Glassformer's own, so transformers computes it.",
        "pads each text inside; what is shown is of the text's own tokens.",
    ]
    assert "transformers]" not in capfd.readouterr().err


def test_a_model_that_reads_more_than_the_text_is_refused() -> None:
    model, _ = both("xlnet")
    with pytest.raises(ExecutorError, match="xlnet"):
        model.chat(TEXT)
