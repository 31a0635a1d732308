"""The types of settings, each with the texts that it takes.

Sizes are as ``access.parse_size`` takes them, and not in the other forms of pydantic's. Times are seconds.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ByteSize, InstanceOf

from flight_server.access import FlightLocation, parse_size
from flight_server.protocol import InvalidRequest, check_prefix

_HOST_NAME = re.compile(r"\.?[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?", re.ASCII)


def _not_empty(value: object) -> object:
    if value == "":
        raise ValueError("an empty text is no path")  # Path would take it as the working directory
    return value


def _host_name(value: object) -> object:
    if isinstance(value, str) and not _HOST_NAME.fullmatch(value):
        raise ValueError(f"{value[:80]!r} is no host name: give it without scheme, port and path")
    return value


def _token(value: object) -> object:
    if value == "":
        raise ValueError("a token has at least 1 character")
    if isinstance(value, str) and not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ValueError("a token is printable ASCII, without spaces around it: it travels in a header")
    return value


def _prefix(value: object) -> object:
    try:
        return check_prefix(value, "it")
    except InvalidRequest as error:
        raise ValueError(error.message) from None


def _location(value: object) -> object:
    return FlightLocation.parse(value) if isinstance(value, str) else value


def is_loopback(host: str) -> bool:
    """Whether it is known that an address to listen on is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


Size = Annotated[ByteSize, BeforeValidator(parse_size)]
NamedPath = Annotated[Path, BeforeValidator(_not_empty)]
Token = Annotated[str, BeforeValidator(_token)]
HostName = Annotated[str, BeforeValidator(_host_name)]
Prefix = Annotated[str, BeforeValidator(_prefix)]
AllowedLocation = Annotated[InstanceOf[FlightLocation], BeforeValidator(_location)]
