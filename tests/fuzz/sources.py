"""A case's tables, as a pipeline and as a DataFrame of the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq
from pyspark.sql import functions as sql
from pyspark.sql import types

from spark_client import ShuffleClient
from spark_client.pyspark_parts import arrow_schema_of

from .cases import Column, State, Table, struct_of
from .pools import Pools


class Sources:
    """Makes tables in one session; ``directory`` is for files."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self._files = 0

    def state(self, client: ShuffleClient, table: Table, pools: Pools) -> State:
        struct = struct_of(table.schema)
        plain = _plain(struct)
        given = arrow_schema_of(plain, timezone="UTC")
        columns = [
            pa.array(
                pools.column(field.dataType, table.rows, f"{table.name} {field.name}", nulls=field.nullable),
                kind.type,
            )
            for field, kind in zip(struct, given, strict=True)
        ]
        rows = pa.Table.from_arrays(columns, schema=given)
        theirs = self.spark.createDataFrame(rows, plain).repartition(table.parts)
        theirs = theirs.select(*(_as_declared(field) for field in struct))
        if table.form == "parquet":
            path = self._written(rows, table)
            theirs = self.spark.read.parquet(str(path))
            ours = client.scan(str(path), spark=self.spark)
        elif table.form == "ipc":
            ours = client.scan(str(self._written(rows, table)), spark=self.spark)
        else:
            ours = client.pipeline(theirs)
        raw = _encoded(rows) if table.form == "ipc" else None
        found = State(ours, theirs, [Column(field.name, field.dataType) for field in struct], raw)
        if table.keys:
            found.ours = found.ours.repartition(3, *table.keys)
        return found

    def _written(self, rows: pa.Table, table: Table) -> Path:
        self._files += 1
        path = self.directory / f"{self._files}"
        path.mkdir()
        each = max(1, -(-rows.num_rows // table.parts))
        for number in range(table.parts):
            part = rows.slice(number * each, each)
            if table.form == "parquet":
                pq.write_table(part, path / f"{number}.parquet", row_group_size=max(1, each // 2))
            else:
                part = _encoded(part)
                with pa.ipc.new_file(path / f"{number}.arrow", part.schema) as writer:
                    writer.write_table(part, max_chunksize=max(1, each // 2))
        return path


def _encoded(rows: pa.Table) -> pa.Table:
    """Texts in other forms that Arrow has for them."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_string(field.type):
            other = [pa.dictionary(pa.int32(), pa.string()), pa.large_string(), pa.string_view()][number % 3]
            column = rows.column(number)
            column = column.dictionary_encode() if pa.types.is_dictionary(other) else column.cast(other)
            rows = rows.set_column(number, pa.field(field.name, other, field.nullable), column)
    return rows


def _plain(kind: Any) -> Any:
    """What ``createDataFrame`` makes of Arrow, on Spark Connect, too."""
    match kind:
        case types.VariantType():
            return types.StringType()
        case types.YearMonthIntervalType():
            return types.IntegerType()
        case types.DayTimeIntervalType():
            return types.DayTimeIntervalType()
        case types.StringType():
            return types.StringType()
        case types.ArrayType():
            return types.ArrayType(_plain(kind.elementType), kind.containsNull)
        case types.MapType():
            return types.MapType(_plain(kind.keyType), _plain(kind.valueType), kind.valueContainsNull)
        case types.StructType():
            return types.StructType([_plain_field(field) for field in kind])
    return kind


def _plain_field(field: Any) -> Any:
    return types.StructField(field.name, _plain(field.dataType), field.nullable)


def _as_declared(field: Any) -> Any:
    column, kind = sql.col(field.name), field.dataType
    if isinstance(kind, types.VariantType):
        column = sql.parse_json(column)
    elif isinstance(kind, types.YearMonthIntervalType):
        column = sql.make_ym_interval(sql.lit(0), column)
    elif kind != _plain(kind):
        column = column.cast(kind)
    return column.alias(field.name)
