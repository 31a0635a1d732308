"""What the server refuses of changelogs, and what it says then, on both lanes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support import changelogs
from tests.support.changelogs import read, signed, ticket
from tests.support.durable import names
from tests.support.durable import put as put_stream
from tests.support.polling import eventually
from tests.support.rates import LATEST, RATES, rates_of
from tests.support.raw_flight import RawFlight, Refused, command, path, put_messages
from tests.support.server_process import ServerProcess

SERVER_OPTIONS = {"memory_limit": "128MiB"}


def refused_read(raw: RawFlight, dataset: str, **versions: Any) -> Refused:
    with pytest.raises(Refused) as error:
        raw.get(ticket(dataset, **versions).ticket)
    return error.value


def refused_action(raw: RawFlight, name: str, **body: Any) -> Refused:
    with pytest.raises(Refused) as error:
        raw.action(name, body)
    return error.value


def test_a_release_says_that_there_is_no_such_hold(client: flight.FlightClient, raw: RawFlight) -> None:
    changelogs.create(client, "held/once", RATES)
    raw.action("hold", {"dataset": "held/once", "hold": "mine"})
    released = {"dataset": "held/once", "hold": "mine", "release": True}
    raw.action("hold", released)
    for body in (released, {**released, "hold": "another"}):
        error = refused_action(raw, "hold", **body)
        assert (error.status, error.detail["error"]) == ("NOT_FOUND", "not_found")
        assert f"has no hold '{body['hold']}'" in error.message


def test_a_changelog_is_not_said_to_be_still_written_when_it_cannot_be_cut(
    client: flight.FlightClient, raw: RawFlight
) -> None:
    changelogs.create(client, "never/cut", RATES)
    for wanted in ({}, {"partitions": [0]}):
        error = refused_action(raw, "plan", dataset="never/cut", target_bytes=1 << 20, **wanted)
        assert error.status == "INVALID_ARGUMENT"
        assert "is a changelog, which is never sealed and is not cut into pieces" in error.message


def http_error(url: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(url)
    with error.value as answer:
        return answer.code, json.loads(answer.read())


def test_a_version_that_is_gone_or_not_there_yet_is_refused(
    server: ServerProcess, client: flight.FlightClient, raw: RawFlight
) -> None:
    changelogs.create(client, "gone", RATES, keep=LATEST, delay_seconds=0)
    for time in range(3):
        changelogs.put(client, "gone", rates_of(("EUR", time, 1.0)))
    eventually(lambda: changelogs.numbers(client, "gone")["since"], 3)
    for versions in ({"as_of": 2}, {"after": 1}, {"after": 0, "as_of": 3}, {"after": 2, "follow": True}):
        error = refused_read(raw, "gone", **versions)
        assert (error.status, error.detail["error"]) == ("NOT_FOUND", "compacted")
        assert (error.detail["since"], error.detail["upper"]) == (3, 3)
        assert "take a snapshot" in error.message
    code, body = http_error(f"{server.http}/v1/datasets/gone/partitions/0?after=1")
    assert (code, body["error"], body["since"], body["upper"]) == (404, "compacted", 3, 3)
    for versions in ({"as_of": 4}, {"after": 4}, {"after": 3, "as_of": 5}):
        error = refused_read(raw, "gone", **versions)
        assert (error.status, error.detail["since"], error.detail["upper"]) == ("INVALID_ARGUMENT", 3, 3)
    assert http_error(f"{server.http}/v1/datasets/gone/partitions/0?as_of=4")[0] == 400


@pytest.mark.parametrize(
    ("versions", "why"),
    [
        ({"follow": True}, "'follow' goes with 'after'"),
        ({"follow": True, "after": 0, "as_of": 0}, "'follow' goes with 'after'"),
        ({"after": 1, "as_of": 0}, "before it"),
        ({"as_of": -1}, "as_of"),
        ({"after": "1"}, "after"),
        ({"before": 1}, "before"),
    ],
)
def test_a_ticket_that_makes_no_sense_is_refused(
    client: flight.FlightClient, raw: RawFlight, versions: dict[str, Any], why: str
) -> None:
    changelogs.create(client, "senseless", RATES)
    error = refused_read(raw, "senseless", **versions)
    assert error.status == "INVALID_ARGUMENT"
    assert why in error.message


def test_only_a_changelog_has_versions(
    server: ServerProcess, client: flight.FlightClient, raw: RawFlight
) -> None:
    put_stream(client, rates_of(("EUR", 1, 1.0)), dataset="plain")
    for versions in ({"as_of": 0}, {"after": 0}):
        error = refused_read(raw, "plain", **versions)
        assert (error.status, "only a changelog has versions" in error.message) == ("INVALID_ARGUMENT", True)
    assert http_error(f"{server.http}/v1/datasets/plain/partitions/0?after=0")[0] == 400
    error = refused_action(raw, "hold", dataset="plain", hold="h")
    assert "only versions of a changelog are held" in error.message


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (signed(rates_of(("EUR", 1, 1.0)), 1.0, kind=pa.float64()), "integer type"),  # type: ignore[arg-type]
        (signed(rates_of(("EUR", 1, 1.0)), None), "has nulls"),  # type: ignore[arg-type]
        (rates_of(("EUR", 1, 1.0)).drop_columns(["rate"]), "the put's columns are"),
        (rates_of(("EUR", 1, 1.0)).append_column("more", [[1]]), "the put's columns are"),
        (rates_of(("EUR", 1, 1.0)).set_column(1, "time", [["1"]]), "the put's columns are"),
        (rates_of(("EUR", 1, 1.0)).append_column("time", [[1]]), "the put's columns are"),
        (signed(signed(rates_of(("EUR", 1, 1.0)), 1), 1), "the put's columns are"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_make_no_version(
    client: flight.FlightClient, raw: RawFlight, data: pa.Table, why: str
) -> None:
    changelogs.create(client, "unfit", RATES)
    before = read(client, "unfit")
    for descriptor in (path("unfit"), command({"dataset": "unfit"})):
        messages = put_messages(descriptor, data.to_batches())
        with pytest.raises(Refused, match=f"^INVALID_ARGUMENT: .*{why}"):
            raw.put(messages)
    assert read(client, "unfit") == before


@pytest.mark.parametrize(
    ("schema", "keep", "why"),
    [
        (RATES, {"rule": "newest"}, "'rule' is one of latest, top_k"),
        (RATES, LATEST | {"key": []}, "keep: this rule needs 'key'"),
        (RATES, LATEST | {"order_by": []}, "keep: this rule needs 'order_by'"),
        (RATES, LATEST | {"key": ["country"]}, "no column 'country'; the columns are currency, time, rate"),
        (RATES, LATEST | {"order_by": ["-day"]}, "day"),
        (RATES, LATEST | {"k": 1}, "k"),
        (RATES, {"rule": "top_k", "key": ["currency"], "order_by": ["time"]}, "needs 'k'"),
        (pa.schema([]), None, "at least one column"),
        (pa.schema([("_diff", pa.int8())]), None, "at least one column"),
        (pa.schema([("a", pa.month_day_nano_interval())]), None, "cannot compare"),
        (pa.schema([("_version", pa.int64())]), None, "no column '_version'"),
        (pa.schema([("_hash", pa.int64())]), None, "no column '_hash'"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), None, "occurs twice"),
        (pa.schema([("currency", pa.list_(pa.string())), ("time", pa.int64())]), LATEST, "currency"),
        (pa.schema([("currency", pa.struct([("a", pa.int8())])), ("time", pa.int64())]), LATEST, "currency"),
    ],
)
def test_a_declaration_that_cannot_be_kept_is_refused(
    client: flight.FlightClient, raw: RawFlight, schema: pa.Schema, keep: dict[str, Any] | None, why: str
) -> None:
    body = changelogs.declaration("refused", schema, **({} if keep is None else {"keep": keep}))
    error = refused_action(raw, "create", **body)
    assert error.status == "INVALID_ARGUMENT"
    assert why in error.message
    assert "refused" not in names(client)
