"""Embedders in GGUF files, and EmbeddingGemma's folder beside the reference: blocks, pooling, and the layers behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.numpy import load_file, save_file

from glassformer import load, pipeline
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.ground.errors import InputError
from glassformer.model_files import open_model
from glassformer.quantize import quantize
from tests.checkpoint.files import refused
from tests.parity import reference
from tests.quantize import models

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["How old are you?", "Hi", "the quick brown fox jumps over the lazy dog, again and again, and over the fence"]
KINDS = (
    ("Transformer", ""),
    ("Pooling", "1_Pooling"),
    ("Dense", "2_Dense"),
    ("Dense", "3_Dense"),
    ("Normalize", "4_Normalize"),
)
QUERY = "task: search result | query: "
GEMMA = {
    "vocab_size": 448, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "layer_types": None,
    "max_position_embeddings": 128,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5e5},
    },
}  # fmt: skip


def with_layers(folder: Path, pooling: str = "pooling_mode_mean_tokens", **dense: dict[str, np.ndarray]) -> None:
    """The files by which an embedder says how a text becomes a vector."""
    modules = [(kind, path) for kind, path in KINDS if kind != "Dense" or path in dense]
    (folder / "modules.json").write_text(
        json.dumps([{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in modules])
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({pooling: True, "include_prompt": True}))
    for path, tensors in dense.items():
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(
            json.dumps({"activation_function": "torch.nn.modules.linear.Identity", "bias": "linear.bias" in tensors})
        )
        save_file(tensors, folder / path / "model.safetensors")
    prompts = {"prompts": {"query": QUERY, "document": "title: none | text: "}, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))


def random_layer(rows: int, columns: int, *, bias: bool = False) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(rows)
    layer = {"linear.weight": generator.normal(size=(rows, columns)).astype(np.float32)}
    return {**layer, "linear.bias": np.ones(rows, np.float32)} if bias else layer


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    reference.write(folder, "embedding_gemma", "base", **GEMMA)
    models.pieces(folder, "GemmaTokenizer", models.GEMMA)
    with_layers(folder, **{"2_Dense": random_layer(96, 64), "3_Dense": random_layer(40, 96)})
    return folder


def written(folder: Path, family: str) -> GgufCheckpoint:
    """As GGUF, under names that its package knows."""
    quantize(open_model(folder), folder.parent / "x.gguf", "F32")
    found = GgufCheckpoint(folder.parent / "x.gguf")
    assert found.metadata["general.architecture"] == family
    known = get_tensor_name_map(next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == family), 7)
    extra = {"dense_2": "dense_2_out", "dense_3": "dense_3_out"}  # which the package names after what a converter calls them
    for name in found.raw:
        stem = name.rpartition(".")[0]
        assert known.get_name(extra.get(stem, stem)) == stem, name
    return found


class TestEmbeddingGemma:
    def test_vectors_are_those_of_the_reference(self, gemma: Path) -> None:
        raw = json.loads((gemma / "config.json").read_text())
        assert (raw["model_type"], raw["architectures"]) == ("gemma3_text", ["Gemma3TextModel"])
        assert all(not name.startswith("model.") for name in load_file(gemma / "model.safetensors"))
        tokenizer, model = load(gemma).tokenizer, transformers.AutoModel.from_pretrained(gemma)
        layers = [load_file(gemma / path / "model.safetensors")["linear.weight"] for path in ("2_Dense", "3_Dense")]

        def slow(text: str, size: int = 40) -> np.ndarray:
            with torch.inference_mode():
                states = np.asarray(model(torch.tensor([tokenizer(text)["input_ids"]]))[0][0])
            vector = (layers[1] @ (layers[0] @ states.mean(0)))[:size]
            return np.asarray(vector / np.linalg.norm(vector))

        for executor in ("cpu", "plain"):
            task = pipeline("embed", load(gemma, executor=executor))
            assert np.allclose(task(TEXTS), [slow(text) for text in TEXTS], atol=1e-5)
            assert np.allclose(task(TEXTS[0], prompt_name="query"), slow(QUERY + TEXTS[0]), atol=1e-5)
            assert np.allclose(task(TEXTS[0], truncate_dim=16), slow(TEXTS[0], 16), atol=1e-5)

    def test_a_gguf_file_gives_the_same_vectors(self, gemma: Path) -> None:
        found = written(gemma, "gemma-embedding")
        assert found.metadata["gemma-embedding.pooling_type"] == 1
        assert found.metadata["gemma-embedding.attention.sliding_window"] == 8
        assert found.metadata["gemma-embedding.dense_2_feat_out"] == 96
        one, other = pipeline("embed", load(gemma)), pipeline("embed", load(gemma.parent / "x.gguf"))
        assert np.allclose(one(TEXTS), other(TEXTS), atol=1e-6)
        assert open_model(gemma.parent / "x.gguf").config.model_type == "embedding_gemma"
        quantize(open_model(gemma.parent / "x.gguf"), gemma.parent / "y.gguf", "Q8_0", allow_requantize=True)
        packed = pipeline("embed", load(gemma.parent / "y.gguf"))
        assert (one(TEXTS) * packed(TEXTS)).sum(-1).min() > 0.99

    def test_a_saved_model_is_the_references_again(self, gemma: Path, tmp_path: Path) -> None:
        from glassformer import AutoModel

        model = AutoModel.from_pretrained(gemma)
        model.save_pretrained(tmp_path / "again")
        again = transformers.AutoModel.from_pretrained(tmp_path / "again")
        assert type(again).__name__ == "Gemma3TextModel"
        ids = torch.tensor([[2, 5, 9, 40, 77, 8, 3, 120, 33, 60]])
        with torch.inference_mode():
            assert torch.allclose(again(ids)[0], model(ids)[0], atol=1e-5)


def test_eurobert_is_written_without_a_head(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    reference.write(folder, "eurobert", "base", vocab_size=448, hidden_size=64, intermediate_size=96, num_hidden_layers=2)
    models.byte_level(folder, "llama-bpe", False)
    with_layers(folder, "pooling_mode_cls_token")
    assert written(folder, "eurobert").metadata["eurobert.pooling_type"] == 2
    one, other = pipeline("embed", load(folder)), pipeline("embed", load(tmp_path / "x.gguf"))
    assert np.allclose(one(TEXTS), other(TEXTS), atol=1e-6)


def test_a_decoder_says_how_it_embeds(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    models.write(folder, "qwen3")
    with_layers(folder, "pooling_mode_lasttoken")
    assert written(folder, "qwen3").metadata["qwen3.pooling_type"] == 3
    one, other = pipeline("embed", load(folder)), pipeline("embed", load(tmp_path / "x.gguf"))
    assert np.allclose(one(TEXTS), other(TEXTS), atol=1e-6)


UNSAID: dict[str, tuple[str, dict[str, Any], str]] = {
    "a maximum": ("pooling_mode_max_tokens", {}, "no number for the pooling max"),
    "layers of another family": ("pooling_mode_lasttoken", {"2_Dense": random_layer(8, 256)}, "and for no others"),
}


@pytest.mark.parametrize("what", UNSAID)
def test_what_gguf_cannot_say_of_an_embedder(what: str, tmp_path: Path) -> None:
    pooling, dense, words = UNSAID[what]
    folder = tmp_path / "folder"
    folder.mkdir()
    models.write(folder, "qwen3")
    with_layers(folder, pooling, **dense)
    refused(lambda: quantize(open_model(folder), tmp_path / "x.gguf", "F32"), words, "GGUF", kind=InputError)
    assert not (tmp_path / "x.gguf").exists()
