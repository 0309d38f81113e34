"""Functions over a tokenizer in `datasets.map`, which knows them again by the bytes that they are pickled to."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from datasets.fingerprint import Hasher

from glassformer import AutoTokenizer
from tests.see.models import folder


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_used_tokenizer_has_the_fingerprint_of_a_new_one(family: str) -> None:
    place, _ = folder(family, "causal" if family == "gpt2" else "seq2seq")
    tokenizer, new = (AutoTokenizer.from_pretrained(place) for _ in range(2))

    def encode(row: dict[str, Any]) -> Any:
        return tokenizer(row["text"])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = Hasher.hash(encode)
        ids = tokenizer(["the cat", "a dog sat"])["input_ids"]
        tokenizer.batch_decode(ids)
        tokenizer.token_bytes(ids[0][0])
        assert Hasher.hash(encode) == first
        assert Hasher.hash(tokenizer) == Hasher.hash(new)


def test_mapped_rows_are_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.fingerprint._CACHING_ENABLED", True)  # which another library may have switched off
    tokenizer = AutoTokenizer.from_pretrained(folder("gpt2", "causal")[0])
    Dataset.from_dict({"text": ["the cat", "a dog"]}).save_to_disk(str(tmp_path / "rows"))
    rows = Dataset.load_from_disk(str(tmp_path / "rows"))
    mapped = [rows.map(lambda row: tokenizer(row["text"])) for _ in range(2)]
    assert mapped[0].cache_files == mapped[1].cache_files
    assert mapped[0]._fingerprint == mapped[1]._fingerprint
    assert mapped[0][0]["input_ids"] == tokenizer("the cat")["input_ids"]
