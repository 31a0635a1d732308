"""What PySpark does not document is there in this version, and takes what it is given. ``make versions`` runs this on
each version.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from spark_client import pyspark_parts
from spark_client.pyspark_parts import (
    DIVIDED_KINDS,
    PandasConversion,
    arrow_schema_of,
    check_result,
    inner_names,
)

STRUCT = StructType().add("n", LongType()).add("t", TimestampType()).add("s", StringType())
NOON = dt.datetime(2020, 7, 1, 12, tzinfo=dt.UTC)


def conversion(**changed: Any) -> PandasConversion:
    settings = {
        "safe": True,
        "by_name": True,
        "int_to_decimal": False,
        "int_extension": False,
        "large": False,
    }
    return PandasConversion("Europe/Berlin", **(settings | changed))


def rows(*names: str) -> pa.RecordBatch:
    schema = arrow_schema_of(STRUCT, timezone="Europe/Berlin")
    batch = pa.RecordBatch.from_pylist([{"n": 1, "t": NOON, "s": "a"}, {"n": None}], schema=schema)
    return batch.select(list(names)) if names else batch


def test_every_name_is_there() -> None:
    for name in [*inner_names.__all__, "PandasConversion"]:
        assert hasattr(pyspark_parts, name), name


@pytest.mark.parametrize("large", [False, True])
def test_schemas_go_to_arrow_and_back(large: bool) -> None:
    found = arrow_schema_of(STRUCT, timezone="UTC", large=large)
    assert found.field("s").type == (pa.large_string() if large else pa.string())
    assert found.field("t").type == pa.timestamp("us", "UTC")
    assert pyspark_parts.from_arrow_schema(found) == STRUCT
    assert pyspark_parts.from_arrow_type(pa.int64(), prefer_timestamp_ntz=True) == LongType()


def test_annotations_tell_groups_in_pieces_from_whole_ones() -> None:
    def pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def frames(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from batches

    def whole(table: pa.Table) -> pa.Table:
        return table

    # Each module of annotations is text here; what Spark reads is evaluated.
    for function in (pieces, frames, whole):
        function.__annotations__ = {
            name: eval(text, globals()) for name, text in function.__annotations__.items()
        }
    assert pyspark_parts.infer_group_arrow_eval_type_from_func(pieces) in DIVIDED_KINDS
    assert pyspark_parts.infer_group_arrow_eval_type_from_func(whole) not in DIVIDED_KINDS
    assert pyspark_parts.infer_group_pandas_eval_type_from_func(frames) in DIVIDED_KINDS


def test_integers_with_nulls_are_floats_and_timestamps_local() -> None:
    for frame in (conversion().mapped(rows("n", "t")), conversion().grouped(rows("n", "t"))):
        assert frame["n"].dtype == np.float64
        assert frame["t"].iloc[0] == pd.Timestamp("2020-07-01 14:00")
        assert list(frame.columns) == ["n", "t"]


def test_a_group_may_be_a_table_with_or_without_rows() -> None:
    table = pa.Table.from_batches([rows(), rows()])
    assert conversion().grouped(table)["s"].tolist() == ["a", None, "a", None]
    assert len(conversion().grouped(rows().schema.empty_table())) == 0


def test_a_frame_becomes_rows_by_the_names_of_its_columns() -> None:
    frame = conversion().mapped(rows())
    frame = frame[list(reversed(frame.columns))]
    check_result(frame, STRUCT, by_name=True, cut=False)
    assert conversion().batch(frame, STRUCT, rows().schema).to_pylist() == rows().to_pylist()
    assert conversion().batch(pd.DataFrame(), STRUCT, rows().schema).num_rows == 0


def test_what_does_not_fit_is_pysparks_error() -> None:
    for wrong in ("text", pd.DataFrame({"n": [1]})):
        with pytest.raises(PySparkException):
            check_result(wrong, STRUCT, by_name=True, cut=False)
    lost = pd.DataFrame({"n": [1.5], "t": [NOON], "s": ["a"]})
    with pytest.raises(PySparkException, match="convertToArrowArraySafely"):
        conversion().batch(lost, STRUCT, rows().schema)
    cut = conversion(safe=False).batch(lost, STRUCT, rows().schema)
    assert cut.column("n").to_pylist() == [1]
