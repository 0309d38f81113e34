"""GGUF: what the gguf package writes is read back the same, and what nobody should write is refused in one sentence."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from gguf import GGUFValueType as Value
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.blueprints import Rope, read_config
from glassformer.checkpoint import gguf
from glassformer.checkpoint.gguf import MAX_NESTING, GgufCheckpoint
from glassformer.checkpoint.gguf_kinds import file_kind
from glassformer.checkpoint.gguf_names import TABLES
from glassformer.checkpoint.sentence_pooling import read_sentence_settings
from glassformer.checkpoint.stored_tensors import InterleavedPairs
from glassformer.ground.errors import CheckpointError, ConfigError
from glassformer.model_files import open_model
from tests.checkpoint.files import (
    Typed,
    damaged,
    entry,
    header,
    modestly,
    open_all,
    pair,
    refused,
    replace,
    sizes,
    string,
    weights,
    write_gguf,
)  # fmt: skip
from tests.sweeps import examples

AGAIN = "Fetch the file again."
FAMILIES = ("llama", "qwen3")

# Metadata -------------------------------------------------------------------------------------------------------

WHOLE = {
    Value.UINT8: (0, 2**8 - 1), Value.INT8: (-(2**7), 2**7 - 1), Value.UINT16: (0, 2**16 - 1),
    Value.INT16: (-(2**15), 2**15 - 1), Value.UINT32: (0, 2**32 - 1), Value.INT32: (-(2**31), 2**31 - 1),
    Value.UINT64: (0, 2**64 - 1), Value.INT64: (-(2**63), 2**63 - 1),
}  # fmt: skip
SCALARS: dict[Value, st.SearchStrategy[Any]] = {
    **{kind: st.sampled_from(ends) | st.integers(*ends) for kind, ends in WHOLE.items()},
    Value.FLOAT32: st.floats(width=32, allow_nan=False),
    Value.FLOAT64: st.floats(allow_nan=False),
    Value.BOOL: st.booleans(),
    Value.STRING: st.text(max_size=12),
}


def arrays(kind: Value) -> st.SearchStrategy[Typed]:
    return st.lists(SCALARS[kind], min_size=1, max_size=5).map(lambda items: (items, Value.ARRAY, kind))


NESTED = st.recursive(  # the writer takes int32, float32, bool and string for items whose type it must guess
    st.lists(SCALARS[Value.INT32], min_size=1, max_size=3) | st.lists(SCALARS[Value.STRING], min_size=1, max_size=3),
    lambda inner: st.lists(inner, min_size=1, max_size=3),
    max_leaves=6,
).filter(lambda array: depth(array) <= MAX_NESTING)
TYPED: st.SearchStrategy[Typed] = st.one_of(
    *[values.map(lambda value, kind=kind: (value, kind)) for kind, values in SCALARS.items()],
    *[arrays(kind) for kind in SCALARS],
    NESTED.map(lambda array: (array, Value.ARRAY)),
)


def depth(value: object) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(st.dictionaries(st.text(min_size=1, max_size=12), TYPED, max_size=6))
@settings(max_examples=examples(20, 80), deadline=None)
def test_metadata_of_every_type_round_trips(tmp_path_factory: pytest.TempPathFactory, metadata: dict[str, Typed]) -> None:
    path = write_gguf(tmp_path_factory.mktemp("metadata") / "x.gguf", metadata=metadata, tensors={})
    assert GgufCheckpoint(path).metadata == {"general.architecture": "llama"} | {
        key: typed[0] for key, typed in metadata.items()
    }


@pytest.mark.parametrize("kind", SCALARS, ids=lambda kind: kind.name)
def test_metadata_scalars_have_python_types(tmp_path: Path, kind: Value) -> None:
    """Not NumPy's: they go into configs, JSON and messages."""
    value: Any = {Value.STRING: "word", Value.BOOL: True, Value.FLOAT32: 0.5, Value.FLOAT64: 0.1}.get(kind, 7)
    path = write_gguf(tmp_path / "x.gguf", metadata={"one": (value, kind), "many": ([value], Value.ARRAY, kind)}, tensors={})
    found = GgufCheckpoint(path).metadata
    assert (found["one"], found["many"]) == (value, [value])
    assert type(found["one"]) is type(found["many"][0]) is type(value)


def test_metadata_with_a_large_vocabulary(tmp_path: Path) -> None:
    words = [f"<{number}>é" for number in range(150_000)]
    vocabulary = {
        "tokenizer.ggml.tokens": (words, Value.ARRAY, Value.STRING),
        "tokenizer.ggml.token_type": ([1] * len(words), Value.ARRAY, Value.INT32),
    }
    found = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", metadata=vocabulary, tensors={})).metadata
    assert found["tokenizer.ggml.tokens"] == words
    assert len(found["tokenizer.ggml.token_type"]) == len(words)


# Tensors --------------------------------------------------------------------------------------------------------

F = GGMLQuantizationType


def expands(kind: GGMLQuantizationType) -> bool:
    elements, size = GGML_QUANT_SIZES[kind]
    try:
        return dequantize(np.zeros((1, size), np.uint8), kind).size == elements
    except NotImplementedError:
        return kind is F.F64


EXPANDED = [kind for kind in GGML_QUANT_SIZES if expands(kind)]
OTHERS = [kind for kind in GGML_QUANT_SIZES if kind not in EXPANDED]


def raw(kind: GGMLQuantizationType, *shape: int) -> np.ndarray:
    """Bytes of a kind: quantised from numbers where the gguf package can, else any bytes at all."""
    draw = np.random.default_rng(kind.value)
    numbers = draw.standard_normal(shape, np.float32)
    if kind is F.F64:
        return numbers.astype(np.float64).view(np.uint8)
    try:
        return quantize(numbers, kind).view(np.uint8)
    except NotImplementedError:
        elements, size = GGML_QUANT_SIZES[kind]
        return draw.integers(0, 256, (*shape[:-1], shape[-1] // elements * size), np.uint8)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # any bytes at all may mean infinity
@pytest.mark.parametrize("kind", EXPANDED, ids=lambda kind: kind.name)
def test_every_kind_dequantizes_like_the_gguf_package(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    shapes = {"row": (512,), "matrix": (3, 512), "stack": (2, 3, 256)}
    packed = {name: (raw(kind, *shape), kind) for name, shape in shapes.items()}
    found = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", tensors=packed)).raw
    for name, shape in shapes.items():
        one, data = found[name], packed[name][0]
        wanted = data.view(np.float64).astype(np.float32) if kind is F.F64 else dequantize(data, kind)
        assert (one.name, one.kind, one.shape, one.size) == (name, kind.name, shape, data.nbytes)
        assert one.bytes.tobytes() == data.tobytes()
        assert one.to_float32().dtype == np.float32
        np.testing.assert_array_equal(one.to_float32(), wanted.reshape(shape))


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.name)
def test_kinds_that_cannot_be_dequantized_are_refused(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    elements, size = GGML_QUANT_SIZES[kind]
    path = write_gguf(tmp_path / "x.gguf", tensors={"one": (np.zeros((2, size), np.uint8), kind)})
    one = GgufCheckpoint(path).raw["one"]
    assert one.shape == (2, elements)
    refused(one.to_float32, path, "tensor 'one'", f"kind {kind.name}", "Use a file in one of the usual kinds")


@pytest.mark.parametrize("family", FAMILIES)
def test_reads_the_same_as_the_gguf_package(tmp_path: Path, family: str) -> None:
    path = write_gguf(tmp_path / "x.gguf", family)
    ours, theirs = GgufCheckpoint(path), GGUFReader(path)
    assert [(one.name, one.kind, one.shape, one.offset, one.size) for one in ours.raw.values()] == [
        (one.name, one.tensor_type.name, one.data.shape, one.data_offset, one.n_bytes) for one in theirs.tensors
    ]
    assert ours.metadata == {key: one.contents() for key, one in theirs.fields.items() if not key.startswith("GGUF.")}


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_gguf_alignment(tmp_path: Path, alignment: int) -> None:
    found = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", alignment=alignment)).raw
    for name, wanted in weights("llama").items():
        assert found[name].offset % alignment == 0
        np.testing.assert_array_equal(found[name].to_float32(), wanted)


def test_version_2_is_read_as_3(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "3.gguf").read_bytes()
    older = GgufCheckpoint(replace(tmp_path / "2.gguf", whole[:4] + struct.pack("<I", 2) + whole[8:]))
    assert older.metadata == GgufCheckpoint(tmp_path / "3.gguf").metadata
    assert older.raw.keys() == weights("llama").keys()


# The families' own words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_config_and_tensor_names(tmp_path: Path, family: str) -> None:
    opened = open_model(write_gguf(tmp_path / "x.gguf", family))
    config: Any = opened.config
    assert (config.model_type, config.vocab_size, config.hidden_size, config.num_hidden_layers) == (family, 8, 16, 1)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 4)
    assert (config.intermediate_size, config.max_position_embeddings) == (24, 64)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 0)
    assert (config.rms_norm_eps, config.rope) == (pytest.approx(1e-5), Rope(theta=5000.0))
    assert not config.attention_bias
    assert not config.tie_word_embeddings
    assert {weight.name: weight.shape for weight in opened.blueprint().weights} == {
        name: one.shape for name, one in opened.tensors.items()
    }
    assert all(name == one.name for name, one in opened.tensors.items())


def test_gguf_config_from_absent_fields_and_tensors(tmp_path: Path) -> None:
    """No head means a shared table, a bias beside the query means biases, and no count of groups means no groups."""
    tensors = weights("llama") | {"blk.0.attn_q.bias": np.arange(16, dtype=np.float32)}
    tensors["blk.0.attn_k.weight"] = tensors["blk.0.attn_v.weight"] = tensors["blk.0.attn_q.weight"]
    del tensors["output.weight"]
    metadata = {key: typed for key, typed in sizes("llama").items() if not key.endswith("head_count_kv")}
    opened = open_model(write_gguf(tmp_path / "x.gguf", metadata=metadata, tensors=tensors))
    config: Any = opened.config
    assert config.tie_word_embeddings
    assert config.attention_bias
    assert config.num_key_value_heads == config.num_attention_heads == 4
    assert opened.tensors["model.layers.0.self_attn.k_proj.weight"].layout == InterleavedPairs(4)
    bias = opened.tensors["model.layers.0.self_attn.q_proj.bias"].to_float32()
    assert bias.tolist() == [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15]


@pytest.mark.parametrize(("ids", "wanted"), [({}, {}), ({"eos": 2}, {"eos_token_id": [2]}),
                                             ({"eos": 7, "eot": 2, "eom": 9}, {"eos_token_id": [2, 7, 9]}),
                                             ({"eos": 5, "eot": 5}, {"eos_token_id": [5]})])  # fmt: skip
def test_eos_eot_and_eom_are_eos_token_ids(tmp_path: Path, ids: dict[str, int], wanted: dict[str, Any]) -> None:
    metadata = {f"tokenizer.ggml.{name}_token_id": (number, Value.UINT32) for name, number in ids.items()}
    assert GgufCheckpoint(write_gguf(tmp_path / "x.gguf", metadata=metadata, tensors={})).settings == wanted


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to query and key: pairs from half a head apart to side by side."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=examples(15, 60), deadline=None)
def test_interleaved_pairs_order_of_rows(heads: int, half: int, width: int) -> None:
    rows = np.arange(2 * heads * half * width).reshape(2 * heads * half, width)
    np.testing.assert_array_equal(permute(rows, heads)[InterleavedPairs(heads).rows(len(rows))], rows)


@pytest.mark.parametrize("kind", [F.F32, F.BF16, F.Q4_0, F.Q4_1, F.Q8_0, F.TQ2_0], ids=lambda kind: kind.name)
def test_query_and_key_rows_are_reordered_in_every_kind(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    query, key = raw(kind, 16, 256), raw(kind, 8, 256)
    stored = {"blk.0.attn_q.weight": (permute(query, 4), kind), "blk.0.attn_k.weight": (permute(key, 2), kind)}
    found = GgufCheckpoint(write_gguf(tmp_path / "llama.gguf", tensors=weights("llama") | stored)).tensors
    for name, data, heads in (("q", query, 4), ("k", key, 2)):
        one = found[f"model.layers.0.self_attn.{name}_proj.weight"]
        assert one.layout == InterleavedPairs(heads)
        np.testing.assert_array_equal(one.to_float32(), dequantize(data, kind))
    assert found["model.layers.0.self_attn.v_proj.weight"].layout is None


def test_qwen3_rows_are_not_reordered(tmp_path: Path) -> None:
    found = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", "qwen3")).tensors
    assert all(one.layout is None for one in found.values())
    query = found["model.layers.0.self_attn.q_proj.weight"].to_float32()
    np.testing.assert_array_equal(query, weights("qwen3")["blk.0.attn_q.weight"])


def test_a_rerankers_head_is_two_rows_of_its_table(tmp_path: Path) -> None:
    """What llama.cpp's converter writes of Qwen3-Reranker: its scores are those of the words, so nothing is read twice."""
    plain = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", "qwen3"))
    two = weights("qwen3") | {"cls.output.weight": weights("qwen3")["token_embd.weight"][:2]}
    ranked = GgufCheckpoint(
        write_gguf(
            tmp_path / "y.gguf", "qwen3", metadata=sizes("qwen3") | {"qwen3.pooling_type": (4, Value.UINT32)}, tensors=two
        )
    )
    assert ranked.tensors.keys() == plain.tensors.keys()
    settings = [read_sentence_settings(tmp_path, one.metadata, one.raw) for one in (plain, ranked)]
    assert [(one.stated, one.ranks) for one in settings] == [(False, False), (False, True)]


# RoPE -----------------------------------------------------------------------------------------------------------


def divisors(factor: float, theta: float, size: int = 64) -> np.ndarray:
    """`rope_freqs.weight` as llama.cpp's converter computes it for Llama 3."""
    low, high, context = 1.0, 4.0, 8192
    found = []
    for frequency in 1.0 / theta ** (np.arange(0, size, 2) / size):
        wavelength = 2 * np.pi / frequency
        smooth = (context / wavelength - low) / (high - low)
        blend = 1 / ((1 - smooth) / factor + smooth)
        found.append(1.0 if wavelength < context / high else factor if wavelength > context / low else blend)
    return np.array(found, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_is_recovered_from_its_divisors(tmp_path: Path, factor: float) -> None:
    metadata = sizes("llama") | {"llama.rope.freq_base": (500000.0, Value.FLOAT32)}
    tensors = weights("llama") | {"rope_freqs.weight": divisors(factor, 500000.0)}
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", metadata=metadata, tensors=tensors))
    config: Any = read_config(checkpoint.config)
    assert config.rope == Rope("llama3", 500000.0, factor, 1.0, 4.0, 8192)
    plain = Rope(theta=500000.0).frequencies(64)
    np.testing.assert_allclose(config.rope.frequencies(64), plain / divisors(factor, 500000.0), rtol=1e-5)
    assert not any("rope" in name for name in checkpoint.tensors)


def test_unknown_rope_divisors_are_refused(tmp_path: Path) -> None:
    tensors = weights("llama") | {"rope_freqs.weight": np.linspace(1, 2, 8, dtype=np.float32)}
    path = write_gguf(tmp_path / "x.gguf", tensors=tensors)
    refused(lambda: open_model(path).config, path, "rope_freqs.weight", kind=ConfigError)


def test_rope_scaling_is_read_or_refused(tmp_path: Path) -> None:
    def scaled(kind: str) -> Any:
        metadata = sizes("llama") | {
            "llama.rope.scaling.type": (kind, Value.STRING),
            "llama.rope.scaling.factor": (4.0, Value.FLOAT32),
        }
        return open_model(write_gguf(tmp_path / f"{kind}.gguf", metadata=metadata)).config

    assert scaled("none").rope == Rope(theta=5000.0)
    refused(lambda: scaled("longrope"), tmp_path / "longrope.gguf", "'short_factor' is None", kind=ConfigError)
    refused(lambda: scaled("spiral"), tmp_path / "spiral.gguf", "'rope_type' is 'spiral'", "Known:", kind=ConfigError)
    assert (scaled("yarn").rope.kind, scaled("yarn").rope.factor) == ("yarn", 4.0)
    assert scaled("linear").rope == Rope("linear", 5000.0, 4.0)


def test_longrope_is_read_from_its_factors(tmp_path: Path) -> None:
    pairs = read_config(GgufCheckpoint(write_gguf(tmp_path / "plain.gguf")).config).head_dim // 2
    short, long = np.linspace(1, 2, pairs, dtype=np.float32), np.linspace(2, 9, pairs, dtype=np.float32)
    metadata = sizes("llama") | {
        "llama.rope.scaling.original_context_length": (16, Value.UINT32),
        "llama.rope.scaling.attn_factor": (1.25, Value.FLOAT32),
    }
    factors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", metadata=metadata, tensors=weights("llama") | factors))
    rope = read_config(checkpoint.config).rope
    plain = Rope(theta=5000.0).frequencies(2 * pairs)
    assert (rope.kind, rope.scale, rope.original_max_position_embeddings) == ("longrope", 1.25, 16)
    np.testing.assert_allclose(rope.frequencies(2 * pairs, 16), plain / short, rtol=1e-6)
    np.testing.assert_allclose(rope.frequencies(2 * pairs, 17), plain / long, rtol=1e-6)
    assert not any("rope" in name for name in checkpoint.tensors)


# The real file --------------------------------------------------------------------------------------------------


def test_smollm2_gguf_config_and_tensors(smollm2: Path) -> None:
    opened = open_model(smollm2)
    config: Any = opened.config
    assert (config.model_type, config.num_hidden_layers, config.hidden_size, config.vocab_size) == ("llama", 30, 576, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert config.tie_word_embeddings
    assert config.rope == Rope(theta=100000.0)
    assert opened.settings.eos_token_id == [2]
    assert Counter(one.kind for one in opened.tensors.values()) == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert {weight.name: weight.shape for weight in opened.blueprint().weights} == {
        name: one.shape for name, one in opened.tensors.items()
    }
    norm = opened.tensors["model.norm.weight"].to_float32()
    assert np.isfinite(norm).all()
    assert norm.any()


# Hostile files --------------------------------------------------------------------------------------------------

ARRAY, TEXT, U8, U32 = 9, 8, 0, 4


def array(code: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", code, count) + items


def tensor(*shape: int, code: int = 0, offset: int = 0) -> bytes:
    return header(tensors=(entry("one", shape, code, offset),)) + bytes(256)


FAR = 2**60
HOSTILE: dict[str, tuple[bytes, str, str]] = {  # what it is: (the file, the field, why)
    "no magic": (b"GGU", "'magic'", "the file ends inside it"),
    "version 1": (header(version=1), "'version'", "it is 1, and versions 2 and 3 can be read"),
    "version 4": (header(version=4), "'version'", "it is 4, and versions 2 and 3 can be read"),
    "other endian": (header(version=3 << 24), "'version'", "versions 2 and 3 can be read"),
    "tensor count": (header(counts=(FAR, 0)), "'tensor count'", f"it counts {FAR} entries, more than"),
    "metadata count": (header(counts=(0, FAR)), "'metadata count'", f"it counts {FAR} entries, more than"),
    "too few pairs": (header(pair("a", TEXT, string("word")), counts=(0, 2)), "metadata key 1", "the file ends inside it"),
    "key length": (header(struct.pack("<Q", FAR) + bytes(9)), "metadata key 0", f"a string of {FAR} bytes passes the end"),
    "key not UTF-8": (header(pair(b"\xff", U8, b"1")), "metadata key 0", "a string is not UTF-8"),
    "text length": (header(pair("a", TEXT, struct.pack("<Q", FAR))), "'a'", f"a string of {FAR} bytes passes the end"),
    "text not UTF-8": (header(pair("a", TEXT, string(b"\xc3("))), "'a'", "a string is not UTF-8"),
    "surrogate": (header(pair("a", TEXT, string(b"\xed\xa0\x80"))), "'a'", "a string is not UTF-8"),
    "value type": (header(pair("a", 13, bytes(8))), "'a'", "its type has the unknown code 13"),
    "item type": (header(pair("a", ARRAY, array(77, 0))), "'a'", "its items' type has the unknown code 77"),
    "array of numbers": (header(pair("a", ARRAY, array(12, FAR))), "'a'", f"it counts {FAR} entries, more than"),
    "array of texts": (header(pair("a", ARRAY, array(TEXT, FAR))), "'a'", f"it counts {FAR} entries, more than"),
    "array of arrays": (header(pair("a", ARRAY, array(ARRAY, FAR))), "'a'", f"it counts {FAR} entries, more than"),
    "cut array": (header(pair("a", ARRAY, array(TEXT, 2, string("xxxxxxxx")))), "'a'", "the file ends inside it"),
    "nesting": (header(pair("a", ARRAY, array(ARRAY, 1) * 2000)), "'a'", f"nested more than {MAX_NESTING} deep"),
    "alignment 0": (header(pair("general.alignment", U32, bytes(4))), "'general.alignment'", "0 is not a power of two"),
    "alignment 48": (header(pair("general.alignment", U8, b"0")), "'general.alignment'", "48 is not a power of two"),
    "alignment text": (header(pair("general.alignment", TEXT, string("x"))), "'general.alignment'", "not a power of two"),
    "no dimensions": (tensor(), "tensor 'one'", "it has 0 dimensions"),
    "5 dimensions": (tensor(1, 1, 1, 1, 1), "tensor 'one'", "it has 5 dimensions"),
    "many dimensions": (header(tensors=(string("one") + b"\xff" * 4 + bytes(40),)), "tensor 'one'", "4294967295 dimensions"),
    "empty": (tensor(4, 0), "tensor 'one'", "its shape is (0, 4)"),
    "kind": (tensor(4, code=999), "tensor 'one'", "its kind has the unknown code 999"),
    "dropped kind": (tensor(4, code=4), "tensor 'one'", "its kind has the unknown code 4"),
    "ragged blocks": (tensor(40, code=8), "tensor 'one'", "rows of 40 do not divide into Q8_0 blocks of 32"),
    "tensor name": (header(tensors=(struct.pack("<Q", FAR) + bytes(40),)), "name of tensor 0", "passes the end"),
    "twice": (header(tensors=(entry("one"), entry("one"))) + bytes(99), "tensor 'one'", "it is listed twice"),
}  # fmt: skip
OUTSIDE: dict[str, bytes] = {
    "too long": tensor(65),
    "too far": tensor(4, offset=2**40),
    "offset that wraps": tensor(4, offset=2**64 - 8),
    "shape that wraps": tensor(2**32, 2**32),
    "shape that wraps to little": tensor(2**63, 2**63, 4),
    "alignment": header(pair("general.alignment", 10, struct.pack("<Q", 2**63)), tensors=(entry("one"),)) + bytes(64),
}


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = replace(tmp_path / "x.gguf", header(magic=b"GGML"))
    refused(lambda: open_all(path), path, "not a GGUF file", "does not begin with 'GGUF'", "Give another file")


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_gguf_header_is_refused(tmp_path: Path, what: str) -> None:
    data, field, why = HOSTILE[what]
    path = replace(tmp_path / "x.gguf", data)
    with modestly():
        open_all(path)
    refused(lambda: open_all(path), f"{path}: GGUF field", field, why, AGAIN)


@pytest.mark.parametrize("what", OUTSIDE)
def test_gguf_tensor_outside_its_file(tmp_path: Path, what: str) -> None:
    path = replace(tmp_path / "x.gguf", OUTSIDE[what])
    with modestly():
        open_all(path)
    refused(lambda: open_all(path), path, "tensor 'one' should lie at bytes", "cut short or damaged. Fetch it again.")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A valid file with a bit of everything: the base of the damaged ones."""
    words = (["a", "bc", "é"], Value.ARRAY, Value.STRING)
    nested = ([[1, 2], [3]], Value.ARRAY)
    metadata = sizes("llama") | {"tokenizer.ggml.tokens": words, "nested": nested}
    tensors = {**weights("llama"), "output.weight": (raw(F.Q8_0, 8, 32), F.Q8_0)}
    return write_gguf(tmp_path_factory.mktemp("whole") / "x.gguf", metadata=metadata, tensors=tensors).read_bytes()


def test_gguf_cut_short_anywhere(tmp_path: Path, whole: bytes) -> None:
    """Every cut is noticed, down to the last byte of the last tensor."""
    last = list(GgufCheckpoint(replace(tmp_path / "whole.gguf", whole)).raw.values())[-1]
    end = last.offset + last.size
    first = min(one.offset for one in GgufCheckpoint(tmp_path / "whole.gguf").raw.values())
    for cut in [*range(1, first + 1), *range(first + 1, end, 97), end - 1]:
        checkpoint = GgufCheckpoint(replace(tmp_path / "cut.gguf", whole[:cut]))
        refused(lambda checkpoint=checkpoint: checkpoint.raw, checkpoint.path)  # type: ignore[misc]
    open_all(replace(tmp_path / "end.gguf", whole[:end]))


TEXTS = st.lists(
    st.sampled_from(["", "a", "Ġthe", "\0", "a\0b", "\0" * 9, "x" * 255, "x" * 256, "é" * 200, "\x08", "\x01" + "\0" * 7])
    | st.text(min_size=1, max_size=9)
)


@given(TEXTS, st.data(), st.sampled_from([16, 300, 1 << 17]))
@settings(max_examples=examples(50, 200), deadline=None)
def test_texts_read_many_at_once_are_those_read_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: Any, window: int
) -> None:
    """Whole files and damaged ones, with the same texts or the same error."""
    items = b"".join(map(string, texts))
    whole = header(pair("texts", ARRAY, array(TEXT, len(texts), items)))
    path = tmp_path_factory.getbasetemp() / "texts.gguf"

    def read(batch: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gguf, "WINDOW", window)
            patch.setattr(gguf, "BATCH", batch)
            try:
                return GgufCheckpoint(path).metadata
            except CheckpointError as error:
                return str(error)

    replace(path, whole)
    assert read(batch=2) == {"texts": texts}
    replace(path, data.draw(damaged(whole, len(whole))))
    assert read(batch=2) == read(batch=1 << 60)


@given(st.data())
@settings(max_examples=examples(100, 400), deadline=None)
def test_any_damage_to_a_gguf_is_a_checkpoint_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: Any
) -> None:
    changed = data.draw(damaged(whole, whole.rindex(b"output.weight") + 40))
    path = replace(tmp_path_factory.getbasetemp() / "damaged.gguf", changed)
    with np.errstate(all="ignore"), modestly():
        open_all(path)


WRONG: list[Typed] = [
    ("word", Value.STRING), ([1, 2], Value.ARRAY), (["a"], Value.ARRAY), (True, Value.BOOL), (float("nan"), Value.FLOAT32),
    (-1, Value.INT32), (0, Value.UINT32), (3, Value.UINT32), (2**64 - 1, Value.UINT64),
]  # fmt: skip


@pytest.mark.parametrize("key", sizes("llama"))
def test_gguf_config_values_of_the_wrong_type_or_size(tmp_path: Path, key: str) -> None:
    for number, typed in enumerate(WRONG):
        path = write_gguf(tmp_path / f"{number}.gguf", metadata=sizes("llama") | {key: typed})
        with modestly():
            open_all(path)


def without(name: str) -> dict[str, np.ndarray]:
    return {key: one for key, one in weights("llama").items() if key != name}


UNFIT: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "architecture": (
        lambda path: write_gguf(path, "lama", metadata={}),
        ("'general.architecture' is 'lama'", "Did you mean 'llama'?", f"Known: {', '.join(TABLES)}."),
    ),
    "no architecture": (
        lambda path: replace(path, header()),
        ("'general.architecture' is None", f"Known: {', '.join(TABLES)}."),
    ),
    "no table": (
        lambda path: write_gguf(path, tensors=without("token_embd.weight")),
        ("'token_embd.weight' is missing", AGAIN),
    ),
    "tensor of another model": (
        lambda path: write_gguf(path, tensors=weights("qwen3")),
        ("'blk.0.attn_q_norm.weight' has no place in a llama model", "Did you mean", "choose another file"),
    ),
    "nameless tensor": (
        lambda path: write_gguf(path, tensors=weights("llama") | {"x": np.zeros(4, np.float32)}),
        ("'x' has no place in a llama model", "choose another file"),
    ),
    "heads": (
        lambda path: write_gguf(path, metadata=sizes("llama") | {"llama.attention.head_count": (3, Value.UINT32)}),
        ("'blk.0.attn_q.weight' has 16 rows", "pairs in 3 heads", "'attention.head_count'", AGAIN),
    ),
    "groups": (
        lambda path: write_gguf(path, metadata=sizes("llama") | {"llama.attention.head_count_kv": ("2", Value.STRING)}),
        ("'blk.0.attn_k.weight' has 8 rows", "pairs in 2 heads", "'attention.head_count_kv'", AGAIN),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNFIT)
def test_valid_gguf_files_of_unknown_models_are_refused(tmp_path: Path, what: str) -> None:
    write, words = UNFIT[what]
    path = write(tmp_path / "x.gguf")
    refused(lambda: GgufCheckpoint(path).tensors, path, *words)


@pytest.mark.parametrize("field", ["eos", "eot", "eom"])
def test_gguf_eos_must_be_a_token_id(tmp_path: Path, field: str) -> None:
    key = f"tokenizer.ggml.{field}_token_id"
    path = write_gguf(tmp_path / "x.gguf", metadata=sizes("llama") | {key: ([1, 2], Value.ARRAY)})
    refused(lambda: GgufCheckpoint(path).settings, path, repr(key), "holds a list where a token id belongs", AGAIN)


def test_the_names_of_files_are_the_gguf_packages() -> None:
    from gguf import LlamaFileType

    for code in LlamaFileType:
        name = None if code is LlamaFileType.GUESSED else code.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        assert file_kind(int(code)) == name
    assert file_kind("15") is None
