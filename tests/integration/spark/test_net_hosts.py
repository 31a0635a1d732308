"""A cluster whose hosts are network namespaces: which bytes cross the network, and hosts that are cut off.

One driver's host, and three hosts with a worker, an executor and its server each. Skipped where namespaces cannot be
made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_client import ShuffleClient, Timeouts
from spark_client.executors.executor_servers import address_towards
from spark_client.pipeline import execution
from tests.support.driver_process import DriverProcess, say, session
from tests.support.failing_tasks import first_time
from tests.support.net_hosts import NetHost, net_hosts
from tests.support.polling import eventually
from tests.support.spark_cluster import ALL_EXECUTORS, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

ROWS = 30_000
ROW_BYTES = 1000
REUSE = "arrow-flight-reuse-connection://?"
SPARK = {
    **ALL_EXECUTORS,
    "executor__heartbeatInterval": "1s",
    "network__timeout": "6s",
    "network__timeoutInterval": "2s",
    "sql__execution__arrow__maxRecordsPerBatch": "500",
    "task__maxFailures": "2",
}
TIMEOUTS = Timeouts(
    call_seconds=4,
    stall_seconds=4,
    first_message_seconds=4,
    connect_seconds=1,
    tries=1,
)
PATIENCE_SECONDS = 120.0


# What the driver does.


def drive(master: str, settings: dict[str, str], directory: str) -> None:
    """One step after the other, by the names that the test writes."""
    with session(master, settings) as spark:
        for number in range(100):
            name = wait_for(Path(directory, f"step {number}"))
            if name == "end":
                return
            with ShuffleClient.in_executors(
                spark, memory_limit="64MiB", drain_grace_seconds=0, timeouts=TIMEOUTS
            ) as client:
                try:
                    say(f"step {number}", STEPS[name](client, spark, Path(directory)))
                except Exception as error:  # noqa: BLE001 - the test looks at it
                    say(f"step {number}", f"{type(error).__name__}: {error}")


def wait_for(path: Path) -> str:
    """The text of a file that the other side makes."""
    eventually(path.exists, True, PATIENCE_SECONDS)
    return path.read_text()


def tell(path: Path, text: str = "") -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def random_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows that no compression makes smaller."""
    import numpy as np

    for batch in batches:
        data = pa.py_buffer(np.random.default_rng().bytes(len(batch) * ROW_BYTES))
        offsets = pa.py_buffer(np.arange(len(batch) + 1, dtype=np.int32) * ROW_BYTES)
        text = pa.Array.from_buffers(pa.binary(), len(batch), [None, offsets, data])
        yield pa.record_batch({"id": batch.column("id"), "s": text})


def ids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["id"])


def waits(directory: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first task that comes here names its host, in the midst of its rows, and waits."""
    for number, batch in enumerate(batches):
        yield batch
        if number == 2 and first_time(directory / "came"):
            tell(directory / "host", address_towards("10.66.0.1"))
            wait_for(directory / "cut")


def complete(pipeline: Any) -> bool:
    return sorted(pipeline.toArrow()["id"].to_pylist()) == [*range(ROWS)]


def rows(client: ShuffleClient, spark: SparkSession) -> Any:
    return client.pipeline(spark.range(0, ROWS, numPartitions=12)).mapInArrow(
        random_rows, "id long, s binary"
    )


def measured(client: ShuffleClient, spark: SparkSession, directory: Path) -> Any:
    client.pipeline(spark.range(0, ROWS, numPartitions=12)).repartition(
        12, "id"
    ).count()  # starts the servers
    wait_for(directory / "write")
    kept = rows(client, spark).repartition(12, "id").persist()
    assert kept.count() == ROWS
    tell(directory / "written")
    wait_for(directory / "read")
    assert complete(kept.mapInArrow(ids, "id long"))
    tell(directory / "done")
    (name,) = {each.name for each in client.datasets("exchange/") if each.rows == ROWS}
    header = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {client._server.token}".encode())])
    first = client._servers.locations[0]
    with flight.connect(first) as stranger:
        info = stranger.get_flight_info(flight.FlightDescriptor.for_path(name), header)
    found: list[int] = []
    servers = [each.locations[0].uri.decode() for each in info.endpoints]
    for endpoint, server in zip(info.endpoints, servers, strict=True):
        with flight.connect(first if server == REUSE else server) as stranger:
            found += stranger.do_get(endpoint.ticket, header).read_all()["id"].to_pylist()
    assert sorted(found) == [*range(ROWS)]
    return len({*servers})


def cut(when: str, client: ShuffleClient, spark: SparkSession, directory: Path) -> Any:
    hold = partial(waits, directory)
    execution.WRITE_BUDGET_BYTES = 1 << 20
    made = rows(client, spark)
    if when == "written":
        made = made.mapInArrow(hold, "id long, s binary")
    made = made.repartition(6, "id")
    if when == "read":
        made = made.mapInArrow(hold, "id long, s binary")
    if when == "sealed":
        assert complete(made.persist().mapInArrow(ids, "id long"))
        hosts = [each.rpartition("//")[2].partition(":")[0] for each in client._servers.locations]
        tell(directory / "host", hosts[0])
        wait_for(directory / "cut")
    return complete(made.mapInArrow(ids, "id long"))


STEPS: dict[str, Callable[[ShuffleClient, SparkSession, Path], Any]] = {
    "measured": measured,
    "written": partial(cut, "written"),
    "sealed": partial(cut, "sealed"),
    "read": partial(cut, "read"),
}


# The tests.


class Steps:
    """The driver, which goes on with the step that it is given."""

    def __init__(self, driver: DriverProcess, directory: Path) -> None:
        self._driver, self._directory, self._number = driver, directory, 0
        self.directory = directory

    def begin(self, name: str) -> None:
        for path in self._directory.iterdir():
            path.unlink()
        tell(self._directory / f"step {self._number}", name)

    def end(self) -> Any:
        """What the step has returned, or its error."""
        self._number += 1
        return self._driver.wait_for(f"step {self._number - 1}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[NetHost]]:
    with net_hosts(4) as found:
        yield found


@pytest.fixture(scope="module")
def steps(java_home: str, hosts: list[NetHost], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steps]:
    options = dict.fromkeys(("SPARK_MASTER_OPTS", "SPARK_WORKER_OPTS"), "-Dspark.worker.timeout=4")
    directory, address = tmp_path_factory.mktemp("steps"), hosts[0].address
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), hosts=hosts, environment=options) as cluster:
        settings = {**cluster.settings, **SPARK, "driver__host": address, "driver__bindAddress": address}
        with DriverProcess(drive, cluster.master, settings, str(directory), host=hosts[0]) as driver:
            found = Steps(driver, directory)
            yield found
            found.begin("end")
            assert driver.wait() == 0


def test_each_byte_crosses_the_network_once_and_any_flight_client_reads_from_all_servers(
    hosts: list[NetHost], steps: Steps
) -> None:
    def sent() -> int:
        return sum(host.sent_bytes for host in hosts[1:])

    steps.begin("measured")
    at = [sent()]
    for begin, end in (("write", "written"), ("read", "done")):
        tell(steps.directory / begin)
        wait_for(steps.directory / end)
        at.append(sent())
    assert steps.end() == 3, "servers"
    size_bytes = ROWS * ROW_BYTES
    assert at[1] - at[0] < size_bytes / 10, "written where the tasks run"
    assert size_bytes / 2 < at[2] - at[1] < size_bytes * 0.8, "two thirds of it"


@pytest.mark.parametrize("when", ["written", "sealed"])
def test_rows_come_once_when_a_host_is_cut_off(hosts: list[NetHost], steps: Steps, when: str) -> None:
    steps.begin(when)
    address = wait_for(steps.directory / "host")
    (host,) = (each for each in hosts[1:] if each.address == address)
    host.link("down")
    try:
        tell(steps.directory / "cut")
        assert steps.end() is True
    finally:
        host.link("up")
