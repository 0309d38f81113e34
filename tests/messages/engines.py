"""Executors and the GPU engine's kernels, models on several processes, checkpoints, dictionaries of features."""

from __future__ import annotations

import ctypes
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer import AutoConfig, AutoModelForCausalLM, Change, DynamicCache, load
from glassformer.blueprints import blueprint, read_config
from glassformer.blueprints.blueprint import Builder
from glassformer.checkpoint.gguf_names import TABLES, gguf_name_and_layout
from glassformer.checkpoint.gguf_parts import EXPANDED_LATENTS, with_whole_tensors
from glassformer.checkpoint.locate import locate
from glassformer.checkpoint.stored_tensors import computed_tensor
from glassformer.decoding.grammar import Grammar
from glassformer.engine.gpu.persistent import kernel as kernels
from glassformer.engine.protocol import Feed
from glassformer.engine.tensor_parallel.split import split_model
from glassformer.features.files import read_dictionary
from glassformer.ground.errors import (
    CheckpointError,
    ConfigError,
    CopyError,
    ExecutorError,
    FetchError,
    InputError,
    SettingError,
    SiteError,
)
from glassformer.ground.sites import Watch
from glassformer.quantize.gguf_metadata import architecture_of
from glassformer.steering.library import Library
from tests.features.dictionaries import write_folder
from tests.messages.calls import Entry, altered, decoder, feed, limited, place, run, write
from tests.parity import reference
from tests.see.models import TEXT, both

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}


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


def transcoder(name: str, reads: str, writes: str | None = None) -> Path:
    hooks = {"hook_name": reads, **({} if writes is None else {"hook_name_out": writes})}
    return write_folder(place() / name, "transcoder", metadata=hooks)


def held() -> Any:
    """A model one of whose features is held."""
    model = both("llama").model
    return model.changed(model.dictionary(write_folder(place() / "held"), "blocks.0.residual").clamp({7: 6.0}))


def stateful(*feeds: dict[str, Any], changes: str | None = None) -> None:
    """Feed a row of a model whose layers keep states; the last feed changes a site."""
    model = both("qwen3_5_text").model
    row, names = model.executor.open(), model.blueprint.site_names
    for number, fields in enumerate(feeds, 1):
        watch = None
        if changes is not None and number == len(feeds):
            watch = Watch.of(names=names, changes={changes: Change(scale=0.0)})
        model.executor.run([Feed(row, watch=watch, **fields)])


def cropped() -> None:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 5, 2), 0)
    cache.keep_state(0, torch.zeros(1, 2), 5)
    cache.crop(3)


def begun(**more: Any) -> None:
    """Go on from a cache that holds states."""
    module, ids = both("qwen3_5_text").model.module, torch.tensor([[5, 6, 7]])
    cache = module(ids, use_cache=True).past_key_values
    if more:
        module(ids, past_key_values=cache, **more)
    else:
        module.generate(torch.tensor([[5, 6, 7, 8]]), past_key_values=cache)


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
        (CopyError, lambda: pickle.dumps({"model": decoder()}),
         "a Model belongs to this process and cannot be copied or pickled: use the same one, or load the model again "
         "where it is needed."),
        (ExecutorError, without_nvrtc,
         "NVRTC, which compiles the GPU engine's kernel, was not found. Install a build of torch for CUDA."),
    ],
    "models that are split": [
        (ExecutorError, lambda: split_model(blueprint(read_config({"model_type": "scratch", **SIZES}), "causal"), 2),
         "a scratch model cannot be split among ranks: each head has a projection of its own. Leave tensor_parallel out."),
        (ExecutorError, lambda: split_model(norm_over_heads(), 2),
         "a llama model cannot be split among ranks: its layers.0.inner_norm needs all of what would be divided. Leave "
         "tensor_parallel out."),
    ],
    "checkpoints": [
        (CheckpointError, lambda: with_whole_tensors(
            {"blk.0.attn_k_b.weight": computed_tensor("k", (2, 3), lambda: np.zeros((2, 3)), (), "", Path("x"))},
            [EXPANDED_LATENTS], {}),
         "x: GGUF tensors blk.0.attn_k_b.weight and blk.0.attn_v_b.weight do not fit together: both must be there, of "
         "shapes that make one matrix. Fetch the file again."),
        (InputError, lambda: architecture_of(read_config(reference.config("qwen3_next").to_dict()), "x"),
         "x: GGUF has no place for layers without experts in a qwen3_next model. Keep the checkpoint as it is; load(…, "
         "weights=…) packs its weights all the same."),
        (CheckpointError, lambda: gguf_name_and_layout(
            TABLES["llama"], {"num_attention_heads": 4}, "model.layers.0.self_attn.q_proj.weight", (12, 8)),
         "model.layers.0.self_attn.q_proj.weight: GGUF tensor 'blk.0.attn_q.weight' has 12 rows, which do not make "
         "pairs in 4 heads (fields 'attention.head_count' and 'attention.head_count_kv'). Fetch the file again."),
        (ConfigError, lambda: AutoConfig.from_pretrained(altered("llama", quantization_config={"quant_method": "aqlm"})),
         "…/llama with another quantization_config/config.json: config field 'quantization_config' is {'quant_method': "
         "'aqlm'}; weights that are packed this way cannot be read. GPTQ, AWQ, bitsandbytes, FP8 and compressed-tensors "
         "can, from a folder: take the model so, unpacked, or as a .gguf file."),
        (ConfigError, lambda: AutoConfig.from_pretrained(altered("gpt_oss", quantization_config={"quant_method": "hqq"})),
         "…/gpt_oss with another quantization_config/config.json: config field 'quantization_config' is "
         "{'quant_method': 'hqq'}; of gpt_oss, MXFP4 is known. Take the model as it was published, or as a .gguf file."),
        (CheckpointError, lambda: AutoModelForCausalLM.from_pretrained(altered("llama", intermediate_size=81)),
         "…/llama with another intermediate_size: tensor 'model.layers.0.mlp.gate_proj.weight' has shape (80, 48), but "
         "the config makes 'model.layers.0.mlp.gate_proj.weight' (81, 48). Is this the config of these weights?"),
        (CheckpointError, lambda: AutoModelForCausalLM.from_pretrained(altered("llama", num_hidden_layers=4)),
         "…/llama with another num_hidden_layers: the weights lack model.layers.3.self_attn.q_proj.weight, "
         "model.layers.3.self_attn.k_proj.weight, model.layers.3.self_attn.v_proj.weight and 6 more. Is this the config "
         "of these weights?"),
        (InputError, lambda: load(altered("t5", "seq2seq", decoder_start_token_id=None)).look(TEXT),
         "…/t5 with another decoder_start_token_id: neither its config nor its settings have a decoder_start_token_id."),
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
    "what is found by name": [
        (InputError, lambda: held().replay(held().watch(TEXT, max_new_tokens=1).receipt),
         "this receipt cannot be replayed: held (features held: 7 at 6), a function, changed blocks.0.residual, and no "
         "file can hold it."),
        (InputError, lambda: decoder().with_library(Library(features=place() / "none")).dictionary("/etc"),
         "there is no dictionary of features '/etc'. There is none here."),
        (CheckpointError, lambda: read_dictionary(write("params.npz", "x"), "blocks.0.residual"),
         "…/params.npz: damaged, or no .npz file (File is not a zip file). Fetch it again."),
        (InputError, lambda: both("gpt2").model.parameters(only="lm_head.weight"),
         "'lm_head.weight' is tied: it is 'transformer.wte.weight'. Ask for that."),
        (InputError, lambda: decoder().replay(replace(run().receipt, weights="0" * 64)),
         "this receipt was written with other weights of … (000000000000…, here …). Fetch those, or "
         "compare: glass compare --other."),
    ],
    "layers that keep a state": [
        (ExecutorError, lambda: stateful({"ids": [5, 6]}, {"ids": [7]}, changes="blocks.0.attention.pattern"),
         "the effective pattern of a layer that keeps a state is computed from the whole text, which cannot be read "
         "again here, since something of it was changed. Read the text and its pattern in one pass."),
        (ExecutorError, lambda: stateful({"ids": [5, 6], "parents": [-1, -1]}, {"ids": [7]}),
         "a row that keeps a state cannot go on from several branches of a tree. Rewind it to one."),
        (ExecutorError, lambda: stateful({"ids": [5, 6], "parents": [-1, -1]}, changes="final"),
         "a tree of tokens cannot be watched in a model that keeps states. Watch a branch of it."),
        (SiteError, lambda: stateful({"ids": [5]}, changes="blocks.0.attention.state_norm"),
         "'blocks.0.attention.state_norm' is measured, and nothing is computed from it. Change 'blocks.0.attention.state'."),
        (InputError, cropped,
         "this cache holds states of layers that keep no tokens, so it cannot be cropped to 3 of 5. Read the text again, or "
         "copy the cache before tokens that may be dropped."),
        (InputError, begun,
         "past_key_values hold states of layers that keep no tokens, and generate() cannot go on from them. Leave them out, "
         "or read on with the model itself."),
        (InputError, lambda: begun(watch="blocks.0.attention.pattern"),
         "'blocks.0.attention.pattern' needs what earlier passes have written to the state. Give the text in one pass, "
         "without a cache."),
        (InputError, lambda: both("qwen3_5_text").model.circuits.head(0, 1),
         "layer 0 keeps a state: what its heads read comes out of a convolution, so that no matrix says what they look for. "
         "Look at its effective attention, or take a layer that attends."),
        (InputError, lambda: both("lfm2").model.circuits.head(0, 1),
         "layer 0 of … has no heads: its tokens do not attend to each other. Take a layer that attends."),
        (InputError, lambda: both("lfm2").model.read_ids([5, 6]).attention(2),
         "layer 2 of … has no attention pattern, since its tokens do not attend to each other. Take one of the layers 1."),
    ],
    "tokenizers that no grammar can guide": [
        (SettingError, lambda: Grammar.compile("regex", "1", Letterless()),
         "this tokenizer has no letters, so no grammar can guide it. Use a model with another."),
    ],
}  # fmt: skip
