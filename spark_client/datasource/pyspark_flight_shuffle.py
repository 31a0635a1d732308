"""Where PySpark finds the format ``flight`` by itself: it imports each top-level module named ``pyspark_*``.

The wheel and the zip that ``ship`` sends have this file at their top. An exception here would break all Python data
sources of a session, so there is none: without the client there is no ``flight``.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(Exception):
    from spark_client.datasource import FlightDataSource as DefaultSource

    __all__ = ["DefaultSource"]
