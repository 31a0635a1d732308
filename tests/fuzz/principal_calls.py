"""Random calls of one principal: drawn from a seed, made on a real server, and their answers with names for numbers.

Masked, and why; all else in an answer must be the same on both servers:

    generations, starts     G0, G1 … in the order in which the principal first sees them: their digits are drawn
    seconds, moments        the two servers are not asked at the same moment
    addresses, peers        each server has ports of its own
    resident and disk bytes the memory is shared: how much of a dataset is in RAM may depend on others
    bytes of a changelog     its log has moments in decimal; of its numbers only ``upper`` and ``holds`` are compared,
                            because its compactor works when it likes
    length of a JSON answer  it has numbers that are masked
    error ids               they are drawn; the log of a server must have none
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import random
import re
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlencode

import grpc
import pyarrow as pa
from pyarrow import flight

from tests.support import raw_flight
from tests.support.raw_flight import RawFlight, Refused, commit, path, put_messages
from tests.support.server_process import ServerProcess

DEADLINE_SECONDS = 0.4
"""Of reads: those of an open stream wait for its producer."""
SCHEMA = pa.schema([("n", pa.int64())])
SCHEMA_TEXT = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
PAIRS = {"rule": "latest", "key": ["n"], "order_by": ["n"]}
FOREIGN = "0123456789abcdef"
MASKED = {"peer", "resident_bytes", "disk_bytes", "error_id"}
VERBS = ("keep", "fetch", "fetched", "removed", "withdraw", "which")


@dataclass(frozen=True)
class Call:
    """``what`` is done with ``name``. A value "@own", "@theirs:NAME", "@is:GENERATION", "@guess" or "@foreign" in
    ``given`` stands for a generation.
    """

    what: str
    name: str = ""
    given: dict[str, Any] = field(default_factory=dict)


def draw(chance: random.Random, mine: list[str], others: list[str], *, forges: bool = False) -> Call:
    """A call on a name of ``mine``, now and then on one of ``others``. ``forges``: it may make datasets with the
    generations of others. Which of two generations is the later run of a write is not the same on two servers.
    """
    name = chance.choice(others if others and chance.random() < 0.25 else mine)
    marks = ["@own"] * 4 + ["@guess", "@foreign"] + [f"@theirs:{each}" for each in others]
    generation = chance.choice([None, None, chance.choice(marks)])
    numbered = {} if generation is None else {"generation": generation}
    what = chance.choices([*_DRAWN], [weight for weight, _ in _DRAWN.values()])[0]
    if (
        what in ("create", "put")
        and not forges
        and generation is not None
        and generation.startswith("@theirs")
    ):
        numbered = {"generation": "@guess"}
    given = _DRAWN[what][1](chance, numbered, mine)
    return Call(what, name, given)


def _create(chance: random.Random, numbered: dict[str, Any], mine: list[str]) -> dict[str, Any]:
    kind = chance.choice(["stream", "shuffle", "shuffle", "changelog", "staged", "numbered", "source"])
    body: dict[str, Any] = {"kind": "shuffle", "schema": SCHEMA_TEXT}
    match kind:
        case "stream":
            return {"kind": "stream", "partitions": chance.choice([1, 1, 4])}
        case "staged":
            mode = chance.choice(["overwrite", "new", "append"])
            return {**body, "partitions": 2, "mode": mode, "write": chance.choice("vw")}
        case "changelog":
            keep = dict(PAIRS) if chance.random() < 0.5 else None
            return {**body, "kind": kind, **({"keep": keep} if keep else {})}
        case "source":
            return {"kind": kind, "source": {"flight": "grpc://127.0.0.1:1", "dataset": chance.choice(mine)}}
        case "numbered":
            return {**body, "partitions": 2, **numbered}
    return {**body, "partitions": 4, "producers": chance.choice([1, 2])}


def _put(chance: random.Random, numbered: dict[str, Any], mine: list[str]) -> dict[str, Any]:
    form = chance.choice(["path", "overwrite", "partition", "shuffle", "shuffle", "making", "staged"])
    rows: dict[str, Any] = {"rows": chance.choice([1, 3, 500]), "value": chance.randrange(1 << 40)}
    producer = {"producer": chance.randrange(2), "attempt": chance.choice("ab")}
    match form:
        case "overwrite":
            return {**rows, "command": {"mode": "overwrite", **numbered}}
        case "partition":
            return {**rows, "command": {"partition": chance.randrange(4)}}
        case "shuffle":
            return {**rows, "command": producer, "ends": chance.choice(["commit", "commit", "no"])}
        case "making":
            made = {"generation": numbered.get("generation", "@own"), "create": {"partitions": 2}}
            return {**rows, "command": {**producer, **made}, "ends": "commit"}
        case "staged":
            return {**rows, "command": {**producer, "generation": "@own"}, "ends": "commit"}
    return {**rows, "command": None}


def _copies(chance: random.Random, numbered: dict[str, Any], _: list[str]) -> dict[str, Any]:
    verb = chance.choice(VERBS)
    host = {"host": chance.choice("gh")} if verb not in ("withdraw", "which") else {}
    file = {"file": chance.choice(["f", "f2"])} if verb not in ("withdraw", "which") else {}
    return {"verb": verb, "generation": "@own", **numbered, **host, **file}


def _hold(chance: random.Random, numbered: dict[str, Any], _: list[str]) -> dict[str, Any]:
    return {"hold": chance.choice("xy"), **numbered, **chance.choice([{}, {}, {"release": True}])}


def _acknowledge(chance: random.Random, numbered: dict[str, Any], _: list[str]) -> dict[str, Any]:
    return {"generation": "@own", **numbered, "partition": 0, "reader": "r", "frames": chance.randrange(2)}


def _plain(_: random.Random, numbered: dict[str, Any], __: list[str]) -> dict[str, Any]:
    return numbered


def _read(chance: random.Random, numbered: dict[str, Any], _: list[str]) -> dict[str, Any]:
    end = chance.choice(["", "", "/0", "/3", "/partitions/0", "/partitions/3"])
    return {"end": end, "json": chance.random() < 0.5, "partition": chance.choice([0, 0, 3]), **numbered}


def _listed(chance: random.Random, _: dict[str, Any], __: list[str]) -> dict[str, Any]:
    prefix = chance.choice(["", "", "a", "a/", "d", "d/x", "b"])
    return {
        "of": chance.choice([True, False]),
        "prefix": prefix,
        "order": chance.choice(["name", "attention"]),
    }


_DRAWN: dict[str, tuple[int, Any]] = {
    "create": (9, _create),
    "put": (16, _put),
    "seal": (5, lambda chance, numbered, _: {**numbered, **chance.choice([{}, {"attempts": {"0": "a"}}])}),
    "drop": (3, lambda chance, numbered, _: {**numbered, **chance.choice([{}, {}, {"staged": True}])}),
    "renew": (1, _plain),
    "acknowledge": (2, _acknowledge),
    "hold": (4, _hold),
    "plan": (2, lambda _, numbered, __: {"target_bytes": 1, **numbered}),
    "copies": (6, _copies),
    "statistics": (4, _listed),
    "why": (2, _listed),
    "locations": (1, lambda *_: {}),
    "cancel": (1, _read),
    "renew endpoint": (1, _read),
    "list": (2, _listed),
    "info": (3, lambda chance, *_: {"partition": chance.choice([None, None, 0, 3])}),
    "poll": (1, lambda chance, *_: {"partition": chance.choice([None, 0])}),
    "schema": (1, lambda *_: {"partition": None}),
    "get": (7, _read),
    "GET": (7, _read),
    "HEAD": (2, _read),
    "GET list": (2, _listed),
    "GET statistics": (2, _listed),
    "GET why": (1, _listed),
    "GET rows": (3, _plain),
    "GET history": (1, lambda *_: {}),
    "GET metrics": (1, lambda *_: {}),
    "POST hold": (1, _hold),
    "POST put": (1, lambda *_: {}),
}


def stolen(call: Call, theirs: dict[str, str]) -> Call:
    """The call with the generations that the others have now."""

    def found(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: found(each) for key, each in value.items()}
        if isinstance(value, str) and value.startswith("@theirs:"):
            number = theirs.get(value.removeprefix("@theirs:"))
            return "@guess" if number is None else f"@is:{number}"
        return value

    return replace(call, given=found(call.given))


class Side:
    """One principal on one server, whose ``start`` is known. ``drawn``: whether the server has drawn the generations of
    the others; if not, some that it has not drawn stand for them.
    """

    def __init__(self, server: ServerProcess, token: str, start: str, *, drawn: bool = True) -> None:
        assert server.http is not None
        self.raw = RawFlight(server.location, token=token)
        self.generations: dict[str, str] = {}
        self._start = start
        self._drawn = drawn
        self._http = server.http.removeprefix("http://")
        self._token = token
        self._named = {start: "START"}
        self._connection = http.client.HTTPConnection(self._http, timeout=30)

    def close(self) -> None:
        self.raw.close()
        self._connection.close()

    def made(self, call: Call) -> tuple[str, Any]:
        """The status, and the masked answer."""
        given = {key: self._number(call.name, value) for key, value in call.given.items()}
        if isinstance(given.get("command"), dict):
            given["command"] = {k: self._number(call.name, v) for k, v in given["command"].items()}
        try:
            status, answer = "OK", self._answer(call.what, call.name, given)
        except Refused as refused:
            status = refused.status
            answer = [refused.message, json.loads(refused.trailers.get("x-flight-shuffle-error", "null"))]
        except grpc.RpcError as error:
            status, answer = error.code().name, error.details()
        if call.what.startswith(("GET", "HEAD", "POST")):
            status, answer = answer[0], answer[1:]
        self._note(call.name, answer)
        return status, self._masked(answer)

    def _number(self, name: str, value: Any) -> Any:
        if not isinstance(value, str) or not value.startswith("@"):
            return value
        if value == "@own":
            return self.generations.get(name, FOREIGN)
        if value == "@foreign":
            return FOREIGN
        if value.startswith("@is:"):
            theirs = value.removeprefix("@is:")
            number = theirs if self._drawn or theirs == FOREIGN else self._unused(theirs)
            if number != FOREIGN:
                self._named.setdefault(number, f"THEIRS {theirs}")
            return number
        return self._unused(self._token + value)

    def _unused(self, mark: str) -> str:
        """A generation of this start of the server that it has not drawn."""
        return f"{self._start[:8]}ff{hashlib.sha256(mark.encode()).hexdigest()[:6]}"

    def _answer(self, what: str, name: str, given: dict[str, Any]) -> Any:
        raw = self.raw
        match what:
            case "put":
                return self._put(name, **given)
            case "create" | "seal" | "drop" | "renew" | "acknowledge" | "hold" | "plan" | "copies":
                return raw.action(what, {"dataset": name, **given})
            case "statistics" | "why":
                order = {"order": given["order"]} if what == "statistics" and not given["of"] else {}
                return raw.action(what, {"dataset": name} if given["of"] else order)
            case "locations":
                return raw.action(what)
            case "cancel":
                endpoint = raw_flight.field(1, raw_flight.field(1, self._ticket(name, given)))
                raw.action("CancelFlightInfo", raw_flight.field(1, raw_flight.field(3, endpoint)))
                return "cancelled"
            case "renew endpoint":
                endpoint = raw_flight.field(1, raw_flight.field(1, self._ticket(name, given)))
                raw.action("RenewFlightEndpoint", raw_flight.field(1, endpoint))
                return "renewed"
            case "list":
                infos = raw.ask("ListFlights", raw_flight.field(1, given["prefix"].encode()))
                return [_info(each) for each in infos]
            case "info" | "poll" | "schema":
                rpc = {"info": "GetFlightInfo", "poll": "PollFlightInfo", "schema": "GetSchema"}[what]
                parts = [name] if given["partition"] is None else [name, str(given["partition"])]
                (answer,) = raw.ask(rpc, path(*parts))
                if what == "poll":
                    answer = raw_flight.fields_of(answer)[1]
                return hashlib.sha256(answer).hexdigest() if what == "schema" else _info(answer)
            case "get":
                ticket = self._ticket(name, given)
                return [_digest(each) for each in raw.get(ticket, deadline_seconds=DEADLINE_SECONDS)]
        return self._over_http(what, name, given)

    def _ticket(self, name: str, given: dict[str, Any]) -> bytes:
        if not given["json"]:
            return f"{name}{given['end']}".encode()
        generation = {} if given.get("generation") is None else {"generation": given["generation"]}
        return json.dumps({"dataset": name, "partition": given["partition"], **generation}).encode()

    def _put(self, name: str, rows: int, value: int, command: dict[str, Any] | None, ends: str = "") -> Any:
        batch = pa.record_batch({"n": pa.array(range(value, value + rows), pa.int64())})
        descriptor = path(name) if command is None else raw_flight.command({"dataset": name, **command})
        several = ends != ""
        messages = put_messages(descriptor, [batch], metadata=iter([b"0"]) if several else None)
        answers = self.raw.put([*messages, *([commit(rows, 1)] if ends == "commit" else [])])
        return [json.loads(each) if each.startswith(b"{") else each.hex() for each in answers]

    def _over_http(self, what: str, name: str, given: dict[str, Any]) -> Any:
        method, _, route = what.partition(" ")
        body = None
        if route == "":
            target = f"/v1/datasets/{quote(name, safe='' if given['json'] else '/')}{given['end']}"
            if given.get("generation") is not None:
                target += f"?generation={given['generation']}"
        elif route in ("list", "statistics", "why"):
            target = {"list": "/v1/datasets", "statistics": "/v1/statistics", "why": "/v1/why"}[route]
            if route == "list":
                target += f"?prefix={quote(given['prefix'], safe='')}"
            elif given["of"]:
                target += f"?dataset={quote(name, safe='')}"
        else:
            target = "/metrics" if route == "metrics" else f"/v1/{route}"
            target += f"?{urlencode({'dataset': name, **given})}" if route == "rows" else ""
            body = json.dumps({"dataset": name, **given}) if route == "hold" else None
        try:
            if self._connection.sock is None:
                self._connection.connect()
            self._connection.sock.settimeout(DEADLINE_SECONDS if what == "GET" else 30)
            self._connection.request(method, target, body, {"authorization": f"Bearer {self._token}"})
            answer = self._connection.getresponse()
            data = answer.read()
        except (TimeoutError, http.client.IncompleteRead):
            self._connection.close()
            return ["DEADLINE_EXCEEDED"]
        except (ConnectionError, http.client.HTTPException):
            self._connection.close()
            return ["BROKEN"]
        headers = sorted((key, value) for key, value in answer.getheaders() if key != "Date")
        said: Any = hashlib.sha256(data).hexdigest()
        if "json" in (answer.getheader("content-type") or ""):
            said = json.loads(data) if data else ""
            headers = [each for each in headers if each[0] != "Content-Length"]  # it has masked numbers
        return [_STATUS.get(answer.status, str(answer.status)), headers, said]

    def _note(self, name: str, answer: Any) -> None:
        for each in answer if isinstance(answer, list) else [answer]:
            if isinstance(each, dict) and isinstance(each.get("generation"), str) and "code" not in each:
                self.generations[name] = each["generation"]

    def _masked(self, value: Any) -> Any:
        if isinstance(value, dict):
            masked = MASKED | {"bytes"} if value.get("kind") == "changelog" else MASKED
            if "upper" in value and "merging" in value:
                value = {key: value.get(key) for key in ("upper", "holds")}
            return {
                key: None if key in masked or key.endswith("seconds") else self._masked(each)
                for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._masked(each) for each in value]
        if isinstance(value, str):
            value = _ADDRESS.sub("ADDRESS", _MOMENT.sub("MOMENT", value))
            return _NUMBER.sub(lambda found: self._named.setdefault(found[0], f"G{len(self._named)}"), value)
        return value


_STATUS = {
    200: "OK",
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    500: "INTERNAL",
}
_ADDRESS = re.compile(r"(ipv4:)?127\.0\.0\.1:[0-9]+")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} UTC")
_NUMBER = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")


def _digest(message: bytes) -> str:
    fields = raw_flight.fields_of(message)
    return " ".join(
        f"{key}:{hashlib.sha256(value).hexdigest()[:12]}" for key, value in sorted(fields.items())
    )


def _info(data: bytes) -> Any:
    info = flight.FlightInfo.deserialize(data)
    ends = [
        [
            each.ticket.ticket.decode(),
            [uri.uri.decode() for uri in each.locations],
            each.app_metadata.decode(),
        ]
        for each in info.endpoints
    ]
    return [info.total_records, info.total_bytes, str(info.schema), str(info.descriptor), ends]
