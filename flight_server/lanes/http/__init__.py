"""The HTTP lane: the listener, the bulk lane both ways, and pages for people and monitoring. ``node`` makes it."""

from .listener import HttpOptions, HttpServer
from .listening import AddressRefused, bind, bracketed

__all__ = [
    "AddressRefused",
    "HttpOptions",
    "HttpServer",
    "bind",
    "bracketed",
]
