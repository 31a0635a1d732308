"""The HTTP lane: the listener, the bulk lane both ways, and pages for people and monitoring."""

from .listener import HttpOptions, HttpServer
from .listening import AddressRefused, bind
