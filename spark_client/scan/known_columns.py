"""The columns of a scan and their types, known before any job: of the first file, of a Dataset, or as given.

Guarantee: a type is the one that ``spark.read`` gives to the first file, or that of the user's ``schema``. A Dataset of
pyarrow has its own types, but for instants and enums where its first file is of Parquet (``holdable``).

:class:`ReadColumns` are those that a scan reads, and the check that a file has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.jobs import arrow_schema, declared_struct

from .holdable import comparable, has_nulls_alone, parquet_schema, struct_of, with_integers
from .spark_footers import footer_types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIVEN = "schema="
"""The origin of columns that the user names."""
_DRIFT = "name the columns that are meant, and their types, with schema=: where a file lacks one, it is null"


@dataclass(frozen=True)
class ReadColumns:
    """The columns that every file must give.

    Args:
        declared: the columns to read, those of the filter among them, in Spark's Arrow types.
        names: the columns of the result.
        origin: where the schema is from, for errors.
        lenient: a column that a file does not have is null there, as in a Dataset with a schema of its own.
        every: all columns of the files are wanted, so a file with more of them is an error.
    """

    declared: Declared
    names: tuple[str, ...]
    origin: str
    lenient: bool
    every: bool

    def of(self, path: str) -> Declared:
        """The declaration, under the file's name."""
        return replace(self.declared, stage=f"file {path}")

    def check(self, path: str, schema: pa.Schema, values: Collection[str]) -> None:
        """Check that a file of this schema, with ``values`` of its partition, can be read. Raises InvalidRequest: a
        column is missing, there twice or of another kind, or, with ``every``, there are more.
        """
        declared, counts = self.declared.schema, Counter(schema.names)
        known = set(declared.names)
        missing = [name for name in declared.names if name not in counts and name not in values]
        folded = {name.casefold(): name for name in schema.names} if missing else {}
        for name in missing:
            if name.casefold() in folded:
                raise InvalidRequest(
                    f"scan: {path} has no column {name!r}, which {self.origin} names, but {folded[name.casefold()]!r}; "
                    "names of a scan's columns count exactly: give schema= with that one, or a scan to the files of "
                    "each name",
                    column=name,
                    file=path,
                )
        if missing and not self.lenient:
            raise InvalidRequest(
                f"scan: {path} has no column {', '.join(map(repr, missing))}, but {self.origin} has; {_DRIFT}",
                column=missing[0],
                file=path,
            )
        more = [name for name in schema.names if name not in known]
        if more and self.every and not self.lenient:
            raise InvalidRequest(
                f"scan: {path} has a column {', '.join(map(repr, more))}, but {self.origin} has not; {_DRIFT}",
                column=more[0],
                file=path,
            )
        twice = [name for name in declared.names if counts[name] > 1 and name not in values]
        if twice:
            raise InvalidRequest(
                f"scan: {path} has column {', '.join(map(repr, twice))} twice; leave it out with columns=",
                column=twice[0],
                file=path,
            )
        read = [name for name in declared.names if counts[name] and name not in values]
        stored = pa.schema([schema.field(name) for name in read])
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in stored.types], schema=stored)
        for name in read:
            if stored.field(name).type == pa.float64() and declared.field(name).type == pa.float32():
                raise InvalidRequest(
                    f"scan: {path} has column {name!r} as double, but {self.origin} as float, "
                    "which would round it; give schema= with double",
                    column=name,
                    file=path,
                )
        try:
            replace(self.declared, schema=pa.schema([declared.field(name) for name in read])).cast(nothing)
        except InvalidRequest as error:
            name = str(error.detail["column"])
            remedy = (
                "give it a type of the files' kind there, and cast it in a step"
                if self.origin == GIVEN
                else "give the files of each kind a scan of their own, or leave it out with columns="
            )
            raise InvalidRequest(
                f"scan: {path} has column {name!r} as {stored.field(name).type}, but {self.origin} as "
                f"{declared.field(name).type}; {remedy}",
                column=name,
                file=path,
            ) from error


REMEDY = "leave it out with columns=, or name the columns and their types with schema="


@dataclass(frozen=True)
class KnownColumns:
    """The known columns.

    Args:
        origin: where it is from, for errors.
        schema: the types in which files are read.
        lenient: a column that a file lacks is null there, and one that it has besides is left out.
        declared: those of the user's ``schema``.
        footer: the types in Spark's footer of the first file.
    """

    origin: str
    schema: pa.Schema
    lenient: bool
    declared: StructType = field(default_factory=StructType)
    footer: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_schema(cls, spark: SparkSession, schema: Any) -> KnownColumns:
        """The user's. Raises InvalidRequest: it is invalid, or names a type that Spark does not have."""
        where = "scan: schema="
        if isinstance(schema, pa.Schema):
            struct = struct_of(schema, where, "give it another type")
        elif isinstance(schema, str | StructType):
            struct = declared_struct(spark, schema, where)
        else:
            raise InvalidRequest(
                f"scan: schema is DDL text such as 'id long, name string', a StructType or a pyarrow.Schema, not "
                f"{schema!r}"
            )
        struct = struct.toNullable()
        return cls(GIVEN, arrow_schema(spark, struct, where), lenient=True, declared=struct)

    @classmethod
    def of_dataset(cls, dataset: Any, *, by_user: bool) -> KnownColumns:
        """A dataset's, with the types of the first file where Arrow's are not Spark's; ``by_user`` if the user made it.
        Raises InvalidRequest: the first file cannot be read.
        """
        from pyarrow import dataset as ds  # noqa: PLC0415 - only a scan needs it

        schema, origin, footer = dataset.schema, "the dataset's schema", dict[str, Any]()
        try:
            first = next(iter(dataset.get_fragments()), None)
            if isinstance(first, ds.ParquetFileFragment):
                stored, folders = first.physical_schema, _of_folders(dataset)
                types = footer_types(first.metadata)
                # A dataset of the user's may have another type for a column of nulls.
                kinds = {
                    new.name: new.type
                    for old, new in zip(
                        stored, with_integers(parquet_schema(stored, first.metadata), types), strict=True
                    )
                    if old != new and new.name not in folders and not (by_user and has_nulls_alone(old.type))
                }
                schema = pa.schema([each.with_type(kinds.get(each.name, each.type)) for each in schema])
                footer = {name: kind for name, kind in types.items() if name not in folders}
            origin = origin if by_user else str(getattr(first, "path", ""))
        except (pa.ArrowException, OSError) as error:
            raise InvalidRequest(f"scan: the first file cannot be read: {error}") from error
        except ValueError:
            pass  # A filtered dataset: the error of the planner of pieces names the remedy.
        return cls(origin, comparable(schema), lenient=by_user, footer=footer)

    def with_folders(self, dataset: Any) -> KnownColumns:
        """These, and the columns of a dataset's folders beside them."""
        more = [each for name, each in _of_folders(dataset).items() if name not in self.schema.names]
        return replace(self, schema=pa.schema([*self.schema, *more]))

    def struct(self, names: Sequence[str], where: str) -> StructType:
        """These columns in Spark's types. Raises InvalidRequest if Spark has none for one of them."""
        of_user = {column.name: column for column in self.declared}
        fields = [
            of_user[name]
            if name in of_user
            else struct_of(pa.schema([self.schema.field(name)]), where, REMEDY, self.footer)[0]
            for name in names
        ]
        return StructType(fields)


def _of_folders(dataset: Any) -> dict[str, pa.Field]:
    from pyarrow import dataset as ds  # noqa: PLC0415 - only a scan needs it

    names: set[str] = set()
    for each in dataset.children if isinstance(dataset, ds.UnionDataset) else [dataset]:
        first = next(iter(each.get_fragments()), None)
        if isinstance(first, ds.FileFragment):
            names |= ds.get_partition_keys(first.partition_expression).keys()
    return {field.name: field for field in dataset.schema if field.name in names}
