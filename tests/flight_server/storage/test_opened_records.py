"""A start with damaged records: it serves what is whole, names the rest, and keeps all files."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from flight_server.protocol import Kind
from flight_server.records import DATABASE_NAME, Database, OtherFormat, Quarantine, Quarantined, named_files
from flight_server.records.tables import CHANGELOG, DATASET, FILE, PARTITION, RUN
from flight_server.storage.file_header import FileHeader
from flight_server.storage.folder import Folder
from flight_server.storage.opened_records import RECORDS_NAME, damaged_records, open_records
from tests.support.ram_directory import ram_directory

OWNER = "0123456789abcdef"


class DataDir:
    """A data directory, whose records are open inside ``opened``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = Folder(path / "segments", OWNER)

    @property
    def file(self) -> Path:
        return self.path / RECORDS_NAME / DATABASE_NAME

    @contextmanager
    def opened(self) -> Iterator[Database]:
        with closing(open_records(self.path, self.folder)) as database:
            yield database

    def frames(self, name: str, generation: str, *, durable: bool = True, kind: Kind = Kind.STREAM) -> str:
        path, fd = self.folder.make("run" if kind is Kind.CHANGELOG else "frames")
        os.write(fd, FileHeader(OWNER, name, generation, kind.value, durable).encode())
        os.close(fd)
        return path.name

    def commit(
        self, database: Database, row: int, generation: str = "g1", *, kind: Kind = Kind.STREAM
    ) -> str:
        """Commit a dataset with a file; the file's name."""
        file = self.frames(f"d{row}", generation, kind=kind)

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM dataset WHERE name = ?", (f"d{row}",))
            DATASET.put(connection, [(row, f"d{row}", generation, kind.value, "{}" * 300, None)])
            if kind is Kind.CHANGELOG:
                CHANGELOG.put(connection, [(row, 0, 1, 0.0, RUN.put(connection, [(row, file, 1, "[]")]))])
            else:
                FILE.put(connection, [(row, 0, file, 1)])
                PARTITION.put(connection, [(row, number, 0, 0, 1, 1, 1, 1) for number in range(20)])

        database.submit(change).result()
        return file

    def damage(self, statement: str) -> None:
        """Change rows, but not their checksums."""
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            connection.execute(statement)

    def kill(self) -> dict[str, bytes]:
        """The records as a process that is killed now leaves them; they are put back by :meth:`restore`."""
        return {
            path.name: path.read_bytes() for path in self.file.parent.iterdir() if path.suffix != ".db-shm"
        }

    def restore(self, files: dict[str, bytes]) -> None:
        shutil.rmtree(self.file.parent)
        self.file.parent.mkdir()
        for name, data in files.items():
            (self.file.parent / name).write_bytes(data)


def names(database: Database) -> list[str]:
    return database.read(
        lambda connection: [name for _, name, *_ in DATASET.rows(connection, "1 ORDER BY id")]
    )


def entries(database: Database) -> dict[str, Quarantined]:
    return {f"{entry.dataset}/{entry.generation}": entry for entry in Quarantine(database).entries}


@pytest.fixture
def data_dir() -> Iterator[DataDir]:
    with ram_directory() as path:
        yield DataDir(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b"not a database" * 1000),
        lambda file: file.write_bytes(b""),
        lambda file: file.unlink(),
        lambda file: shutil.rmtree(file.parent),
        lambda file: [path.unlink() for path in file.parent.iterdir()],
        lambda file: [path.write_bytes(b"") for path in file.parent.iterdir()],
    ],
    ids=["text", "empty", "no file", "no folder", "empty folder", "empty files"],
)
def test_records_of_which_nothing_is_left_name_all_files_in_the_quarantine(
    data_dir: DataDir, damage: Callable[[Path], object]
) -> None:
    with data_dir.opened() as database:
        file, run = data_dir.commit(database, 1), data_dir.commit(database, 2, kind=Kind.CHANGELOG)
    volatile = data_dir.frames("v", "g1", durable=False)
    damage(data_dir.file)
    with data_dir.opened() as database:
        assert names(database) == []
        assert {key: entry.files for key, entry in entries(database).items()} == {
            "d1/g1": (file,),
            "d2/g1": (run,),
        }
        assert "no row of it is left: the records were damaged" in entries(database)["d1/g1"].reason
        assert not any(entry.served for entry in entries(database).values())
        data_dir.commit(database, 1, "g2")
    with data_dir.opened() as database:
        assert (names(database), len(entries(database))) == (["d1"], 2)
        kept = {name for entry in entries(database).values() for name in entry.files}
        named = database.read(named_files)
    data_dir.folder.sweep(kept | named, Path.unlink)
    left = {path.name for path in data_dir.folder.path.iterdir()}
    assert {file, run} < left
    assert volatile not in left


def test_the_damaged_records_are_kept_beside_and_not_changed(data_dir: DataDir) -> None:
    with data_dir.opened() as database:
        for row in range(1, 4):
            data_dir.commit(database, row)
        killed = data_dir.kill()
    killed[f"{DATABASE_NAME}-wal"] = killed[f"{DATABASE_NAME}-wal"][:5000]
    data_dir.restore(killed)
    with data_dir.opened():
        pass
    (aside,) = map(Path, damaged_records(data_dir.path))
    assert {path.name: path.read_bytes() for path in aside.iterdir() if path.suffix != ".db-shm"} == killed
    with data_dir.opened():
        pass
    assert damaged_records(data_dir.path) == [str(aside)]


def test_a_damaged_log_that_the_database_does_not_need_costs_nothing(
    data_dir: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with data_dir.opened() as database:
        for row in (1, 2, 3):
            data_dir.commit(database, row, kind=Kind.CHANGELOG if row == 3 else Kind.STREAM)
        log = data_dir.kill()[f"{DATABASE_NAME}-wal"]
    data_dir.frames("d1", "g2")  # garbage
    whole = data_dir.kill()
    assert f"{DATABASE_NAME}-wal" not in whole
    beginning = log[: len(log) // 2]
    data_dir.restore({**whole, f"{DATABASE_NAME}-wal": beginning})
    with data_dir.opened() as database:
        assert (names(database), entries(database)) == (["d1", "d2", "d3"], {})
        data_dir.commit(database, 4)
    (aside,) = map(Path, damaged_records(data_dir.path))
    assert (aside / f"{DATABASE_NAME}-wal").read_bytes() == beginning
    with data_dir.opened() as database:
        assert names(database) == ["d1", "d2", "d3", "d4"]
    assert damaged_records(data_dir.path) == [str(aside)]


def test_a_server_that_never_had_a_durable_dataset_starts_with_what_it_spilled(data_dir: DataDir) -> None:
    with data_dir.opened():
        data_dir.frames("v", "g1", durable=False)
        killed = data_dir.kill()
    data_dir.restore(killed)
    with data_dir.opened() as database:
        assert entries(database) == {}
    assert damaged_records(data_dir.path) == []


def test_a_damaged_page_does_not_hide_that_the_last_transactions_are_missing(data_dir: DataDir) -> None:
    with data_dir.opened() as database:
        data_dir.commit(database, 1, kind=Kind.CHANGELOG)
        old, behind = data_dir.commit(database, 2), data_dir.kill()
        data_dir.commit(database, 2, "g2")
        witness = data_dir.kill()["witness"]
    data_dir.restore({**behind, "witness": witness})
    data_dir.damage("INSERT INTO quarantine VALUES ('broken', 'g', 'r', 't', '[]', 0, 1)")
    with data_dir.opened() as database:
        assert names(database) == ["d1"]
        assert entries(database)["d2/g1"].files == (old,)
        assert entries(database)["d1/g1"].served


def test_a_page_that_is_damaged_costs_its_datasets_only(data_dir: DataDir) -> None:
    with data_dir.opened() as database:
        files = {f"d{row}": data_dir.commit(database, row) for row in range(1, 301)}
    data = bytearray(data_dir.file.read_bytes())
    page = data.index(b"d150g1stream") // 4096 * 4096
    data[page : page + 8] = b"\xff" * 8
    data_dir.file.write_bytes(data)
    with data_dir.opened() as database:
        served, lost = names(database), entries(database)
        assert 200 < len(served) < 300
        assert "d150" not in served
        assert sorted([*served, *(entry.dataset for entry in lost.values())]) == sorted(files)
        assert all(entry.files == (files[entry.dataset],) for entry in lost.values())
        rows = database.read(lambda connection: list(PARTITION.rows(connection)))
        assert len(rows) == 20 * len(served)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE dataset SET facts = '[]' WHERE id = 2",
        "UPDATE file SET size_bytes = 7 WHERE dataset = 2",
        "UPDATE partition SET rows = 7 WHERE dataset = 2 AND number = 11",
    ],
)
def test_records_that_are_replaced_lose_the_datasets_with_damaged_rows(
    data_dir: DataDir, statement: str
) -> None:
    with data_dir.opened() as database:
        files = [data_dir.commit(database, row) for row in (1, 2, 3)]
        aside = Quarantined.now("q", "g", "a bit has flipped", [data_dir.frames("q", "g")])
        database.submit(lambda connection: None).result()
        put = Quarantine(database)
        put.note(aside)
        database.submit(lambda connection: None).result()
    data_dir.damage(statement)
    data_dir.damage("INSERT INTO quarantine VALUES ('broken', 'g', 'r', 't', '[]', 0, 1)")
    with data_dir.opened() as database:
        assert names(database) == ["d1", "d3"]
        assert entries(database).keys() == {"d2/g1", "q/g"}
        assert entries(database)["q/g"] == aside
        assert entries(database)["d2/g1"].files == (files[1],)
        assert "a row of it is damaged, or missing" in entries(database)["d2/g1"].reason


def test_an_older_generation_is_not_served_when_records_are_behind_and_a_newer_one_may_be_lost(
    data_dir: DataDir,
) -> None:
    with data_dir.opened() as database:
        old, other = data_dir.commit(database, 1), data_dir.commit(database, 2)
        behind = data_dir.kill()
        new = data_dir.commit(database, 1, "g2")
        witness = data_dir.kill()["witness"]
    data_dir.restore({**behind, "witness": witness})
    with data_dir.opened() as database:
        assert names(database) == ["d2"]
        lost = entries(database)
        assert {key: entry.files for key, entry in lost.items()} == {"d1/g1": (old,), "d1/g2": (new,)}
        assert "g2: the last changes may be missing" in lost["d1/g1"].reason
        assert "its log was cut or changed, or an older copy was put back" in lost["d1/g2"].reason
        assert other in database.read(named_files)


def test_an_earlier_state_is_not_served_when_an_append_to_it_may_be_lost(data_dir: DataDir) -> None:
    with data_dir.opened() as database:
        file, behind = data_dir.commit(database, 1), data_dir.kill()
        appended = data_dir.frames("d1", "g1")
        database.submit(lambda connection: FILE.put(connection, [(1, 1, appended, 1)])).result()
        witness = data_dir.kill()["witness"]
    data_dir.restore({**behind, "witness": witness})
    with data_dir.opened() as database:
        assert names(database) == []
        assert entries(database)["d1/g1"].files == tuple(sorted([file, appended]))


def test_garbage_costs_no_dataset_when_only_a_page_is_damaged(data_dir: DataDir) -> None:
    with data_dir.opened() as database:
        data_dir.commit(database, 1)
        data_dir.commit(database, 2)
        data_dir.commit(database, 3, kind=Kind.CHANGELOG)
    data_dir.frames("d1", "g1")
    data_dir.frames("d2", "g2")
    data_dir.damage("INSERT INTO quarantine VALUES ('broken', 'g', 'r', 't', '[]', 0, 1)")
    with data_dir.opened() as database:
        assert names(database) == ["d1", "d2", "d3"]
        assert entries(database).keys() == {"d2/g2"}


def test_a_changelog_whose_last_versions_may_be_lost_is_served_and_marked(data_dir: DataDir) -> None:
    with data_dir.opened() as database:
        file, behind = data_dir.commit(database, 1, kind=Kind.CHANGELOG), data_dir.kill()
        run = data_dir.frames("d1", "g1", kind=Kind.CHANGELOG)
        database.submit(lambda connection: RUN.put(connection, [(1, run, 2, "[]")])).result()
        witness = data_dir.kill()["witness"]
    data_dir.restore({**behind, "witness": witness})
    with data_dir.opened() as database:
        assert names(database) == ["d1"]
        (entry,) = entries(database).values()
        assert (entry.served, entry.files) == (True, tuple(sorted([file, run])))
        assert "its last versions may be missing" in entry.reason


def test_records_of_another_format_are_refused_and_left_as_they_are(data_dir: DataDir) -> None:
    with data_dir.opened() as database:
        data_dir.commit(database, 1)
    data_dir.damage("PRAGMA user_version = 99")
    before = data_dir.file.read_bytes()
    with pytest.raises(OtherFormat), data_dir.opened():
        pass
    assert data_dir.file.read_bytes() == before
    assert damaged_records(data_dir.path) == []


@pytest.mark.parametrize("renames", [0, 1])
def test_a_start_that_ends_while_it_replaces_the_records_is_made_good_by_the_next(
    data_dir: DataDir, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    with data_dir.opened() as database:
        for row in (1, 2):
            data_dir.commit(database, row)
    data_dir.damage("UPDATE file SET size_bytes = 7 WHERE dataset = 2")
    data_dir.damage("INSERT INTO quarantine VALUES ('broken', 'g', 'r', 't', '[]', 0, 1)")
    rename, done = Path.rename, 0

    def ends(path: Path, target: Path) -> Path:
        nonlocal done
        if done == renames:
            raise OSError("killed")
        done += 1
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", ends)
        with pytest.raises(OSError, match="killed"), data_dir.opened():
            pass
    with data_dir.opened() as database:
        assert (names(database), list(entries(database))) == (["d1"], ["d2/g1"])
    assert len(damaged_records(data_dir.path)) == 1
    assert sorted(path.name for path in data_dir.path.iterdir() if "damaged" not in path.name) == [
        "records",
        "segments",
    ]


def test_a_file_in_the_place_of_the_records_ends_the_start(data_dir: DataDir) -> None:
    (data_dir.path / RECORDS_NAME).write_text("cargo")
    with pytest.raises(OSError, match="records"), data_dir.opened():
        pass
    assert (data_dir.path / RECORDS_NAME).read_text() == "cargo"
