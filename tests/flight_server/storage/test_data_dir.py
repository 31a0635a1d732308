"""Which directories a server takes for its own, and that it leaves all others as they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flight_server.storage.data_dir import FORMAT, MARKER_NAME, DataDir, DataDirInUse, DataDirUnusable
from tests.support.ram_directory import ram_directory


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below: kind and content; a FIFO is not opened."""
    return {
        str(path.relative_to(directory)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in directory.rglob("*")
    }


def test_a_directory_has_one_server_at_a_time(tmp_path: Path) -> None:
    first = DataDir.claim(tmp_path)
    with pytest.raises(DataDirInUse, match=f"{tmp_path} is in use by another server .process {os.getpid()}"):
        DataDir.claim(tmp_path)
    first.close()
    first.close()
    DataDir.claim(tmp_path).close()


@pytest.mark.parametrize("name", ["segments", "records", "datasets", "flight-server-notes", "report.csv"])
def test_a_directory_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "sales-2024").mkdir(parents=True)
    (tmp_path / name / "sales-2024" / "records.db").write_text("cargo")
    before = snapshot(tmp_path)
    with pytest.raises(DataDirUnusable, match=f"not empty .'{name}' is there.*name a new or empty directory"):
        DataDir.claim(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("directory", "words"),
    [
        ("file/below", "cannot be made or written to: Not a directory"),
        ("taken", "written to: Is a directory"),
    ],
)
def test_what_cannot_be_a_directory_of_its_own_is_refused(tmp_path: Path, directory: str, words: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "lock").mkdir(parents=True)
    with pytest.raises(DataDirUnusable, match=words):
        DataDir.claim(tmp_path / directory)


@pytest.mark.parametrize("number", [1, FORMAT + 1])
def test_a_directory_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path, number: int) -> None:
    DataDir.claim(tmp_path).close()
    marker = json.loads((tmp_path / MARKER_NAME).read_bytes())
    (tmp_path / MARKER_NAME).write_text(json.dumps({**marker, "format": number}))
    (tmp_path / "datasets").mkdir()
    before = snapshot(tmp_path)
    words = f"in format {number}, and this version reads {FORMAT}: start the version that wrote it"
    with pytest.raises(DataDirUnusable, match=words):
        DataDir.claim(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "marker",
    [
        "",
        "{}",
        "[1]",
        "[" * 100_000,
        json.dumps({"format": "2", "kind": "data", "owner": "0" * 16}),
        json.dumps({"format": FORMAT, "kind": "dataset", "owner": "0" * 16}),
        json.dumps({"format": FORMAT, "kind": "data", "owner": "../" * 5 + "d"}),
        json.dumps({"format": FORMAT, "kind": "data"}),
    ],
)
def test_a_directory_whose_marker_is_none_is_refused_and_left_as_it_is(tmp_path: Path, marker: str) -> None:
    (tmp_path / MARKER_NAME).write_text(marker)
    before = snapshot(tmp_path)
    with pytest.raises(DataDirUnusable, match=f"has no valid {MARKER_NAME}"):
        DataDir.claim(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_marker_that_is_a_pipe_is_none_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MARKER_NAME)
    with pytest.raises(DataDirUnusable, match=f"has no valid {MARKER_NAME}"):
        DataDir.claim(tmp_path)


def test_a_directory_keeps_its_owner(tmp_path: Path) -> None:
    first = DataDir.claim(tmp_path)
    first.close()
    second = DataDir.claim(tmp_path)
    second.close()
    assert first.owner == second.owner
    assert re.fullmatch("[0-9a-f]{16}", first.owner)
    another = DataDir.claim(tmp_path / "another")
    another.close()
    assert another.owner != first.owner


@pytest.mark.parametrize("name", ["segments", "records"])
def test_parts_on_another_file_system_are_refused(tmp_path: Path, name: str) -> None:
    with ram_directory() as other:
        if other.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("needs a second file system")
        DataDir.claim(tmp_path).close()
        (tmp_path / name).symlink_to(other)
        with pytest.raises(DataDirUnusable, match=f"must hold {name} on its own file system"):
            DataDir.claim(tmp_path)


def test_a_directory_that_cannot_be_marked_is_refused_and_its_lock_released(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{MARKER_NAME}.new")
    with pytest.raises(DataDirUnusable, match=f"{tmp_path} cannot be made or written to: No such device"):
        DataDir.claim(tmp_path)
    (tmp_path / f"{MARKER_NAME}.new").unlink()
    DataDir.claim(tmp_path).close()


def test_a_named_directory_that_looks_like_a_temporary_one_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    named = tmp_path / "flight-server-data"
    DataDir.claim(named).close()
    stray = tmp_path / "flight-server-stray"
    stray.mkdir()
    (stray / "lock").touch()
    os.mkfifo(tmp_path / "flight-server-fifo")
    abandoned = DataDir.temporary()
    os.close(abandoned._fd)  # as when its process dies
    temporary = DataDir.temporary()
    assert not abandoned.path.exists()
    assert temporary.path.exists()
    temporary.close()
    assert {path.name for path in tmp_path.iterdir()} == {
        "flight-server-data",
        "flight-server-stray",
        "flight-server-fifo",
    }
    DataDir.claim(named).close()


@pytest.mark.long
def test_a_temporary_directory_is_locked_where_python_leaves_assertions_out(tmp_path: Path) -> None:
    program = (
        "from flight_server.storage.data_dir import DataDir\n"
        "first, second = DataDir.temporary(), DataDir.temporary()\n"
        "print(first.path.exists())"
    )
    ended = subprocess.run(
        [sys.executable, "-O", "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "True\n"
