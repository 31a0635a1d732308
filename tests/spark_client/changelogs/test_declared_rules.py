"""Declarations of changelogs: what is sent, and what is refused before anything is sent."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol import CreateRequest
from flight_server.protocol.errors import InvalidRequest
from spark_client import latest, pair, top_k, until_closed
from spark_client.changelogs.declared_rules import declaration

SCHEMA = pa.schema([("currency", pa.string()), ("time", pa.int64()), ("kind", pa.string())])
BY = {"key": "currency", "order_by": "time"}


@pytest.mark.parametrize(
    ("keep", "arguments", "expected"),
    [
        (latest(), BY, {"rule": "latest", "key": ["currency"], "order_by": ["time"]}),
        (
            top_k(3),
            {"key": ["currency", "kind"], "order_by": ["-time", "kind"]},
            {"rule": "top_k", "key": ["currency", "kind"], "order_by": ["-time", "kind"], "k": 3},
        ),
        (
            until_closed({"kind": "closed"}, k=2),
            BY,
            {
                "rule": "until_closed",
                "key": ["currency"],
                "closed_by": {"kind": "closed"},
                "keep": {"rule": "top_k", "order_by": ["time"], "k": 2},
            },
        ),
        (
            pair(emit="latencies"),
            {"key": "currency"},
            {
                "rule": "pair",
                "key": ["currency"],
                "kind": "kind",
                "values": ["send", "recv"],
                "emit": "latencies",
            },
        ),
    ],
    ids=["latest", "top_k", "until_closed", "pair"],
)
def test_a_rule_is_sent_with_its_key_and_order(
    keep: Any, arguments: dict[str, Any], expected: dict[str, Any]
) -> None:
    request = declaration("d", SCHEMA, keep=keep, delay_seconds=0.5, **arguments)
    again = CreateRequest.parse(request.encode())
    assert again == request
    assert again.keep is not None
    assert again.keep.to_json() == expected
    assert again.delay_seconds == 0.5
    assert again.schema is not None
    assert pa.ipc.read_schema(pa.py_buffer(base64.b64decode(again.schema))) == SCHEMA


def test_without_a_rule_everything_is_kept() -> None:
    request = declaration("d", SCHEMA)
    assert (request.keep, request.delay_seconds) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"keep": latest(), "order_by": "time"}, "'key'"),
        ({"keep": latest(), "key": "currency"}, "'order_by'"),
        ({"keep": latest(), "key": ["time", "time"], "order_by": "time"}, "twice"),
        ({"keep": top_k(0), **BY}, "'k'"),
        ({"keep": until_closed({}), **BY}, "closed_by"),
        ({"keep": until_closed({"kind": None}), **BY}, "closed_by"),
        ({"keep": pair(values=("send", "send")), "key": "currency"}, "values"),
        ({"keep": "latest", **BY}, "latest"),
        ({"key": "currency"}, "keep"),
        ({"delay_seconds": -1.0}, "delay_seconds"),
    ],
)
def test_a_wrong_declaration_is_named(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        declaration("d", SCHEMA, **arguments)
