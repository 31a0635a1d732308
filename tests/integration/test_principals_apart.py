"""Principals that see nothing of each other do not meet: in names that they choose, in generations that they guess."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, Refused, command, commit, field, put_messages
from tests.support.server_process import ServerProcess

BATCH = pa.record_batch({"n": [1, 2, 3]})
SCHEMA = base64.b64encode(BATCH.schema.serialize().to_pybytes()).decode()


def principals(**prefixes: str) -> str:
    """A token file: each principal has its name as its token, and one prefix."""
    return "\n".join(
        f'[principals.{name}]\ntokens = ["sha256:{hashlib.sha256(name.encode()).hexdigest()}"]\n'
        f'read = ["{prefix}"]\nwrite = ["{prefix}"]'
        for name, prefix in prefixes.items()
    )


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    (file := tmp_path / "tokens.toml").write_text(principals(one="one/", two="two/"))
    return file


@pytest.fixture
def server(tokens: Path) -> Iterator[ServerProcess]:
    with ServerProcess.start(token_file=tokens, memory_limit="64MiB") as server:
        yield server
    assert server.events("internal_error") == []


@pytest.fixture
def one(server: ServerProcess) -> Iterator[RawFlight]:
    with RawFlight(server.location, token="one") as raw:
        yield raw


@pytest.fixture
def two(server: ServerProcess) -> Iterator[RawFlight]:
    with RawFlight(server.location, token="two") as raw:
        yield raw


def staged(raw: RawFlight, name: str, write: str) -> str:
    body = {"dataset": name, "kind": "shuffle", "schema": SCHEMA, "mode": "overwrite", "write": write}
    return str(raw.action("create", body)["generation"])


def test_two_principals_may_give_their_writes_one_name(one: RawFlight, two: RawFlight) -> None:
    theirs = staged(two, "two/d", "w")
    mine = staged(one, "one/d", "w")
    two.action("drop", {"dataset": "two/d", "generation": theirs, "staged": True})
    assert staged(one, "one/d", "w") == mine
    one.action("seal", {"dataset": "one/d", "generation": mine})


def test_a_dataset_with_the_generation_of_anothers_staged_write_does_not_end_it(
    one: RawFlight, two: RawFlight
) -> None:
    theirs = staged(two, "two/d", "w")
    forged = {"dataset": "one/d", "kind": "shuffle", "schema": SCHEMA, "generation": theirs}
    one.action("create", forged)
    one.action("drop", {"dataset": "one/d", "generation": theirs})
    put = {"dataset": "two/d", "generation": theirs, "producer": 0, "attempt": "a"}
    two.put([*put_messages(command(put), [BATCH], metadata=iter([b"0"])), commit(3, 1)])
    assert two.action("seal", {"dataset": "two/d", "generation": theirs})["rows"] == 3


def test_a_stream_that_began_before_two_changes_of_the_token_file_ends_with_its_principal(
    server: ServerProcess, tokens: Path, one: RawFlight, two: RawFlight
) -> None:
    def written(text: str, times: int) -> None:
        new = tokens.with_suffix(".new")
        new.write_text(text)
        new.replace(tokens)
        eventually(lambda: len(server.events("token_file_read")), times)

    one.action("create", {"dataset": "one/open"})
    reading = one.call("DoGet", field(1, b"one/open"))
    eventually(lambda: one.action("why")["count"], 1)
    both = principals(one="one/", two="two/")
    written(both.replace('read = ["one/"]', 'read = ["one/"]\nquotas = { streams = 9 }'), 1)
    written(principals(two="two/"), 2)
    with pytest.raises(grpc.RpcError) as ended:
        list(reading)
    assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        one.action("why")
