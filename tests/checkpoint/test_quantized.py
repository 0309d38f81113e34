"""Weights packed by other libraries: what is read equals a slow statement of each format, number by number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import glassformer
from glassformer import AutoModelForCausalLM
from glassformer.checkpoint.folder import FolderCheckpoint
from glassformer.ground.errors import CheckpointError, ConfigError
from glassformer.model_files import open_model
from tests.parity import reference

Packed = tuple[dict[str, torch.Tensor], np.ndarray]  # the parts of a matrix, and its numbers
INPUTS, OUTPUTS = 64, 32
STEM = "model.layers.0.mlp.up_proj"


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def word(numbers: list[int], bits: int) -> Iterator[int]:
    """Numbers as 32-bit words, the first in the lowest bits, by Python's own integers."""
    stream = sum(number << bits * place for place, number in enumerate(numbers))
    for at in range(0, bits * len(numbers), 32):
        value = stream >> at & 0xFFFFFFFF
        yield value - (1 << 32) if value >> 31 else value


def int32(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


# The formats, number by number ------------------------------------------------------------------------------------


def gptq(
    bits: int, group: int, act_order: bool = False, less_one: bool = True, stored_order: bool = True, symmetric: bool = False
) -> Packed:
    generator = draw(bits)
    groups = INPUTS // group
    order = [number // group for number in range(INPUTS)]
    if act_order:
        generator.shuffle(order)
    numbers = generator.integers(0, 1 << bits, (INPUTS, OUTPUTS)).tolist()
    zeros = generator.integers(1, 1 << bits, (groups, OUTPUTS)).tolist()
    zeros = [[1 << bits - 1] * OUTPUTS] * groups if symmetric else zeros
    scales = generator.standard_normal((groups, OUTPUTS)).astype(np.float16)
    weight = np.zeros((OUTPUTS, INPUTS), np.float32)
    for i in range(INPUTS):
        for o in range(OUTPUTS):
            weight[o, i] = float(scales[order[i], o]) * (numbers[i][o] - zeros[order[i]][o])
    columns = [list(word([numbers[i][o] for i in range(INPUTS)], bits)) for o in range(OUTPUTS)]
    stored = [[zero - 1 if less_one else zero for zero in row] for row in zeros]
    parts = {
        "qweight": int32(columns).T.contiguous(),
        "qzeros": int32([list(word(row, bits)) for row in stored]),
        "scales": torch.from_numpy(scales),
    }
    return parts | ({"g_idx": torch.tensor(order, dtype=torch.int32)} if stored_order else {}), weight


def awq(group: int = 32) -> Packed:
    generator = draw(1)
    numbers = generator.integers(0, 16, (INPUTS, OUTPUTS)).tolist()
    zeros = generator.integers(0, 16, (INPUTS // group, OUTPUTS)).tolist()
    scales = generator.standard_normal((INPUTS // group, OUTPUTS)).astype(np.float16)
    weight = np.zeros((OUTPUTS, INPUTS), np.float32)
    for i in range(INPUTS):
        for o in range(OUTPUTS):
            weight[o, i] = float(scales[i // group, o]) * (numbers[i][o] - zeros[i // group][o])

    def words(row: list[int]) -> list[int]:
        eights = [row[at : at + 8] for at in range(0, len(row), 8)]
        return [value for eight in eights for value in word([eight[n] for n in (0, 2, 4, 6, 1, 3, 5, 7)], 4)]

    parts = {"qweight": int32([words(row) for row in numbers]), "qzeros": int32([words(row) for row in zeros])}
    return {**parts, "scales": torch.from_numpy(scales)}, weight


def four_bits(kind: str, nested: bool, block: int = 64) -> Packed:
    generator = draw(2)
    codebook = np.sort(generator.standard_normal(16)).astype(np.float32)
    indices = generator.integers(0, 16, OUTPUTS * INPUTS).tolist()
    blocks = len(indices) // block
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [OUTPUTS, INPUTS]}
    parts: dict[str, Any] = {"weight.quant_map": torch.from_numpy(codebook)}
    if nested:
        inner, inner_block, offset = generator.standard_normal(256).astype(np.float32), 16, 0.25
        codes = generator.integers(0, 256, blocks).tolist()
        maxima = generator.random(-(-blocks // inner_block)).astype(np.float32)
        absmax = [np.float32(inner[codes[n]] * maxima[n // inner_block]) + np.float32(offset) for n in range(blocks)]
        state |= {"nested_blocksize": inner_block, "nested_dtype": "float32", "nested_offset": offset}
        parts |= {
            "weight.absmax": torch.tensor(codes, dtype=torch.uint8), "weight.nested_absmax": torch.from_numpy(maxima),
            "weight.nested_quant_map": torch.from_numpy(inner),
        }  # fmt: skip
    else:
        absmax = list(generator.random(blocks).astype(np.float32))
        parts["weight.absmax"] = torch.tensor(np.array(absmax))
    weight = np.array([codebook[index] * absmax[n // block] for n, index in enumerate(indices)], np.float32)
    pairs = [indices[n] << 4 | indices[n + 1] for n in range(0, len(indices), 2)]
    parts["weight"] = torch.tensor(pairs, dtype=torch.uint8)[:, None]
    text = json.dumps(state).encode()
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return parts, weight.reshape(OUTPUTS, INPUTS)


def eight_bits() -> Packed:
    numbers = draw(3).integers(-127, 128, (OUTPUTS, INPUTS)).astype(np.int8)
    scales = draw(4).random(OUTPUTS).astype(np.float32)
    weight = np.array([[int(n) * (scales[o] / np.float32(127)) for n in numbers[o]] for o in range(OUTPUTS)], np.float32)
    format_code = torch.tensor(0, dtype=torch.uint8)
    return {"weight": torch.from_numpy(numbers), "SCB": torch.from_numpy(scales), "weight_format": format_code}, weight


def float8(block: tuple[int, int] | None, ending: str = "weight_scale_inv") -> Packed:
    values = torch.from_numpy(draw(5).standard_normal((OUTPUTS, INPUTS)).astype(np.float32)).to(torch.float8_e4m3fn)
    rows, columns = (OUTPUTS, 1) if block is None else (-(-OUTPUTS // block[0]), -(-INPUTS // block[1]))
    steps = (1, INPUTS) if block is None else block
    scales = draw(6).random((rows, columns)).astype(np.float32)
    plain = values.float().numpy()
    weight = np.zeros((OUTPUTS, INPUTS), np.float32)
    for o in range(OUTPUTS):
        for i in range(INPUTS):
            weight[o, i] = plain[o, i] * scales[o // steps[0], i // steps[1]]
    return {"weight": values, ending: torch.from_numpy(scales)}, weight


def compressed(bits: int, asymmetric: bool = False, act_order: bool = False, group: int = 16) -> Packed:
    generator, half, groups = draw(7), 1 << bits - 1, INPUTS // group
    order = [number // group for number in range(INPUTS)]
    if act_order:
        generator.shuffle(order)
    numbers = generator.integers(-half, half, (OUTPUTS, INPUTS)).tolist()
    zeros = generator.integers(-half, half, (OUTPUTS, groups)).tolist() if asymmetric else [[0] * groups] * OUTPUTS
    scales = torch.from_numpy(generator.standard_normal((OUTPUTS, groups)).astype(np.float32)).to(torch.bfloat16)
    wide = scales.float().numpy()
    weight = np.zeros((OUTPUTS, INPUTS), np.float32)
    for o in range(OUTPUTS):
        for i in range(INPUTS):
            weight[o, i] = (numbers[o][i] - zeros[o][order[i]]) * wide[o, order[i]]
    parts = {
        "weight_packed": int32([list(word([n + half for n in row], bits)) for row in numbers]),
        "weight_scale": scales,
        "weight_shape": torch.tensor([OUTPUTS, INPUTS]),
    }
    if asymmetric:
        packed = [list(word([zeros[o][g] + half for o in range(OUTPUTS)], bits)) for g in range(groups)]
        parts["weight_zero_point"] = int32(packed).T.contiguous()
    return parts | ({"weight_g_idx": torch.tensor(order, dtype=torch.int32)} if act_order else {}), weight


def int_quantized() -> Packed:
    numbers = draw(8).integers(-128, 128, (OUTPUTS, INPUTS)).astype(np.int8)
    scales = draw(9).random((OUTPUTS, 1)).astype(np.float32)
    weight = np.array([[int(n) * scales[o, 0] for n in numbers[o]] for o in range(OUTPUTS)], np.float32)
    return {"weight": torch.from_numpy(numbers), "weight_scale": torch.from_numpy(scales)}, weight


def gptq_config(bits: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": False, "sym": False, **more}


def compressed_config(form: str, bits: int = 4) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int", "strategy": "group"}}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


V2 = {"checkpoint_format": "gptq_v2"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FORMATS: dict[str, tuple[Callable[[], Packed], Mapping[str, Any]]] = {
    "GPTQ, 4 bits": (lambda: gptq(4, 32), gptq_config(4)),
    "GPTQ, 2 bits": (lambda: gptq(2, 32), gptq_config(2)),
    "GPTQ, 3 bits": (lambda: gptq(3, 32), gptq_config(3)),
    "GPTQ, 8 bits": (lambda: gptq(8, 32), gptq_config(8)),
    "GPTQ, one group": (lambda: gptq(4, INPUTS), gptq_config(4, group_size=-1)),
    "GPTQ, without g_idx": (lambda: gptq(4, 32, stored_order=False), gptq_config(4)),
    "GPTQ, groups in another order": (lambda: gptq(4, 32, act_order=True), gptq_config(4, desc_act=True)),
    "GPTQ, the second format": (lambda: gptq(4, 32, less_one=False), gptq_config(4, **V2)),
    "GPTQ, other bits for one module": (lambda: gptq(8, 32), gptq_config(4, dynamic={"+:.*up_proj": {"bits": 8}})),
    "AWQ": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    "bitsandbytes, nf4": (lambda: four_bits("nf4", nested=False), BNB),
    "bitsandbytes, nf4 packed twice": (lambda: four_bits("nf4", nested=True), BNB),
    "bitsandbytes, fp4": (lambda: four_bits("fp4", nested=False), BNB),
    "bitsandbytes, without a method": (lambda: four_bits("nf4", nested=False), {"load_in_4bit": True}),
    "bitsandbytes, 8 bits": (eight_bits, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "FP8, blocks": (lambda: float8((16, 24)), {**FP8, "weight_block_size": [16, 24]}),
    "FP8, rows": (lambda: float8(None, "weight_scale"), {"quant_method": "fbgemm_fp8"}),
    "compressed-tensors, 4 bits": (lambda: compressed(4), compressed_config("pack-quantized")),
    "compressed-tensors, 8 bits": (lambda: compressed(8), compressed_config("pack-quantized", 8)),
    "compressed-tensors, asymmetric": (lambda: compressed(4, asymmetric=True), compressed_config("pack-quantized")),
    "compressed-tensors, another order": (lambda: compressed(4, act_order=True), compressed_config("pack-quantized")),
    "compressed-tensors, int8": (int_quantized, compressed_config("int-quantized", 8)),
    "compressed-tensors, float8": (lambda: float8(None, "weight_scale"), compressed_config("float-quantized", 8)),
}


def write_packed(folder: Path, parts: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> Path:
    """A tiny Llama in which one matrix is packed."""
    model = reference.build("llama", hidden_size=INPUTS, intermediate_size=OUTPUTS, num_hidden_layers=1)
    tensors = {name: value.contiguous() for name, value in model.state_dict().items() if name != f"{STEM}.weight"}
    folder.mkdir(exist_ok=True)
    save_file({**tensors, **{f"{STEM}.{ending}": part for ending, part in parts.items()}}, folder / "model.safetensors")
    fields = {**model.config.to_dict(), "dtype": "bfloat16", "quantization_config": dict(config)}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(("make", "config"), FORMATS.values(), ids=list(FORMATS))
def test_packed_matrix_expands_to_its_numbers(make: Callable[[], Packed], config: Mapping[str, Any], tmp_path: Path) -> None:
    parts, weight = make()
    tensors = FolderCheckpoint(write_packed(tmp_path, parts, config)).tensors
    np.testing.assert_array_equal(tensors[f"{STEM}.weight"].to_float32(), weight)
    assert not [name for name in tensors if name.startswith(f"{STEM}.") and name != f"{STEM}.weight"]


@pytest.mark.parametrize("name", ["GPTQ, 4 bits", "AWQ", "bitsandbytes, nf4 packed twice", "FP8, blocks"])
def test_both_executors_run_packed_weights_as_their_expansion(name: str, tmp_path: Path) -> None:
    make, config = FORMATS[name]
    parts, weight = make()
    packed = write_packed(tmp_path / "packed", parts, config)
    model = AutoModelForCausalLM.from_pretrained(packed)
    assert model.dtype == torch.float32
    np.testing.assert_array_equal(model.get_submodule(STEM).weight.detach().numpy(), weight)
    model.save_pretrained(tmp_path / "plain")
    assert "quantization_config" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    for executor in ("plain", "cpu"):
        models = [glassformer.load(folder, executor=executor) for folder in (packed, tmp_path / "plain")]
        np.testing.assert_array_equal(*(model.executor.run([_feed(model, ids)])[0].host() for model in models))


def _feed(model: glassformer.Model, ids: torch.Tensor) -> Any:
    from glassformer.engine.protocol import Feed

    return Feed(model.executor.open(), ids[0].tolist())


def test_packed_weights_are_quantized_again(tmp_path: Path, empty_home: Path) -> None:
    from glassformer.quantize import requantized

    parts, weight = gptq(4, 32)
    opened = open_model(write_packed(tmp_path, parts, gptq_config(4)))
    assert (opened.kind, opened.packed_by) == ("F32", "gptq")
    tensor = requantized(opened, "q8_0").tensors[f"{STEM}.weight"]
    assert tensor.kind == "Q8_0"
    np.testing.assert_allclose(tensor.to_float32(), weight, atol=0.01 * np.abs(weight).max())


@pytest.mark.parametrize("less_one", [True, False])
def test_symmetric_gptq_stays_packed(less_one: bool, tmp_path: Path) -> None:
    """With whole blocks in order it is Q4_0, number by number."""
    form = {"checkpoint_format": "gptq" if less_one else "gptq_v2"}
    parts, weight = gptq(4, 32, less_one=less_one, symmetric=True)
    tensor = FolderCheckpoint(write_packed(tmp_path / "kept", parts, gptq_config(4, **form))).tensors[f"{STEM}.weight"]
    assert (tensor.kind, tensor.size) == ("Q4_0", OUTPUTS * INPUTS // 32 * 18)
    np.testing.assert_array_equal(tensor.to_float32(), weight)
    np.testing.assert_array_equal(tensor.row(3), weight[3])
    own = [glassformer.load(tmp_path / "kept", executor=executor) for executor in ("plain", "cpu")]
    plain, native = (model.executor.run([_feed(model, torch.tensor([[3, 1, 4]]))])[0].host() for model in own)
    np.testing.assert_allclose(native, plain, atol=1e-3 * np.abs(plain).max())
    parts, weight = gptq(4, 32, less_one=less_one, symmetric=True, act_order=True)
    tensor = FolderCheckpoint(write_packed(tmp_path / "mixed", parts, gptq_config(4, **form))).tensors[f"{STEM}.weight"]
    assert tensor.kind == "F32"
    np.testing.assert_array_equal(tensor.to_float32(), weight)


def test_loading_packed_weights_says_what_they_cost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    glassformer.load(write_packed(tmp_path, awq()[0], FORMATS["AWQ"][1]))
    assert "1 of its matrices are packed by awq, and become F32: 0.0 MB" in caplog.text
    assert "weights='q8_0'" in caplog.text


def test_quantize_config_of_its_own_file(tmp_path: Path) -> None:
    """AutoGPTQ's first files say it beside the config, not in it."""
    parts, weight = gptq(4, 32)
    folder = write_packed(tmp_path, parts, {})
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32, "desc_act": False}))
    np.testing.assert_array_equal(FolderCheckpoint(folder).tensors[f"{STEM}.weight"].to_float32(), weight)


def test_eight_bit_floats_without_scales(tmp_path: Path) -> None:
    for kind, name in ((torch.float8_e4m3fn, "a"), (torch.float8_e5m2, "b")):
        every = torch.arange(256, dtype=torch.uint8).view(kind)
        save_file({name: every}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text("{}")
        own = FolderCheckpoint(tmp_path).tensors[name].to_float32()
        np.testing.assert_array_equal(own, every.float().numpy())


# Refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (gptq_config(5), "bits=5, and 2, 3, 4, 8 can be read"),
        (gptq_config(4, checkpoint_format="marlin"), "checkpoint_format='marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version='gemv', and gemm can be read"),
        ({**FP8, "weight_block_size": "all"}, "weight_block_size='all'"),
        (compressed_config("marlin-24"), "format='marlin-24'"),
        (compressed_config("pack-quantized", 3), "num_bits=3"),
    ],
)
def test_variants_that_cannot_be_read(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    parts = compressed(4)[0] if config["quant_method"] == "compressed-tensors" else gptq(4, 32)[0]
    with pytest.raises(CheckpointError, match=message):
        _ = FolderCheckpoint(write_packed(tmp_path, parts, config)).tensors


def test_unknown_method_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = write_packed(tmp_path, {}, {"quant_method": "aqlm"})
    with pytest.raises(ConfigError, match="aqlm"):
        glassformer.load(folder)


Broken = tuple[str, Callable[[dict[str, torch.Tensor]], Any], str]
BROKEN: list[Broken] = [
    ("GPTQ, 4 bits", lambda parts: parts.pop("scales"), "lack .*scales"),
    ("GPTQ, 4 bits", lambda parts: parts.update(qzeros=parts["qzeros"][:, 1:].contiguous()), "qzeros has the shape"),
    ("GPTQ, 4 bits", lambda parts: parts.update(qweight=parts["qweight"].long()), "qweight is of dtype I64, not I32"),
    ("GPTQ, 4 bits", lambda parts: parts.update(g_idx=parts["g_idx"] + 9), "names a group beyond its 2"),
    ("GPTQ, 4 bits", lambda parts: parts.update(g_idx=parts["g_idx"][1:].contiguous()), "rows for 63 inputs"),
    ("AWQ", lambda parts: parts.update(scales=parts["scales"][:, :12].contiguous()), "qweight has the shape"),
    ("bitsandbytes, nf4", lambda parts: parts.pop("weight"), "do not make 2048 numbers"),
    (
        "bitsandbytes, nf4",
        lambda parts: parts.update({"weight.quant_state.bitsandbytes__nf4": torch.zeros(4, dtype=torch.uint8)}),
        "quant_state is not readable",
    ),
    ("bitsandbytes, nf4 packed twice", lambda parts: parts.pop("weight.nested_absmax"), "lack .*nested_absmax"),
    ("bitsandbytes, 8 bits", lambda parts: parts.update(SCB=parts["SCB"][1:].contiguous()), "SCB has 31 numbers"),
    (
        "FP8, blocks",
        lambda parts: parts.update(weight_scale_inv=parts["weight_scale_inv"][:1].contiguous()),
        "weight_scale_inv has the shape",
    ),
    ("compressed-tensors, 4 bits", lambda parts: parts.update(weight_shape=torch.tensor([1, 2])), "weight_shape is"),
]


@pytest.mark.parametrize(("name", "damage", "message"), BROKEN)
def test_parts_that_do_not_fit_are_refused(
    name: str, damage: Callable[[dict[str, torch.Tensor]], Any], message: str, tmp_path: Path
) -> None:
    make, config = FORMATS[name]
    parts = make()[0]
    damage(parts)
    with pytest.raises(CheckpointError, match=message):
        FolderCheckpoint(write_packed(tmp_path, parts, config)).tensors[f"{STEM}.weight"].to_float32()
