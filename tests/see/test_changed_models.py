"""What if: changes inside a model, in everything that it does, on every family and executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError
from tests.see.models import EXECUTORS, TEXT, WRITERS, Both, both, encoder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=[(family, executor) for family in WRITERS for executor in EXECUTORS], ids="-".join)
def pair(request: pytest.FixtureRequest) -> Both:
    return both(*request.param)


def scores(reading: Any) -> Any:
    return np.concatenate([chunk.scores for chunk in reading.chunks(scored=True)])


def written(run: Any) -> list[int]:
    return [step.id for step in run.steps]


def test_a_change_is_that_of_the_pytorch_model(pair: Both) -> None:
    """A head scaled in the executor's own pass is the same head scaled in PyTorch, by the familiar face."""
    change = {"blocks.1.attention.heads": Change(scale=0, heads=[1]), "blocks.0.mlp.update": Change(scale=2.0)}
    reading = pair.model.changed(change).read(TEXT, "a dog") if pair.sourced else pair.model.changed(change).read(TEXT)
    ids = torch.tensor([reading.ids])
    tokens = {"input_ids": torch.tensor([reading.source]), "decoder_input_ids": ids} if pair.sourced else {"input_ids": ids}
    with torch.no_grad():
        expected = both(pair.family).model.module(**tokens, watch=change).logits[0].numpy()
    assert np.abs(scores(reading) - expected).max() < 1e-3
    assert np.abs(scores(pair.reading(target="a dog")) - expected).max() > 1e-2


def test_a_run_patched_with_itself_changes_nothing(pair: Both) -> None:
    """Each residual replaced by what it was: not one score moves, and the text is the same."""
    settings = {"max_new_tokens": 4, "eos_token_id": None}
    before = pair.model.watch(TEXT, **settings)
    for site in ("blocks.0.residual", "blocks.1.attention.update", "blocks.2.mlp.update"):
        value = before.reading.at(site)
        length = before.reading.prompt_length
        patch = {site: Change(scale=0, shift=value[:length], positions=range(length))}
        after = pair.model.watch(TEXT, change=patch, **settings)
        assert written(after) == written(before)
        assert np.abs(scores(after.reading) - scores(before.reading)).max() < 1e-4


def test_another_runs_state_brings_its_answer_along(pair: Both) -> None:
    """With the last position of the last block from another text, the next token is the other text's."""
    last = f"blocks.{pair.model.blueprint.blocks - 1}.residual"
    one, other = pair.reading(), pair.reading("on the mat the dog", "the mat")
    value = other.at(last)[-1:]
    patched = pair.model.changed({last: Change(scale=0, shift=value, positions=[len(one) - 1])})
    reading = type(one)(patched, one.ids, one.source, one.prompt_length)
    assert np.abs(scores(reading)[-1] - scores(other)[-1]).max() < 1e-3
    assert np.abs(scores(reading)[:-1] - scores(one)[:-1]).max() < 1e-4


def test_changes_hold_in_every_view(pair: Both) -> None:
    change = {"blocks.*.mlp.update": Change(scale=0)}
    changed = pair.model.changed(change)
    reading = changed.read(TEXT, "a dog") if pair.sourced else changed.read(TEXT)
    for block in range(pair.model.blueprint.blocks):
        assert not reading.at(f"blocks.{block}.mlp.update").any()
    attribution = reading.attribution()
    assert all(abs(part.value) < 1e-6 for part in attribution.contributions if part.name == "mlp")
    run = pair.model.watch(TEXT, change=change, max_new_tokens=3, eos_token_id=None)
    tree = changed.tree(TEXT, width=2, depth=2)
    assert run.steps[0].candidates.ids.tolist()[:2] == [node.id for node in tree.root.children]
    assert "changed: blocks.0.mlp.update" in run.model.executor.describe().notes[-1]
    assert pair.model.changes == {}


def test_changes_add_up_and_the_later_holds() -> None:
    model = both("gpt2").model
    once = model.changed({"blocks.0.residual": Change(scale=0)})
    twice = once.changed({"blocks.1.residual": Change(scale=0)})
    assert set(twice.changes) == {"blocks.0.residual", "blocks.1.residual"}
    undone = twice.changed({"blocks.*.residual": Change()})
    assert np.array_equal(scores(undone.read(TEXT)), scores(model.read(TEXT)))


def test_an_encoder_is_changed_too() -> None:
    model = encoder().model
    changed = model.changed({"blocks.0.attention.heads": Change(scale=0)})
    assert not changed.read(TEXT).at("blocks.0.attention.heads").any()
    (before,), (after,) = ([chunk.scores for chunk in one.read(TEXT).chunks()] for one in (model, changed))
    assert np.abs(before - after).max() > 1e-3


@pytest.mark.parametrize("executor", EXECUTORS)
def test_beams_drafts_and_guidance_run_under_a_change(executor: str) -> None:
    model = both("qwen3", executor).model
    change = {"blocks.*.mlp.update": Change(scale=-3.0)}
    greedy = written(model.watch(TEXT, change=change, max_new_tokens=6, eos_token_id=None))
    drafted = written(model.watch(TEXT, change=change, max_new_tokens=6, eos_token_id=None, prompt_lookup_num_tokens=3))
    assert drafted == greedy
    assert greedy != written(model.watch(TEXT, max_new_tokens=6, eos_token_id=None))
    beams = written(model.watch(TEXT, change=change, max_new_tokens=3, eos_token_id=None, num_beams=2))
    assert beams != written(model.watch(TEXT, max_new_tokens=3, eos_token_id=None, num_beams=2))
    guided = model.watch(TEXT, change=change, max_new_tokens=3, eos_token_id=None, guidance_scale=1.5)
    assert len(guided.steps) == 3


def test_a_forced_token(pair: Both) -> None:
    """It stands there whatever it scores, the account of the rules says so, and the text goes on from it."""
    run = pair.model.watch(TEXT, max_new_tokens=4, eos_token_id=None, forced_tokens={1: 5})
    free = pair.model.watch(TEXT, max_new_tokens=4, eos_token_id=None)
    assert written(run)[0] == written(free)[0]
    assert written(run)[1] == 5
    why = run.why(1)
    assert why.counts[-1] == 1
    assert all(one.removed_by == "forced_tokens" for one in why.candidates if not one.chosen)
    reading = run.reading
    assert written(run)[2] == int(scores(reading)[reading.prompt_length + 1].argmax())


def test_states_of_another_size_are_not_read_out() -> None:
    for executor in EXECUTORS:
        with pytest.raises(InputError, match=r"\(2, 3\)"):
            both("gpt2", executor).model.unembed(np.zeros((2, 3), np.float32))
