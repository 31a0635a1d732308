"""The HTTP side: its listener, the bulk lane in both directions, and what people and monitoring look at."""

from .listener import HttpOptions, HttpServer
from .listening import AddressRefused, bind, bracketed

__all__ = [
    "AddressRefused",
    "HttpOptions",
    "HttpServer",
    "bind",
    "bracketed",
]
