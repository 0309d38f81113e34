"""The ledger: what is whole counts, what is not is cut off, and only one process writes."""

from __future__ import annotations

import errno
import json
import os
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.ground.errors import InputError, WriteError
from glassformer.jobs import ledger as ledger_module
from glassformer.jobs.ledger import BEGINNING, Ledger, encode_line, is_whole
from tests.sweeps import examples

HEADER = {"job": {"input": "0" * 64}, "seed": 7}
RECORDS = {3: {"output": {"text": "line\nbreak  \ud800"}}, 0: {"output": {"text": ""}}, 1: {"output": {"text": "é" * 50}}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a ledger of three rows."""
    path = tmp_path_factory.mktemp("ledger") / "whole"
    with Ledger(path) as ledger:
        ledger.start(HEADER)
        for row, record in RECORDS.items():
            ledger.append(row, record)
    return path.read_bytes()


def rows_of(path: Path) -> list[int]:
    with Ledger(path) as ledger:
        return [record["row"] for record in ledger.records()]


def test_records_come_in_the_order_of_the_rows(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "ledger").write_bytes(whole)
    with Ledger(tmp_path / "ledger") as ledger:
        assert ledger.header == HEADER
        assert len(ledger) == 3
        assert [row in ledger for row in range(5)] == [True, True, False, True, False]
        assert [record["row"] for record in ledger.records()] == [0, 1, 3]
        assert [record["output"] for record in ledger.records()] == [RECORDS[row]["output"] for row in (0, 1, 3)]
    for line in whole.splitlines():
        json.loads(line)  # each is JSON that other programs can read


@settings(max_examples=examples(75, 300), deadline=None)
@given(data=st.data())
def test_what_was_cut_off_at_any_byte_is_done_again(
    data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "ledger"
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    complete = whole[:cut].count(b"\n")
    with Ledger(path) as ledger:
        assert (ledger.header is None) == (complete == 0)
        assert len(ledger) == max(0, complete - 1)
        if ledger.header is None:
            ledger.start(HEADER)
        for row, record in RECORDS.items():
            if row not in ledger:
                ledger.append(row, record)
    assert path.read_bytes() == whole


@settings(max_examples=examples(75, 300), deadline=None)
@given(data=st.data())
def test_damage_anywhere_is_noticed(data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damaged") / "ledger"
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
    intact = 4 if byte == whole[at] else whole[:at].count(b"\n")
    if at < len(BEGINNING) and byte != whole[at]:
        with pytest.raises(InputError, match="ledger"):
            Ledger(path)
        return
    with Ledger(path) as ledger:
        assert len(ledger) == max(0, intact - 1)
        assert ledger.header == (HEADER if intact else None)
        expected = [RECORDS[row]["output"] for row in sorted(list(RECORDS)[: len(ledger)])]
        assert [record["output"] for record in ledger.records()] == expected


def test_damage_in_the_middle_is_noted(tmp_path: Path, whole: bytes, caplog: pytest.LogCaptureFixture) -> None:
    lines = whole.splitlines(keepends=True)
    (tmp_path / "ledger").write_bytes(lines[0] + lines[1].replace(b"3", b"4", 1) + lines[2] + lines[3])
    assert rows_of(tmp_path / "ledger") == []
    assert caplog.messages == [
        f"{tmp_path / 'ledger'} is damaged at byte {len(lines[0])}: the rows behind that are done again."
    ]
    assert (tmp_path / "ledger").read_bytes() == lines[0]


@pytest.mark.parametrize("content", [b"my notes\n", b"my notes", b"\0" * 100, b"{}\n", b'{"row": 0}'])
def test_another_file_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ledger").write_bytes(content)
    with pytest.raises(InputError, match="ledger"):
        Ledger(tmp_path / "ledger")
    assert (tmp_path / "ledger").read_bytes() == content


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.start(HEADER)
        with pytest.raises(WriteError, match="another process"):
            Ledger(tmp_path / "ledger")
    assert rows_of(tmp_path / "ledger") == []


def test_a_row_is_appended_once(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.start(HEADER)
        ledger.append(0, {})
        with pytest.raises(AssertionError):
            ledger.append(0, {})


def test_a_full_disk_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class AlmostFullDisk(FileIO):
        room = 300

        def write(self, data: Any) -> int:
            part = bytes(data)[: self.room]
            if not part:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= len(part)
            return super().write(part)

    def fill() -> None:
        with Ledger(tmp_path / "ledger") as ledger:
            ledger.start(HEADER)
            for row in range(100):
                ledger.append(row, {"output": "x" * 20})

    with monkeypatch.context() as patch:
        patch.setattr(ledger_module, "FileIO", AlmostFullDisk)
        with pytest.raises(WriteError, match=r"No space left on device\). The rows before are kept: make room"):
            fill()
    content = (tmp_path / "ledger").read_bytes()
    assert content.endswith(b"}\n")
    rows = rows_of(tmp_path / "ledger")
    assert rows == list(range(len(rows)))
    assert rows


def test_a_failed_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.start(HEADER)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
            with pytest.raises(WriteError, match=r"cannot be written \(Input/output error\)"):
                ledger.sync()


def test_rows_are_synced_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, synced = [0.0], []
    monkeypatch.setattr(ledger_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(now[0]))
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.start(HEADER)
        synced.clear()
        for row in range(40):
            now[0] += 0.1
            ledger.append(row, {})
        assert 3 <= len(synced) <= 4


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="the folder first"):
        Ledger(tmp_path / "nowhere" / "ledger")


def test_lines_end_in_their_checksum() -> None:
    line = encode_line({"row": 1, "text": "a"})
    assert is_whole(line)
    assert not is_whole(line[:-1])
    assert not is_whole(line.replace(b"a", b"b", 1))
    assert not is_whole(b'{"row": 1}\n')
    assert not is_whole(b"")
