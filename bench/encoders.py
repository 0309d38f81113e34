"""An encoder's own passes: the CPU engine beside PyTorch, taking turns, on a model of MiniLM's shape with random weights."""

from __future__ import annotations

import statistics
import time

import torch

from glassformer import AutoModel, BertConfig

ROUNDS, WARM_UP = 15, 3
SHAPES = ((1, 11), (8, 38), (1, 257))  # texts, tokens


def milliseconds(model: torch.nn.Module, ids: torch.Tensor) -> dict[bool, float]:
    """The median of a pass, by the engine and by PyTorch."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for engine, seconds in times.items():
            model.use_cpu_engine = engine  # type: ignore[assignment]
            started = time.perf_counter()
            model(ids)
            seconds.append(time.perf_counter() - started)
    return {engine: 1e3 * statistics.median(seconds[WARM_UP:]) for engine, seconds in times.items()}


@torch.no_grad()
def main() -> None:
    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    model = AutoModel.from_config(config)
    for texts, tokens in SHAPES:
        found = milliseconds(model, torch.randint(1000, 30_000, (texts, tokens)))
        print(f"{texts} × {tokens} tokens: engine {found[True]:.1f} ms, PyTorch {found[False]:.1f} ms")


if __name__ == "__main__":
    main()
