"""Gradients through matrices that stay packed, against the same through the expanded ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.ground.changes import Change
from glassformer.ground.errors import CheckpointError
from glassformer.runtime.executors import Executors
from glassformer.see.differentiation import Differentiation
from glassformer.see.metrics import Target
from glassformer.torch.layers import Conv1D, Linear
from tests.checkpoint.files import write_gguf
from tests.engine.cpu.packed import KEPT, metadata, tensors
from tests.parity import reference
from tests.quantize.test_weight_cache import WIDE

pytestmark = pytest.mark.usefixtures("one_thread")
WRITERS = (*reference.DECODERS, *reference.PAIRS)
IDS = (3, 9, 4, 7, 1, 8)
LOGIT, LOSS = Target(position=4, token=5, against=7), Target(loss=True)


def gradients(model: Any, target: Target = LOGIT) -> dict[str, np.ndarray]:
    text = model.read_ids(IDS, IDS) if model.head == "seq2seq" else model.read_ids(IDS)
    sites = ["embedding", "blocks.0.attention.value", "blocks.1.mlp.update", "blocks.1.residual"]
    sites = [site for site in sites if site in model.blueprint.sites]  # a block may have one part alone
    return Differentiation(text).site_gradients(target, sites)


def products(module: Any) -> list[bool]:
    """Of each matrix, whether it is packed."""
    return [layer.product is not None for layer in module.modules() if isinstance(layer, Linear | Conv1D)]


def agree(model: Any, monkeypatch: pytest.MonkeyPatch, target: Target = LOGIT, share: float = 2e-3) -> None:
    """`share`: of the largest gradient that they may be apart."""
    found = gradients(model, target)
    monkeypatch.setattr(Executors, "packed_module", Executors.module)
    for site, expected in gradients(model, target).items():
        np.testing.assert_allclose(found[site], expected, atol=share * np.abs(expected).max(), err_msg=site)


@pytest.mark.parametrize("target", [LOGIT, LOSS], ids=["logit", "loss"])
@pytest.mark.parametrize("family", WRITERS)
def test_every_family(family: str, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference.write(tmp_path, family, reference.HEADS[family][1], **WIDE[family])
    model = glassformer.load(tmp_path, executor="cpu", weights="q8_0")
    assert any(products(model.packed_module))
    assert not any(products(model.module))
    agree(model, monkeypatch, target, 2e-2)


def test_gradients_where_blocks_have_vectors_of_tokens_beside(tmp_path: Path) -> None:
    """By finite differences: the vectors change, and what blocks look up by the ids stays."""
    reference.write(tmp_path, "gemma3n_text", "causal")
    model = glassformer.load(tmp_path, executor="plain")
    gradient = torch.from_numpy(gradients(model)["embedding"])
    module, ids = model.module.double(), torch.tensor([IDS])
    vectors = module.get_input_embeddings()(ids).detach()
    step = 1e-4 * gradient / gradient.norm()

    def value(moved: torch.Tensor) -> float:
        scores = module(ids, inputs_embeds=vectors + moved).logits[0, LOGIT.position]
        return float(scores[LOGIT.token] - scores[LOGIT.against])

    assert (value(step) - value(-step)) / 2e-4 == pytest.approx(float(gradient.norm()), rel=1e-3)


@pytest.mark.parametrize("kind", [kind for kind in KEPT if kind[0] == "Q"])
def test_every_kind(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "llama", metadata(), tensors(kind))
    model = glassformer.load(path, executor="cpu")
    with caplog.at_level(logging.WARNING):
        gradients(model)
    assert not caplog.records  # nothing was expanded
    assert all(products(model.packed_module))
    assert sum(weight.numel() for weight in model.packed_module.parameters()) == 5 * 256  # norms
    agree(model, monkeypatch)


def test_under_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "llama", metadata(), tensors("Q8_0"))
    model = glassformer.load(path, executor="cpu")
    changed = model.changed({"blocks.1.mlp.update": Change(0.0, 0.1, [4])})
    assert np.abs(gradients(changed)["embedding"] - gradients(model)["embedding"]).max() > 1e-3  # it is in force
    agree(changed, monkeypatch)


@pytest.mark.usefixtures("empty_home")
def test_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "llama", metadata(), tensors("Q8_0"))
    model = glassformer.load(path, executor="cpu")
    gradients(model)
    (tiles,) = (Path(file.path) for file in model.executors.cpu_executor._files.files if file.path.suffix == ".tiles")
    with tiles.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(CheckpointError, match="changed|cut short"):
        gradients(model)


def test_models_whose_weights_are_floats_have_one_module(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama")
    model = glassformer.load(tmp_path, executor="cpu")
    assert model.packed_module is model.module
