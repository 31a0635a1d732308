"""The page of the keys of ``statistics`` has those of a real server's answers, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import flight

from flight_server.protocol import DatasetRequest, NotFound, dump_json
from spark_client import ShuffleClient, latest
from spark_client.connection import RemoteServer
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.token_hashes import hash_of_token

PAGE = Path(__file__).parents[3] / "flight_server" / "statistics.md"
NAMED = frozenset(
    "accounts attempt_states datasets errors partition_states partitions task_failures".split()  # noqa: SIM905
)
"""Of these the keys are names or numbers."""
WHOLE = frozenset({"keep", "held_back"})
PATHS = frozenset({"foreign_files", "damaged_records"})
RARE = re.compile(r"quarantine|task_failures|principal|.*\.portions|.*\.(damage|not_emitting)$")
"""Keys that a sound server does not answer, or not to an operator."""
TABLE = pa.table({"k": ["a", "b"], "t": [1, 2]})
BIG = pa.table({"bytes": [bytes(1 << 20)] * 24})
TOKENS = """
[principals.operator]
tokens = ["{}"]
read = [""]
write = [""]
admin = [""]
quotas = {{ bytes = "1GiB" }}
"""


def keys_of(value: Any, path: str = "") -> Iterator[str]:
    """As the page writes them; an account in an account as an account."""
    name = path.rpartition(".")[2]
    if isinstance(value, dict) and name not in WHOLE:
        for key, each in value.items():
            below = "*" if name in NAMED and path != "quotas.datasets" else key
            yield from keys_of(each, f"{path}.{below}".removeprefix(".").replace(".*.accounts", ""))
    elif isinstance(value, list) and (not value or isinstance(value[0], dict)) and name not in PATHS:
        for each in value:
            yield from keys_of(each, f"{path}[]")
    else:
        yield path


def answers(server: ServerProcess, folder: Path) -> Iterator[dict[str, Any]]:
    """Of a server with a dataset of each kind, a staged write, a read, an overwritten generation and an error."""
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer secret")])
    with (
        ShuffleClient(server.location, token="secret") as client,
        closing(flight.connect(server.location)) as stock,
    ):
        remote = client._server
        reads = []
        for _ in range(2):
            client.put("read", BIG, mode="overwrite")
            reads.append(stock.do_get(flight.Ticket(b"read"), options))
        rates = client.changelog("rates", TABLE.schema, key="k", order_by="t", keep=latest())
        rates.put(TABLE)
        source = {"format": "parquet", "path": str(folder / "a.parquet")}
        remote.action("create", {"dataset": "files", "kind": "source", "source": source})
        client.get("files").read_all()
        staged = {"dataset": "staged", "kind": "shuffle", "partitions": 1, "mode": "new", "write": "w"}
        generation = remote.action("create", staged)["generation"]
        remote.action("create", {"dataset": "open", "kind": "shuffle", "partitions": 1})
        puts = [
            stock.do_put(flight.FlightDescriptor.for_command(dump_json(each)), TABLE.schema, options)[0]
            for each in (
                {"dataset": "open", "producer": 0, "attempt": "1"},
                {"dataset": "staged", "producer": 0, "attempt": "1", "generation": generation},
            )
        ]
        with pytest.raises(NotFound):
            client.get("none")
        eventually(lambda: begun(remote), (1, 1, 1))
        with rates.hold(1):
            for name in (None, "read", "open", "files", "rates"):
                yield remote.action("statistics", DatasetRequest(name).encode())
        for put in puts:
            with pytest.raises(pa.ArrowInvalid, match="without its commit message"):
                put.close()
        for read in reads:
            read.cancel()


def begun(server: RemoteServer) -> tuple[int, int, int]:
    """The attempts of the two puts, and the readers of the newer data."""
    attempts = server.action("statistics", DatasetRequest("open").encode())["datasets"]["open"]["attempts"]
    staged = server.action("why")["staged"]["writes"]
    partitions = server.action("statistics", DatasetRequest("read").encode())["datasets"]["read"][
        "partitions"
    ]
    return len(attempts), len(staged[0]["attempt_states"]), partitions["0"]["readers"]


def test_the_page_has_each_key_of_a_servers_answers(tmp_path: Path) -> None:
    (sources := tmp_path / "sources").mkdir()
    pq.write_table(TABLE, sources / "a.parquet")
    (tokens := tmp_path / "tokens.toml").write_text(TOKENS.format(hash_of_token("secret")))
    with ServerProcess.start(data_dir=tmp_path / "data", token_file=tokens, source_roots=sources) as server:
        found = {key for answer in answers(server, sources) for key in keys_of(answer)}
    said = set(re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE))
    assert found - said == set()
    assert {key for key in said - found if not RARE.match(key)} == set()
