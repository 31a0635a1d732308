"""The columns of a scan and their types, known before any job: of the first file, of all files, or as given.

Guarantee: a type is the one that ``spark.read`` gives to the first file, or to all of them with ``merge_schema``, or
that of the user's ``schema``. It is never guessed from some of the rows: CSV without a schema is text, as Spark's is
with a header and without ``inferSchema``, and JSON needs one. A Dataset or FileFormat of pyarrow has pyarrow's own
types.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.jobs import arrow_schema, declared_struct

from .holdable import (
    comparable,
    has_nulls_alone,
    held,
    leaves,
    orc_schema,
    parquet_schema,
    struct_of,
    with_integers,
)
from .pieces import FOOTER_THREADS
from .spark_footers import said_by_orc, said_by_parquet
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
        kind: of the first file, as its usual ending.
    """

    origin: str
    schema: pa.Schema
    said: StructType | None
    lenient: bool
    kind: str

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
    own_types: bool = False,
) -> KnownColumns:
    """The columns of a dataset.

    Args:
        given: the user made the dataset, so its own schema counts.
        schema: the user's, as DDL text, Spark's or Arrow's; None for the files'.
        merge: the columns of all files, not of the first one.
        own_types: the user gave a FileFormat, which says how types are found.

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
        return KnownColumns("the dataset", comparable(dataset.schema), None, lenient=True, kind="")
    kind = str(getattr(getattr(first, "format", None), "default_extname", ""))
    if schema is not None:
        return _as_given(spark, dataset, schema, kind)
    if kind == "json" and not (given or own_types):
        raise InvalidRequest(
            "scan: JSON files do not say their types: give schema=, such as schema='id long, name string'; what Spark "
            "infers is spark.read.json(path).schema"
        )
    if merge:
        return _merge(dataset, kind, own_types=own_types)
    return _of_first(dataset, first, kind, given=given, own_types=own_types)


def _of_first(dataset: Any, first: Any, kind: str, *, given: bool, own_types: bool) -> KnownColumns:
    """The dataset's columns, with the types of the first file where Arrow's are not Spark's."""
    schema, folders = dataset.schema, _of_folders(dataset)
    try:
        there, told, said = _of_file(first, own_types=given or own_types)
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"scan: the first file cannot be read: {error}") from error
    # A dataset of the user's may have another type for a column of nulls.
    others = {
        new.name: new.type
        for old, new in zip(there, told, strict=True)
        if old != new and not (given and has_nulls_alone(old.type))
    }
    kinds = {name: kind for name, kind in others.items() if name not in folders}
    fields = [field.with_type(kinds.get(field.name, field.type)) for field in schema]
    schema = pa.schema(fields, metadata=schema.metadata)
    if said is not None:
        said = StructType([column for column in said if column.name not in folders])
    origin = "the dataset's schema" if given else getattr(first, "path", "the first file")
    return KnownColumns(origin, comparable(schema), said, lenient=given, kind=kind)


def _as_given(spark: SparkSession, dataset: Any, schema: Any, kind: str) -> KnownColumns:
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
    if kind == "json":
        for field in arrow:
            if any(map(pa.types.is_binary, leaves(field.type))):
                raise InvalidRequest(
                    f"{where}: column {field.name!r} is binary, which Spark decodes from JSON's text: read it as "
                    "string, and decode it in a step",
                    column=field.name,
                )
    more = [field for name, field in _of_folders(dataset).items() if name not in arrow.names]
    return KnownColumns(GIVEN, pa.schema([*arrow, *more]), struct, lenient=True, kind=kind)


def _merge(dataset: Any, kind: str, *, own_types: bool) -> KnownColumns:
    """The columns of all files, each with the type that all of them have which have it."""
    fragments = list(dataset.get_fragments())
    folders = _of_folders(dataset)
    known: dict[str, tuple[pa.Field, str]] = {}
    said: dict[str, StructField] = {}
    with ThreadPoolExecutor(FOOTER_THREADS, "scan") as pool:
        try:
            found = list(pool.map(partial(_of_file, own_types=own_types), fragments))
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
    return KnownColumns("merge_schema=", schema, StructType(list(said.values())), lenient=True, kind=kind)


def _of_folders(dataset: Any) -> dict[str, pa.Field]:
    from pyarrow import dataset as ds  # noqa: PLC0415 - only a scan needs it

    names: set[str] = set()
    for each in dataset.children if isinstance(dataset, ds.UnionDataset) else [dataset]:
        first = next(iter(each.get_fragments()), None)
        if isinstance(first, ds.FileFragment):
            names |= ds.get_partition_keys(first.partition_expression).keys()
    return {field.name: field for field in dataset.schema if field.name in names}


def _of_file(fragment: Any, *, own_types: bool) -> tuple[pa.Schema, pa.Schema, StructType | None]:
    """A file's columns as Arrow has them, as they are read, and the types in its footer."""
    from pyarrow import dataset as ds  # noqa: PLC0415 - as above

    if not isinstance(fragment, ds.FileFragment):
        return pa.schema([]), pa.schema([]), None
    there = fragment.physical_schema
    if isinstance(fragment, ds.ParquetFileFragment):
        said = said_by_parquet(fragment.metadata)
        return there, with_integers(parquet_schema(there, fragment.metadata), said), said
    kind = fragment.format.default_extname
    if kind == "orc":
        return there, orc_schema(there), said_by_orc(there)
    if kind != "csv":
        return there, there, None
    texts = [
        each if own_types and not pa.types.is_null(each.type) else each.with_type(pa.string())
        for each in there
    ]
    return there, pa.schema(texts), None
