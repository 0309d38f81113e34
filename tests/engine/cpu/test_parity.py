"""The CPU engine beside the plain executor in float32: every site of every family, kind of weights and level."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glassformer.engine.cpu import executor as engine
from glassformer.engine.cpu.library import chosen_level, levels
from glassformer.ops.activate import ACTIVATIONS
from glassformer.ops.attend import Attend
from tests.checkpoint.test_scratch import SIZES, weights
from tests.engine.cpu.packed import KEPT, RARE
from tests.engine.executors import RequantizedSubject, Subject, write_checkpoint
from tests.parity import reference
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")

Tiny = Callable[..., Subject]
FAMILIES = (*reference.DECODERS, *reference.PAIRS)
FLOATS, PACKED = 1e-5, 1e-3  # measured: 6e-6 and 6e-4
STATES = (
    2e-4  # where what is rounded at a token stays in a state; measured: 1.3e-4 (OLMo Hybrid, which writes twice as much)
)
SPARSE = 3e-4  # where few neurons are open, by as much as they are above a threshold; measured: 1.3e-4
SPLIT = 3e-5  # of BF16, where AMX tiles take an input as two halves of eight bits; measured: 1.1e-5
ROUNDED = 7e-2  # measured: 3.6e-2
STORES = {"f16": 2e-3, "bf16": 1.2e-2, "q8": 4e-2}  # measured: 1e-3, 6e-3 and 2.2e-2
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 24,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0, "max_position_embeddings": 16}


def agree(subject: Subject, other: Any, tolerance: float, lengths: tuple[int, ...] = (1, 9, 4, 20)) -> None:
    found = subject.verdict(other, lengths)
    assert found.agrees(tolerance), found
    assert found.positions > sum(lengths)


def sharpness(subject: Subject) -> float:
    """By how much more rounding shows where attention's scores are not scaled, as in T5 and Gemma 4: what is rounded in a
    query or a key is a share of a score as large as scale · √size, and a weight is off by that share."""
    scales = (float(op.options["scale"]) * op.head_shape[1] ** 0.5 for op in subject.blueprint.ops_of(Attend))
    return max(1.0, *scales)


def tolerance_of(subject: Subject, level: str | None = None) -> float:
    if subject.opened.packed:
        return PACKED
    if subject.blueprint.state_size:
        return STATES
    if getattr(subject.config, "activation_sparsity_pattern", None):
        return SPARSE
    if subject.opened.kind == "BF16" and (level or chosen_level()) == "amx":
        return SPLIT
    return FLOATS * sharpness(subject)


@pytest.mark.parametrize("seed", [None, *range(2), *swept(range(2, 14))])
@pytest.mark.parametrize("family", FAMILIES)
def test_parity_of_every_family(family: str, seed: int | None, tiny: Tiny) -> None:
    subject = tiny(family, seed)
    agree(subject, subject.cpu(), tolerance_of(subject))


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "gelu_new"])
def test_parity_of_every_activation(activation: str, tmp_path: Path) -> None:
    subject = write_checkpoint(tmp_path, "gpt2", activation_function=activation, n_layer=1)
    agree(subject, subject.cpu(), FLOATS)


def test_parity_of_a_model_from_scratch(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    torch.save({"h_params": SIZES, "model_state_dict": weights()}, path)
    subject = Subject(path)
    agree(subject, subject.cpu(), FLOATS, (1, 5, 16, 3))


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "gemma3_text", "t5"])
def test_parity_of_long_prompts_in_chunks(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which cut rows anywhere; windows and patterns reach back over the cuts."""
    monkeypatch.setattr(engine, "MAX_TOKENS", 7)
    monkeypatch.setattr(engine, "MAX_SCORED_TOKENS", 3)
    window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1} if family == "qwen3" else {}
    subject = write_checkpoint(tmp_path, family, **window)
    agree(subject, subject.cpu(), FLOATS, (30, 2, 17, 1))


@pytest.mark.parametrize("threads", [1, 3])
def test_parity_of_several_chunks_of_keys(threads: int, tmp_path: Path) -> None:
    """Over several pages and chunks of keys, which threads share where there are few queries."""
    subject = write_checkpoint(tmp_path, "llama", max_position_embeddings=800, num_hidden_layers=2)
    agree(subject, subject.cpu(threads=threads), FLOATS, (700, 3))
    agree(subject, subject.cpu(threads=threads), FLOATS, (520,))


def test_parity_of_a_long_source(tmp_path: Path) -> None:
    subject = write_checkpoint(tmp_path, "t5", num_layers=2, num_decoder_layers=2)
    agree(subject, subject.cpu(threads=2), FLOATS, (300, 70))


@pytest.mark.parametrize(
    "rope",
    [*reference.ROPES, DYNAMIC, LONGROPE],
    ids=["llama3", "linear", "yarn", "sharper yarn", "dynamic", "longrope"],
)
def test_parity_of_rope_kinds(rope: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_SCORED_TOKENS", 8)
    reference.write(tmp_path, "llama", "causal")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    subject = Subject(tmp_path)
    assert subject.config.rope.kind == rope["rope_type"]
    agree(subject, subject.cpu(), FLOATS, (60, 9, 23, 24))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["qwen2", "gpt2", "bart"])
def test_parity_of_float16_and_bfloat16_weights(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """GPT-2's lie across, and are turned round without a number changing."""
    subject = write_checkpoint(tmp_path, family, dtype=dtype)
    assert subject.opened.kind == {torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
    agree(subject, subject.cpu(), FLOATS)


@pytest.mark.parametrize("kind", KEPT)
def test_parity_of_packed_kinds(kind: str, tiny: Tiny) -> None:
    subject = tiny(kind)
    assert subject.opened.kind == kind
    agree(subject, subject.cpu(), tolerance_of(subject))


@pytest.mark.parametrize("kind", RARE)
def test_parity_of_kinds_without_kernels(kind: str, tiny: Tiny) -> None:
    subject = tiny(kind)
    agree(subject, subject.cpu(), FLOATS)


T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "feed_forward_proj": "gated-gelu"}
BART = {"d_model": 64, "encoder_attention_heads": 8, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
HYBRID = {"hidden_size": 64, "intermediate_size": 96, "mamba_n_heads": 8}
WIDE: dict[str, dict[str, Any]] = {  # so that rows divide into blocks of 32
    "gpt2": {"n_embd": 64, "n_inner": 96}, **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    "switch_transformers": {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_experts": 4},
    "mamba2": {"hidden_size": 64, "num_heads": 8},
    **dict.fromkeys(("bamba", "granitemoehybrid", "falcon_h1"), HYBRID),
    **dict.fromkeys((*reference.BARTS, "led"), BART),
    "helium": {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}, "openai-gpt": {"n_embd": 64},
}  # fmt: skip


REQUANTIZED = {
    **dict.fromkeys(("t5", "mt5", "umt5", "switch_transformers"), 2e-2), "gpt_oss": 6e-3,
    **dict.fromkeys(reference.RECURRENT, 2e-2),
}  # fmt: skip
# measured: 9e-3 (T5's scores are not scaled), 4.4e-3 (nor are Gemma 4's: below), 2.2e-3 (gpt-oss cuts its neurons off), 9e-3
# (states) and 9e-4 for all others


@pytest.mark.parametrize("kind", ["q8_0", "q4_1"])
@pytest.mark.parametrize("family", FAMILIES)
def test_parity_of_requantized_folders(family: str, kind: str, tmp_path: Path) -> None:
    """GPT-2's columns are packed as rows, and tied tables stay one."""
    folder = write_checkpoint(tmp_path, family, **WIDE.get(family, {"hidden_size": 64, "intermediate_size": 96})).folder
    subject = RequantizedSubject(folder, kind=kind)
    assert subject.opened.packed
    agree(subject, subject.cpu(), REQUANTIZED.get(family, 2e-3 * sharpness(subject)))


@pytest.mark.parametrize("scaled", [True, False])
def test_rounding_of_gemma4_is_that_of_its_scores(scaled: bool, tmp_path: Path) -> None:
    """Its queries and keys are normed, and their products are not scaled. With queries that are divided by the root of a
    head's size, as other families have it, rounding shows no more than in those: 9.3e-4 against 5.4e-3 for heads of 64."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "global_head_dim": 64}
    folder = write_checkpoint(tmp_path, "gemma4_text", **sizes).folder
    if scaled:
        tensors = load_file(folder / "model.safetensors")
        queries = {name: norm / len(norm) ** 0.5 for name, norm in tensors.items() if name.endswith("q_norm.weight")}
        assert len(queries) == 5
        save_file(tensors | queries, folder / "model.safetensors", {"format": "pt"})
    subject = RequantizedSubject(folder, kind="q8_0")
    found = subject.verdict(subject.cpu(), (1, 9, 4, 20))
    assert found.agrees(2e-3 if scaled else 2e-3 * sharpness(subject)), found
    assert found.agrees(2e-3) == scaled


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("cache", STORES)
def test_parity_of_cache_dtypes(cache: str, kind: str, tiny: Tiny) -> None:
    subject = tiny(kind)
    found = subject.verdict(subject.cpu(cache=cache))
    assert found.agrees(STORES[cache]), found
    assert not found.agrees(STORES[cache] / 10)  # it is in force
    assert found.farthest < 5e-4


@pytest.mark.parametrize("activations", ["mixed", "q8"])
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", [kind for kind in KEPT if kind[0] == "Q"])
def test_parity_of_coarser_activations(kind: str, level: str, activations: str, tiny: Tiny) -> None:
    subject = tiny(kind)
    found = subject.verdict(subject.cpu(activations=activations, level=level))
    assert found.agrees(ROUNDED), found
    assert not found.agrees(ROUNDED / 10)  # it is in force


def test_inputs_of_floats_are_not_rounded(tiny: Tiny) -> None:
    subject = tiny("BF16")
    executor = subject.cpu(activations="q8")
    agree(subject, executor, tolerance_of(subject))
    assert "activations" not in executor.describe().options


@pytest.mark.parametrize(("family", "cache"), [
    (family, cache)
    for family in reference.PAIRS
    for cache in ("f32", *STORES)
    if family != "switch_transformers" or cache in ("f32", "f16")  # by coarser keys, tokens go to other experts
])  # fmt: skip
def test_parity_of_source_cache_dtypes(family: str, cache: str, tiny: Tiny) -> None:
    """BART's encoder may have more heads than its decoder, so its pages are laid out otherwise.

    mT5 and UMT5 do not scale their attention's scores, so rounded keys move their patterns more: by 5.4 % with bf16.
    """
    subject = tiny(family)
    most = {"f32": FLOATS, **STORES}[cache] * {"mt5": 6, "umt5": 8, "switch_transformers": 8}.get(family, 3)
    agree(subject, subject.cpu(cache=cache), most, (70, 3, 20))


@pytest.mark.parametrize("what", [*KEPT, *FAMILIES])
def test_parity_of_each_level(what: str, tiny: Tiny) -> None:
    subject = tiny(what)
    executors = {level: subject.cpu(level=level, threads=2) for level in levels()}
    for (level, executor), found in zip(executors.items(), subject.verdicts([*executors.values()], (1, 9, 4)), strict=True):
        assert executor.describe().notes[0] == f"{level}, 2 threads"
        assert found.agrees(tolerance_of(subject, level)), (level, found)


@pytest.mark.sweep
@pytest.mark.parametrize("cache", STORES)
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", KEPT)
def test_parity_of_kinds_levels_and_cache_dtypes(kind: str, level: str, cache: str, tiny: Tiny) -> None:
    subject = tiny(kind)
    agree(subject, subject.cpu(cache=cache, level=level, threads=2), STORES[cache], (300, 9))


@pytest.mark.sweep
def test_parity_of_the_default_model(smollm2: Path) -> None:
    """SmolLM2, packed as Q4_1, reading texts: thirty blocks, and the bounds that `glass doctor --verify` holds it to.

    Random tokens are no texts: at the one on which its second block puts almost everything, inputs that are rounded more
    coarsely than by default move the block's update by a quarter.
    """
    from glassformer import load
    from glassformer.cli.doctor import verify_engine

    found = verify_engine(load(smollm2, executor="plain", dtype="float32"))
    assert {(row.cache, row.activations) for row in found} >= {
        ("f32", "q14"),
        ("f16", "q14"),
        ("f32", "mixed"),
        ("f32", "q8"),
    }
    assert all(row.agrees for row in found), found
