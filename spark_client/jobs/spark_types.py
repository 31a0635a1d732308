"""Converts Spark's schemas to Arrow's by Spark's own rules, in the driver.

So a function gets the same Arrow types after Spark and after an exchange. Works on Spark Classic and Spark Connect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    UserDefinedType,
    VariantType,
)

from flight_server.protocol import InvalidRequest, did_you_mean
from spark_client.arrow import needed
from spark_client.pyspark_parts import PandasConversion, arrow_schema_of, from_arrow_type
from spark_client.steps import BatchLimits

from .session_facts import is_on, java_bytes, spark_setting

_BYTES = "UTF8_BINARY"
"""The collation of a string that has none."""


def check_frame(df: DataFrame, where: str, *, streams: bool = False) -> None:
    """Check that ``mapInArrow`` can take ``df``'s rows. Raises InvalidRequest: ``df`` is no DataFrame, is a stream
    without ``streams``, or has a dot or backtick in a column's name.
    """
    if not isinstance(df, DataFrame):
        raise InvalidRequest(
            f"{where} is {type(df).__module__.partition('.')[0]}.{type(df).__name__}, not a DataFrame of Spark; "
            f"{_making_one(df)}"
        )
    if df.isStreaming and not streams:
        raise InvalidRequest(
            f"{where} is a stream: use it inside foreachBatch, where each batch is a DataFrame"
        )
    odd = next((name for name in df.columns if "." in name or "`" in name), None)
    if odd is not None:
        raise InvalidRequest(
            f"{where}: Spark's mapInArrow cannot take column {odd!r}, because of the dot or backtick in its name; "
            "rename it with toDF or withColumnRenamed",
            column=odd,
        )


def check_names_apart(rows: Any, where: str) -> None:
    """Check that Spark's ``mapInArrow``, which asks for columns by name, can tell those of ``rows`` apart. Raises
    InvalidRequest: two differ by case only, and ``spark.sql.caseSensitive`` is off.
    """
    by_name: dict[str, list[str]] = {}
    for name in dict.fromkeys(rows.columns if isinstance(rows, DataFrame) else ()):
        by_name.setdefault(name.lower(), []).append(name)
    alike = next((names for names in by_name.values() if len(names) > 1), None)
    if alike is not None and not is_on(rows.sparkSession, "spark.sql.caseSensitive"):
        raise InvalidRequest(
            f"{where}: Spark's mapInArrow cannot tell the columns {', '.join(map(repr, alike))} apart, which differ by "
            "case only; rename them with toDF, or set spark.sql.caseSensitive to true",
            column=", ".join(alike),
        )


def _making_one(data: Any) -> str:
    if isinstance(data, str | Path):
        return f"ShuffleClient.scan({str(data)!r}) reads files in tasks, spark.read or spark.table gives a DataFrame"
    if hasattr(data, "toDF"):
        return "its toDF() gives one"
    return "spark.createDataFrame makes one of what the driver has"


def declared_struct(spark: SparkSession, schema: StructType | str, stage: str) -> StructType:
    """The ``StructType`` of a schema, which may be DDL text.

    Raises:
        InvalidRequest: neither text nor a ``StructType``; no columns, or a name that appears twice.
        pyspark.errors.ParseException: the text is not DDL.
    """
    if not isinstance(schema, str | StructType):
        raise InvalidRequest(
            f"{stage}: the schema is a text such as 'key long, value double', or a StructType of Spark, not "
            f"{type(schema).__name__}",
            stage=stage,
        )
    struct = _parse(spark, schema) if isinstance(schema, str) else schema
    counts = Counter(struct.names)
    if not counts:
        raise InvalidRequest(f"{stage}: the schema has no columns; declare at least one", stage=stage)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise InvalidRequest(f"{stage}: the schema names {', '.join(twice)} twice; rename one", stage=stage)
    return struct


def _parse(spark: SparkSession, text: str) -> StructType:
    if "connect" not in type(spark).__module__:
        # A tenth of the time of ``createDataFrame``, which gives the same.
        kind = DataType.fromDDL(text)
        return kind if isinstance(kind, StructType) else StructType().add("value", kind)
    # There ``fromDDL`` takes the active session, which may be another one, or none.
    return spark.createDataFrame([], text).schema


def check_key(field: StructField, where: str) -> None:
    """Check that Spark compares the values of a key of this column by their bytes. Raises InvalidRequest: the type has
    a collation or a variant, at any depth: Arrow's types show neither.
    """
    key, kind = field.name, field.dataType
    for part in types_within(kind):
        collation = getattr(part, "collation", _BYTES)
        if collation != _BYTES:
            raise InvalidRequest(
                f"{where}: key {key!r} is {kind.simpleString()}, and rows are placed and grouped by their bytes, "
                f"not by collation {collation}; make a column of its collation key, or cast it to string",
                column=key,
            )
        if isinstance(part, VariantType):
            raise InvalidRequest(
                f"{where}: key {key!r} is {kind.simpleString()}, and equal variants may differ in their bytes; "
                "make a column of what it is keyed by, for example with variant_get",
                column=key,
            )


def check_compared(struct: StructType, schema: pa.Schema, expression: Any, where: str, remedy: str) -> None:
    """Check that an expression of Arrow over these columns sees values as Spark's comparisons do. Raises
    InvalidRequest: it is of a column with a collation, at any depth, or of type CHAR(n), which Spark pads.
    """
    odd = {field.name: how for field in struct if (how := _uncomparable_type(field)) is not None}
    for column in needed(expression.is_valid(), schema) if odd else ():
        if column in odd:
            raise InvalidRequest(
                f"{where}: column {column!r} is {odd[column]}, which Spark compares by rules that Arrow does not have; "
                f"{remedy}",
                column=column,
            )


def _uncomparable_type(field: StructField) -> str | None:
    """The type, if Spark compares its values not by their bytes."""
    plain = all(getattr(part, "collation", _BYTES) == _BYTES for part in types_within(field.dataType))
    return char_type(field) if plain else field.dataType.simpleString()


def char_type(field: StructField) -> str | None:
    """``char(n)``, if the column of a table is one: Spark shows a string."""
    type_text = str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))
    return type_text if type_text.startswith("char(") else None


def batch_limits(spark: SparkSession) -> BatchLimits:
    """The session's limits."""
    rows, size = (
        spark_setting(spark, f"spark.sql.execution.arrow.max{what}PerBatch") for what in ("Records", "Bytes")
    )
    return BatchLimits(int(rows), java_bytes(size))


def _named_twice(kind: DataType) -> str | None:
    names = kind.names if isinstance(kind, StructType) else []
    return next((name for name in names if names.count(name) > 1), None)


def types_within(kind: DataType) -> Iterator[DataType]:
    """The type, and all that it is made of."""
    yield kind
    if isinstance(kind, StructType):
        for field in kind:
            yield from types_within(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from types_within(kind.elementType)
    elif isinstance(kind, MapType):
        yield from types_within(kind.keyType)
        yield from types_within(kind.valueType)
    elif isinstance(kind, UserDefinedType):
        yield from types_within(kind.sqlType())


def arrow_schema(spark: SparkSession, struct: StructType, stage: str) -> pa.Schema:
    """Spark's own Arrow schema for ``struct``, with the session's time zone and string width. Raises InvalidRequest:
    Spark has no Arrow type for a column.
    """
    zone = spark_setting(spark, "spark.sql.session.timeZone")
    large = is_on(spark, "spark.sql.execution.arrow.useLargeVarTypes")
    # The ValueError is pyarrow's: null elements declared not null, as in Spark SQL's array().
    refusals = (PySparkTypeError, UnsupportedOperationException, ValueError)
    try:
        return arrow_schema_of(struct, timezone=zone, large=large)
    except refusals:
        fields = []  # one by one, to say which column it is
    for field in struct:
        try:
            fields.extend(arrow_schema_of(StructType([field]), timezone=zone, large=large))
        except refusals as error:
            name = field.dataType.simpleString()
            twice = next(filter(None, map(_named_twice, types_within(field.dataType))), None)
            if twice is not None:
                raise InvalidRequest(
                    f"{stage}: a struct in column {field.name!r} has two fields of the name {twice!r}; rename one, for "
                    "example by a cast to a struct of other names",
                    stage=stage,
                    column=field.name,
                ) from error
            helps = name.replace("void", "string") if "void" in name else "string"
            raise InvalidRequest(
                f"{stage}: Spark has no Arrow type for column {field.name!r} of type {name}; cast it before, for "
                f"example to {helps}",
                stage=stage,
                column=field.name,
            ) from error
    return pa.schema(fields)


_CASTS = {
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "decimal128(20, 0)",
    "halffloat": "float32",
    "date64[ms]": "date32",
    "time32[s]": "int32",
    "time32[ms]": "int32",
    "null": "the type that its values should have",
}


def spark_field(name: str, kind: pa.DataType, stage: str) -> StructField:
    """A nullable column of Spark's type for a column that Arrow computed. Raises InvalidRequest: Spark cannot hold the
    type; the message names the cast.
    """
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    try:
        if pa.types.is_null(plain) or pa.types.is_decimal256(plain):
            raise TypeError
        return StructField(name, from_arrow_type(plain, prefer_timestamp_ntz=True), nullable=True)
    except (PySparkTypeError, TypeError) as error:
        wide = "a type that it has"
        if pa.types.is_decimal(plain):
            wide = f"decimal128(38, {min(max(plain.scale, 0), 38)}), or to double"
        raise InvalidRequest(
            f"{stage}: column {name!r} is {kind}, which Spark cannot hold; cast it to "
            f"{_CASTS.get(str(plain), wide)}",
            stage=stage,
            column=name,
        ) from error


def function_settings(spark: SparkSession) -> PandasConversion:
    """By which the functions of users get rows, and return them: the session's now."""
    return PandasConversion(
        timezone=spark_setting(spark, "spark.sql.session.timeZone"),
        safe=is_on(spark, "spark.sql.execution.pandas.convertToArrowArraySafely"),
        by_name=is_on(spark, "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"),
        int_to_decimal=is_on(spark, "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
        int_extension=is_on(spark, "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"),
        large=is_on(spark, "spark.sql.execution.arrow.useLargeVarTypes"),
    )


def utc_arrow_schema(struct: StructType) -> pa.Schema:
    """The schema that Spark's Python data sources must give, and get, for ``struct``, in every session."""
    return arrow_schema_of(struct, timezone="UTC")


def find_columns(
    keys: Sequence[str], where: str, names: Sequence[str], place: str, *, exact: bool
) -> tuple[str, ...]:
    """The columns that these keys name, as Spark resolves them; ``exact`` if case counts.

    Args:
        place: where the columns with these ``names`` are, for messages.

    Raises:
        InvalidRequest: a key is no name, names no column, or names more than one.
    """
    columns: list[str] = []
    missing: list[str] = []
    named = columns_by_name(names, exact=exact)
    for key in keys:
        if not isinstance(key, str):
            raise InvalidRequest(
                f"{where}: a column is given by its name, not by {type(key).__name__}; make an expression a column "
                "by withColumn first, and give several names one by one"
            )
        same = named.get(key if exact else key.casefold(), [])
        if len(same) > 1:
            raise InvalidRequest(
                f"{where}: {key!r} could be any of {', '.join(map(repr, same))}; rename one, or set "
                "spark.sql.caseSensitive",
                column=key,
            )
        (columns if same else missing).append(same[0] if same else key)
    if missing:
        raise InvalidRequest(
            f"{where}: no column {', '.join(map(repr, missing))} {place}; it has {', '.join(map(repr, names))}"
            f"{did_you_mean(missing[0], names)}",
            column=missing[0],
        )
    return tuple(columns)


def columns_by_name(names: Sequence[str], *, exact: bool) -> dict[str, list[str]]:
    """The columns that a name may stand for; without ``exact`` by the name without case."""
    columns: dict[str, list[str]] = {}
    for name in names:
        columns.setdefault(name if exact else name.casefold(), []).append(name)
    return columns
