"""The data source ``flight``: datasets of a server as Spark's own tables, read and written in columns.

For ``client`` and ``lookup``; ``spark_client.FlightDataSource`` is for users.
"""

from .flight_source import FlightDataSource, registered
from .spark_schema import spark_struct

__all__ = [
    "FlightDataSource",
    "registered",
    "spark_struct",
]
