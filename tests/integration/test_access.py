"""Each row of the table of access with each kind of principal, on a real server; the test is made from the table."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pyarrow as pa
import pytest

from flight_server.access import OPERATIONS, Operation, Permission, Resource
from tests.support import changelogs
from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, Refused, command, field, path, put_messages
from tests.support.server_process import ServerProcess
from tests.support.token_hashes import hash_of_token

BATCH = pa.record_batch({"n": [1]})
SCHEMA = BATCH.schema
THERE, ABSENT = "a/there", "a/absent"
PRINCIPALS = {
    "all": {"read": [""], "write": [""], "admin": [""]},
    "reader": {"read": ["a/"]},
    "writer": {"write": ["a/"]},
    "other": {"read": ["b/"], "write": ["b/"], "admin": ["b/"]},
    "gone": {"read": ["a/"], "write": ["a/"], "admin": [""]},
}
SAME_WORDS = "there is no dataset"


def written(file: Path, names: list[str]) -> None:
    lines = []
    for name in names:
        lines += [f"[principals.{name}]", f"tokens = {json.dumps([hash_of_token(name + '-token')])}"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in PRINCIPALS[name].items()]
    new = file.with_suffix(".new")
    new.write_text("\n".join(lines))
    new.replace(file)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    file = tmp_path_factory.mktemp("access") / "tokens.toml"
    written(file, list(PRINCIPALS))
    with ServerProcess.start(token_file=file, memory_limit="64MiB") as server:
        with RawFlight(server.location, token="gone-token") as raw:
            raw.ask("ListActions", b"")
        written(file, [name for name in PRINCIPALS if name != "gone"])
        eventually(lambda: len(server.events("token_file_read")), 1)
        with RawFlight(server.location, token="all-token") as raw:
            raw.put(put_messages(path(THERE), [BATCH]))
        yield server
    log = "\n".join(server.log)
    assert [name for name in PRINCIPALS if f"{name}-token" in log] == []


def asked(server: ServerProcess, call: str, name: str, token: str | None) -> str:
    """The status of the call: OK, or the error's code and words."""
    if call.split(" ", maxsplit=1)[0] in ("GET", "POST"):
        return by_http(server, call, name, token)
    bodies: dict[str, Any] = {
        "create": {"dataset": name},
        "seal": {"dataset": name},
        "drop": {"dataset": name, "generation": "0" * 16},
        "renew": {"dataset": name},
        "acknowledge": {"dataset": name, "generation": "0" * 16, "partition": 0, "reader": "r", "frames": 0},
        "hold": {"dataset": name, "hold": "h"},
        "plan": {"dataset": name, "target_bytes": 1},
        "copies": {"dataset": name, "verb": "which", "generation": "0" * 16},
        "CancelFlightInfo": field(1, field(3, field(1, field(1, name.encode())))),
        "RenewFlightEndpoint": field(1, field(1, field(1, name.encode()))),
    }
    requests: dict[str, Any] = {
        "Handshake": iter([]),
        "GetFlightInfo": path(name),
        "PollFlightInfo": path(name),
        "GetSchema": path(name),
        "DoGet": field(1, name.encode()),
        "DoPut": iter(put_messages(command({"dataset": name, "partition": 9}), [BATCH])),
        "DoExchange": iter([]),
        "DoAction": field(1, b"locations"),
    }
    try:
        with RawFlight(server.location, token=token) as raw:
            if call.startswith("action "):
                raw.action(call.removeprefix("action "), bodies.get(call.removeprefix("action "), b""))
            else:
                raw.ask(call, requests.get(call, b""))
    except Refused as refused:
        return f"{refused.status}: {refused.message}".replace(name, "NAME")
    return "OK"


def by_http(server: ServerProcess, call: str, name: str, token: str | None) -> str:
    method, _, route = call.partition(" ")
    body = json.dumps({"dataset": name, "hold": "h"}).encode() if route == "/v1/hold" else None
    path = route.replace("{rest:.+}", name).replace("{file}", "dashboard.css")
    path += f"?dataset={quote(name, safe='')}" if route == "/v1/rows" else ""
    request = urllib.request.Request(f"{server.http}{path}", body, method=method)
    if token is not None:
        request.add_header("authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        codes = {
            (400, None): "INVALID_ARGUMENT",
            (401, "Bearer"): "UNAUTHENTICATED",
            (403, None): "PERMISSION_DENIED",
            (404, None): "NOT_FOUND",
        }
        said = json.loads(error.read())["message"].replace(name, "NAME")
        return f"{codes[error.code, error.headers['www-authenticate']]}: {said}"
    return "OK"


def expected(row: Operation, principal: str) -> str:
    """The refusal that the table asks for; empty if it asks for none."""
    if row.is_open:
        return ""
    if row.resource is Resource.SERVER:
        return "" if principal == "all" else "PERMISSION_DENIED"
    if row.resource is Resource.DATASET and principal == "other":
        return "NOT_FOUND"
    if row.resource in (Resource.DATASET, Resource.NEW) and row.permission is not None:
        needed = {"all": set(Permission), "reader": {Permission.READ}, "writer": {Permission.WRITE}}
        return "" if row.permission in needed.get(principal, set()) else "PERMISSION_DENIED"
    return ""


TRIED = [
    row
    for row in OPERATIONS.values()
    if not row.call.startswith("grpc.") and row.call not in ("action drain", "POST /v1/put")
]


@pytest.mark.parametrize("row", TRIED, ids=lambda row: row.call)
def test_a_call_is_served_as_its_row_says(server: ServerProcess, row: Operation) -> None:
    for token in (None, "", "wrong", "gone-token"):
        said = asked(server, row.call, THERE, token)
        assert said.startswith("UNAUTHENTICATED") is (not row.is_open or row.call == "Handshake"), token
    for principal in ("reader", "writer", "other", "all"):
        # A dataset that is not there, for calls that would end this one.
        changes = row.permission is Permission.WRITE and principal in ("writer", "all")
        said = asked(server, row.call, ABSENT if changes else THERE, f"{principal}-token")
        wanted = expected(row, principal)
        if wanted:
            assert said.startswith(wanted), principal
        else:
            assert not said.startswith(("PERMISSION_DENIED", "UNAUTHENTICATED")), (principal, said)
        if wanted == "NOT_FOUND":
            # Word for word as for a name that leads nowhere.
            assert SAME_WORDS in said or "is not here" in said
            assert said == asked(server, row.call, ABSENT, f"{principal}-token")


@pytest.mark.parametrize("token", [None, "", "wrong", "all-toke", "\xff"])
def test_without_a_token_each_path_is_refused_before_it_is_looked_up(
    server: ServerProcess, token: str | None
) -> None:
    for call in ("GET /else", "POST /v1/put", "POST /v1/else"):
        assert by_http(server, call, THERE, token).startswith("UNAUTHENTICATED")


def test_drain_is_refused_to_all_but_admins_of_everything(server: ServerProcess) -> None:
    for token in (None, "", "wrong", "all-toke"):
        assert asked(server, "action drain", THERE, token).startswith("UNAUTHENTICATED")
    for principal in ("reader", "writer", "other"):
        assert asked(server, "action drain", THERE, f"{principal}-token").startswith("PERMISSION_DENIED")


def test_a_put_on_the_bulk_lane_is_refused_outside_the_prefix(server: ServerProcess) -> None:
    from spark_client import ShuffleClient  # its import takes long

    with (
        ShuffleClient(server.location, token="other-token") as client,
        pytest.raises(Exception, match="may not do"),
    ):
        client.put("a/stolen", pa.table({"n": [1]}))


@pytest.mark.parametrize("principal", ["other", "reader", "all"])
def test_lists_and_counts_have_only_what_is_seen(server: ServerProcess, principal: str) -> None:
    seen = 0 if principal == "other" else 1
    request = urllib.request.Request(f"{server.http}/v1/datasets?prefix={THERE}")
    request.add_header("x-flight-shuffle-authorization", f"Bearer {principal}-token")
    request.add_header("authorization", "Bearer of-a-proxy")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer)["count"] == seen
    with RawFlight(server.location, token=f"{principal}-token") as raw:
        statistics = raw.action("statistics")
        assert (THERE in statistics["datasets"]) is bool(seen)
        assert ("memory" in statistics) is (principal == "all")
        assert len(raw.ask("ListFlights", field(1, THERE.encode()))) == seen


def test_a_hold_is_released_by_its_principal_or_an_admin(server: ServerProcess) -> None:
    import base64

    schema = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    create = {"dataset": "a/log", "kind": "changelog", "schema": schema}
    hold = {"dataset": "a/log", "hold": "h"}
    with RawFlight(server.location, token="all-token") as owner:
        owner.action("create", create)
        owner.action("hold", hold)
        with RawFlight(server.location, token="reader-token") as raw:
            with pytest.raises(Refused, match="another principal") as refused:
                raw.action("hold", {**hold, "release": True})
            raw.action("hold", {"dataset": "a/log", "hold": "mine"})
            raw.action("hold", {"dataset": "a/log", "hold": "mine", "release": True})
        assert refused.value.status == "PERMISSION_DENIED"
        owner.action("hold", {**hold, "release": True})


EMITTING = {"rule": "pair", "key": ["n"], "kind": "k", "values": ["open", "close"], "order_by": ["t"]}


def changelog(name: str, **declared: Any) -> dict[str, Any]:
    schema = pa.schema([("n", pa.int64()), ("k", pa.string()), ("t", pa.int64())])
    return changelogs.declaration(name, schema, **declared)


def test_a_rule_emits_only_where_its_principal_may_write_and_statistics_name_the_target_to_those_who_see_it(
    server: ServerProcess,
) -> None:
    with (
        RawFlight(server.location, token="writer-token") as writer,
        RawFlight(server.location, token="reader-token") as reader,
        RawFlight(server.location, token="all-token") as owner,
    ):
        with pytest.raises(Refused, match="to which the rule emits") as refused:
            writer.action("create", changelog("a/pairs", keep={**EMITTING, "emit": "b/target"}))
        assert refused.value.status == "PERMISSION_DENIED"
        owner.action("create", changelog("a/pairs", keep={**EMITTING, "emit": "b/target"}))
        owner.action("drop", {"dataset": "b/target"})
        owner.put(put_messages(path("a/pairs"), [pa.record_batch({"n": [1], "k": ["open"], "t": [1]})]))
        said = [raw.action("statistics", {"dataset": "a/pairs"}) for raw in (owner, reader)]
        of_owner, of_reader = (each["datasets"]["a/pairs"]["changelog"] for each in said)
        assert of_owner["keep"] == {**of_reader["keep"], "emit": "b/target"}
        assert "'b/target' was dropped" in of_owner["not_emitting"]
        assert "takes nothing" in of_reader["not_emitting"]
        assert "b/target" not in json.dumps(reader.action("statistics"))
        owner.action("drop", {"dataset": "a/pairs"})


def test_copies_are_withdrawn_by_those_who_may_write(server: ServerProcess) -> None:
    body = {"dataset": THERE, "verb": "withdraw", "generation": "0" * 16}
    with RawFlight(server.location, token="all-token") as raw:
        assert raw.action("copies", body) == {}
    for token, status in (("reader-token", "PERMISSION_DENIED"), ("other-token", "NOT_FOUND")):
        with RawFlight(server.location, token=token) as raw, pytest.raises(Refused) as refused:
            raw.action("copies", body)
        assert refused.value.status == status


def test_readers_and_ended_generations_are_shown_to_those_who_see_their_dataset(
    server: ServerProcess,
) -> None:
    def shown(token: str) -> tuple[bool, int]:
        with RawFlight(server.location, token=token) as raw:
            said = raw.action("statistics")
        assert ("quarantine" in said) is (token == "all-token")
        assert token != "other-token" or "a/" not in json.dumps(said)
        return "a/ended" in [each["dataset"] for each in said["slowest_readers"]], said["ended"]["count"]

    large = pa.record_batch({"bytes": [os.urandom(1 << 20)]})
    put = put_messages(command({"dataset": "a/ended", "mode": "overwrite"}), [large] * 5)
    with (
        RawFlight(server.location, token="all-token") as owner,
        RawFlight(server.location, token="all-token", ahead_bytes=64 << 10) as paused,
    ):
        owner.put(put)
        next(reading := paused.call("DoGet", field(1, b"a/ended")))
        assert [shown(f"{name}-token") for name in ("all", "reader", "other")] == [
            (True, 0),
            (True, 0),
            (False, 0),
        ]
        owner.put(put)
        assert [shown(f"{name}-token") for name in ("all", "reader", "other")] == [
            (True, 1),
            (True, 1),
            (False, 0),
        ]
        reading.cancel()
        owner.action("drop", {"dataset": "a/ended"})


def test_the_streams_of_a_principal_that_is_gone_are_ended_and_a_refused_file_is_counted(
    tmp_path: Path,
) -> None:
    written(file := tmp_path / "tokens.toml", ["all", "gone"])
    with ServerProcess.start(token_file=file, memory_limit="64MiB") as server:
        with RawFlight(server.location, token="all-token") as raw:
            raw.action("create", {"dataset": "a/open"})
        with RawFlight(server.location, token="gone-token") as raw:
            reading = raw.call("DoGet", field(1, b"a/open"))
            with RawFlight(server.location, token="all-token") as other:
                eventually(lambda: other.action("why")["count"], 1)
            written(file, ["all"])
            with pytest.raises(grpc.RpcError) as ended:
                list(reading)
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert not refused_files(server)
        file.write_text("")
        eventually(lambda: refused_files(server), {"reloads_failed_total", "reload_trouble"})
        written(file, ["all"])
        eventually(lambda: refused_files(server), {"reloads_failed_total"})


def refused_files(server: ServerProcess) -> set[str]:
    """The metrics that say it of token files."""
    request = urllib.request.Request(f"{server.http}/metrics", headers={"authorization": "Bearer all-token"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return set(re.findall(r'flight_shuffle_(reload\w+){file="tokens"} 1\.0', answer.read().decode()))


def test_a_host_tells_a_principal_of_no_files_of_datasets_that_it_does_not_see(server: ServerProcess) -> None:
    with (
        RawFlight(server.location, token="all-token") as raw,
        RawFlight(server.location, token="other-token") as other,
    ):
        raw.action("create", {"dataset": "b/own"})
        seen = raw.action("statistics")["datasets"]
        content, own = (
            {"dataset": name, "generation": seen[name]["generation"]} for name in (THERE, "b/own")
        )
        on_host = {"host": "h", "file": "f"}
        raw.action("copies", {**content, **on_host, "verb": "keep"})
        other.action("copies", {**own, **on_host, "verb": "removed"})
        assert raw.action("copies", {**content, "verb": "which"})["kept"] == ["h"]
        raw.action("copies", {**content, "verb": "withdraw"})
        assert other.action("copies", {**own, "host": "h", "file": "g", "verb": "keep"})["withdrawn"] == []
        assert raw.action("copies", {**own, "host": "h", "file": "g", "verb": "keep"})["withdrawn"] == ["f"]
