"""sentence-transformers around our encoder and tokenizer: the same vectors as around transformers'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from tests.conftest import unavailable
from tests.ecosystem.models import TEXTS, write_tokenizer

try:
    import sentence_transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
except ImportError:
    sentence_transformers = None  # type: ignore[assignment]

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.sweep]


@pytest.fixture(autouse=True)
def _installed() -> None:
    if sentence_transformers is None:
        unavailable("sentence-transformers is not installed; it is in the extra `ecosystem`")


def encoder(folder: Path, ours: bool) -> Any:
    """A SentenceTransformer of a folder, with our model and tokenizer in place of transformers', or without."""
    module = Transformer(str(folder))
    if ours:
        module.model = glassformer.AutoModel.from_pretrained(folder)
        module.processor = glassformer.AutoTokenizer.from_pretrained(folder, model_max_length=module.max_seq_length)
    pooling = Pooling(module.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[module, pooling, Normalize()], device="cpu")


@pytest.fixture(scope="module")
def folder(model_folder: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    for file in model_folder("distilbert", "base").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return write_tokenizer(folder)


def test_vectors_are_equal(folder: Path) -> None:
    theirs, ours = encoder(folder, ours=False), encoder(folder, ours=True)
    expected = theirs.encode(list(TEXTS))
    np.testing.assert_allclose(ours.encode(list(TEXTS)), expected, atol=1e-5)
    np.testing.assert_allclose(ours.encode(TEXTS[0], prompt="the "), theirs.encode(TEXTS[0], prompt="the "), atol=1e-5)
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension()
    assert torch.allclose(ours.similarity(expected, expected), theirs.similarity(expected, expected), atol=1e-5)


def test_it_is_trained(folder: Path) -> None:
    losses = []
    for ours in (False, True):
        model = encoder(folder, ours)
        loss = sentence_transformers.sentence_transformer.losses.CosineSimilarityLoss(model)
        features = [model.preprocess(list(texts)) for texts in (TEXTS[:2], TEXTS[2:])]
        model.eval()  # without dropout
        value = loss(features, torch.tensor([1.0, 0.0]))
        value.backward()
        losses.append(value.item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
