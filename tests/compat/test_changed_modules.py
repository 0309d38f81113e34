"""`changed` of the compatible classes: in every call, with gradients through every kind of change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer import Change
from glassformer.see.passes import encoder_pass
from tests.see.models import both, encoder, folder

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = torch.tensor([[5, 6, 7, 9]])
SITE = "blocks.0.mlp.update"
DIRECTION = torch.linspace(-1, 1, 48)
CHANGES: dict[str, Any] = {
    "scale": Change(scale=0.5),
    "shift": Change(shift=DIRECTION, positions=[1, 2]),
    "neurons": Change(scale=0, neurons=[3, 4], positions=[-1]),
    "onto": Change(onto=DIRECTION),
    "away from": Change(away_from=DIRECTION),
    "bounds": Change(minimum=-0.05, maximum=0.05),
    "a function": lambda value, where: value.sin(),
}


def by_hand(name: str, value: Tensor) -> Tensor:
    """What a change makes of a value, by plain arithmetic."""
    chosen = torch.zeros_like(value)
    unit = DIRECTION / DIRECTION.norm()
    if name == "shift":
        chosen[:, [1, 2]] = 1
        return value + chosen * DIRECTION
    if name == "neurons":
        chosen[:, -1, [3, 4]] = 1
        return value * (1 - chosen)
    along = (value @ unit)[..., None] * unit
    plain = {"scale": value * 0.5, "onto": along, "away from": value - along, "bounds": value.clamp(-0.05, 0.05)}
    return plain.get(name, value.sin())


@pytest.mark.parametrize("name", CHANGES)
def test_gradients_flow_through_a_change(name: str) -> None:
    """As through a hook on the reference that does the same."""
    pair = both("llama")
    module = pair.model.module.changed({SITE: CHANGES[name]})
    vectors = module.get_input_embeddings()(IDS).detach().requires_grad_()
    logits = module(inputs_embeds=vectors).logits
    (gradient,) = torch.autograd.grad(logits[0, -1, 3], vectors)
    handle = pair.reference.model.layers[0].mlp.register_forward_hook(lambda _, __, output: by_hand(name, output))
    try:
        expected = pair.reference(inputs_embeds=vectors).logits
        (reference_gradient,) = torch.autograd.grad(expected[0, -1, 3], vectors)
    finally:
        handle.remove()
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(gradient, reference_gradient, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bart"])
def test_changes_count_in_every_call(family: str) -> None:
    pair = both(family)
    changes = {"*blocks.0.attention.heads": Change(scale=0, heads=[1]), "scores": Change(scale=2.0)}
    module, changed = pair.model.module, pair.model.module.changed(changes)
    more = {"decoder_input_ids": IDS} if pair.sourced else {}
    assert torch.equal(changed(IDS, **more).logits, module(IDS, watch=changes, **more).logits)
    assert not torch.equal(changed(IDS, **more).logits, module(IDS, **more).logits)
    settings = {"max_new_tokens": 4, "return_dict_in_generate": True, "output_logits": True}
    one, other = changed.generate(IDS, **settings), module.generate(IDS, watch=changes, **settings)
    assert torch.equal(one.sequences, other.sequences)
    assert all(torch.equal(*pair) for pair in zip(one.logits, other.logits, strict=True))
    own = {"scores": Change(scale=1.0)}  # on top, where both change a site
    heads = {"*blocks.0.attention.heads": changes["*blocks.0.attention.heads"]}
    assert torch.equal(changed(IDS, watch=own, **more).logits, module(IDS, watch=heads, **more).logits)
    read = changed(IDS, watch="blocks.0.residual", **more)
    assert torch.equal(read.logits, changed(IDS, **more).logits)
    assert list(read.sites) == ["blocks.0.residual"]


def test_a_changed_module_shares_all_but_its_changes() -> None:
    module = both("gpt2").model.module
    changed = module.changed({SITE: Change(scale=0)})
    assert not module.changes
    assert changed.lm_head.weight is module.lm_head.weight
    twice = changed.changed({"blocks.1.mlp.update": Change(scale=0)})
    assert list(twice.changes) == [SITE, "blocks.1.mlp.update"]
    copied = copy.deepcopy(twice)
    assert torch.equal(copied(IDS).logits, twice(IDS).logits)
    masked = encoder().model.changed({SITE: Change(scale=0)})
    scores, _ = encoder_pass(masked, [5, 6, 7], glassformer.ground.sites.Watch())
    torch.testing.assert_close(masked.module(IDS[:, :3]).logits[0], torch.from_numpy(scores))


def test_packed_weights_are_said_to_be_expanded(caplog: pytest.LogCaptureFixture) -> None:
    place, _ = folder("gemma3_text", "causal")  # whose rows fit blocks of 32
    model = glassformer.load(place, weights="q8_0")
    with caplog.at_level("WARNING", "glassformer"):
        module = model.module
    assert "in PyTorch its packed weights are float32 numbers" in caplog.text
    assert module.dtype == torch.float32
    with caplog.at_level("WARNING", "glassformer"):
        caplog.clear()
        assert model.module is module
    assert not caplog.text
