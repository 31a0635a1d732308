"""What tasks report to the driver by Spark: values of JSON, each the text of a row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_client.arrow import array_over
from spark_client.pyspark_parts import from_arrow_schema

REPORTS = pa.schema([pa.field("report", pa.string(), nullable=False)])
SPARK_REPORTS = from_arrow_schema(REPORTS)
"""As Spark's type: of a text, the driver would ask Spark's parser at each job."""


def reported(values: Sequence[Any]) -> pa.RecordBatch:
    """The values as rows."""
    texts = [json.dumps(value).encode() for value in values]
    # Not by ``pa.array``: see ``array_over``.
    bounds = array_over(np.cumsum([0, *map(len, texts)], dtype=np.int32)).buffers()[1]
    column = pa.Array.from_buffers(pa.string(), len(texts), [None, bounds, pa.py_buffer(b"".join(texts))])
    return pa.RecordBatch.from_arrays([column], schema=REPORTS)


def reports_of(texts: Iterable[str]) -> list[Any]:
    """The values of these rows."""
    return [json.loads(text) for text in texts]
