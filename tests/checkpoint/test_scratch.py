"""A model from scratch in one file: its config out of h_params and tensors, in both spellings of its names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.checkpoint import open_at
from glassformer.checkpoint.scratch import RENAMED, SPELLINGS, ScratchCheckpoint
from tests.checkpoint.files import refused

SIZES = {"d_model": 12, "context_length": 16, "num_blocks": 2, "num_heads": 3, "max_token_value": 50, "dropout": 0.1}
CONFIG = {"model_type": "scratch", "vocab_size": 50, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
          "max_position_embeddings": 16, "dropout": 0.1, "tie_word_embeddings": False}  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width: int, size: int, context: int) -> None:
        super().__init__()
        self.Wq, self.Wk, self.Wv = (nn.Linear(width, size, bias=False) for _ in range(3))
        self.register_buffer("mask", torch.tril(torch.ones(context, context)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mha, self.ffn = nn.Module(), nn.Module()
        self.mha.heads = nn.ModuleList(Attention(width, width // heads, context) for _ in range(heads))
        self.mha.projection_layer = nn.Linear(width, width)
        self.ffn.ffn = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


def weights(rows: int = 50, scored: int = 50) -> dict[str, Tensor]:
    """The chapter's model, as its state_dict."""
    model = nn.Module()
    model.token_embedding_lookup_table = nn.Embedding(rows, 12)
    model.transformer_blocks = nn.Sequential(*(Block(12, 3, 16) for _ in range(2)), nn.LayerNorm(12))
    model.model_out_linear_layer = nn.Linear(12, scored)
    return dict(model.state_dict())


def repository(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same under the repository's names; inside its feed-forward layer, it also says ffn."""
    back = {ours: theirs for theirs, ours in RENAMED.items()}
    found = {}
    for name, value in state.items():
        head, inner, tail = name.partition(".ffn.ffn.")
        head = ".".join(back.get(part, part) for part in head.split("."))
        found[f"{head}.feed_forward_layer.ffn.{tail}" if inner else head] = value
    return found


def scratch(path: Path, state: Mapping[str, Tensor] | None = None, **h_params: Any) -> ScratchCheckpoint:
    state = weights() if state is None else state
    torch.save({"h_params": h_params, "model_state_dict": state} if h_params else state, path / "model.ckpt")
    found = open_at(path / "model.ckpt")
    assert isinstance(found, ScratchCheckpoint)
    return found


def test_scratch_config_and_tensors(tmp_path: Path) -> None:
    found = scratch(tmp_path, device="cpu", learning_rate=1e-3, **SIZES)
    assert found.config == CONFIG
    assert found.settings == {}
    wanted = {name: value for name, value in weights().items() if "mask" not in name}
    assert {name: one.shape for name, one in found.tensors.items()} == {n: tuple(v.shape) for n, v in wanted.items()}


@pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".ckpt"])
def test_scratch_tensors_without_h_params(tmp_path: Path, ending: str) -> None:
    torch.save(weights(), tmp_path / f"model{ending}")
    found = open_at(tmp_path / f"model{ending}")
    assert found.path == tmp_path / f"model{ending}"
    assert found.config == {name: value for name, value in CONFIG.items() if name != "dropout"}


def test_scratch_repository_names(tmp_path: Path) -> None:
    state = repository(weights(rows=51))
    assert state.keys() >= {
        "language_model_out_linear_layer.bias",
        "transformer_blocks.0.feed_forward_layer.ffn.2.weight",
        "transformer_blocks.0.layer_norm_1.weight",
        "transformer_blocks.1.multi_head_attention_layer.heads.2.tril",
        "transformer_blocks.1.multi_head_attention_layer.heads.2.query_layer.weight",
    }
    found = scratch(tmp_path, state)
    assert found.config == {**{k: v for k, v in CONFIG.items() if k != "dropout"}, "vocab_size": 51, "output_size": 50}
    assert found.tensors.keys() == {name for name in weights() if "mask" not in name}


def test_every_spelling_of_h_params(tmp_path: Path) -> None:
    for name, spellings in SPELLINGS.items():
        for spelling in spellings:
            assert scratch(tmp_path, **{spelling: CONFIG[name]}).config[name] == CONFIG[name]
            words = (f"h_params say that {spelling!r} is 7, but the tensors have {CONFIG[name]}.", "Are these the h_params")
            refused(lambda spelling=spelling: scratch(tmp_path, **{spelling: 7}).config, tmp_path, *words)


@pytest.mark.parametrize(("rows", "scored", "h_params"), [
    (50, 50, {"vocab_size": 50}), (50, 50, {"max_token_value": 50}), (51, 50, {"max_token_value": 50}),
    (51, 51, {"max_token_value": 50}), (51, 50, {"vocab_size": 50}), (51, 50, {"vocab_size": 51}),
])  # fmt: skip
def test_scratch_vocab_size(tmp_path: Path, rows: int, scored: int, h_params: dict[str, int]) -> None:
    config = scratch(tmp_path, weights(rows, scored), **h_params).config
    assert (config["vocab_size"], config.get("output_size", rows)) == (rows, scored)


@pytest.mark.parametrize(
    "h_params", [{"vocab_size": 49}, {"max_token_value": 48}, {"vocab_size": "50"}, {"vocab_size": [1]}]
)
def test_scratch_vocab_size_that_contradicts_the_tensors(tmp_path: Path, h_params: dict[str, Any]) -> None:
    name, value = next(iter(h_params.items()))
    words = (f"h_params say that {name!r} is {value!r}", "the table of embeddings has 50 rows.")
    refused(lambda: scratch(tmp_path, **h_params).config, tmp_path, *words)


def test_scratch_tied_embeddings(tmp_path: Path) -> None:
    state = weights()
    state["model_out_linear_layer.weight"] = state["token_embedding_lookup_table.weight"]
    found = scratch(tmp_path, state, **SIZES)
    assert found.config["tie_word_embeddings"]
    assert found.tensors["model_out_linear_layer.weight"] is found.tensors["token_embedding_lookup_table.weight"]


def test_scratch_without_masks(tmp_path: Path) -> None:
    """Buffers need not be saved; then only h_params know how long a text may be."""
    state = {name: value for name, value in weights().items() if "mask" not in name}
    assert scratch(tmp_path, state, context_length=99).config["max_position_embeddings"] == 99
    words = ("neither h_params nor tensors tell max_position_embeddings.", "Save h_params with 'context_length'")
    refused(lambda: scratch(tmp_path, state).config, tmp_path, *words)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "16", None, [16]])
def test_invalid_h_params_sizes(tmp_path: Path, value: object) -> None:
    words = (f"'context_length' is {value!r}, where a whole number from 1 on belongs.", "Save them again")
    refused(lambda: scratch(tmp_path, context_length=value).config, tmp_path, *words)


@pytest.mark.parametrize("value", [1, -0.1, "0.1", None, [0.1], float("nan")])
def test_invalid_h_params_dropout(tmp_path: Path, value: object) -> None:
    words = (f"'dropout' is {value!r}, where a number from 0 to 1 belongs.", "Save them again")
    refused(lambda: scratch(tmp_path, dropout=value).config, tmp_path, *words)


def test_h_params_errors_stay_on_one_line(tmp_path: Path) -> None:
    error = refused(lambda: scratch(tmp_path, context_length=torch.ones(9, 9)).config, "'context_length' is tensor([[1.,")
    assert "\n" not in str(error)


def test_h_params_of_the_wrong_type(tmp_path: Path) -> None:
    torch.save({"h_params": [1], "model_state_dict": weights()}, tmp_path / "x.ckpt")
    refused(lambda: open_at(tmp_path / "x.ckpt").config, "'h_params' holds a list where a dictionary belongs. Save it")


@pytest.mark.parametrize("state", [
    {"model.embed_tokens.weight": torch.ones(2, 2), "b": torch.ones(2), "c": torch.ones(1), "d": torch.ones(1)},
    {"token_embedding_lookup_table.weight": torch.ones(2)},
])  # fmt: skip
def test_a_torch_file_that_is_no_scratch_model(tmp_path: Path, state: dict[str, Tensor]) -> None:
    words = (f"holds {len(state)} tensors ({next(iter(state))!r}", "but no model from scratch", "give that folder.")
    refused(lambda: scratch(tmp_path, state).config, tmp_path / "model.ckpt", *words)
    refused(lambda: scratch(tmp_path, state).tensors, tmp_path / "model.ckpt", *words)
