"""What the tasks of a write stage and its driver seals, on a real server: calls that are repeated, and long tasks."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import LongType, StructField, StructType

from flight_server.protocol import MAX_PARTITIONS, Conflict, FlightShuffleError, InvalidRequest, WriteMode
from spark_client import ShuffleClient
from spark_client.datasource import staging as staging_module
from spark_client.datasource.batch_read import FlightReader, find
from spark_client.datasource.source_options import BATCH_READ, BATCH_WRITE, STREAM_WRITE, SourceOptions
from spark_client.datasource.staging import FEW_BYTES, LostWrite, StagedWrite, Staging, few_bytes
from spark_client.datasource.writers import FlightStreamWriter, FlightWriter
from tests.support.certificates import Authority
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("task")

STRUCT = StructType([StructField("id", LongType())])


def options(location: str, use: str = BATCH_WRITE, **given: str) -> SourceOptions:
    return SourceOptions({"location": location, "path": "d", **given}, use)


def staging(location: str, mode: WriteMode = WriteMode.APPEND, **given: str) -> Staging:
    return Staging.of(options(location, **given), STRUCT, mode, together=False)


def batches(*numbers: int) -> Iterator[Any]:
    return (pa.record_batch({"id": [number]}) for number in numbers)


def plan(given: dict[str, str]) -> FlightReader:
    checked = SourceOptions(given, BATCH_READ)
    return FlightReader.plan(checked, find(checked.server(), "d"), STRUCT)


def ids(client: ShuffleClient) -> list[int]:
    found: list[int] = client.get("d", ordered=True).read_all()["id"].to_pylist()
    return found


def test_a_seal_without_an_answer_is_made_again_and_appends_once(
    empty_server: ServerProcess, client: ShuffleClient
) -> None:
    client.put("d", pa.table({"id": [0]}))
    with Proxy.to(empty_server.location) as proxy:
        write = staging(proxy.location, lane="grpc")
        written = write.write(batches(1, 2))
        proxy.cut_after(1)
        write.seal([written])
        assert proxy.cuts == 1
        write.server.close()
    assert ids(client) == [0, 1, 2]


def test_a_server_that_does_not_come_back_is_an_error_of_the_seal(
    empty_server: ServerProcess, client: ShuffleClient
) -> None:
    with Proxy.to(empty_server.location) as proxy:
        write = staging(proxy.location, lane="grpc", tries="1")
        written = write.write(batches(1))
        proxy.refuse()
        proxy.cut()
        with pytest.raises(FlightShuffleError, match="no server answers"):
            write.seal([written])
        write.server.close()
    assert isinstance(written, StagedWrite)
    replace(write, server=staging(empty_server.location).server).drop([written.generation])


def test_a_seal_of_what_the_server_has_no_more_says_so_also_where_the_name_leads_to_a_dataset(
    empty_server: ServerProcess, client: ShuffleClient
) -> None:
    client.put("d", pa.table({"id": [0]}))
    write = staging(empty_server.location)
    written = write.write(batches(1))
    assert isinstance(written, StagedWrite)
    write.drop([written.generation])
    with pytest.raises(FlightShuffleError, match="nothing was published, write it again"):
        write.seal([written])
    assert ids(client) == [0]


def test_a_small_write_survives_a_restart_of_the_server_before_its_seal_and_a_large_one_is_lost(
    task: TaskContext,
) -> None:
    servers = [ServerProcess.start(http_port=0)]
    location = servers[0].location

    def restart() -> None:
        servers.append(servers[-1].restart())

    with ShuffleClient(location) as client:
        write = staging(location)
        written = [write.write(batches(1))]
        restart()
        task._partitionId, task._taskAttemptId = 1, 8
        written.append(write.write(batches(2, 3)))  # in another generation
        restart()
        write.seal(written)
        assert ids(client) == [1, 2, 3]
        large = staging(location)
        written = [large.write(iter([pa.record_batch({"id": range(FEW_BYTES // 8 + 1)})]))]
        restart()
        with pytest.raises(LostWrite, match="nothing was published, write it again") as lost:
            large.seal(written)
        assert not lost.value.detail["may_be_published"]
        assert client.datasets() == []
    servers[-1].terminate()
    servers[-1].close()


def test_the_driver_has_room_for_the_few_rows_that_all_tasks_keep() -> None:
    assert few_bytes(0) == few_bytes(200) == FEW_BYTES
    assert sum(map(few_bytes, range(MAX_PARTITIONS))) < 256 << 20  # of Spark's 1 GiB


def test_a_put_that_breaks_is_sent_again_while_its_rows_are_few(
    empty_server: ServerProcess, client: ShuffleClient
) -> None:
    with Proxy.to(empty_server.location) as proxy:
        write = staging(proxy.location, lane="grpc")

        def rows() -> Iterator[Any]:
            yield from batches(1)
            proxy.cut()
            yield from batches(2)

        write.seal([write.write(rows())])
        assert proxy.cuts == 1
        write.server.close()
    assert ids(client) == [1, 2]


@pytest.mark.parametrize("kind", ["changelog", pytest.param("durable", marks=pytest.mark.long)])
def test_a_write_with_a_transaction_is_made_once_also_after_a_restart_of_the_server(
    tmp_path: Path, kind: str
) -> None:
    def write(process: ServerProcess, version: int) -> bool:
        """Whether it was wanted."""
        of_kind = {"durable": "true"} if kind == "durable" else {"changelog": "all"}
        given = options(process.location, transaction_app="job", transaction_version=str(version), **of_kind)
        writer = FlightWriter.plan(given, STRUCT, overwrite=kind == "durable")
        writer.commit([writer.write(batches(version))])
        return writer._writes

    with ServerProcess.start(http_port=0, data_dir=tmp_path) as process:
        assert [write(process, version) for version in (3, 4, 3)] == [True, True, False]
        process.kill()
    with ServerProcess.start(http_port=0, data_dir=tmp_path) as process:
        assert [write(process, version) for version in (4, 3)] == [False, False]
        with ShuffleClient(process.location) as client:
            assert ids(client) == ([4] if kind == "durable" else [3, 4])
        assert write(process, 5)


def test_half_a_transaction_is_refused(empty_server: ServerProcess) -> None:
    with pytest.raises(InvalidRequest, match="'transaction_app' and 'transaction_version' go together"):
        options(empty_server.location, transaction_app="job")


def test_a_batch_that_is_aborted_after_it_was_published_stays(
    empty_server: ServerProcess, client: ShuffleClient
) -> None:
    for overwrite in (False, True):
        writer = FlightStreamWriter.plan(
            options(empty_server.location, STREAM_WRITE), STRUCT, overwrite=overwrite
        )
        written = writer.write(batches(1))
        writer.commit([written], 0)
        writer.abort([written], 0)  # Spark does so if it has not learnt of the commit
        assert ids(client) == [1]


def test_a_micro_batch_is_one_partition_or_several_where_it_is_large(
    empty_server: ServerProcess, client: ShuffleClient, task: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch, partitions in enumerate((1, 3, 4)):
        if batch == 1:
            monkeypatch.setattr(staging_module, "JOINED_BYTES", 1)
        elif batch == 2:
            monkeypatch.undo()
        writer = FlightStreamWriter.plan(
            options(empty_server.location, STREAM_WRITE), STRUCT, overwrite=False
        )
        messages: list[Any] = []
        for number in range(2):
            task._partitionId = number
            messages.append(writer.write(batches(10 * batch + number)))
        writer.commit(messages, batch)
        (info,) = client.datasets("d")
        assert info.partitions == partitions
    assert ids(client) == [0, 1, 10, 11, 20, 21]


def test_a_job_that_is_aborted_after_it_was_published_stays(
    empty_server: ServerProcess, client: ShuffleClient
) -> None:
    writer = FlightWriter.plan(options(empty_server.location), STRUCT, overwrite=True)
    written = writer.write(batches(1))
    writer.commit([written])
    writer.abort([written])
    assert ids(client) == [1]
    with pytest.raises(Conflict, match="has ended"):
        writer.write(batches(2))


def test_what_is_pickled_into_tasks_has_token_and_certificate_and_shows_neither(tmp_path: Path) -> None:
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    authority = Authority.new(tmp_path, "ours")
    cert, key = authority.sign("both")
    with ServerProcess.start(
        tls_cert=cert, tls_key=key, tls_client_ca=authority.cert, token="s3cret"
    ) as process:
        of_server = {"location": process.location, "path": "d", "token": "s3cret"}
        of_server["tls_root_certs"] = authority.cert.read_text()
        of_server |= {"tls_client_cert": str(cert), "tls_client_key": str(key)}
        for lane in ("bulk", "grpc"):
            given = of_server | {"lane": lane}
            writer = FlightWriter.plan(SourceOptions(given, BATCH_WRITE), STRUCT, overwrite=True)
            sent: FlightWriter = pickle.loads(dumps(writer))
            sent.commit([sent.write(batches(1))])
            reader = plan(given)
            received: FlightReader = pickle.loads(dumps(reader))
            (share,) = reader.partitions()
            assert [batch["id"].to_pylist() for batch in received.read(share)] == [[1]]
            for thing in (sent._staging, received._ref, share):
                assert "s3cret" not in repr(thing)
                assert "CERTIFICATE" not in repr(thing)
                assert key.read_bytes() not in dumps(thing)
            writer._staging.server.close()
        with pytest.raises(FlightShuffleError) as refused:
            plan(of_server | {"token": "wr0ng"})
        assert "wr0ng" not in str(refused.value)


def test_batches_cannot_be_appended_durably_and_the_query_is_refused(empty_server: ServerProcess) -> None:
    given = options(empty_server.location, STREAM_WRITE, durable="true")
    with pytest.raises(
        InvalidRequest, match=r"option 'durable' of df\.writeStream goes with output mode 'complete'"
    ):
        FlightStreamWriter.plan(given, STRUCT, overwrite=False)


def test_a_task_that_works_for_long_keeps_what_others_have_staged() -> None:
    lease_seconds = 1.5
    code = (
        "from flight_server.datasets import staged_writes\n"
        f"staged_writes.WRITE_LEASE_SECONDS = {lease_seconds}\n"
        "from flight_server.__main__ import main\n"
        "main()"
    )
    with (
        ServerProcess.start(http_port=0, command=(sys.executable, "-c", code)) as process,
        ShuffleClient(process.location) as client,
    ):
        write, left = staging(process.location), staging(process.location)
        first = write.write(batches(1))
        left.stage()

        def slowly() -> Iterator[Any]:
            left.stage()
            eventually(
                lambda: client.statistics()["staged"]["count"], 1
            )  # the one that no task works for has ended
            yield from batches(2)

        context = TaskContext.get()
        assert context is not None
        context._partitionId = 1
        write.seal([first, write.write(slowly())])
        assert ids(client) == [1, 2]


@pytest.mark.parametrize("kind", ["durable", pytest.param("changelog", marks=pytest.mark.long)])
def test_a_write_that_another_one_has_made_since_its_plan_is_left_out_by_its_tasks(
    tmp_path: Path, kind: str
) -> None:
    of_kind = {"durable": "true"} if kind == "durable" else {"changelog": "all"}
    names = ("without-a-task", "a-task-after-the-restart", "a-task-on-each-side-of-it")

    def planned(process: ServerProcess, name: str) -> FlightWriter:
        given = options(
            process.location, transaction_app="job", transaction_version="1", path=name, **of_kind
        )
        return FlightWriter.plan(given, STRUCT, overwrite=kind == "durable")

    late = {}
    with ServerProcess.start(data_dir=tmp_path) as process:
        for name in names:
            first, second = planned(process, name), planned(process, name)
            late[name] = second, [second.write(batches(1))] if name == names[2] else []
            first.commit([first.write(batches(1))])
        again = process.restart(data_dir=tmp_path)
    with again, ShuffleClient(again.location) as client:
        for name, (second, early) in late.items():
            second.commit([*early, *([second.write(batches(1))] if name != names[0] else [])])
            assert client.get(name).read_all()["id"].to_pylist() == [1]
        assert client.staged() == []


def test_a_write_with_a_transaction_that_was_overwritten_before_its_seal_was_answered_has_succeeded(
    empty_server: ServerProcess, client: ShuffleClient
) -> None:
    given = options(empty_server.location, transaction_app="job", transaction_version="1")
    first = FlightWriter.plan(given, STRUCT, overwrite=True)
    written = first.write(batches(1))
    first.commit([written])
    second = FlightWriter.plan(options(empty_server.location), STRUCT, overwrite=True)
    second.commit([second.write(batches(2))])
    first.commit([written])  # as when the answer was lost
    assert ids(client) == [2]
