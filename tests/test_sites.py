"""Sites: watching changes nothing, reads what is there, and changes what it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import glassformer
from glassformer.blueprints import blueprint
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import Feed, Want
from glassformer.ground import sites
from glassformer.ground.changes import Change, Where
from glassformer.ground.errors import SiteError
from glassformer.ground.sites import ModelSites, Watch
from glassformer.torch.arguments import ForwardArguments
from tests.parity import reference
from tests.site_names import usual_sites


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("watched")
    reference.write(folder, request.param)
    return glassformer.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)


def stream(start: int = 0) -> Where:
    return sites.where_of("embedding", start)


def heads_at(start: int) -> Where:
    return sites.where_of("blocks.0.attention.heads", start)


IDS = torch.tensor([[5, 9, 14, 3, 77, 21], [8, 8, 100, 42, 6, 7]])


def test_every_site_and_its_axes() -> None:
    assert len(sites.EVERY_NAME) == len(set(sites.EVERY_NAME))
    assert sites.axes("blocks.1.attention.pattern") == ("batch", "heads", "length", "keys")
    assert usual_sites(2).expand(["blocks.*.residual"]) == ("blocks.0.residual", "blocks.1.residual")


@given(st.permutations(usual_sites(2, 2, (1,)).names), st.integers(2, 9))
def test_sites_stand_in_the_order_of_a_pass(names: list[str], blocks: int) -> None:
    assert ModelSites.of(names, blocks).names == usual_sites(2, 2, (1,)).names


@pytest.mark.parametrize("name", ["blocks.0.resdual", "blocks.x.residual", "blocks", "score"])
def test_an_unknown_site_is_refused(name: str) -> None:
    with pytest.raises(SiteError, match="there is no site"):
        sites.axes(name)
    with pytest.raises(SiteError, match="model of 2 blocks"):
        Watch.of(name, names=usual_sites(2))


def test_the_blueprint_has_every_site_and_its_shape(model: Any) -> None:
    result = model(IDS, watch="*").sites
    described = blueprint(model.config).sites
    sizes = {"batch": 2, "length": 6, "keys": 6}
    assert result.keys() == described.keys() == set(usual_sites(3).names)
    for site, shape in described.items():
        assert result[site].shape == tuple(sizes.get(size, size) for size in shape), site


def test_the_blueprint_lists_exactly_the_checkpoints_weights(model: Any) -> None:
    weights = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert {weight.name: weight.shape for weight in blueprint(model.config).weights} == weights
    base = glassformer.AutoModel.from_config(model.config)
    assert {w.name: w.shape for w in blueprint(model.config, "base").weights} == {
        name: tuple(p.shape) for name, p in base.named_parameters()
    }
    assert blueprint(model.config).parameters == model.num_parameters()


def test_watching_changes_no_bit(model: Any) -> None:
    plain = model(IDS)
    watched = model(IDS, watch="*")
    assert torch.equal(plain.logits, watched.logits)
    assert torch.equal(watched.sites["scores"], watched.logits)
    assert plain.sites is None


def test_executor_rows_are_watched_one_by_one(model: Any) -> None:
    """One watched row among three of different lengths: all scores stay the same, and its sites are its own."""
    rows = [[5, 9, 14, 3], [8, 8, 100, 42, 6, 7, 31], [70, 2]]
    watch = Watch.of("*", names=usual_sites(3))
    unwatched, watched = PlainExecutor(model), PlainExecutor(model)
    before = unwatched.run([Feed(unwatched.open(), ids, Want.ALL) for ids in rows])
    after = watched.run([Feed(watched.open(), ids, Want.ALL, watch=watch if n == 0 else None) for n, ids in enumerate(rows)])
    for one, other, ids in zip(before, after, rows, strict=True):
        for index in range(len(ids)):
            assert np.array_equal(one.host(index), other.host(index))
    alone = model(torch.tensor([rows[0]]), watch="*").sites
    assert after[0].sites.keys() == alone.keys()
    for site, value in alone.items():
        assert after[0].sites[site].shape == value.shape
        assert torch.allclose(after[0].sites[site], value, atol=1e-4)
    assert not after[1].sites


def test_without_a_watch_there_is_no_tap_and_no_hook(model: Any) -> None:
    """No hooks, and no tap in the pass."""
    seen: list[Any] = []
    original = type(model.base_model).compute

    def spy(self: Any, x: Any, p: Any) -> Any:
        seen.append(p.tap)
        return original(self, x, p)

    type(model.base_model).compute = spy
    try:
        model(IDS)
        model.generate(IDS, max_new_tokens=2)
    finally:
        type(model.base_model).compute = original
    assert seen
    assert all(tap is None for tap in seen)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_without_a_watch_a_site_returns_its_value_itself(model: Any) -> None:
    """The same number of torch operations, whether sites exist or not: `at_site` returns its argument itself."""
    block = model.model.layers[0]
    x = torch.randn(1, 2, 48)
    p = model.model.prepare(ForwardArguments(input_ids=IDS[:1, :2]))
    assert p.tap is None
    assert block.at_site("residual", x, p) is x


def test_torch_hooks_of_the_user_fire(model: Any) -> None:
    fired: list[str] = []
    names = {"": model, "base": model.model, "attention": model.model.layers[1].self_attn, "head": model.lm_head}
    hooks = [m.register_forward_hook(lambda *_, name=name: fired.append(name)) for name, m in names.items()]
    model.generate(IDS[:1], max_new_tokens=1, eos_token_id=None)
    for hook in hooks:
        hook.remove()
    assert sorted(fired) == sorted(names)


class TestWatchArgument:
    def test_a_mapping_of_sites_to_changes(self, model: Any) -> None:
        site = "blocks.1.residual"
        short = model(IDS, watch={site: Change(scale=0.0)})
        long = model(IDS, watch=Watch(frozenset({site}), {site: Change(scale=0.0)}))
        assert torch.equal(short.logits, long.logits)
        assert float(short.sites[site].abs().max()) == 0.0
        everywhere = model(IDS, watch=Watch(changes={"blocks.*.mlp.update": Change(scale=0.0)}))
        assert not torch.allclose(everywhere.logits, model(IDS).logits, atol=1e-3)
        assert set(model(IDS, watch=Watch(reads=frozenset({"blocks.*.middle"}))).sites) == {
            f"blocks.{n}.middle" for n in range(3)
        }

    def test_unknown_sites_and_wrong_changes_are_refused(self, model: Any) -> None:
        nowhere = Watch(changes={"blocks.99.residual": Change(scale=0.0)})
        with pytest.raises(SiteError, match=r"'blocks\.99\.residual'"):
            model(IDS, watch=nowhere)
        executor = PlainExecutor(model)
        with pytest.raises(SiteError, match="blocks.99"):
            executor.run([Feed(executor.open(), [1], watch=nowhere)])
        pattern = Watch(frozenset({"blocks.*.middle"}))
        (result,) = executor.run([Feed(executor.open(), [1], watch=pattern)])
        assert set(result.sites) == {f"blocks.{n}.middle" for n in range(3)}
        with pytest.raises(SiteError, match="'blocks.0.residual' is 0.0"):
            model(IDS, watch={"blocks.0.residual": 0.0})
        with pytest.raises(SiteError, match=r"Did you mean 'blocks\.\*\.residual'"):
            model(IDS, watch="blocks.*.residul")


class TestChanges:
    def test_zeroing_a_head_equals_cutting_its_weights(self, model: Any, tmp_path: Path) -> None:
        site = "blocks.1.attention.heads"
        changed = model(IDS, watch=Watch.of(names=usual_sites(3), changes={site: Change(scale=0.0, heads=[2])}))
        model.save_pretrained(tmp_path)
        cut = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path).requires_grad_(False)
        size = model.config.head_dim
        cut.model.layers[1].self_attn.o_proj.weight[:, 2 * size : 3 * size] = 0
        assert torch.allclose(changed.logits, cut(IDS).logits, atol=1e-5)
        assert not torch.allclose(changed.logits, model(IDS).logits, atol=1e-3)

    def test_patching_with_itself_changes_nothing(self, model: Any) -> None:
        result = model(IDS, watch="*")
        for site in ("embedding", "blocks.0.residual", "blocks.2.mlp.hidden", "blocks.1.attention.value", "scores"):
            same = Change(scale=0.0, shift=result.sites[site])
            patched = model(IDS, watch=Watch.of("scores", names=usual_sites(3), changes={site: same}))
            assert torch.equal(patched.logits, result.logits), site

    def test_a_changed_pattern_goes_into_the_output(self, model: Any) -> None:
        site = "blocks.0.attention.pattern"
        result = model(IDS, watch=[site, "blocks.0.attention.heads"])
        same = Change(scale=0.0, shift=result.sites[site])
        patched = model(IDS, watch=Watch.of("blocks.0.attention.heads", names=usual_sites(3), changes={site: same}))
        assert torch.allclose(patched.logits, result.logits, atol=1e-4)
        flat = Change(scale=0.0, shift=torch.full((6,), 1 / 6), heads=frozenset({0}))
        uniform = model(
            IDS,
            watch=Watch.of(
                "blocks.0.attention.heads", "blocks.0.attention.value", names=usual_sites(3), changes={site: flat}
            ),
        )
        mean = uniform.sites["blocks.0.attention.value"][:, 0].mean(1, keepdim=True).expand(-1, 6, -1)
        assert torch.allclose(uniform.sites["blocks.0.attention.heads"][:, 0], mean, atol=1e-5)

    def test_positions_count_from_the_start_of_the_sequence(self, model: Any) -> None:
        site = "blocks.0.residual"
        change = Watch.of(site, names=usual_sites(3), changes={site: Change(scale=0.0, positions=frozenset({4}))})
        output = model(IDS, watch=change)
        assert float(output.sites[site][:, 4].abs().max()) == 0.0
        assert float(output.sites[site][:, 3].abs().min()) > 0.0
        first = model(IDS[:, :3])
        rest = model(IDS[:, 3:], past_key_values=first.past_key_values, watch=change)
        assert torch.allclose(rest.logits, output.logits[:, 3:], atol=1e-4)

    def test_heads_and_positions_together(self, model: Any) -> None:
        site = "blocks.0.attention.query"
        change = Change(scale=0.0, positions=frozenset({1, 4}), heads=frozenset({0, 3}))
        value = model(IDS, watch=Watch.of(site, names=usual_sites(3), changes={site: change})).sites[site]
        zero = value.abs().amax((0, 3)) == 0
        assert zero.nonzero().tolist() == [[0, 1], [0, 4], [3, 1], [3, 4]]

    def test_only_the_watched_row_is_changed(self, model: Any) -> None:
        executor = PlainExecutor(model)
        zero = Watch.of(names=usual_sites(3), changes={"blocks.0.residual": Change(scale=0.0), "scores": Change(shift=1.0)})
        rows = [[5, 9, 14, 3], [8, 8, 100]]
        changed = executor.run([Feed(executor.open(), ids, watch=zero if n else None) for n, ids in enumerate(rows)])
        untouched = PlainExecutor(model)
        plain = untouched.run([Feed(untouched.open(), ids) for ids in rows])
        assert np.array_equal(changed[0].host(), plain[0].host())
        assert not np.allclose(changed[1].host(), plain[1].host(), atol=1e-2)

    def test_rows_of_a_shift_follow_their_positions(self) -> None:
        value, shift = np.zeros((1, 4, 2), np.float32), np.array([[3.0, 3.0], [1.0, 1.0]], np.float32)
        changed = Change(shift=shift, positions=[3, 1]).apply(value, stream())
        assert changed[0, :, 0].tolist() == [0, 1, 0, 3]
        assert Change(shift=shift, positions={3, 1}).apply(value, stream())[0, :, 0].tolist() == [0, 3, 0, 1]

    def test_a_text_run_in_chunks_is_changed_as_a_whole(self) -> None:
        """Each piece takes the rows of the shift that are meant for it."""
        output, shift = np.ones((1, 6, 2), np.float32), np.arange(8, dtype=np.float32).reshape(4, 2)
        change = Change(0.0, shift, positions=[1, 2, 3, 4])
        pieces = [change.apply(output[:, at : at + 2], stream(at)) for at in (0, 2, 4)]
        assert np.array_equal(np.concatenate(pieces, 1), change.apply(output, stream()))
        heads, by_head = np.ones((1, 3, 6, 2), np.float32), np.arange(16, dtype=np.float32).reshape(2, 4, 2)
        change = Change(0.0, by_head, positions=[1, 2, 3, 4], heads=[2, 0])
        pieces = [change.apply(heads[:, :, at : at + 2], heads_at(at)) for at in (0, 2, 4)]
        result = change.apply(heads, heads_at(0))
        assert np.array_equal(np.concatenate(pieces, 2), result)
        assert np.array_equal(result[0, 2, 1:5], by_head[0])
        assert np.array_equal(result[0, 0, 1:5], by_head[1])

    def test_changes_apply_to_numpy_values(self) -> None:
        value = np.ones((1, 3, 4), np.float32)
        changed = Change(scale=2.0, shift=1.0, positions=frozenset({1, 9})).apply(value, stream())
        assert changed[0, :, 0].tolist() == [1, 3, 1]
        assert value.max() == 1
        assert Change(positions=frozenset({9})).apply(value, stream()) is value


def test_a_row_is_patched_with_its_own_value_next_to_a_longer_row(model: Any) -> None:
    """A change meets the row's own part, not the room that a longer row makes for it."""
    executor = PlainExecutor(model)
    site = "blocks.0.residual"
    rows = [executor.open(), executor.open()]
    alone = executor.run([Feed(rows[0], [5, 9, 14], watch=Watch(frozenset({site})))])[0]
    expected, seen = alone.host().copy(), alone.sites[site].clone()
    executor.rewind(rows[0], 0)
    patch = Watch(changes={site: Change(scale=0.0, shift=seen)})
    result = executor.run([Feed(rows[0], [5, 9, 14], watch=patch), Feed(rows[1], [8, 8, 100, 42, 6, 7])])
    assert np.allclose(result[0].host(), expected, atol=1e-4)
