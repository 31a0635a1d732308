"""What a user of Spark writes on a pipeline, and what works there: names that only a DataFrame has, Spark's Columns,
and conditions in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, DataFrameWriter, GroupedData

from flight_server.protocol import did_you_mean

_PERSIST = "persist() keeps what the last repartition wrote"
_NULLS = 'filter(pc.field("v").is_valid()) drops rows, withColumn("v", pc.coalesce(pc.field("v"), pc.scalar(0))) fills'
_EXPRESSIONS = 'select("a", b="old", c=pc.field("a") + 1) names, renames and computes columns'
_ADVICE = {
    "alias": _EXPRESSIONS,
    "cache": _PERSIST,
    "checkpoint": _PERSIST,
    "coalesce": "repartition(n, tasks=m) has m tasks read the n partitions",
    "dropna": _NULLS,
    "fillna": _NULLS,
    "foreach": "mapInArrow(func, schema) gives a function the batches of each partition",
    "foreachPartition": "mapInArrow(func, schema) gives a function the batches of each partition",
    "localCheckpoint": _PERSIST,
    "na": _NULLS,
    "selectExpr": _EXPRESSIONS,
}
_GROUPED = {
    name: f'groupBy("key").{name} does it'
    for name in ("applyInArrow", "applyInPandas", "avg", "cogroup", "max", "mean", "min", "sum")
}
"""What the groups of a pipeline have, and it has not."""
_WRITES = "parquet(path), delta(path) and iceberg(table) write"
_OPTIONS = "parquet(path, compression=…, filesystem=…) has its options as arguments"
_WRITER_ADVICE = {"format": _WRITES, "save": _WRITES, "option": _OPTIONS, "options": _OPTIONS}
_OF_FRAME, _OF_GROUPS, _OF_WRITER = (DataFrame, ""), (GroupedData, ".groupBy(…)"), (DataFrameWriter, ".write")


def no_attribute(name: str, columns: Collection[str], known: Collection[str]) -> str:
    """The text for an attribute that a pipeline with these columns does not have; ``known`` are those that it has."""
    text = f"a pipeline has no {name!r}"
    if name in columns:
        return f"{text}: pc.field({name!r}) is that column in an expression"
    near = did_you_mean(name, known) or ", nor has a DataFrame"
    return _instead(text, name, _ADVICE | _GROUPED, [_OF_FRAME, _OF_GROUPS], near)


def no_grouped_attribute(name: str) -> str:
    """The text for an attribute that the groups of a pipeline do not have."""
    return _instead(f"the groups of a pipeline have no {name!r}", name, {}, [_OF_GROUPS])


def no_writer_attribute(name: str, known: Collection[str]) -> str:
    """The text for an attribute that the writer of a pipeline does not have; ``known`` are those that it has."""
    text = f"the writer of a pipeline has no {name!r}"
    return _instead(text, name, _WRITER_ADVICE, [_OF_WRITER], did_you_mean(name, known))


def _instead(
    text: str, name: str, advice: Mapping[str, str], sparks: Iterable[tuple[type, str]], near: str = ""
) -> str:
    """The text, with what works instead of the name: an advice, or what is Spark's, or what is ``near``."""
    if name.startswith("_"):
        return text
    if name in advice:
        return f"{text}: {advice[name]}"
    for kind, access in sparks:
        if hasattr(kind, name):
            return f"{text}: .toDF(){access}.{name} is the DataFrame's"
    return text + near


def no_column(name: object) -> str:
    """The text for a column that is looked up as a DataFrame's is."""
    return f"a pipeline has no Columns of Spark: pc.field({name!r}) is a column in an expression"


def public_names(kind: type) -> list[str]:
    """The names that users have of a class."""
    internal = {"of_frame", "of_scan"}
    return [name for name in dir(kind) if name not in internal and not name.startswith("_")]


_NAME, _OPERATOR, _VALUE = r"`?([A-Za-z_]\w*)`?", "(<=|>=|<>|!=|==|=|<|>)", r"('[^']*'|-?\d+(?:\.\d+)?)"
_COMPARISON = re.compile(rf"\s*\(?\s*{_NAME}\s*{_OPERATOR}\s*{_VALUE}\s*\)?\s*")
_CALL = re.compile(rf"{_OPERATOR}\({_NAME}, {_VALUE}\)")
"""As a Column of Spark Classic shows it."""
_EXAMPLE = ', such as (pc.field("v") > 5) & pc.field("k").is_valid()'


def is_column(value: Any) -> bool:
    """Whether it is an expression of Spark, Classic or Connect."""
    return isinstance(value, Column)


def as_expression(condition: Any) -> str:
    """What to write instead of a Column of Spark or a text in SQL, as the rest of a sentence: for a simple comparison
    this one, and else an example.
    """
    text = condition if isinstance(condition, str) else str(condition)
    if is_column(condition):
        shown = re.fullmatch(r"Column<'(.*)'>", text)
        text = shown[1] if shown else text
    if (match := _CALL.fullmatch(text)) is not None:
        comparison, name, value = match.groups()
    elif (match := _COMPARISON.fullmatch(text)) is not None:
        name, comparison, value = match.groups()
    else:
        return _EXAMPLE
    value = f'"{value[1:-1]}"' if value.startswith("'") else value
    comparison = {"=": "==", "<>": "!="}.get(comparison, comparison)
    return f': pc.field("{name}") {comparison} {value}'
