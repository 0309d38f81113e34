"""The public surface: what `__all__` says is there, sorted, lazy, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import glassformer


def test_all_is_sorted_and_complete() -> None:
    assert glassformer.__all__ == sorted(glassformer.__all__)
    assert set(glassformer.__all__) - {"__version__"} == set(glassformer._HOME)
    assert dir(glassformer) == glassformer.__all__


@pytest.mark.parametrize("name", glassformer.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(glassformer, name) is not None


def test_type_checkers_see_every_name() -> None:
    tree = ast.parse(Path(glassformer.__file__).read_text("utf-8"))
    seen: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom):
                    seen.update(alias.asname for alias in inner.names if alias.asname)
                if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                    seen.add(inner.target.id)
    assert seen == set(glassformer.__all__) - {"__version__"}


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
