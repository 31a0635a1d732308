"""``ls``, ``stat``, ``drop``, ``why``."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from spark_client.dataset_calls import Listed
from tests.support.commands import Command
from tests.support.server_process import ServerProcess
from tests.support.spread import everything, spread

TABLE = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
DEAD = "grpc://127.0.0.1:1"
SCHEMA = [{"name": "id", "type": "int64"}, {"name": "name", "type": "string"}]


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


def test_of_several_servers_the_one_that_is_dead_is_named_beside_what_the_others_say(
    client: ShuffleClient, command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    client.put("t", TABLE)
    several = f"{command.location},{DEAD}"
    with ShuffleClient(several) as both:
        listed = both.datasets()
        assert [each.name for each in listed] == ["t"]
        for found in (listed, both.why(), both.why("t"), both.staged()):
            (gone,) = found.gone
            assert (gone["location"], gone["start"]) == (DEAD, None)
            assert f"{DEAD}: {gone['gone']}" in repr(found)
    said = Command(several, capfdbinary)
    for arguments, shown in (
        (("ls",), "t "),
        (("why",), "no stream waits"),
        (("servers",), command.location),
    ):
        people, programs = said(*arguments), said(*arguments, "--json")
        assert (people.code, programs.code) == (1, 1)
        assert shown in people.out
        assert DEAD in people.out + people.err
    assert [each["name"] for each in said("ls", "--json").lines] == ["t"]
    assert client.datasets().gone == []


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
    assert "datasets()" not in said.lines[1]["error"] + said.err
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
    monkeypatch.setattr("spark_client.ShuffleClient.why", lambda *_: Listed(waits, []))
    said = command("why").out.splitlines()
    assert [each.split() for each in said] == [
        ["waiting", "for", "for", "dataset", "partition", "producer", "peer"],
        ["reader", "1", "min", "1", "s", "t", "0", "-", "p"],
    ]


def test_of_a_dataset_over_several_servers_it_is_said_which_part_was_not_counted(command: Command) -> None:
    with ServerProcess.start() as one, ServerProcess.start() as two:
        spread("s", [one, two])
        here, there = (Command(each.location, command._capture) for each in (one, two))
        both = Command(f"{one.location},{two.location}", command._capture)
        counts = [each("stat", "s", "--json").lines[0]["rows"] for each in (here, there)]
        whole = len(everything(2))
        assert sum(counts) == whole
        said = f"a part      of {whole} rows; not counted: {counts[1]} at {two.location}\n"
        assert said in here("stat", "s").out
        assert f"not counted: {counts[0]} at {one.location}\n" in there("stat", "s").out
        assert "not counted" not in both("stat", "s").out
        (facts,) = both("stat", "s", "--json").lines
        assert (facts["rows"], facts["whole"], len(facts["starts"])) == (whole, None, 2)
        assert [each["rows"] for each in here("ls", "--json").lines] == [whole]
