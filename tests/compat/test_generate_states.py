"""`generate` with output_hidden_states, output_attentions and watch: every step's states, as the reference gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer import Change
from glassformer.ground.errors import SettingError, SiteError
from tests.parity import reference

IDS = torch.tensor([[5, 9, 14, 3, 77, 21], [8, 8, 30, 41, 2, 19]])
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
ALL = {"return_dict_in_generate": True, "output_hidden_states": True, "output_attentions": True}
DECODER_FIELDS = ("hidden_states", "attentions")
PAIR_FIELDS = (
    "decoder_hidden_states", "decoder_attentions", "cross_attentions", "encoder_hidden_states", "encoder_attentions",
)  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "top_k": 1},  # the reference draws other numbers
    "beams": {"num_beams": 3},
    "beams, three texts": {"num_beams": 3, "num_return_sequences": 3},
}


@pytest.fixture(scope="module", params=["llama", "gpt2", "t5", "bart"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("states")
    is_pair = request.param in ("t5", "bart")
    layers = {"num_layers": 2, "num_decoder_layers": 2} if request.param == "t5" else {}  # its cache takes them for equal
    theirs = reference.write(folder, request.param, "seq2seq" if is_pair else "causal", **layers)
    auto = glassformer.AutoModelForSeq2SeqLM if is_pair else glassformer.AutoModelForCausalLM
    return auto.from_pretrained(folder).requires_grad_(False), theirs


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("llama")
    reference.write(folder, "llama")
    return glassformer.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)


def assert_nested_equal(ours: Any, theirs: Any, where: str = "") -> None:
    """The same tuples of tensors, however deep."""
    if isinstance(theirs, tuple):
        assert isinstance(ours, tuple), where
        assert len(ours) == len(theirs), where
        for number, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            assert_nested_equal(left, right, f"{where}[{number}]")
    else:
        assert ours.shape == theirs.shape, where
        assert torch.allclose(ours, theirs, atol=1e-4), where


def outputs(both: tuple[Any, Any], mask: torch.Tensor, **settings: Any) -> tuple[Any, Any]:
    settings = {"max_new_tokens": 4, "pad_token_id": 0, "eos_token_id": None, **ALL, **settings}
    return tuple(model.generate(IDS, attention_mask=mask, **settings) for model in both)  # type: ignore[return-value]


def fields(model: Any) -> tuple[str, ...]:
    return PAIR_FIELDS if model.config.is_encoder_decoder else DECODER_FIELDS


@pytest.mark.parametrize("way", WAYS)
def test_states_and_attentions_equal_the_reference(both: tuple[Any, Any], way: str) -> None:
    ours, theirs = outputs(both, torch.ones_like(IDS), **WAYS[way])
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    for name in fields(both[1]):
        assert_nested_equal(getattr(ours, name), getattr(theirs, name), name)
        assert name in ours


def test_padding_stays_in_its_columns(both: tuple[Any, Any]) -> None:
    """Where there are tokens, the numbers are the reference's; at padding it computes something, and ours are zero."""
    mask = MASK.flip(1) if both[1].config.is_encoder_decoder else MASK
    ours, theirs = outputs(both, mask)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    if both[1].config.is_encoder_decoder:
        assert_nested_equal(ours.decoder_hidden_states, theirs.decoder_hidden_states)
        assert_nested_equal(ours.cross_attentions, theirs.cross_attentions)
        states, expected = ours.encoder_hidden_states, theirs.encoder_hidden_states
    else:
        assert_nested_equal(ours.hidden_states[1:], theirs.hidden_states[1:])
        assert_nested_equal(ours.attentions[1:], theirs.attentions[1:])
        states, expected = ours.hidden_states[0], theirs.hidden_states[0]
    real = mask[..., None].bool()
    for layer, other in zip(states, expected, strict=True):
        assert torch.allclose(layer * real, other * real, atol=1e-4)
        assert not layer[~mask.bool()].any()


def test_a_text_that_has_ended_has_zeros(llama: Any) -> None:
    free = llama.generate(IDS, max_new_tokens=6, eos_token_id=None)[:, 6:].tolist()
    at, end = next((at, token) for at, token in enumerate(free[0]) if token not in free[1])
    output = llama.generate(IDS, max_new_tokens=6, eos_token_id=end, pad_token_id=0, **ALL)
    assert len(output.hidden_states) == len(output.attentions) == 6
    assert not output.hidden_states[at + 1][-1][0].any()
    assert output.hidden_states[at + 1][-1][1].any()
    assert output.steps[0][0].pass_sites is None


def test_several_sampled_texts_have_states_of_their_own(llama: Any) -> None:
    settings = {"do_sample": True, "seed": 3, "max_new_tokens": 3, "eos_token_id": None}
    output = llama.generate(IDS, num_return_sequences=2, **settings, **ALL)
    assert output.hidden_states[0][0].shape[:2] == (4, 6)
    whole = llama(output.sequences[:, :-1], output_hidden_states=True).hidden_states
    for layer, expected in enumerate(whole):
        parts = torch.cat([step[layer] for step in output.hidden_states], dim=1)
        assert torch.allclose(parts, expected, atol=1e-4)


class TestWatch:
    def test_sites_are_read_in_every_step(self, both: tuple[Any, Any]) -> None:
        ours, settings = both[0], {"max_new_tokens": 3, "eos_token_id": None, "return_dict_in_generate": True}
        settings["forced_eos_token_id"] = None
        output = ours.generate(IDS, watch=["blocks.1.residual", "blocks.0.attention.pattern", "scores"], **settings)
        assert output.hidden_states is None
        assert len(output.sites) == 3
        start = 1 if both[1].config.is_encoder_decoder else 6
        for step, sites in enumerate(output.sites):
            length = 1 if step else start
            assert sites["blocks.1.residual"].shape[:2] == (2, length)
            assert sites["blocks.0.attention.pattern"].shape[2:] == (length, start + step)
            assert sites["scores"].argmax(-1)[:, 0].tolist() == output.sequences[:, start + step].tolist()

    def test_sites_of_beams(self, llama: Any) -> None:
        settings = {"max_new_tokens": 3, "eos_token_id": None, "num_beams": 2, "return_dict_in_generate": True}
        output = llama.generate(IDS, watch="final", output_hidden_states=True, **settings)
        for step in range(3):
            assert torch.equal(output.sites[step]["final"], output.hidden_states[step][-1])

    @pytest.mark.parametrize("both", ["t5", "bart"], indirect=True)
    def test_the_encoders_sites_come_with_the_first_step(self, both: tuple[Any, Any]) -> None:
        ours = both[0]
        output = ours.generate(IDS, watch="encoder.final", max_new_tokens=2, return_dict_in_generate=True)
        expected = ours.base_model.run_encoder(IDS).last_hidden_state
        assert torch.allclose(output.sites[0]["encoder.final"], expected, atol=1e-4)
        assert "encoder.final" not in output.sites[1]

    def test_a_change_holds_in_every_pass(self, llama: Any) -> None:
        settings = {"max_new_tokens": 5, "eos_token_id": None}
        changes = {"blocks.1.mlp.update": Change(scale=0.0)}
        changed = llama.generate(IDS, watch=changes, **settings)
        ids = IDS
        for _ in range(5):
            scores = llama(ids, watch=changes).logits[:, -1]
            ids = torch.cat((ids, scores.argmax(-1, keepdim=True)), dim=1)
        assert changed.tolist() == ids.tolist()
        assert changed.tolist() != llama.generate(IDS, **settings).tolist()

    def test_steps_have_what_was_read_where_they_were_predicted(self, llama: Any) -> None:
        steps = [step for _, step in llama.steps(IDS[:1], max_new_tokens=2, eos_token_id=None, watch="final")]
        states = llama.base_model(IDS[:1]).last_hidden_state[0, -1]
        assert torch.allclose(torch.from_numpy(steps[0].sites["final"]), states, atol=1e-4)

    def test_misuse_is_refused(self, llama: Any) -> None:
        with pytest.raises(SiteError, match="no site matches 'finale'"):
            llama.generate(IDS, watch="finale", return_dict_in_generate=True)
        with pytest.raises(SettingError, match="states, attentions"):
            llama.generate(IDS, prompt_lookup_num_tokens=3, **ALL)


def test_states_of_a_model_in_bfloat16_have_its_dtype(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama")
    ours = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    output = ours.generate(IDS, max_new_tokens=2, **ALL)
    assert output.hidden_states[1][0].dtype is output.attentions[0][0].dtype is torch.bfloat16
    assert not output.hidden_states[0][0].is_inference()
