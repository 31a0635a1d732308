"""Files on disk that may not be this server's: no FIFO or link in their place is waited for or followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flight_server.storage.disk_files import NotAFile, read_regular, write_file


def test_a_fifo_in_the_place_of_a_file_is_an_error_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match=r"No such device|Invalid argument"):
        write_file(tmp_path / "fifo", b"x")
    with pytest.raises(NotAFile):
        read_regular(tmp_path / "fifo")


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        write_file(tmp_path / "link", b"x")
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
