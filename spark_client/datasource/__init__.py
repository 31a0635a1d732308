"""The data source ``flight``: datasets of a server as Spark's own tables, read and written in columns.

For ``client``; ``spark_client.FlightDataSource`` is for users.
"""

from .flight_source import FlightDataSource, registered

__all__ = [
    "FlightDataSource",
    "registered",
]
