"""Whole models as GGUF files: what is written reads as the same model, and what GGUF cannot say is refused.

How GGUF lays a model out is stated in `tests/checkpoint/test_gguf_families.py` from its own converter's side; the reader
that is used here was proved there.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH_NAMES, GGUFReader
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from glassformer.adapters.peft import LoraDescription, write_adapter
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.quantization import quantize_rows
from glassformer.ground.errors import CheckpointError, GlassError, InputError
from glassformer.model_files import open_model
from glassformer.quantize import quantize
from glassformer.quantize.gguf_metadata import ARCHITECTURES
from tests.checkpoint.files import refused, write_gguf
from tests.checkpoint.test_gguf_families import converted, metadata, theirs
from tests.parity import reference
from tests.parity.compare import close, ids_for, load
from tests.quantize import models

pytestmark = pytest.mark.usefixtures("one_thread")

FULL, SLIDING = "full_attention", "sliding_attention"
TEXT = "the quick brown fox, isn't it? 42 naïve"
MakeCheckpoint = Callable[[str], Path]


@pytest.fixture(scope="module")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> MakeCheckpoint:
    """The folder of a family's tiny model, written once."""
    held: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in held:
            held[family] = tmp_path_factory.mktemp(family)
            models.write(held[family], family)
        return held[family]

    return folder


def exported(folder: Path, path: Path, kind: str = "F32", **options: Any) -> GgufCheckpoint:
    quantize(open_model(folder), path, kind, **options)
    return GgufCheckpoint(path)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_experts_are_exported_stacked(kind: str, make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    """gpt-oss lies transposed in its folder, gate and up in turns; its sinks have no ending there."""
    found = exported(make_checkpoint("gpt_oss"), tmp_path / "x.gguf", kind)
    one, other = load(make_checkpoint("gpt_oss"), "causal"), load(tmp_path / "x.gguf", "causal")
    assert {name: found.raw[f"blk.1.{name}"].kind for name in ("ffn_gate_exps.weight", "ffn_gate_inp.weight")} == {
        "ffn_gate_exps.weight": kind, "ffn_gate_inp.weight": "F32",
    }  # fmt: skip
    assert found.raw["blk.1.ffn_up_exps.bias"].shape == (5, 512)
    assert found.raw["blk.1.attn_sinks.weight"].shape == (4,)
    if kind == "F32":
        ids = ids_for(one, 2, 60)
        close(other(input_ids=ids).logits, one(input_ids=ids).logits, 1e-6)


FEWER_MATRICES = {  # of a block than seven
    **dict.fromkeys(("gpt2", "gpt_bigcode", "phi3", "gpt_neox", "bloom", "mpt"), 4),
    "lfm2": 5,
    "mamba2": 2,
    **dict.fromkeys(("starcoder2", "glm4", "arcee", "nemotron", "phi"), 6),
}


BESIDE_EXPERTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # architecture, config, fields of the file
    "qwen3_5_moe_text": (
        "qwen35moe",
        {**models.OWN["qwen3_5_text"], "num_experts": 4, "shared_expert_intermediate_size": 48},
        {"full_attention_interval": 2, "rope.dimension_sections": [8, 0, 0, 0]},
    ),
    "qwen3_next": (
        "qwen3next",
        {**models.OWN["qwen3_5_text"], "num_experts": 4, "shared_expert_intermediate_size": 48, "norm_topk_prob": True,
         "mlp_only_layers": [], "linear_key_head_dim": 64, "linear_num_key_heads": 2},
        {"full_attention_interval": 2, "ssm.group_count": 2, "ssm.inner_size": 256},
    ),
    "kimi_linear": (
        "kimi-linear",
        {"num_key_value_heads": 4, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64,
         "num_local_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "linear_head_dim": 32,
         "linear_num_heads": 4, "linear_conv_kernel_dim": 3, "layer_types": ["linear_attention", "full_attention"],
         "mlp_layer_types": ["dense", "sparse"]},
        {"attention.head_count_kv": [0, 1], "attention.key_length": 96, "attention.value_length_mla": 64,
         "leading_dense_block_count": 1},
    ),
}  # fmt: skip


def write_beside_experts(folder: Path, family: str) -> None:
    wide = {name: value for name, value in models.WIDE.items() if family != "kimi_linear" or name != "head_dim"}
    ends = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": None}
    own = {"moe_intermediate_size": 32, "num_experts_per_tok": 2, **BESIDE_EXPERTS[family][1]}
    reference.write(folder, family, **{**wide, **ends, **own})
    models.byte_level(folder, "qwen2", composed=True)


@torch.no_grad()
@pytest.mark.parametrize("family", BESIDE_EXPERTS)
def test_recurrent_layers_beside_experts_are_exported(family: str, tmp_path: Path) -> None:
    architecture, _, fields = BESIDE_EXPERTS[family]
    write_beside_experts(tmp_path, family)
    found = exported(tmp_path, tmp_path / "x.gguf")
    assert {name: found.metadata[f"{architecture}.{name}"] for name in fields} == fields
    one, other = load(tmp_path, "causal"), load(tmp_path / "x.gguf", "causal")
    ids = ids_for(one, 2, 30)
    close(other(input_ids=ids).logits, one(input_ids=ids).logits, 1e-5)


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3_next", "kimi_linear"])
def test_tensors_in_parts_are_packed(family: str, tmp_path: Path) -> None:
    """From a folder, and from a file of floats."""
    write_beside_experts(tmp_path, family)
    exported(tmp_path, tmp_path / "x.gguf")
    packed = exported(tmp_path, tmp_path / "packed.gguf", "Q8_0")
    again = exported(tmp_path / "x.gguf", tmp_path / "again.gguf", "Q8_0")
    parts = ("attn_qkv", "attn_gate") if family == "qwen3_next" else ("attn_k_b", "attn_v_b")
    layer = {"qwen3_next": 0, "kimi_linear": 1}[family]
    assert [packed.raw[f"blk.{layer}.{part}.weight"].kind for part in parts] == ["Q8_0", "Q8_0"]
    for name, stored in packed.raw.items():
        assert again.raw[name].kind == stored.kind, name
        assert np.array_equal(again.raw[name].bytes, stored.bytes), name


@torch.no_grad()
@pytest.mark.parametrize(("part", "architecture"), [("mlp", "nemotron_h"), ("moe", "nemotron_h_moe")])
def test_blocks_of_one_part_are_exported(part: str, architecture: str, tmp_path: Path) -> None:
    kinds = ["linear_attention", part, "full_attention", part]
    reference.write(
        tmp_path, "nemotron_h", layers_block_type=kinds, moe_latent_size=24, vocab_size=models.WIDE["vocab_size"]
    )
    models.byte_level(tmp_path, "llama-bpe", False)
    found = exported(tmp_path, tmp_path / "x.gguf")
    assert found.metadata["general.architecture"] == architecture
    assert found.metadata[f"{architecture}.attention.head_count_kv"] == [0, 0, 2, 0]
    inner = {"mlp": 56, "moe": 20}[part]
    assert found.metadata[f"{architecture}.feed_forward_length"] == [0, inner, 0, inner]
    one, other = load(tmp_path, "causal"), load(tmp_path / "x.gguf", "causal")
    assert other.config.layer_types == kinds
    ids = ids_for(one, 2, 30)
    close(other(input_ids=ids).logits, one(input_ids=ids).logits, 1e-5)


@torch.no_grad()
@pytest.mark.parametrize("normed", [True, False])
def test_multipliers_are_folded_into_matrices(normed: bool, tmp_path: Path) -> None:
    """Falcon-H1's, which GGUF has no fields for."""
    own = {"mamba_rms_norm": normed, "mamba_norm_before_gate": False, "mlp_bias": True, "attention_bias": True}
    own |= {"mamba_proj_bias": True, "projectors_bias": True}
    reference.write(tmp_path, "falcon_h1", vocab_size=models.WIDE["vocab_size"], tie_word_embeddings=False, **own)
    models.byte_level(tmp_path, "llama-bpe", False)
    found = exported(tmp_path, tmp_path / "x.gguf")
    assert found.metadata["falcon-h1.ssm.inner_size"] == 48
    one, other = load(tmp_path, "causal"), load(tmp_path / "x.gguf", "causal")
    assert (one.config.lm_head_multiplier, other.config.lm_head_multiplier) == (0.4, 1.0)
    ids = ids_for(one, 2, 30)
    close(other(input_ids=ids).logits, one(input_ids=ids).logits, 1e-5)


def test_multipliers_of_one_table_must_be_alike(tmp_path: Path) -> None:
    reference.write(tmp_path, "falcon_h1", vocab_size=models.WIDE["vocab_size"], tie_word_embeddings=True)
    models.byte_level(tmp_path, "llama-bpe", False)
    words = "GGUF has no place for multipliers of embeddings and scores that differ, where both are one table"
    refused(lambda: exported(tmp_path, tmp_path / "x.gguf"), words, kind=InputError)


def test_experts_beside_mlps_are_not_exported(tmp_path: Path) -> None:
    reference.write(
        tmp_path, "nemotron_h", layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], vocab_size=400
    )
    models.byte_level(tmp_path, "llama-bpe", False)
    words = "GGUF has no place for MLPs or their biases in a Nemotron-H model with experts"
    refused(lambda: exported(tmp_path, tmp_path / "x.gguf"), words, kind=InputError)


HEAD = r"\.norms\.\d+"  # of a list of norms, which a file stacks


@pytest.mark.parametrize("family", [family for family in models.TOKENIZERS if family != "gpt_oss"])
class TestExportedFamilies:
    @torch.no_grad()
    def test_float32_is_the_same_model(self, family: str, make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
        exported(make_checkpoint(family), tmp_path / "x.gguf")
        one, other = load(make_checkpoint(family), "causal"), load(tmp_path / "x.gguf", "causal")
        ids = ids_for(one, 2, 60)
        changed = ("norm", "A_log")  # Gemma's norms are raised, and lowered again; and rates are taken for their logarithms
        bound = 1e-5 if any(name.endswith("A_log") for name in other.state_dict()) else 1e-6
        close(other(input_ids=ids).logits, one(input_ids=ids).logits, bound)
        kept = {name for name in other.state_dict() if not any(part in name for part in changed)}
        for name in kept:
            assert torch.equal(other.state_dict()[name], one.state_dict()[name]), name
        assert other.config.context == (96 if family == "mistral" else one.config.context)  # its window

    @torch.no_grad()
    @pytest.mark.parametrize(("kind", "share"), [("bf16", 0.05), ("q8_0", 0.1), ("q4_k", 0.5), ("q5_k", 0.3), ("q6_k", 0.2)])
    def test_quantized_is_nearly_the_same_model(
        self, family: str, kind: str, share: float, make_checkpoint: MakeCheckpoint, tmp_path: Path
    ) -> None:
        found = exported(make_checkpoint(family), tmp_path / "x.gguf", kind)
        one, other = load(make_checkpoint(family), "causal"), load(tmp_path / "x.gguf", "causal")
        ids = ids_for(one, 2, 20)
        wanted, got = (model(input_ids=ids).logits.double().log_softmax(-1) for model in (one, other))
        divergence = float((wanted.exp() * (wanted - got)).sum(-1).mean())
        assert (
            0 < divergence < share * (2 if family in ("qwen3_5_text", "mamba2") else 1)
        )  # whose states keep what is rounded
        counts = Counter(stored.kind for stored in found.raw.values())
        matrices = FEWER_MATRICES.get(family, 7)
        table = "BF16" if kind == "bf16" else "Q8_0"
        assert counts[kind.upper()] >= matrices * one.config.num_hidden_layers
        assert found.raw["token_embd.weight"].kind == table
        assert set(counts) == {kind.upper(), table, *([] if family == "olmo" else ["F32"])}  # OLMo's norms have no weights
        assert all(stored.kind == "F32" for stored in found.raw.values() if len(stored.shape) == 1)

    def test_tensor_names_are_known_to_the_gguf_package(
        self, family: str, make_checkpoint: MakeCheckpoint, tmp_path: Path
    ) -> None:
        found = exported(make_checkpoint(family), tmp_path / "x.gguf")
        architecture = ARCHITECTURES[family]
        assert found.metadata["general.architecture"] == architecture
        known = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture)
        names = get_tensor_name_map(known, 7)
        stored = [
            f"{name}.weight" if name.endswith("layer_scalar") else re.sub(HEAD, "", name.replace("dt_bias", "dt_proj.bias"))
            for name in open_model(make_checkpoint(family)).tensors
        ]
        short = {names.get_name(name.removeprefix("transformer."), (".weight", ".bias")) for name in stored}  # BLOOM's norm
        assert {names.get_name(name, (".weight", ".bias")) for name in stored} - {None} | short - {None} == {*found.raw} - {
            "rope_freqs.weight"
        }

    def test_the_tokenizer_is_exported(self, family: str, make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
        exported(make_checkpoint(family), tmp_path / "x.gguf")
        one, other = (open_model(path) for path in (make_checkpoint(family), tmp_path / "x.gguf"))
        assert other.tokenizer(TEXT)["input_ids"] == one.tokenizer(TEXT)["input_ids"]
        assert other.tokenizer.chat_template == one.tokenizer.chat_template
        assert other.tokenizer.eos_token == one.tokenizer.eos_token

    @torch.no_grad()
    def test_gguf_to_gguf(self, family: str, make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
        """Through a float32 file, the same bytes come out as straight from the folder."""
        exported(make_checkpoint(family), tmp_path / "floats.gguf")
        one = exported(make_checkpoint(family), tmp_path / "x.gguf", "q4_k")
        other = exported(tmp_path / "floats.gguf", tmp_path / "y.gguf", "q4_k")
        fields = [{k: v for k, v in file.metadata.items() if k != "general.name"} for file in (one, other)]
        assert fields[0] == fields[1]
        assert [*one.raw] == [*other.raw]
        for name, stored in one.raw.items():
            assert stored.kind == other.raw[name].kind
            assert np.array_equal(stored.bytes, other.raw[name].bytes), name


@pytest.mark.parametrize("again", [False, True], ids=["from a folder", "from a file"])
def test_a_vocabulary_without_merges_is_exported(again: bool, tmp_path: Path) -> None:
    """The array of merges is there, and empty: a file without it cannot be read, by us or by llama.cpp."""
    models.write(tmp_path, "gpt2")
    tokenizer = Backend.from_file(str(tmp_path / "tokenizer.json"))
    vocabulary = {token: number for token, number in tokenizer.get_vocab().items() if number < 256}
    tokenizer.model = BPE(vocabulary, [])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "x.gguf"
    exported(tmp_path, path)
    if again:
        quantize(open_model(path), tmp_path / "y.gguf", "F16")
        path = tmp_path / "y.gguf"
    assert GgufCheckpoint(path).metadata["tokenizer.ggml.merges"] == []
    assert "tokenizer.ggml.merges" in GGUFReader(path).fields
    assert open_model(path).tokenizer(TEXT)["input_ids"] == open_model(tmp_path).tokenizer(TEXT)["input_ids"]


def test_metadata_of_an_exported_file(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    written = exported(make_checkpoint("qwen3"), tmp_path / "x.gguf", "q4_k").metadata
    size = {k.removeprefix("qwen3."): v for k, v in written.items() if k.startswith("qwen3.")}
    assert size == {
        "context_length": 128, "embedding_length": 256, "block_count": 2, "feed_forward_length": 512,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 64, "attention.value_length": 64,
        "attention.layer_norm_rms_epsilon": pytest.approx(1e-6), "rope.freq_base": 10000.0, "rope.dimension_count": 64,
        "vocab_size": 448,
    }  # fmt: skip
    assert written["general.file_type"] == 14
    assert written["general.quantization_version"] == 2
    assert written["general.name"] == make_checkpoint("qwen3").name


ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3": ("llama", {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "linear": ("qwen2", {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.3}),
    "yarn": ("qwen3", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 1.7, "original_max_position_embeddings": 64}),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", ROPES)
def test_rope_scaling_is_exported(name: str, tmp_path: Path) -> None:
    family, rope = ROPES[name]
    models.write(tmp_path / "folder", family, rope_parameters=rope)
    found = exported(tmp_path / "folder", tmp_path / "x.gguf")
    assert ("rope_freqs.weight" in found.raw) == (name == "llama3")
    one, other = load(tmp_path / "folder", "causal"), load(tmp_path / "x.gguf", "causal")
    ids = ids_for(one, 1, 90)
    close(other(input_ids=ids).logits, one(input_ids=ids).logits, 1e-6)


@torch.no_grad()
@pytest.mark.parametrize(
    "layers", [["full_attention"] * 3, ["sliding_attention", "full_attention"] * 2, ["sliding_attention"] * 3]
)
def test_gemma3_window_pattern_is_exported(layers: list[str], tmp_path: Path) -> None:
    models.write(tmp_path / "folder", "gemma3_text", layer_types=layers, num_hidden_layers=len(layers))
    found = exported(tmp_path / "folder", tmp_path / "x.gguf")
    assert ("gemma3.attention.sliding_window" in found.metadata) == (SLIDING in layers)
    one, other = load(tmp_path / "folder", "causal"), load(tmp_path / "x.gguf", "causal")
    assert other.config.layer_types == layers
    ids = ids_for(one, 1, 40)
    close(other(input_ids=ids).logits, one(input_ids=ids).logits, 1e-6)


class TestHeads:
    @torch.no_grad()
    def test_untied_head_although_the_config_ties_it(self, tmp_path: Path) -> None:
        models.write(tmp_path / "folder", "qwen3", tie_word_embeddings=True)
        path = tmp_path / "folder" / "model.safetensors"
        values = load_file(path)
        save_file({**values, "lm_head.weight": values["model.embed_tokens.weight"][::-1].copy()}, path)
        found = exported(tmp_path / "folder", tmp_path / "x.gguf")
        assert "output.weight" in found.raw
        one, other = load(tmp_path / "folder", "causal"), load(tmp_path / "x.gguf", "causal")
        ids = ids_for(one, 1, 9)
        close(other(input_ids=ids).logits, one(input_ids=ids).logits, 1e-6)

    def test_tied_head_stored_twice(self, tmp_path: Path) -> None:
        models.write(tmp_path / "folder", "qwen3", tie_word_embeddings=True)
        path = tmp_path / "folder" / "model.safetensors"
        values = load_file(path)
        save_file({**values, "lm_head.weight": values["model.embed_tokens.weight"].copy()}, path)
        found = exported(tmp_path / "folder", tmp_path / "x.gguf")
        assert "output.weight" not in found.raw
        assert found.config["tie_word_embeddings"] is True

    @pytest.mark.parametrize("prefix", ["", "transformer."])
    def test_names_with_and_without_the_bases_prefix(
        self, prefix: str, make_checkpoint: MakeCheckpoint, tmp_path: Path
    ) -> None:
        models.write(tmp_path / "folder", "gpt2")
        path = tmp_path / "folder" / "model.safetensors"
        values = {prefix + name.removeprefix("transformer."): value for name, value in load_file(path).items()}
        mask = {f"{prefix}h.0.attn.bias": np.ones((1, 1, 8, 8), np.float32)}  # which old files carry along
        save_file({**values, **mask}, path)
        found, wanted = (
            exported(tmp_path / "folder", tmp_path / "x.gguf"),
            exported(make_checkpoint("gpt2"), tmp_path / "y.gguf"),
        )
        assert {k: v.bytes.tobytes() for k, v in found.raw.items()} == {k: v.bytes.tobytes() for k, v in wanted.raw.items()}


def test_several_eos_tokens_are_exported(tmp_path: Path) -> None:
    models.write(tmp_path / "folder", "qwen3")
    opened = open_model(tmp_path / "folder")
    end = opened.tokenizer.eos_token_id
    settings = {"eos_token_id": [7, end, 9]}
    (tmp_path / "folder" / "generation_config.json").write_text(json.dumps(settings))
    found = exported(tmp_path / "folder", tmp_path / "x.gguf").metadata
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "eot", "eom")] == [end, 7, 9]


@pytest.mark.parametrize(
    ("family", "modules"),
    [
        ("llama", ("self_attn.q_proj", "mlp.down_proj")),  # whose queries' rows have another order in GGUF
        ("qwen2", ("self_attn.v_proj", "mlp.up_proj")),
        ("gemma2", ("self_attn.o_proj", "mlp.gate_proj")),
        ("gemma3_text", ("self_attn.k_proj", "mlp.down_proj")),
        ("olmo3", ("self_attn.o_proj", "mlp.up_proj")),
    ],
)
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_an_adapter_on_a_packed_base_is_packed_again(
    family: str, modules: tuple[str, ...], kind: str, make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    """Merged into the expanded base: each tensor is that of the merged model, rounded once."""
    exported(make_checkpoint(family), tmp_path / "base.gguf", "Q8_0")
    base, draw = open_model(tmp_path / "base.gguf"), np.random.default_rng(3)
    shapes = {f"model.layers.1.{name}": base.tensors[f"model.layers.1.{name}.weight"].shape for name in modules}
    updates = {
        name: (draw.standard_normal((2, inputs)) * 0.1, draw.standard_normal((outputs, 2)) * 0.1)
        for name, (outputs, inputs) in shapes.items()
    }
    updates = {name: (a.astype(np.float32), b.astype(np.float32)) for name, (a, b) in updates.items()}
    write_adapter(tmp_path / "mine", LoraDescription(str(tmp_path / "base.gguf"), 2, 4.0, list(updates)), updates)
    merged = open_model(tmp_path / "mine")
    exported(tmp_path / "mine", tmp_path / "mine.gguf", kind)
    again = open_model(tmp_path / "mine.gguf")
    for name, tensor in again.tensors.items():
        wanted, found = merged.tensors[name].to_float32(), tensor.to_float32()
        error = np.abs(found - wanted).max()
        assert error <= (0 if tensor.kind == "F32" else 0.01 if tensor.kind == "Q8_0" else 0.12) * np.abs(wanted).max(), name
    for name, (a, b) in updates.items():
        plain = base.tensors[f"{name}.weight"].to_float32()
        found = again.tensors[f"{name}.weight"].to_float32() - plain
        assert np.corrcoef(found.ravel(), (2 * b @ a).ravel())[0, 1] > 0.9  # alpha is twice the rank


def test_odd_row_widths_fall_back_to_another_kind(tmp_path: Path) -> None:
    models.write(tmp_path / "folder", "llama", hidden_size=96, intermediate_size=256, head_dim=24)
    raw = exported(tmp_path / "folder", tmp_path / "x.gguf", "q4_k").raw
    assert raw["blk.0.ffn_up.weight"].kind == "Q4_1"  # rows of 96
    assert raw["blk.0.ffn_down.weight"].kind == "Q4_K"  # rows of 256


class TestFromGguf:
    @torch.no_grad()
    def test_a_family_that_is_only_copied(self, tmp_path: Path) -> None:
        """Fields and names are copied, so every architecture that is read can be packed."""
        write_gguf(tmp_path / "bert.gguf", "bert", metadata("bert"), converted("bert"))
        found = exported(tmp_path / "bert.gguf", tmp_path / "x.gguf", "q8_0")
        assert found.raw["blk.0.ffn_up.weight"].kind == "Q8_0"
        assert found.raw["position_embd.weight"].kind == "F32"
        source = GgufCheckpoint(tmp_path / "bert.gguf").metadata
        more = {"general.file_type": 7, "general.quantization_version": 2}
        assert found.metadata == {**source, **more}
        ids = ids_for(theirs("bert"), 1, 9)
        wanted = theirs("bert")(input_ids=ids).last_hidden_state
        close(load(tmp_path / "x.gguf", "base")(input_ids=ids).last_hidden_state, wanted, 0.05)

    def test_quantized_gguf_is_refused(self, smollm2: Path, tmp_path: Path) -> None:
        words = ("its weights are packed already, as Q4_1", "Take the model in BF16")
        refused(lambda: exported(smollm2, tmp_path / "x.gguf", "q8_0"), *words, kind=InputError)
        refused(lambda: exported(smollm2, tmp_path / "x.gguf", "q4_1"), *words, kind=InputError)


class TestExportPath:
    def test_an_existing_file_needs_force(self, make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        path.write_bytes(b"dear")
        refused(
            lambda: exported(make_checkpoint("qwen3"), path), "is there already", "--force (force=True)", kind=InputError
        )
        assert path.read_bytes() == b"dear"
        assert exported(make_checkpoint("qwen3"), path, force=True).metadata["general.architecture"] == "qwen3"

    def test_missing_folder_is_refused(self, make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
        path = tmp_path / "no" / "x.gguf"
        refused(lambda: exported(make_checkpoint("qwen3"), path), f"{tmp_path / 'no'} is no folder", kind=InputError)

    def test_the_model_itself_is_refused(self, make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        exported(make_checkpoint("qwen3"), path)
        before = path.read_bytes()
        refused(lambda: exported(path, path, "q8_0", force=True), "is the model itself", kind=InputError)
        assert path.read_bytes() == before

    def test_an_interrupted_export_leaves_nothing(self, make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            exported(make_checkpoint("qwen3"), tmp_path / "x.gguf", "q8_0", progress=stop)
        assert not list(tmp_path.iterdir())


UNSAID: dict[str, tuple[str, dict[str, Any], str]] = {
    "another activation": ("llama", {"hidden_act": "gelu"}, "no field for how='gelu' of 'model.layers.0.mlp'; its readers"),
    "dynamic RoPE": (
        "llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "no field for rope=Rope(",
    ),
    "Llama 3's RoPE of other bounds": (
        "llama", {"rope_parameters": {**ROPES["llama3"][1], "low_freq_factor": 2.0}}, "cannot say what its config says",
    ),
    "Llama 3's RoPE in Qwen": (
        "qwen2", {"rope_parameters": ROPES["llama3"][1]}, "has a place for Llama 3's RoPE in Llama's own models only",
    ),
    "sharper yarn": (
        "qwen2", {"rope_parameters": {**ROPES["yarn"][1], "attention_factor": 3.0}}, "no field for rope=Rope(",
    ),
    "Gemma's own scale": ("gemma3_text", {"query_pre_attn_scalar": 100}, "no field for scale=0.1 of"),
    "windows without a rule": (
        "gemma3_text",
        {"num_hidden_layers": 3, "layer_types": [FULL, SLIDING, SLIDING]},
        "no field for",
    ),
    "GPT-2's scale by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "no field for scale="),
    "biases in Qwen3": ("qwen3", {"attention_bias": True}, "no place for the attention biases of a qwen3 model"),
}  # fmt: skip


class TestExportRefused:
    @pytest.mark.parametrize("what", UNSAID)
    def test_configs_that_gguf_cannot_express(self, what: str, tmp_path: Path) -> None:
        family, changes, words = UNSAID[what]
        models.write(tmp_path / "folder", family, **changes)
        fix = "Keep the checkpoint as it is; load(…, weights=…) packs its weights all the same."
        refused(lambda: exported(tmp_path / "folder", tmp_path / "x.gguf"), words, fix, kind=InputError)
        assert not (tmp_path / "x.gguf").exists()

    @pytest.mark.parametrize(("family", "head"), [("t5", "seq2seq"), ("distilbert", "masked")])
    def test_families_that_gguf_lacks(self, family: str, head: str, tmp_path: Path) -> None:
        reference.write(tmp_path / "folder", family, head)
        words = (f"a {family} model cannot be written as GGUF, only {', '.join(ARCHITECTURES)}",)
        refused(lambda: exported(tmp_path / "folder", tmp_path / "x.gguf"), *words, kind=InputError)

    def test_another_head(self, tmp_path: Path) -> None:
        reference.write(tmp_path / "folder", "llama", "sequence")
        words = ("GGUF has no place for a model with a sequence head",)
        refused(lambda: exported(tmp_path / "folder", tmp_path / "x.gguf"), *words, kind=InputError)

    def test_missing_tokenizer(self, tmp_path: Path) -> None:
        reference.write(tmp_path / "folder", "llama")
        refused(lambda: exported(tmp_path / "folder", tmp_path / "x.gguf"), "holds no tokenizer.json")

    @pytest.mark.parametrize(
        ("edit", "words"), [("lacks", "the weights lack model.norm.weight"), ("shape", "has shape (8,)")]
    )
    def test_missing_or_misshapen_weights(self, edit: str, words: str, tmp_path: Path) -> None:
        models.write(tmp_path / "folder", "qwen3")
        path = tmp_path / "folder" / "model.safetensors"
        values = load_file(path)
        norm = values.pop("model.norm.weight")
        save_file(values if edit == "lacks" else {**values, "model.norm.weight": norm[:8]}, path)
        refused(
            lambda: exported(tmp_path / "folder", tmp_path / "x.gguf"), words, "Is this the config of these weights?",
            kind=CheckpointError,
        )  # fmt: skip

    def test_an_unknown_kind(self, make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
        refused(
            lambda: exported(make_checkpoint("qwen3"), tmp_path / "x.gguf", "q4_k_m"),
            "Did you mean 'Q4_K'?",
            kind=GlassError,
        )


def test_exported_bytes_are_those_of_quantize_rows(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    """Rows are laid before they are packed: Llama's pairs side by side, GPT-2's columns as rows."""
    source = open_model(make_checkpoint("gpt2")).tensors["transformer.h.0.mlp.c_fc.weight"].to_float32()
    found = exported(make_checkpoint("gpt2"), tmp_path / "x.gguf", "q6_k").raw["blk.0.ffn_up.weight"]
    assert np.array_equal(found.bytes, quantize_rows(np.ascontiguousarray(source.T), "Q6_K").reshape(-1))
    source = (
        open_model(make_checkpoint("llama")).tensors["model.layers.1.self_attn.k_proj.weight"].to_float32()
    )  # two heads of 64
    paired = source.reshape(2, 2, 32, 256).swapaxes(1, 2).reshape(128, 256)
    found = exported(make_checkpoint("llama"), tmp_path / "y.gguf", "q6_k").raw["blk.1.attn_k.weight"]
    assert np.array_equal(found.bytes, quantize_rows(paired, "Q6_K").reshape(-1))
