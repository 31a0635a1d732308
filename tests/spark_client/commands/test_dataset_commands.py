"""``ls``, ``stat``, ``drop``, ``why``."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from tests.support.commands import Command

TABLE = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
SCHEMA = [{"name": "id", "type": "int64"}, {"name": "name", "type": "string"}]


@pytest.fixture
def client(command: Command) -> Iterator[ShuffleClient]:
    with ShuffleClient(command.location) as found:
        yield found


def test_datasets_are_listed_for_people_and_programs(client: ShuffleClient, command: Command) -> None:
    client.put("sales/may", TABLE)
    client.put("sales/june", TABLE)
    client.put("other", TABLE)
    people = command("ls", "sales/")
    assert [line.split()[0] for line in people.out.splitlines()] == ["name", "sales/june", "sales/may"]
    listed = command("ls", "--json").lines
    assert [each["name"] for each in listed] == ["other", "sales/june", "sales/may"]
    assert listed[0] == {
        "name": "other",
        "partitions": 1,
        "rows": 3,
        "size_bytes": listed[0]["size_bytes"],
        "schema": SCHEMA,
    }


def test_a_dataset_is_described(client: ShuffleClient, command: Command) -> None:
    client.put("t", TABLE)
    said = command("stat", "t")
    for text in (
        "stream",
        "sealed",
        "3 in 1 frames",
        "1 (1 sealed)",
        "id int64, name string",
        command.location,
    ):
        assert text in said.out
    (facts,) = command("stat", "t", "--json").lines
    assert (facts["name"], facts["rows"], facts["schema"]) == ("t", 3, SCHEMA)
    assert facts["servers"] == [command.location]
    missing = command("stat", "none")
    assert (missing.code, missing.out) == (1, "")
    assert "'none'" in missing.err


def test_all_datasets_that_are_there_are_dropped(client: ShuffleClient, command: Command) -> None:
    for name in ("a", "b"):
        client.put(name, TABLE)
    said = command("drop", "a", "none", "b", "--json")
    assert said.code == 1
    assert [(each["name"], each["dropped"]) for each in said.lines] == [
        ("a", True),
        ("none", False),
        ("b", True),
    ]
    assert "'none'" in said.lines[1]["error"]
    assert len(said.err.splitlines()) == 1
    assert client.datasets() == []


def test_each_stream_that_waits_is_shown(
    client: ShuffleClient, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("why").out == "no stream waits\n"
    assert command("why", "--json").out == ""
    client.put("t", TABLE)
    waits = [
        {
            "waiting_for": "reader",
            "seconds": 61.0,
            "dataset": "t",
            "partition": 0,
            "producer": None,
            "peer": "p",
        }
    ]
    monkeypatch.setattr("spark_client.ShuffleClient.why", lambda *_: waits)
    said = command("why").out.splitlines()
    assert [each.split() for each in said] == [
        ["waiting", "for", "for", "dataset", "partition", "producer", "peer"],
        ["reader", "1", "min", "1", "s", "t", "0", "-", "p"],
    ]
