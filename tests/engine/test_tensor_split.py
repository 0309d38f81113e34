"""How a blueprint's weights are divided among ranks: nothing is lost or copied without need."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from glassformer.blueprints import Blueprint, blueprint, read_config
from glassformer.engine.lowering import Lowering
from glassformer.engine.program import StepKind
from glassformer.engine.tensor_parallel.split import rank_blueprint, split_model
from glassformer.ground.errors import ExecutorError
from glassformer.ops.split import Split, even_parts, head_parts
from tests.parity import reference


def tiny_blueprint(family: str, **changes: object) -> Blueprint:
    config = read_config(reference.config(family, **changes).to_dict())
    return blueprint(config, "seq2seq" if family in reference.PAIRS else "causal")


def indices(split: Split) -> Counter[int]:
    """How many ranks have each index."""
    return Counter(index for parts in split.parts for part in parts for index in part)


@pytest.mark.parametrize("ranks", range(1, 13))
@pytest.mark.parametrize(("heads", "groups"), [(12, 12), (12, 4), (12, 1), (15, 5), (14, 2)])
@pytest.mark.every_combination
def test_every_head_is_on_one_rank_with_the_keys_that_it_reads(heads: int, groups: int, ranks: int) -> None:
    queries, shared = head_parts(heads, groups, ranks)
    assert [head for part in queries for head in part] == list(range(heads))
    for own, read in zip(queries, shared, strict=True):
        assert list(read) == sorted({head * groups // heads for head in own})
        assert len(own) % len(read) == 0  # as many queries for each key
    assert max(map(len, queries)) <= math.ceil(heads / ranks) * heads // groups


def test_parts_differ_by_one_at_most() -> None:
    assert [len(part) for part in even_parts(11, 4)] == [2, 3, 3, 3]


WHOLE = ("embed_positions", "positions_embed", "act_fn", "lm_head.dense")  # what every rank has


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("family", [*reference.DECODERS, *reference.PAIRS])
@pytest.mark.every_combination
def test_all_of_every_weight_is_on_some_rank(family: str, ranks: int) -> None:
    plan = tiny_blueprint(family)
    if (reason := reference.NOT_SPLIT.get(family)) is not None and (family not in ("phi3", "falcon") or ranks > 2):
        with pytest.raises(ExecutorError, match=f"a {family} model cannot be split among ranks: .*{reason}"):
            split_model(plan, ranks)
        return
    split = split_model(plan, ranks)
    shapes = {weight.name: weight.shape for weight in plan.weights}
    heads = {weight.name: op.head_shape[0] for op in plan.ops if op.kind == "heads" for weight in op.weights}
    assert split.weights.keys() <= shapes.keys()
    for name, divided in split.weights.items():
        copies = indices(divided)
        assert sorted(copies) == list(range(shapes[name][divided.axis])), name
        assert divided.size == shapes[name][divided.axis]
        if max(copies.values()) > 1:  # only keys and values, where there are more ranks than heads of them
            assert any(word in name for word in ("k_proj", "v_proj")), name
            assert ranks > heads[name], name
    for name in shapes.keys() - split.weights.keys():
        assert "norm" in name.lower() or "ln_" in name or "wpe" in name or any(word in name for word in WHOLE), name


def test_a_rank_has_its_share_of_the_parameters() -> None:
    plan = tiny_blueprint("llama", vocab_size=4096, hidden_size=256, intermediate_size=1024, head_dim=32)
    split = split_model(plan, 2)
    counts = [0, 0]
    for weight in plan.weights:
        for rank in range(2):
            part = split.weights[weight.name].part(rank) if weight.name in split.weights else None
            share = 1.0 if part is None else sum(map(len, part.ranges)) / weight.shape[part.axis]
            counts[rank] += int(weight.elements * share)
    assert counts[0] == counts[1]
    assert counts[0] / plan.parameters == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "bart"])
def test_a_rank_has_a_blueprint_of_its_own(family: str) -> None:
    """Its weights are the rank's parts, and each block's products that add to the residual stream are summed."""
    plan = tiny_blueprint(family)
    split = split_model(plan, 3, whole_vocabulary=True)
    for rank in range(3):
        own = rank_blueprint(plan, split, rank)
        sums = [op for op in own.ops if op.kind == "sum"]
        assert [op.module for op in sums] == list(split.summed.values())
        assert own.sites.keys() == plan.sites.keys()
        shapes = {weight.name: weight.shape for weight in own.weights}
        for name, part in split.weight_parts(rank).items():
            assert not part.ranges or shapes[name][part.axis] == sum(map(len, part.ranges))
        for stack in {op.stack for op in own.ops}:
            program = Lowering(own, stack, frozenset(), frozenset(), read_config(reference.config(family).to_dict())).lower()
            kinds = [step.kind for step in program.steps]
            assert kinds.count(StepKind.SUM_OVER_RANKS) == sum(op.stack == stack for op in sums)


def test_every_divided_site_has_heads_or_neurons() -> None:
    plan = tiny_blueprint("gemma3_text")
    sites = split_model(plan, 2).sites
    assert {site.partition("0.")[2] for site in sites if site.startswith("blocks.0.")} == {
        "attention.query", "attention.key", "attention.value", "attention.pattern", "attention.heads", "mlp.hidden",
    }  # fmt: skip
    assert all(plan.sites[site][split.axis] == split.size for site, split in sites.items())


def test_a_model_that_writes_nothing_is_refused() -> None:
    config = read_config(reference.config("llama").to_dict())
    with pytest.raises(ExecutorError, match="base head"):
        split_model(blueprint(config, "base"), 2)
