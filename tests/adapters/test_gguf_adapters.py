"""Adapters in GGUF, written by the gguf package as llama.cpp's converter lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from glassformer.ground.errors import CheckpointError
from tests.adapters.conftest import MakeAdapter, reference_scores, scores

ALPHA = 6.0
NAMES = {  # GGUF's for those of Llama
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def pairs_side_by_side(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys as llama.cpp orders them: each rotary pair together."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def write_adapter(path: Path, theirs: Any, architecture: str = "llama", norms: Any = None, **fields: str) -> Path:
    """The updates of a peft model as a GGUF file."""
    writer = GGUFWriter(path, architecture)
    writer.add_string("general.type", fields.get("type", "adapter"))
    writer.add_string("adapter.type", fields.get("adapter", "lora"))
    writer.add_float32("adapter.lora.alpha", ALPHA)
    config = theirs.config
    for name, values in (norms or {}).items():
        writer.add_tensor(name, values)
    for name, module in theirs.named_modules():
        own = name.removeprefix("base_model.model.")
        if own == "model.embed_tokens" and hasattr(module, "lora_embedding_A"):
            writer.add_tensor("token_embd.weight.lora_a", module.lora_embedding_A["default"].detach().numpy().T.copy())
            writer.add_tensor("token_embd.weight.lora_b", module.lora_embedding_B["default"].detach().numpy())
        elif getattr(module, "lora_A", None) and "default" in module.lora_A:
            _, _, number, kind = own.split(".", 3)
            a, b = (getattr(module, part)["default"].weight.detach().numpy() for part in ("lora_A", "lora_B"))
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(NAMES[kind])
            writer.add_tensor(f"blk.{number}.{NAMES[kind]}.weight.lora_a", a)
            writer.add_tensor(
                f"blk.{number}.{NAMES[kind]}.weight.lora_b", b if heads is None else pairs_side_by_side(b, heads)
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("mode", ["merged", "beside"])
def test_both_executors_equal_peft(make_adapter: MakeAdapter, tmp_path: Path, mode: str) -> None:
    base, _, theirs = make_adapter("llama", target_modules=[*(name.partition(".")[2] for name in NAMES), "embed_tokens"])
    adapter = write_adapter(tmp_path / "adapter.gguf", theirs)
    expected = reference_scores(theirs)
    for executor in ("plain", "cpu"):
        own = scores(base, adapter=adapter, adapter_mode=mode, executor=executor)
        np.testing.assert_allclose(own, expected, atol=2e-4 * np.abs(expected).max())


def test_gguf_adapter_on_a_gguf_base(make_adapter: MakeAdapter, tmp_path: Path, empty_home: Path) -> None:
    from glassformer.model_files import open_model
    from glassformer.quantize.export import _folder_weights, model_contents, write_gguf

    base, _, theirs = make_adapter("llama", target_modules=["q_proj", "k_proj", "down_proj"])
    adapter = write_adapter(tmp_path / "adapter.gguf", theirs)
    opened = open_model(base)
    config, weights = _folder_weights(opened)
    metadata, tensors = model_contents("base", config, weights, "F32")
    write_gguf(tmp_path / "base.gguf", "llama", metadata, tensors)
    expected = reference_scores(theirs)
    for mode in ("merged", "beside"):
        own = scores(tmp_path / "base.gguf", adapter=adapter, adapter_mode=mode, executor="cpu")
        np.testing.assert_allclose(own, expected, atol=2e-4 * np.abs(expected).max())


def test_norms_beside_the_updates(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    from glassformer.model_files import open_model

    base, _, theirs = make_adapter("llama", target_modules=["v_proj"])
    norm = np.arange(theirs.config.hidden_size, dtype=np.float32)
    adapter = write_adapter(tmp_path / "adapter.gguf", theirs, norms={"blk.1.ffn_norm.weight": norm})
    adapted = open_model(base, adapter=adapter).tensors["model.layers.1.post_attention_layernorm.weight"]
    np.testing.assert_array_equal(adapted.to_float32(), norm)


def test_a_gguf_adapter_is_no_model(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    _, _, theirs = make_adapter("llama", target_modules=["v_proj"])
    adapter = write_adapter(tmp_path / "adapter.gguf", theirs)
    with pytest.raises(
        CheckpointError, match=r"an adapter, not a model\. Give the base that it is for, and adapter='.*\.gguf'\."
    ):
        scores(adapter)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "model"}, "its general.type is 'model', not 'adapter'"),
        ({"adapter": "control"}, "adapters of the type 'control' are not supported"),
        ({"architecture": "qwen2"}, "an adapter for a qwen2 model, and the base is a llama model"),
    ],
)
def test_gguf_files_that_are_no_adapters_of_the_base(
    make_adapter: MakeAdapter, tmp_path: Path, fields: dict[str, str], message: str
) -> None:
    base, _, theirs = make_adapter("llama", target_modules=["v_proj"])
    adapter = write_adapter(tmp_path / "adapter.gguf", theirs, **fields)
    with pytest.raises(CheckpointError, match=message):
        scores(base, adapter=adapter)
