"""Functions of one's own at sites: on every executor what the change does that they imitate, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import glassformer
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.changes import Change, Where
from glassformer.ground.errors import SiteError
from glassformer.ground.sites import axes
from tests.engine.executors import EXECUTORS, Subject, open_all
from tests.parity import reference
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")
Tiny = Callable[..., Subject]


def half(value: Tensor, where: Where) -> Tensor:
    return value * 0.5


def passes(subject: Subject, executor: Any, watch: Any) -> list[Any]:
    """Two rows, of which the first is watched, prompted and then grown by a token: its scores and sites, pass by pass."""
    prompts, sources = subject.rows((7, 3))
    rows = open_all(executor, prompts, sources)
    found = []
    for ids in (prompts, [[5], [6]]):
        first, _ = executor.run([Feed(rows[0], ids[0], Want.ALL, watch=watch), Feed(rows[1], ids[1])])
        scores = np.stack([first.host(at) for at in range(len(ids[0]))])
        found.append({"scores": scores, **{site: np.asarray(value) for site, value in first.sites.items()}})
    return found


@pytest.mark.parametrize(
    ("family", "name"), mostly_swept(product(("llama", "t5"), EXECUTORS), *product(("llama",), EXECUTORS), ("t5", "cpu"))
)
def test_a_function_at_every_site_equals_its_change(family: str, name: str, tiny: Tiny) -> None:
    subject = tiny(family).with_executor(name)
    for site in subject.blueprint.site_names.names:
        if ".1." in site and "blocks" in site:
            continue  # one block says all
        wanted = passes(subject, subject.executor(), subject.watch(site, changes={site: Change(0.5)}))
        found = passes(subject, subject.executor(), subject.watch(site, changes={site: half}))
        for mine, yours in zip(found, wanted, strict=True):
            assert mine.keys() == yours.keys()
            for key in yours:
                assert np.array_equal(mine[key], yours[key]), (site, key)


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_function_sees_each_value_and_where_it_stands(name: str, tiny: Tiny) -> None:
    subject = tiny("llama").with_executor(name)
    seen: list[tuple[tuple[int, ...], Where]] = []

    def look(value: Tensor, where: Where) -> None:
        assert isinstance(value, torch.Tensor)
        seen.append((tuple(value.shape), where))

    site = "blocks.0.mlp.hidden"
    plain = passes(subject, subject.executor(), subject.watch(site))
    looked = passes(subject, subject.executor(), subject.watch(site, changes={site: look}))
    for mine, yours in zip(looked, plain, strict=True):
        assert all(np.array_equal(mine[key], yours[key]) for key in yours)
    inner = plain[0][site].shape[-1]
    assert [shape for shape, _ in seen] == [(1, 7, inner), (1, 1, inner)]
    assert [(where.site, where.start, where.axes) for _, where in seen] == [(site, 0, axes(site)), (site, 7, axes(site))]


@pytest.mark.parametrize("name", EXECUTORS)
def test_what_a_function_does_in_place_counts(name: str, tiny: Tiny) -> None:
    subject = tiny("llama").with_executor(name)

    def silence(value: Tensor, where: Where) -> None:
        value[..., 2] = 0

    site = "blocks.0.mlp.hidden"
    found = passes(subject, subject.executor(), subject.watch(site, changes={site: silence}))
    wanted = passes(subject, subject.executor(), subject.watch(site, changes={site: Change(0.0, neurons=[2])}))
    for mine, yours in zip(found, wanted, strict=True):
        assert all(np.array_equal(mine[key], yours[key]) for key in yours)


BAD = {
    "shape": (lambda value, where: value[..., :1], r"returned \(1, 7, 1\); it must return a tensor of the shape"),
    "nothing like a tensor": (lambda value, where: 3, "returned 3; it must return a tensor"),
    "no number": (lambda value, where: value * float("nan"), r"returned values that are no numbers \(NaN\)"),
    "exception": (lambda value, where: value.no_such_thing, "failed with AttributeError"),
}


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_function_is_one_error_and_leaves_the_model_as_it_was(kind: str, name: str, tiny: Tiny) -> None:
    subject = tiny("llama").with_executor(name)
    executor, ids = subject.executor(), [5, 9, 14, 3, 77, 21, 8]
    before = executor.run([Feed(executor.open(), ids)])[0].host().copy()
    function, message = BAD[kind]
    row = executor.open()
    with pytest.raises(SiteError, match=f"the function at 'blocks.0.residual' {message}"):
        executor.run([Feed(row, ids, watch=subject.watch(changes={"blocks.0.residual": function}))])
    assert np.array_equal(executor.run([Feed(row, ids)])[0].host(), before)
    assert np.array_equal(executor.run([Feed(executor.open(), ids)])[0].host(), before)


def test_both_faces_take_functions(tmp_path: Any) -> None:
    reference.write(tmp_path, "llama")
    model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 9, 14, 3]])
    site = "blocks.1.mlp.update"
    wanted = model(ids, watch={site: Change(0.5)}).logits
    assert torch.equal(model(ids, watch={site: half}).logits, wanted)
    options = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(
        model.generate(ids, watch={site: half}, **options), model.generate(ids, watch={site: Change(0.5)}, **options)
    )
    (gradient,) = torch.autograd.grad(model(ids, watch={site: half}).logits.sum(), [model.model.embed_tokens.weight])
    assert bool(gradient.any())
