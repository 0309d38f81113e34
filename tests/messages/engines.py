"""Executors and the GPU engine's kernels, models on several processes, checkpoints, dictionaries of features."""

from __future__ import annotations

import ctypes
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.blueprints import blueprint, read_config
from glassformer.blueprints.blueprint import Builder
from glassformer.checkpoint.gguf_names import TABLES, gguf_name_and_layout
from glassformer.checkpoint.locate import locate
from glassformer.decoding.grammar import Grammar
from glassformer.engine.gpu.persistent import kernel as kernels
from glassformer.engine.lowering import Lowering
from glassformer.engine.tensor_parallel.ranks import RankProcesses
from glassformer.engine.tensor_parallel.split import split_model
from glassformer.ground.errors import (
    CheckpointError,
    CopyError,
    ExecutorError,
    FetchError,
    InputError,
    SettingError,
    SiteError,
)
from tests.blueprints.test_encoder_configs import tiny
from tests.features.dictionaries import write_folder
from tests.messages.calls import Entry, decoder, feed, limited, place
from tests.parity import reference
from tests.see.models import TEXT, both

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}


def lowered(family: str, **changes: Any) -> Any:
    config = tiny(family, **changes)
    return Lowering(blueprint(config, "base"), "", frozenset(), frozenset(), config).lower()


def norm_over_heads() -> Any:
    """A blueprint whose norm needs the values of all heads."""
    builder = Builder(read_config(reference.config("llama").to_dict()))
    with builder.block(0, "layers"):
        x = builder.embed("embed")
        q, k, v = (builder.heads(x, name, 4, 12) for name in "qkv")
        x = builder.linear(builder.norm(builder.attend(q, k, v, "attention"), "inner_norm", 1e-6), "output", 48)
    builder.scores(x, "lm_head", 160)
    return builder.build("causal")


def without_nvrtc() -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ctypes, "CDLL", missing)
        kernels.compiled({}, "sm_90")


def without_nccl() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.distributed, "is_nccl_available", lambda: False)
        RankProcesses(2, "cuda")


def transcoder(name: str, reads: str, writes: str | None = None) -> Path:
    hooks = {"hook_name": reads, **({} if writes is None else {"hook_name_out": writes})}
    return write_folder(place() / name, "transcoder", metadata=hooks)


class Letterless:
    """A tokenizer of digits."""

    all_special_ids: tuple[int, ...] = ()

    def __len__(self) -> int:
        return 2

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def token_bytes(self, index: int) -> bytes:
        return b"12"[index : index + 1]

    def decode(self, ids: Any, **options: Any) -> Any:
        return (
            [self.decode(row) for row in ids] if ids and isinstance(ids[0], list) else "".join("12"[index] for index in ids)
        )


MESSAGES: dict[str, list[Entry]] = {
    "engines": [
        (InputError, lambda: feed(1, 2, parents=[1, -1]),
         "in a tree, each token's parent must come before it (-1: the row so far)."),
        (ExecutorError, lambda: lowered("deberta-v2", type_vocab_size=2),
         "native engines cannot add token types to vectors without positions."),
        (CopyError, lambda: pickle.dumps({"model": decoder()}),
         "a Model belongs to this process and cannot be copied or pickled: use the same one, or load the model again "
         "where it is needed."),
        (ExecutorError, without_nvrtc,
         "NVRTC, which compiles the GPU engine's kernel, was not found. Install a build of torch for CUDA."),
    ],
    "models on several processes": [
        (ExecutorError, lambda: split_model(blueprint(read_config({"model_type": "scratch", **SIZES}), "causal"), 2),
         "a scratch model cannot be split among ranks: each head has a projection of its own. Leave tensor_parallel out."),
        (ExecutorError, lambda: split_model(norm_over_heads(), 2),
         "a llama model cannot be split among ranks: its layers.0.inner_norm needs all of what would be divided. Leave "
         "tensor_parallel out."),
        (ExecutorError, without_nccl,
         "this PyTorch has no NCCL, so GPUs cannot work together. Install one that is built with it."),
    ],
    "checkpoints": [
        (CheckpointError, lambda: gguf_name_and_layout(
            TABLES["llama"], {"num_attention_heads": 4}, "model.layers.0.self_attn.q_proj.weight", (12, 8)),
         "model.layers.0.self_attn.q_proj.weight: GGUF tensor 'blk.0.attn_q.weight' has 12 rows, which do not make "
         "pairs in 4 heads (fields 'attention.head_count' and 'attention.head_count_kv'). Fetch the file again."),
        (FetchError, limited("checkpoint.locate.SHIPPED_MODELS", place(), lambda: locate("g2p")),
         "'g2p' could not be fetched. This installation lacks '…/g2p'. Install glassformer again."),
    ],
    "dictionaries of features": [
        (InputError, lambda: decoder().dictionary(transcoder("one-sided", "blocks.0.hook_resid_mid")),
         "…/one-sided/sae_weights.safetensors is a transcoder, and does not say which site it predicts. Name it."),
        (InputError, lambda: both("llama").model.dictionary(write_folder(place() / "dictionary"), "blocks.0.mlp.hidden"),
         "dictionary is for 48 numbers at blocks.0.mlp.hidden, where … has 80. It is another model's, or another site's."),
        (SiteError, lambda: decoder().steered(
            [{"feature": f"{transcoder('back', 'blocks.1.hook_mlp_out', 'blocks.0.hook_mlp_out')}/1", "clamp": 1.0}]),
         "what is changed at 'blocks.0.mlp.update' is computed from 'blocks.1.mlp.update', which does not come before "
         "it in a pass over the same tokens. Compute it from an earlier site, or change a later one."),
        (InputError, lambda: both("gpt2").model.read(TEXT).features(),
         "no dictionary of features comes with the package for …. Name one of those `glass features` lists, or train "
         "one with `glass train-features`."),
    ],
    "tokenizers that no grammar can guide": [
        (SettingError, lambda: Grammar.compile("regex", "1", Letterless()),
         "this tokenizer has no letters, so no grammar can guide it. Use a model with another."),
    ],
}  # fmt: skip
