"""Control vectors: steering vectors in llama.cpp's format, a GGUF file of the architecture "controlvector".

`direction.N` is added to the stream as it leaves block N, counted from 0; block 0 has none.
(https://github.com/ggml-org/llama.cpp, common_control_vector_load.)
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.ground.errors import CheckpointError
from glassformer.ground.typecheck import brief

Floats: TypeAlias = npt.NDArray[np.float32]
PREFIX = "direction."


def read_control_vector(path: Path) -> tuple[str, dict[str, Floats]]:
    """The model that it is for, as its hint says ('' where it has none), and its directions by site."""
    checkpoint = GgufCheckpoint(path)
    metadata = checkpoint.metadata
    if (architecture := metadata.get("general.architecture")) != "controlvector":
        raise CheckpointError(f"{path}: its general.architecture is {brief(architecture)}, not 'controlvector'.")
    directions: dict[str, Floats] = {}
    for name, tensor in checkpoint.raw.items():
        number = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or not number.isdecimal() or len(number) > 6 or len(tensor.shape) != 1:
            raise CheckpointError(
                f"{path}: GGUF tensor {brief(name)} of shape {list(tensor.shape)} is no direction of a control vector."
            )
        if int(number) == 0:
            raise CheckpointError(f"{path}: has a direction for block 0, where a control vector has none. Make it again.")
        directions[f"blocks.{int(number)}.residual"] = tensor.in_memory().to_float32()
    if not directions or not all(np.isfinite(direction).all() for direction in directions.values()):
        raise CheckpointError(f"{path}: holds no directions, or some that are not all numbers. Fetch it again.")
    hint = metadata.get("controlvector.model_hint")
    return hint if isinstance(hint, str) else "", directions
