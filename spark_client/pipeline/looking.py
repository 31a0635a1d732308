"""Looking at a pipeline and its rows: its columns, the first rows, and all of them as Arrow, pandas or Polars has them.

Columns are known without a job. ``show``, ``head``, ``take``, ``first`` and ``isEmpty`` run the plan up to its last
exchange, and of the steps after it as many tasks as Spark needs for so many rows. The datasets are dropped then.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, SupportsIndex

import pyarrow as pa
from pyspark.sql import Row

from spark_client.arrow import html_table
from spark_client.jobs import function_settings

from .base import Steps
from .combining import first_rows, row_count
from .finishing import frame_of, running, text_of, to_local_iterator

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


def columns(steps: Steps) -> list[str]:
    """The names of the columns."""
    return list(steps.leg.struct.names)


def dtypes(steps: Steps) -> list[tuple[str, str]]:
    """The columns' names and types, the latter as Spark writes them."""
    return [(field.name, field.dataType.simpleString()) for field in steps.leg.struct]


def print_schema(steps: Steps, level: int | None = None) -> None:
    """Print the columns as a tree, down to this level of nested ones."""
    tree = steps.leg.struct.treeString(*[] if level is None else [level])
    print(tree)  # noqa: T201 - as Spark's does


def show(steps: Steps, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:  # noqa: FBT001, FBT002 - Spark's arguments
    """Print the first ``n`` rows, as Spark's ``show``.

    Args:
        truncate: to how many characters values are cut; True for 20, False for not at all.
        vertical: a line for each value.

    Raises:
        InvalidRequest: ``n`` is no integer of 0 or more; otherwise as :meth:`toDF`.
    """
    some = first_rows(steps, row_count(n, "show") + 1, "show")
    running(some, lambda execution: frame_of(some, execution).show(n, truncate, vertical))


def head(steps: Steps, n: SupportsIndex | None = None) -> Row | list[Row] | None:
    """The first ``n`` rows, as a list of Spark's rows; without ``n`` the first row, or None if there is none. Raises as
    :meth:`take`.
    """
    return first(steps) if n is None else take(steps, n)


def first(steps: Steps) -> Row | None:
    """The first row; None if there is none. Raises as :meth:`take`."""
    rows = take(steps, 1)
    return rows[0] if rows else None


def take(steps: Steps, num: SupportsIndex) -> list[Row]:
    """The first ``num`` rows, as Spark's rows.

    Raises:
        InvalidRequest: ``num`` is no integer of 0 or more; otherwise as :meth:`toDF`.
    """
    count = row_count(num, "take")
    some = first_rows(steps, count, "take")
    rows: list[Row] = running(some, lambda execution: frame_of(some, execution).take(count))
    return rows


def is_empty(steps: Steps) -> bool:
    """Whether there is no row. Raises as :meth:`toDF`."""
    return not take(steps, 1)


def collect(steps: Steps) -> list[Row]:
    """All rows, as Spark's rows, which go through the JVM and ``spark.driver.maxResultSize``; :meth:`toArrow` and
    :meth:`toLocalIterator` do without. Raises as :meth:`toDF`.
    """
    rows: list[Row] = running(steps, lambda execution: frame_of(steps, execution).collect())
    return rows


def to_arrow(steps: Steps) -> pa.Table:
    """Run all steps; their result as one table. Raises as :meth:`toDF`."""
    return to_local_iterator(steps).read_all()


def to_pandas(steps: Steps) -> pd.DataFrame:
    """Run all steps; their result as pandas has it in ``mapInPandas``: integers with nulls are ``float64``, timestamps
    have no zone and are in the session's, structs are dicts. Raises as :meth:`toDF`.
    """
    rows = to_arrow(steps).combine_chunks()
    if not rows.num_rows:
        # PySpark's code takes a column's type from its first chunk.
        nothing = [pa.nulls(0, kind) for kind in rows.schema.types]
        rows = pa.Table.from_batches([pa.RecordBatch.from_arrays(nothing, schema=rows.schema)])
    frame: pd.DataFrame = function_settings(steps.spark).grouped(rows)
    return frame


def to_polars(steps: Steps) -> pl.DataFrame:
    """Run all steps; their result in Polars, which the client does not install. Raises as :meth:`toDF`.

    Raises:
        ImportError: there is no Polars.
    """
    import polars as pl  # noqa: PLC0415 - only who calls this needs it

    frame = pl.from_arrow(to_arrow(steps))
    assert isinstance(frame, pl.DataFrame)
    return frame


def as_html(steps: Steps) -> str:
    """The steps and the columns, for a notebook. Runs nothing."""
    return f"<div><pre>{escape(text_of(steps))}</pre>{html_table(('column', 'type'), dtypes(steps))}</div>"
