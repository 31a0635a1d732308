"""The first bytes of a file of frames."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flight_server.storage.file_header import FileHeader, read_header

HEADER = FileHeader("0123456789abcdef", "a/" * 99 + "d", "g" * 16, "stream", durable=True)


def test_a_header_is_read_as_it_was_written_before_whatever_follows(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for tail in (b"", b"frames" * 10_000):
        path.write_bytes(HEADER.encode() + tail)
        assert read_header(path) == HEADER


def test_what_is_no_header_is_none(base: Path) -> None:
    path, data = base / "file", HEADER.encode()
    assert read_header(path) is None
    os.mkfifo(base / "fifo")
    assert read_header(base / "fifo") is None
    for end in range(len(data)):
        path.write_bytes(data[:end])
        assert read_header(path) is None
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert read_header(path) is None


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(HEADER.encode())
    monkeypatch.setattr(os, "pread", _refuses)
    with pytest.raises(OSError, match="no"):
        read_header(path)


def _refuses(*_: object) -> bytes:
    raise OSError("no")
