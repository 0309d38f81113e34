"""Mixtures of experts in the CPU engine: which of them compute, packed ones, and what the other engines say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from glassformer.engine.cpu.library import levels
from glassformer.engine.protocol import Feed, Want
from glassformer.engine.tensor_parallel.split import split_model
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError
from tests.engine.executors import RequantizedSubject, Subject, open_all, scores_of, write_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = {"hidden_size": 64, "head_dim": 16, "moe_intermediate_size": 96, "num_experts": 9, "num_experts_per_tok": 4}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return write_checkpoint(tmp_path_factory.mktemp("experts"), "qwen3_moe", **SIZES)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", ["q8_0", "q4_1"])
def test_packed_experts_match_plain(subject: Subject, kind: str, level: str) -> None:
    packed = RequantizedSubject(subject.folder, kind=kind)
    verdict = packed.verdict(packed.cpu(level=level))
    assert verdict.agrees(1e-2), verdict


@pytest.mark.parametrize(("kind", "activations"), [("q4_0", "mixed"), ("q8_0", "q8")])
def test_coarser_inputs_send_few_tokens_elsewhere(subject: Subject, kind: str, activations: str) -> None:
    """A router whose best scores are nearly equal may choose another expert: the texts stay nearly the same."""
    packed = RequantizedSubject(subject.folder, kind=kind)
    verdict = packed.verdict(packed.cpu(activations=activations))
    assert verdict.divergence < 0.01


@pytest.mark.parametrize("kind", ["F32", "q8_0"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_alone_equals_itself_in_a_batch(subject: Subject, kind: str, threads: int) -> None:
    """Also where one token alone takes another way through its experts than many do."""
    owner = subject if kind == "F32" else RequantizedSubject(subject.folder, kind=kind)
    executor = owner.cpu(threads=threads)
    prompts, _ = owner.rows((1, 40, 7, 1))
    together = scores_of(executor, open_all(executor, prompts, None), prompts)
    for ids, expected in zip(prompts, together, strict=True):
        alone = scores_of(executor, [executor.open()], [ids])[0]
        assert np.array_equal(alone, expected)
        row = executor.open()
        one_by_one = [scores_of(executor, [row], [[token]])[0][0] for token in ids]
        assert np.array_equal(np.stack(one_by_one), expected)


def test_broken_experts_that_no_token_goes_to_do_no_harm(subject: Subject, tmp_path: Path) -> None:
    """Only the weights of chosen experts are read."""
    model = subject.model
    shares = model(torch.tensor([[5, 9, 14]]), watch="blocks.0.mlp.experts").sites["blocks.0.mlp.experts"]
    unused = [expert for expert in range(9) if not shares[..., expert].any()]
    assert unused
    layer = model.model.layers[0].mlp
    with torch.no_grad():
        kept = [layer.experts[expert].up_proj.weight.clone() for expert in unused]
        for expert in unused:
            layer.experts[expert].up_proj.weight.fill_(torch.nan)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        for expert, weight in zip(unused, kept, strict=True):
            layer.experts[expert].up_proj.weight.copy_(weight)
    (broken,), (whole,) = (scores_of(e, [e.open()], [[5, 9, 14]]) for e in (Subject(tmp_path).cpu(), subject.cpu()))
    assert np.array_equal(broken, whole)


@pytest.mark.parametrize("change", [
    Change(shift=np.float32([0, 0, 30, 0, 0, 0, 0, 0, 0])), Change(scale=0.0, positions=[1]), Change(scale=-1.0),
])  # fmt: skip
@pytest.mark.parametrize("site", ["blocks.0.mlp.router", "blocks.2.mlp.experts", "blocks.2.mlp.hidden"])
def test_changes_redirect_as_in_plain(subject: Subject, site: str, change: Change) -> None:
    if "hidden" in site and change.shift is not None:
        change = Change(scale=0.3)  # its numbers are slots
    watch = subject.watch("blocks.2.*", changes={site: change})
    plain, cpu = subject.plain(), subject.cpu()
    (expected,), (result,) = (e.run([Feed(e.open(), [5, 9, 14, 77], Want.ALL, watch=watch)]) for e in (plain, cpu))
    assert np.allclose(result.host(), expected.host(), atol=1e-4)
    for name, value in expected.sites.items():
        assert np.allclose(result.sites[name], value, atol=1e-4 * max(1.0, float(abs(value).max()))), name


def test_more_shares_than_a_token_has_slots_for(subject: Subject) -> None:
    """The largest are kept, on both executors."""
    change = Change(shift=np.linspace(0.02, 0.3, 9, dtype=np.float32))
    watch = subject.watch("blocks.0.mlp.*", changes={"blocks.0.mlp.experts": change})
    (expected,), (result,) = (
        e.run([Feed(e.open(), [5, 9, 14], Want.ALL, watch=watch)]) for e in (subject.plain(), subject.cpu())
    )
    for name, value in expected.sites.items():
        assert np.allclose(result.sites[name], value, atol=1e-4), name


def test_scores_that_are_no_numbers_stay_so(subject: Subject) -> None:
    broken = np.zeros(9, np.float32)
    broken[3] = np.nan
    watch = subject.watch(changes={"blocks.0.mlp.router": Change(shift=broken)})
    executor = subject.cpu()
    (scores,) = executor.run([Feed(executor.open(), [5, 9], Want.ALL, watch=watch)])
    assert np.isnan(scores.host()).all()


def test_other_engines_refuse_experts(subject: Subject) -> None:
    with pytest.raises(
        ExecutorError, match=r"cannot run a model that has experts\. Use executor='cpu' or executor='plain'\."
    ):
        subject.gpu()
    with pytest.raises(ExecutorError, match="experts"):
        split_model(subject.blueprint, 2)
