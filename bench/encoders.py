"""Sentence embeddings of one engine, in a process of its own: 300 texts of 3 to 200 words through MiniLM's layers.

    python bench/encoders.py -m FOLDER -e ours|transformers|onnxruntime|openvino -t 8

Timed are whole calls, from texts to normalized vectors. The others get what suits them: texts sorted by length, the bare
`tokenizers` library, and the fastest of several batch sizes. All compute in float32, onnxruntime and openvino over the
ONNX graph of transformers' model (openvino would round to bfloat16 by itself where the processor has AMX).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from common import texts

Floats: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[np.int64]
States: TypeAlias = Callable[[Ids, Ids], Floats]  # the last states (batch, length, hidden) of ids and their mask
Embed: TypeAlias = Callable[[list[str]], Floats]

COUNT = 300
BATCHES = (1, 8, 32)
INPUTS = ("input_ids", "attention_mask")


def ours(folder: Path, threads: int) -> Embed:
    os.environ["GLASS_THREADS"] = str(threads)  # read when the engine starts
    import glassformer

    embed: Embed = glassformer.pipeline("embed", folder)
    return embed


def torch_model(folder: Path) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval().requires_grad_(False)


def transformers(folder: Path, threads: int) -> States:
    import torch

    torch.set_num_threads(threads)
    model = torch_model(folder)
    return lambda ids, mask: np.asarray(model(torch.from_numpy(ids), torch.from_numpy(mask)).last_hidden_state)


def onnx_file(folder: Path) -> Path:
    """The ONNX graph of transformers' model, made once and kept beside the other files for benchmarks."""
    import torch

    from glassformer.ground.files import home

    path = home() / "bench" / f"{folder.name}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        model, example = torch_model(folder), torch.ones(2, 8, dtype=torch.int64)

        class LastStates(torch.nn.Module):
            def forward(self, input_ids: Any, attention_mask: Any) -> Any:
                return model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

        axes = {name: {0: "batch", 1: "length"} for name in (*INPUTS, "states")}
        torch.onnx.export(
            LastStates(), (example, example), str(path), input_names=list(INPUTS), output_names=["states"],
            dynamic_axes=axes, dynamo=False,
        )  # fmt: skip
    return path


def onnxruntime(folder: Path, threads: int) -> States:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = threads
    session = InferenceSession(str(onnx_file(folder)), options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, dict(zip(INPUTS, (ids, mask), strict=True)))[0]


def openvino(folder: Path, threads: int) -> States:
    from openvino import Core

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    model = Core().compile_model(str(onnx_file(folder)), "CPU", settings)
    return lambda ids, mask: model(dict(zip(INPUTS, (ids, mask), strict=True)))[0]


ENGINES: dict[str, Callable[[Path, int], States]] = {
    "transformers": transformers, "onnxruntime": onnxruntime, "openvino": openvino,
}  # fmt: skip
NEEDED = {
    "transformers": ("transformers",),
    "onnxruntime": ("transformers", "onnx", "onnxruntime"),
    "openvino": ("transformers", "onnx", "openvino"),
}


def installed() -> list[str]:
    """The engines that can run here."""
    return ["ours", *(name for name, modules in NEEDED.items() if all(map(importlib.util.find_spec, modules)))]


def in_batches(states: States, tokenizer: Any, size: int, given: Sequence[str]) -> Floats:
    """Mean-pooled, normalized vectors of texts, which are run in batches of a size, the shortest first."""
    encoded = tokenizer.encode_batch(given)  # unpadded
    order = sorted(range(len(given)), key=lambda number: len(encoded[number].ids))
    vectors: list[Any] = [None] * len(given)
    for at in range(0, len(order), size):
        numbers = order[at : at + size]
        lengths = np.array([len(encoded[number].ids) for number in numbers])
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        ids = np.zeros_like(mask)
        ids[mask > 0] = np.concatenate([encoded[number].ids for number in numbers])
        means = (states(ids, mask) * mask[..., None]).sum(1) / lengths[:, None]
        for number, vector in zip(numbers, means / np.linalg.norm(means, axis=-1, keepdims=True), strict=True):
            vectors[number] = vector
    return np.stack(vectors)


def fastest(embed: Callable[[int, Sequence[str]], Floats], sample: list[str]) -> Embed:
    """An embedding function with the batch size that suits it best."""
    embed(BATCHES[-1], sample)  # to warm up
    return partial(embed, min(BATCHES, key=lambda size: seconds(partial(embed, size), sample)[0]))


def seconds(embed: Embed, given: list[str]) -> tuple[float, Floats]:
    began = time.perf_counter()
    vectors = embed(given)
    return time.perf_counter() - began, vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, type=Path)
    parser.add_argument("-e", "--engine", choices=["ours", *ENGINES], default="ours")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("-r", "--repetitions", type=int, default=1)
    options = parser.parse_args()
    given = texts(COUNT)
    if options.engine == "ours":
        embed = ours(options.model, options.threads)
        embed(given)  # to warm up
    else:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        embed = fastest(partial(in_batches, ENGINES[options.engine](options.model, options.threads), tokenizer), given[::5])
    runs = [seconds(embed, given) for _ in range(options.repetitions)]
    taken, vectors = statistics.median(time for time, _ in runs), runs[0][1]
    print(json.dumps({"texts/s": COUNT / taken, "similarity": float(vectors[0] @ vectors[1])}))


if __name__ == "__main__":
    main()
