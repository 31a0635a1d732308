"""Which directories a server takes for its own, and that it leaves all others as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flight_server.datasets.catalogue import Catalogue
from flight_server.memory.accounts import Budget
from flight_server.records import OtherFormat
from flight_server.storage.data_dir import DataDir, DataDirInUse, DataDirUnusable
from flight_server.storage.ownership import FORMAT, MARKER_NAME, Marker, make_dataset_directory
from flight_server.storage.segments import SegmentWriter
from flight_server.tiering.recovery import recover
from tests.support.catalogues import new_catalogue


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below: kind and content; a FIFO is not opened."""
    return {
        str(path.relative_to(directory)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in directory.rglob("*")
    }


def started(path: Path) -> Catalogue:
    """What a server that starts on the directory does with it."""
    claimed = DataDir.claim(path)
    catalogue = new_catalogue(None, 16 << 20)
    catalogue.disk.use(path, owner=claimed.owner, lasting=True)
    try:
        recover(catalogue)
    finally:
        catalogue.close()
        claimed.close()
    return catalogue


def test_a_directory_has_one_server_at_a_time(tmp_path: Path) -> None:
    first = DataDir.claim(tmp_path)
    with pytest.raises(DataDirInUse, match=f"{tmp_path} is in use by another server .process {os.getpid()}"):
        DataDir.claim(tmp_path)
    first.close()
    first.close()
    DataDir.claim(tmp_path).close()


@pytest.mark.parametrize("name", ["datasets", "flight-server-notes", "report.csv"])
def test_a_directory_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "sales-2024").mkdir(parents=True)
    (tmp_path / name / "sales-2024" / "manifest").write_text("cargo")
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


def test_a_directory_that_another_version_has_written_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    DataDir.claim(tmp_path).close()
    said = json.loads((tmp_path / MARKER_NAME).read_bytes())
    (tmp_path / MARKER_NAME).write_text(json.dumps({**said, "format": FORMAT + 1}))
    before = snapshot(tmp_path)
    with pytest.raises(DataDirUnusable, match=f"in format {FORMAT + 1}, and this version reads {FORMAT}"):
        DataDir.claim(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_directory_that_cannot_be_marked_is_refused_and_its_lock_released(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{MARKER_NAME}.new")
    with pytest.raises(DataDirUnusable, match=f"{tmp_path} cannot be made or written to: No such device"):
        DataDir.claim(tmp_path)
    (tmp_path / f"{MARKER_NAME}.new").unlink()
    DataDir.claim(tmp_path).close()


def test_what_lies_among_the_datasets_and_is_not_the_server_s_stays_and_stops_no_start(
    tmp_path: Path,
) -> None:
    data_dir, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    DataDir.claim(data_dir).close()
    started(data_dir)
    datasets = data_dir / "datasets"
    elsewhere.mkdir()
    (elsewhere / "manifest").write_text("not to be followed")
    (datasets / "file").write_text("text")
    (datasets / "backup" / "deep").mkdir(parents=True)
    (datasets / "backup" / "manifest").write_text("cargo")
    (datasets / "link").symlink_to(elsewhere)
    (datasets / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(datasets / "fifo")
    another = Marker("dataset", "another-owner").encode().decode()
    for number, marker in enumerate(("", "{}", "[1]", "[" * 100_000, another)):
        (datasets / f"marked-{number}").mkdir()
        (datasets / f"marked-{number}" / MARKER_NAME).write_text(marker)
    (datasets / "trap").mkdir()
    os.mkfifo(datasets / "trap" / MARKER_NAME)
    closed = datasets / "closed"
    closed.mkdir(mode=0)
    before = snapshot(tmp_path)
    catalogue = started(data_dir)
    before["data/lock"] = snapshot(tmp_path)["data/lock"]
    assert snapshot(tmp_path) == before
    assert sorted(catalogue.disk.foreign) == sorted(map(str, datasets.iterdir()))


def test_of_an_unsealed_dataset_only_what_the_server_has_made_is_deleted(tmp_path: Path) -> None:
    claimed = DataDir.claim(tmp_path)
    marker = Marker("dataset", claimed.owner, "d", "1")
    claimed.close()
    for name in ("alone", "shared"):
        writer = SegmentWriter(
            tmp_path / "datasets" / name, Budget(1 << 20, None).disk, 1 << 20, marker=marker
        )
        (slice_,) = writer.append([b"x"])
        slice_.segment.keep = True  # as after a crash
        del slice_
    (tmp_path / "datasets" / "shared" / "notes.txt").write_text("mine")
    make_dataset_directory(tmp_path / "datasets" / "half", marker)
    (tmp_path / "datasets" / "half").rename(tmp_path / "staging" / "half")
    started(tmp_path)
    assert {path.name for path in (tmp_path / "datasets").iterdir()} == {"shared"}
    assert {path.name for path in (tmp_path / "datasets" / "shared").iterdir()} == {MARKER_NAME, "notes.txt"}
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_dataset_of_another_version_ends_the_start_and_stays(tmp_path: Path) -> None:
    claimed = DataDir.claim(tmp_path)
    make_dataset_directory(tmp_path / "datasets" / "d", Marker("dataset", claimed.owner, "d", "1"))
    claimed.close()
    said = json.loads((tmp_path / "datasets" / "d" / MARKER_NAME).read_bytes())
    (tmp_path / "datasets" / "d" / MARKER_NAME).write_text(json.dumps({**said, "format": 99}))
    before = snapshot(tmp_path / "datasets")
    with pytest.raises(OtherFormat, match="format 99"):
        started(tmp_path)
    assert snapshot(tmp_path / "datasets") == before


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
