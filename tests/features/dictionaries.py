"""Small dictionaries of random numbers, in every published form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

WIDTH, SIZE = 48, 96  # of the tiny models' stream
HOOK = "blocks.0.hook_resid_post"
KINDS = ("standard", "jumprelu", "topk", "gated")


def random_tensors(kind: str = "standard", width: int = WIDTH, out: int = WIDTH, size: int = SIZE) -> dict[str, Any]:
    generator = np.random.default_rng(3)

    def normal(*shape: int, scale: float = 1.0) -> Any:
        return (scale * generator.normal(size=shape)).astype(np.float32)

    tensors = {
        "W_enc": normal(width, size, scale=0.3), "W_dec": normal(size, out, scale=0.3), "b_enc": normal(size, scale=0.1),
        "b_dec": normal(out, scale=0.1),
    }  # fmt: skip
    if kind.startswith("jumprelu"):
        tensors["threshold"] = np.abs(normal(size, scale=0.5))
    if kind == "gated":
        del tensors["b_enc"]
        tensors |= {"b_gate": normal(size, scale=0.1), "r_mag": normal(size, scale=0.1), "b_mag": normal(size, scale=0.1)}
    return tensors


def config_of(kind: str = "standard", **more: Any) -> dict[str, Any]:
    k = {"k": 7} if kind == "topk" else {}
    metadata = {"hook_name": HOOK, "model_name": "tiny"}
    base = {"architecture": kind, "d_in": WIDTH, "d_sae": SIZE, "dtype": "float32", "device": "cpu",
            "apply_b_dec_to_input": True, "normalize_activations": "none", "metadata": metadata}  # fmt: skip
    return {**base, **k, **more}


def write_folder(folder: Path, kind: str = "standard", tensors: dict[str, Any] | None = None, **config: Any) -> Path:
    """A folder as SAELens writes it."""
    folder.mkdir(exist_ok=True)
    save_file(tensors or random_tensors(kind), folder / "sae_weights.safetensors")
    (folder / "cfg.json").write_text(json.dumps(config_of(kind, **config)))
    return folder
