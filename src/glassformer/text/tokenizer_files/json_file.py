"""A JSON file of a tokenizer's folder, read as an object whose texts are all whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import read_regular


def read_object(path: Path) -> dict[str, Any]:
    r"""The file's content. JSON can spell half a character, `"\ud800"`, which no text and no token can hold."""
    try:
        value = json.loads(read_regular(path).decode("utf-8"))
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{path}: holds a lone surrogate, {error.object[error.start]!r}, which is no character. Fetch it again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}). Fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__} where an object belongs. Fetch it again.")
    return value
