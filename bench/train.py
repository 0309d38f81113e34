"""Training beside the same loop over transformers' module, and over nanoGPT's: tokens per second, in one run.

    python bench/train.py [--shape tiny|gpt2] [--rounds 5] [--steps 10] [--precision bfloat16] [--compile] [--nanogpt FILE]

A ratio above 1 means that ours is faster. All sides are trained by our loop (AdamW, clipping, one process) on the same
random tokens, and each as its users would have it: transformers computes its scores and their cross-entropy, nanoGPT its own
loss. On a GPU the share of its bf16 rate is reported: six operations per parameter and token, and attention's products.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import report
from glassformer.blueprints import read_config
from glassformer.compat.auto import model_class_for_head
from glassformer.training.objectives.language_model import LanguageModel
from glassformer.training.objectives.objective import ExampleBatch
from glassformer.training.settings import TrainingSettings
from glassformer.training.sharding import Ranks
from glassformer.training.trainer import Trainer

NOTHING = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
SHAPES: dict[str, tuple[dict[str, Any], int, int]] = {  # a GPT-2's sizes, and the examples and tokens of a step
    "tiny": ({"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 8192, "n_positions": 256}, 8, 256),
    "gpt2": ({"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50304, "n_positions": 1024}, 64, 1024),
}
BF16_RATES = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # operations a second, dense, by their makers' data sheets


class TransformersLoss(LanguageModel):
    def loss(self, model: Any, batch: ExampleBatch) -> Tensor:
        logits = model(input_ids=batch.inputs["input_ids"], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="sum")


class NanoGptLoss(LanguageModel):
    def loss(self, model: Any, batch: ExampleBatch) -> Tensor:
        mean: Tensor = model(batch.inputs["input_ids"], batch.targets)[1]
        return mean * batch.targets.numel()


def ours(sizes: dict[str, Any]) -> tuple[nn.Module, type[LanguageModel]]:
    return model_class_for_head("gpt2", "causal")(read_config({"model_type": "gpt2", **sizes, **NOTHING})), LanguageModel


def transformers(sizes: dict[str, Any]) -> tuple[nn.Module, type[LanguageModel]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**sizes, **NOTHING)), TransformersLoss


def nanogpt(source: Path) -> Callable[[dict[str, Any]], tuple[nn.Module, type[LanguageModel]]]:
    spec = importlib.util.spec_from_file_location("nanogpt_model", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a compiler looks for it
    spec.loader.exec_module(module)

    def make(sizes: dict[str, Any]) -> tuple[nn.Module, type[LanguageModel]]:
        names = {"block_size": "n_positions", **{name: name for name in ("vocab_size", "n_layer", "n_head", "n_embd")}}
        return module.GPT(module.GPTConfig(**{own: sizes[name] for own, name in names.items()})), NanoGptLoss

    return make


def operations(sizes: dict[str, Any], length: int) -> int:
    """Of one token, forward and backward."""
    width, layers = sizes["n_embd"], sizes["n_layer"]
    return 6 * (12 * layers * width**2 + sizes["vocab_size"] * width) + 12 * layers * width * length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--nanogpt", type=Path, help="nanoGPT's model.py")
    arguments = parser.parse_args()
    sizes, rows, length = SHAPES[arguments.shape]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    settings = TrainingSettings(
        steps=10**6, batch_size=rows, precision=arguments.precision, compile=arguments.compile, warmup_steps=0
    )
    ids = np.random.default_rng(0).integers(sizes["vocab_size"], size=rows * length * 8 + 1).astype(np.uint16)
    makers = {"ours": ours, "transformers": transformers}
    if arguments.nanogpt is not None:
        makers["nanoGPT"] = nanogpt(arguments.nanogpt)
    trainers, losses = {}, {}
    for side, make in makers.items():
        torch.manual_seed(0)
        model, objective = make(sizes)
        trainers[side] = Trainer(model, objective(ids, length, ids[:0], 0, "random"), settings, ranks=Ranks(device=device))
        started = time.perf_counter()
        losses[side] = [round(trainers[side].train_step().loss, 2) for _ in range(3)]
        print(f"{side}: first losses {losses[side]}, {time.perf_counter() - started:.1f} s", flush=True)
    rates: dict[str, list[float]] = {side: [] for side in trainers}
    for _ in range(arguments.rounds):
        for side, trainer in trainers.items():
            gc.collect()
            started = time.perf_counter()
            for _ in range(arguments.steps):
                trainer.train_step()
            rates[side].append(arguments.steps * rows * length / (time.perf_counter() - started))
    report("training", [
        {
            "side": side, "tokens/s": round(rate := statistics.median(found)),
            "ours ÷ it": round(statistics.median(a / b for a, b in zip(rates["ours"], found, strict=True)), 2),
            **share_of_peak(device, rate * operations(sizes, length)),
        }
        for side, found in rates.items()
    ])  # fmt: skip


def share_of_peak(device: torch.device, rate: float) -> dict[str, str]:
    if device.type != "cuda":
        return {}
    name = torch.cuda.get_device_name(device)
    peak = next((peak for chip, peak in BF16_RATES.items() if chip in name), None)
    return {"TFLOP/s": f"{rate / 1e12:.0f}", **({} if peak is None else {"of its bf16 rate": f"{rate / peak:.0%}"})}


if __name__ == "__main__":
    main()
