"""Disks that are full, broken, read-only or gone, under real servers.

Each test says what the client is told, that what was acknowledged stays readable meanwhile, and that
everything works again when the disk does.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support import changelogs
from tests.support.damaging import DATABASE, files_of
from tests.support.durable import action, files, get, names, put, put_attempt, segment_bytes
from tests.support.faulty_disk import FaultyServer
from tests.support.polling import eventually
from tests.support.rates import RATES, rates_of
from tests.support.server_process import ServerProcess, program

# Of the server, where a producer is to be refused: longer than a disk that works ever needs for a write.
PATIENCE_SECONDS = 2.0
# 5 MiB of them for frames: SMALL fits into RAM, and BIG does not.
MEMORY: dict[str, Any] = {"memory_limit": "8MiB", "segment_size": "1MiB"}
SMALL = pa.table({"bytes": [os.urandom(1 << 16) for _ in range(16)]})
BIG = pa.table({"bytes": [os.urandom(1 << 16) for _ in range(128)]})

Servers = Callable[..., FaultyServer]


@pytest.fixture
def servers(faulty_server: Servers, tmp_path: Path) -> Servers:
    return partial(faulty_server, tmp_path / "data", **MEMORY)


def write(client: flight.FlightClient, data: pa.Table, dataset: str, **command: Any) -> None:
    put(client, data, chunk_rows=4, dataset=dataset, **command)


def refused(call: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(flight.FlightUnavailableError) as caught:
        call()
    refusal: dict[str, Any] = json.loads(caught.value.extra_info)
    assert refusal["retryable"] is True
    return refusal


def trouble(client: flight.FlightClient) -> str | None:
    said: str | None = action(client, "why")["disk_trouble"]
    return said


@pytest.mark.parametrize("error", ["ENOSPC", pytest.param("EIO", marks=pytest.mark.long)])
def test_a_disk_that_takes_nothing_refuses_producers_and_loses_nothing(servers: Servers, error: str) -> None:
    server = servers(budget_deadline_seconds=PATIENCE_SECONDS)
    with closing(flight.connect(server.location)) as client:
        write(client, SMALL, "in-ram")
        write(client, BIG, "on-disk")
        server.fail(pwritev=error, open=error)
        refusal = refused(lambda: write(client, BIG, "refused"))
        assert refusal["error"] == "out_of_budget"
        assert os.strerror(getattr(errno, error)) in refusal["message"]
        assert trouble(client) is not None
        assert trouble(client) == action(client, "statistics")["disk"]["trouble"]
        assert get(client, "in-ram") == SMALL
        assert get(client, "on-disk") == BIG
        server.heal()
        write(client, BIG, "refused")
        assert trouble(client) is None
        assert get(client, "refused") == BIG
        for name in names(client):
            action(client, "drop", dataset=name)
        eventually(lambda: action(client, "statistics")["disk"]["used_bytes"], 0)


def test_a_producer_is_held_back_while_the_disk_is_full_and_goes_on_when_it_is_not(servers: Servers) -> None:
    server = servers(budget_deadline_seconds=30)
    with closing(flight.connect(server.location)) as client:
        server.fail(pwritev="ENOSPC")
        producer = threading.Thread(target=write, args=(client, BIG, "d"))
        producer.start()
        eventually(lambda: waits_for(client, "budget"), expected=True)
        eventually(lambda: trouble(client) is not None, expected=True)
        server.heal()
        producer.join()
        assert get(client, "d") == BIG


def waits_for(client: flight.FlightClient, what: str) -> bool:
    return any(wait["waiting_for"] == what for wait in action(client, "why")["waits"])


@pytest.mark.parametrize("function", ["fsync", "wal_write", "wal_sync"])
def test_a_seal_waits_for_the_disk_and_is_then_as_good_as_any(servers: Servers, function: str) -> None:
    server = servers(budget_deadline_seconds=30)
    with closing(flight.connect(server.location)) as client:
        action(client, "create", dataset="d", durable=True)
        server.fail(**{function: "EIO"})
        producer = threading.Thread(target=write, args=(client, SMALL, "d"))
        producer.start()
        eventually(lambda: waits_for(client, "disk") and trouble(client) is not None, expected=True)
        server.heal()
        producer.join()
        assert trouble(client) is None
        assert get(client, "d") == SMALL
    server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert get(client, "d") == SMALL


def test_frames_that_were_spilled_are_copied_when_their_fsync_failed(
    servers: Servers, tmp_path: Path
) -> None:
    server = servers(budget_deadline_seconds=30)
    with closing(flight.connect(server.location)) as client:
        action(client, "create", dataset="d", durable=True)
        server.fail(fsync="EIO")
        producer = threading.Thread(target=write, args=(client, BIG, "d"))
        producer.start()
        eventually(lambda: waits_for(client, "disk") and trouble(client) is not None, expected=True)
        server.heal()
        producer.join()
    server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert get(client, "d") == BIG
        used_bytes = action(client, "statistics")["disk"]["used_bytes"]
        assert used_bytes == segment_bytes(tmp_path / "data")


@pytest.mark.parametrize("functions", [("fsync", "fsync"), ("wal_sync", "wal_write")], ids="-".join)
def test_a_seal_that_the_disk_never_took_is_refused_and_nothing_of_it_is_left(
    servers: Servers, tmp_path: Path, functions: tuple[str, str]
) -> None:
    broken, full = functions
    server = servers(budget_deadline_seconds=PATIENCE_SECONDS)
    with closing(flight.connect(server.location)) as client:
        action(client, "create", dataset="d", durable=True)
        server.fail(**{broken: "EIO"})
        assert refused(lambda: write(client, SMALL, "d"))["error"] == "unavailable"
        server.fail(**{full: "ENOSPC"})
        assert refused(lambda: write(client, SMALL, "d"))["error"] == "out_of_budget"
        server.heal()
        write(client, SMALL, "d")
    server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert get(client, "d") == SMALL
        assert files_of(tmp_path / "data", "d") == files(tmp_path / "data")


def test_the_last_commit_of_a_shuffle_that_the_disk_refused_is_made_by_another_attempt(
    tmp_path: Path,
) -> None:
    ours, theirs = SMALL.slice(0, 8), SMALL.slice(8)

    def started() -> ServerProcess:
        return ServerProcess.start(data_dir=tmp_path / "data", budget_deadline_seconds=0.2)

    with started() as server, closing(flight.connect(server.location)) as client:
        action(client, "create", dataset="d", kind="shuffle", producers=2, durable=True)
        put_attempt(client, "d", {0: ours}, producer=0)
        before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        # No file may have more than a byte: all writes fail, whichever library makes them.
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1, before[1]))
        assert refused(lambda: put_attempt(client, "d", {0: SMALL}, producer=1))["error"] == "unavailable"
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)
        put_attempt(client, "d", {0: SMALL}, producer=0, attempt="2")  # its first commit has won
        put_attempt(client, "d", {0: theirs}, producer=1, attempt="2")
        assert get(client, "d") == SMALL
    with started() as server, closing(flight.connect(server.location)) as client:
        assert get(client, "d") == SMALL


@pytest.mark.parametrize("function", [pytest.param("wal_write", marks=pytest.mark.long), "wal_sync"])
def test_an_overwrite_that_fails_leaves_the_old_generation(servers: Servers, function: str) -> None:
    server = servers(budget_deadline_seconds=PATIENCE_SECONDS)
    with closing(flight.connect(server.location)) as client:
        action(client, "create", dataset="d", durable=True)
        write(client, SMALL, "d")
        server.fail(**{function: "EIO"})
        refused(lambda: write(client, BIG, "d", mode="overwrite"))
        assert get(client, "d") == SMALL
        server.heal()
        action(client, "create", dataset="later", durable=True)
        write(client, SMALL, "later")  # from here on no crash brings back what was refused
        assert get(client, "d") == SMALL
    server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert get(client, "d") == SMALL


@pytest.mark.parametrize("function", [pytest.param("wal_write", marks=pytest.mark.long), "wal_sync"])
def test_a_drop_that_the_disk_refuses_changes_nothing_and_may_be_made_again(
    servers: Servers, tmp_path: Path, function: str
) -> None:
    server = servers(budget_deadline_seconds=PATIENCE_SECONDS)
    with closing(flight.connect(server.location)) as client:
        for name in ("d", "other"):
            action(client, "create", dataset=name, durable=True)
            write(client, SMALL, name)
        server.fail(**{function: "EIO"})
        refused(lambda: action(client, "drop", dataset="d"))
        assert names(client) == {"d", "other"}
        server.heal()
        action(client, "drop", dataset="other")
        assert get(client, "d") == SMALL
    server.kill()
    server = servers()
    with closing(flight.connect(server.location)) as client:
        assert names(client) == {"d"}
        assert get(client, "d") == SMALL
        action(client, "drop", dataset="d")
        eventually(lambda: len(files(tmp_path / "data")), 0)


def test_a_file_that_the_disk_keeps_is_deleted_by_the_next_start(servers: Servers, tmp_path: Path) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        action(client, "create", dataset="d", durable=True)
        write(client, SMALL, "d")
        server.fail(unlink="EROFS")
        action(client, "drop", dataset="d")
        assert names(client) == set()
    server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert names(client) == set()
        assert files(tmp_path / "data") == []


def test_a_file_that_the_disk_keeps_is_counted_until_the_server_has_deleted_it(
    servers: Servers, tmp_path: Path
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        for name in ("d", "big"):
            action(client, "create", dataset=name, durable=True)
        write(client, SMALL, "d")
        write(client, BIG, "big")
        used_bytes = action(client, "statistics")["disk"]["used_bytes"]
        server.fail(unlink="EIO")
        for name in ("d", "big"):
            action(client, "drop", dataset=name)
        time.sleep(1.0)  # the duty has tried again
        assert action(client, "statistics")["disk"]["used_bytes"] == used_bytes
        server.heal()
        eventually(lambda: action(client, "statistics")["disk"]["used_bytes"], 0)
        assert files(tmp_path / "data") == []


def test_a_commit_that_a_full_disk_refused_leaves_a_changelog_as_it_was(servers: Servers) -> None:
    server = servers(budget_deadline_seconds=PATIENCE_SECONDS)
    with closing(flight.connect(server.location)) as client:
        changelogs.create(client, "log", RATES, delay_seconds=0.0)
        changelogs.put(client, "log", rates_of(("EUR", 1, 1.0)))
        for function, error in (("wal_write", "ENOSPC"), ("wal_sync", "EIO")):
            server.fail(**{function: error})
            refused(lambda: changelogs.put(client, "log", rates_of(("JPY", 2, 1.0))))
            refused(lambda: action(client, "hold", dataset="log", hold="h", lease_seconds=100))
            assert changelogs.numbers(client, "log")["upper"] == 1
            assert changelogs.numbers(client, "log")["hold_count"] == 0
            server.heal()
        assert changelogs.put(client, "log", rates_of(("GBP", 3, 1.0)))["version"] == 2
        rows = changelogs.snapshot(client, "log")
        assert {currency for currency, _, _ in rows} == {"EUR", "GBP"}
    server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert changelogs.snapshot(client, "log") == rows
        assert changelogs.numbers(client, "log")["hold_count"] == 0


def test_records_that_another_process_has_locked_refuse_durable_writes_and_nothing_else(
    servers: Servers, tmp_path: Path
) -> None:
    server = servers(budget_deadline_seconds=PATIENCE_SECONDS)
    with closing(flight.connect(server.location)) as client:
        for name in ("kept", "d"):
            action(client, "create", dataset=name, durable=True)
        write(client, SMALL, "kept")
        with locked(tmp_path / "data" / DATABASE):
            refusal = refused(lambda: write(client, SMALL, "d"))
            assert "locked" in refusal["message"]
            refused(lambda: action(client, "drop", dataset="kept"))
            write(client, SMALL, "volatile")
            assert get(client, "kept") == get(client, "volatile") == SMALL
        write(client, SMALL, "d")
    server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert names(client) == {"kept", "d"}
        assert get(client, "kept") == get(client, "d") == SMALL


def test_a_start_over_locked_records_ends_or_serves_and_deletes_nothing(
    servers: Servers, tmp_path: Path
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        action(client, "create", dataset="d", durable=True)
        write(client, SMALL, "d")
    server.kill()
    with locked(tmp_path / "data" / DATABASE):
        try:
            server = servers()
        except RuntimeError as error:
            assert "locked" in str(error)  # noqa: PT017  # it may also serve
        else:
            with closing(flight.connect(server.location)) as client:
                assert get(client, "d") == SMALL
            server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert get(client, "d") == SMALL


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another process has begun a transaction that writes."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def test_a_frame_that_cannot_be_read_now_can_be_read_when_the_disk_is_well_again(servers: Servers) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        action(client, "create", dataset="d", partitions=2)
        write(client, BIG, "d", partition=0)
        write(client, SMALL, "d", partition=1)
        server.fail(pread="EIO")
        refusal = refused(lambda: get(client, "d", 0))
        assert (refusal["error"], refusal["partition"]) == ("read_trouble", 0)
        assert get(client, "d", 1) == SMALL
        server.heal()
        assert get(client, "d", 0) == BIG


def test_what_was_spilled_stays_readable_when_the_directory_vanishes(
    servers: Servers, tmp_path: Path
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        write(client, BIG, "before")
        shutil.rmtree(tmp_path / "data" / "segments")
        write(client, BIG, "after")
        action(client, "create", dataset="durable", durable=True)
        write(client, SMALL, "durable")
        assert get(client, "before") == BIG
        assert get(client, "after") == BIG
        assert trouble(client) is None
    server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert names(client) == {"durable"}


def test_a_disk_that_cannot_be_read_at_the_start_ends_the_start_and_deletes_nothing(
    servers: Servers,
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        action(client, "create", dataset="d", durable=True)
        write(client, SMALL, "d")
    server.kill()
    with pytest.raises(RuntimeError, match="Input/output error"):
        servers(fail={"pread": "EIO"})
    with closing(flight.connect(servers().location)) as client:
        assert get(client, "d") == SMALL


@pytest.mark.long
def test_a_small_file_system_is_used_to_its_end_and_survived(
    tmp_path: Path, flight_server_process: Callable[..., ServerProcess]
) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mounting a file system needs root and a mount namespace")
    script = 'mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"'
    server = flight_server_process(
        command=("unshare", "-m", "sh", "-c", script, tmp_path, sys.executable, "-m", program()),
        data_dir=tmp_path,
        disk_limit="1GiB",
        memory_limit="8MiB",
        segment_size="1MiB",
        budget_deadline_seconds=PATIENCE_SECONDS,
        http_port=-1,
    )
    root = Path(f"/proc/{server.pid}/root{tmp_path}")
    with closing(flight.connect(server.location)) as client:
        for name in ("kept", "small"):
            action(client, "create", dataset=name, durable=True)
        write(client, SMALL, "kept")
        kept = files(root)
        refusal = refused(lambda: write(client, pa.concat_tables([BIG, BIG]), "too-much"))
        assert "No space left on device" in refusal["message"]
        assert get(client, "kept") == SMALL
        action(client, "drop", dataset="too-much")
        eventually(lambda: files(root), kept)
        write(client, BIG.slice(0, 100), "fits")
        assert get(client, "fits") == BIG.slice(0, 100)
        action(client, "drop", dataset="fits")
        eventually(lambda: files(root), kept)
        filler = root / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
        refusal = refused(lambda: write(client, SMALL.slice(0, 1), "small"))
        assert refusal["error"] == "out_of_budget"
        refused(lambda: action(client, "drop", dataset="kept"))
        assert get(client, "kept") == SMALL
        filler.unlink()
        write(client, SMALL.slice(0, 1), "small")
        assert get(client, "small") == SMALL.slice(0, 1)
        action(client, "drop", dataset="kept")
