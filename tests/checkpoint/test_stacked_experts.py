"""Experts that files hold stacked in one tensor: transformers' fused form, gpt-oss's own, and its MXFP4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from safetensors.torch import load_file, save_file

from glassformer.checkpoint.stacked_experts import SplitBlocks, separate_experts
from glassformer.engine.cpu.library import levels
from glassformer.ground.errors import CheckpointError
from glassformer.model_files import open_model
from tests.engine.executors import Subject
from tests.parity import reference
from tests.parity.compare import close, ids_for, load

pytestmark = pytest.mark.usefixtures("one_thread")

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])  # of MXFP4's codes
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 32, "head_dim": 16}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe"])
@torch.no_grad()
def test_transformers_fused_form(family: str, tmp_path: Path) -> None:
    theirs = reference.build(family)
    theirs.save_pretrained(tmp_path, save_original_format=False)
    assert any(name.endswith("experts.gate_up_proj") for name in load_file(tmp_path / "model.safetensors"))
    ours, ids = load(tmp_path, "causal"), ids_for(theirs, 2, 9)
    close(ours(ids).logits, theirs(ids).logits)
    expected = reference.in_checkpoint(theirs, theirs.state_dict())
    assert ours.state_dict().keys() == expected.keys()


def packed(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix in MXFP4, as gpt-oss's files have it: neighbours' codes in a byte, scales, and the numbers that they are."""
    blocks = weight.reshape(*weight.shape[:-1], -1, 32)
    exponents = torch.floor(torch.log2(blocks.abs().amax(-1).clamp(min=1e-30))) - 2
    codes = (blocks / 2 ** exponents[..., None])[..., None].sub(VALUES).abs().argmin(-1).to(torch.uint8)
    values = (VALUES[codes.long()] * 2 ** exponents[..., None]).reshape(weight.shape)
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponents + 127).to(torch.uint8), values


def write_mxfp4(folder: Path) -> Any:
    """A gpt-oss checkpoint as it was published, and the reference's model with the same numbers."""
    theirs = reference.write(folder, "gpt_oss", **WIDE)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        blocks, scales, values = packed(tensors.pop(name).mT.contiguous())
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        theirs.get_parameter(name).data.copy_(values.mT)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return theirs


@torch.no_grad()
def test_mxfp4_as_published(tmp_path: Path) -> None:
    theirs = write_mxfp4(tmp_path)
    ids = ids_for(theirs, 2, 13)
    ours = load(tmp_path, "causal")
    close(ours(ids).logits, theirs(ids).logits)
    assert "quantization_config" not in ours.config.to_dict()
    subject = Subject(tmp_path)
    kinds = {tensor.kind for name, tensor in subject.opened.tensors.items() if "experts" in name and "weight" in name}
    assert kinds == {"MXFP4"}
    for level in levels():
        verdict = subject.verdict(subject.cpu(level=level))
        assert verdict.agrees(1e-2), verdict
        assert verdict.divergence < 1e-5
    ours.save_pretrained(tmp_path / "saved")
    again = reference.auto("causal").from_pretrained(tmp_path / "saved").eval()
    close(again(ids).logits, theirs(ids).logits)


def test_split_blocks_are_ggufs_bytes(tmp_path: Path) -> None:
    write_mxfp4(tmp_path)
    tensor = open_model(tmp_path).tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    assert isinstance(tensor, SplitBlocks)
    assert tensor.bytes.size == tensor.size
    values = tensor.to_float32()
    assert values.shape == (32, 64)
    assert np.array_equal(tensor.row(5), values[5])
    requantized = quantize(values, GGMLQuantizationType.MXFP4)
    assert np.array_equal(requantized.reshape(-1)[:17][1:], tensor.bytes[1:17]) or requantized.size == tensor.size


@pytest.mark.parametrize(("changed", "words"), [
    ({"blocks": (5, 64, 2, 8)}, "has no scales that fit it"), ({"scales": (5, 64, 3)}, "has no scales that fit it"),
    ({"blocks": (5, 64, 32)}, "are no stacked experts"),
])  # fmt: skip
def test_stacks_that_do_not_fit_are_refused(changed: dict[str, tuple[int, ...]], words: str, tmp_path: Path) -> None:
    shapes = {"blocks": (5, 64, 2, 16), "scales": (5, 64, 2), **changed}
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{name}_{ending}": torch.zeros(shape, dtype=torch.uint8) for ending, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    from glassformer.checkpoint.folder import read_safetensors

    with pytest.raises(CheckpointError, match=words):
        separate_experts(read_safetensors(tmp_path / "model.safetensors"), "gpt_oss")
