"""Addresses of Flight servers that this one may connect to, in one comparable form.

    grpc://host:port   grpc+tcp://host:port (the same)   grpc+tls://host:port

A host is a name, an IPv4 address, or an IPv6 address in brackets; in a list of allowed ones also ``*``, for any. Case,
a final dot, and an IPv6 address's spelling make no difference. Names are not looked up: a host allowed by name is not
allowed by its address.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from flight_server.protocol import bracketed

_PATTERN = re.compile(
    r"((?P<scheme>grpc|grpc\+tcp|grpc\+tls)://)?"
    r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<host>\*|[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?)\.?)"
    r"(:(?P<port>[0-9]{1,5}))?/?",
    re.ASCII | re.IGNORECASE,
)

ANY_HOST = "*"


@dataclass(frozen=True)
class FlightLocation:
    """An address. In a list of allowed ones a port or TLS of None means any, and so does the host ``*``."""

    host: str
    port: int | None
    tls: bool | None

    @classmethod
    def parse(cls, text: str) -> FlightLocation:
        """The address that a text means. Raises ValueError if it means none."""
        matched = _PATTERN.fullmatch(text)
        try:
            if matched is None:
                raise ValueError(text)
            address, scheme = matched["address"], matched["scheme"]
            host = matched["host"].lower() if address is None else str(ipaddress.IPv6Address(address))
            port = None if matched["port"] is None else int(matched["port"])
            if port is not None and not 1 <= port <= 65535:
                raise ValueError(port)
        except ValueError:
            raise ValueError(f"{text[:200]!r} is not grpc://host:port or grpc+tls://host:port") from None
        return cls(host, port, None if scheme is None else scheme.lower() == "grpc+tls")

    def covers(self, other: FlightLocation) -> bool:
        """Whether ``other`` is this address, or one left open."""
        return (
            self.host in (ANY_HOST, other.host)
            and self.port in (None, other.port)
            and self.tls in (None, other.tls)
        )

    @property
    def target(self) -> str:
        """For gRPC; with the scheme ``dns``, because a host may be named like a scheme of gRPC's."""
        return f"dns:///{self._authority}"

    @property
    def _authority(self) -> str:
        host = bracketed(self.host)
        return host if self.port is None else f"{host}:{self.port}"

    def __str__(self) -> str:
        scheme = "" if self.tls is None else "grpc+tls://" if self.tls else "grpc://"
        return scheme + self._authority
