"""The splits of a scan without a Spark session: types as in the files, one task for about every ``target_bytes``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_client.arrow import Declared
from spark_client.jobs import SplitSizes
from spark_client.scan.discovery import dataset_of
from spark_client.scan.file_reading import FileReading
from spark_client.scan.filters import KeptRows
from spark_client.scan.known_columns import ReadColumns
from spark_client.scan.pieces import pieces_of
from spark_client.scan.splits import Splits

ONE_FOR_ALL = SplitSizes()


def splits_of(
    what: Any,
    *,
    schema: pa.Schema | None = None,
    names: list[str] | None = None,
    filter: Any = None,  # noqa: A002 - as in the scan
    lenient: bool = False,
    sizes: SplitSizes = ONE_FOR_ALL,
    batch_rows: int = 1000,
) -> Splits:
    """``schema``, by default the dataset's own, is read; ``names`` of it are the result."""
    dataset = dataset_of(what) if isinstance(what, str) or hasattr(what, "joinpath") else what
    read = dataset.schema if schema is None else schema
    declared = Declared("the scan", read)
    wanted = ReadColumns(declared, tuple(names or read.names), "the first file", lenient, every=names is None)
    homes, pieces = pieces_of(dataset, read if lenient else dataset.schema, wanted, filter)
    kept = None if filter is None else KeptRows.by(filter, read, wanted.names)
    return Splits.of(pieces, sizes, FileReading(homes, wanted, kept, batch_rows))


def read(splits: Splits) -> pa.Table:
    """All rows, in the order of the splits."""
    wanted = splits.reading.columns
    schema = pa.schema([wanted.declared.schema.field(name) for name in wanted.names])
    batches = [batch for number in range(len(splits)) for batch in splits.read(number)]
    return pa.Table.from_batches(batches, schema)
