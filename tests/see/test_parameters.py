"""Parameters: names, counts, bytes and numbers, held against the reference's state_dict and the gguf library."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from rich.cells import cell_len
from safetensors.torch import load_file, save_file

import glassformer
from glassformer.checkpoint.stored_tensors import StoredTensor
from glassformer.ground.errors import CheckpointError, ConfigError, InputError
from glassformer.model_files import open_model
from glassformer.page.html import html_document
from glassformer.page.terminal import TerminalPage, plain_text
from glassformer.quantize import quantize
from glassformer.see import weights
from glassformer.see.parameters import Parameters, format_number, histogram_bars, parameters
from glassformer.see.schema import schema
from glassformer.see.weights import BINS, Histogram, Statistics, statistics
from tests.compat.test_scratch import H_PARAMS, ckpt
from tests.parity import reference
from tests.quantize import models

pytestmark = pytest.mark.usefixtures("one_thread")

NATURAL = reference.MAIN


def seen(path: Path, **how: Any) -> Parameters:
    return parameters(open_model(path), **how)


def once(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state_dict without the further names of what is tied."""
    first: dict[int, str] = {}
    for name, tensor in sorted(state.items(), key=lambda entry: entry[0].startswith("lm_head")):
        first.setdefault(tensor.data_ptr(), name)
    return {name: state[name] for name in first.values()}


def told(tensor: torch.Tensor) -> tuple[float, float, float, float, float]:
    """What torch says of a tensor, in float64."""
    wide = tensor.double()
    return wide.mean().item(), wide.std().item(), wide.min().item(), wide.max().item(), (wide == 0).double().mean().item()


def agree(found: Statistics | None, tensor: torch.Tensor) -> None:
    assert found is not None
    assert (found.mean, found.deviation, found.min, found.max, found.zeros) == pytest.approx(
        told(tensor), rel=1e-6, abs=1e-12
    )
    wide = tensor.double()
    assert found.outliers == ((wide - wide.mean()).abs() > 6 * wide.std()).double().mean().item()
    if found.histogram is not None:
        counts, edges = np.histogram(tensor.float().numpy(), BINS)
        assert found.histogram.counts == tuple(counts)
        assert found.histogram.edges == tuple(edges.tolist())


# Names and sums -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", reference.FAMILIES)
def test_counts_and_shapes_are_the_reference_s(family: str, tied: bool, tmp_path: Path) -> None:
    always = family in ("marian", "pegasus", "switch_transformers")  # whose heads are tied
    tied = (tied or always) and family not in ("nemotron_h", "kimi_linear", "t5gemma_encoder")  # whose heads never are
    model = reference.write(tmp_path, family, NATURAL[family], tie_word_embeddings=tied)
    found, state = seen(tmp_path), once(reference.in_checkpoint(model, model.state_dict()))
    if family in reference.SINUSOIDAL:  # positions that follow from the config are in no file
        state = {name: value for name, value in state.items() if "embed_positions" not in name}
    idle = {one.name for one in found.unused}  # a second bias, a table for both stacks that neither has
    assert {name: tuple(state[name].shape) for name in state if name not in idle} == found.shapes
    assert found.elements == sum(one.numel() for name, one in state.items() if name not in idle)
    assert found.bytes == 4 * found.elements
    positions = {
        name for name, _ in model.named_parameters() if family in reference.SINUSOIDAL and "embed_positions" in name
    }
    learnt = sum(parameter.numel() for name, parameter in model.named_parameters() if name not in positions)
    unused = sum(one.elements for one in found.unused if one.name not in positions)
    assert found.elements == learnt - unused + reference.kept_in_buffers(model)
    assert found.elements == glassformer.load(tmp_path).blueprint.parameters
    assert found.missing == ()
    if family in ("t5", "mt5", "umt5", "switch_transformers"):  # whose head is tied, whatever the config says
        tied = True
    assert len(found.tied) == tied
    assert all(one.bytes is None and one.same in found.shapes and one.name not in found.shapes for one in found.tied)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kinds_and_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    model = reference.write(tmp_path, "qwen3", dtype=dtype)
    found = seen(tmp_path)
    (kind,) = found.kinds
    assert (kind.kind, kind.tensors, kind.elements) == (
        "BF16" if dtype == torch.bfloat16 else "F16", len(model.state_dict()), found.elements
    )  # fmt: skip
    assert kind.bytes == found.bytes == 2 * sum(one.numel() for one in model.state_dict().values())
    assert {one.bits for one in found.flat} == {16.0}


def test_modules_sum_up_what_is_in_them(tmp_path: Path) -> None:
    model = reference.write(tmp_path, "llama", tie_word_embeddings=False)
    found = seen(tmp_path)

    def check(module: Any) -> None:
        theirs = model.get_submodule(module.name).state_dict()
        assert module.tensors == len(theirs)
        assert module.elements == sum(one.numel() for one in theirs.values())
        assert module.bytes == 4 * module.elements
        for inner in module.modules:
            check(inner)

    check(found.tree)
    assert [module.name for module in found.tree.modules] == ["model", "lm_head"]
    assert found.flat[0].name == "model.embed_tokens.weight"
    assert found.flat[1].name == "model.layers.0.input_layernorm.weight"  # the order of use


def test_a_config_alone(tmp_path: Path) -> None:
    model = reference.write(tmp_path / "whole", "bert", "masked")
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "bare")
    found = seen(tmp_path / "bare")
    assert found.shapes == seen(tmp_path / "whole").shapes
    assert found.elements == sum(one.numel() for one in model.parameters())
    assert (found.bytes, found.kinds, found.missing, found.unused) == (None, (), (), ())
    assert {(one.kind, one.bytes, one.bits) for one in found.flat} == {(None, None, None)}
    assert [one.name for one in found.tied] == ["cls.predictions.decoder.weight"]
    shown = plain_text(TerminalPage(found.page()), 80)
    assert "There are no weights here" in shown
    assert "With 16 bits each they would take 130.6 kB." in shown


def test_half_of_the_shards_are_no_weights(tmp_path: Path) -> None:
    model = reference.build("llama")
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    next(tmp_path.glob("*.safetensors")).unlink()
    assert seen(tmp_path).bytes is None


def test_only_headers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference.write(tmp_path, "llama")
    expected = seen(tmp_path)

    def read(self: StoredTensor) -> Any:
        raise AssertionError(f"{self.name} was read")

    monkeypatch.setattr(StoredTensor, "bytes", property(read))
    assert seen(tmp_path) == expected


# Files with history ---------------------------------------------------------------------------------------------


def rewrite(folder: Path, change: Any) -> dict[str, torch.Tensor]:
    """Change what a file calls its tensors, or which it has."""
    path = folder / "model.safetensors"
    state = change(load_file(path))
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, path)
    return dict(state)


def test_a_base_without_its_prefix_and_with_masks(tmp_path: Path) -> None:
    """As the hub has GPT-2."""
    model = reference.write(tmp_path, "gpt2", "causal")

    def older(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        bare = {name.removeprefix("transformer."): one for name, one in state.items()}
        return bare | {f"h.{number}.attn.bias": torch.ones(1, 1, 8, 8) for number in range(3)}

    rewrite(tmp_path, older)
    found = seen(tmp_path)
    assert found.elements == sum(one.numel() for one in model.parameters())
    assert set(found.shapes) == set(once(model.state_dict()))
    assert [one.name for one in found.unused] == [f"h.{number}.attn.bias" for number in range(3)]
    assert {one.name: one.written for one in found.flat}["transformer.wpe.weight"] == "wpe.weight"
    shown = plain_text(TerminalPage(found.page()), 120)
    assert "no part of the model, and not counted: h.0.attn.bias, h.1.attn.bias, h.2.attn.bias (768" in shown
    assert f"the file calls {found.tensors} tensors by other names: transformer.wte.weight is wte.weight there" in shown
    agree(parameters(open_model(tmp_path), stats=True, only="*.wpe.*").flat[0].statistics, model.transformer.wpe.weight)


def test_old_names_of_norms(tmp_path: Path) -> None:
    reference.write(tmp_path, "bert", "base")
    before = seen(tmp_path).shapes
    rewrite(
        tmp_path,
        lambda state: {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): one
            for name, one in state.items()
        },
    )
    found = seen(tmp_path)
    assert found.shapes == before
    assert {one.name: one.written for one in found.flat}["embeddings.LayerNorm.bias"] == "embeddings.LayerNorm.beta"


def test_a_head_that_is_stored_once_more(tmp_path: Path) -> None:
    model = reference.write(tmp_path, "qwen3", tie_word_embeddings=True)
    rewrite(tmp_path, lambda state: {**state, "lm_head.weight": state["model.embed_tokens.weight"]})
    found = seen(tmp_path)
    assert found.elements == sum(one.numel() for one in model.parameters())
    (tied,) = found.tied
    assert (tied.name, tied.same) == ("lm_head.weight", "model.embed_tokens.weight")
    assert tied.bytes == 4 * model.lm_head.weight.numel()
    assert "The file holds it once more (30.7 kB)." in plain_text(TerminalPage(found.page()), 200)
    with pytest.raises(InputError, match="'model.embed_tokens.weight'"):
        seen(tmp_path, only="lm_head.weight")


def test_a_table_under_another_name(tmp_path: Path) -> None:
    """T5's, as files have it that were converted stack by stack."""
    model = reference.write(tmp_path, "t5", "seq2seq")

    def older(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        table = state.pop("shared.weight")
        return {**state, "encoder.embed_tokens.weight": table, "decoder.embed_tokens.weight": table}

    rewrite(tmp_path, older)
    found = seen(tmp_path)
    assert found.elements == sum(one.numel() for one in model.parameters())
    assert found.missing == ()
    assert {one.name for one in found.tied} >= {"lm_head.weight"}
    assert "shared.weight" in found.shapes


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama")
    rewrite(tmp_path, lambda state: {name: one for name, one in state.items() if name != "model.norm.weight"})
    found = seen(tmp_path)
    assert found.missing == ("model.norm.weight",)
    assert "not in the file: model.norm.weight" in plain_text(TerminalPage(found.page()), 80)


@pytest.mark.parametrize("config", ['{"model_type": "unheard_of"}', None])
def test_a_model_that_nobody_knows(config: str | None, tmp_path: Path) -> None:
    """What its files hold can be seen all the same, block 10 after block 9."""
    state = {f"layers.{number}.weight": torch.randn(2, 3) for number in range(12)}
    save_file(state, tmp_path / "model.safetensors")
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    found = seen(tmp_path)
    assert (found.family, found.elements) == (None, 72)
    assert list(found.shapes) == [f"layers.{number}.weight" for number in range(12)]
    shown = plain_text(TerminalPage(found.page()), 80)
    assert "0–11, each" in shown
    assert "not a known family: every tensor of its files is counted" in shown


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="config.json: the file"):
        seen(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(ConfigError, match="unheard_of"):
        seen(tmp_path)


# Numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_statistics_are_torch_s(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = reference.write(tmp_path, "llama", dtype=dtype, tie_word_embeddings=False)
    monkeypatch.setattr(weights, "PIECE", 1000)  # so that there are several
    found = seen(tmp_path, stats=True, histogram=dtype != torch.float64)
    state = model.state_dict()
    assert len(found.flat) == len(state)
    for one in found.flat:
        agree(one.statistics, state[one.name])


def test_a_folder_of_pickles(tmp_path: Path) -> None:
    model = reference.write(tmp_path, "bert", "masked")
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    found = seen(tmp_path, stats=True)
    assert found.elements == sum(one.numel() for one in model.parameters())
    for one in found.flat:
        agree(one.statistics, model.state_dict()[one.name])
    assert all(one.bytes is None for one in found.tied)  # one tensor with two names


@pytest.mark.parametrize(
    ("family", "kind"), [("llama", "q4_k"), ("qwen3", "q8_0"), ("gpt2", "q5_0"), ("gemma3_text", "q6_k"), ("llama", "q4_1")]
)
def test_packed_kinds_as_the_gguf_library_expands_them(
    family: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models.write(tmp_path / "tiny", family)
    path = tmp_path / "tiny.gguf"
    quantize(open_model(tmp_path / "tiny"), path, kind)
    monkeypatch.setattr(weights, "PIECE", 3000)
    found, stored = seen(path, histogram=True), {one.name: one for one in GGUFReader(path).tensors}
    own = open_model(path).checkpoint.raw  # type: ignore[attr-defined]
    assert found.bytes == sum(one.n_bytes for one in stored.values())
    assert found.elements == sum(int(one.n_elements) for one in stored.values())
    assert {one.kind for one in found.kinds} == {one.tensor_type.name for one in stored.values()}
    assert {one.kind for one in found.kinds} > {"F32"}
    named = {(one.offset, one.size): name for name, one in own.items()}
    tensors = open_model(path).tensors
    for one in found.flat:
        theirs = stored[named[tensors[one.name].offset, tensors[one.name].size]]
        values = torch.from_numpy(np.array(dequantize(theirs.data, theirs.tensor_type)))
        if family == "gemma3_text" and one.name.endswith("norm.weight"):
            values = values - 1  # the file has them raised by one
            assert torch.allclose(values, model.state_dict()[one.name], atol=1e-6)
        agree(one.statistics, values)
        assert one.bytes == theirs.n_bytes
        assert one.bits == 8 * theirs.n_bytes / int(theirs.n_elements)


def test_a_model_from_scratch(tmp_path: Path) -> None:
    path = ckpt(tmp_path, H_PARAMS)
    state = torch.load(path, weights_only=True)["model_state_dict"]
    found = seen(path, histogram=True)
    learnt = {name: one for name, one in state.items() if not name.endswith(".mask")}
    assert found.shapes == {name: tuple(one.shape) for name, one in learnt.items()}
    assert found.bytes == sum(one.nbytes for one in learnt.values())
    for one in found.flat:
        agree(one.statistics, learnt[one.name])
    shown = plain_text(TerminalPage(seen(path).page()), 80)
    assert "0–1, each" in shown  # blocks
    assert "0–2, each" in shown  # heads in them


def test_large_tables_are_never_whole_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"table.weight": torch.randn(4096, 512).bfloat16()}, tmp_path / "model.safetensors")
    monkeypatch.setattr(weights, "PIECE", 1 << 15)
    opened = open_model(tmp_path)
    _ = opened.tensors
    tracemalloc.start()
    parameters(opened, histogram=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4096 * 512 * 4 / 4  # a quarter of the table in float32


def test_what_is_no_number_is_pointed_out(tmp_path: Path) -> None:
    one = torch.randn(40, 40)
    one[0, 0], one[1, 1], one[2, 2], one[3, 3] = math.nan, math.inf, -math.inf, math.nan
    save_file(
        {"a.weight": one, "b.weight": torch.full((3, 2), math.nan), "c.weight": torch.zeros(1)},
        tmp_path / "model.safetensors",
    )
    found = seen(tmp_path, histogram=True)
    a, b, c = (one.statistics for one in found.flat)
    assert a is not None and b is not None and c is not None  # noqa: PT018
    assert (a.nans, a.infinite, b.nans, b.infinite) == (2, 2, 6, 0)
    finite = one[torch.isfinite(one)]
    assert (a.mean, a.deviation) == pytest.approx((finite.mean().item(), finite.std().item()), rel=1e-6)
    assert a.histogram is not None
    assert sum(a.histogram.counts) == 1596
    assert (b.mean, b.deviation, b.min, b.max, b.histogram) == (None,) * 5
    assert (c.mean, c.deviation, c.zeros, c.outliers) == (0.0, None, 1.0, 0.0)  # a single number has no deviation
    shown = plain_text(TerminalPage(found.page()), 100)
    assert "a.weight: of 1,600 values, 2 not a number (NaN) and 2 infinite. The statistics are of the others." in shown
    assert "b.weight: of 6 values, 6 not a number (NaN)." in shown
    assert "c.weight: of" not in shown
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["tree"]["modules"][1]["parameters"][0]["statistics"][
        "mean"
    ] is None  # fmt: skip


def test_whole_numbers_have_statistics_too(tmp_path: Path) -> None:
    numbers = {
        "a": torch.arange(10),
        "b": torch.tensor([True, False, True, True]),
        "c": torch.tensor([3, 250], dtype=torch.uint8),
    }
    save_file(numbers, tmp_path / "model.safetensors")
    found = seen(tmp_path, stats=True)
    for one in found.flat:
        assert one.statistics is not None
        assert one.statistics.mean == numbers[one.name].double().mean().item()
    assert [one.kind for one in found.flat] == ["I64", "BOOL", "U8"]


def test_outliers_are_found_wherever_they_lie() -> None:
    draw = np.random.default_rng(0)
    numbers = draw.standard_normal(50_000).astype(np.float32) + 1000  # far from zero: naive sums would lose the spread
    numbers[:7] += 50
    parts = np.array_split(numbers, 13)
    found = statistics(lambda: parts, histogram=True)
    assert found.mean == pytest.approx(numbers.astype(np.float64).mean(), rel=1e-12)
    assert found.deviation == pytest.approx(numbers.astype(np.float64).std(ddof=1), rel=1e-9)
    assert found.outliers == 7 / 50_000
    assert found.histogram is not None
    assert found.histogram.counts == tuple(np.histogram(numbers, BINS)[0])


def test_progress_runs_from_nothing_to_all(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama")
    told: list[tuple[str, int, int]] = []
    found = seen(tmp_path, stats=True, progress=lambda *what: told.append(what))
    assert (told[0][1], told[-1][1]) == (0, found.elements)
    assert {total for _, _, total in told} == {found.elements}
    assert [at for _, at, _ in told] == sorted(at for _, at, _ in told)


# In memory ------------------------------------------------------------------------------------------------------


def test_a_loaded_model_and_its_module(tiny_qwen3: Path) -> None:
    model = glassformer.load(tiny_qwen3)
    found = model.parameters()
    assert found == seen(tiny_qwen3)
    inside = parameters(model.module)
    assert inside.shapes == found.shapes
    assert (inside.elements, inside.bytes, inside.kinds) == (found.elements, found.bytes, found.kinds)
    assert inside.tied == found.tied
    around = glassformer.runtime.Model.from_module(model.module, model.tokenizer)  # type: ignore[attr-defined]
    assert around.parameters().shapes == found.shapes
    part = around.parameters(only="*.q_proj.weight", histogram=True)
    assert part.flat == tuple(one for one in model.parameters(only="*.q_proj.weight", histogram=True).flat)


def test_half_precision_in_memory(tmp_path: Path) -> None:
    reference.write(tmp_path, "qwen3", dtype=torch.bfloat16)
    model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    found = parameters(model, stats=True)
    assert found.model == "Qwen3ForCausalLM"
    assert [kind.kind for kind in found.kinds] == ["BF16"]
    for one in found.flat:
        agree(one.statistics, model.state_dict()[one.name])


# Choosing -------------------------------------------------------------------------------------------------------


def test_selecting_parameters_by_pattern(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama")
    whole = seen(tmp_path)
    found = seen(tmp_path, only="*.q_proj.weight")
    assert list(found.shapes) == [f"model.layers.{number}.self_attn.q_proj.weight" for number in range(3)]
    assert (found.elements, found.bytes, found.kinds) == (whole.elements, whole.bytes, whole.kinds)
    assert found.tree.elements == 3 * 48 * 48
    assert len(seen(tmp_path, only="model.layers.1").flat) == 9  # a module
    assert len(seen(tmp_path, only="model.norm.weight").flat) == 1
    assert "*.q_proj.weight: 3 tensors with 6,912 parameters" in plain_text(TerminalPage(found.page()), 80)


@pytest.mark.parametrize(
    ("only", "near"),
    [
        ("*.qproj.weight", "'*.q_proj.weight'"),
        ("model.layer.1", "'model.layers.*'"),
        ("model.layers.1.self_atn.q_proj.weight", "'model.layers.*.self_attn.q_proj.weight'"),
        ("*.weigth", "'*.weight'"),
        ("???", "'model'"),
    ],
)
def test_a_pattern_that_finds_nothing(only: str, near: str, tmp_path: Path) -> None:
    reference.write(tmp_path, "llama")
    with pytest.raises(InputError) as caught:
        seen(tmp_path, only=only)
    assert str(caught.value).startswith(f"no parameter is called {only!r}. Did you mean: {near}")


# Pictures -------------------------------------------------------------------------------------------------------


def test_equal_blocks_are_shown_once(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama", num_hidden_layers=6)
    lines = plain_text(TerminalPage(seen(tmp_path).page()), 80).splitlines()
    assert [line.strip().split("  ")[0] for line in lines if "each" in line and "bits" not in line] == ["0–5, each"]
    assert sum("q_proj.weight" in line for line in lines) == 1
    everything = plain_text(TerminalPage(seen(tmp_path).page(everything=True)), 100).splitlines()
    assert sum(".q_proj.weight" in line for line in everything) == 6
    assert any(line.split()[:3] == ["model.layers.5.self_attn.q_proj.weight", "[48,", "48]"] for line in everything)


def test_blocks_that_differ_stand_apart(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama", num_hidden_layers=6)
    rewrite(
        tmp_path,
        lambda state: {
            name: one.bfloat16() if ".layers.2." in name or ".layers.4." in name else one for name, one in state.items()
        },
    )
    lines = plain_text(TerminalPage(seen(tmp_path).page()), 80).splitlines()
    assert [line.strip().split("  ")[0] for line in lines if ", each" in line] == ["0–1, 3, 5, each", "2, 4, each"]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("how", [{}, {"stats": True}, {"histogram": True}, {"only": "*.q_proj.weight", "histogram": True}])
def test_pictures_fit_the_width(width: int, how: dict[str, Any], tmp_path: Path) -> None:
    reference.write(tmp_path, "qwen3", tie_word_embeddings=True)
    found = seen(tmp_path, **how)
    for everything in (False, True):
        lines = plain_text(TerminalPage(found.page(everything)), width).splitlines()
        assert max(map(cell_len, lines)) <= width


def test_many_statistics_are_cut_in_the_middle(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama", num_hidden_layers=8)
    found = seen(tmp_path, stats=True)
    lines = plain_text(TerminalPage(found.page()), 80).splitlines()
    assert f"… {found.tensors - 48} more (--all)" in lines
    whole = plain_text(TerminalPage(found.page(everything=True)), 80)
    assert "more (--all)" not in whole
    assert whole.count("q_proj.weight") == 8


def test_every_form_has_the_same_numbers(tmp_path: Path) -> None:
    reference.write(tmp_path, "qwen3", tie_word_embeddings=True)
    found = seen(tmp_path, only="*.mlp.*", histogram=True)
    html = html_document(found.page(everything=True))
    for line in plain_text(TerminalPage(found.page(everything=True)), 200).splitlines():
        for word in line.split():
            assert word in html
    written = json.loads(found.save(tmp_path / "seen.json").read_text())
    assert written == json.loads(json.dumps(found.to_dict()))
    jsonschema.validate(written, schema(Parameters))
    jsonschema.validate(seen(tmp_path).to_dict(), schema(Parameters))
    assert repr(found) == f"Parameters({str(tmp_path)!r}: {found.elements:,} in {found.tensors} tensors)"


def test_histogram_bars_and_numbers() -> None:
    assert histogram_bars(Histogram((0.0,) * 9, (0, 1, 2, 3, 4, 6, 7, 8))) == " ▁▂▃▄▆▇█"
    assert histogram_bars(Histogram((0.0,) * 4, (1, 10**6, 1))) == "▁█▁"  # wherever a number is, there is a bar
    assert histogram_bars(None) == ""
    assert [format_number(one) for one in (None, 0.0, -0.00123, 12345.0)] == ["", "0", "-0.0012", "1.23e+04"]


def test_parameters_need_no_torch(tmp_path: Path) -> None:
    reference.write(tmp_path, "llama")
    code = f"""
import sys
from glassformer.model_files import open_model
from glassformer.see.parameters import parameters
print(parameters(open_model({str(tmp_path)!r}), histogram=True))
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "parameters in" in " ".join(done.stdout.split())
