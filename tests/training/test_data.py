"""What is trained on: text files, token files and rows; and every way in which they can be bad."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from glassformer.ground.errors import CheckpointError, InputError
from glassformer.training import corpus as corpora
from glassformer.training.corpus import read_corpus
from glassformer.training.rows import SOURCE, TARGET, TEXT, read_rows, split_rows
from glassformer.training.text_tokens import (
    read_token_file,
    text_objective,
    token_sizes,
    tokenized,
    train_tokenizer,
    write_token_file,
)
from tests.training.models import tiny_model

TEXTS = "The cat sat on the mat. Größe, naïve, 漢字!\n" * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts" / "inner").mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text(TEXTS, "utf-8")
    (tmp_path / "texts" / "inner" / "b.md").write_text("# A title\n" + TEXTS, "utf-8")
    (tmp_path / "texts" / ".hidden.txt").write_text("x")
    (tmp_path / "texts" / "picture.png").write_bytes(b"\x89PNG")
    return tmp_path / "texts"


def test_a_folders_text_files_are_its_documents(folder: Path) -> None:
    corpus = read_corpus(folder)
    assert [path.name for path in corpus.paths] == ["a.txt", "b.md"]
    assert ["".join(document) for document in corpus.documents()] == [TEXTS, "# A title\n" + TEXTS]
    assert corpus.bytes == sum(len(path.read_bytes()) for path in corpus.paths)
    before = corpus.digest
    (folder / "a.txt").write_text(TEXTS + "more", "utf-8")
    assert read_corpus(folder).digest != before


def test_long_documents_come_in_pieces_of_whole_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "PIECE", 100)
    (document, _) = read_corpus(folder).documents()
    pieces = list(document)
    assert len(pieces) > 5
    assert "".join(pieces) == TEXTS
    assert all(piece.endswith("\n") for piece in pieces)


def test_token_files_hold_every_document_and_its_end(folder: Path, tmp_path: Path) -> None:
    corpus = read_corpus(folder)
    tokenizer = train_tokenizer(corpus, 300)
    path, source = tokenized(corpus, tokenizer, tmp_path / "tokens")
    ids, info = read_token_file(path)
    assert ids.dtype == np.uint16
    assert info.source == source
    documents = tokenizer.decode(ids.tolist()).split("<|endoftext|>")
    assert documents == [TEXTS, "# A title\n" + TEXTS, ""]
    assert int(token_sizes(tokenizer)[ids].sum()) == corpus.bytes
    changed = (path / "tokens.bin").stat().st_mtime_ns
    assert tokenized(corpus, tokenizer, tmp_path / "tokens")[0] == path  # used again
    assert (path / "tokens.bin").stat().st_mtime_ns == changed
    objective = text_objective(tokenizer, tiny_model().config, path, 16, 0.1)
    batch = objective.batch([0, 3])
    assert batch.inputs["input_ids"][1].tolist() == ids[48:64].tolist()
    assert batch.targets[1].tolist() == ids[49:65].tolist()
    last = objective.batch([objective.held_out - 1], held_out=True)
    assert last.targets[0, -1] == ids[-1]


def test_a_large_vocabulary_needs_32_bits(tmp_path: Path) -> None:
    write_token_file(tmp_path, [[1, 99_999], [70_000]], 100_000, "x")
    ids, _ = read_token_file(tmp_path)
    assert ids.tolist() == [1, 99_999, 70_000]


def test_a_token_file_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    write_token_file(tmp_path, [[1, 2, 3]], 10, "x")
    (tmp_path / "tokens.bin").write_bytes(b"\1\0")
    with pytest.raises(CheckpointError, match="not whole"):
        read_token_file(tmp_path)
    (tmp_path / "tokens.bin").write_bytes(b"\1\0\2\0\7\0")  # one bit is another
    with pytest.raises(CheckpointError, match="not whole"):
        read_token_file(tmp_path)
    about = json.loads((tmp_path / "tokens.json").read_text())
    del about["crc32"]  # as older ones have none
    (tmp_path / "tokens.json").write_text(json.dumps(about))
    assert read_token_file(tmp_path)[0].tolist() == [1, 2, 7]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty. Give a file or folder with text"),
        (b"fine\nbad \xff\xfe here\n", "line 2: not UTF-8 text .* Convert the file first"),
        (b"short\n" + b"x" * 101, "line 2: is longer than .* Break it into lines"),
    ],
    ids=["empty", "encoding", "one line without end"],
)
def test_bad_text_is_refused_with_its_line(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "LONGEST_LINE", 100)
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(InputError, match=f"bad.txt.*{message}"):
        read_corpus(tmp_path / "bad.txt")


def test_rows_are_read_from_json_lines_and_csv(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"text": "a, b", "label": 1}\n\n{"text": "c", "label": 0}\n')
    table = tmp_path / "rows.csv"
    table.write_text('text,label\n"a, b",1\nc,0\n', "utf-8-sig")
    for path in (lines, table):
        rows = read_rows(path)
        assert [row.text(TEXT) for row in rows] == ["a, b", "c"]
        assert [str(row.fields["label"]) for row in rows] == ["1", "0"]
    (row,) = read_rows_of(tmp_path, {"source": "abc", "target": ["A", "B"]})
    assert row.tokens(TARGET) == ["A", "B"]
    assert row.tokens(SOURCE) == "abc"


def read_rows_of(folder: Path, *rows: object):  # type: ignore[no-untyped-def]
    path = folder / "given.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_rows(path)


def test_bad_fields_are_refused_with_their_row(tmp_path: Path) -> None:
    first, second = read_rows_of(tmp_path, {"words": "x"}, {"text": " "})
    with pytest.raises(InputError, match=r"row 1: lacks"):
        first.text(TEXT)
    with pytest.raises(InputError, match="row 2"):
        second.text(TEXT)
    (tmp_path / "latin.csv").write_bytes(b"text\n\xe9\n")
    with pytest.raises(InputError, match="latin.csv, line 2"):
        read_rows(tmp_path / "latin.csv")
    with pytest.raises(InputError, match=r"absent.csv: cannot be read"):
        read_rows(tmp_path / "absent.csv")


def test_held_out_rows_do_not_depend_on_the_order(tmp_path: Path) -> None:
    rows = read_rows_of(tmp_path, *({"text": f"text {number}"} for number in range(200)))
    kept, held_out = split_rows(rows, 0.2)
    again = split_rows(rows[::-1], 0.2)[1]
    assert {row.text(TEXT) for row in again} == {row.text(TEXT) for row in held_out}
    assert 20 < len(held_out) < 60
    assert len(kept) + len(held_out) == 200
