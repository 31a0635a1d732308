"""The flat folder of the server's files: what it draws, syncs, deletes, and leaves alone."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from flight_server.storage import folder as folders
from flight_server.storage.file_header import FileHeader
from flight_server.storage.folder import Folder

OWNER = "0123456789abcdef"


def made(folder: Folder, header: FileHeader | None = None) -> str:
    path, fd = folder.make("frames")
    os.write(fd, b"" if header is None else header.encode())
    os.close(fd)
    return path.name


def test_a_file_has_a_new_name_with_its_owner_s(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "segments", OWNER)
    for suffix in ("frames", "run"):
        path, fd = folder.make(suffix)
        os.write(fd, b"x")
        os.close(fd)
        assert re.fullmatch(rf"{OWNER}-[0-9a-f]{{16}}\.{suffix}", path.name)
        assert path.read_bytes() == b"x"
    assert len(list(folder.path.iterdir())) == 2
    assert folder.has_files()


def test_names_are_synced_once_and_again_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    folder, refuses = Folder(tmp_path / "segments", OWNER), False

    def sync(path: Path) -> None:
        if refuses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced.append(path)

    monkeypatch.setattr(folders, "sync_directory", sync)
    folder.sync()
    assert synced == []
    for _ in range(2):
        made(folder)
    for _ in range(2):
        folder.sync()
    assert synced == [folder.path]
    made(folder)
    refuses = True
    with pytest.raises(OSError, match="Input/output"):
        folder.sync()
    refuses = False
    folder.sync()
    assert len(synced) == 2


def test_a_folder_that_is_not_the_server_s_any_more_takes_nothing(tmp_path: Path) -> None:
    held = True
    folder = Folder(tmp_path / "segments", OWNER, lambda: held)
    name = made(folder)
    held = False
    for call in (folder.sync, folder.check_held, lambda: folder.make("frames")):
        with pytest.raises(
            OSError, match="removed or replaced while this server used it; restart the server"
        ) as caught:
            call()
        assert caught.value.errno == errno.ESTALE
    assert [path.name for path in folder.path.iterdir()] == [name]


def test_garbage_that_the_disk_keeps_stops_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path / "segments", OWNER)
    name = made(folder)

    def refuses(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refuses)
    kept: list[Path] = []
    assert folder.sweep(set(), kept.append) == []
    assert kept == [folder.path / name]


def test_files_that_no_row_names_are_told_by_their_headers(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "segments", OWNER)
    header = FileHeader(OWNER, "d", "g1", "stream", durable=True)
    first, second, named = (made(folder, header) for _ in range(3))
    made(folder, FileHeader(OWNER, "d", "g2", "stream", durable=False))
    made(folder)
    os.mkfifo(folder.path / f"{OWNER}-{'2' * 16}.run")
    assert folder.unnamed({named}) == {("d", "g1"): sorted([first, second])}
