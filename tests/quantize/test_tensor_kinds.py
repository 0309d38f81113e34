"""Which tensor gets which kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from glassformer.blueprints import blueprint, read_config
from glassformer.model_files import open_model
from glassformer.quantize.tensor_kinds import Role, kind_for, model_label, stored_roles, weight_roles
from tests.parity import reference

SMALL = ("position", "token_type", "wpe", "rel_embeddings", "bias", ".gate.weight", ".router.")


@pytest.mark.parametrize("family", reference.FAMILIES)
def test_every_matrix_has_a_role(family: str) -> None:
    made = blueprint(read_config(reference.config(family).to_dict()))
    found = weight_roles(made)
    assert found.keys() == {weight.name for weight in made.weights}
    for weight in made.weights:
        small = any(word in weight.name for word in SMALL)
        assert (found[weight.name] == "plain") == (small or len(weight.shape) != 2), weight.name
    columns = {name for name, role in found.items() if role == "columns"}
    assert bool(columns) == (family in ("gpt2", "openai-gpt"))
    tables = [name for name, role in found.items() if role == "table"]
    assert 1 <= len(tables) <= 3


@pytest.mark.parametrize(
    ("role", "columns", "kind", "wanted"),
    [
        ("product", 512, "Q4_K", "Q4_K"), ("product", 576, "Q4_K", "Q4_1"), ("product", 576, "Q5_K", "Q8_0"),
        ("product", 576, "Q6_K", "Q8_0"), ("product", 48, "Q4_K", "F16"), ("product", 48, "Q6_K", "F16"),
        ("product", 48, "Q8_0", "F16"), ("product", 96, "Q5_0", "Q5_0"), ("product", 7, "BF16", "BF16"),
        ("columns", 512, "Q6_K", "Q6_K"), ("table", 512, "Q4_K", "Q8_0"), ("table", 512, "Q6_K", "Q8_0"),
        ("table", 48, "Q4_0", "F16"), ("table", 512, "Q8_0", "Q8_0"), ("table", 512, "F16", "F16"),
        ("table", 512, "F32", "F32"), ("plain", 512, "Q4_K", None),
    ],
)  # fmt: skip
def test_kind_for_each_role_and_width(role: Role, columns: int, kind: str, wanted: str | None) -> None:
    assert kind_for(role, columns, kind) == wanted


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_stored_roles_with_and_without_a_base_prefix(prefix: str, tmp_path: Path) -> None:
    """GPT-2's own files leave the base's prefix out."""
    from safetensors.numpy import load_file, save_file

    reference.write(tmp_path, "gpt2")
    path = tmp_path / "model.safetensors"
    found = {prefix + name.removeprefix("transformer."): value for name, value in load_file(path).items()}
    save_file(found, path)
    opened = open_model(tmp_path)
    known = stored_roles(opened)
    counts = Counter(known[id(one)] for one in opened.tensors.values() if id(one) in known)
    assert counts == {"table": 1, "columns": 4 * opened.config.num_hidden_layers}


def test_model_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference.write(tmp_path / "Qwen3-0.6B", "qwen3")
    assert model_label(open_model(tmp_path / "Qwen3-0.6B")) == "Qwen3-0.6B"
    monkeypatch.chdir(tmp_path / "Qwen3-0.6B")
    assert model_label(open_model(".")) == "Qwen3-0.6B"
