"""A broadcast is one mapped file per host, for real processes, and an error when it is gone."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from flight_server.protocol.errors import Conflict, InvalidRequest, NotFound, Unavailable
from spark_client import Broadcast, Copies, ShuffleClient
from spark_client.broadcast import SmallTable
from spark_client.hosts import host_files
from tests.support.broadcast_copies import hosts_of
from tests.support.rooms import ROOT
from tests.support.server_process import ServerProcess

TABLE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "c"]})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Where this test's host files are."""
    return tmp_path


@pytest.fixture
def client(empty_server: ServerProcess, base: Path) -> Iterator[ShuffleClient]:
    copies = Copies((str(base),))
    with ShuffleClient(empty_server.location, copies=copies) as found:
        yield found


def files(base: Path) -> list[Path]:
    return sorted(base.glob("*/*.arrows"))


def test_the_table_is_what_was_broadcast_and_fetched_once(client: ShuffleClient, base: Path) -> None:
    gets = client.statistics()["gets"]
    shared = client.broadcast(TABLE, name="countries")
    assert files(base) == [], "nothing is fetched before a task asks"
    assert shared.table().equals(TABLE)
    assert shared.table() is shared.table()
    assert len(files(base)) == 1
    assert client.statistics()["gets"] == gets + 1
    assert (shared.name, shared.rows, shared.schema) == ("countries", 3, TABLE.schema)


def test_a_small_table_is_read_where_the_host_keeps_no_copy(
    client: ShuffleClient, empty_server: ServerProcess, base: Path
) -> None:
    # Copies of drivers that earlier tests have killed stay listed.
    before_bytes = client.statistics()["memory"]["used_bytes"]
    mapped = SmallTable(client.broadcast(TABLE))
    assert mapped.table() is mapped.broadcast.table()
    assert len(files(base)) == 1
    mapped.broadcast.destroy()
    assert files(base) == []
    assert client.datasets() == []
    assert client.statistics()["memory"]["used_bytes"] == before_bytes, "the server does not list this copy"
    with pytest.raises(Conflict):
        mapped.table()
    for dirs in ((), ("/proc/none",)):
        with ShuffleClient(empty_server.location, copies=Copies(dirs)) as without:
            read = SmallTable(pickle.loads(pickle.dumps(without.broadcast(TABLE))))
            assert read.table().equals(TABLE)
            with pytest.raises((Unavailable, OSError)):
                read.broadcast.table()


def test_a_pickle_finds_the_same_table(client: ShuffleClient, base: Path) -> None:
    shared = client.broadcast(TABLE)
    copy = pickle.loads(pickle.dumps(shared))
    assert copy.table() is shared.table()
    with pytest.raises(InvalidRequest, match="the driver that made it"):
        copy.destroy()


def test_dictionaries_that_differ_from_batch_to_batch_nested_types_and_no_rows(client: ShuffleClient) -> None:
    chunks = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", None]).dictionary_encode()]
    table = pa.table({"d": pa.chunked_array(chunks), "n": [[{"x": 1}], None, [], [{"x": None}]]})
    found = client.broadcast(table).table()
    assert found.to_pylist() == table.to_pylist()
    assert found.schema == table.schema
    assert client.broadcast(TABLE.slice(0, 0)).table().equals(TABLE.slice(0, 0))


def test_a_frame_of_pandas_or_polars_is_broadcast_as_a_table(client: ShuffleClient) -> None:
    for frame in (TABLE.to_pandas(), pl.from_arrow(TABLE), TABLE.to_reader()):
        found = client.broadcast(frame).table()
        assert found.to_pydict() == TABLE.to_pydict()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("/lake/countries", r"the path '/lake/countries': give what reads it, such as ShuffleClient\.scan"),
        (7, "give a DataFrame of Spark or pandas, or a table"),
        ([{"id": 1}], "give a DataFrame of Spark or pandas, or a table"),
    ],
)
def test_what_is_no_table_is_refused_with_what_makes_one(client: ShuffleClient, data: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        client.broadcast(data)


def test_a_file_that_is_removed_between_its_opening_and_its_mapping_is_read(
    client: ShuffleClient, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = client.broadcast(TABLE)
    open_or_make = host_files.HostFiles.open_or_make

    def removed_at_once(*arguments: Any) -> Any:
        file = open_or_make(*arguments)
        shared.unpersist()
        return file

    monkeypatch.setattr(host_files.HostFiles, "open_or_make", removed_at_once)
    assert shared.table().equals(TABLE)
    assert files(base) == []


def test_a_table_that_the_server_refuses_leaves_no_dataset(
    flight_server_process: Callable[..., ServerProcess],
) -> None:
    with ShuffleClient(flight_server_process(http_port=0, max_message="64KiB").location) as client:
        with pytest.raises(InvalidRequest, match=r"65[,_]?536|64"):
            client.broadcast(pa.table({"x": ["x" * 100_000]}))
        assert client.datasets() == []


def test_after_unpersist_the_table_is_fetched_again(client: ShuffleClient, base: Path) -> None:
    shared, gets = client.broadcast(TABLE), client.statistics()["gets"]
    before = shared.table()
    shared.unpersist()
    shared.unpersist()
    assert files(base) == []
    assert not any(hosts_of(shared))
    assert before.equals(TABLE), "who has it keeps it"
    assert shared.table().equals(TABLE)
    assert client.statistics()["gets"] == gets + 2


def test_a_torn_file_is_an_error_once_and_then_fetched_again(client: ShuffleClient, base: Path) -> None:
    shared = client.broadcast(TABLE)
    shared.table()
    shared.unpersist()
    other = client.broadcast(TABLE.slice(1))
    other.table()
    # A whole file of another table stands for one that a crash left with fewer rows.
    files(base)[0].rename(files(base)[0].with_name(f"{shared._content.key}.arrows"))
    with pytest.raises(Exception, match="has 2 rows"):
        shared.table()
    assert shared.table().equals(TABLE)


def test_after_destroy_every_use_is_a_clear_error(client: ShuffleClient, base: Path) -> None:
    shared = client.broadcast(TABLE, name="countries")
    sent_before = pickle.dumps(shared)
    shared.table()
    shared.destroy()
    shared.destroy()
    assert files(base) == []
    assert client.datasets() == []
    for use in (shared.table, shared.unpersist, lambda: pickle.dumps(shared)):
        with pytest.raises(Conflict, match="'countries' was destroyed"):
            use()
    with pytest.raises(NotFound, match="'countries' is gone: it was destroyed"):
        pickle.loads(sent_before).table()


def test_closing_the_client_ends_its_broadcasts(empty_server: ServerProcess, base: Path) -> None:
    with ShuffleClient(empty_server.location, copies=Copies((str(base),))) as client:
        shared = client.broadcast(TABLE)
        shared.table()
    assert files(base) == []
    with pytest.raises(NotFound, match="is gone"):
        shared.table()
    assert list(base.glob("*/*.part")) == []


def test_the_name_is_only_a_label(client: ShuffleClient) -> None:
    first, second = (client.broadcast(TABLE.slice(n), name="ünï/c ö../d" * 30) for n in (0, 1))
    assert isinstance(first, Broadcast)
    assert (first.table().num_rows, second.table().num_rows) == (3, 2)


DRIVER = """
import sys
import pyarrow as pa
from spark_client import Copies, ShuffleClient
client = ShuffleClient(sys.argv[1], copies=Copies((sys.argv[2],)))
shared = client.broadcast(pa.table({"x": [1, 2, 3]}))
shared.table()
print(shared._content.key, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_driver_left_goes_with_the_next_client_and_what_lives_stays(
    client: ShuffleClient, base: Path
) -> None:
    living = client.broadcast(TABLE)
    living.table()
    (living_file,) = files(base)
    copies = Copies((str(base),))
    command = [sys.executable, "-c", DRIVER, client.location, str(base)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        (its_file,) = base.glob(f"*/{process.stdout.readline().strip()}.arrows")
        task = host_files.HostFiles(copies).open(its_file.stem)
        assert task is not None
        process.kill()
    for mapped in (True, False):
        with ShuffleClient(client.location, copies=copies):
            assert its_file.exists() is mapped, "a task that lives maps it, then none"
        task.close()
    assert list(its_file.parent.glob(f"{its_file.stem.partition('-')[0]}*")) == []
    assert living_file.exists()
