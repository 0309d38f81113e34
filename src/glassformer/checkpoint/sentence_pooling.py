"""How a model's states become one vector per text: the settings in a sentence embedder's checkpoint.

modules.json                    the steps after the model, in order: pooling, dense layers, normalising
1_Pooling/config.json           which states are taken: all of them on average, the first, the last, …
2_Dense/                        a linear layer on top, with its own weights
sentence_bert_config.json       how many tokens it was trained on
config_sentence_transformers.json   prompts to be put before a text, and how vectors are compared
1_LogitScore/config.json        of a reranker that writes: the tokens that its score is made of
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.folder import read_json, read_weights
from glassformer.checkpoint.stored_tensors import StoredTensor
from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import read_regular
from glassformer.ground.typecheck import brief

Floats = npt.NDArray[np.float32]

POOLINGS = {  # as files name them, in the order in which several are put side by side
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
GGUF_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}  # llama.cpp's numbers
GGUF_RANK = 4  # a reranker's
GGUF_DENSE = ("dense_2.weight", "dense_3.weight")  # layers behind the pooling, as a file names them
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
SENTENCE = "sentence_embedding"  # the vector of a text, as modules hand it on
ACTIVATIONS = ("Identity", "Tanh", "ReLU")


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer after the pooling: x · weightᵀ + bias, then the activation."""

    weight: Floats  # (out, in)
    bias: Floats | None
    activation: str


@dataclass(frozen=True)
class AnswerTokens:
    """What a reranker that writes is scored by: the logit of one token, minus that of another if there is one."""

    true: int
    false: int | None

    def score(self, logits: Floats) -> Floats:
        """One number, (1,), of the logits where the answer begins."""
        negative = np.float32(0) if self.false is None else logits[self.false]
        return np.asarray([logits[self.true] - negative], np.float32)


@dataclass(frozen=True)
class SentenceSettings:
    stated: bool = False  # whether a checkpoint says how
    pooling: tuple[str, ...] = ("mean",)
    dense: tuple[DenseLayer, ...] = ()
    normalize: bool = False  # to length 1, so that a dot product is the cosine
    limit: int | None = None  # tokens
    lowercase: bool = False  # whether texts lose their capitals first
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str | None = None  # the name of the default one
    dimensions: int | None = None  # how many of a vector's numbers are kept; None: all
    pool_prompt: bool = True  # whether a prompt's own tokens are pooled too
    similarity: str = "cosine"
    activation: str | None = None  # of a reranker's score, by its class
    answers: AnswerTokens | None = None  # of a reranker that writes
    ranks: bool = False  # whether a checkpoint says that it is a reranker


def read_sentence_settings(
    path: Path, metadata: Mapping[str, Any] | None = None, raw: Mapping[str, StoredTensor] = MappingProxyType({})
) -> SentenceSettings:
    """From a checkpoint's folder, or from a GGUF's metadata and tensors; by default, the mean of all states."""
    if metadata is not None:
        code = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
        if not isinstance(code, int) or code not in GGUF_POOLINGS:
            return SentenceSettings(ranks=code == GGUF_RANK or "cls.output.weight" in raw)
        dense = tuple(DenseLayer(raw[name].to_float32().copy(), None, "Identity") for name in GGUF_DENSE if name in raw)
        return SentenceSettings(stated=True, pooling=(GGUF_POOLINGS[code],), dense=dense, normalize=True)
    modules = path / "modules.json"
    settings: dict[str, Any] = {}
    if modules.exists():
        layers: list[DenseLayer] = []
        for kind, folder in _modules(modules):
            if kind == "Pooling":
                settings |= {"stated": True, **_pooling(path / folder / "config.json")}
            elif kind == "Dense":
                layers.append(_dense(path / folder))
            elif kind == "Normalize":
                settings["normalize"] = True
            elif kind == "LogitScore":
                settings |= {"answers": _answers(path / folder / "config.json"), "ranks": True}
            elif kind not in ("Transformer", "Dropout"):
                raise CheckpointError(f"{modules}: a {kind} module is not supported; Pooling, Dense and Normalize are.")
        settings["dense"] = tuple(layers)
    elif (pooling := path / "1_Pooling" / "config.json").exists():
        settings |= {"stated": True, **_pooling(pooling)}
    if (limits := path / "sentence_bert_config.json").exists():
        described = read_json(limits)
        limit = described.get("max_seq_length")
        settings["limit"] = limit if isinstance(limit, int) and limit > 0 else None
        settings["lowercase"] = described.get("do_lower_case") is True
    if (prompts := path / "config_sentence_transformers.json").exists():
        settings |= _prompts_and_similarity(prompts)
    return SentenceSettings(**settings)


def _modules(path: Path) -> list[tuple[str, str]]:
    """The steps' kinds and folders; a kind is the last word of a dotted name, and nothing of that name is imported."""
    raw = read_regular(path)
    try:
        modules = json.loads(raw.decode("utf-8"))
        return [(str(module["type"]).rpartition(".")[2], _inside(str(module["path"]))) for module in modules]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: is no list of modules with a type and a path ({error}). Fetch it again.") from error


def _inside(folder: str) -> str:
    if Path(folder).is_absolute() or ".." in Path(folder).parts:
        raise ValueError(f"{folder!r} lies outside the checkpoint")
    return folder


def _pooling(path: Path) -> dict[str, Any]:
    config = read_json(path)
    mode = config.get("pooling_mode")
    if mode is None:
        mode = [name for key, name in POOLINGS.items() if config.get(key)] or ["mean"]
    modes = [mode] if isinstance(mode, str) else mode
    if not isinstance(modes, list) or not modes or not all(mode in POOLINGS.values() for mode in modes):
        known = ", ".join(POOLINGS.values())
        raise CheckpointError(f"{path}: the pooling {mode!r} is not known; there are {known}.")
    return {"pooling": tuple(modes), "pool_prompt": bool(config.get("include_prompt", True))}


def _answers(path: Path) -> AnswerTokens:
    config = read_json(path)
    true, false = config.get("true_token_id"), config.get("false_token_id")
    if type(true) is not int or true < 0 or not (false is None or (type(false) is int and false >= 0)):
        raise CheckpointError(
            f"{path}: 'true_token_id' and 'false_token_id' are {brief(true)} and {brief(false)}; they must be tokens' ids."
        )
    return AnswerTokens(true, false)


def _dense(folder: Path) -> DenseLayer:
    config = read_json(folder / "config.json")
    if any(config.get(f"module_{end}_name") not in (None, SENTENCE) for end in ("input", "output")):
        raise CheckpointError(f"{folder / 'config.json'}: a Dense module of anything but a text's vector is not supported.")
    activation = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise CheckpointError(
            f"{folder / 'config.json'}: the activation {activation!r} is not known; there are {', '.join(ACTIVATIONS)}."
        )
    candidates = (folder / name for name in ("model.safetensors", "pytorch_model.bin"))
    weights = next((path for path in candidates if path.exists()), None)
    if weights is None:
        raise CheckpointError(f"{folder}: holds no model.safetensors and no pytorch_model.bin. Fetch the weights.")
    tensors = read_weights(weights)
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    if weight is None or len(weight.shape) != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        raise CheckpointError(f"{weights}: is no linear layer: it holds {', '.join(tensors) or 'nothing'}. Fetch it again.")
    weight_values, bias_values = (None if stored is None else stored.to_float32().copy() for stored in (weight, bias))
    assert weight_values is not None
    return DenseLayer(weight_values, bias_values, activation)


def _prompts_and_similarity(path: Path) -> dict[str, Any]:
    """Prompts, how vectors are compared, and how long they are."""
    config = read_json(path)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    similarity = config.get("similarity_fn_name") or "cosine"
    dimensions = config.get("truncate_dim")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CheckpointError(f"{path}: 'prompts' does not map names to texts. Fetch it again.")
    if default is not None and default not in prompts:
        raise CheckpointError(f"{path}: 'default_prompt_name' is {default!r}, but there is no such prompt. Fetch it again.")
    if similarity not in SIMILARITIES:
        raise CheckpointError(
            f"{path}: 'similarity_fn_name' is {similarity!r}; there are {', '.join(SIMILARITIES)}. Fetch it again."
        )
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise CheckpointError(f"{path}: 'truncate_dim' is {brief(dimensions)}; it must be a number of at least 1.")
    activation = config.get("activation_fn")
    return {
        "prompts": prompts, "prompt": default, "similarity": similarity, "dimensions": dimensions,
        "activation": activation if isinstance(activation, str) else None,
    }  # fmt: skip
