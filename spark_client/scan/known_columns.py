"""The columns of a scan and their types, known before any job: of the first file, of all files, or as given.

Guarantee: a type is the one that ``spark.read`` gives to the first file, or to all of them with ``merge_schema``, or
that of the user's ``schema``. A Dataset of pyarrow has its own types, but where its first file is of Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.jobs import arrow_schema, declared_struct

from .holdable import comparable, held, parquet_schema, struct_of
from .pieces import FOOTER_THREADS
from .spark_footers import said_by_parquet
from .wanted import GIVEN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMEDY = "leave it out with columns=, or name the columns and their types with schema="


@dataclass(frozen=True)
class KnownColumns:
    """The known columns.

    Args:
        origin: where it is from, for errors.
        schema: the types in which files are read.
        said: the types that a footer or the user says, which are Spark's.
        lenient: a column that a file lacks is null there, and one that it has besides is left out.
    """

    origin: str
    schema: pa.Schema
    said: StructType | None
    lenient: bool

    def struct(self, names: Sequence[str], where: str) -> StructType:
        """These columns in Spark's types. Raises InvalidRequest if Spark has none for one of them."""
        return struct_of(pa.schema([self.schema.field(name) for name in names]), where, REMEDY, self.said)


def known_columns(
    spark: SparkSession,
    dataset: Any,
    *,
    given: bool,
    schema: Any = None,
    merge: bool = False,
) -> KnownColumns:
    """The columns of a dataset.

    Args:
        given: the user made the dataset, so its own schema counts.
        schema: the user's, as DDL text, Spark's or Arrow's; None for the files'.
        merge: the columns of all files, not of the first one.

    Raises:
        InvalidRequest: a file cannot be read or does not say its types, files differ in a column's type, or a schema
            is invalid, beside a Dataset or ``merge``, or names a type that the files cannot have.
    """
    if schema is not None or merge:
        if given:
            raise InvalidRequest("scan: a Dataset has a schema; give schema= to pyarrow.dataset.dataset")
        if schema is not None and merge:
            raise InvalidRequest("scan: schema= says which columns there are; leave out merge_schema=")
    try:
        first = next(iter(dataset.get_fragments()), None)
    except ValueError:
        # A filtered dataset: the error of the planner of pieces names the remedy.
        return KnownColumns("the dataset", comparable(dataset.schema), None, lenient=True)
    if schema is not None:
        return _as_given(spark, dataset, schema)
    return _merge(dataset) if merge else _of_first(dataset, first, given=given)


def _of_first(dataset: Any, first: Any, *, given: bool) -> KnownColumns:
    """The dataset's columns, with the types of the first file where Arrow's are not Spark's."""
    schema, folders = dataset.schema, _of_folders(dataset)
    try:
        there, told, said = _of_file(first)
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"scan: the first file cannot be read: {error}") from error
    others = {new.name: new.type for old, new in zip(there, told, strict=True) if old != new}
    kinds = {name: kind for name, kind in others.items() if name not in folders}
    fields = [field.with_type(kinds.get(field.name, field.type)) for field in schema]
    schema = pa.schema(fields, metadata=schema.metadata)
    if said is not None:
        said = StructType([column for column in said if column.name not in folders])
    origin = "the dataset's schema" if given else getattr(first, "path", "the first file")
    return KnownColumns(origin, comparable(schema), said, lenient=given)


def _as_given(spark: SparkSession, dataset: Any, schema: Any) -> KnownColumns:
    where = "scan: schema="
    if isinstance(schema, pa.Schema):
        struct = struct_of(schema, where, "give it another type")
    elif isinstance(schema, str | StructType):
        struct = declared_struct(spark, schema, where)
    else:
        raise InvalidRequest(
            f"scan: schema is DDL text such as 'id long, name string', a StructType or a pyarrow.Schema, not {schema!r}"
        )
    struct = struct.toNullable()
    arrow = arrow_schema(spark, struct, where)
    more = [field for name, field in _of_folders(dataset).items() if name not in arrow.names]
    return KnownColumns(GIVEN, pa.schema([*arrow, *more]), struct, lenient=True)


def _merge(dataset: Any) -> KnownColumns:
    """The columns of all files, each with the type that all of them have which have it."""
    fragments = list(dataset.get_fragments())
    folders = _of_folders(dataset)
    known: dict[str, tuple[pa.Field, str]] = {}
    said: dict[str, StructField] = {}
    with ThreadPoolExecutor(FOOTER_THREADS, "scan") as pool:
        try:
            found = list(pool.map(_of_file, fragments))
        except (pa.ArrowException, OSError) as error:
            raise InvalidRequest(f"scan: a file cannot be read: {error}") from error
    for fragment, (_, told, columns) in zip(fragments, found, strict=True):
        for field in told:
            first, path = known.setdefault(field.name, (field, fragment.path))
            if held(first.type) != held(field.type) and field.name not in folders:
                raise InvalidRequest(
                    f"scan: {fragment.path} has column {field.name!r} as {field.type}, and {path} as {first.type}; "
                    "give schema= with a type that has the values of both",
                    column=field.name,
                    file=fragment.path,
                )
        for column in columns or ():
            if column.name not in folders:
                said.setdefault(column.name, column)
    fields = [field for field, _ in known.values() if field.name not in folders]
    schema = comparable(pa.schema([*fields, *folders.values()]))
    return KnownColumns("merge_schema=", schema, StructType(list(said.values())), lenient=True)


def _of_folders(dataset: Any) -> dict[str, pa.Field]:
    from pyarrow import dataset as ds  # noqa: PLC0415 - only a scan needs it

    names: set[str] = set()
    for each in dataset.children if isinstance(dataset, ds.UnionDataset) else [dataset]:
        first = next(iter(each.get_fragments()), None)
        if isinstance(first, ds.FileFragment):
            names |= ds.get_partition_keys(first.partition_expression).keys()
    return {field.name: field for field in dataset.schema if field.name in names}


def _of_file(fragment: Any) -> tuple[pa.Schema, pa.Schema, StructType | None]:
    """A file's columns as Arrow has them, as they are read, and the types in its footer."""
    from pyarrow import dataset as ds  # noqa: PLC0415 - as above

    if not isinstance(fragment, ds.FileFragment):
        return pa.schema([]), pa.schema([]), None
    there = fragment.physical_schema
    if isinstance(fragment, ds.ParquetFileFragment):
        return there, parquet_schema(there, fragment.metadata), said_by_parquet(fragment.metadata)
    return there, there, None
