"""The state file has the last object that was written, or is damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from flight_server.kinds.changelog.runs import STATE_NAME, UNFINISHED_NAME, Damaged, read_state, write_state
from flight_server.protocol.checksums import crc32c
from flight_server.records import DiskTrouble, OtherFormat

STATE = {"dataset": "ü", "runs": [["run-000001", None]]}


def test_the_last_state_is_read_whatever_a_crash_has_left(tmp_path: Path) -> None:
    write_state(tmp_path, {"old": 1})
    write_state(tmp_path, STATE)
    (tmp_path / UNFINISHED_NAME).write_bytes(b"half")
    assert read_state(tmp_path) == STATE
    write_state(tmp_path, {})
    assert read_state(tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == [STATE_NAME]


def test_a_state_with_any_byte_changed_or_missing_is_damaged(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    whole = (tmp_path / STATE_NAME).read_bytes()
    changes = [
        whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :] for place in range(len(whole))
    ]
    for data in (
        *(each for each in changes if each[:7] == whole[:7] and each[7] == whole[7]),
        whole[:-1],
        b"",
    ):
        (tmp_path / STATE_NAME).write_bytes(data)
        with pytest.raises(Damaged):
            read_state(tmp_path)


def test_a_state_of_another_version_is_not_called_damaged(tmp_path: Path) -> None:
    text = b'{"later": true}'
    (tmp_path / STATE_NAME).write_bytes(struct.pack("<8sII", b"FLSHCLG2", len(text), crc32c(text)) + text)
    with pytest.raises(OtherFormat, match="FLSHCLG2"):
        read_state(tmp_path)


def test_a_state_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(DiskTrouble):
        write_state(tmp_path / "gone", STATE)
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path)
