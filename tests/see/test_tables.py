"""Views as tables: what `pandas.DataFrame(view)` shows of every one of them."""

from __future__ import annotations

import importlib
import pkgutil
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
import pytest

from glassformer.see.view import ArrayView, View
from tests.see.models import both

MATRICES = (  # whose fields depend on each other: made of models, here and in test_golden
    "AttentionMap", "AttentionMaps", "AttributionPatching", "Composition", "Lens", "PairPatching", "Patching", "Tree",
)  # fmt: skip


def check_table(view: View) -> None:
    """A row for each record, with columns by name and plain values in them."""
    records, table = view.records(), pd.DataFrame(view)
    assert len(table) == len(records) > 0
    assert list(table.columns) == list({name: None for record in records for name in record})
    assert all(isinstance(name, str) for name in table.columns)
    for record in records:
        for value in record.values():
            assert isinstance(value, str | int | float | list | dict | None), value


def subclasses(cls: type) -> Iterator[type]:
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def all_views() -> list[type]:
    """The classes of views in the package, wherever they are."""
    for package in ("see", "tasks", "jobs", "cli"):
        inner = importlib.import_module(f"glassformer.{package}")
        for module in pkgutil.walk_packages(inner.__path__, f"{inner.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found = {each for each in subclasses(View) if each.__module__.startswith("glassformer.") and each is not ArrayView}
    return sorted(found, key=lambda cls: cls.__name__)


def made(kind: Any) -> Any:
    """Some value of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return made(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin in (Union, types.UnionType):
        return made(arguments[0])
    if origin is tuple:
        return tuple(made(each) for each in (arguments[:1] * 2 if arguments[-1] is Ellipsis else arguments))
    if origin in (list, set):
        return [made(arguments[0])]
    if origin is not None and issubclass(origin, Mapping):
        return {}
    if origin is np.ndarray or kind is np.ndarray:
        return np.zeros((1, 1), np.float32)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind, include_extras=True)
        own = kind.__name__
        return kind(**{
            field.name: () if re.search(rf"\b{own}\b", str(field.type)) else made(hints[field.name])
            for field in fields(kind)
            if field.init and (field.metadata.get("stored", True) or field.default is field.default_factory is MISSING)
        })  # fmt: skip
    return {str: "a", int: 1, float: 0.5, bool: True, bytes: b"a"}.get(kind)


VIEWS = [cls for cls in all_views() if cls.__name__ not in MATRICES]


@pytest.mark.parametrize("cls", VIEWS, ids=lambda cls: cls.__name__)
def test_every_class_of_views_is_a_table(cls: type) -> None:
    check_table(made(cls))


def test_maps_and_layers_are_a_row_for_each_place() -> None:
    reading = both("gpt2").model.read("the cat")
    for view in (reading.attention_maps(), reading.lens(), reading.attention(0, 1)):
        check_table(view)
    table = pd.DataFrame(reading.attention(0, 1))
    assert table.pivot(index="query", columns="key", values="weight").to_numpy() == pytest.approx(
        np.asarray(reading.attention(0, 1))
    )
    assert set(pd.DataFrame(reading.lens())["layer"]) == set(reading.lens().layers)


def test_a_table_has_what_the_view_lists() -> None:
    model = both("gpt2").model
    run = model.watch("the cat", max_new_tokens=3)
    assert pd.DataFrame(run.trace)["surprisal"].tolist() == [place.surprisal for place in run.trace.places]
    assert pd.DataFrame(run.why(0))["text"].tolist() == [candidate.text for candidate in run.why(0).candidates]
    saliency = run.reading.saliency()
    assert pd.DataFrame(saliency)["value"].tolist() == np.asarray(saliency).tolist()
    tree = model.tree("the cat", width=2, depth=2)
    assert len(pd.DataFrame(tree)) == tree.nodes
    assert pd.DataFrame(model.parameters())["elements"].sum() == model.parameters().elements


def test_an_array_of_a_view_outlives_it() -> None:
    values = np.asarray(both("gpt2").model.read("the cat").attention(0, 1))
    assert values.sum(-1) == pytest.approx(np.ones(len(values)), abs=1e-5)
    assert np.array(both("gpt2").model.read("the cat").saliency(), np.float32).dtype == np.float32
