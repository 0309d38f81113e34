"""Changes in the CPU engine: at every site what they are in the plain executor, and in no row but their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassformer.engine import program_executor
from glassformer.engine.cpu import executor as engine
from glassformer.engine.cpu import passes
from glassformer.engine.cpu.library import levels
from glassformer.engine.protocol import CACHES, Feed, Want
from glassformer.ground.changes import Change
from glassformer.ground.errors import SiteError
from glassformer.ground.sites import Watch, axes
from glassformer.see.verification import difference
from tests.engine.executors import Subject, open_all, scores_of
from tests.parity import reference
from tests.site_names import usual_sites

pytestmark = pytest.mark.usefixtures("one_thread")

Tiny = Callable[..., Subject]
FAMILIES = (*reference.DECODERS, *reference.PAIRS)


def run(subject: Subject, executor: Any, watch: Watch | None) -> list[Any]:
    """Two rows, of which the first is watched, prompted and then grown by a token: its scores and sites, pass by pass."""
    prompts, sources = subject.rows((7, 3))
    rows = open_all(executor, prompts, sources)
    found = []
    for ids in (prompts, [[5], [6]]):
        first, _ = executor.run([Feed(rows[0], ids[0], Want.ALL, watch=watch), Feed(rows[1], ids[1])])
        scores = np.stack([first.host(at) for at in range(len(ids[0]))])
        found.append({"scores": scores, **{site: value for site, value in first.sites.items() if site != "scores"}})
    return found


def assert_close(found: list[Any], wanted: list[Any], bound: float = 2e-5) -> None:
    for mine, yours in zip(found, wanted, strict=True):
        assert mine.keys() == yours.keys()
        for site in yours:
            assert difference(site, yours, mine).error <= bound, site


@pytest.mark.parametrize("family", FAMILIES)
def test_change_at_every_site_matches_plain(family: str, tiny: Tiny) -> None:
    """Each changed value is seen changed, and all that follows from it is what the plain executor makes of it."""
    subject = tiny(family)
    plain, cpu = subject.plain(), subject.cpu()
    before = run(subject, cpu, subject.watch("*"))
    draw = np.random.default_rng(5)
    for site in subject.blueprint.site_names.names:
        if f"blocks.{subject.blueprint.blocks - 1}." in site and family != "llama":
            continue  # one block after the first says all
        if site.endswith(".state_norm") or (site.endswith(".pattern") and site not in subject.blueprint.attention_patterns):
            continue  # which is measured; and an effective pattern is of a text in one pass
        shift = draw.standard_normal(before[0][site].shape[-1]).astype(np.float32)
        one = "keys" in axes(site) or site in subject.blueprint.site_names.slots
        shift = 0.3 if one else shift  # a pattern grows with its row, and slots are not the same at every token
        change = {site: Change(scale=0.5, shift=shift)}
        if site in subject.blueprint.site_names.derived:
            with pytest.raises(SiteError, match="not changed"):
                subject.watch(site, changes=change)
            continue
        found = run(subject, cpu, subject.watch(site, "final", changes=change))
        assert_close(found, run(subject, plain, subject.watch(site, "final", changes=change)))
        later = 1 if site.endswith(".state") else 0  # what a pass leaves shows in the next
        assert difference("scores", before[later], found[later]).error > 2e-4, site  # ten times what rounding may amount to


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "gemma3_text", "t5", "bart"])
def test_identity_change_at_every_site(family: str, tiny: Tiny) -> None:
    """Patterns apart: heads are then made of the pattern, in the plain order."""
    subject = tiny(family)
    executor = subject.cpu()
    known = subject.blueprint.site_names.names
    others = {site: Change() for site in known if not site.endswith("pattern")}
    patterns = {site: Change() for site in known if site.endswith("pattern")}
    plain = run(subject, executor, None)
    for one, other in zip(plain, run(subject, executor, Watch(changes=others)), strict=True):
        assert np.array_equal(one["scores"], other["scores"])
    assert_close(run(subject, executor, Watch(changes=patterns)), plain)


@pytest.mark.parametrize(
    ("site", "change"),
    [
        ("blocks.1.residual", Change(scale=0.0, positions={2, 7})),
        ("blocks.0.attention.heads", Change(scale=0.0, heads=[1])),
        ("blocks.1.attention.pattern", Change(scale=0.0, shift=0.25, heads=[0, 2], positions={3})),
        ("blocks.2.attention.key", Change(scale=-1.0, heads=[0], positions={0, 1})),
        ("embedding", Change(shift=1.0, positions={7})),
        ("scores", Change(scale=3.0, positions={6})),
    ],
)
def test_change_of_some_positions_and_heads(site: str, change: Change, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tiny("qwen3")
    watch = subject.watch(site, changes={site: change})
    wanted = run(subject, subject.plain(), watch)
    assert_close(run(subject, subject.cpu(), watch), wanted)
    monkeypatch.setattr(engine, "MAX_TOKENS", 3)
    monkeypatch.setattr(engine, "MAX_SCORED_TOKENS", 2)
    assert_close(run(subject, subject.cpu(), watch), wanted)


def test_least_recently_used_programs_are_dropped(monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> None:
    """A program for each set of sites, with memory of its own: those that were not asked for lately go, and come again."""
    monkeypatch.setattr(program_executor, "MAX_PROGRAMS", 3)
    subject = tiny("qwen3")
    executor = subject.cpu()
    sites = [f"blocks.{block}.{name}" for block in range(3) for name in ("residual", "middle", "mlp.update")]
    found = []
    for _ in range(2):
        feeds = ([Feed(executor.open(), [4, 8, 15], watch=subject.watch(site))] for site in sites)
        found.append([executor.run(one)[0].sites[site] for one, site in zip(feeds, sites, strict=True)])
        assert len(executor._programs) == 3
    assert all(np.array_equal(first, again) for first, again in zip(*found, strict=True))


@pytest.mark.parametrize("what", ["qwen3", "Q4_K"])
def test_change_leaves_other_rows_alone(what: str, tiny: Tiny) -> None:
    subject = tiny(what)
    executor, (prompts, _) = subject.cpu(threads=2), subject.rows((5, 9, 3))
    plain = scores_of(executor, [executor.open() for _ in prompts], prompts)
    for site in usual_sites(subject.blueprint.blocks).names:
        watch = subject.watch(changes={site: Change(scale=0.5, shift=0.1)})
        feeds = [Feed(executor.open(), ids, Want.ALL, watch=watch if at == 1 else None) for at, ids in enumerate(prompts)]
        found = executor.run(feeds)
        for at in (0, 2):
            assert np.array_equal(np.stack([found[at].host(n) for n in range(len(prompts[at]))]), plain[at]), site
        assert not np.allclose(found[1].host(), plain[1][-1], atol=1e-4), site


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("what", ["qwen3", "Q4_K", "Q8_0"])
def test_nan_propagates_to_scores(what: str, cache: str, tiny: Tiny) -> None:
    """Wherever it begins, so that somebody can be told; and in no other row."""
    subject = tiny(what)
    prompt = [4, 8, 15]
    for level in levels() if cache == "f32" else levels()[:1]:
        executor = subject.cpu(cache=cache, level=level)
        for site in usual_sites(subject.blueprint.blocks).names:
            watch = subject.watch(changes={site: Change(shift=math.nan, positions={2})})
            spoilt, other = executor.run([Feed(executor.open(), prompt, watch=watch), Feed(executor.open(), prompt)])
            assert not np.isfinite(spoilt.host()).all(), (site, level)
            assert np.isfinite(other.host()).all(), (site, level)


def test_two_rows_with_changes_of_their_own(tiny: Tiny) -> None:
    subject = tiny("llama")
    site, prompts = "blocks.1.attention.query", [[4, 8, 15], [16, 23]]
    watches = [subject.watch(site, changes={site: Change(shift=shift)}) for shift in (0.5, -0.5)]
    found = []
    for executor in (subject.plain(), subject.cpu()):
        feeds = [Feed(executor.open(), ids, watch=watch) for ids, watch in zip(prompts, watches, strict=True)]
        found.append([{"scores": one.host(), **one.sites} for one in executor.run(feeds)])
    assert_close(found[1], found[0])


def test_cached_keys_stay_changed(tiny: Tiny) -> None:
    """A changed key is the key that later tokens see, also those of another watch or none."""
    subject = tiny("qwen3")
    site = "blocks.0.attention.key"
    found = []
    for executor in (subject.plain(), subject.cpu()):
        row = executor.open()
        executor.run([Feed(row, [4, 8, 15], watch=subject.watch(changes={site: Change(scale=-2.0)}))])
        found.append(executor.run([Feed(row, [16])])[0].host())
    assert np.allclose(found[0], found[1], atol=1e-4)


def test_source_keys_are_changed_for_one_pass_only(tiny: Tiny) -> None:
    subject = tiny("t5")
    executor = subject.cpu()
    row, other = executor.open([5, 9, 14]), executor.open([5, 9, 14])
    watch = subject.watch(changes={"blocks.0.cross.key": Change(scale=0.0), "blocks.1.cross.value": Change(shift=2.0)})
    (changed,) = executor.run([Feed(row, [2], watch=watch)])
    first = changed.host().copy()
    (plain,) = executor.run([Feed(other, [2])])
    assert not np.allclose(first, plain.host(), atol=1e-3)
    again = executor.open([5, 9, 14])
    executor.run([Feed(again, [2], watch=watch)])
    executor.rewind(again, 0)
    (after,) = executor.run([Feed(again, [2])])
    assert np.array_equal(after.host(), executor.run([Feed(executor.open([5, 9, 14]), [2])])[0].host())


def test_change_that_does_not_fit_leaves_the_row_as_it_was(tiny: Tiny) -> None:
    subject = tiny("qwen3")
    executor = subject.cpu()
    row = executor.open()
    executor.run([Feed(row, [4, 8])])
    wrong = subject.watch(changes={"blocks.1.residual": Change(shift=np.zeros(5, np.float32))})
    with pytest.raises(SiteError, match="does not fit"):
        executor.run([Feed(row, [15], watch=wrong)])
    assert row.length == 2
    (found,) = executor.run([Feed(row, [15])])
    assert np.array_equal(found.host(), executor.run([Feed(executor.open(), [4, 8, 15])])[0].host())


def test_only_the_last_pass_keeps_its_buffers(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    monkeypatch.setattr(passes.NativeProgram, "__init__", recorded(passes.NativeProgram.__init__, kept))
    subject = tiny("llama")
    executor = subject.cpu()
    unwatched = run(subject, executor, None)
    for site in ("blocks.0.residual", "blocks.1.attention.pattern", "embedding"):
        run(subject, executor, Watch(frozenset((site,))))
    assert len(kept) == 4
    assert [sum(buffer.size for buffer in program._buffers) > 0 for program in kept] == [False, False, False, True]
    for before, after in zip(unwatched, run(subject, executor, None), strict=True):
        np.testing.assert_array_equal(before["scores"], after["scores"])


def recorded(init: Callable[..., None], made: list[Any]) -> Callable[..., None]:
    """A constructor that notes what it makes."""

    def call(self: Any, *arguments: Any) -> None:
        made.append(self)
        init(self, *arguments)

    return call
