"""The data source ``flight``: datasets of a server as Spark's own tables, read and written in columns."""

from .flight_source import FlightDataSource, Registered
from .spark_schema import spark_struct
from .staging import LostWrite
