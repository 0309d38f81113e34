"""Changes in the GPU engine: at every site what they are in the plain executor, and in no row but their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from glassformer.engine.protocol import Feed
from glassformer.features.files import read_dictionary
from glassformer.ground.changes import Change
from glassformer.ground.errors import SiteError
from glassformer.ground.sites import MEASURED, axes
from tests.engine.cpu.test_changes import assert_close, run
from tests.engine.executors import Subject
from tests.features.dictionaries import write_folder
from tests.parity import reference
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")

Tiny = Callable[..., Subject]


@pytest.mark.parametrize("family", mostly_swept(reference.ON_GPU, "llama", "gemma3_text", "gpt2", "t5"))
def test_change_at_every_site_matches_plain(family: str, tiny: Tiny) -> None:
    subject = tiny(family)
    plain, gpu = subject.plain(), subject.gpu()
    before = run(subject, gpu, subject.watch("*"))
    draw = np.random.default_rng(5)
    states = {site for site in subject.blueprint.sites if site.endswith(".pattern")} - {
        *subject.blueprint.attention_patterns
    }
    sites = [site for site in subject.blueprint.site_names.names if not site.endswith(MEASURED) and site not in states]
    for site in sites if family == "llama" else sites[:: len(sites) // 9]:
        shift = draw.standard_normal(before[0][site].shape[-1]).astype(np.float32)
        shift = 0.3 if "keys" in axes(site) or "pattern" in site else shift  # a pattern grows with its row
        watch = subject.watch(site, "final", changes={site: Change(scale=0.5, shift=shift)})
        assert_close(run(subject, gpu, watch), run(subject, plain, watch))


def test_a_change_is_in_no_row_but_its_own(tiny: Tiny) -> None:
    subject = tiny("qwen3")
    executor, (prompts, _) = subject.gpu(), subject.rows((7, 3))
    alone = [executor.run([Feed(executor.open(), ids)])[0].host() for ids in prompts]
    watch = subject.watch(changes={"blocks.1.residual": Change(scale=0, positions=[2])})
    changed, other = executor.run([Feed(executor.open(), prompts[0], watch=watch), Feed(executor.open(), prompts[1])])
    assert np.allclose(other.host(), alone[1], atol=1e-5)
    assert not np.allclose(changed.host(), alone[0], atol=1e-3)


@pytest.mark.parametrize("shift", [torch.full((48,), 0.5, dtype=torch.float64), np.full(48, 0.5, np.float32), 0.5])
def test_shifts_of_any_library(shift: object, tiny: Tiny) -> None:
    subject = tiny("llama")
    executor = subject.gpu()
    watch = subject.watch("blocks.0.residual", changes={"blocks.0.residual": Change(scale=0, shift=shift)})
    (scores,) = executor.run([Feed(executor.open(), [3, 4], watch=watch)])
    assert torch.equal(scores.sites["blocks.0.residual"], torch.full((1, 2, 48), 0.5))


def test_a_change_that_does_not_fit_is_refused(tiny: Tiny) -> None:
    executor = tiny("llama").gpu()
    watch = tiny("llama").watch(changes={"blocks.0.residual": Change(shift=np.ones(7, np.float32))})
    row = executor.open()
    with pytest.raises(SiteError, match="does not fit"):
        executor.run([Feed(row, [3, 4], watch=watch)])
    assert row.length == 0


def test_changed_scores(tiny: Tiny) -> None:
    subject = tiny("llama")
    executor = subject.gpu()
    watch = subject.watch("scores", changes={"scores": Change(scale=0, shift=2.0)})
    (scores,) = executor.run([Feed(executor.open(), [3, 4], watch=watch)])
    assert (scores.host() == 2).all()
    assert (scores.sites["scores"] == 2).all()


def test_a_change_that_is_computed_from_an_earlier_site_matches_plain(tiny: Tiny, tmp_path: Path) -> None:
    subject = tiny("llama")
    hooks = {"hook_name": "blocks.1.attn.hook_z", "hook_name_out": "blocks.1.hook_mlp_out"}
    transcoder = read_dictionary(write_folder(tmp_path / "mlp-1", "transcoder", metadata=hooks))
    watch = subject.watch("blocks.1.mlp.update", "final", changes=transcoder.clamp({4: 2.0}))
    clamped = run(subject, subject.gpu(), watch)
    assert_close(clamped, run(subject, subject.plain(), watch))
    assert all(set(sites) == {"scores", "blocks.1.mlp.update", "final"} for sites in clamped)
    unchanged = run(subject, subject.gpu(), subject.watch("final"))
    assert not np.allclose(clamped[0]["final"], unchanged[0]["final"], atol=1e-3)
