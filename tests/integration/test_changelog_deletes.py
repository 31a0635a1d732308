"""Deletes by key from outside: pyarrow's own client and our client on both lanes, against a real server."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol.errors import InvalidRequest
from spark_client import Changelog, Reading, ShuffleClient, Writing, latest
from tests.support import changelogs
from tests.support.changelogs import read, signed, snapshot
from tests.support.durable import action, names
from tests.support.durable import put as put_stream
from tests.support.rates import BY, LANES, LATEST, RATES, counted, folded, next_of, rates_of, rows_of
from tests.support.raw_flight import RawFlight, Refused, command, put_messages
from tests.support.server_process import ServerProcess

SERVER_OPTIONS = {"memory_limit": "128MiB"}

KEY = pa.schema([("currency", pa.string())])


def keys(*found: str) -> pa.Table:
    return pa.table([list(found)], schema=KEY)


@pytest.fixture(params=LANES)
def table(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Changelog]:
    """The latest rate of each currency; a delay of an hour."""
    lane, name = request.param, f"table/{request.param}/{request.node.originalname}"
    with ShuffleClient(server.location, reading=Reading(lane=lane), writing=Writing(lane=lane)) as shuffle:
        yield shuffle.changelog(name, RATES, keep=latest(), delay_seconds=3600.0, **BY)


def test_any_client_deletes_keys_as_one_version_once(client: flight.FlightClient) -> None:
    changelogs.create(client, "any", RATES, keep=LATEST, delay_seconds=3600)
    changelogs.put(client, "any", rates_of(("EUR", 1, 1.1), ("EUR", 2, 1.2), ("JPY", 1, 160.0)))
    changelogs.put(client, "any", signed(rates_of(("GBP", 1, 0.9)), -1))
    transaction = {"id": "job", "version": 1}
    for _ in range(2):
        done = changelogs.put(client, "any", keys("EUR", "GBP", "CHF"), delete=True, transaction=transaction)
        assert (done["version"], done["rows"]) == (3, 3)
    assert snapshot(client, "any") == [("JPY", 1, 160.0)]
    assert snapshot(client, "any", as_of=2) == [("EUR", 2, 1.2), ("JPY", 1, 160.0)]
    assert read(client, "any", after=2).rows == [("EUR", 2, 1.2, -1)]
    done = changelogs.put(client, "any", keys("JPY"), delete=True, producer=0, attempt="1")
    assert done["version"] == 4
    changelogs.put(client, "any", rates_of(("EUR", 1, 1.3), ("GBP", 1, 0.9)))
    assert snapshot(client, "any") == [("EUR", 1, 1.3), ("GBP", 1, 0.9)]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (
            rates_of(("EUR", 1, 1.0)),
            "the columns of the delete are .* and the changelog's key is currency: string",
        ),
        (rates_of(("EUR", 1, 1.0)).drop_columns(["currency"]), "the changelog's key is currency: string"),
        (keys("EUR").append_column("_diff", [[1]]), "a delete has no column '_diff'"),
        (pa.table({"currency": [1]}), "the columns of the delete are currency: int64"),
        (pa.table([["EUR"], ["EUR"]], names=["currency", "currency"]), "the columns of the delete are"),
        (keys("EUR").set_column(0, "currency", [[None]]).cast(KEY), "field 'currency' has nulls"),
    ],
    ids=["extra", "missing", "diff", "type", "twice", "null"],
)
def test_keys_that_do_not_fit_are_refused_and_make_no_version(
    client: flight.FlightClient, raw: RawFlight, data: pa.Table, why: str
) -> None:
    schema = RATES.set(0, RATES.field(0).with_nullable(False))
    changelogs.create(client, "unfit", schema, keep=LATEST)
    with pytest.raises(Refused, match=f"^INVALID_ARGUMENT: .*{why}"):
        raw.put(put_messages(command({"dataset": "unfit", "delete": True}), data.to_batches()))
    assert read(client, "unfit").version == 0


def test_only_a_changelog_whose_rule_has_a_key_takes_deletes(
    client: flight.FlightClient, raw: RawFlight
) -> None:
    changelogs.create(client, "everything", RATES)
    put_stream(client, rates_of(("EUR", 1, 1.0)), dataset="plain")
    action(client, "create", dataset="shuffled", kind="shuffle", partitions=1)
    for body, why in (
        ({"dataset": "everything"}, "has no keep rule with a 'key'"),
        ({"dataset": "plain"}, "is not a changelog: nothing can be deleted"),
        (
            {"dataset": "shuffled", "producer": 0, "attempt": "1"},
            "is not a changelog: nothing can be deleted",
        ),
        ({"dataset": "plain", "mode": "overwrite"}, "'delete' does not go with 'mode' 'overwrite'"),
    ):
        with pytest.raises(Refused, match=f"^INVALID_ARGUMENT: .*{why}"):
            raw.put(put_messages(command({**body, "delete": True}), keys("EUR").to_batches()))
    with pytest.raises(Refused, match=r"^NOT_FOUND: .*nothing"):
        raw.put(put_messages(command({"dataset": "nothing", "delete": True}), keys("EUR").to_batches()))
    assert "nothing" not in names(client)


# Our client


def test_a_delete_takes_keys_in_every_form(table: Changelog) -> None:
    forms: list[Callable[[str], Any]] = [
        keys,
        lambda key: keys(key).to_batches()[0],
        lambda key: keys(key).to_reader(),
        lambda key: keys(key).to_pandas(),
        lambda key: [{"currency": key}],
        lambda key: pa.table({"currency": pa.array([key]).dictionary_encode()}),
    ]
    for form in forms:
        table.put(rates_of(("EUR", 1, 1.1), ("USD", 1, 1.0)))
        before = table.upper
        assert table.delete(form("EUR")) == before + 1
        assert rows_of(table.snapshot().table) == [("USD", 1, 1.0)]
    assert table.delete([]) == table.upper
    again = pickle.loads(pickle.dumps(table))
    again.delete([{"currency": "USD"}], transaction=("job", 1))
    assert again.delete([{"currency": "USD"}], transaction=("job", 1)) == again.upper
    assert rows_of(table.snapshot().table) == []


def test_a_follower_sees_deleted_keys_vanish_and_come_again(table: Changelog) -> None:
    table.put(rates_of(("EUR", 1, 1.1), ("USD", 1, 1.0)))
    with table.follow() as changes:
        rows = counted(next(changes).table.drop_columns(["_diff"]))
        table.delete(keys("EUR", "GBP"))
        for change in next_of(changes, 2):
            rows = folded(rows, change)
        assert set(rows) == {("USD", 1, 1.0)}
        table.put(rates_of(("EUR", 0, 1.0)))
        for change in next_of(changes, 3):
            rows = folded(rows, change)
        assert set(rows) == {("USD", 1, 1.0), ("EUR", 0, 1.0)}


def test_keys_that_do_not_fit_are_refused_by_the_client(table: Changelog) -> None:
    wrong: list[tuple[Any, str]] = [
        (rates_of(("EUR", 1, 1.1)), "takes the columns of the key and no other, 'currency'"),
        ([{"currency": "EUR"}, {"currency": "EUR", "time": 1}], "it was given 'currency', 'time'"),
        ([{"currency": 7}], "the keys do not fit their types"),
        ("EUR", "cannot put"),
    ]
    for keys_, why in wrong:
        with pytest.raises(InvalidRequest, match=why):
            table.delete(keys_)
    assert table.upper == 0


def test_the_client_says_that_a_changelog_has_no_key(server: ServerProcess) -> None:
    with ShuffleClient(server.location) as shuffle:
        found = shuffle.changelog("all", RATES)
        for given in (keys("EUR"), [{"currency": "EUR"}], []):
            with pytest.raises(InvalidRequest, match="has no keep rule with a key"):
                found.delete(given)
