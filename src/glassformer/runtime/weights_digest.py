"""A model's weights as a digest, by which a file that was made for them knows them again."""

from __future__ import annotations

import hashlib
from typing import Any

from glassformer.checkpoint.content_digest import content_digest, stored_files


def weights_digest(opened: Any) -> str:
    """The SHA-256 of the weights of an opened checkpoint, or of a module in memory, wherever they lie."""
    digest = hashlib.sha256()
    tensors = getattr(opened, "tensors", None)
    if tensors is None:
        for name, weight in opened.module.state_dict().items():
            digest.update(name.encode())
            digest.update(weight.detach().float().cpu().numpy().tobytes())
        return digest.hexdigest()
    files, recipes = stored_files(tensor.file for tensor in tensors.values())
    for part in (*(content_digest(files[path]) for path in sorted(files)), *recipes):
        digest.update(part.encode())
    return digest.hexdigest()
