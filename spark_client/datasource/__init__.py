"""The data source ``flight``: datasets of a server as Spark's own tables, read and written in columns.

For ``spark_client`` itself: ``spark_client.FlightDataSource``.
"""

from .flight_source import FlightDataSource

__all__ = [
    "FlightDataSource",
]
