"""An opened model's tensors in another kind, from a file that is made once."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.gguf_kinds import dequantize
from glassformer.checkpoint.quantization import quantize_rows
from glassformer.checkpoint.stored_tensors import InterleavedPairs, Transposed
from glassformer.compat.auto import model_class_for_head
from glassformer.compat.pretrained import load
from glassformer.ground.errors import CheckpointError, InputError, WriteError
from glassformer.model_files import ModelFiles, open_model
from glassformer.quantize import requantize, weight_cache
from tests.checkpoint.files import refused, write_gguf
from tests.parity import reference
from tests.parity.compare import ids_for

pytestmark = pytest.mark.usefixtures("one_thread", "empty_home")

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128}
DECODER = {**SIZES, "head_dim": 16}
EXPERTS = {**DECODER, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
STATES = {**EXPERTS, "linear_value_head_dim": 16}
LATENT = {**EXPERTS, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 16}
GPT2 = {"n_embd": 64, "n_inner": 128}
NARROW = {**SIZES, "embedding_size": 32}
BART = {"d_model": 96, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
T5: dict[str, Any] = {"d_model": 64, "d_ff": 128, "d_kv": 16}
WIDE: dict[str, dict[str, Any]] = {  # rows of 64 and the like, so that something is packed
    **dict.fromkeys(reference.DECODERS, DECODER), **dict.fromkeys(reference.ENCODERS, SIZES),
    "embedding_gemma": DECODER, "modernbert-decoder": SIZES,
    **dict.fromkeys(("gpt_neox", "gpt_neo", "starcoder2", "cohere", "cohere2", "stablelm", "phi", "olmo", "biogpt"), SIZES),
    **dict.fromkeys(("gpt2", "gptj", "gpt_bigcode"), GPT2), "openai-gpt": {"n_embd": 64},
    "opt": {"hidden_size": 64, "ffn_dim": 128}, "bloom": {"hidden_size": 64}, "mpt": {"d_model": 64},
    "falcon": {"hidden_size": 64, "ffn_hidden_size": 128},
    "gemma3n_text": {**DECODER, "hidden_size_per_layer_input": 32, "laurel_rank": 32, "altup_num_inputs": 32},
    "gemma4_text": {**DECODER, "hidden_size_per_layer_input": 32, "final_logit_softcapping": None},
    "distilbert": {"dim": 64, "hidden_dim": 128},
    **dict.fromkeys(("electra", "albert", "roformer"), NARROW),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "glm4_moe"), EXPERTS),
    **dict.fromkeys(reference.RECURRENT, STATES), "mamba2": {"hidden_size": 64, "num_heads": 8},
    "bamba": {**SIZES, "mamba_n_heads": 8}, "falcon_h1": {**SIZES, "mamba_n_heads": 8, "mamba_d_ssm": 64},
    "granitemoe": DECODER,
    "granitemoehybrid": {**SIZES, "mamba_n_heads": 8, "intermediate_size": 64, "shared_intermediate_size": 64},
    "nemotron_h": {**EXPERTS, "mamba_head_dim": 16, "mamba_num_heads": 8, "moe_shared_expert_intermediate_size": 64},
    "kimi_linear": {**LATENT, "linear_head_dim": 64}, "deepseek_v2": LATENT, "deepseek_v3": LATENT, "glm4_moe_lite": LATENT,
    "ernie4_5_moe": EXPERTS, "llama4_text": {**DECODER, "intermediate_size_mlp": 64},
    "t5": T5, "mt5": {**T5, "feed_forward_proj": "relu"}, "umt5": {**T5, "feed_forward_proj": "relu"},
    "switch_transformers": T5,
    **dict.fromkeys((*reference.BARTS, "led"), BART), "t5gemma": DECODER,
    "t5gemma_encoder": {**DECODER, "num_labels": 64},
}  # fmt: skip
SMALL = (
    "position",
    "wpe",
    "type",
    "rel_embeddings",
    "bias",
    "mlp.gate.",
    "moe.gate.",
    "mlp.router.",
    "mixer.gate.",
    "router.layer.",
    "A_log",
    "conv1d",
    "conv.conv",
    "feed_forward.gate.",
    "feed_forward.router.",
)  # words in the names of what stays


def make_model(folder: Path, family: str = "llama", **changes: Any) -> ModelFiles:
    head = reference.HEADS[family][1]
    reference.write(folder, family, head, **{**WIDE[family], **changes})
    return open_model(folder)


def through(values: np.ndarray, kind: str) -> np.ndarray:
    """What numbers are after they were packed."""
    return dequantize(quantize_rows(values, kind).reshape(-1), kind, values.shape, "")


def files() -> list[Path]:
    return sorted((weight_cache.home() / "packed").rglob("*.gguf"))


@pytest.mark.parametrize("family", reference.FAMILIES)
@pytest.mark.parametrize("kind", ["q8_0", "Q4_1"])
@torch.no_grad()
def test_requantize_every_family(family: str, kind: str, tmp_path: Path) -> None:
    """The tensors have their names and shapes, packed as they should be; and the model runs with them."""
    opened = make_model(tmp_path, family)
    found = requantize(opened, kind)
    assert found.keys() == opened.tensors.keys()
    packed = 0
    for name, one in found.items():
        source = opened.tensors[name]
        assert one.shape == source.shape, name
        if one is source:
            continue
        packed += 1
        table = "embed" in name or "wte" in name or "shared." in name or name in ("lm_head.weight", "score.out_proj.weight")
        table = table and not name.endswith(("project.weight", "mapping_in.weight"))  # of what is embedded
        table = table and "unembed" not in name
        assert one.kind == ("Q8_0" if table else kind.upper()), name
        values = source.to_float32()
        turned = family in ("gpt2", "openai-gpt") and not table
        assert (one.layout == Transposed()) == turned
        wanted = through(np.ascontiguousarray(values.T), one.kind).T if turned else through(values, one.kind)
        assert np.array_equal(one.to_float32(), wanted), name
    assert packed >= 2 * opened.config.num_hidden_layers
    kept = {name for name, one in found.items() if one is opened.tensors[name]}
    assert all(opened.tensors[name].shape[1:] == () or any(word in name for word in SMALL) for name in kept), kept
    other = replace(opened, replacement_tensors=found)
    assert other.kind == kind.upper() or family in reference.PAIRS
    cls = model_class_for_head(opened.config.model_type, opened.head)
    one, two = (load(cls, which) for which in (opened, other))
    ids = ids_for(one, 2, 9)
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if opened.head == "seq2seq" else {})}
    wanted, got = one(**inputs).logits, two(**inputs).logits
    assert got.shape == wanted.shape
    share = 0.9 if family in reference.RECURRENT else 0.5  # what is rounded at a token stays in a state
    assert 0 < float((got - wanted).abs().max()) < share * float(wanted.max() - wanted.min())


class TestCachedFile:
    def test_is_made_once(self, tmp_path: Path) -> None:
        opened, reports = make_model(tmp_path), list[tuple[str, int, int]]()
        requantize(opened, "q8_0", lambda *report: reports.append(report))
        (path,) = files()
        assert path.parent.name.startswith(f"{tmp_path.name}-")
        assert path.name.startswith("q8_0-")
        assert reports[-1][0] == f"packing {tmp_path.name} as Q8_0"
        assert reports[-1][1] == reports[-1][2] > 0
        when = path.stat().st_mtime_ns
        again: list[object] = []
        found = requantize(open_model(tmp_path), "Q8_0", lambda *report: again.append(report))
        assert not again
        assert files() == [path]
        assert path.stat().st_mtime_ns == when
        assert found["model.layers.0.mlp.up_proj.weight"].file.path == path

    def test_another_kind_is_another_file(self, tmp_path: Path) -> None:
        opened = make_model(tmp_path)
        for kind in ("q8_0", "q4_0"):
            requantize(opened, kind)
        assert [path.name.partition("-")[0] for path in files()] == ["q4_0", "q8_0"]

    @pytest.mark.parametrize("what", ["numbers", "size", "version"])
    def test_is_made_anew_when_the_source_changes(self, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        requantize(make_model(tmp_path), "q8_0")
        requantize(make_model(tmp_path), "q4_0")
        before = files()
        weights = tmp_path / "model.safetensors"
        if what != "version":
            values = {name: value * 2 for name, value in load_file(weights).items()}
            values |= {"more": np.zeros(1, np.float32)} if what == "size" else {}
            stat = weights.stat()
            save_file(values, weights)
            os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        else:
            monkeypatch.setattr(weight_cache, "VERSION", 99)
        found = requantize(open_model(tmp_path), "q8_0")
        after = files()
        assert len(after) == 2
        assert after[0] == before[0]  # the other kind's stays until it is asked for
        assert after[1] != before[1]
        one = open_model(tmp_path).tensors["model.norm.weight"]
        assert np.array_equal(found["model.norm.weight"].to_float32(), one.to_float32())

    def test_a_damaged_file_is_packed_anew(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        opened = make_model(tmp_path)
        requantize(opened, "q8_0")
        (path,) = files()
        whole = path.read_bytes()
        for damaged in (whole[:-1], whole[:900] + b"x" + whole[901:], b"", b"GGUF"):
            path.write_bytes(damaged)
            requantize(opened, "q8_0")
            assert path.read_bytes() == whole
            assert caplog.messages.pop() == f"{path}: damaged; it is packed anew."

    def test_a_touched_source_is_not_packed_again(self, tmp_path: Path) -> None:
        requantize(make_model(tmp_path), "q8_0")
        before = files()
        os.utime(tmp_path / "model.safetensors", (1, 1))
        requantize(open_model(tmp_path), "q8_0")
        assert files() == before

    def test_part_files_of_killed_runs_are_removed(self, tmp_path: Path) -> None:
        opened = make_model(tmp_path)
        requantize(opened, "q4_0")
        left = files()[0].with_name(".q8_0-other.gguf.1-1.part")
        left.write_bytes(b"half")
        requantize(opened, "q8_0")
        assert not left.exists()

    def test_two_models_of_one_name_have_two_files(self, tmp_path: Path) -> None:
        for folder in ("a", "b"):
            requantize(make_model(tmp_path / folder / "same"), "q8_0")
        assert len({path.parent for path in files()}) == 2

    def test_an_interrupted_run_leaves_nothing(self, tmp_path: Path) -> None:
        opened = make_model(tmp_path)

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            requantize(opened, "q8_0", stop)
        assert not [path for path in (weight_cache.home() / "packed").rglob("*") if path.is_file()]
        assert requantize(opened, "q8_0")["model.layers.0.mlp.up_proj.weight"].kind == "Q8_0"

    def test_glass_home_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = make_model(tmp_path / "model")
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("GLASS_HOME", str(tmp_path / "file"))
        refused(lambda: requantize(opened, "q8_0"), "cannot be made", "set GLASS_HOME to another folder", kind=WriteError)


class TestLayouts:
    def test_llama_from_gguf(self, tmp_path: Path) -> None:
        """Rows stay in the order of the file, and so does the layout that leads from it."""
        source = open_model(write_gguf(tmp_path / "x.gguf", "llama"))
        found = requantize(source, "f16")
        for name, one in found.items():
            assert one.layout == source.tensors[name].layout, name
            assert np.allclose(one.to_float32(), source.tensors[name].to_float32(), atol=2e-3), name
        query = found["model.layers.0.self_attn.q_proj.weight"]
        assert (query.kind, query.layout) == ("F16", InterleavedPairs(4))

    def test_gpt2_from_gguf(self, tmp_path: Path) -> None:
        """Its columns are the file's rows already."""
        from tests.checkpoint.test_gguf_families import converted, metadata

        source = open_model(write_gguf(tmp_path / "x.gguf", "gpt2", metadata("gpt2"), converted("gpt2")))
        found = requantize(source, "q8_0")
        name = "transformer.h.1.mlp.c_fc.weight"
        assert (found[name].kind, found[name].layout) == ("Q8_0", Transposed())
        assert np.allclose(found[name].to_float32(), source.tensors[name].to_float32(), atol=0.01)
        raw = GgufCheckpoint(tmp_path / "x.gguf").raw["blk.1.ffn_up.weight"]
        assert np.array_equal(found[name].bytes, quantize_rows(raw.to_float32(), "Q8_0").reshape(-1))


class TestEmbeddingTables:
    @pytest.mark.parametrize("same", [True, False])
    def test_a_table_stored_twice_stays_one_tensor(self, same: bool, tmp_path: Path) -> None:
        make_model(tmp_path, tie_word_embeddings=True)
        values = load_file(tmp_path / "model.safetensors")
        table = values["model.embed_tokens.weight"]
        save_file({**values, "lm_head.weight": table.copy() if same else table * 2}, tmp_path / "model.safetensors")
        found = requantize(open_model(tmp_path), "q8_0")
        assert (found["lm_head.weight"] is found["model.embed_tokens.weight"]) == same

    def test_no_fewer_than_eight_bits(self, tmp_path: Path) -> None:
        found = requantize(make_model(tmp_path, tie_word_embeddings=False), "q4_0")
        assert {found[name].kind for name in ("model.embed_tokens.weight", "lm_head.weight")} == {"Q8_0"}
        assert found["model.layers.0.mlp.up_proj.weight"].kind == "Q4_0"


def test_tensors_of_the_kind_stay(tmp_path: Path) -> None:
    opened = make_model(tmp_path)
    assert requantize(opened, "f32") is opened.tensors
    assert not files()


def test_quantized_weights_are_not_quantized_again(smollm2: Path) -> None:
    opened = open_model(smollm2)
    assert requantize(opened, "q4_1") is opened.tensors
    refused(
        lambda: requantize(opened, "q8_0"), "its weights are packed already, as Q4_1", "than Q8_0 costs",
        "Take the model in BF16, F16 or F32.", kind=InputError,
    )  # fmt: skip


def test_requantize_refuses_an_unknown_kind(tmp_path: Path) -> None:
    refused(lambda: requantize(make_model(tmp_path), "q9_0"), "there is no kind 'q9_0'", kind=InputError)


def test_requantize_names_a_damaged_source(tmp_path: Path) -> None:
    opened = make_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="empty"):
        requantize(opened, "q8_0")


def test_requantize_needs_no_torch(tmp_path: Path) -> None:
    make_model(tmp_path)
    code = (
        "import sys; from glassformer.model_files import open_model; from glassformer.quantize import requantize\n"
        f"requantize(open_model({str(tmp_path)!r}), 'q8_0'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
