"""What a client needs of a Spark session to have servers in its executors, and on its driver's host."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flight_server.protocol import InvalidRequest
from spark_client.connection import RemoteServer
from spark_client.servers import DriverServer, ServerList

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_client.executors import ExecutorServers

_LEAST_BYTES = 256 << 20


def servers_in_executors(
    spark: SparkSession,
    calls: Mapping[str, Any],
    options: Mapping[str, Any],
    scratch_dirs: tuple[str, ...],
    driver: Mapping[str, Any],
) -> tuple[ServerList, ExecutorServers]:
    """What a client of :meth:`ShuffleClient.in_executors` has.

    Args:
        calls: arguments of a ``RemoteServer``, for all of them.
        options: of the executors' servers.
        driver: of the server on the driver's host.
    """
    from spark_client.executors import ExecutorServers  # noqa: PLC0415 - needs PySpark, which get and put do not
    from spark_client.jobs import overhead_bytes  # noqa: PLC0415 - as above
    from spark_client.settings import EXECUTORS  # noqa: PLC0415 - only here

    token = secrets.token_urlsafe(32)
    like = RemoteServer(EXECUTORS, token=token, direct=True, **calls)
    host = driver["host"] if "host" in driver else address_of_driver(spark)
    home = DriverServer(like, {**driver, "host": host, "token": token})
    options = {"memory_limit": max(_LEAST_BYTES, overhead_bytes(spark) // 2), **options}
    return ServerList(like, home=home), ExecutorServers(
        token, (str(spark.conf.get("spark.driver.host")), 9), options, scratch_dirs
    )


def address_of_driver(spark: SparkSession | None = None) -> str:
    """The address of this host for a session's executors, those of the active one for None: that by which this host
    reaches ``spark.driver.host``, which on Spark Classic is this host.

    Raises:
        InvalidRequest: there is no session; or its driver's host is not known, or has no address here.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - not for clients without Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    from spark_client.executors import address_towards  # noqa: PLC0415 - as above

    try:
        host = (spark or SparkSession.active()).conf.get("spark.driver.host")
        return address_towards(str(host))
    except (PySparkException, OSError) as error:
        raise InvalidRequest(
            "by which address do executors reach this host? Make the Spark session first, whose spark.driver.host says "
            f"it, or give host= and advertise_host= ({error})"
        ) from error
