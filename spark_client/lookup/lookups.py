"""Lookups of a DataFrame's rows in a changelog: planned in the driver, done in Spark's tasks.

Guarantee: the result's rows are those of Spark's join with the changelog's rows at one version (``lookup_join``).
In a streaming query each micro-batch has its version (``version_pins``); a plan of a batch job has the one that was
the newest when it was made. ``as_of`` names one for both. An image is never older than its version, and never
another one: a version that cannot be had is an error.

Who holds the data
    Each host keeps one file of the rows with an index, and the changes since (``host_images``), for all lookups of one
    application with equal keys and values. Neither the driver nor Spark has the rows.

Holds
    The driver holds versions that it has named until the client's close, so that they are not compacted: all of
    ``as_of``, and of the newest ones of plans the last ``NEWEST_HELD`` for each changelog. A plan that is run after
    that may fail. Micro-batches pin their versions themselves. A function's pin, which the driver renews,
    and a note of it in the client, stay until the close, because a plan may use the function at any time.

A new generation
    A lookup is for the generation that the changelog had when the lookup was made. If it is dropped, or created anew,
    tasks fail. A query that is then started again, by a program that makes the lookup again, sees the new one, also in
    a micro-batch that is replayed: the old rows are gone.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.changelogs import VersionHold
from spark_client.datasource import spark_struct
from spark_client.executors import Portable, owner_of_session
from spark_client.jobs import (
    Shuffles,
    arrow_schema,
    check_frame,
    check_key,
    check_names_apart,
    declared_struct,
    find_columns,
    is_on,
    mapped,
)
from spark_client.joining import KeyForm
from spark_client.merge import DatasetRef

from .lookup_content import ChangelogSource, LookupContent
from .lookup_join import Chosen, How, Join, JoinTask

NEWEST_HELD = 8

On = str | Sequence[str] | Mapping[str, str]


class Lookups:
    """The lookups of one client."""

    def __init__(self, owner: Shuffles) -> None:
        self._owner = owner
        self._held: dict[tuple[str, str], dict[int, VersionHold]] = {}
        self._newest: list[tuple[tuple[str, str], int]] = []
        self._lock = threading.Lock()
        owner.at_close(self._close)

    def join(self, df: DataFrame, name: str, on: On, how: How, as_of: int | None) -> DataFrame:
        where = f"lookup in {name!r}"
        if how not in ("left", "inner"):
            raise InvalidRequest(f"{where}: how is 'left' or 'inner', not {how!r}")
        check_frame(df, where, streams=True)
        check_names_apart(df, where)
        spark = df.sparkSession
        self._owner.sessions.used(spark)
        struct = declared_struct(spark, df.schema, where)
        left = arrow_schema(spark, struct, where)
        server = self._owner.servers.of(name)
        ref, schema = DatasetRef.find(server, name), server.schema(name)
        pairs = dict(on) if isinstance(on, Mapping) else {key: key for key in _names(on)}
        exact = is_on(spark, "spark.sql.caseSensitive")
        keys = spelled(left, list(pairs), where, "in the DataFrame", exact=exact)
        for key in keys:
            check_key(struct[key], where)
        others = spelled(schema, list(pairs.values()), where, "in the changelog", exact=exact)
        columns = [column for column in schema.names if column not in others]
        _check_collisions(left.names, columns, where)
        right = spark_struct(schema, name, [*others, *columns])
        content = self._content(spark, ref, right, [left.field(key).type for key in keys])
        first = () if isinstance(on, Mapping) else keys
        fields = [struct[key] for key in first] + [each for each in struct if each.name not in first]
        fields += [StructField(each.name, each.dataType, True) for each in list(right)[len(keys) :]]  # noqa: FBT003 - Spark's signature
        result = StructType(fields)
        join = Join(keys, content.forms, how, first, arrow_schema(spark, result, where))
        version = None if df.isStreaming and as_of is None else self._hold(spark, ref, as_of)
        task = JoinTask(content, join, Chosen(version, always=as_of is not None))
        return mapped(df, Portable(task.run), result)

    def _content(
        self, spark: SparkSession, ref: DatasetRef, right: StructType, left: Sequence[pa.DataType]
    ) -> LookupContent:
        name = ref.dataset
        declared = arrow_schema(spark, right, f"lookup in {name!r}")
        forms = tuple(
            KeyForm.of(kind, field.type, f"lookup in {name!r}: key {field.name!r}")
            for kind, field in zip(left, declared, strict=False)
        )
        keys = tuple(declared.names[: len(forms)])
        stage = Declared(
            f"changelog {name!r}", pa.schema([pa.field(each.name, each.type) for each in declared])
        )
        application = self._owner.application()
        return LookupContent(ChangelogSource(ref), keys, forms, stage, application, self._owner.copies)

    def _hold(self, spark: SparkSession, ref: DatasetRef, version: int | None) -> int:
        """Hold a version, or the newest; which one.

        Raises:
            Compacted: the version is gone.
            InvalidRequest: there is no such version yet.
        """
        changelog = (ref.dataset, ref.generation)
        with self._lock:
            held = self._held.setdefault(changelog, {})
            if version is not None and version in held:
                # For the client's life, even if it was held as the newest of a plan.
                self._newest = [each for each in self._newest if each != (changelog, version)]
                return version
        owner = owner_of_session(spark, "a plan's lookup")
        hold = VersionHold(ref, version, lease_seconds=self._owner.lease_seconds, owner=owner)
        ended: list[VersionHold] = []
        with self._lock:
            if (known := held.setdefault(hold.version, hold)) is not hold:
                ended.append(hold)
            elif version is None:
                self._newest.append((changelog, hold.version))
                ours = [each for each in self._newest if each[0] == changelog]
                for old in ours[:-NEWEST_HELD]:
                    self._newest.remove(old)
                    ended.append(held.pop(old[1]))
        for each in ended:
            each.close()
        return known.version

    def _close(self) -> None:
        with self._lock:
            holds = [hold for held in self._held.values() for hold in held.values()]
            self._held.clear()
        for hold in holds:
            hold.close()


def _names(of: Sequence[str] | str) -> list[str]:
    names = [of] if isinstance(of, str) else list(of)
    if not names:
        raise InvalidRequest("a lookup needs at least one column")
    return names


def spelled(
    schema: pa.Schema, names: Sequence[str], where: str, place: str, *, exact: bool
) -> tuple[str, ...]:
    """The names as the schema spells them: an exact one, or else the only one in another case."""
    columns = tuple(
        column
        for name in names
        for column in find_columns((name,), where, schema.names, place, exact=exact or name in schema.names)
    )
    if len(set(columns)) < len(columns):
        raise InvalidRequest(f"{where}: {', '.join(map(repr, names))} name one column twice {place}")
    return columns


def _check_collisions(left: Sequence[str], right: Sequence[str], where: str) -> None:
    # As Spark resolves names by default: without regard to case.
    ours = {name.casefold() for name in left}
    both = [name for name in right if name.casefold() in ours]
    if both:
        raise InvalidRequest(
            f"{where}: both sides have {', '.join(map(repr, both))}, which no key is: rename in the DataFrame by "
            "withColumnRenamed, or add to the keys",
            column=both[0],
        )
