"""``getOrCreate``: a client, and the defaults of the source ``flight``, from the session's settings."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException

from flight_server.protocol import InvalidRequest
from spark_client import Copies, Reading, ShuffleClient, Timeouts, Writing
from spark_client.connection import EmbeddedEnded
from spark_client.jobs import batch_limits, session_facts
from spark_client.steps import BatchLimits
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOKEN = "a-token-that-no-plan-has"
Settings = Callable[..., None]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess.start(environment={"FLIGHT_SERVER_TOKEN": TOKEN}) as found:
        yield found
        assert found.terminate() == 0


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Settings]:
    """Sets ``spark.flight.shuffle.*`` for one test."""
    names: list[str] = []

    def change(**values: str) -> None:
        for name, value in values.items():
            names.append(f"spark.flight.shuffle.{name.replace('__', '.')}")
            spark.conf.set(names[-1], value)

    yield change
    for name in names:
        spark.conf.unset(name)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


def test_a_notebook_needs_only_the_session(
    spark: SparkSession, server: ServerProcess, settings: Settings, token_file: Path
) -> None:
    from pyspark.sql import SparkSession

    settings(location=server.location, tokenFile=str(token_file), leaseSeconds="2min")
    client = ShuffleClient.getOrCreate(spark)
    with client:
        assert ShuffleClient.getOrCreate(spark) is client
        active = SparkSession.getActiveSession()
        assert active is not None
        assert ShuffleClient.getOrCreate(active) is client
        df = client.pipeline(spark.range(0, 100, 1, 2)).repartition(3, "id").toDF()
        assert sorted(row.id for row in df.collect()) == list(range(100))

        spark.range(10).write.format("flight").mode("overwrite").save("ten")
        assert client.get("ten").read_all().num_rows == 10
        assert spark.read.format("flight").option("columns", "id").load("ten").count() == 10
        client.drop("ten")
    assert client.closed
    with ShuffleClient.getOrCreate(spark) as other:
        assert other is not client
        assert other.datasets() == []


def test_settings_become_the_clients_arguments_and_arguments_win(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    certificates = tmp_path / "ca.pem"
    certificates.write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    settings(
        location="grpc+tls://flight:8815",
        token=TOKEN,
        tlsRootCerts=str(certificates),
        tlsClientCert="/run/client.crt",
        tlsClientKey="/run/client.key",
        leaseSeconds="90s",
        lane="grpc",
        compression="none",
        budgetBytes="64m",
        gatheredBytes="96m",
        scratchDir="/scratch",
        copies__dirs=f"{tmp_path}/first, {tmp_path}/second",
        copies__limitBytes="1g",
        tries="2",
        stallSeconds="1min",
        connectSeconds="2.5",
    )
    expected = {
        "location": "grpc+tls://flight:8815",
        "token": TOKEN,
        "tls_root_certs": certificates.read_bytes(),
        "tls_client_cert": Path("/run/client.crt"),
        "tls_client_key": Path("/run/client.key"),
        "reading": Reading("grpc", 64 << 20, "/scratch", gathered_bytes=96 << 20),
        "writing": Writing("grpc", compression=None),
        "timeouts": Timeouts(tries=2, stall_seconds=60.0, connect_seconds=2.5),
    }
    copies = Copies((f"{tmp_path}/first", f"{tmp_path}/second"), 1 << 30)

    def has(client: ShuffleClient, expected: dict[str, Any], copies: Copies, lease_seconds: float) -> None:
        assert {"location": client.location, **client._server.options} == expected
        assert (client._copies, client._lease_seconds) == (copies, lease_seconds)

    with ShuffleClient.getOrCreate(spark) as client:
        has(client, expected, copies, 90.0)
    given: dict[str, Any] = {"timeouts": Timeouts(tries=0), "reading": Reading(), "writing": Writing("bulk")}
    with ShuffleClient.getOrCreate(
        spark, lease_seconds=7.0, token="other", copies=Copies(), **given
    ) as client:
        has(client, expected | given | {"token": "other"}, Copies(), 7.0)


@pytest.mark.parametrize(
    ("name", "value", "answer"),
    [
        (
            "locaton",
            "x",
            r"no setting spark\.flight\.shuffle\.locaton \(did you mean .*\.shuffle\.location\?\)",
        ),
        ("lease_seconds", "9", r"did you mean spark\.flight\.shuffle\.leaseSeconds\?"),
        ("copiesDirs", "9", r"did you mean spark\.flight\.shuffle\.copies\.dirs\?"),
        ("zzz", "9", r"there is no setting .*\.zzz; there are budgetBytes, "),
        (
            "location",
            "flight",
            r"shuffle\.location: 'flight' is no address of a server: write 'grpc://flight:8815'",
        ),
        (
            "budgetBytes",
            "64Mbit",
            r"shuffle\.budgetBytes is a number of bytes .*'64m' or '64MiB', not '64Mbit'",
        ),
        (
            "tokenFile",
            "/token",
            r"spark\.flight\.shuffle\.token or spark\.flight\.shuffle\.tokenFile, not both",
        ),
    ],
)
def test_a_wrong_setting_is_named(
    spark: SparkSession, settings: Settings, name: str, value: str, answer: str
) -> None:
    settings(**{"location": "grpc://flight:8815", "token": TOKEN, name: value})
    with pytest.raises(InvalidRequest, match=answer) as refused:
        ShuffleClient.getOrCreate(spark)
    assert TOKEN not in str(refused.value)


def test_without_a_location_a_local_master_has_an_embedded_server(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"or call ShuffleClient\.getOrCreate\(spark\) before"):
        _without_defaults(spark)
    with ShuffleClient.getOrCreate(spark) as client:
        assert client.location.startswith("grpc://127.0.0.1:")
        assert ShuffleClient.getOrCreate(spark, location="embedded") is client


def test_the_source_of_a_client_replaces_another_without_a_warning(
    spark: SparkSession, server: ServerProcess
) -> None:
    from spark_client import FlightDataSource

    jvm: Any = spark._jvm
    log4j, logged = jvm.org.apache.logging.log4j, jvm.java.io.StringWriter()
    appender = log4j.core.appender.WriterAppender.createAppender(None, None, logged, "test", False, True)
    appender.start()
    log4j.LogManager.getRootLogger().addAppender(appender)
    logger = "org.apache.spark.sql.execution.datasources.DataSourceManager"
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.WARN)
    try:
        with ShuffleClient(server.location, token=TOKEN) as client:
            client.register(spark)
            client.register(spark)
        assert "replaced" not in logged.toString()
        spark.dataSource.register(FlightDataSource)  # those of others are logged as before
        assert "The data source flight replaced" in logged.toString()
    finally:
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)
        log4j.LogManager.getRootLogger().removeAppender(appender)


def test_registering_from_several_threads_leaves_the_loggers_level_to_the_user(
    spark: SparkSession, server: ServerProcess
) -> None:
    jvm: Any = spark._jvm
    log4j, wider = jvm.org.apache.logging.log4j, "org.apache.spark.sql.execution.datasources"
    configurator, level = log4j.core.config.Configurator, log4j.Level
    logger = log4j.LogManager.getLogger(f"{wider}.DataSourceManager")
    context = log4j.LogManager.getContext(False)

    def register_at_once(client: ShuffleClient) -> Any:
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(client.register, spark) for _ in range(12)]:
                done.result()
        return logger.getLevel().toString()

    try:
        with ShuffleClient(server.location, token=TOKEN) as client:
            configurator.setLevel(logger.getName(), level.INFO)
            assert register_at_once(client) == "INFO"
            context.getConfiguration().removeLogger(logger.getName())
            configurator.setLevel(wider, level.WARN)
            assert register_at_once(client) == "WARN"
            configurator.setLevel(wider, level.DEBUG)
            assert logger.getLevel().toString() == "DEBUG"
    finally:
        context.getConfiguration().removeLogger(wider)
        configurator.setLevel(logger.getName(), level.OFF)


def _without_defaults(spark: SparkSession) -> None:
    from spark_client import FlightDataSource

    spark.dataSource.register(FlightDataSource)
    spark.read.format("flight").load("ten")


def test_a_server_of_its_own_is_asked_for_by_name(spark: SparkSession, settings: Settings) -> None:
    settings(location="embedded", compression="lz4")
    with ShuffleClient.getOrCreate(spark) as client:
        assert client.location.startswith("grpc://127.0.0.1:")
        assert ShuffleClient.getOrCreate(spark) is client
        assert client._server.writing.compression == "lz4"
        client.put("countries", pa.table({"code": ["AT", "JP"]}))
        assert spark.read.format("flight").load("countries").count() == 2


def test_a_client_whose_embedded_server_was_killed_is_followed_by_another(spark: SparkSession) -> None:
    killed = ShuffleClient.getOrCreate(spark)
    assert killed._embedded is not None
    os.kill(killed._embedded.pid, signal.SIGKILL)
    eventually(lambda: killed.closed, True)
    with pytest.raises(EmbeddedEnded, match="has ended by itself or with its driver; make a new client"):
        killed.put("ten", pa.table({"n": [10]}))
    with ShuffleClient.getOrCreate(spark) as client:
        assert client is not killed
        client.put("ten", pa.table({"n": [10]}))
        assert spark.read.format("flight").load("ten").count() == 1


def test_a_token_goes_to_no_other_server_than_the_sessions(
    spark: SparkSession, server: ServerProcess, settings: Settings
) -> None:
    settings(location=server.location, token=TOKEN, lane="bulk")
    elsewhere = server.location.replace("127.0.0.1", "localhost")
    with ShuffleClient.getOrCreate(spark, location=elsewhere) as other:
        assert (other._server.token, other._server.reading.lane) == (None, "bulk")
    with ShuffleClient.getOrCreate(spark) as client:
        client.put("one", pa.table({"n": [1]}))
        assert spark.read.format("flight").load("one").count() == 1
        with pytest.raises(Exception, match="wants a token"):
            spark.read.format("flight").option("location", elsewhere).load("one")
        with (
            ShuffleClient.getOrCreate(spark, location=elsewhere),
            pytest.raises(Exception, match="wants a token"),
        ):
            spark.read.format("flight").load("one")
        assert ShuffleClient.getOrCreate(spark) is client
        assert spark.read.format("flight").load("one").count() == 1
        given = {"location": elsewhere, "token": TOKEN}
        assert spark.read.format("flight").options(**given).load("one").count() == 1
        client.drop("one")


def test_what_a_session_does_not_set_is_as_spark_has_it(spark: SparkSession) -> None:
    session, given = spark.newSession(), spark.sparkContext.getConf()
    unset = {name: each for name, each in session_facts._WHERE_UNKNOWN.items() if not given.contains(name)}
    assert len(unset) > 8
    missing = []
    for name, default in unset.items():
        if name.startswith("spark.sql."):  # others have no default that a session shows
            try:
                assert session.conf.get(name) == default, name
            except PySparkException:
                missing.append(name)
        assert session_facts.spark_setting(session, name) == default
    assert not missing or pyspark.__version__.startswith("4.1."), missing
    assert batch_limits(session) == BatchLimits(10_000, 64 << 20)
    with pytest.raises(KeyError):
        session_facts.spark_setting(session, "spark.no.such.setting")
