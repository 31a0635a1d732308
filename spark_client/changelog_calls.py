"""Calls of a client about changelogs: it opens them, and looks rows up in them for Spark."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from flight_server.protocol import KeepRule, check_dataset_name
from spark_client.connection import RemoteServer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from spark_client.changelogs import Changelog, Columns
    from spark_client.jobs import Shuffles
    from spark_client.lookup import Lookups


class ChangelogCalls:
    """The methods; the client has the connection."""

    _lookups: Lookups | None = None

    @abstractmethod
    def _open(self, name: str | None = None) -> RemoteServer:
        """The server of a changelog's name; raises InvalidRequest if the client is closed."""

    @abstractmethod
    def _owned(self) -> Shuffles:
        """The client's own objects; raises InvalidRequest if it is closed."""

    def changelog(
        self,
        name: str,
        schema: pa.Schema | None = None,
        *,
        key: Columns = None,
        order_by: Columns = None,
        keep: KeepRule | None = None,
        delay_seconds: float | None = None,
    ) -> Changelog:
        """Create a changelog, or find the one that is declared alike; with a name only, the existing one.

        See :meth:`.Changelog.declare`, also for the arguments and errors.
        """
        from spark_client.changelogs import Changelog  # noqa: PLC0415 - an add-on, which most clients do not use

        return Changelog.declare(
            self._open(name),
            check_dataset_name(name),
            schema,
            key=key,
            order_by=order_by,
            keep=keep,
            delay_seconds=delay_seconds,
        )

    def lookup(
        self,
        df: DataFrame,
        changelog: str,
        on: str | Sequence[str] | Mapping[str, str],
        how: Literal["left", "inner"] = "left",
        as_of: int | None = None,
    ) -> DataFrame:
        """``df``, a stream or not, joined with the rows of a changelog, which do not go through Spark.

        In a stream each micro-batch has the rows of one version, the newest when it first ran; see ``lookup.lookups``.

        Args:
            on: the key columns of both sides, as in ``df.join``; or for each of ``df`` that of the changelog, which
                is then left out as well.
            as_of: the version; None for the newest.

        Raises:
            InvalidRequest: an argument; types that are not compared; columns of both sides that have one name.
            NotFound: there is no such changelog, or, ``Compacted``, it no longer has the version.
        """
        return self._looking_up().join(df, changelog, on, how, as_of)

    def _looking_up(self) -> Lookups:
        from spark_client.lookup import Lookups  # noqa: PLC0415 - needs PySpark, which get and put do not

        owner = self._owned()
        if self._lookups is None:
            # Two threads may make one each: both are closed with the client.
            self._lookups = Lookups(owner)
        return self._lookups
