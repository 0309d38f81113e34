"""What the tests with other people's libraries share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ecosystem.models import write_model, write_tokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The folder of a tiny model of a family with a head, without dropout; written once."""
    folders: dict[tuple[str, str], Path] = {}

    def folder(family: str, head: str) -> Path:
        if (family, head) not in folders:
            folders[family, head] = write_model(tmp_path_factory.mktemp(f"{family}-{head}"), family, head)
        return folders[family, head]

    return folder


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
