"""The public surface: what `__all__` says is there, sorted, lazy, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import glassformer


def test_all_is_sorted_and_complete() -> None:
    assert glassformer.__all__ == sorted(glassformer.__all__)
    assert dir(glassformer) == glassformer.__all__


@pytest.mark.parametrize("name", glassformer.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(glassformer, name) is not None


def test_type_checkers_see_every_name() -> None:
    """The list is imports that Python does not run; a type checker exports a name that is imported as itself."""
    (block,) = (node for node in ast.parse(Path(glassformer.__file__).read_text("utf-8")).body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(block.body) == len(glassformer.__all__) - 1  # __version__ is here
    assert all([alias.name == alias.asname for alias in node.names] == [True] for node in imports)


def test_a_star_imports_all_of_it() -> None:
    names: dict[str, object] = {}
    exec("from glassformer import *", names)
    assert set(glassformer.__all__) <= set(names)


@pytest.mark.parametrize(
    "name", ["BertForMaskedLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "Gemma3TextModel", "T5EncoderModel"]
)
def test_family_classes_by_name(name: str) -> None:
    result = getattr(glassformer, name)
    assert result.__name__ == name
    assert getattr(glassformer, name) is result


@pytest.mark.parametrize("name", ["AutoModelForNothing", "BertForCausalLM", "T5ForMaskedLM", "nothing"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        getattr(glassformer, name)
