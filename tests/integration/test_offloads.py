"""Sealed datasets that real servers keep as objects in a directory, too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import ObjectIndex, index_of
from flight_server.protocol.checksums import crc32c
from tests.support.durable import action
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.spread import PARTITIONS, command_of, everything, put, rows_of, spread

GENERATION = "00000000000000ab"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def servers(root: Path) -> Iterator[list[ServerProcess]]:
    with ServerProcess.start(offload_to=root) as one, ServerProcess.start(offload_to=root) as two:
        yield [one, two]


@pytest.fixture
def prefix(root: Path, servers: Sequence[ServerProcess], request: pytest.FixtureRequest) -> Iterator[Path]:
    """Of one test; at its end nothing is below it."""
    found = root / request.node.name[:40]
    yield found
    for server in servers:
        drop(server, "offloaded/d")
    assert not [*found.glob("*")]


def drop(server: ServerProcess, name: str) -> None:
    with flight.connect(server.location) as client:
        if any(each.descriptor.path[0].decode() == name for each in client.list_flights()):
            action(client, "drop", dataset=name)


def names_below(prefix: Path) -> list[str]:
    return sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file())


def seal(server: ServerProcess, **given: Any) -> dict[str, Any]:
    with flight.connect(server.location) as client:
        return action(client, "seal", generation=GENERATION, attempts={"0": "1"}, **given)


def test_each_server_writes_one_object_that_any_arrow_reader_reads(
    servers: Sequence[ServerProcess], prefix: Path
) -> None:
    listed = spread("offloaded/d", servers, GENERATION, offload=str(prefix))
    found: list[int] = []
    for number, each in enumerate(listed):
        path = prefix / f"offloaded~d-{GENERATION}" / f"{each['start']}.arrows"
        rows = pa.ipc.open_stream(path.read_bytes()).read_all().to_pydict()["n"]
        assert rows == [row for part in range(PARTITIONS) for row in rows_of(number, part)]
        found += rows
        index = ObjectIndex.parse(Path(index_of(str(path))).read_bytes(), crc32c)
        assert (index.dataset, index.generation, index.start) == ("offloaded/d", GENERATION, each["start"])
        assert {number: each.rows for number, each in index.partitions.items()} == {
            part: 3 for part in range(PARTITIONS) if rows_of(number, part)
        }
    assert sorted(found) == everything(2)


def test_the_answer_and_the_flight_info_name_the_object_last(
    servers: Sequence[ServerProcess], prefix: Path
) -> None:
    listed = spread("offloaded/d", servers, GENERATION, offload=str(prefix))
    folder = prefix / f"offloaded~d-{GENERATION}"
    addresses = [(folder / f"{each['start']}.arrows").as_uri() for each in listed]
    with flight.connect(servers[1].location) as client:
        whole = client.get_flight_info(flight.FlightDescriptor.for_path("offloaded/d"))
        one = client.get_flight_info(flight.FlightDescriptor.for_path("offloaded/d", "2"))
    assert [each.locations[-1].uri.decode() for each in whole.endpoints] == addresses
    # An object has all partitions.
    assert not any(address in repr(one.endpoints) for address in addresses)
    again = seal(servers[0], dataset="offloaded/d", start=listed[0]["start"], offload=str(prefix))
    assert again["read_locations"][-1] == addresses[0]
    assert len(names_below(prefix)) == 4


def test_a_dataset_takes_its_objects_with_it(servers: Sequence[ServerProcess], prefix: Path) -> None:
    spread("offloaded/d", servers, GENERATION, offload=str(prefix))
    drop(servers[0], "offloaded/d")
    assert len(names_below(prefix)) == 2
    drop(servers[1], "offloaded/d")
    assert not [*prefix.iterdir()]


def test_the_end_of_its_lease_deletes_the_object(servers: Sequence[ServerProcess], prefix: Path) -> None:
    command = command_of("offloaded/d", GENERATION, 0, create={"partitions": 1, "lease_seconds": 1.0})
    put(servers[0].location, command, [(0, [1])])
    seal(servers[0], dataset="offloaded/d", offload=str(prefix))
    eventually(lambda: len([*prefix.iterdir()]), 0)


def test_a_put_of_a_later_run_deletes_the_object_of_the_earlier_one(
    servers: Sequence[ServerProcess], prefix: Path
) -> None:
    put(servers[0].location, command_of("offloaded/d", GENERATION, 0), [(0, [1])])
    seal(servers[0], dataset="offloaded/d", offload=str(prefix))
    assert len(names_below(prefix)) == 2
    put(servers[0].location, command_of("offloaded/d", GENERATION[:-1] + "c", 0), [(0, [1])])
    eventually(lambda: len([*prefix.iterdir()]), 0)


def test_the_end_of_the_server_does_not_delete_the_object(tmp_path: Path) -> None:
    with ServerProcess.start(offload_to=tmp_path) as server:
        put(server.location, command_of("d", GENERATION, 0), [(0, [1])])
        seal(server, dataset="d", offload=str(tmp_path))
        assert server.terminate() == 0
    assert len(names_below(tmp_path)) == 2


@pytest.mark.parametrize(
    ("offload", "said"),
    [
        ("{root}x", "may write below file://{root}"),
        ("/", "absolute path"),
        ("{root}/../other", "absolute path"),
        ("relative", "absolute path"),
        ("s3://bucket/path", "'s3://bucket/path': the server may write below file://{root}"),
        ("s3://key:secret@bucket/path", "has a user or a password in it"),
    ],
)
def test_a_prefix_that_is_not_allowed_is_refused_before_anything_is_sealed(
    servers: Sequence[ServerProcess], root: Path, prefix: Path, offload: str, said: str
) -> None:
    put(servers[0].location, command_of("offloaded/d", GENERATION, 0), [(0, [1])])
    with pytest.raises((flight.FlightUnauthorizedError, pa.ArrowInvalid)) as refused:
        seal(servers[0], dataset="offloaded/d", offload=offload.format(root=root))
    assert said.format(root=root) in str(refused.value)
    assert "secret" not in str(refused.value)
    with flight.connect(servers[0].location) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path("offloaded/d"))
    assert json.loads(info.app_metadata)["sealed"] is False


def test_a_server_without_prefixes_writes_nowhere(tmp_path: Path) -> None:
    with ServerProcess.start() as server:
        put(server.location, command_of("d", GENERATION, 0), [(0, [1])])
        with pytest.raises(flight.FlightUnauthorizedError, match="without --offload-to"):
            seal(server, dataset="d", offload=str(tmp_path))


def test_a_directory_that_cannot_be_written_fails_the_seal_which_may_be_repeated(
    servers: Sequence[ServerProcess], prefix: Path
) -> None:
    put(servers[0].location, command_of("offloaded/d", GENERATION, 0), [(0, [1])])
    prefix.write_text("a file, where the directory is to be")
    with pytest.raises(flight.FlightUnavailableError, match=r"could not be offloaded to .*Not a directory"):
        seal(servers[0], dataset="offloaded/d", offload=str(prefix))
    prefix.unlink()
    seal(servers[0], dataset="offloaded/d", offload=str(prefix))
    assert len(names_below(prefix)) == 2


def test_a_root_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with ServerProcess.start(offload_to=tmp_path / "not-mounted") as server:
        put(server.location, command_of("d", GENERATION, 0), [(0, [1])])
        with pytest.raises(flight.FlightUnavailableError, match=r"there is no directory .*not-mounted"):
            seal(server, dataset="d", offload=str(tmp_path / "not-mounted/mine"))
    assert not [*tmp_path.iterdir()]


def test_a_link_that_leads_out_of_the_prefix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path)
    with ServerProcess.start(offload_to=tmp_path / "root") as server:
        put(server.location, command_of("d", GENERATION, 0), [(0, [1])])
        with pytest.raises(flight.FlightUnavailableError, match="by a symbolic link"):
            seal(server, dataset="d", offload=str(tmp_path / "root/link"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]
