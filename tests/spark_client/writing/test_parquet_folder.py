"""Commits below a path: old or new files as a whole, wherever a driver is killed, and a second one that cleans up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql.types import LongType, StructType

from flight_server.protocol.errors import InvalidRequest, NotFound
from spark_client.steps import Pass, reports_of
from spark_client.writing import FileStage, ParquetFolder, Place, WrittenFile, folder_write, layout_of
from spark_client.writing.folder_write import HIDDEN, FolderWrite, Journal
from spark_client.writing.storage_place import _AT_ONCE
from tests.spark_client.writing.test_folder_write import die

LAYOUT = layout_of(StructType().add("id", LongType()), (), "a test", compression="none")
OLD, NEW = [1, 2], [10, 20, 30]
_CHANGES = {"create_dir", "open_output_stream", "move", "delete_file", "delete_dir"}


class Killed(BaseException):
    """In the place of a process's end."""


class Mortal:
    """A file system whose process is killed at a change of this number, before it or after it."""

    def __init__(self, filesystem: Any, left: int | None = None, *, after: bool = False) -> None:
        self.filesystem, self.left, self.after = filesystem, left, after

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.filesystem, name)
        if name not in _CHANGES:
            return call

        def change(*arguments: Any, **options: Any) -> Any:
            if self.left is None:
                return call(*arguments, **options)
            if self.left == 0 and self.after:
                call(*arguments, **options)
            if self.left <= 0:
                self.left -= 1
                raise Killed
            self.left -= 1
            return call(*arguments, **options)

        return change


def folder_of(path: Path, mode: str = "append", filesystem: Any = None) -> ParquetFolder:
    return ParquetFolder(
        Place(filesystem or fs.LocalFileSystem(), str(path)), mode, "write.parquet", str(path)
    )


def staged_files(
    folder: ParquetFolder, write: FolderWrite, ids: list[int]
) -> tuple[FileStage, list[WrittenFile]]:
    """A file for each id, by as many tasks."""
    stage = FileStage(folder.place, write.folder, LAYOUT)
    files: list[WrittenFile] = []
    for id_ in ids:
        batch = pa.record_batch({"id": pa.array([id_], pa.int64())})
        for report in stage.run(iter([batch]), Pass()):
            files += map(WrittenFile.of, reports_of(report.column(0).to_pylist()))
    return stage, files


def written(folder: ParquetFolder, ids: list[int]) -> None:
    with folder.staged() as write:
        folder.commit(write, *staged_files(folder, write, ids))


def ids_in(path: Path) -> list[int]:
    """What readers see that pass over hidden names."""
    files = [file for file in path.rglob("*.parquet") if HIDDEN not in file.parts] if path.exists() else []
    return sorted(id_ for file in files for id_ in pq.read_table(file)["id"].to_pylist())


def left_over(path: Path) -> set[str]:
    return {name.name for name in path.iterdir() if not name.name.startswith("part-")}


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a kill by number is the same one each time."""
    monkeypatch.setattr("spark_client.writing.storage_place._AT_ONCE", 1)
    assert _AT_ONCE > 1


def test_an_overwrite_leaves_no_empty_folders_and_nothing_of_others(tmp_path: Path) -> None:
    for name in ("k=1/j=2/part-0.parquet", "notes.txt", "_hidden/left", ".left"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    written(folder_of(tmp_path, "overwrite"), NEW)
    assert left_over(tmp_path) == {"_SUCCESS", "_hidden", ".left"}


def file_in(folder: ParquetFolder, write: FolderWrite, name: str) -> WrittenFile:
    _stage, (file,) = staged_files(folder, write, [100])
    return replace(file, folder=name)


@pytest.mark.parametrize("name", [f"k={'x' * 300}", "k=\0", "blocked"])
def test_a_folder_that_cannot_be_fails_before_anything_is_visible(tmp_path: Path, name: str) -> None:
    written(folder_of(tmp_path), OLD)
    (tmp_path / "blocked").touch()
    folder = folder_of(tmp_path, "append")
    with folder.staged() as write:
        stage, files = staged_files(folder, write, NEW)
        with pytest.raises(InvalidRequest, match="cannot have a file of this write"):
            folder.commit(write, stage, [*files, file_in(folder, write, name)])
    assert ids_in(tmp_path) == OLD
    assert left_over(tmp_path) == {"_SUCCESS", "blocked"}
    written(folder_of(tmp_path), NEW)
    assert ids_in(tmp_path) == sorted(OLD + NEW)


def test_a_journal_with_names_that_cannot_be_is_undone(tmp_path: Path) -> None:
    written(folder_of(tmp_path), OLD)
    for name in (f"k={'x' * 300}/a", "k=\0/a", "_SUCCESS/a"):
        dead = folder_of(tmp_path).staged().__enter__()
        dead.place.put("part-x.parquet", "")
        dead.begin_commit(
            Journal({f"{dead.folder}/1": "part-x.parquet", f"{dead.folder}/2": name}, marked=True)
        )
        die(dead)
        sweep(tmp_path)
        assert ids_in(tmp_path) == OLD
        assert left_over(tmp_path) == {"_SUCCESS"}


def test_what_cannot_be_settled_is_left_to_later_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder_of(tmp_path), OLD)
    kill(tmp_path, "overwrite", 10, after=False)
    with monkeypatch.context() as refusing:
        refusing.setattr(
            ParquetFolder, "_finish", lambda *_: (_ for _ in ()).throw(PermissionError("read only"))
        )
        refusing.setattr(Place, "delete_all", lambda *_: (_ for _ in ()).throw(PermissionError("read only")))
        sweep(tmp_path)
    sweep(tmp_path)
    assert ids_in(tmp_path) in (OLD, NEW)
    assert left_over(tmp_path) == {"_SUCCESS"}


@pytest.mark.parametrize("gone", ["of the new ones", "and an old one is another one"])
def test_a_journal_is_not_believed_about_what_others_did_since(tmp_path: Path, gone: str) -> None:
    written(folder_of(tmp_path), OLD)
    for change in itertools.count():
        path = tmp_path / str(change)
        written(folder_of(path), OLD)
        old, *_ = sorted(path.glob("part-*"))
        assert kill(path, "overwrite", change, after=True), "killed after its commit point"
        if not old.exists():
            break
    new, *_ = sorted(path.glob("part-*"))
    new.unlink()
    if gone != "of the new ones":
        pq.write_table(pa.table({"id": [7]}), old)
    sweep(path)
    left = ids_in(path)
    assert set(left) - {7, *OLD} == {20, 30}
    assert (7 in left) == (gone != "of the new ones")


def test_old_files_that_may_not_be_deleted_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder_of(tmp_path), OLD)
    with monkeypatch.context() as refusing:
        refusing.setattr("spark_client.writing.storage_place.os.access", lambda *_, **__: False)
        with pytest.raises(InvalidRequest, match="may not be deleted, so they stay"):
            written(folder_of(tmp_path, "overwrite"), NEW)
    assert ids_in(tmp_path) == OLD


def test_a_folder_in_the_place_of_the_marker_changes_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").mkdir()
    for ids in (OLD, NEW):
        written(folder_of(tmp_path, "overwrite"), ids)
        assert ids_in(tmp_path) == ids


def test_an_overwrite_removes_a_link_and_nothing_behind_it(tmp_path: Path) -> None:
    (tmp_path / "important").mkdir()
    (tmp_path / "important" / "precious.parquet").touch()
    (tmp_path / "out" / "k=1").mkdir(parents=True)
    (tmp_path / "out" / "k=1" / "link").symlink_to(tmp_path / "important")
    (tmp_path / "out" / "file").symlink_to(tmp_path / "important" / "precious.parquet")
    written(folder_of(tmp_path / "out", "overwrite"), NEW)
    assert ids_in(tmp_path / "out") == NEW
    assert left_over(tmp_path / "out") == {"_SUCCESS"}
    assert (tmp_path / "important" / "precious.parquet").exists()


@pytest.mark.parametrize("below", ["", "out"])
def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path, below: str) -> None:
    link, disk = tmp_path / "link", tmp_path / "disk"
    link.symlink_to(disk)
    with pytest.raises(
        InvalidRequest, match=f"a test: {link} is a link to {disk}, which is not there; make that"
    ):
        Place.of(link / below, None, "a test")
    disk.mkdir()
    Place.of(link / below, None, "a test").mark("x")
    assert (disk / below / "x").exists()


def test_a_delta_table_is_not_written_past_its_log(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(InvalidRequest, match=r"is a Delta table, .*; take write\.delta"):
        written(folder_of(tmp_path, "overwrite"), NEW)


def test_a_file_that_is_missing_undoes_the_commit(tmp_path: Path) -> None:
    written(folder_of(tmp_path), OLD)
    folder = folder_of(tmp_path, "overwrite")
    with folder.staged() as write:
        stage, files = staged_files(folder, write, NEW)
        folder.place.delete(f"{write.folder}/{files[1].name}")
        with pytest.raises(NotFound, match="give a path on storage that the driver and all executors share"):
            folder.commit(write, stage, files)
    assert ids_in(tmp_path) == OLD
    assert left_over(tmp_path) == {"_SUCCESS"}


def kill(path: Path, mode: str, change: int, *, after: bool) -> bool:
    """A commit that is killed at a change; False if it made fewer."""
    folder = folder_of(path, mode, Mortal(fs.LocalFileSystem()))
    write = folder.staged().__enter__()
    stage, files = staged_files(folder, write, NEW)
    folder.place.filesystem.left, folder.place.filesystem.after = change, after
    try:
        folder.commit(write, stage, files)
        write.__exit__()
    except Killed:
        return True
    finally:
        die(write)
    return False


def sweep(path: Path, filesystem: Any = None) -> None:
    """What every write does as it begins."""
    folder = folder_of(path, "ignore", filesystem)
    with folder.staged():
        assert not folder.is_wanted()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_driver_that_is_killed_at_any_call_leaves_the_old_or_the_new(
    tmp_path: Path, mode: str, after: bool
) -> None:
    new = sorted(OLD + NEW) if mode == "append" else NEW
    seen = []
    for change in itertools.count():
        path = tmp_path / str(change)
        written(folder_of(path), OLD)
        killed = kill(path, mode, change, after=after)
        at_least = set(ids_in(path))
        assert set(OLD) <= at_least or set(NEW) <= at_least, "old files go after the last new one has come"
        sweep(path)
        seen.append(ids_in(path))
        assert left_over(path) == {"_SUCCESS"}
        if not killed:
            break
    assert all(each in (OLD, new) for each in seen)
    # From the commit point on it is the new one.
    assert seen == sorted(seen, key=[OLD, new].index)
    assert seen[0] == OLD
    assert seen[-1] == new
    assert len(seen) > 12


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_so_does_one_whose_successors_are_killed_as_they_clean_up(tmp_path: Path, mode: str) -> None:
    new = sorted(OLD + NEW) if mode == "append" else NEW
    for change in itertools.count():
        outcomes = set()
        for second in itertools.count():
            path = tmp_path / f"{change}-{second}"
            written(folder_of(path), OLD)
            killed = kill(path, mode, change, after=False)
            mortal = Mortal(fs.LocalFileSystem(), second)
            swept = closing_dead(partial(sweep, path, mortal))
            sweep(path)
            assert left_over(path) == {"_SUCCESS"}
            outcomes.add(tuple(ids_in(path)))
            if swept:
                break
        assert len(outcomes) == 1
        assert outcomes <= {tuple(OLD), tuple(new)}
        if not killed:
            return


def closing_dead(call: Callable[[], None]) -> bool:
    """Whether the call ended before it was killed; what it began is of a dead process."""
    before = set(folder_write._going_on)
    try:
        call()
    except Killed:
        return False
    finally:
        folder_write._going_on.intersection_update(before)
    return True


def test_several_at_once_clean_up_after_the_same_dead_driver(tmp_path: Path) -> None:
    for change in range(8, 24, 3):
        path = tmp_path / str(change)
        written(folder_of(path), OLD)
        kill(path, "overwrite", change, after=False)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(written, [folder_of(path)] * 4, [[100 + number] for number in range(4)]))
        assert [id_ for id_ in ids_in(path) if id_ >= 100] == [100, 101, 102, 103]
        assert [id_ for id_ in ids_in(path) if id_ < 100] in (OLD, NEW)
        assert left_over(path) == {"_SUCCESS"}


def test_of_overwrites_at_once_one_is_there_as_a_whole(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda number: written(folder_of(tmp_path, "overwrite"), [number] * 3), range(12)))
    ids = ids_in(tmp_path)
    assert len(ids) == 3
    assert len(set(ids)) == 1


def test_a_file_system_of_fsspec_keeps_the_same_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec = pytest.importorskip("fsspec")
    place = Place.of(tmp_path / "x", fsspec.filesystem("file"), "a test")
    folder = ParquetFolder(place, "overwrite", "a test", "x")
    for ids in (OLD, NEW):
        written(folder, ids)
        assert ids_in(tmp_path / "x") == ids
    assert left_over(tmp_path / "x") <= {"_SUCCESS", HIDDEN}
    assert list((tmp_path / "x").glob(f"{HIDDEN}/*")) == []
    monkeypatch.chdir(tmp_path)
    written(
        ParquetFolder(
            Place.of("../" + tmp_path.name + "/x", fsspec.filesystem("file"), "a test"), "append", "", ""
        ),
        OLD,
    )
    assert ids_in(tmp_path / "x") == sorted(OLD + NEW)
    assert list((tmp_path / "x").glob(f"{HIDDEN}/*")) == []
    with closing(fsspec.filesystem("memory").open("/file", "w")) as file:
        file.write("x")
    with pytest.raises(InvalidRequest, match="is a file; give a folder"):
        Place.of("/file", fsspec.filesystem("memory"), "a test")
