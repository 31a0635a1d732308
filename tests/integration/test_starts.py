"""A start serves what it can: of many datasets, each damaged in its own way, the others; what is not the server's is
left alone.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyarrow import flight

from tests.support import changelogs
from tests.support.damaging import DATABASE, cut, files_of, is_refused, quarantine
from tests.support.durable import action, get, names, put, put_attempt, segment_bytes, table
from tests.support.faulty_disk import FaultyServer
from tests.support.rates import RATES, rates_of

WHOLE = [f"whole-{number}" for number in range(5)]
ROWS = {
    "dataset": "generation",
    "partition": "rows",
    "file": "size_bytes",
    "frames": "records",
    "transaction_id": "entry",
}
"""Tables of the records, each with a column whose value is changed behind the server's back."""


def durable(client: flight.FlightClient, name: str, seed: int) -> None:
    action(client, "create", dataset=name, durable=True)
    put(client, table(200, seed=seed), dataset=name)


def staged(client: flight.FlightClient, name: str, seed: int) -> None:
    """A durable dataset with a transaction."""
    body = {"kind": "shuffle", "durable": True, "mode": "new", "write": name}
    generation = action(client, "create", dataset=name, **body)["generation"]
    put_attempt(client, name, {0: table(200, seed=seed)}, generation=generation)
    action(
        client,
        "seal",
        dataset=name,
        generation=generation,
        attempts={"0": "1"},
        transaction={"id": "job", "version": 1},
    )


def test_rows_and_files_that_are_damaged_cost_their_datasets_only(data_dir: Path) -> None:
    with FaultyServer.start(data_dir) as server, closing(flight.connect(server.location)) as client:
        for seed, name in enumerate([*WHOLE, "gone", "cut"]):
            durable(client, name, seed)
        for seed, name in enumerate(ROWS):
            staged(client, f"row-{name}", 100 + seed)
        for name in ("log", "damaged-log"):
            changelogs.create(client, name, RATES, delay_seconds=3600)
            changelogs.put(client, name, rates_of(("EUR", 1, 1.0)))
        assert server.terminate() == 0
    (gone,), (shortened,) = files_of(data_dir, "gone"), files_of(data_dir, "cut")
    gone.unlink()
    cut(shortened, 10)
    with closing(sqlite3.connect(data_dir / DATABASE)) as connection, connection:
        for name, column in ROWS.items():
            changed = f"UPDATE {name} SET {column} = {_other(column)} WHERE {_key(name)} ="  # names above
            connection.execute(f"{changed} (SELECT id FROM dataset WHERE name = ?)", [f"row-{name}"])
        block = "UPDATE version SET block = zeroblob(length(block)) WHERE dataset ="
        connection.execute(f"{block} (SELECT id FROM dataset WHERE name = 'damaged-log')")
    left = {name: files_of(data_dir, name) for name in [*WHOLE, "cut", *(f"row-{name}" for name in ROWS)]}
    damaged = {"gone", "cut", *(f"row-{name}" for name in ROWS)}
    for _ in range(2):
        with FaultyServer.start(data_dir) as server, closing(flight.connect(server.location)) as client:
            for seed, name in enumerate(WHOLE):
                assert get(client, name) == table(200, seed=seed)
            for name in damaged:
                assert is_refused(client, name), name
            assert changelogs.snapshot(client, "log") == [("EUR", 1, 1.0)]
            with pytest.raises(flight.FlightInternalError, match="data loss"):
                changelogs.snapshot(client, "damaged-log")
            assert {entry["dataset"] for entry in quarantine(client)} == {*damaged, "damaged-log"}
            server.kill()
        assert {name: files_of(data_dir, name) for name in left} == left


def _key(name: str) -> str:
    return "id" if name == "dataset" else "dataset"


def _other(column: str) -> str:
    match column:
        case "rows" | "size_bytes":
            return f"{column} + 1"
        case "records":
            return "zeroblob(length(records))"
    return f"{column} || ' '"


def test_what_is_not_the_servers_is_left_alone_and_named(data_dir: Path) -> None:
    with FaultyServer.start(data_dir) as server, closing(flight.connect(server.location)) as client:
        durable(client, "d", 1)
        (own,) = files_of(data_dir, "d")
        assert server.terminate() == 0
    folder = own.parent
    outside = data_dir.parent / "outside"
    outside.write_bytes(b"somebody's")
    owner, _, number = own.name.partition("-")
    other = "0" * 16 if owner != "0" * 16 else "1" * 16
    foreign = [
        folder / "notes.txt",
        folder / f"{other}-{number}",  # of another data directory
        folder / f"{owner}-{number}.bak",
        folder / f"{owner}-{'0' * 15}.frames",
        folder / "lost+found" / "file",
        folder / f"{owner}-{'a' * 16}.frames" / "file",  # a directory
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"somebody's")
    link, fifo = folder / f"{owner}-{'b' * 16}.frames", folder / f"{owner}-{'c' * 16}.run"
    link.symlink_to(outside)
    os.mkfifo(fifo)
    garbage = folder / f"{owner}-{'d' * 16}.frames"
    garbage.write_bytes(b"of a server that was killed")
    for _ in range(2):
        with FaultyServer.start(data_dir) as server, closing(flight.connect(server.location)) as client:
            assert names(client) == {"d"}
            assert get(client, "d") == table(200, seed=1)
            listed = action(client, "statistics")["foreign_files"]
            in_folder = {folder / path.relative_to(folder).parts[0] for path in foreign} | {link, fifo}
            assert {*map(Path, listed)} == in_folder
            assert not garbage.exists()
            assert action(client, "statistics")["disk"]["used_bytes"] == own.stat().st_size
            server.kill()
    with FaultyServer.start(data_dir) as server, closing(flight.connect(server.location)) as client:
        action(client, "drop", dataset="d")
        server.terminate()
    assert all(path.read_bytes() == b"somebody's" for path in [*foreign, outside])
    assert link.is_symlink()
    assert fifo.is_fifo()
    assert not own.exists()


def test_files_of_a_server_without_a_data_directory_name_no_database(data_dir: Path) -> None:
    with FaultyServer.start(data_dir) as server, closing(flight.connect(server.location)) as client:
        put(client, table(200), dataset="volatile")
        assert server.terminate() == 0
    with closing(sqlite3.connect(data_dir / DATABASE)) as connection:
        assert connection.execute("SELECT count(*) FROM dataset").fetchall() == [(0,)]
    assert segment_bytes(data_dir) == 0
